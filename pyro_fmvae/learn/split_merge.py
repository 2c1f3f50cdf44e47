"""How many components a table asks for: too many at first, then merges and splits by the bound."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.infer import natural_prior
from pyro_fmvae.infer.seeding import kmeans
from pyro_fmvae.learn.mixture_search import LONG, POSITIVE, SHORT, Fitted, climb, features_of, whitened
from pyro_fmvae.models import ObservedMixture
from pyro_fmvae.models.table_sites import WEIGHTS

FIRST: Final = 16
"""Clusters of the first starts; they are doubled while more than half of them are left after merging."""
EACH: Final = 10
"""Rows for each cluster of a start, at least, and for each half of a component that is split."""
FEW: Final = 3
"""Updates between merges at first, and of a mixture that lacks a component."""
HALVED: Final = 20
"""Updates of the two halves of a component, on its own rows."""

Make = Callable[[int, int], ObservedMixture]
"""Numbers of components and of rows → new model. Priors of its components do not depend on either."""


def split_and_merge(make: Make, x: Tensor, generator: torch.Generator, most: int, starts: int = 1) -> Fitted:
    """A mixture whose bound no merge raises, and no round of splits.

    k-means with more clusters than are needed starts it. Pairs of components are merged, and components left
    out, as long as that raises the bound. Then every component that two describe better, by its own rows, is
    split, and all is reduced again; this is kept if the bound rises, and repeated. The moves are those of
    Hughes and Sudderth (2013), Memoized online variational inference for Dirichlet process mixture models,
    for any prior of the weights.

    The bound counts one order of the components, :attr:`Fitted.evidence` all K!. With many components that
    would outweigh the price of one without rows.

    Args:
        make: see :data:`Make`.
        x: all rows, as :meth:`ObservedMixture.observations` takes them.
        generator: source of the random numbers, on the CPU.
        most: components at most.
        starts: of the greatest number of clusters; the others have one. Every other start is of whitened rows
            if covariances are full.
    """
    most = max(min(most, len(x) // EACH), 1)
    size = min(FIRST, most)
    found = _clustered(make, x, size, False, generator)
    while size < most and found.model.components > size // 2:
        size = min(2 * size, most)
        found = _clustered(make, x, size, False, generator)
    best = reduced(make, x, found)
    for start in range(1, starts):
        found = reduced(make, x, _clustered(make, x, size, start % 2 == 1, generator))
        best = found if found.bound > best.bound else best
    while True:
        found = reduced(make, x, split(make, x, best, generator, most))
        if found.bound < best.bound + POSITIVE:
            return best
        best = found


def _clustered(make: Make, x: Tensor, size: int, white: bool, generator: torch.Generator) -> Fitted:
    """So many clusters of k-means as a mixture, improved a little and merged."""
    gamma = one_hot(kmeans(_space(make(1, len(x)), x, white), size, generator), size).double()
    return merged(make, x, climb(make(size, len(x)), x, None, gamma, SHORT), FEW)


def reduced(make: Make, x: Tensor, found: Fitted) -> Fitted:
    """Merge pairs, and leave components out, as long as that raises the bound.

    Pairs are merged soon at first, then after improving to the end.
    """
    found = merged(make, x, found, FEW)
    while True:
        found = climb(make(found.model.components, len(x)), x, None, found.gamma)
        found = merged(make, x, found, LONG)
        fewer = thinned(make, x, found)
        if fewer is found:
            return found
        found = fewer


def thinned(make: Make, x: Tensor, found: Fitted) -> Fitted:
    """Leave components out whose rows are better shared among all others, the smallest first.

    Such are components of a few rows that lie at the edge of several clusters. Hughes, Kim and Sudderth
    (2015), Reliable and scalable variational inference for the hierarchical Dirichlet process, call it a
    delete move. The first component that is needed is the last that is tried.
    """
    while found.model.components > 1:
        left = found.gamma.sum(0).argsort()[1:]
        table = found.model.table(found.model.observations(x))
        rival = climb(make(len(left), len(x)), x, None, table[:, left].softmax(-1), FEW)
        if rival.bound < found.bound:
            break
        found = rival
    return found


def merged(make: Make, x: Tensor, found: Fitted, iterations: int) -> Fitted:
    """Merge pairs as long as that raises the bound, after so many updates at most."""
    while pairs := gaining_pairs(found):
        gamma = found.gamma.clone()
        for kept, other in pairs:
            gamma[:, kept] += gamma[:, other]
        gone = {other for _, other in pairs}
        left = [component for component in range(gamma.shape[1]) if component not in gone]
        rival = climb(make(len(left), len(x)), x, None, gamma[:, left], iterations)
        if rival.bound < found.bound:
            break
        found = rival
    return found


def gaining_pairs(found: Fitted) -> list[tuple[int, int]]:
    """Disjoint pairs of components whose union raises the bound, the greatest gain first."""
    gains, gamma = union_gains(found.model), found.gamma
    entropy, gained = torch.special.entr(gamma).sum(0), []
    for first, second in (gains.triu(1) > 0).nonzero().tolist():  # entropy that is lost only lowers the gain
        union = torch.special.entr(gamma[:, first] + gamma[:, second]).sum()
        gained.append((float(gains[first, second] + union - entropy[first] - entropy[second]), first, second))
    pairs: list[tuple[int, int]] = []
    for gain, first, second in sorted(gained, reverse=True):
        if gain > 0 and not any({first, second} & set(pair) for pair in pairs):
            pairs.append((first, second))
    return pairs


@torch.no_grad()
def union_gains(model: ObservedMixture) -> Tensor:
    """Gain in the bound by taking each two components together, but for the entropy that is lost: [K, K].

    At λ = λ0 + T the bound is A(λ) - A(λ0), summed over sites, plus the entropy of the assignments. The union
    of two components has λ_k + λ_l - λ0. Numbers that are missing count as if they were known.
    """
    gains = _weight_gains(model)
    for name, prior in model.natural_priors().items():
        if name != WEIGHTS:
            q = model.natural(name)
            own, before = q.natural, prior.natural.expand_as(q.natural)
            alone, nothing = _log_normalizer(q, own), _log_normalizer(q, before)
            unions = [_log_normalizer(q, one + own - before) for one in own]
            gains += torch.stack(unions) + nothing - alone - alone.unsqueeze(-1)
    return gains


def _log_normalizer(q: NaturalDistribution, natural: Tensor) -> Tensor:
    """A(λ) of each component, [K], summed over the columns that have members of their own."""
    return q.family.log_normalizer(natural).unsqueeze(-1).flatten(1).sum(-1)


def _weight_gains(model: ObservedMixture) -> Tensor:
    """The part of the mixing weights, [K, K]."""
    if model.components == 1:
        return torch.zeros(1, 1, dtype=torch.float64, device=model.device)
    counts = model.counts()
    before, gains = _weight_evidence(model, counts), []
    for gone in range(model.components):
        unions = counts + counts[gone] * torch.eye(len(counts), dtype=counts.dtype, device=counts.device)
        kept = torch.arange(len(counts), device=counts.device) != gone
        gains.append(_weight_evidence(model, unions[:, kept]) - before)
    return torch.stack(gains, -1)


def _weight_evidence(model: ObservedMixture, counts: Tensor) -> Tensor:
    """Log-probability of assignments with so many rows of each component, [..., K], in their best order."""
    weights, size = model.prior.weights, counts.shape[-1]
    prior = natural_prior(weights.prior(model.prior.c0, size))
    ordered = counts.gather(-1, weights.order(counts))
    told, log_normalizer = weights.told(ordered), prior.family.log_normalizer
    before = prior.natural.to(told)
    gained = log_normalizer(before + told) - log_normalizer(before)
    return gained.unsqueeze(-1).flatten(counts.dim() - 1).sum(-1)


def split(make: Make, x: Tensor, found: Fitted, generator: torch.Generator, most: int) -> Fitted:
    """Split the components that two describe better by their own rows, and improve the whole a little.

    A component's own rows are those that it is the most probable one of.
    """
    columns, nearest = list(found.gamma.unbind(-1)), found.gamma.argmax(-1)
    for component in range(found.model.components):
        rows = (nearest == component).nonzero().squeeze(-1)
        if len(rows) < 2 * EACH or len(columns) == most:
            continue
        own, models = x[rows], [make(size, len(rows)) for size in (1, 2)]
        halves = one_hot(kmeans(_space(models[0], own, True), 2, generator), 2).double()
        one = climb(models[0], own, None, torch.ones_like(halves[:, :1]), HALVED)
        two = climb(models[1], own, None, halves, HALVED)
        if two.bound > one.bound + POSITIVE:
            share = torch.zeros_like(columns[component]).index_copy(0, rows, two.gamma[:, 1])
            columns.append(share * columns[component])
            columns[component] = columns[component] - columns[-1]
    return climb(make(len(columns), len(x)), x, None, torch.stack(columns, -1), SHORT)


def _space(model: ObservedMixture, x: Tensor, white: bool) -> Tensor:
    """Rows as k-means takes them; whitened only where covariances are full."""
    features = features_of(x, model.levels)
    return whitened(features) if white and model.sites.full else features
