"""Starts of the mixture of a labelled factor: by labels, by clusters that agree with them, or far apart."""

import math
from dataclasses import replace

import scipy  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.distributions.normal_gamma import NORMAL_GAMMA
from pyro_fmvae.infer.seeding import (
    Clustering,
    MixturePosterior,
    coordinate_ascent,
    kmeans,
    kmeans_mixture,
    responsibilities,
)


def labelled_start(
    priors: tuple[NaturalDistribution, NaturalDistribution],
    mean: Tensor,
    variance: Tensor,
    known: Tensor,
    values: Tensor,
    num_data: int,
    generator: torch.Generator,
    restarts: int,
    clusters: Clustering = kmeans,
) -> MixturePosterior:
    """The mixture of K components that stand for values of a label, from M encoded points.

    Components of the labelled points alone are a poor start where a value has one or two. So clusters of all
    points are tried where most labels are unknown. Each is given to a component, such that the sum of the
    probabilities of the known labels is greatest. Clusters are taken if this sum is more than half of the
    labels, and more than components of one half of the labels have for the other half.

    Args:
        priors: of the mixing weights and of the components, batch shapes [] and [K].
        mean, variance: of q(z), [M, D].
        known: labels, int64 [M], -1 = unknown; at least one is known.
        values: the value that each component stands for, int64 [K].
        num_data: N, for which the points stand.
        generator, restarts, clusters: as for :func:`~pyro_fmvae.infer.seeding.kmeans_mixture`.
    """
    rows = (known >= 0).nonzero().squeeze(-1)

    def of_labels(rows: Tensor) -> MixturePosterior:
        data, labels = (mean[rows], variance[rows]), known[rows]
        start = _components_of(labels, values, data[0], generator)
        return coordinate_ascent(*priors, *data, start, num_data / len(rows), iterations=1)

    if 2 * len(rows) >= len(known):
        return of_labels(rows)
    halves, right = (rows[::2], rows[1::2]), 0.0
    if len(rows) > 1:
        for half, other in (halves, halves[::-1]):
            fits = values == known[other, None]
            right += _gamma(of_labels(half), mean[other], variance[other])[fits].sum().item()
    data, each = (mean, variance), num_data / len(mean)
    found = kmeans_mixture(*priors, *data, generator, restarts, each, clusters=clusters)
    fits = values == known[rows, None]
    agreed = _gamma(found, mean[rows], variance[rows]).mT @ fits.double()  # of clusters, by component
    order, components = scipy.optimize.linear_sum_assignment(agreed.cpu(), maximize=True)
    if agreed[order, components].sum() <= max(right, len(rows) / 2):
        return of_labels(rows)
    order = order[components.argsort()]
    weights, mixture = (q.with_natural(q.natural[order]) for q in (found.weights, found.components))
    return replace(found, weights=weights, components=mixture)


def separated(natural: Tensor, distance: float, generator: torch.Generator) -> Tensor:
    """Move components apart, and give them unit expected precision. Their counts stay.

    The first D lie at right angles to one another, the next D opposite them.

    Args:
        natural: natural parameters of Normal-Gamma posteriors, [..., K, 2D+2], K <= 2D.
        distance: least distance between the means of two components, in their standard deviations.
        generator: of the directions, on the CPU.

    Returns:
        Natural parameters of the same shape.
    """
    loc, mean_concentration, concentration, rate = NORMAL_GAMMA.unpack(natural)
    number, dim = loc.shape[-2:]
    directions = torch.empty_like(loc[..., :dim, :], device="cpu")
    for of_factor in directions.view(-1, *directions.shape[-2:]):
        nn.init.orthogonal_(of_factor, generator=generator)
    directions = torch.cat([directions, -directions], -2)[..., :number, :]
    loc = distance / math.sqrt(2) * directions.to(loc)
    rate = concentration.unsqueeze(-1).expand_as(rate)
    return NORMAL_GAMMA.natural(loc, mean_concentration, concentration, rate)


def _gamma(mixture: MixturePosterior, mean: Tensor, variance: Tensor) -> Tensor:
    """Responsibilities of points [M, D], [M, K]."""
    return responsibilities(mixture.weights, mixture.components, mean, variance)


def _components_of(known: Tensor, values: Tensor, points: Tensor, generator: torch.Generator) -> Tensor:
    """A component for each labelled point [M]: of several that stand for its value, one by k-means."""
    components = torch.empty_like(known)
    for value in known.unique():
        own, chosen = (values == value).nonzero().squeeze(-1), known == value
        parts = (
            kmeans(points[chosen], len(own), generator) if len(own) > 1 else torch.zeros_like(known[chosen])
        )
        components[chosen] = own[parts]
    return components
