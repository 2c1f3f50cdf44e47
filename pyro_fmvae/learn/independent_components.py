"""Independent components of codes, from which the factors of a prior start.

The prior of a factorial mixture VAE is an independent component analysis with mixtures as sources (Paquet et
al., 2018, Section 2.2). Pretraining under N(0, I) leaves the latent space in an arbitrary rotation, so that
each block of dimensions holds a bit of every property. Independent component analysis (FastICA; Hyvärinen and
Oja, 2000) of the pretrained codes finds the rotation in which each property is at the head of a block.

Codes are whitened by C = cov(m) + E[s²], the total covariance of q(z | x) = N(m, s²), which is about I in a
VAE. Directions in which means make up less than half of it hold no signal. How many factors there are, and
which directions they are, follows from the information of a mixture's assignments, H(π) - E[H(γ)] in bits: a
property of two equally frequent values has 1 bit.
"""

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor

from pyro_fmvae.models.change_of_basis import change_basis
from pyro_fmvae.models.factorial_mixture_vae import FactorialMixtureVAE

SIGNAL: Final = 0.5
"""Least share of the means' variance in the total one of a direction that holds signal."""
FITTED: Final = 4000
"""Points at most that mixtures are fitted to, and dependence is measured by."""
DEPENDENT: Final = 0.25
"""Nats of mutual information of octiles from which on two directions belong to one factor: directions of one
property of smileys have 0.3 to 0.6, others 0.1 to 0.2."""
INFORMATIVE: Final = 0.1
"""Least bits of a direction from which a factor starts."""
CLUSTERED: Final = 0.9
"""Least certainty of an assignment to clusters: directions of a Gaussian have 0.3 to 0.5, of a uniform
distribution 0.76, within a property up to 0.86; two properties of smileys have 0.95 or more."""
TELLS: Final = 0.2
"""Least share of a direction's information or variance that a label explains, if the direction is its own."""
LEAST: Final = 0.05
"""Least nats that a further cluster adds."""
SPLIT: Final = 0.95
"""Least certainty of the nats that it adds."""
NEARLY: Final = 0.1
"""Bits that clusters in several directions have beyond those in one, at least."""
MOST: Final = 12
"""Clusters of a unit that are tried, at most."""
EXCLUSIVE: Final = 0.25
"""Share of the points common to two clusters that are independent, below which they exclude each other."""
ENOUGH: Final = 10
"""Least number of these points, for their lack to say something."""
SHOWN: Final = 12
"""Directions whose bits are printed."""

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
logger = logging.getLogger("pyro_fmvae")


@dataclass(frozen=True)
class Unit:
    """Directions that depend on each other.

    Attributes:
        directions: their numbers.
        seen_in: those in which the clusters were found.
        assignments: of points to clusters, int [M].
        bits: information of the assignment, H(π) - E[H(γ)].
        certainty: share of this in H(π): 1 where clusters do not overlap.
    """

    directions: tuple[int, ...]
    seen_in: tuple[int, ...]
    assignments: npt.NDArray[np.int64]
    bits: float
    certainty: float = 1.0

    @property
    def components(self) -> int:
        """K, clusters."""
        return len(np.unique(self.assignments))

    @property
    def clustered(self) -> bool:
        """True if points fall apart into clusters."""
        return self.certainty >= CLUSTERED


@dataclass(frozen=True)
class IndependentComponents:
    """Independent directions of M codes of J dimensions.

    Attributes:
        centre: mean of the codes, [J].
        whitening, colouring: C^(-1/2) and C^(1/2), [J, J].
        directions: unit vectors of the whitened space, [S, J].
        codes: of points in these directions, [M, S].
        seed: of mixtures.
        telling: of each label, the orthonormal directions that tell its values, [at most K - 1, J]. All
            others are orthogonal to them.
    """

    centre: Array
    whitening: Array
    colouring: Array
    directions: Array
    codes: Array
    seed: int = 0
    telling: tuple[Array, ...] = ()

    @classmethod
    def of(
        cls, mean: Array, variance: Array, seed: int = 0, labels: Labels | None = None, room: int = 0
    ) -> "IndependentComponents":
        """Find the directions, first those that tell labels, then independent ones of what these leave.

        Args:
            mean, variance: of q(z | x) of M points, each [M, J].
            seed: of the analysis.
            labels: [M, L], -1 = unknown, or None.
            room: directions of a label at most.
        """
        centre = mean.mean(0)
        values, vectors = np.linalg.eigh(np.cov(mean.T) + np.diag(variance.mean(0)))
        whitening, colouring = ((vectors * values**power) @ vectors.T for power in (-0.5, 0.5))
        white = (mean - centre) @ whitening
        shares, axes = np.linalg.eigh(np.cov(white.T))
        axes, telling = axes[:, shares >= SIGNAL], []
        for column in () if labels is None else labels.T:
            told = telling_directions(white @ axes, column, room)
            telling.append(told @ axes.T)
            axes = axes @ np.linalg.svd(told)[2][len(told) :].T
        directions = axes.T
        if len(directions) > 1:
            from sklearn.decomposition import FastICA  # here and below: scikit-learn takes a while to import

            found = FastICA(random_state=seed, whiten="unit-variance", max_iter=1000)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Gaussian components have no direction to converge to
                directions = found.fit(white @ axes).components_ @ axes.T
            directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        codes = white @ directions.T
        return cls(centre, whitening, colouring, directions, codes, seed, tuple(telling))

    @cached_property
    def fitted(self) -> npt.NDArray[np.int64]:
        """Numbers of the points that mixtures are fitted to."""
        chosen = np.random.default_rng(self.seed).permutation(len(self.codes))[:FITTED]
        return np.sort(chosen)

    def mixture(self, directions: Sequence[int], components: int) -> Any:
        """A mixture of Gaussians in some directions, diagonal as the factors' own."""
        from sklearn.mixture import GaussianMixture

        codes = self.codes[self.fitted][:, list(directions)]
        found = GaussianMixture(
            components, covariance_type="diag", n_init=2, random_state=self.seed, reg_covar=1e-4
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it has not converged
            return found.fit(codes)

    def responsibilities(self, directions: Sequence[int], components: int) -> Array:
        """γ of all points under :meth:`mixture`, [M, components]."""
        gamma: Array = self.mixture(directions, components).predict_proba(self.codes[:, list(directions)])
        return gamma

    def unit(self, directions: Sequence[int], most: int) -> Unit:
        """The clusters of all points in some directions: two, and more as long as these do not overlap.

        Args:
            directions: numbers of the directions.
            most: clusters at most.
        """
        whole = nats = 0.0
        for components in range(2, max(most, 2) + 1):
            gamma = self.responsibilities(directions, components)
            new_whole = float(entropy(gamma.mean(0)))
            new_nats = new_whole - float(entropy(gamma).mean())
            if components > 2 and new_nats - nats < max(SPLIT * (new_whole - whole), LEAST):
                break
            whole, nats, assignments = new_whole, new_nats, gamma.argmax(-1)
        bits, certainty = nats / math.log(2), nats / max(whole, 1e-12)
        return Unit(tuple(directions), tuple(directions), assignments, bits, certainty)

    def units(self, most: int, room: int) -> list[Unit]:
        """Groups of dependent directions with their clusters, clear ones and those of most information first.

        Args:
            most: clusters of a unit at most.
            room: directions of a unit at most.
        """
        alone = [self.unit([number], most) for number in range(len(self.directions))]
        groups = [[number] for number in range(len(alone))]
        if len(groups) > 1:
            groups = joined(dependent(self.codes[self.fitted]), alone)
        units = []
        for group in groups:
            singles = sorted((alone[number] for number in group), key=_clearness)[:room]
            directions = tuple(number for single in singles for number in single.directions)
            best = singles[0]
            if len(directions) > 1:
                several = self.unit(directions, most)
                if several.bits > best.bits + NEARLY:  # else the first direction tells as much
                    best = several
            units.append(replace(best, directions=directions))
        return sorted(units, key=_clearness)


def basis(heads: Sequence[Array], dim: int) -> Array:
    """An orthogonal matrix whose blocks of rows begin with the directions of factors: [J, J].

    The directions are made orthogonal symmetrically. What is left stays as near to the axes as can be.

    Args:
        heads: of each factor, unit vectors [at most D, J], linearly independent of all others.
        dim: D, rows of each block.
    """
    vectors = np.concatenate(heads)
    size = vectors.shape[1]
    left, _, right = np.linalg.svd(vectors, full_matrices=False)
    vectors = left @ right
    beside = np.eye(size) - vectors.T @ vectors
    axes = np.sort(np.argsort(-np.diag(beside), kind="stable")[: size - len(vectors)])
    left, _, right = np.linalg.svd(beside[axes], full_matrices=False)
    rest, rows = iter(left @ right), iter(vectors)
    return np.stack([next(rows if d < len(head) else rest) for head in heads for d in range(dim)])


def telling_directions(codes: Array, labels: Labels, room: int) -> Array:
    """Directions in which the means of the values of a label differ, orthonormal: [at most room, S].

    They are as many as explain ``TELLS`` of the variance: that of half of the points whose label is known, by
    directions and means of the other half, so that chance explains nothing. In all directions orthogonal to
    K - 1 of them, the means of K values are equal.

    Args:
        codes: [M, S].
        labels: of one column, [M], -1 = unknown.
        room: the most that are returned.
    """
    known = np.flatnonzero(labels >= 0)
    known = known[np.argsort(labels[known], kind="stable")]
    most, shares = min(len(np.unique(labels[known])) - 1, room), []
    for one, other in ((known[::2], known[1::2]), (known[1::2], known[::2])) if most > 0 else ():
        directions = np.linalg.svd(_means(codes[one], labels[one]))[2][:most].T
        other = other[np.isin(labels[other], labels[one])]
        values, places = np.unique(labels[one], return_inverse=True)
        means = np.stack([codes[one][places == value].mean(0) for value in range(len(values))])
        left = (codes[other] - means[np.searchsorted(values, labels[other])]) @ directions
        total = (codes[other] - codes[one].mean(0)) @ directions
        shares.append((total**2 - left**2).sum(0) / (total**2).sum(0).clip(1e-12))
    number = (np.mean(shares, 0) >= TELLS).sum() if shares else 0
    return np.linalg.svd(_means(codes[known], labels[known]))[2][:number] if number else codes[:0]


def _means(codes: Array, labels: Labels) -> Array:
    """√n_k (m_k - m) of the points of each value, whose squares add up to the variation between values."""
    values, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    means = np.stack([codes[numbers == value].mean(0) for value in range(len(values))])
    return np.sqrt(counts)[:, None] * (means - codes.mean(0))


def _clearness(unit: Unit) -> tuple[bool, float]:
    """Sorts units: those with clusters first, then by information."""
    return not unit.clustered, -unit.bits


def entropy(p: Array) -> Any:
    """Entropy of the last dimension, in nats."""
    return -(p * np.log(p.clip(1e-12))).sum(-1)


def dependent(codes: Array) -> list[list[int]]:
    """Groups of directions by the mutual information of their octiles, with average linkage.

    Args:
        codes: [M, S], S > 1.
    """
    from sklearn.metrics import mutual_info_score

    edges = np.quantile(codes, np.arange(1, 8) / 8, axis=0)
    octiles = [np.searchsorted(*pair) for pair in zip(edges.T, codes.T, strict=True)]
    size = len(octiles)
    apart = np.zeros((size, size))
    for i in range(size):
        for j in range(i):
            apart[i, j] = apart[j, i] = math.log(8) - mutual_info_score(octiles[i], octiles[j])
    tree = scipy.cluster.hierarchy.linkage(scipy.spatial.distance.squareform(apart, checks=False), "average")
    numbers = scipy.cluster.hierarchy.fcluster(tree, math.log(8) - DEPENDENT, "distance")
    return [np.flatnonzero(numbers == number).tolist() for number in np.unique(numbers)]


def joined(groups: Sequence[list[int]], alone: Sequence[Unit]) -> list[list[int]]:
    """Groups of directions, joined where their small clusters exclude each other, as values of one factor do.

    An independent component may set one value apart from all others. Two such directions are nearly
    independent of each other, but no point lies in the small clusters of both.

    Args:
        groups: of directions.
        alone: the unit of each direction by itself.
    """
    small = {
        number: unit.assignments == np.bincount(unit.assignments).argmin()
        for number, unit in enumerate(alone)
        if unit.clustered
    }
    found: list[list[int]] = []
    for group in groups:
        pairs = [(one, other) for one in group if one in small for other in small]
        met = {other for one, other in pairs if _exclude(small[one], small[other])}
        apart = [other for other in found if met.isdisjoint(other)]
        found = [*apart, sorted(sum((other for other in found if other not in apart), group))]
    return found


def _exclude(one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> bool:
    """True if far fewer points lie in both clusters than if they were independent."""
    expected = one.mean() * other.sum()
    return bool(expected >= ENOUGH and (one & other).sum() < EXCLUSIVE * expected)


def blocks_of(
    units: Sequence[Unit],
    sizes: Sequence[int],
    rooms: Sequence[int],
    labelled: Sequence[int] = (),
    labels: Labels | None = None,
) -> list[list[Unit]]:
    """The units that each factor starts from. No unit is used twice.

    A unit belongs to the label that explains most of it. Free factors compete for what labels do not explain;
    one of many components starts from several units, as long as it has bits left for them.

    Args:
        units: to choose from.
        sizes: K of each factor.
        rooms: directions that the block of each factor has room for.
        labelled: factors that labels belong to, in the order of the columns.
        labels: of the points, -1 = unknown, [M, labelled factors]; None: there are none.
    """
    from sklearn.metrics import adjusted_mutual_info_score

    blocks: list[list[Unit]] = [[] for _ in sizes]
    left = [unit.bits for unit in units]
    explained = np.zeros((len(units), len(labelled)))
    for number, unit in enumerate(units):
        for column in range(len(labelled)):
            known = np.flatnonzero(labels[:, column] >= 0) if labels is not None else ()
            if len(known):
                assert labels is not None
                information = adjusted_mutual_info_score(labels[known, column], unit.assignments[known])
                explained[number, column] = max(information, 0.0)

    def room(factor: int) -> int:
        return rooms[factor] - sum(len(unit.directions) for unit in blocks[factor])

    for number in np.argsort(-explained.max(-1, initial=0.0)):
        most = explained[number].max(initial=0.0)
        left[number] *= 1 - most
        if most >= TELLS:
            factor = labelled[int(explained[number].argmax())]
            left[number] = 0.0
            if len(units[number].directions) <= room(factor):
                blocks[factor].append(units[number])
    free = [factor for factor in range(len(sizes)) if factor not in labelled]
    if not free or not units:
        return blocks
    wanted = np.log2([sizes[factor] for factor in free])
    bits = np.array(left)
    # What a factor can hold of a unit, clusters first; of two that are alike, the one that fits better.
    clear = np.array([unit.clustered for unit in units]) & (bits >= INFORMATIVE)
    worth = clear + np.minimum(bits, wanted[:, None]) - 0.01 * np.abs(bits - wanted[:, None])
    for row, number in zip(*scipy.optimize.linear_sum_assignment(-worth), strict=True):
        if left[number] >= INFORMATIVE:
            blocks[free[row]].append(units[number])
            wanted[row] -= left[number]
            left[number] = 0.0
    for number in np.argsort(-np.array(left)):
        row = int(wanted.argmax())
        fits = len(units[number].directions) <= room(free[row])
        if left[number] >= INFORMATIVE and wanted[row] >= left[number] and blocks[free[row]] and fits:
            blocks[free[row]].append(units[number])
            wanted[row] -= left[number]
    return blocks


def found_sizes(loc: Tensor, scale: Tensor, labels: Tensor | None, seed: int) -> tuple[tuple[int, ...], str]:
    """Components of each factor that codes show beside those of labels, and the spectrum of bits.

    Args:
        loc, scale: of q(z | x), [M, J].
        labels: int64 [M, L], -1 = unknown, or None.
        seed: of the analysis.
    """
    mean, variance = loc.double().cpu().numpy(), scale.double().square().cpu().numpy()
    size = mean.shape[1]
    if len(mean) < 2 * size:
        raise ValueError(f"factors: auto needs {2 * size} points or more, got {len(mean)}")
    known = None if labels is None else labels.cpu().numpy()
    units = IndependentComponents.of(mean, variance, seed, known, size).units(MOST, size)
    columns = 0 if known is None else known.shape[1]
    sizes = (*(MOST for _ in range(columns)), *(unit.components for unit in units))
    blocks = blocks_of(units, sizes, [size] * len(sizes), range(columns), known)
    free = [unit for block in blocks[columns:] for unit in block if unit.clustered]
    return tuple(unit.components for unit in free), spectrum(units)


@dataclass(frozen=True)
class Start:
    """Where the prior starts.

    Attributes:
        loc, scale: of q(z | x) in the basis in which it starts, [M, I·D].
        responsibilities: factor → responsibilities of the points [M, K], for free factors that a component
            was found for; empty where none was.
        units: what was found, clear clusters first.
        factors: number of a unit → factor that starts from it.
    """

    loc: Tensor
    scale: Tensor
    responsibilities: Mapping[int, Tensor] = field(default_factory=dict)
    units: Sequence[Unit] = ()
    factors: Mapping[int, int] = field(default_factory=dict)


@torch.no_grad()
def start_from_components(
    model: FactorialMixtureVAE, loc: Tensor, scale: Tensor, labels: Tensor | None, seed: int
) -> Start:
    """Give each factor's block an independent component at its head, in place: encoder and decoder change.

    Args:
        model: with pretrained networks.
        loc, scale: of q(z | x), [M, I·D].
        labels: int64 [M, labelled factors], -1 = unknown, or None.
        seed: of the analysis and the mixtures.

    Where no component has clusters, or networks are of a kind that cannot change, nothing changes.
    """
    mean, variance = loc.double().cpu().numpy(), scale.double().square().cpu().numpy()
    needed = max(2 * model.latent_dim, *model.num_components)
    if len(mean) < needed:
        logger.warning(
            "independent components: expected %d points or more, got %d; factors start by k-means",
            *(needed, len(mean)),
        )
        return Start(loc, scale)
    known = None if labels is None else labels.cpu().numpy()
    found = IndependentComponents.of(mean, variance, seed, known, model.dim)
    of_labels = dict(zip(model.labelled, found.telling, strict=known is not None))
    free = [factor for factor in range(len(model.num_components)) if factor not in model.labelled]
    most = max(model.num_components[factor] for factor in free)
    units = found.units(min(most, MOST), model.dim)
    rooms = [model.dim - len(of_labels.get(factor, ())) for factor in range(len(model.num_components))]
    blocks = blocks_of(units, model.num_components, rooms, model.labelled, known)
    if units:
        logger.info("independent components: %s bits", spectrum(units))
    clustered = any(unit.clustered for factor in free for unit in blocks[factor])
    if not clustered:
        logger.warning(
            "independent components: no direction of the codes has clusters%s; free factors start by k-means",
            " that labels do not explain" if model.labelled else "",
        )
        if not any(map(len, found.telling)):
            return Start(loc, scale, units=units)
    numbers = [[number for unit in block for number in unit.directions] for block in blocks]
    heads = [
        np.concatenate([of_labels.get(factor, found.directions[:0]), found.directions[block]])
        for factor, block in enumerate(numbers)
    ]
    rotation = basis(heads, model.dim)
    to, back = rotation @ found.whitening, found.colouring @ rotation.T
    try:
        change = (torch.from_numpy(part) for part in (to, back, found.centre, variance.mean(0)))
        change_basis(model.encoder, model.decoder, *change)
    except TypeError as error:
        logger.warning("independent components: %s; free factors start by k-means", error)
        return Start(loc, scale, units=units)
    directions_of = {
        factor: [d for unit in blocks[factor] for d in unit.seen_in]
        for factor in free
        if clustered and blocks[factor]
    }
    starts = {
        factor: torch.from_numpy(found.responsibilities(directions, model.num_components[factor]))
        for factor, directions in directions_of.items()
    }
    moved = (mean - found.centre) @ to.T, ((1 / variance) @ back**2) ** -0.5
    new_loc, new_scale = (torch.from_numpy(part).to(loc) for part in moved)
    on_device = {factor: start.to(loc.device) for factor, start in starts.items()}
    factor_of = {unit.directions: factor for factor, block in enumerate(blocks) for unit in block}
    begun = {n: factor_of[unit.directions] for n, unit in enumerate(units) if unit.directions in factor_of}
    return Start(new_loc, new_scale, on_device, units, begun)


def spectrum(units: Sequence[Unit]) -> str:
    """Bits of units, those with clusters before a line: ``1.00 0.98 | 0.40 0.35``."""
    clear = [f"{unit.bits:.2f}" for unit in units if unit.clustered]
    others = [f"{unit.bits:.2f}" for unit in units if not unit.clustered]
    return " ".join([*clear, "|", *others][: max(SHOWN, len(clear) + 4)])
