"""Clusters of codes whose shapes are not along the axes."""

from typing import Final

import torch
from torch import Tensor

from pyro_fmvae.infer.seeding import kmeans
from pyro_fmvae.learn.component_moves import Make, Sample
from pyro_fmvae.learn.split_merge import best_mixture
from pyro_fmvae.models import ObservedMixture

SEARCHED: Final = 2000
"""Points at most that the mixture is found by."""
STARTS: Final = 3
"""Starts of the mixture."""
FLAT: Final = 0.01
"""Share of the largest standard deviation; dimensions with less are scaled as if they had that much."""


def full_clusters(points: Tensor, num_clusters: int, generator: torch.Generator) -> Tensor:
    """Cluster indices [N] by a mixture of full covariances of standardised points.

    The mixture is the one whose bound no swap of components raises:
    :func:`~pyro_fmvae.learn.split_merge.best_mixture`. It is found on the CPU, by 2,000 points at most, where
    thousands of small operations take less time than on a GPU. Where there is less than a point for each
    dimension of each cluster, the clusters are those of k-means.

    Args:
        points: [N, D], N >= 1, on any device, as are the clusters. With few distinct points, some stay empty.
        num_clusters: K.
        generator: source of the random numbers, on the CPU.
    """
    x = points.cpu().double()
    x = x - x.mean(0)
    spread = x.square().mean(0).sqrt()
    x = x / spread.clamp(min=FLAT * spread.max()).clamp(min=torch.finfo(x.dtype).tiny)
    rows = torch.randperm(len(x), generator=generator)[:SEARCHED]
    if len(rows) < num_clusters * x.shape[1]:
        return kmeans(x, num_clusters, generator).to(points.device)
    found = best_mixture(Sample.of(_mixture_of(x.shape[1]), x[rows]), num_clusters, generator, STARTS)
    return found.model.table(found.model.packed(x)).argmax(-1).to(points.device)


def _mixture_of(dim: int) -> Make:
    """Makes mixtures of so many columns of numbers."""
    return lambda components, rows: ObservedMixture([0] * dim, components, rows, full=True)
