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
NEGLIGIBLE: Final = 1e-20
"""Share of the largest weight from which down a row adds nothing to a component but rounding."""


class MarginalComponent(FullComponent):
    """A :class:`FullComponent` whose rows may have missing numbers, NaN, which are marginalised.

    E[log p] is the bound of :func:`marginal_table`, of which the posterior of (μ, Λ) is conjugate.
    """

    support = RealOrMissing()  # type: ignore[assignment]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of x [..., D], by the covariance of the columns that are not missing."""
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
    """Missing numbers given the others: of pairs of a row and a Gaussian, r in all, whose rows miss m each.

    Rows in which the same columns are missing share what does not depend on the other numbers: there are u
    different pairs of columns and a Gaussian.
    """

    component: Tensor
    """Component of each pair, int64 [r]."""
    row: Tensor
    """Row of each pair, int64 [r]."""
    places: Tensor
    """Columns that are missing, int64 [r, m]."""
    gap: Tensor
    """Rows less their means, 0 where missing, [r, D]."""
    own: Tensor
    """Λ_mo (x_o - μ_o), [r, m]."""
    distance: Tensor
    """(x_o - μ_o)ᵀ Σ_oo⁻¹ (x_o - μ_o), [r]."""
    log_determinant: Tensor
    """Log det Λ_mm, [r]."""
    factor: Tensor
    """Lower Cholesky factors of Λ_mm, [u, m, m]."""
    kind: Tensor
    """Which of these each pair has, int64 [r]."""

    def moved(self, inverse: Tensor) -> Tensor:
        """Rows less their means with E[x_m | x_o] in place of what is missing, [r, D].

        Args:
            inverse: Λ_mm⁻¹, [u, m, m].
        """
        shift = (_taken(inverse, self.kind) @ self.own.unsqueeze(-1)).squeeze(-1)
        return self.gap.scatter_add(-1, self.places, -shift)


def conditionals(
    x: Tensor, loc: Tensor, precision: Tensor, chosen: Tensor | None = None
) -> Iterator[Conditional]:
    """Condition rows that miss some of their numbers, but not all, on what is there.

    Rows that miss as many are treated at once.

    Args:
        x: rows [N, D], NaN where missing.
        loc: μ, [K, D].
        precision: Λ, [K, D, D].
        chosen: pairs of a row and a Gaussian that are asked for, bool [N, K]; None: all.
    """
    count, dim = loc.shape
    gone = x.isnan()
    number = gone.sum(-1)
    for size in number[(number > 0) & (number < dim)].unique().tolist():
        most = max(LARGEST // (count * max(dim, size**2)), 1)
        for rows in (number == size).nonzero().squeeze(-1).split(most):
            kinds, kind = gone[rows].unique(dim=0, return_inverse=True)
            order = kind.argsort(stable=True)
            rows, kind = rows[order], kind[order]
            columns = kinds.nonzero()[:, 1].unflatten(0, (-1, size))
            asked = gone.new_ones(count, len(rows)) if chosen is None else chosen[rows].mT
            component, row = asked.nonzero(as_tuple=True)
            both, which = (len(kinds) * component + kind[row]).unique_consecutive(return_inverse=True)
            first, own = both // len(kinds), columns[both % len(kinds)]
            block = precision[first[:, None, None], own.unsqueeze(-1), own.unsqueeze(-2)]
            factor, places = torch.linalg.cholesky(block), columns[kind[row]]
            gap = torch.where(gone[rows], 0.0, x[rows] - loc.unsqueeze(1))
            pull = (gap @ precision)[component, row]
            gap = gap[component, row]
            own = pull.gather(-1, places)
            white = torch.linalg.solve_triangular(_taken(factor, which), own.unsqueeze(-1), upper=False)
            distance = (gap * pull).sum(-1) - white.squeeze(-1).square().sum(-1)
            determinant = packed.log_determinant(factor)[which]
            yield Conditional(component, rows[row], places, gap, own, distance, determinant, factor, which)


def _taken(matrices: Tensor, which: Tensor) -> Tensor:
    """``matrices[which]`` of sorted numbers, in which each one occurs: not copied if all differ."""
    return matrices if len(which) == len(matrices) else matrices[which]


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
        there = x.shape[-1] - part.places.shape[-1]
        shared = (log_precision - spread)[part.component] - there * math.log(2 * math.pi)
        values = 0.5 * (shared - part.distance - part.log_determinant)
        table = table.index_put((part.row, part.component), values)
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
    loc, precision = _normals(stats)
    for part in conditionals(x, loc, precision, weights > NEGLIGIBLE * weights.max()):
        inverse, own = torch.cholesky_inverse(part.factor), weights[part.row, part.component]
        means, weighted = loc[part.component] + part.moved(inverse), own.new_zeros(loc.shape)
        weighted = weighted.index_add(0, part.component, own.unsqueeze(-1) * means)
        sizes = part.component.bincount(minlength=len(loc)).tolist()
        each = zip(own.split(sizes), means.split(sizes), strict=True)
        squares = torch.stack([(share.unsqueeze(-1) * mean).mT @ mean for share, mean in each])
        of_kind = own.new_zeros(len(inverse)).index_add(0, part.kind, own)
        first = part.component.new_zeros(len(inverse)).index_copy(0, part.kind, part.component)
        columns = part.places.new_zeros(inverse.shape[:2]).index_copy(0, part.kind, part.places)
        across = dim * first.unsqueeze(-1) + columns
        elements = dim * across.unsqueeze(-1) + columns.unsqueeze(-2)
        spread = (of_kind[:, None, None] * inverse).flatten()
        squares = squares.flatten().index_add(0, elements.flatten(), spread).view_as(precision)
        halves = 0.5 * own.new_zeros(len(loc)).index_add(0, part.component, own)
        target = target + packed.join(halves, -halves, -0.5 * packed.pack(squares), weighted)
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
        there, own = x.shape[-1] - part.places.shape[-1], part.component
        log_scale = there * factor.log() + packed.log_determinant(tril)  # less what the missing columns add
        half = a + 0.5 * there
        constant = (
            torch.lgamma(half) - torch.lgamma(a) - 0.5 * there * (2 * math.pi * a).log() - 0.5 * log_scale
        )
        tail = half[own] * (part.distance / (2 * factor * a)[own]).log1p()
        table[part.row, own] = constant[own] - 0.5 * part.log_determinant - tail
    return table


def expected_numbers(x: Tensor, gamma: Tensor, standard: Standard) -> Tensor:
    """Rows with their missing numbers at E[x_m | x_o]: float64 [N, D].

    Args:
        x: rows [N, D].
        gamma: responsibilities given what is there, [N, K].
        standard: of the K posteriors.
    """
    x, gamma, (m, _, _, tril) = x.double(), gamma.double(), standard
    filled = gamma @ m
    for part in conditionals(x, m, torch.cholesky_inverse(tril)):
        moved = part.moved(torch.cholesky_inverse(part.factor))
        filled = filled.index_add(0, part.row, gamma[part.row, part.component].unsqueeze(-1) * moved)
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
