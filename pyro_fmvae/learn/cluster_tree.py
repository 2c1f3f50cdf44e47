"""Clusters as unions of components: the density keeps its components, and those of one mode are joined."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.distributions.category import CategoryBlock
from pyro_fmvae.models import ObservedMixture
from pyro_fmvae.models.table_sites import NUMBERS, column_site, parameter_of

DEPTH: Final = 0.5
"""Depth of a valley that separates two clusters."""
ENDS: Final = 8.0
"""Logit of the last place along a ridge before its end."""
PLACES: Final = 81
"""Places along a ridge, closer at its ends, where it is fast if one component is much narrower."""


@torch.no_grad()
def cluster_tree(model: ObservedMixture) -> np.ndarray:
    """Order in which the components of a mixture join into clusters.

    Each component joins one of those at whose mean the density is higher: the one with the shallowest valley
    between them. The height of the join is the valley's depth: 1 less the lowest density along the ridge, as
    a share of the lower of the peaks on its two sides. It is 0 if the two have a single mode.

    Args:
        model: of K components.

    Returns:
        The joins by height, float64 [K - 1, 4], in the form of :func:`scipy.cluster.hierarchy.linkage`: two
        clusters, the height, and how many components they have together. Join i makes cluster K + i.
    """
    of = _Densities(model)
    count = len(of.log_weights)
    peaks, depths = np.zeros(count), np.zeros((count, count))
    for one, other in combinations(range(count), 2):
        along = of.along_ridge(one, other).cpu().numpy()
        peaks[[one, other]] = along[[0, -1]]
        sides = np.maximum.accumulate(along), np.maximum.accumulate(along[::-1])[::-1]
        depths[one, other] = depths[other, one] = -np.expm1((along - np.minimum(*sides)).min())
    order, found = np.argsort(-peaks, kind="stable"), []
    for place in range(1, count):
        low, higher = order[place], order[:place]
        high = higher[depths[low, higher].argmin()]
        found.append((depths[low, high], low, high))
    cluster, tree = np.arange(count), np.zeros((count - 1, 4))
    for number, (depth, low, high) in enumerate(sorted(found)):
        members = np.isin(cluster, cluster[[low, high]])
        tree[number] = *sorted(cluster[[low, high]]), depth, members.sum()
        cluster[members] = count + number
    return tree


def cut(tree: np.ndarray, clusters: int | None = None, depth: float = DEPTH) -> np.ndarray:
    """The cluster of each component, int64 [K], numbered in the order of their first components.

    Args:
        tree: of :func:`cluster_tree`, [K - 1, 4].
        clusters: how many, from 1 to K; None: those that valleys separate.
        depth: beyond which a valley separates two clusters.
    """
    joins = int((tree[:, 2] <= depth).sum()) if clusters is None else len(tree) + 1 - clusters
    cluster = np.arange(len(tree) + 1)
    for number, pair in enumerate(tree[:joins, :2]):
        cluster[np.isin(cluster, pair)] = len(tree) + 1 + number
    _, first, found = np.unique(cluster, return_index=True, return_inverse=True)
    numbers: np.ndarray = first.argsort().argsort()[found]
    return numbers


class Clusters:
    """Clusters that valleys of a mixture's density separate.

    Args:
        mixture: of K components.
        depth: of the valleys; 0 joins components that have a single mode.

    Attributes:
        mixture: the mixture.
        tree: of :func:`cluster_tree`, [K - 1, 4].
        of_components: the cluster of each component, int64 [K].
        number: C, how many clusters there are.
    """

    def __init__(self, mixture: ObservedMixture, depth: float = DEPTH) -> None:
        self.mixture, self.tree, self.depth = mixture, cluster_tree(mixture), depth
        self.of_components = torch.from_numpy(cut(self.tree, depth=depth))
        self.number = int(self.of_components.max()) + 1

    @classmethod
    def of_model(cls, model: Any) -> "Clusters | None":
        """Clusters of a mixture of rows, or of the mixture of a model's codes; None of another model."""
        if isinstance(model, ObservedMixture):
            return cls(model)
        mixture = getattr(model, "code_mixture", None)
        return None if mixture is None else cls(mixture, depth=0.0)

    def assign_encoded(self, model: Any, encoded: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """:meth:`assign` of rows that the model of :meth:`of_model` has encoded: see its ``encode``."""
        if model is self.mixture:
            return self.assign(encoded[f"responsibilities_{len(self.mixture.label_sizes)}"])
        return self.assign(self.mixture.responsibilities(encoded["mean"])[-1])

    def assign(self, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """The most probable cluster of each row, int64 [B], and its probability [B].

        Args:
            gamma: responsibilities of the components, [B, K].
        """
        of_components = self.of_components.to(gamma.device)
        sums = gamma.new_zeros(len(gamma), self.number).index_add_(1, of_components, gamma)
        probability, cluster = sums.max(-1)
        return cluster, probability


class _Densities:
    """Densities of the components at the posterior means of their parameters."""

    def __init__(self, model: ObservedMixture) -> None:
        sites, self.log_weights = model.sites, model.weights().log()
        self.loc = self.precision = self.ends = self.log_weights.new_zeros(model.components, 0)
        self.full = sites.full
        if sites.numbers:
            self.loc, _, shape, rate = model.natural(parameter_of(NUMBERS)).standard
            if self.full:
                shape = shape[:, None, None] + (self.loc.shape[-1] - 1) / 2
                self.precision = shape * torch.cholesky_inverse(rate)
                self.factor = torch.linalg.cholesky(self.precision)
                self.ends = (self.precision @ self.loc.unsqueeze(-1)).squeeze(-1)
            else:
                self.precision = shape / rate
                self.ends = self.precision * self.loc
        self.log_rates = model.rates().log() if sites.counted else self.loc[:, :0]
        self.block = CategoryBlock([size for _, size in sites.categories], self.loc.device)
        probs = [model.probs(column_site(column)) for column, _ in sites.categories]
        self.log_probs = torch.cat([self.loc[:, :0], *probs], -1).log()

    def along_ridge(self, one: int, other: int) -> Tensor:
        """Log-density along the ridge between two components, both ends included, up to a constant: [places].

        The ridge of two Gaussians holds every mode and saddle of their mixtures (Ray and Lindsay, 2005, The
        topography of multivariate normal mixtures). At α it is the mode of f₁^(1 - α) f₂^α. For counts and
        categories there is no path of values. The distributions f₁^(1 - α) f₂^α take its place, and
        e^(-KL) from them to a component that of its density.
        """
        alpha = torch.linspace(-ENDS, ENDS, PLACES, dtype=torch.float64, device=self.loc.device).sigmoid()
        alpha = torch.cat([alpha.new_zeros(1), alpha, alpha.new_ones(1)]).unsqueeze(-1)
        total = self.log_weights.expand(len(alpha), -1)
        if self.loc.shape[-1]:
            ends = torch.lerp(self.ends[one], self.ends[other], alpha)
            if self.full:
                sums = torch.lerp(self.precision[one], self.precision[other], alpha.unsqueeze(-1))
                x = torch.linalg.solve(sums, ends)
                gaps = (x - self.loc.unsqueeze(1)) @ self.factor  # [K, places, D]
                scales = self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
                total = total + scales - gaps.square().sum(-1).mT / 2
            else:
                x = ends / torch.lerp(self.precision[one], self.precision[other], alpha)
                squares = x.square() @ self.precision.mT - 2 * x @ self.ends.mT
                constants = (self.precision.log() - self.ends * self.loc).sum(-1)
                total = total + (constants - squares) / 2
        if self.log_rates.shape[-1]:
            log_rates = torch.lerp(self.log_rates[one], self.log_rates[other], alpha)
            rates, own = log_rates.exp(), self.log_rates.exp().sum(-1)
            total = total + rates @ self.log_rates.mT - own - (rates * (log_rates - 1)).sum(-1, keepdim=True)
        if self.log_probs.shape[-1]:
            log_probs = self.block.log_softmax(torch.lerp(self.log_probs[one], self.log_probs[other], alpha))
            probs = log_probs.exp()
            total = total + probs @ self.log_probs.mT - (probs * log_probs).sum(-1, keepdim=True)
        return total.logsumexp(-1)
