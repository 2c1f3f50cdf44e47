"""Starting points for λ from encoded data. Random ones lose components for good; these keep them."""

import torch
from torch import Tensor


def kmeans(points: Tensor, num_clusters: int, generator: torch.Generator, iterations: int = 10) -> Tensor:
    """Cluster indices [N] by k-means++ seeding (Arthur and Vassilvitskii, 2007) and Lloyd's iterations.

    Args:
        points: [N, D], N >= 1. With fewer distinct points than clusters, some clusters stay empty.
        num_clusters: K.
        generator: source of the random numbers, on the CPU.
        iterations: Lloyd's iterations after seeding.
    """
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
