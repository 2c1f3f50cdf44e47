"""SVI with a choice of when the responsibilities for the natural-gradient step are computed."""

from typing import Any

import pyro.poutine as poutine
import torch
from pyro.infer import SVI
from pyro.infer.util import zero_grads
from torch import Tensor

from pyro_fmvae.distributions import NaturalParameter
from pyro_fmvae.infer.placeholder import PlaceholderMessenger
from pyro_fmvae.infer.site_terms import sum_terms
from pyro_fmvae.infer.structure import Program
from pyro_fmvae.infer.trace_conjugate_elbo import TraceConjugate_ELBO


class ConjugateSVI(SVI):
    """``SVI`` for :class:`TraceConjugate_ELBO` in either order of the paper's step 3 (Paquet et al., 2018, Section 2.4).

    By default, as in ``SVI``, λ takes its step with the responsibilities of the pass that gave the networks' gradients. With
    ``recompute``, the networks step first, the guide is run again, and λ steps with the responsibilities at the updated
    encoder: the paper's order, at the price of one more pass through the encoder.

    Args:
        model, guide: the program.
        optim: a ``NaturalGradient``, or anything with its ``step_others`` and ``step_natural``.
        elbo: the loss.
        recompute: whether to use the paper's order.
    """

    def __init__(self, model: Any, guide: Any, optim: Any, elbo: TraceConjugate_ELBO, recompute: bool = False) -> None:
        super().__init__(model, guide, optim, loss=elbo)
        self.elbo = elbo
        self.recompute = recompute

    def step(self, *args: Any, **kwargs: Any) -> float:
        """One step on a batch; returns the loss before it, in nats, for all N points."""
        if not self.recompute:
            return super().step(*args, **kwargs)
        with poutine.trace(param_only=True) as capture:
            traces = self.elbo.traces(self.model, self.guide, *args, **kwargs)
            loss = self.elbo.total(self.elbo.average([self.elbo.terms_of(*pair) for pair in traces]))
        self.elbo.backward(loss, capture.trace, lambda: self.elbo.terms(self.model, self.guide, *args, **kwargs))
        params = [site["value"].unconstrained() for site in capture.trace.nodes.values()]
        self.optim.step_others(params)
        program, _ = traces[-1]
        self._refresh(program, [p for p in params if isinstance(p, NaturalParameter)], args, kwargs)
        self.optim.step_natural(params)
        zero_grads(params)
        return loss.item()

    def _refresh(self, program: Program, natural: list[Tensor], args: Any, kwargs: Any) -> None:
        """Replace the gradients of λ by those at the current encoder, by a second pass over the guide alone."""
        with poutine.block(), PlaceholderMessenger():
            guide = poutine.trace(self.guide).get_trace(*args, **kwargs)
        loss = sum_terms(self.elbo.conjugate_terms(program, guide))
        for p, grad in zip(natural, torch.autograd.grad(loss, natural, allow_unused=True), strict=True):
            p.grad = grad
