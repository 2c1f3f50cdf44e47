"""Mixtures by moves that raise the bound: with any number of components, or a given one."""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from pyro_fmvae.learn.component_moves import (
    EACH,
    Parts,
    Sample,
    Splits,
    deletion_gain,
    disjoint,
    joined,
    pair_gains,
    parted,
)
from pyro_fmvae.learn.mixture_search import LEADING, POSITIVE, SHORT, TOLERANCE, Fitted

FIRST: Final = 16
"""Clusters of a start."""
TRIED: Final = 3
"""Swaps that are tried, at most, before the search for better ones ends."""


def split_and_merge(sample: Sample, generator: torch.Generator, most: int, starts: int = 1) -> Fitted:
    """A mixture whose bound no split, no merge and no deletion raises.

    From few clusters of k-means it grows: every component that two describe better, by its own rows, is
    split. When there is none, pairs of components are merged, and components left out, as long as that raises
    the bound; then splits are tried again. The moves are those of Hughes and Sudderth (2013), Memoized online
    variational inference for Dirichlet process mixture models, for any prior of the weights.

    The bound counts one order of the components, :attr:`Fitted.evidence` all K!. With many components that
    would outweigh the price of one without rows.

    Args:
        sample: of the rows.
        generator: source of the random numbers, on the CPU.
        most: components at most.
        starts: how many; the best is kept. Every other one is of whitened rows if covariances are full.
    """
    model = sample.model(1)
    each = max(EACH, len(model.sites.numbers) if model.sites.full else 0)
    most = max(min(most, len(sample.x) // each), 1)
    found = [
        _moved(sample, _best_start(sample, min(FIRST, most), generator, starts, learn), most, generator)
        for learn in ((False, True) if model.learnt is not None else (False,))
    ]
    return max(found, key=lambda fitted: fitted.bound)


def _moved(sample: Sample, found: Fitted, most: int, generator: torch.Generator) -> Fitted:
    """Splits, merges and deletions, and when there are none left, a learnt prior, as long as the bound rises.

    A prior stays as it is meanwhile.
    """
    sample = sample.under(found.model)
    splits = Splits(sample, generator)
    while True:
        parts = splits.gains(found.gamma) if found.model.components < most else {}
        largest = sorted(parts, key=lambda component: -parts[component][0])
        chosen = {component: parts[component] for component in largest[: most - found.model.components]}
        rival = sample.fit(parted(found.gamma, chosen), SHORT) if chosen else found
        if rival.bound > found.bound + POSITIVE:
            found = rival
            continue
        less = reduced(sample, found)
        if less.model.components == found.model.components:
            found = sample.fit(less.gamma, learn=True, start=less.model)
            if found.bound < less.bound + POSITIVE:
                return found
            sample = sample.under(found.model)
            splits = Splits(sample, generator)
        else:
            found = less


def _best_start(
    sample: Sample, components: int, generator: torch.Generator, starts: int, learn: bool
) -> Fitted:
    """The best of several k-means starts, each of them improved a little."""
    clusters = (sample.clusters(components, start % 2 == 1, generator) for start in range(starts))
    return max((sample.fit(gamma, SHORT, learn) for gamma in clusters), key=lambda fitted: fitted.bound)


def best_mixture(sample: Sample, components: int, generator: torch.Generator, starts: int = 1) -> Fitted:
    """A mixture of a given number of components whose bound no swap raises.

    Starts are clusters of k-means, and every other time twice as many, which are merged. Each is improved a
    little, the best of them and the first one to the end. Then pairs of components are merged, and as many
    others split, as long as that raises the bound (Ueda et al., 2000, SMEM algorithm for mixture models).
    More starts never end lower: each has random numbers of its own.

    Args:
        sample: of the rows.
        components: K.
        generator: source of the random numbers, on the CPU.
        starts: how many; every other pair is of whitened rows if covariances are full.
    """
    begun = []
    for start in range(starts if components > 1 else 1):
        own = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator)))
        white, many = start // 2 % 2 == 1, start % 2 == 1
        begun.append((_started(sample, components, white, many, own), own))
    first, *others = begun
    others = sorted(others, key=lambda start: -start[0].bound)[: LEADING - 1]
    return max((_swapped(sample, *start) for start in [first, *others]), key=lambda fitted: fitted.bound)


def _started(sample: Sample, components: int, white: bool, many: bool, generator: torch.Generator) -> Fitted:
    """A mixture of clusters of k-means, improved a little; or of twice as many, of which pairs are merged."""
    most = max(len(sample.x) // EACH, components)
    count = min(2 * components, most) if many else components
    found = sample.fit(sample.clusters(count, white, generator), SHORT, learn=True)
    while count > components:
        pairs = disjoint(pair_gains(sample.under(found.model), found.gamma, -torch.inf, found.model))
        pairs = pairs[: max((count - components) // 2, 1)]
        count -= len(pairs)
        found = sample.under(found.model).fit(joined(found.gamma, pairs), SHORT, learn=True)
    return found


def _swapped(sample: Sample, found: Fitted, generator: torch.Generator) -> Fitted:
    """Swaps, as long as they raise the bound."""
    found = sample.under(found.model).fit(found.gamma, learn=True, start=found.model)
    splits = Splits(sample, generator)
    while True:
        sample = splits.sample = sample.under(found.model)
        parts = splits.gains(found.gamma)
        for component, pair in swaps(sample, found, parts)[:TRIED]:
            gamma = parted(found.gamma, {component: parts[component]})
            rival = sample.fit(joined(gamma, [pair]), learn=True)
            if rival.bound > found.bound + POSITIVE:
                found = rival
                break
        else:
            return sample.fit(found.gamma, learn=True, tolerance=TOLERANCE, start=found.model)


def swaps(sample: Sample, fitted: Fitted, parts: Mapping[int, Parts]) -> list[tuple[int, tuple[int, int]]]:
    """Splits, each with a pair to merge, that promise a higher bound, the best pairs first.

    No component is in two of them.
    """
    if not parts:
        return []
    gains = {component: gain for component, (gain, _) in parts.items()}
    found: list[tuple[int, tuple[int, int]]] = []
    used: set[int] = set()
    least = POSITIVE - max(gains.values())
    for gain, first, second in pair_gains(sample, fitted.gamma, least, fitted.model):
        left = [component for component in gains if component not in used | {first, second}]
        if used & {first, second} or not left:
            continue
        component = max(left, key=gains.__getitem__)
        if gain + gains[component] > POSITIVE:
            found.append((component, (first, second)))
            used |= {component, first, second}
    return found


def reduced(sample: Sample, found: Fitted) -> Fitted:
    """Merge pairs, and leave components out, as long as that raises the bound."""
    while True:
        found = sample.fit(found.gamma, start=found.model)
        gamma = thinned(sample, merged(sample, found.gamma))
        if gamma.shape[1] == found.model.components or (fewer := sample.fit(gamma)).bound < found.bound:
            return found
        found = fewer


def merged(sample: Sample, gamma: Tensor) -> Tensor:
    """Join pairs of components as long as that raises the bound at given responsibilities, [N, K]."""
    while pairs := pair_gains(sample, gamma):
        gamma = joined(gamma, disjoint(pairs))
    return gamma


def thinned(sample: Sample, gamma: Tensor) -> Tensor:
    """Leave components out whose rows are better shared among all others, the smallest first.

    Such are components of a few rows that lie at the edge of several clusters. Hughes, Kim and Sudderth
    (2015), Reliable and scalable variational inference for the hierarchical Dirichlet process, call it a
    delete move. The first component that is needed is the last that is tried.
    """
    while gamma.shape[1] > 1:
        model, gone = sample.given(gamma), int(gamma.sum(0).argmin())
        if deletion_gain(sample, model, gamma, gone) <= 0:
            break
        left = torch.arange(gamma.shape[1], device=gamma.device) != gone
        gamma = model.table(sample.seen, left)[:, left].softmax(-1)
    return gamma
