"""The Normal-Gamma family in natural parameters: Paquet et al. (2018), equations 12-13, Appendix C.1."""

import torch
from pyro.distributions.util import broadcast_shape
from torch import Tensor

from pyro_fmvae.distributions.exponential_family import ExponentialFamily


class NormalGammaFamily(ExponentialFamily):
    """Π_d N(μ_d; m_d, 1/(s α_d)) Gamma(α_d; a, rate b_d).

    Packed as λ = (λ1, λ4, λ2[D], λ3[D]) with statistics t = (Σ_d log α_d, Σ_d α_d μ_d², α[D], (α μ)[D]):

        λ1 = a - 1/2,  λ4 = -s/2,  λ2 = -(b + s m²/2),  λ3 = s m                              (equation 12)

    ``b = -λ2 - λ3²/(2s)`` subtracts nearly equal numbers when m is large against the spread, so λ
    has to be float64.
    """

    def natural(self, *standard: Tensor) -> Tensor:
        """Pack m [..., D], s [...], a [...] and b [..., D] into [..., 2D+2]."""
        m, s, a, b = standard
        s_d, a_d = s.unsqueeze(-1), a.unsqueeze(-1)
        parts = (a_d - 0.5, -0.5 * s_d, -(b + 0.5 * s_d * m.square()), s_d * m)
        batch = broadcast_shape(*(part.shape[:-1] for part in parts))
        dim = max(m.shape[-1], b.shape[-1])
        sizes = (1, 1, dim, dim)
        return torch.cat([part.expand(*batch, size) for part, size in zip(parts, sizes, strict=True)], -1)

    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """(m [..., D], s [...], a [...], b [..., D])."""
        dim = natural.shape[-1] // 2 - 1
        first, fourth, second, third = natural.split([1, 1, dim, dim], -1)
        s = -2 * fourth
        m = third * s.reciprocal()  # a division for each dimension would cost more than all the rest
        b = torch.addcmul(second, third, m, value=0.5).neg_()
        return m, s.squeeze(-1), first.squeeze(-1) + 0.5, b

    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(λ) = Σ_d { log Γ(a) - a log b_d - 1/2 log s } (the base measure keeps the powers of 2π)."""
        m, s, a, b = self.unpack(natural)
        return m.shape[-1] * (torch.lgamma(a) - 0.5 * s.log()) - a * b.log().sum(-1)

    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[t]: D ψ(a) - Σ log b, D/s + Σ m² a/b, a/b [D], m a/b [D]."""
        m, s, a, b = self.unpack(natural)
        return self.stats_from_standard(m, s, a, b)

    @staticmethod
    def stats_from_standard(m: Tensor, s: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """E[t] [..., 2D+2] at standard parameters: m and b [..., D], s and a [...]."""
        dim = m.shape[-1]
        precision = a.unsqueeze(-1) / b
        scaled_loc = precision * m
        log_precision = dim * torch.digamma(a) - _sum_of_logs(b)
        square = dim / s + (scaled_loc * m).sum(-1)
        return torch.cat([log_precision.unsqueeze(-1), square.unsqueeze(-1), precision, scaled_loc], -1)

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """Appendix C.1 (with log Γ where the paper prints ψ), summed over d: [...]."""
        s, a = -2 * natural[..., 1], natural[..., 0] + 0.5
        m = natural[..., natural.shape[-1] // 2 + 1 :] * s.reciprocal().unsqueeze(-1)
        stats = self.mean_stats(natural) if stats is None else stats
        return self.kl_from_stats(m, s, a, stats, self.unpack(prior))

    @staticmethod
    def kl_from_stats(m: Tensor, s: Tensor, a: Tensor, stats: Tensor, prior: tuple[Tensor, ...]) -> Tensor:
        """KL(λ || λ₀) [...] from m, s, a and E[t], in which a/b and Σ log b are: no logarithm twice."""
        m0, s0, a0, b0 = prior
        dim = stats.shape[-1] // 2 - 1
        log_precision, precision = stats[..., 0], stats[..., 2 : dim + 2]
        ratio, digamma = s0 / s, torch.digamma(a)
        shared = 0.5 * (ratio - ratio.log() - 1) - a + (a - a0) * digamma
        shared = shared + torch.lgamma(a0) - torch.lgamma(a)
        apart = ((m - m0).square() * precision).sum(-1)
        log_rates = dim * digamma - log_precision - b0.log().expand(*b0.shape[:-1], dim).sum(-1)
        return dim * shared + 0.5 * s0 * apart + (precision * b0).sum(-1) + a0 * log_rates

    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """From (∂m, ∂s, ∂a, ∂b), solved by hand: the metric has the blocks (m), (s) and (a, b)."""
        (m, s, a, b), (grad_m, grad_s, grad_a, grad_b) = standard, grads
        dim = m.shape[-1]
        variance = b / a.unsqueeze(-1)
        curvature = dim * (torch.polygamma(1, a) - 1 / a)
        first = ((grad_a + (grad_b * variance).sum(-1)) / curvature).unsqueeze(-1)
        fourth = (-s.square() * grad_s / dim).unsqueeze(-1)
        third = grad_m * variance - 2 * fourth * m
        second = -variance * (first + grad_b * b + grad_m * m) + fourth * m.square()
        return torch.cat([first, fourth, second, third], -1)

    def in_domain(self, natural: Tensor) -> Tensor:
        """Whether s, a and every b are positive (b is NaN where m is not finite)."""
        _, s, a, b = self.unpack(natural)
        return (s > 0) & (a > 0) & (b > 0).all(-1)


def _sum_of_logs(b: Tensor) -> Tensor:
    """Σ_d log b_d of b [..., D] > 0, by one logarithm for each four numbers between 1e-77 and 1e77.

    Float64 logarithms are the most expensive part of E[t] otherwise.
    """
    quarter = b.shape[-1] // 4
    first, second, third, fourth, rest = b.split([quarter] * 4 + [b.shape[-1] - 4 * quarter], -1)
    return (first * second * third * fourth).log().sum(-1) + rest.log().sum(-1)


NORMAL_GAMMA = NormalGammaFamily()
