"""Starting points for λ from encoded data. Random ones lose components for good; these keep them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fmvae.distributions import NaturalDirichlet, NaturalNormalGamma
from pyro_fmvae.distributions.expected_log_prob import gaussian_table

ITERATIONS = 100  # of coordinate ascent, at most
LEAST_GAIN = 1e-3  # nats per point: bounds that differ by less are taken for those of one local maximum


def kmeans(points: Tensor, num_clusters: int, generator: torch.Generator, iterations: int = 10) -> Tensor:
    """Cluster indices [N] by k-means++ seeding (Arthur and Vassilvitskii, 2007) and Lloyd's iterations.

    Args:
        points: [N, D], N >= 1. With fewer distinct points than clusters, some clusters stay empty.
        num_clusters: K.
        generator: source of the random numbers, on the CPU.
        iterations: Lloyd's iterations after seeding.
    """
    points = points - points.mean(0)  # cdist cancels far from 0
    first = torch.randint(len(points), (1,), generator=generator)
    centres = points[first.to(points.device)]
    nearest = torch.cdist(points, centres).square().squeeze(-1)
    for _ in range(1, num_clusters):
        total = nearest.cumsum(0)
        threshold = torch.rand(1, generator=generator, dtype=torch.float64).to(total) * total[-1]
        index = torch.searchsorted(total, threshold).clamp(max=len(points) - 1)
        centres = torch.cat([centres, points[index]])
        nearest = torch.minimum(nearest, torch.cdist(points, points[index]).square().squeeze(-1))
    for _ in range(iterations):
        members = torch.nn.functional.one_hot(torch.cdist(points, centres).argmin(-1), num_clusters).to(
            points
        )
        counts = members.sum(0).unsqueeze(-1)
        centres = torch.where(counts > 0, members.mT @ points / counts.clamp(min=1), centres)
    return torch.cdist(points, centres).argmin(-1)


def conjugate_update(
    prior: Tensor, gamma: Tensor, mean: Tensor, variance: Tensor, scale: float = 1.0
) -> Tensor:
    """λ* of the Normal-Gamma posteriors: equation 13, all data at once.

    Args:
        prior: natural parameters of the prior, [..., K, 2D+2].
        gamma: responsibilities, [..., N, K].
        mean, variance: of q(z), [..., N, D].
        scale: how many data points each one stands for.

    Returns:
        λ* [..., K, 2D+2], float64.
    """
    gamma, mean, variance = scale * gamma.double(), mean.double(), variance.double()
    count = gamma.sum(-2).unsqueeze(-1)
    squares = gamma.mT @ (mean.square() + variance)
    halves = 0.5 * count
    return prior.double() + torch.cat([halves, -halves, -0.5 * squares, gamma.mT @ mean], -1)


@dataclass(frozen=True)
class MixturePosterior:
    """Posterior of one factor's parameters, and the bound that it reaches.

    Attributes:
        weights: natural parameters c of q(π), float64 [K].
        loc_precision: those of q(μ, α), float64 [K, 2D+2].
        bound: -KL[z] - KL[r] - KL(q(π, μ, α) || p(π, μ, α)), equation 4 without the reconstruction and
            without the entropy of q(z), in nats for all N points.
    """

    weights: Tensor
    loc_precision: Tensor
    bound: float


def coordinate_ascent(
    weights_prior: Tensor,
    loc_precision_prior: Tensor,
    mean: Tensor,
    variance: Tensor,
    start: Tensor,
    scale: float = 1.0,
    iterations: int = ITERATIONS,
    tolerance: float = 1e-5,
) -> MixturePosterior:
    """Exact conjugate updates on encoded data by turns with optimal responsibilities, from given ones.

    The bound of Paquet et al. (2018), equation 4, rises with every one of them: this is variational Bayes for
    a mixture of Gaussians (Attias, 2000) on uncertain points.

    Args:
        weights_prior: natural parameters of p(π), [K].
        loc_precision_prior: those of p(μ, α), [K, 2D+2].
        mean, variance: of q(z), [M, D].
        start: clusters, int64 [M] in 0..K-1, or responsibilities [M, K].
        scale: how many data points each one stands for.
        iterations: updates at most.
        tolerance: it ends when an update adds less than this, in nats per point.
    """
    weights_prior, loc_precision_prior = weights_prior.double(), loc_precision_prior.double()
    mean, variance = mean.double(), variance.double()
    clusters = start.dim() == 1
    gamma = (torch.nn.functional.one_hot(start, len(weights_prior)) if clusters else start).double()
    before = -torch.inf
    for _ in range(max(iterations, 1)):
        weights = weights_prior + scale * gamma.sum(0)
        loc_precision = conjugate_update(loc_precision_prior, gamma, mean, variance, scale)
        table = _table(weights, loc_precision, mean, variance)
        kl = _kl(NaturalDirichlet(weights), weights_prior)
        kl += _kl(NaturalNormalGamma(loc_precision), loc_precision_prior)
        bound = (scale * table.logsumexp(-1).sum() - kl).item()
        gamma = table.softmax(-1)
        if bound - before < tolerance * scale * len(mean):
            break
        before = bound
    return MixturePosterior(weights, loc_precision, bound)


def kmeans_mixture(
    weights_prior: Tensor,
    loc_precision_prior: Tensor,
    mean: Tensor,
    variance: Tensor,
    generator: torch.Generator,
    restarts: int = 1,
    scale: float = 1.0,
    iterations: int | None = None,
) -> MixturePosterior:
    """The mixture that k-means clusters of encoded data start; with several starts, the best one, improved.

    The bound has many local maxima, of which a single start rarely reaches the greatest.

    Args:
        weights_prior, loc_precision_prior, mean, variance, scale: as for :func:`coordinate_ascent`.
        generator: source of the random numbers, on the CPU.
        restarts: k-means starts.
        iterations: updates of each start at most; None: 100, but of a single start the first alone.

    Raises:
        ValueError: ``restarts`` < 1.
    """
    if restarts < 1:
        raise ValueError(f"restarts: expected a number >= 1, got {restarts}")
    data = weights_prior, loc_precision_prior, mean, variance
    starts = (kmeans(mean, len(weights_prior), generator) for _ in range(restarts))
    if iterations is None:
        iterations = 1 if restarts == 1 else ITERATIONS
    mixtures = (coordinate_ascent(*data, clusters, scale, iterations) for clusters in starts)
    return max(mixtures, key=lambda mixture: mixture.bound)


def better_mixture(
    weights_prior: Tensor,
    loc_precision_prior: Tensor,
    weights: Tensor,
    loc_precision: Tensor,
    mean: Tensor,
    variance: Tensor,
    generator: torch.Generator,
    restarts: int = 1,
    scale: float = 1.0,
) -> tuple[MixturePosterior, float] | None:
    """A mixture of a greater bound than the present one reaches, and by how much, in nats per point; or None.

    Networks that are still learning move points apart that one component stands for, and a mixture that
    follows by small steps stays in its local maximum: with a component for two clusters, say, and another one
    for hardly a point. Both the present mixture and the new starts are improved by coordinate ascent before
    they are compared; a gain below 0.001 nats per point is none.

    Args:
        weights_prior, loc_precision_prior, mean, variance, scale: as for :func:`coordinate_ascent`.
        weights, loc_precision: natural parameters of the present mixture, [K] and [K, 2D+2].
        generator: source of the random numbers, on the CPU.
        restarts: k-means starts, each of them improved, a single one too.

    Raises:
        ValueError: ``restarts`` < 1.
    """
    priors, data = (weights_prior, loc_precision_prior), (mean, variance)
    gamma = responsibilities(weights, loc_precision, mean, variance)
    present = coordinate_ascent(*priors, *data, gamma, scale)
    best = kmeans_mixture(*priors, *data, generator, restarts, scale, ITERATIONS)
    gain = (best.bound - present.bound) / (scale * len(mean))
    return (best, gain) if gain > LEAST_GAIN else None


def responsibilities(weights: Tensor, loc_precision: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """γ of encoded points under a mixture, equation 5 without labels: float64 [M, K].

    Args:
        weights, loc_precision: natural parameters, [K] and [K, 2D+2].
        mean, variance: of q(z), [M, D].
    """
    return _table(weights.double(), loc_precision.double(), mean.double(), variance.double()).softmax(-1)


def _table(weights: Tensor, loc_precision: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Unnormalised log γ of M points, [M, K]: equation 5 without labels."""
    stats = NaturalNormalGamma(loc_precision).expected_stats()
    return gaussian_table(mean, variance, stats) + NaturalDirichlet(weights).expected_stats()


def _kl(q: NaturalDirichlet | NaturalNormalGamma, prior: Tensor) -> Tensor:
    return q.family.kl(q.natural, prior).sum()
