"""Rows in clusters, and mixtures of them."""

import torch

from pyro_fmvae.distributions import ColumnNormalGamma, NormalWishart
from pyro_fmvae.models import ObservedMixture, TablePrior
from pyro_fmvae.models.mixing_weights import DIRICHLET_WEIGHTS


def make(components, rows, full=True, levels=(0, 0, 0), weights=DIRICHLET_WEIGHTS):
    numbers = levels.count(0)
    zero, one = torch.zeros(numbers), torch.ones(numbers)
    prior = NormalWishart(zero, 0.2, 1.0, 0.3) if full else ColumnNormalGamma(zero, 0.2 * one, one, 0.1 * one)
    of_table = TablePrior(c0=0.8, numbers=prior, weights=weights)
    return ObservedMixture(levels, components, rows, prior=of_table, full=full)


def clusters(number, each, seed=0):
    """Standardised rows of clusters around points of a grid, and the clusters."""
    torch.manual_seed(seed)
    kinds, steps = torch.arange(number * each) % number, 8 * torch.arange(3.0).double()
    grid = torch.cartesian_prod(steps, steps, steps)[torch.randperm(27)]
    x = grid[kinds] + torch.randn(len(kinds), 3).double()
    return (x - x.mean(0)) / x.std(0), kinds


def stripes(each=60):
    """Three long parallel clusters, aslant to the axes, in units that differ, and which point is of which."""
    generator = torch.Generator().manual_seed(0)
    along = torch.randn(3, each, generator=generator) * 3
    across = torch.arange(3.0).unsqueeze(-1) * 2 + 0.1 * torch.randn(3, each, generator=generator)
    points = torch.stack([along + across, along - across], -1).flatten(0, 1)
    return points * torch.tensor([1.0, 100.0]) + 7, torch.arange(3).repeat_interleave(each)
