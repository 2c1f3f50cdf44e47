"""The Dirichlet family: natural parameters, posterior, KL. Paquet et al. (2018), Section 2.2 and equation 14."""

import torch
from pyro.distributions import Dirichlet
from torch import Tensor
from torch.distributions import constraints, register_kl

from pyro_fmvae.distributions.exponential_family import ExponentialFamily, scale_gradient


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

    def relative_entropy(self, natural: Tensor, prior: Tensor) -> Tensor:
        """KL(Dir(c) || Dir(c₀)) [...]."""
        gap = ((natural - prior) * self.mean_stats(natural)).sum(-1)
        return gap - self.log_normalizer(natural) + self.log_normalizer(prior)

    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """Solve (diag ψ'(c) - ψ'(Σ c) 11ᵀ) n = g by the Sherman-Morrison formula."""
        (concentration,), (grad,) = standard, grads
        diagonal = torch.polygamma(1, concentration)
        shared = torch.polygamma(1, concentration.sum(-1, keepdim=True))
        scaled = grad / diagonal
        correction = shared * scaled.sum(-1, keepdim=True) / (1 - shared * (1 / diagonal).sum(-1, keepdim=True))
        return scaled + correction / diagonal

    def in_domain(self, natural: Tensor) -> Tensor:
        """c > 0 in every entry."""
        return (natural > 0).all(-1)


DIRICHLET = DirichletFamily()


class NaturalDirichlet(Dirichlet):
    """A Dirichlet posterior that remembers its natural parameters, so that gradients at them are natural gradients.

    Args:
        natural: concentrations λ = c, float64 [..., K] (usually a ``NaturalParameter``).
        dtype: of draws and log-densities; torch's default dtype if None.

    Raises:
        ValueError: a concentration that is not positive, with validation on.
    """

    natural: Tensor
    family = DIRICHLET

    def __init__(self, natural: Tensor, dtype: torch.dtype | None = None, validate_args: bool | None = None) -> None:
        self.natural = natural
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        (concentration,) = DIRICHLET.standard(natural)
        super().__init__(concentration.to(self.dtype), validate_args=validate_args)

    def expand(self, batch_shape: torch.Size, _instance: "NaturalDirichlet | None" = None) -> "NaturalDirichlet":
        """Expand to ``batch_shape``; the natural parameters stay the tensor that was given."""
        new = self._get_checked_instance(NaturalDirichlet, _instance)
        new.natural, new.dtype = self.natural, self.dtype
        return super().expand(batch_shape, _instance=new)

    def with_gradient_scale(self, factor: Tensor | float) -> "NaturalDirichlet":
        """The same distribution, with the gradients that reach its natural parameters multiplied by ``factor``."""
        new = NaturalDirichlet(scale_gradient(self.natural, factor), self.dtype, validate_args=False)
        return new.expand(self.batch_shape)

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> constraints.Constraint:
        """The simplex."""
        return constraints.simplex


@register_kl(NaturalDirichlet, Dirichlet)
def _kl_natural_dirichlet(q: NaturalDirichlet, p: Dirichlet) -> Tensor:
    kl = DIRICHLET.kl(q.natural, p.concentration.to(q.natural))
    return kl.expand(torch.broadcast_shapes(q.batch_shape, p.batch_shape))
