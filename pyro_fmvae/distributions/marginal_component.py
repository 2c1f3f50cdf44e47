"""Gaussian components with full covariances, of rows with missing numbers.

Missing numbers are latent variables of their row, one set for each component: q(x_m | r=k) q(r=k). The best
q(x_m | r=k) is Gaussian, with the mean and the covariance of x_m given x_o under E[Λ_k]. Then λ* is conjugate
again, as the E-step fills what is missing in (Ghahramani and Jordan, 1994), here under q(μ, Λ).
"""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions import packed_matrices as packed
from pyro_fmvae.distributions.expected_log_prob import Posteriors, register_expected_log_prob, unwrap
from pyro_fmvae.distributions.full_component import FullComponent
from pyro_fmvae.distributions.natural_distribution import NaturalDistribution
from pyro_fmvae.distributions.normal_wishart import NORMAL_WISHART
from pyro_fmvae.distributions.superposition import RealOrMissing

Standard = tuple[Tensor, ...]
LARGEST: Final = 2**22
"""Numbers in a tensor, at most, unless a single row needs more."""


class MarginalComponent(FullComponent):
    """A :class:`FullComponent` whose rows may have missing numbers, NaN, which are marginalised.

    E[log p] is the bound of :func:`marginal_table`, of which the posterior of (μ, Λ) is conjugate.
    """

    support = RealOrMissing()  # type: ignore[assignment]

    def log_prob(self, value: Tensor) -> Tensor:
        """Of x [..., D], by the covariance of the columns that are there."""
        if self._validate_args:
            self._validate_sample(value)
        selected = self._selected()
        shape = torch.broadcast_shapes(selected.shape[:-2], value.shape[:-1])
        known = ~value.expand(*shape, -1).isnan()
        normal = self.given(selected)
        gap = torch.where(known, value - normal.loc, 0.0)
        both = known.unsqueeze(-1) & known.unsqueeze(-2)
        identity = torch.eye(known.shape[-1], dtype=gap.dtype, device=gap.device)
        covariance = torch.where(both, normal.covariance_matrix, identity)
        joint = dist.MultivariateNormal(torch.zeros_like(gap), covariance).log_prob(gap)
        surplus = dist.Normal(torch.zeros_like(gap), 1.0).log_prob(torch.zeros_like(gap))
        return joint - torch.where(known, 0.0, surplus).sum(-1)


class Conditional(NamedTuple):
    """Missing numbers given the others, under K Gaussians: of n rows that miss m each, in u patterns."""

    rows: Tensor
    """int64 [n]."""
    missing: Tensor
    """Columns of each row, int64 [n, m]."""
    kind: Tensor
    """Pattern of each row, int64 [n], below u."""
    means: Tensor
    """The rows with E[x_m | x_o] in place of what is missing, [K, n, D]."""
    covariance: Tensor
    """Of x_m given x_o, for each pattern: Λ_mm⁻¹, [K, u, m, m]."""
    distance: Tensor
    """(x_o - μ_o)ᵀ Σ_oo⁻¹ (x_o - μ_o), [K, n]."""
    log_determinant: Tensor
    """Log det Λ_mm, [K, n]."""


def conditionals(x: Tensor, loc: Tensor, precision: Tensor) -> Iterator[Conditional]:
    """Condition rows that miss some of their numbers, but not all, on what is there.

    Rows that miss as many are treated at once. What takes long is a product of all of them with each Λ.

    Args:
        x: rows [N, D], NaN where missing.
        loc: μ, [K, D].
        precision: Λ, [K, D, D].
    """
    count, dim = loc.shape
    gone = x.isnan()
    number = gone.sum(-1)
    for size in number[(number > 0) & (number < dim)].unique().tolist():
        most = max(LARGEST // (count * max(dim, size**2)), 1)
        for rows in (number == size).nonzero().squeeze(-1).split(most):
            kinds, kind = gone[rows].unique(dim=0, return_inverse=True)
            columns = kinds.nonzero()[:, 1].unflatten(0, (-1, size))  # [u, m]
            factor = torch.linalg.cholesky(precision[:, columns.unsqueeze(-1), columns.unsqueeze(-2)])
            covariance, missing = torch.cholesky_inverse(factor), columns[kind]
            gap = torch.where(gone[rows], 0.0, x[rows] - loc.unsqueeze(1))
            pull, places = gap @ precision, missing.expand(count, -1, -1)
            own = pull.gather(-1, places)
            moved = -(covariance[:, kind] @ own.unsqueeze(-1)).squeeze(-1)
            yield Conditional(
                rows,
                missing,
                kind,
                (loc.unsqueeze(1) + gap).scatter_add(-1, places, moved),
                covariance,
                (gap * pull).sum(-1) + (own * moved).sum(-1),
                packed.log_determinant(factor)[:, kind],
            )


def marginal_table(x: Tensor, stats: Tensor) -> Tensor:
    """The bound on E[log p(x_o | μ_k, Λ_k)] of what is not missing: log ∫ exp E[log N(x; μ_k, Λ_k⁻¹)] dx_m.

    Its gradient with respect to E[t] is that of the filled rows, so that natural-gradient steps are exact. A
    row without any number has 0.

    Args:
        x: rows [N, D], NaN where missing.
        stats: E[t] of K posteriors in the layout of ``NormalWishartFamily``, float64 [K, D(D+3)/2 + 2].

    Returns:
        float64 [N, K].
    """
    x = x.double()
    log_precision, square, _, scaled_loc = packed.split(stats)
    loc, precision = _normals(stats)
    spread = square - (loc * scaled_loc).sum(-1)  # D/s
    complete = ~x.isnan().any(-1)
    seen = x.masked_fill(~complete.unsqueeze(-1), 0.0)
    whole = NORMAL_WISHART.expected_log_likelihood(seen, torch.zeros_like(seen), stats)
    table = whole.masked_fill(~complete.unsqueeze(-1), 0.0)
    for part in conditionals(x, loc, precision):
        there = x.shape[-1] - part.missing.shape[-1]
        shared = (log_precision - spread).unsqueeze(-1) - there * math.log(2 * math.pi)
        values = 0.5 * (shared - part.distance - part.log_determinant)
        table = table.index_add(0, part.rows, values.mT)
    return table


def marginal_update(prior: Tensor, weights: Tensor, x: Tensor, stats: Tensor, scale: float = 1.0) -> Tensor:
    """λ*, rows being filled in by E[x_m | x_o] and their covariance under the present posterior.

    Args:
        prior: λ, [K, P].
        weights: responsibilities, [N, K].
        x: rows [N, D], NaN where missing. Those without any number count nothing.
        stats: E[t] under the present posterior, [K, P].
        scale: rows that each row stands for.
    """
    x, weights = x.double(), scale * weights.double()
    dim, complete = x.shape[-1], ~x.isnan().any(-1)
    seen = x[complete]
    target = NORMAL_WISHART.conjugate_update(prior, weights[complete], seen, torch.zeros_like(seen))
    for part in conditionals(x, *_normals(stats)):
        own, size = weights[part.rows].mT, part.missing.shape[-1]
        weighted = own.unsqueeze(-1) * part.means
        squares, halves = weighted.mT @ part.means, 0.5 * own.sum(-1)
        of_kind = own.new_zeros(part.covariance.shape[:2]).index_add(1, part.kind, own)
        first = own.new_zeros(of_kind.shape[1], size, dtype=torch.int64).index_copy(
            0, part.kind, part.missing
        )
        places = (dim * first.unsqueeze(-1) + first.unsqueeze(-2)).flatten().expand(len(own), -1)
        spread = (of_kind[..., None, None] * part.covariance).flatten(1)
        squares = squares.flatten(1).scatter_add(1, places, spread).unflatten(1, (dim, dim))
        target = target + packed.join(halves, -halves, -0.5 * packed.pack(squares), weighted.sum(1))
    return target


def marginal_log_predictive(x: Tensor, standard: Standard) -> Tensor:
    """Log p(x_o) of what is not missing in rows [N, D], parameters integrated out: float64 [N, K].

    A Student-t whose squared scale is that of the columns that are there.
    """
    x, (m, s, a, tril) = x.double(), standard
    complete = ~x.isnan().any(-1)
    student = NORMAL_WISHART.predictive(standard, torch.float64)
    table = student.log_prob(x.nan_to_num(0.0).unsqueeze(-2)).masked_fill(~complete.unsqueeze(-1), 0.0)
    factor = (s + 1) / (s * a)
    for part in conditionals(x, m, torch.cholesky_inverse(tril)):
        there = x.shape[-1] - part.missing.shape[-1]
        log_scale = there * factor.log() + packed.log_determinant(tril)  # less what the missing columns add
        half = a + 0.5 * there
        constant = (
            torch.lgamma(half) - torch.lgamma(a) - 0.5 * there * (2 * math.pi * a).log() - 0.5 * log_scale
        )
        tail = half.unsqueeze(-1) * (part.distance / (2 * factor * a).unsqueeze(-1)).log1p()
        table[part.rows] = (constant.unsqueeze(-1) - 0.5 * part.log_determinant - tail).mT
    return table


def expected_numbers(x: Tensor, gamma: Tensor, standard: Standard) -> Tensor:
    """Rows with their missing numbers at E[x_m | x_o]: float64 [N, D].

    Args:
        x: rows [N, D].
        gamma: responsibilities given what is there, [N, K].
        standard: of the K posteriors.
    """
    x, (m, _, _, tril) = x.double(), standard
    filled = torch.where(x.isnan(), gamma.double() @ m, x)
    for part in conditionals(x, m, torch.cholesky_inverse(tril)):
        filled[part.rows] = torch.einsum("nk,knd->nd", gamma[part.rows].double(), part.means)
    return torch.where(x.isnan(), filled, x)


def _normals(stats: Tensor) -> tuple[Tensor, Tensor]:
    """The mean m [K, D] of μ, and E[Λ] [K, D, D], of E[t]."""
    _, _, lower, scaled_loc = packed.split(stats)
    precision = packed.halved(packed.unpack(lower, scaled_loc.shape[-1]))
    factor = torch.linalg.cholesky(precision)
    return torch.cholesky_solve(scaled_loc.unsqueeze(-1), factor).squeeze(-1), precision


@register_expected_log_prob(dist.Delta, MarginalComponent)
def _marginal(q: dist.Delta, p: MarginalComponent, posteriors: Posteriors) -> Tensor:
    posterior: Distribution = unwrap(posteriors["loc_precision"])
    if not isinstance(posterior, NaturalDistribution):
        raise NotImplementedError(f"no closed form of E[log p] under {type(posterior).__name__}")
    return marginal_table(q.v, posterior.expected_stats()).to(torch.promote_types(q.v.dtype, torch.float32))
