"""Natural posteriors whose gradients do not see the scale of their site, so that ρ keeps its meaning."""

from collections.abc import Callable
from typing import Any

import torch
from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.structure import Structure

Posterior = Callable[[str], Distribution]


def natural_posteriors(program: Structure, guide: Trace) -> Posterior:
    """Posteriors by site name, those of scaled sites with the natural gradient of the unscaled site.

    The scale multiplies the KL divergence and all other terms under a common ``poutine.scale``. Dividing the
    gradient by it leaves λ - λ*, so that ρ keeps its meaning.
    """

    def posterior(name: str) -> Distribution:
        return with_gradient_divided(program.posterior(guide, name), program.model.nodes[name]["scale"])

    return posterior


def with_gradient_divided(q: Distribution, scale: float | Tensor) -> Distribution:
    """A natural posterior whose λ receives gradients divided by a site's scale; any other as it is."""
    natural, unscaled = unwrap(q), not isinstance(scale, Tensor) and scale == 1
    if unscaled or not isinstance(natural, NaturalDistribution):
        return q
    events = len(q.event_shape) - len(natural.event_shape)
    if isinstance(scale, Tensor):
        scale = scale.to(natural.natural)
        if scale.dim():
            shape = q.batch_shape  # a site that lacks dimensions of its scale counts as their sum
            scale = scale.expand(torch.broadcast_shapes(scale.shape, shape)).sum_to_size(shape)
            scale = scale[(..., *(None,) * (events + 1))]
    scaled: Any = natural.with_gradient_scale(1 / scale)
    return scaled.to_event(events)
