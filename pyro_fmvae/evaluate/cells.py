"""Trained models of counts: cells of a new batch, and genes whose expression differs between groups."""

from copy import deepcopy
from math import log
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.infer import TraceConjugate_ELBO

BATCH: Final = 200
"""Rows of a step, and of what is decoded at once."""
RATE: Final = 0.01
"""Step size of Adam."""


def with_new_batch(model: Any, x: Tensor, iterations: int, seed: int = 0) -> Any:
    """A copy of a model of counts that knows one more batch, learnt from its rows.

    The first layers of encoder and decoder get the new batch's weights, which begin at the mean of those of
    the others. They alone are learnt, by the bound (Lotfollahi et al., 2022, Mapping single-cell data to
    reference atlases by transfer learning, whose model does the same).

    Args:
        model: with batches.
        x: rows of the new batch [n, D + 1], whose number, the last column, is that after the others.
        iterations: steps on at most 200 random rows each.
        seed: of the steps.
    """
    new = deepcopy(model)
    weights = [_widened(net) for net in (new.encoder, new.decoder)]
    adam, elbo = torch.optim.Adam(weights, RATE), TraceConjugate_ELBO()
    with seeded(seed), torch.enable_grad():
        for _ in range(iterations):
            rows = x[torch.randperm(len(x))[:BATCH].to(x.device)]
            loss = elbo.differentiable_loss(new.model, new.guide, rows)
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.grad = pad(gradient[:, -1:], (weight.shape[1] - 1, 0))
            adam.step()
    return new


def _widened(net: Any) -> nn.Parameter:
    """Let a network of counts know one more batch, like the mean of the others; the weights concerned."""
    layer = next(part for part in net.modules() if isinstance(part, nn.Linear))
    old = layer.weight.detach()
    layer.weight = nn.Parameter(torch.cat([old, old[:, -net.batches :].mean(1, keepdim=True)], 1))
    layer.in_features += 1
    net.batches += 1
    if hasattr(net, "event_shape"):
        net.event_shape = (net.event_shape[0] + 1,)
    else:
        net.latent_dim += 1
    return layer.weight


class Expression(NamedTuple):
    """How the expression of D genes differs between two groups of cells, each float64 [D]."""

    lfc: np.ndarray
    """Posterior mean of the log2 fold change, from the second group to the first."""
    lfc_std: np.ndarray
    """Its standard deviation."""
    probability: np.ndarray
    """Posterior probability that it is beyond delta in size."""


@torch.no_grad()
def differential_expression(
    model: Any, first: Tensor, second: Tensor, delta: float, num_samples: int, offset: float, seed: int
) -> Expression:
    """Log fold changes of pairs of random cells, one of each group, at draws of their z.

    A gene's expression is what is expected of it in a cell of typical total, averaged over the batches, so
    that neither totals nor batches count (Boyeau et al., 2023, An empirical Bayes method for differential
    expression analysis of single cells with deep generative models).

    Args:
        model: of counts.
        first, second: rows of both groups, [n, D or D + 1].
        delta: size of a fold change that matters, in log2.
        num_samples: pairs.
        offset: counts that are added to both, so that genes with hardly any do not differ.
        seed: of the pairs and draws.
    """
    with seeded(seed):
        logs = []
        for rows in (first, second):
            index = torch.randint(len(rows), (num_samples,)).to(rows.device)
            parts = [model.decode(model.posterior(part).sample()) for part in rows[index].split(BATCH)]
            logs.append((torch.cat(parts).double() + offset).log() / log(2))
    change = logs[0] - logs[1]
    beyond = (change.abs() > delta).double()
    return Expression(*(part.cpu().numpy() for part in (change.mean(0), change.std(0), beyond.mean(0))))
