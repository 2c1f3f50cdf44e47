"""Starting points for λ from encoded data. Random ones lose components for good; these keep them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from pyro_fmvae.distributions import Assignment, NaturalDistribution, expected_log_prob

ITERATIONS = 100  # of coordinate ascent, at most
Clustering: TypeAlias = Callable[[Tensor, int, torch.Generator], Tensor]
"""Points [N, D], a number of clusters K and a source of random numbers → clusters, int64 [N] in 0..K-1."""
LEAST_GAIN = 1e-3  # nats per point: bounds that differ by less are taken for those of one local maximum


def kmeans(
    points: Tensor,
    num_clusters: int,
    generator: torch.Generator | None,
    iterations: int = 10,
    centres: Tensor | None = None,
) -> Tensor:
    """Cluster indices [N] by k-means++ seeding (Arthur and Vassilvitskii, 2007) and Lloyd's iterations.

    Args:
        points: [N, *shape of a point], N >= 1. With fewer distinct points than clusters, some stay empty.
        num_clusters: K.
        generator: source of the random numbers, on the CPU; torch's own if None.
        iterations: Lloyd's iterations after seeding.
        centres: of the first clusters, [C, *shape of a point], where they are known.
    """
    points = points.reshape(1, len(points), -1)
    first, draws = kmeans_draws(
        len(points[0]), num_clusters, generator, 0 if centres is None else len(centres)
    )
    given = None if centres is None else centres.reshape(1, len(centres), -1)
    return kmeans_together(
        points, num_clusters, first.unsqueeze(0), draws.unsqueeze(0), iterations, centres=given
    )[0]


def kmeans_draws(
    rows: int, num_clusters: int, generator: torch.Generator | None, known: int = 0
) -> tuple[Tensor, Tensor]:
    """Random numbers of the seeding of one k-means: the first row, int64 [1], and in [0, 1), [K - 1].

    Args:
        rows: number of points.
        num_clusters: K.
        generator: source of the random numbers, on the CPU; torch's own if None.
        known: clusters whose centres are known; the first row is drawn if there are none.
    """
    first = torch.zeros(1, dtype=torch.int64) if known else torch.randint(rows, (1,), generator=generator)
    draws = torch.rand(num_clusters - max(known, 1), generator=generator, dtype=torch.float64)
    return first, draws


def kmeans_together(
    points: Tensor,
    num_clusters: int,
    first: Tensor,
    draws: Tensor,
    iterations: int = 10,
    known: Tensor | None = None,
    centres: Tensor | None = None,
) -> Tensor:
    """:func:`kmeans` of B sets of points, or from B seeds, side by side: int64 [B, N].

    Args:
        points: [B, N, F].
        num_clusters: K.
        first, draws: of :func:`kmeans_draws`, [B, 1] and [B, K - 1].
        iterations: Lloyd's iterations after seeding.
        known: 0 for points that only fill up, else 1, [B, N], those behind all others; None: all are points.
        centres: of the first clusters, [B, C, F], where they are known.
    """
    weights = None if known is None else known.to(points).unsqueeze(-1)
    if weights is None:
        mean = points.mean(1, keepdim=True)  # squared distances cancel far from 0
    else:
        mean = weights.mT @ points / weights.sum(1, keepdim=True)
    points, first, draws = points - mean, first.to(points.device), draws.to(points.device)
    squares = points.square().sum(-1)
    centres = _taken(points, first) if centres is None else centres - mean
    nearest = (squares.unsqueeze(-1) + _less(points, centres)).amin(-1).clamp(min=0)
    nearest = nearest if weights is None else nearest * weights.squeeze(-1)
    for draw in draws.unsqueeze(-1).unbind(1):
        total = nearest.cumsum(1)
        index = torch.searchsorted(total, draw.to(total) * total[:, -1:]).clamp(max=points.shape[1] - 1)
        centre = _taken(points, index)
        centres = torch.cat([centres, centre], 1)
        nearest = torch.minimum(nearest, (squares + _less(points, centre).squeeze(-1)).clamp(min=0))
    clusters, before = _less(points, centres).argmin(-1), None
    for _ in range(iterations):
        if before is not None and torch.equal(before, clusters):
            break
        members = torch.nn.functional.one_hot(clusters, num_clusters).to(points)
        members = members if weights is None else members * weights
        counts = members.sum(1).unsqueeze(-1)
        centres = torch.where(counts > 0, members.mT @ points / counts.clamp(min=1), centres)
        before, clusters = clusters, _less(points, centres).argmin(-1)
    return clusters


def _taken(points: Tensor, rows: Tensor) -> Tensor:
    """Some of the points [B, N, F], by their indices [B, n]."""
    return points.take_along_dim(rows.unsqueeze(-1), 1)


def _less(points: Tensor, centres: Tensor) -> Tensor:
    """Squared distances [B, N, K] of points from centres, less the squares of the points themselves."""
    return torch.baddbmm(centres.square().sum(-1).unsqueeze(1), points, centres.mT, alpha=-2)


@dataclass(frozen=True)
class MixturePosterior:
    """Posterior of one factor's parameters, and the bound that it reaches.

    Attributes:
        weights: q(π), batch shape [], event shape [K].
        components: posterior of the components' parameters, batch shape [K].
        bound: -KL[z] - KL[r] - KL of ``weights`` and ``components`` from their priors: equation 4 without the
            reconstruction and without the entropy of q(z), in nats for all N points.
    """

    weights: NaturalDistribution
    components: NaturalDistribution
    bound: float


def coordinate_ascent(
    weights_prior: NaturalDistribution,
    components_prior: NaturalDistribution,
    mean: Tensor,
    variance: Tensor,
    start: Tensor,
    scale: float = 1.0,
    iterations: int = ITERATIONS,
    tolerance: float = 1e-5,
) -> MixturePosterior:
    """Exact conjugate updates on encoded data by turns with optimal responsibilities, from given ones.

    The bound of Paquet et al. (2018), equation 4, rises with every one of them: this is variational Bayes for
    a mixture (Attias, 2000) on uncertain points.

    Args:
        weights_prior: p(π), batch shape [], event shape [K].
        components_prior: prior of the components' parameters, batch shape [K].
        mean, variance: of q(z), [M, *event shape of z]; the variance of observed points is 0.
        start: clusters, int64 [M] in 0..K-1, or responsibilities [M, K].
        scale: how many data points each one stands for.
        iterations: updates at most.
        tolerance: it ends when an update adds less than this, in nats per point.
    """
    mean, variance = mean.double(), variance.double()
    family, count = components_prior.family, len(components_prior.natural)
    gamma = (torch.nn.functional.one_hot(start, count) if start.dim() == 1 else start).double()
    before = -torch.inf
    for _ in range(max(iterations, 1)):
        weights = posterior_weights(weights_prior, gamma, scale)
        update = family.conjugate_update(components_prior.natural, gamma, mean, variance, scale)
        components = components_prior.with_natural(update)
        table = _table(weights, components, mean, variance)
        kl = _kl(weights, weights_prior)
        kl += _kl(components, components_prior)
        bound = (scale * table.logsumexp(-1).sum() - kl).item()
        gamma = table.softmax(-1)
        if bound - before < tolerance * scale * len(mean):
            break
        before = bound
    return MixturePosterior(weights, components, bound)


def posterior_weights(prior: NaturalDistribution, gamma: Tensor, scale: float = 1.0) -> NaturalDistribution:
    """The conjugate posterior of mixing weights, with the batch shape of the prior.

    Args:
        prior: p(π), natural parameters [..., P].
        gamma: responsibilities, [..., M, K].
        scale: how many data points each row stands for.
    """
    counts = prior.family.data_stats(gamma, torch.zeros_like(gamma)).sum(-2).double()
    return prior.with_natural(prior.natural.to(counts.device) + scale * counts.reshape(prior.natural.shape))


def kmeans_mixture(
    weights_prior: NaturalDistribution,
    components_prior: NaturalDistribution,
    mean: Tensor,
    variance: Tensor,
    generator: torch.Generator,
    restarts: int = 1,
    scale: float = 1.0,
    iterations: int | None = None,
    clusters: Clustering = kmeans,
) -> MixturePosterior:
    """The mixture that k-means clusters of encoded data start; with several starts, the best one, improved.

    The bound has many local maxima, of which a single start rarely reaches the greatest.

    Args:
        weights_prior, components_prior, mean, variance, scale: as for :func:`coordinate_ascent`.
        generator: source of the random numbers, on the CPU.
        restarts: k-means starts.
        iterations: updates of each start at most; None: 100, but of a single start the first alone.
        clusters: takes the place of k-means.

    Raises:
        ValueError: ``restarts`` < 1.
    """
    if restarts < 1:
        raise ValueError(f"restarts: expected a number >= 1, got {restarts}")
    data = weights_prior, components_prior, mean, variance
    components = len(components_prior.natural)
    starts = (clusters(mean, components, generator) for _ in range(restarts))
    if iterations is None:
        iterations = 1 if restarts == 1 else ITERATIONS
    mixtures = (coordinate_ascent(*data, start, scale, iterations) for start in starts)
    return max(mixtures, key=lambda mixture: mixture.bound)


def better_mixture(
    weights_prior: NaturalDistribution,
    components_prior: NaturalDistribution,
    weights: NaturalDistribution,
    components: NaturalDistribution,
    mean: Tensor,
    variance: Tensor,
    generator: torch.Generator,
    restarts: int = 1,
    scale: float = 1.0,
    least: float = LEAST_GAIN,
) -> tuple[MixturePosterior, float] | None:
    """A mixture of a greater bound than the present one reaches, and by how much, in nats per point; or None.

    Networks that are still learning move points apart that one component stands for, and a mixture that
    follows by small steps stays in its local maximum: with a component for two clusters, say, and another one
    for hardly a point. Both the present mixture and the new starts are improved by coordinate ascent before
    they are compared.

    Args:
        weights_prior, components_prior, mean, variance, scale: as for :func:`coordinate_ascent`.
        weights, components: the present mixture.
        generator: source of the random numbers, on the CPU.
        restarts: k-means starts, each of them improved, a single one too.
        least: nats per point that a start has to gain.

    Raises:
        ValueError: ``restarts`` < 1.
    """
    priors, data = (weights_prior, components_prior), (mean, variance)
    gamma = responsibilities(weights, components, mean, variance)
    present = coordinate_ascent(*priors, *data, gamma, scale)
    best = kmeans_mixture(*priors, *data, generator, restarts, scale, ITERATIONS)
    gain = (best.bound - present.bound) / (scale * len(mean))
    return (best, gain) if gain > least else None


def responsibilities(
    weights: NaturalDistribution, components: NaturalDistribution, mean: Tensor, variance: Tensor
) -> Tensor:
    """γ of encoded points under a mixture, equation 5 without labels: float64 [M, K].

    Args:
        weights, components: the mixture, batch shapes [] and [K].
        mean, variance: of q(z), [M, *event shape of z].
    """
    return _table(weights, components, mean.double(), variance.double()).softmax(-1)


def _table(
    weights: NaturalDistribution, components: NaturalDistribution, mean: Tensor, variance: Tensor
) -> Tensor:
    """Unnormalised log γ of M points, [M, K]: equation 5 without labels."""
    table = components.family.expected_log_likelihood(mean, variance, components.expected_stats())
    assignment = Assignment(weights.natural)  # its class alone is asked for
    return table + expected_log_prob(assignment, assignment, {"weights": weights})


def _kl(q: NaturalDistribution, prior: NaturalDistribution) -> Tensor:
    return q.family.kl(q.natural, prior.natural).sum()
