"""The mixture that a table's rows ask for: starts, moves that split and merge, and how many components."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad
from torch.nn.utils.rnn import pad_sequence
from torch.special import entr

from pyro_fmvae.distributions import NaturalDistribution, NormalWishart
from pyro_fmvae.distributions.category import codes_below
from pyro_fmvae.infer import natural_prior
from pyro_fmvae.infer.seeding import kmeans_draws, kmeans_together
from pyro_fmvae.learn.coordinate_ascent import (
    Ascent,
    Fitted,
    Reached,
    ascend,
    ascended,
    only,
    room,
    side_by_side,
)
from pyro_fmvae.models import ObservedMixture, TablePrior
from pyro_fmvae.models.packed_numbers import LARGEST, PackedNumbers, PackedObservations, incomplete
from pyro_fmvae.models.table_sites import COUNTS, NUMBERS, WEIGHTS, child_of, parameter_of

NARROW: Final = 1e-3
"""Share of the largest standard deviation: a principal component of less is left out."""
FREQUENT: Final = 100
"""Categories of a column that k-means sees, at most."""
POSITIVE: Final = 1.0
"""Nats of evidence to gain at least (Kass and Raftery, 1995: "positive")."""
SHORT: Final = 10
"""Updates of every start; the best of them have more."""
UPDATES: Final = 200
"""Updates at most of those."""
TOLERANCE: Final = 1e-5
"""Nats per row: an update that adds less is the last, where the search has ended."""
LEADING: Final = 3
"""Starts that are improved to the end."""
WORSE: Final = 2
"""Numbers of components in a row of too little evidence, after which no further one is tried."""


def features_of(x: Tensor, levels: Sequence[int]) -> Tensor:
    """Rows for k-means, [N, F]: numbers, 0 where missing, roots of counts, and indicators of categories.

    A column of many categories has indicators of the most frequent ones alone.
    """
    if not any(levels):
        return x.nan_to_num(0.0)
    parts = []
    for column, size in zip(x.unbind(-1), levels, strict=True):
        if size == COUNTS:
            parts.append(_scaled_root(column).unsqueeze(-1))
        elif size:
            codes = codes_below(column, size)
            most = codes[codes >= 0].bincount(minlength=size).argsort(descending=True, stable=True)[:FREQUENT]
            parts.append((codes.unsqueeze(-1) == most.sort().values).to(x))
        else:
            parts.append(column.nan_to_num(0.0).unsqueeze(-1))
    return torch.cat(parts, -1)


def _scaled_root(counts: Tensor) -> Tensor:
    """Roots of counts, whose variance within a component is the same everywhere, standardised; 0 for NaN."""
    roots = counts.sqrt()
    gaps = (roots - roots.nanmean().nan_to_num(0.0)).nan_to_num(0.0)
    spread = gaps.square().mean().sqrt()
    return gaps / spread if spread > 0 else gaps


def whitened(features: Tensor, known: Tensor | None = None) -> Tensor:
    """Principal components of rows [..., N, F], each of unit variance; those of next to no variance are 0.

    Args:
        features: rows.
        known: 0 for rows that only fill up, else 1, [..., N]; None: all are rows.
    """
    weights = features.new_ones(features.shape[:-1]) if known is None else known.to(features)
    count = weights.sum(-1)[..., None, None]
    centred = (features - weights.unsqueeze(-2) @ features / count) * weights.unsqueeze(-1)
    squares, axes = torch.linalg.eigh(centred.double().mT @ centred.double())
    scales = squares.clamp(min=0).sqrt().unsqueeze(-2)
    wide = scales >= NARROW * scales[..., -1:]
    return centred @ torch.where(wide, axes * count.double().sqrt() / scales, 0.0).to(centred)


# Moves of components: what the bound gains by them.


EACH: Final = 10
"""Rows for each cluster of a start, at least, and for each half of a component that is split."""
HALVED: Final = 10
"""Updates of the two halves of a component, on its own rows."""

ROUGH: Final = 1e-2
"""Nats per row: an update of halves, or of clusters that are merged next, that adds less is the last."""

FILLED: Final = 5
"""Updates by given responsibilities where numbers are missing, which each fills in by the last one."""
REFILLED: Final = 3
"""Times that missing numbers are filled in anew for updates that keep them."""
SETTLED: Final = 1e-4
"""Nats per row: an update that adds less is the last, as long as mixtures are compared."""
SAME: Final = 0.9
"""Share of rows in common from which on two components are nearly the same."""
TOUCHED: Final = 1e-6
"""Probability from which on a row has to do with a component."""
NOTHING: Final = 1e-12
"""Probability that adds nothing to an entropy but rounding."""
PADDED: Final = 1.5
"""Components of up to so many times as many rows are split side by side."""

CODES: Final = 5_000
"""Points, at most, that a mixture of codes is learnt from."""
JITTER: Final = 1e-6
"""Share of its variance that a latent gets more of, so that few points have a covariance."""
OF_CODES: Final = 50
"""Components of it, at most."""

MOST: Final = 200
"""Components at most, if their number is chosen."""

Make = Callable[[int, int], ObservedMixture]
"""Numbers of components and of rows → new model. Priors of its components do not depend on either.

Where a prior is learnt, it is where the learning starts.
"""


@dataclass(frozen=True)
class Sample:
    """Rows that mixtures are compared by.

    Attributes:
        make: see :data:`Make`.
        x: as :meth:`ObservedMixture.observations` takes them, [N, D].
        kind: a model of one component, which says what the columns are.
        observations: of :meth:`ObservedMixture.packed`.
        each: how many rows of all data each one stands for.
        learnt: state at which a prior that new models learn begins; None: as they are made.
        shapes: a learnt prior also learns how alike covariances are.
        labels: int64 [N, L], -1 = unknown; None: no labels.
        until: time of ``time.monotonic()``, after which no further update or move is begun.
        made: a model of each number of components that was asked for, of which new ones are copies.
    """

    make: Make
    x: Tensor
    kind: ObservedMixture
    observations: PackedObservations
    each: float = 1.0
    learnt: Mapping[str, Tensor] | None = None
    shapes: bool = False
    labels: Tensor | None = None
    until: float = math.inf
    made: dict[int, ObservedMixture] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        make: Make,
        x: Tensor,
        each: float = 1.0,
        labels: Tensor | None = None,
        until: float = math.inf,
    ) -> "Sample":
        """The sample of rows [N, D]."""
        kind = make(1, len(x))
        return cls(make, x, kind, kind.packed(x, labels), each, labels=labels, until=until)

    def part(self, rows: Tensor) -> "Sample":
        """Some of the rows, by their indices."""
        x, labels = self.x[rows], None if self.labels is None else self.labels[rows]
        return replace(self, x=x, labels=labels, observations=self.kind.packed(x, labels))

    @property
    def late(self) -> bool:
        """Is the time up?"""
        return time.monotonic() > self.until

    def under(self, prior: ObservedMixture) -> "Sample":
        """These rows, with new models that begin at the prior that a model has learnt."""
        if prior.learnt is None:
            return self
        state = {name: value.clone() for name, value in prior.learnt.state_dict().items()}
        return replace(self, learnt=state)

    def alike(self) -> "Sample":
        """These rows, with new models whose learnt prior also learns how alike covariances are.

        Covariances that are nearly the same leave fewer local maxima.
        """
        return replace(self, shapes=True)

    @property
    def gaps(self) -> bool:
        """Are numbers missing that :meth:`filled` can fill in?"""
        numbers = self.observations.get(NUMBERS)
        return isinstance(numbers, PackedNumbers) and numbers.gaps is not None

    def filled(self, by: Fitted) -> "Sample":
        """These rows with their missing numbers as a mixture expects them, and their covariances."""
        numbers = self.observations.get(NUMBERS)
        if not isinstance(numbers, PackedNumbers) or numbers.gaps is None:
            return self
        numbers = numbers.filled(by.model.natural(parameter_of(NUMBERS)).expected_stats(), by.gamma)
        x, columns = self.x.clone(), self.kind.sites.numbers
        x[:, columns] = numbers.own_statistics[-len(columns) :].mT.to(x)
        return replace(self, x=x, observations={**self.observations, NUMBERS: numbers})

    def model(self, components: int, start: ObservedMixture | None = None) -> ObservedMixture:
        """A new model of these rows; where a start is given, with its posterior and learnt prior."""
        if components not in self.made:
            self.made[components] = self.make(components, 1)
            self.made[components].forget()  # so that missing numbers are first filled in by the prior
        model = deepcopy(self.made[components])
        model.num_data = max(round(self.each * len(self.x)), 1)
        if model.learnt is not None:
            model.learnt.shapes = model.learnt.shapes or self.shapes
            if self.learnt is not None:
                model.learnt.load_state_dict(self.learnt)
        if start is not None:
            model.load_state_dict(start.state_dict())
        return model

    def fit(
        self,
        gamma: Tensor,
        iterations: int = UPDATES,
        learn: bool = False,
        tolerance: float = SETTLED,
        start: ObservedMixture | None = None,
    ) -> Fitted:
        """Coordinate ascent from responsibilities [N, K], until the bound hardly rises.

        Args:
            gamma: responsibilities, [N, K].
            iterations: updates at most.
            learn: learn the prior, too, where it is learnt.
            tolerance: nats per row: an update that adds less is the last.
            start: a model of as many components that is near, by which missing numbers are first filled in.
        """
        model = self.model(gamma.shape[1], start)
        return ascended(
            [model], self.observations, [gamma], iterations, self.until, tolerance * self.each, learn
        )[0]

    def taken(self, rows: Tensor) -> PackedObservations:
        """Observations of rows of C mixtures side by side, by their indices [C, n]."""
        return {
            name: part.chosen(rows) if isinstance(part, PackedNumbers) else part[rows]
            for name, part in self.observations.items()
        }

    def ascents(
        self,
        observations: PackedObservations,
        known: Tensor,
        gamma: Tensor,
        iterations: int,
        tolerance: float,
    ) -> list[Reached]:
        """:meth:`fit` to rows of C mixtures side by side, or of one.

        Args:
            observations: observations of the rows, by :meth:`taken`; of one that has to be alone, without C.
            known: 0 for rows that only fill up, else 1, [C, n].
            gamma: responsibilities, [C, n, K].
            iterations, tolerance: as for :meth:`fit`.
        """
        counts = known.sum(-1)
        scale = (self.each * counts).round().clamp(min=1) / counts
        model, least = self.model(gamma.shape[-1]), tolerance * self.each * counts
        if not side_by_side(observations):
            return Ascent(model, observations, gamma[0], scale[0]).run(
                iterations, least[0], self.until, learn=False
            )
        gamma = (gamma * known.unsqueeze(-1)).mT.contiguous().mT
        return Ascent(model, observations, gamma, scale, known=known).run(
            iterations, least, self.until, learn=False
        )

    @property
    def width(self) -> int:
        """Numbers that are kept of a row."""
        numbers = self.observations.get(NUMBERS)
        packed = numbers.own_statistics.shape[0] if isinstance(numbers, PackedNumbers) else 0
        return packed + self.x.shape[1]

    def given(self, gamma: Tensor, start: ObservedMixture | None = None) -> ObservedMixture:
        """The posterior given responsibilities, [N, K]: exact unless numbers are missing.

        These are filled in under the start, as for :meth:`fit`; without one, by the prior at first.
        """
        model = self.model(gamma.shape[1], start)
        for _ in range(FILLED if start is None and not side_by_side(self.observations) else 1):
            ascend(model, self.observations, gamma, learn=False)
        return model

    def clusters(self, count: int, white: bool, generator: torch.Generator, tries: int = 1) -> Tensor:
        """One-hot clusters of k-means, float64 [N, count]; of whitened rows where covariances are full.

        The first centres are the means of the rows with each combination of labels, if there are no more of
        these than clusters.

        Args:
            count: number of clusters.
            white: rows are whitened.
            generator: source of the random numbers, on the CPU.
            tries: k-means from so many seeds; the clusters with the least sum of squares are kept.
        """
        features = features_of(self.x, self.kind.levels)
        space = whitened(features) if white and self.kind.sites.full else features
        centres = None if self.labels is None else label_means(space, self.labels)
        if centres is not None and len(centres) > count:
            centres = None
        given = 0 if centres is None else len(centres)
        draws = [kmeans_draws(len(space), count, generator, given) for _ in range(tries)]
        first, others = (torch.stack(part) for part in zip(*draws, strict=True))
        if centres is not None:
            centres = centres.expand(tries, -1, -1)
        spaces = space.expand(tries, -1, -1)
        gammas = one_hot(kmeans_together(spaces, count, first, others, centres=centres), count).double()
        return max(gammas, key=lambda gamma: _between(space.double(), gamma))


def label_means(points: Tensor, labels: Tensor) -> Tensor | None:
    """Means of points [N, F] with each combination of known labels [N, L], [C, F]; None: none is known."""
    known = (labels >= 0).all(-1)
    if not known.any():
        return None
    numbers = labels[known].unique(dim=0, return_inverse=True)[1]
    members = one_hot(numbers).to(points)
    return members.mT @ points[known] / members.sum(0).unsqueeze(-1)


def _between(points: Tensor, members: Tensor) -> float:
    """Sum of squares between clusters, of points [N, F] and one-hot clusters [N, K]."""
    sums, counts = members.mT @ (points - points.mean(0)), members.sum(0).clamp(min=1.0)
    return float((sums.square().sum(-1) / counts).sum())


def fits(
    samples: Sequence[Sample],
    gammas: Sequence[Tensor],
    iterations: int = UPDATES,
    learn: bool = False,
    tolerance: float = SETTLED,
) -> list[Fitted]:
    """:meth:`Sample.fit` of the same rows under several priors, side by side for equal numbers of components.

    Args:
        samples: of the same rows.
        gammas: responsibilities, [N, K] each.
        iterations, learn, tolerance: as for :meth:`Sample.fit`.
    """
    found: dict[int, Fitted] = {}
    for size in {gamma.shape[1] for gamma in gammas}:
        numbers = [number for number, gamma in enumerate(gammas) if gamma.shape[1] == size]
        first = samples[numbers[0]]
        fitted = ascended(
            [samples[number].model(size) for number in numbers],
            first.observations,
            [gammas[number] for number in numbers],
            iterations,
            first.until,
            tolerance * first.each,
            learn,
        )
        found.update(zip(numbers, fitted, strict=True))
    return [found[number] for number in range(len(gammas))]


def joined(gamma: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Responsibilities [N, K] with the columns of disjoint pairs added up."""
    gamma = gamma.clone()
    for one, other in pairs:
        gamma[:, one] += gamma[:, other]
    gone = {other for _, other in pairs}
    return gamma[:, [component for component in range(gamma.shape[1]) if component not in gone]]


def pair_gains(
    sample: Sample, gamma: Tensor, least: float = 0.0, start: ObservedMixture | None = None
) -> list[tuple[float, int, int]]:
    """Gains in the bound by joining two components at given responsibilities, the greatest first.

    Args:
        sample: of the rows.
        gamma: responsibilities, [N, K].
        least: only pairs that gain more are returned.
        start: as for :meth:`Sample.given`.
    """
    gains = union_gains(sample.given(gamma, start)).triu(1)
    gains = torch.where(torch.ones_like(gains).triu(1) > 0, gains, -torch.inf)
    firsts = (gains > least).any(-1).nonzero().squeeze(-1)  # entropy that is lost only lowers it
    alone, count = entr(gamma), gamma.shape[1]
    most = max(room(gamma.device) // gamma.numel(), 1) if gamma.is_cuda else 1  # few operations, or few rows
    for some in firsts.split(most) if len(firsts) else ():
        lowest = int(some[0])
        rows = slice(None) if most > 1 else (gamma[:, lowest] > NOTHING).nonzero().squeeze(-1)
        own, others = gamma[rows][:, some].unsqueeze(-1), gamma[rows, lowest:].unsqueeze(1)
        union = (
            entr(own + others).sum(0)
            - alone[rows][:, some].sum(0).unsqueeze(-1)
            - alone[rows, lowest:].sum(0)
        )
        gains[some.unsqueeze(-1), torch.arange(lowest, count, device=gamma.device)] += sample.each * union
    pairs = (gains > least).nonzero()
    values = gains[tuple(pairs.T)].tolist()
    return sorted(((gain, *pair) for gain, pair in zip(values, pairs.tolist(), strict=True)), reverse=True)


def disjoint(pairs: Sequence[tuple[float, int, int]]) -> list[tuple[int, int]]:
    """Pairs without those that share a component with an earlier one."""
    found: list[tuple[int, int]] = []
    used: set[int] = set()
    for _, first, second in pairs:
        if first not in used and second not in used:
            found.append((first, second))
            used |= {first, second}
    return found


@torch.no_grad()
def union_gains(model: ObservedMixture) -> Tensor:
    """Gain in the bound by taking each two components together, but for the entropy that is lost: [K, K].

    At λ = λ0 + T the bound is A(λ) - A(λ0), summed over sites, plus the entropy of the assignments. The union
    of two components has λ_k + λ_l - λ0. Numbers that are missing count as if they were known. Only the part
    above the diagonal is filled.
    """
    gains = _weight_gains(model).triu(1)
    first, second = torch.triu_indices(model.components, model.components, 1, device=gains.device)
    for name, prior in model.natural_priors().items():
        if name != WEIGHTS:
            q = model.natural(name)
            own, before = q.natural, prior.natural[:1]
            alone, nothing = _log_normalizer(q, own), _log_normalizer(q, before)
            most = max(room(own.device) // (2 * own[0].numel()), 1)
            for a, b in zip(first.split(most), second.split(most), strict=True):
                gains[a, b] += _log_normalizer(q, own[a] + own[b] - before) + nothing - alone[a] - alone[b]
    return gains


@torch.no_grad()
def deletion_gain(sample: Sample, model: ObservedMixture, gamma: Tensor, gone: int) -> float:
    """Gain in the bound by leaving a component out, its rows being shared among the others.

    The others take the rows by their present probabilities, and their posteriors follow. Numbers that are
    missing count as if they were known.

    Args:
        sample: of the rows.
        model: at the exact posterior given ``gamma``.
        gamma: responsibilities, [N, K].
        gone: the component, which has company.
    """
    rows = (gamma[:, gone] > TOUCHED).nonzero().squeeze(-1)
    left = torch.arange(gamma.shape[1], device=gamma.device) != gone
    observations, before = sample.part(rows).observations, gamma[rows]
    after = model.table(observations, left).softmax(-1)
    more = (after - before) * left
    gain = sample.each * float(entr(after).sum() - entr(before).sum())
    counts = sample.each * gamma.sum(0)
    moved = (counts + sample.each * more.sum(0))[left]
    gain += float(_weight_evidence(model, moved) - _weight_evidence(model, counts))
    for name, prior in model.natural_priors().items():
        if name != WEIGHTS and child_of(name) in observations:
            q = model.natural(name)
            own = model.sites.conjugate(
                child_of(name), q.natural, observations[child_of(name)], more, q.expected_stats(), sample.each
            )
            gain += float((_log_normalizer(q, own) - _log_normalizer(q, q.natural))[left].sum())
            gain += float(_log_normalizer(q, prior.natural.expand_as(q.natural)[:1]))
            gain -= float(_log_normalizer(q, q.natural[gone : gone + 1]))
    return gain


def _log_normalizer(q: NaturalDistribution, natural: Tensor) -> Tensor:
    """A(λ) of each component, [K], summed over the columns that have members of their own."""
    return q.family.log_normalizer(natural).unsqueeze(-1).flatten(1).sum(-1)


def _weight_gains(model: ObservedMixture) -> Tensor:
    """The part of the mixing weights, [K, K]."""
    if model.components == 1:
        return torch.zeros(1, 1, dtype=torch.float64, device=model.device)
    counts = model.counts()
    size, before, gains = len(counts), _weight_evidence(model, counts), []
    same = torch.eye(size, dtype=counts.dtype, device=counts.device)
    each = torch.arange(size, device=counts.device)
    staying = each[:-1] + (each[:-1] >= each.unsqueeze(-1))  # all but the one, [K, K - 1]
    for gone in each.split(max(room(counts.device) // size**2, 1)):
        unions = counts + counts[gone, None, None] * same
        left = staying[gone].unsqueeze(1).expand(-1, size, -1)
        gains.append(_weight_evidence(model, unions.gather(-1, left)) - before)
    return torch.cat(gains).mT


def _weight_evidence(model: ObservedMixture, counts: Tensor) -> Tensor:
    """Log-probability of assignments with so many rows of each component, [..., K], in their best order."""
    weights, size = model.prior.weights, counts.shape[-1]
    prior = natural_prior(weights.prior(model.prior.c0, size))
    ordered = counts.gather(-1, weights.order(counts))
    statistics, log_normalizer = weights.statistics(ordered), prior.family.log_normalizer
    before = prior.natural.to(statistics)
    gained = log_normalizer(before + statistics) - log_normalizer(before)
    return gained.unsqueeze(-1).flatten(counts.dim() - 1).sum(-1)


Parts = tuple[float, Tensor]
"""What a split gains, and the two columns of responsibilities in place of the one, [N, 2]."""


class Splits:
    """Components that two describe better by their own rows: those that a component is the most probable of.

    What did not help is not tried again while nearly the same rows are together.
    """

    def __init__(self, sample: Sample, generator: torch.Generator) -> None:
        self.sample, self.generator = sample, generator
        self._failed = torch.full((len(sample.x),), -1)
        self._sizes: list[int] = []

    def gains(self, gamma: Tensor) -> dict[int, Parts]:
        """Splits that raise the bound of a component's own rows, by component, at responsibilities [N, K]."""
        nearest, found = gamma.argmax(-1).cpu(), {}
        own = nearest.argsort(stable=True).split(nearest.bincount(minlength=gamma.shape[1]).tolist())
        tried = {
            component: rows
            for component, rows in enumerate(own)
            if len(rows) >= 2 * EACH and not self._known(rows)
        }
        for (component, rows), (gain, share) in zip(
            tried.items(), self._halves(list(tried.values())), strict=True
        ):
            if gain > POSITIVE:
                places = rows.to(gamma.device)
                second = torch.zeros_like(gamma[:, 0]).index_copy(0, places, share) * gamma[:, component]
                found[component] = gain, torch.stack([gamma[:, component] - second, second], -1)
            else:
                self._failed[rows] = len(self._sizes)
                self._sizes.append(len(rows))
        return found

    def _halves(self, own: Sequence[Tensor]) -> list[tuple[float, Tensor]]:
        """Gain of two components over one of rows [n] each, and the second's responsibilities, [n].

        Halves are those of k-means of the rows, or if these gain nothing, of whitened rows.
        """
        found: dict[int, tuple[float, Tensor]] = {}
        for batch in self._batches(own):
            sample, left = self.sample, list(batch)
            rows, known = _padded([own[number] for number in batch], sample.x.device)
            if side_by_side(sample.observations):
                observations = sample.taken(rows)
            else:
                sample = sample.part(rows[0])
                observations = sample.observations
            ones = known.unsqueeze(-1)
            alone = [one.bound for one in sample.ascents(observations, known, ones, 1, SETTLED)]
            for white in False, True:
                gamma = self._halved([own[number] for number in left], known, white)
                for number, two in zip(
                    left, sample.ascents(observations, known, gamma, HALVED, ROUGH), strict=True
                ):
                    gain = two.bound - alone[batch.index(number)]
                    found[number] = gain, two.gamma[: len(own[number]), 1]
                again = [place for place, number in enumerate(left) if found[number][0] <= POSITIVE]
                if not again:
                    break
                if len(again) < len(left):
                    left = [left[place] for place in again]
                    observations, known = only(observations, again), known[again]
        return [found[number] for number in range(len(own))]

    def _batches(self, own: Sequence[Tensor]) -> list[list[int]]:
        """Numbers of the candidates that are tried side by side: of about as many rows, and not too many."""
        found: list[list[int]] = []
        together = side_by_side(self.sample.observations)
        most = room(self.sample.x.device) // self.sample.width
        for number in sorted(range(len(own)), key=lambda number: -len(own[number])):
            longest = len(own[found[-1][0]]) if found else 0
            alike = longest <= PADDED * len(own[number])
            if found and together and alike and longest * (len(found[-1]) + 1) <= most:
                found[-1].append(number)
            else:
                found.append([number])
        return found

    def _halved(self, own: Sequence[Tensor], known: Tensor, white: bool) -> Tensor:
        """One-hot halves of rows [n] each, by k-means of the rows, whitened or not: float64 [C, most n, 2].

        ``known`` is 1 for the rows, and 0 for what fills up, [C, most n].
        """
        x, kind = self.sample.x, self.sample.kind
        features = pad_sequence([features_of(x[rows.to(x.device)], kind.levels) for rows in own], True)
        features = pad(features, (0, 0, 0, known.shape[1] - features.shape[1]))
        if white and kind.sites.full:
            features = whitened(features, known)
        draws = [kmeans_draws(len(rows), 2, self.generator) for rows in own]
        first, others = (torch.stack(part) for part in zip(*draws, strict=True))
        return one_hot(kmeans_together(features, 2, first, others, known=known), 2).double()

    def _known(self, rows: Tensor) -> bool:
        """Were nearly these rows together when a split failed?"""
        before = self._failed[rows]
        number = int(before.mode().values)
        together = int((before == number).sum())
        return number >= 0 and together > SAME * max(len(rows), self._sizes[number])


def _padded(own: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    """Indices of rows [n] each as one tensor, filled up with 0, and 1 where they are rows: [C, n] each."""
    rows = pad_sequence(list(own), True)
    sizes = torch.tensor([len(each) for each in own]).unsqueeze(-1)
    return rows.to(device), (torch.arange(rows.shape[1]) < sizes).double().to(device)


def parted(gamma: Tensor, parts: Mapping[int, Parts]) -> Tensor:
    """Responsibilities with the second part of each split behind all others, [N, K + splits]."""
    gamma = torch.cat([gamma, *(both[:, 1:] for _, both in parts.values())], -1)
    for component, (_, both) in parts.items():
        gamma[:, component] = both[:, 0]
    return gamma


# Mixtures by moves that raise the bound: with any number of components, or a given one.


FIRST: Final = 16
"""Clusters of a start."""

SEEDS: Final = 3
"""Seeds of k-means for each start of a given number of components."""

TRIED: Final = 3
"""Swaps that are tried, at most, before the search for better ones ends."""


STARTED: Final = 10_000
"""Rows that mixtures are compared by."""
STARTED_FULL_GAPS: Final = 2_000
"""The same, where gaps and full covariances make each row a factorisation."""
PER_COMPONENT: Final = 100
"""But at least so many for each component."""
PER_COLUMN: Final = 8
"""And so many for each column of numbers of each component with a full covariance, if there is memory."""
STANDS: Final = 3.0
"""Rows of all data that a row of this sample stands for, at most, where the number of components is given.

At 1, components that all rows ask for are left out. With many more, splits fit chance in the sample.
"""
STARTS: Final = 10
"""Starts, unless another number is asked for."""


def mixture_of_rows(
    make: Make,
    x: Tensor,
    seed: int,
    components: int | None = None,
    starts: int = STARTS,
    weights: np.ndarray | None = None,
    labels: Tensor | None = None,
    most: int = MOST,
    until: float = math.inf,
) -> Fitted:
    """The mixture of some of the rows that learning from all of them begins with.

    It is the same wherever mixtures are learnt: by ``--model mixture``, :class:`MixtureAscent` and
    ``BayesianMixture``.

    Args:
        make: see :data:`Make`.
        x: rows, [N, D]; NaN is missing.
        seed: of the sample of more than 10,000 rows, 2,000 with gaps and full covariances, and of the starts.
        components: K; None: as many, up to ``most``, as the rows ask for (:func:`split_and_merge`).
        starts: see :func:`best_mixture` and :func:`split_and_merge`.
        weights: how many rows each one stands for, [N]; None: itself.
        labels: int64 [N, L], -1 = unknown; None: no labels. Labelled rows come first into the sample.
        most: see ``components``.
        until: time of ``time.monotonic()``, after which no further update, start or move is begun.
    """
    sites, size = make(1, 1).sites, STARTED
    if components is not None:
        size = max(size, PER_COMPONENT * components)
        if sites.full and (dim := len(sites.numbers)):
            memory = LARGEST // PackedNumbers.size(x[:1, sites.numbers], full=True)
            size = max(size, min(PER_COLUMN * components * dim, memory))
    elif sites.full and incomplete(x[:, sites.numbers]).any():
        size = STARTED_FULL_GAPS
    generator, each = np.random.default_rng(seed), np.ones(len(x)) if weights is None else weights
    rows = torch.from_numpy(systematic_sample(x, each, size if labels is None else len(x), generator))
    if labels is not None and len(rows) > size:
        rows = labelled_first(rows[torch.from_numpy(generator.permutation(len(rows)))], labels)[:size]
    rows, draws = rows.to(x.device), torch.Generator().manual_seed(seed)
    stands = 1.0 if components is None else min(float(each.sum()) / len(rows), STANDS)
    sample = Sample.of(make, x[rows], stands, None if labels is None else labels[rows], until)
    if components is None:
        return split_and_merge(sample, draws, most, starts)
    return best_mixture(sample, components, draws, starts)


def seed_of(random_state: int) -> int:
    """The seed that estimators draw from their ``random_state``."""
    return int(np.random.RandomState(random_state % 2**32).randint(2**31 - 1))


def systematic_sample(
    x: Tensor, weights: np.ndarray, most: int, generator: np.random.Generator
) -> np.ndarray:
    """Indices of rows, each as often as its weight asks for: int64 [n], n <= ``most``.

    Systematic sampling along a random direction. A row of weight 2 and two equal rows give the same sample,
    but for its order. Without weights and with ``most`` rows at most, every row is taken once.

    Args:
        x: rows [N, D], NaN where missing.
        weights: >= 0, not all 0, [N].
        most: rows at most.
        generator: of the direction, and of the first row.
    """
    direction = torch.as_tensor(generator.standard_normal(x.shape[1]), device=x.device)
    order = (x.nan_to_num(0.0).double() @ direction).argsort(stable=True).cpu().numpy()
    until = np.cumsum(weights[order])
    size = min(most, max(round(until[-1]), np.count_nonzero(weights)))
    places = (np.arange(size) + generator.uniform(0.25, 0.75)) * (until[-1] / size)
    rows: np.ndarray = order[np.searchsorted(until, places, side="right")]
    return rows


def labelled_first(rows: Tensor, labels: Tensor | None) -> Tensor:
    """Rows int64 [n] in their order, but those first that have a label.

    Args:
        rows: indices.
        labels: of all rows, int64 [N, L], -1 = unknown; None: no labels.
    """
    if labels is None:
        return rows
    return rows[(labels[rows] < 0).all(-1).long().argsort(stable=True)]


def split_and_merge(sample: Sample, generator: torch.Generator, most: int, starts: int = 1) -> Fitted:
    """A mixture of as many components as the rows ask for.

    From few clusters of k-means it grows: every component that two describe better, by its own rows, is
    split. When there is none, pairs of components are merged, and components left out, as long as that raises
    the bound; then splits are tried again. The moves are those of Hughes and Sudderth (2013), Memoized online
    variational inference for Dirichlet process mixture models, for any prior of the weights. At the end,
    :func:`simplest` merges components that add little to the evidence.

    Args:
        sample: of the rows.
        generator: source of the random numbers, on the CPU.
        most: components at most.
        starts: how many; the best is kept. Every other one is of whitened rows if covariances are full.
    """
    model = sample.kind
    each = max(EACH, len(model.sites.numbers) if model.sites.full else 0)
    most = max(min(most, len(sample.x) // each), 1)
    found: list[Fitted] = []
    for learn in (False, True) if model.learnt is not None else (False,):
        if not found or not sample.late:
            clusters = [
                sample.clusters(min(FIRST, most), start % 2 == 1, generator) for start in range(starts)
            ]
            begun = fits([sample] * starts, clusters, SHORT, learn)
            best = max(begun, key=lambda fitted: fitted.bound)
            found.append(_moved(sample, best, most, generator))
    return simplest(sample, max(found, key=lambda fitted: fitted.bound))


def simplest(sample: Sample, found: Fitted) -> Fitted:
    """The mixture of fewest components whose evidence is hardly below the greatest.

    It may be lower by half a standard error of the difference. Pairs are merged one after the other, as in
    the rule of one standard error of Breiman et al. (1984), until :data:`WORSE` numbers of components in a
    row have too little evidence. With a whole error, two of the three species of iris are one component. With
    none, olive oils have up to one and a half times as many components.
    """
    best = chosen = now = found
    worse = 0
    while now.model.components > 1 and worse < WORSE and not sample.late:
        rows = sample.filled(now).under(now.model)
        pairs = pair_gains(rows, now.gamma, -torch.inf, now.model)[:TRIED]
        gammas = [joined(now.gamma, [(one, other)]) for _, one, other in pairs]
        now = max(fits([rows] * len(pairs), gammas, learn=True), key=lambda fitted: fitted.bound)
        if sample.gaps:
            now = sample.fit(now.gamma, SHORT, learn=True, start=now.model)
        best = max(best, now, key=lambda fitted: fitted.evidence)
        enough = now.evidence >= best.evidence - max(POSITIVE, now.error(best) / 2)
        chosen, worse = (now, 0) if enough else (chosen, worse + 1)
    return chosen


def _moved(sample: Sample, found: Fitted, most: int, generator: torch.Generator) -> Fitted:
    """Splits, merges and deletions, and when there are none left, a learnt prior, as long as the bound rises.

    A prior stays as it is meanwhile.
    """
    sample = sample.under(found.model)
    splits = Splits(sample, generator)
    while not sample.late:
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
    return found


def best_mixture(sample: Sample, components: int, generator: torch.Generator, starts: int = 1) -> Fitted:
    """A mixture of a given number of components whose bound no swap raises.

    Starts are clusters of k-means, and every other time twice as many, which are merged. Each is improved a
    little, the first and the best two others to the end. In the first one, and in those that end higher,
    pairs of components are merged, and as many others split, as long as that raises the bound (Ueda et al.,
    2000, SMEM algorithm for mixture models).
    More starts never end lower: each has random numbers of its own.

    Args:
        sample: of the rows.
        components: K.
        generator: source of the random numbers, on the CPU.
        starts: how many; every other pair is of whitened rows if covariances are full.
    """
    kinds = []
    for start in range(starts if components > 1 else 1):
        own = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator)))
        kinds.append(StartKind(start // 2 % 2 == 1, start % 2 == 1, own))
    first, *others = zip(_started(sample, components, kinds), kinds, strict=False)
    others = sorted(others, key=lambda start: -start[0].bound)[: LEADING - 1]
    begun = [first, *others]
    if sample.gaps:
        alone = sample.filled(sample.fit(torch.ones_like(first[0].gamma[:, :1]), SHORT, learn=True))
        tried = [fitted for fitted, _ in begun]
        if not sample.late:
            tried.append(best_mixture(alone, components, generator, starts))
        refilled = [_refilled(sample, fitted) for fitted in tried]
        return _swapped(sample, max(refilled, key=lambda fitted: fitted.bound), generator)
    ended = fits([sample] * len(begun), [fitted.gamma for fitted, _ in begun], learn=True)
    settled = [(fitted, kind.generator) for fitted, (_, kind) in zip(ended, begun, strict=True)]
    better = [start for start in settled[1:] if start[0].bound > settled[0][0].bound + POSITIVE]
    return max((_swapped(sample, *start) for start in (settled[0], *better)), key=lambda fitted: fitted.bound)


class StartKind(NamedTuple):
    """Kind of a start."""

    white: bool
    """Rows are whitened."""
    many: bool
    """Of twice as many clusters, which are merged."""
    generator: torch.Generator
    """Source of its random numbers, on the CPU."""


def _started(sample: Sample, components: int, kinds: Sequence[StartKind]) -> list[Fitted]:
    """Mixtures of clusters of k-means, improved a little; or of twice as many, of which pairs are merged.

    A prior that is learnt learns how alike covariances are, too, until the start is improved to the end.
    """
    samples = [sample.alike()] * len(kinds)
    most = max(len(sample.x) // EACH, components)
    gammas: list[Tensor] = []
    for white, many, generator in kinds:
        if not gammas or not sample.late:
            size = min(2 * components, most) if many else components
            gammas.append(sample.clusters(size, white, generator, SEEDS))
    samples = samples[: len(gammas)]
    while large := [number for number, gamma in enumerate(gammas) if gamma.shape[1] > components]:
        found = fits(
            [samples[number] for number in large],
            [gammas[number] for number in large],
            SHORT,
            learn=True,
            tolerance=ROUGH,
        )
        for number, fitted in zip(large, found, strict=True):
            samples[number] = samples[number].under(fitted.model)
            pairs = disjoint(pair_gains(samples[number], fitted.gamma, -torch.inf, fitted.model))
            left = max((gammas[number].shape[1] - components) // 2, 1)
            gammas[number] = joined(fitted.gamma, pairs[:left])
    return fits(samples, gammas, SHORT, learn=True)


def _refilled(sample: Sample, found: Fitted) -> Fitted:
    """A mixture improved on rows that are filled in by the last one, again and again: far faster updates.

    A few updates that fill in for each component by itself make its bound comparable.
    """
    for _ in range(REFILLED):
        found = sample.filled(found).fit(found.gamma, learn=True, start=found.model)
    return sample.fit(found.gamma, SHORT, learn=True, start=found.model)


def _swapped(sample: Sample, found: Fitted, generator: torch.Generator) -> Fitted:
    """Swaps, as long as they raise the bound; where numbers are missing, that of rows that are filled in.

    These end with a few updates, as sweeps of all rows follow.
    """
    splits, missing = Splits(sample, generator), sample.gaps
    while True:
        rows = splits.sample = sample.filled(found).under(found.model)
        reached = rows.fit(found.gamma, learn=True, start=found.model) if missing else found
        parts = {} if sample.late else splits.gains(reached.gamma)
        for component, pair in swaps(rows, reached, parts)[:TRIED]:
            gamma = parted(reached.gamma, {component: parts[component]})
            rival = rows.fit(joined(gamma, [pair]), learn=True)
            if rival.bound > reached.bound + POSITIVE:
                found = rival
                break
        else:
            last = sample.under(found.model)
            most = SHORT if missing else UPDATES
            return last.fit(found.gamma, most, learn=True, tolerance=TOLERANCE, start=found.model)


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
        if sample.late:
            return found
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
        gamma = model.table(sample.observations, left)[:, left].softmax(-1)
    return gamma


@torch.no_grad()
def mixture_of_codes(z: Tensor, seed: int) -> ObservedMixture:
    """A mixture with full covariances of latent vectors, of as many components as raise the bound.

    Args:
        z: drawn from q(z | x), one for each point, so that their density is that of the codes together and
            latents that say nothing about x are noise, [N, J].
        seed: of the choice of points and of starts.
    """
    draws = torch.Generator().manual_seed(seed)
    z = z[torch.randperm(len(z), generator=draws)[:CODES]].double().cpu()
    dim, mean = z.shape[1], z.mean(0)
    covariance = torch.cov(z.mT, correction=0).view(dim, dim)
    covariance += JITTER * covariance.diagonal().diag_embed()
    numbers = NormalWishart(mean, 1.0, 0.5, torch.linalg.cholesky(dim * covariance / 2))
    prior = TablePrior(numbers=numbers, learn_s0=True)

    def make(components: int, num_data: int, learn: bool = True) -> ObservedMixture:
        return ObservedMixture([0] * dim, components, num_data, prior=prior, full=True, learn_prior=learn)

    found = mixture_of_rows(make, z, seed, starts=1, most=OF_CODES).model
    model = make(found.components, len(z), False)
    model.load_state_dict({name: value for name, value in found.state_dict().items() if "learnt" not in name})
    return model
