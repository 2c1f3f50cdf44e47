"""Exact integrals over one or two causes that are a spike or a slab, by quadrature: the tests' oracle."""

import math

import torch
from torch.distributions import Normal

from pyro_fmvae.models.em.spike_and_slab_gibbs import SpikeAndSlabParameters

RULES = {"max": lambda products: products.amax(-1), "linear": lambda products: products.sum(-1)}


def panels(low, high, count=400):
    """Nodes and weights of composite Gauss-Legendre quadrature on one interval, each [5 count]."""
    node = torch.tensor([0.0, 0.5384693101056831, 0.9061798459386640])
    weight = torch.tensor([0.5688888888888889, 0.4786286704993665, 0.2369268850561891])
    node, weight = torch.cat([-node.flip(0)[:2], node]), torch.cat([weight.flip(0)[:2], weight])
    half = (high - low) / (2 * count)
    centre = low + half * (2 * torch.arange(count) + 1)
    return (centre[:, None] + half * node).flatten(), (half * weight).expand(count, 5).flatten()


def parameters(weight, probs=0.4, loc=1.0, variance=0.3, noise_variance=0.5):
    """Parameters of a single start; slab parameters are shared, or lists of H."""
    slab = (torch.atleast_1d(torch.as_tensor(t))[None] for t in (probs, loc, variance))
    return SpikeAndSlabParameters(weight[None], *slab, torch.as_tensor([noise_variance]))


def log_joint_grid(y, p, rule, count=60, floor=False):
    """States of both units, and log p(y, s) plus the log weight of each node.

    Args:
        y: [B, D], NaN where missing.
        p: parameters of one start with H = 2.
        floor: whether a third unit, always off, takes part in the maximum.

    Returns:
        Causes [n, 2] and log weights [B, n] that integrate over them.
    """
    scale = p.variance[0].sqrt().expand(2)
    loc, logits = p.loc[0].expand(2), p.probs[0].logit().expand(2)
    axes, masses = [], []
    for h in range(2):
        node, weight = panels(loc[h] - 8 * scale[h], loc[h] + 8 * scale[h], count)
        slab = Normal(loc[h], scale[h]).log_prob(node) + weight.log()
        on, off = torch.nn.functional.logsigmoid(torch.stack([logits[h], -logits[h]]))
        axes.append(torch.cat([torch.zeros(1), node]))
        masses.append(torch.cat([off[None], on + slab]))
    s = torch.cartesian_prod(*axes)
    prior = (masses[0][:, None] + masses[1]).flatten()
    products = s[:, None, :] * p.weight[0]
    if floor:
        products = torch.cat([products, torch.zeros_like(products[..., :1])], -1)
    error = (y[:, None] - RULES[rule](products)).square().nansum(-1)
    observed = (~y.isnan()).sum(-1, keepdim=True)
    likelihood = -0.5 * (error / p.noise_variance + observed * (2 * math.pi * p.noise_variance).log())
    return s, likelihood + prior


def log_likelihood(y, p, rule, count=60):
    """log p(y) of each point with H = 2, [B]."""
    return log_joint_grid(y, p, rule, count)[1].logsumexp(-1)
