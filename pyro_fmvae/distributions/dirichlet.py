"""The Dirichlet family: the conjugate prior of categories. Paquet et al. (2018), Section 2.2, equation 14."""

import torch
from pyro.distributions import Categorical, Dirichlet, DirichletMultinomial
from torch import Tensor

from pyro_fmvae.distributions.exponential_family import (
    ExponentialFamily,
    NaturalDistribution,
    register_family,
)


class DirichletFamily(ExponentialFamily):
    """Dirichlet(c) over the simplex with t = log π and λ = c (the base measure is 1 / Π π).

    An observation is a category, given by the indicators of its K values: their mean is how likely each is.
    """

    distribution = Dirichlet
    names = ("concentration",)
    monomials = frozenset({("log",)})

    def natural(self, *standard: Tensor) -> Tensor:
        """λ = c [..., K]."""
        (concentration,) = standard
        return concentration

    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """(c,) with c [..., K]."""
        return (natural,)

    def event_shape(self, size: int) -> torch.Size:
        """(K,)."""
        if size < 1:
            raise ValueError("natural: expected shape [..., K], got a scalar or K = 0")
        return torch.Size((size,))

    def stats(self, value: Tensor) -> Tensor:
        """Log π [..., K]."""
        return value.log()

    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(c) = Σ log Γ(c_k) - log Γ(Σ c_k)."""
        return torch.lgamma(natural).sum(-1) - torch.lgamma(natural.sum(-1))

    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[log π_k] = ψ(c_k) - ψ(Σ c_k) [..., K]."""
        return torch.digamma(natural) - torch.digamma(natural.sum(-1, keepdim=True))

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
        """True where every c is positive."""
        return (natural > 0).all(-1)

    def data_stats(self, mean: Tensor, variance: Tensor) -> Tensor:
        """The probability of each category, [..., K]."""
        return mean

    def random_start(self, prior: Tensor, count: float, generator: torch.Generator | None) -> Tensor:
        """``count`` observations of each category; nothing is random."""
        return prior + count

    def scattered_start(self, prior: Tensor, count: float, generator: torch.Generator | None) -> Tensor:
        """``count`` observations of each category on average, as random shares of all."""
        shares = torch.rand(prior.shape, dtype=prior.dtype, generator=generator).to(prior.device)
        return prior + count * prior.shape[-1] * shares / shares.sum(-1, keepdim=True)

    def size(self, event: torch.Size) -> int:
        """K."""
        return event.numel()

    def locate(self, monomial: tuple[str, ...], elements: tuple[Tensor, ...], event: torch.Size) -> Tensor:
        """Log π_k is number k."""
        return elements[0]

    def log_base_measure(self, stats: Tensor) -> Tensor:
        """-Σ_k E[log π_k]."""
        return -stats.sum(-1)

    def predictive(self, standard: tuple[Tensor, ...], dtype: torch.dtype) -> Categorical:
        """Category k has the probability c_k / Σ c."""
        (concentration,) = standard
        return Categorical(probs=concentration.to(dtype))

    def predictive_multinomial(
        self, standard: tuple[Tensor, ...], dtype: torch.dtype, total_count: int | Tensor = 1
    ) -> DirichletMultinomial:
        """p(x) of x ~ Multinomial(total_count, π): the Dirichlet-multinomial distribution."""
        (concentration,) = standard
        return DirichletMultinomial(concentration.to(dtype), total_count)


DIRICHLET = DirichletFamily()


@register_family(torch.distributions.Dirichlet)
class NaturalDirichlet(NaturalDistribution, Dirichlet):
    """A Dirichlet posterior in natural parameters λ = c [..., K]: see :class:`NaturalDistribution`."""

    family = DIRICHLET
