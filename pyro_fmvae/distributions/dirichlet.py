"""The Dirichlet family: natural parameters, posterior, KL. Paquet et al. (2018), Section 2.2, equation 14."""

from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import Dirichlet
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import register_kl

from pyro_fmvae.distributions.exponential_family import (
    ExponentialFamily,
    InNaturalParameters,
    check_natural,
    scale_gradient,
)


class DirichletFamily(ExponentialFamily):
    """Dirichlet(c) over the simplex with t = log π and λ = c (the base measure is 1 / Π π)."""

    def natural(self, *standard: Tensor) -> Tensor:
        """λ = c [..., K]."""
        (concentration,) = standard
        return concentration

    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """(c,) with c [..., K]."""
        return (natural,)

    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(c) = Σ log Γ(c_k) - log Γ(Σ c_k)."""
        return torch.lgamma(natural).sum(-1) - torch.lgamma(natural.sum(-1))

    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[log π_k] = ψ(c_k) - ψ(Σ c_k) [..., K]."""
        return torch.digamma(natural) - torch.digamma(natural.sum(-1, keepdim=True))

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """KL(Dir(c) || Dir(c₀)) [...]."""
        stats = self.mean_stats(natural) if stats is None else stats
        gap = ((natural - prior) * stats).sum(-1)
        return gap - self.log_normalizer(natural) + self.log_normalizer(prior)

    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """Solve (diag ψ'(c) - ψ'(Σ c) 11ᵀ) n = g by Sherman and Morrison; 0 for K = 1, where π = 1."""
        (concentration,), (grad,) = standard, grads
        if concentration.shape[-1] == 1:
            return torch.zeros_like(grad)
        inverse = 1 / torch.polygamma(1, concentration)
        shared = torch.polygamma(1, concentration.sum(-1, keepdim=True))
        scaled = grad * inverse
        correction = shared * scaled.sum(-1, keepdim=True) / (1 - shared * inverse.sum(-1, keepdim=True))
        return scaled + correction * inverse

    def in_domain(self, natural: Tensor) -> Tensor:
        """Whether every c is positive."""
        return (natural > 0).all(-1)


DIRICHLET = DirichletFamily()


class NaturalDirichlet(InNaturalParameters, Dirichlet):
    """A Dirichlet posterior given by natural parameters, which receive natural gradients.

    Args:
        natural: concentrations λ = c, float64 [..., K], usually a ``NaturalParameter``.
        dtype: of draws and log-densities; torch's default dtype if None.

    Raises:
        ValueError: λ that is not float64, or (with validation on) a concentration that is not positive.
    """

    family = DIRICHLET

    def __init__(
        self, natural: Tensor, dtype: torch.dtype | None = None, validate_args: bool | None = None
    ) -> None:
        check_natural(natural)
        self.natural = natural
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        (concentration,) = DIRICHLET.standard(natural)
        super().__init__(concentration.to(self.dtype), validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "NaturalDirichlet":
        """Expand to ``batch_shape``; the natural parameters stay the tensor that was given."""
        new = self._get_checked_instance(NaturalDirichlet, _instance)
        new.natural, new.dtype = self.natural, self.dtype
        return super().expand(batch_shape, _instance=new)

    def with_gradient_scale(self, factor: Tensor | float) -> "NaturalDirichlet":
        """The same distribution, whose gradients reach the natural parameters multiplied by ``factor``."""
        new = NaturalDirichlet(scale_gradient(self.natural, factor), self.dtype, validate_args=False)
        return new.expand(self.batch_shape)


@register_kl(NaturalDirichlet, torch.distributions.Dirichlet)
def _kl_natural_dirichlet(q: NaturalDirichlet, p: torch.distributions.Dirichlet) -> Tensor:
    (prior,) = DIRICHLET.standard(p.natural) if isinstance(p, NaturalDirichlet) else (p.concentration,)
    prior = prior.to(q.natural)
    kl = DIRICHLET.kl(q.natural, prior, q.expected_stats())
    return kl.expand(broadcast_shape(q.batch_shape, p.batch_shape))
