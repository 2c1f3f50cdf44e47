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
from pyro_fmvae.distributions.expected_log_prob import Posteriors, register_expected_log_prob
from pyro_fmvae.distributions.exponential_family import NaturalDistribution, unwrap
from pyro_fmvae.distributions.mixture import FullComponent, RealOrMissing
from pyro_fmvae.distributions.normal_wishart import NORMAL_WISHART

Standard = tuple[Tensor, ...]
LARGEST: Final = 2**22
"""Numbers in a tensor, at most, unless a single row needs more."""
NEGLIGIBLE: Final = 1e-12
"""Share of the largest weight up to which a row adds nothing to a component but rounding."""
UNLIKELY: Final = 1e-3
"""Responsibility up to which a component does not take part in filling a row in."""
FEW: Final = 8
"""Missing numbers of a row up to which all pairs are computed."""
PAIRS: Final = 2
"""Components that may have a row up to which all are computed."""
SCREENED: Final = 2**17
"""Numbers in a tensor, at most, that is searched for pairs that add nothing: it stays in a CPU cache."""
STEPS: Final = 2
"""Steps of conjugate gradients by which they are looked for."""


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
    kind: Tensor
    """Which of the different ones each pair has, sorted, int64 [r]."""
    factor: Tensor
    """Lower Cholesky factors of Λ_mm, [u, m, m]."""
    elements: Tensor
    """Places of Λ_mm in all of Λ, laid out flat, int64 [u, m, m]."""

    def moved(self, inverse: Tensor) -> Tensor:
        """Rows less their means with E[x_m | x_o] in place of what is missing, [r, D].

        Args:
            inverse: Λ_mm⁻¹, [u, m, m].
        """
        shift = (_taken(inverse, self.kind) @ self.own.unsqueeze(-1)).squeeze(-1)
        return self.gap.scatter_add(-1, self.places, -shift)

    def only(self, wanted: Tensor) -> "Conditional":
        """Some of the pairs, by a mask, bool [r]."""
        if wanted.all():
            return self
        kinds, kind = self.kind[wanted].unique_consecutive(return_inverse=True)
        return Conditional(
            self.component[wanted],
            self.row[wanted],
            self.places[wanted],
            self.gap[wanted],
            self.own[wanted],
            self.distance[wanted],
            self.log_determinant[wanted],
            kind,
            self.factor[kinds],
            self.elements[kinds],
        )


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
            elements = _elements(first, own, dim)
            block = precision.flatten().index_select(0, elements.flatten()).view_as(elements)
            factor, places = torch.linalg.cholesky(block), columns[kind[row]]
            gap = torch.where(gone[rows[row]], 0.0, x[rows[row]] - loc[component])
            parts = gap.split(component.bincount(minlength=count).tolist())
            pull = torch.cat([part @ of_one for part, of_one in zip(parts, precision, strict=True)])
            own = pull.gather(-1, places)
            white = torch.linalg.solve_triangular(_taken(factor, which), own.unsqueeze(-1), upper=False)
            distance = (gap * pull).sum(-1) - white.squeeze(-1).square().sum(-1)
            determinant = packed.log_determinant(factor)[which]
            yield Conditional(
                component, rows[row], places, gap, own, distance, determinant, which, factor, elements
            )


def _elements(component: Tensor, columns: Tensor, dim: int) -> Tensor:
    """Places of blocks in matrices [K, D, D] that are laid out flat: int64 [u, m, m].

    Args:
        component: of each block, int64 [u].
        columns: of each block, int64 [u, m].
        dim: D.
    """
    rows = dim * component.unsqueeze(-1) + columns
    return dim * rows.unsqueeze(-1) + columns.unsqueeze(-2)


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
    table = _complete_table(x, stats)
    for part, values in _valued(x, *_normals(stats)):
        table.index_put_((part.row, part.component), values)
    return table


@torch.no_grad()
def marginal_expectation(x: Tensor, stats: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """The table as far as responsibilities depend on it, and sums of statistics of filled rows at these.

    No matrix is factorised for pairs of a row and a component whose responsibility is below
    :data:`NEGLIGIBLE`: the table has an upper bound there.

    Args:
        x, stats: as for :func:`marginal_table`.
        others: what the exponent of the responsibilities has beside the table, [N, K] or [K]. Minus infinity
            leaves a component out.

    Returns:
        float64 [N, K], and what :func:`marginal_update` adds to λ at these responsibilities, of the rows that
        are incomplete, [K, P].
    """
    x = x.double()
    shared, loc, precision = _normals(stats)
    table, others = _complete_table(x, stats), others.expand(len(x), -1)
    missing, filled = x.isnan().sum(-1), _Filled(loc)
    chosen = others > -torch.inf
    several = (missing > FEW) & (missing < x.shape[-1]) & (chosen.sum(-1) > PAIRS)
    many = several.nonzero().squeeze(-1)
    for rows in many.split(max(SCREENED // loc.numel(), 1)) if len(loc) > 1 else ():
        constant = shared - (x.shape[-1] - missing[rows]).unsqueeze(-1) * math.log(2 * math.pi)
        least, greatest = _ranges(x[rows], loc, precision)
        table[rows], lower = 0.5 * (constant - least), 0.5 * (constant - greatest)
        most = (lower + others[rows]).amax(-1, keepdim=True)
        chosen[rows] = table[rows] + others[rows] >= most + math.log(NEGLIGIBLE)
    for part, values in _valued(x, shared, loc, precision, chosen):
        table[part.row, part.component] = values
        shares = (others[part.row] + table[part.row]).softmax(-1)
        weights = shares.gather(-1, part.component.unsqueeze(-1)).squeeze(-1)
        wanted = weights > NEGLIGIBLE
        filled.add(part.only(wanted), weights[wanted])
    return table, filled.sums()


@torch.no_grad()
def filled_statistics(x: Tensor, stats: Tensor, gamma: Tensor) -> Tensor:
    """Expected sufficient statistics of each row, what is missing being filled in by all components together.

    That is the mean of E[x_m | x_o] and of E[x_m x_mᵀ | x_o] over the components by their responsibilities.
    The statistics are those of one q(x_m) of the row, whatever its component is.

    Args:
        x: rows [N, D] that miss some numbers, NaN. Those without any number count nothing.
        stats: E[t] of K posteriors, [K, P].
        gamma: responsibilities, [N, K]. Components of less than a thousandth are left out.

    Returns:
        float64 [N, P].
    """
    x, dim = x.double(), x.shape[-1]
    _, loc, precision = _normals(stats)
    gamma = torch.where(gamma > UNLIKELY, gamma, 0.0).double()
    gamma = gamma / gamma.sum(-1, keepdim=True)
    half = 0.5 * (~x.isnan().all(-1)).double()
    first, second = torch.zeros_like(x), x.new_zeros(len(x), dim * (dim + 1) // 2)
    for part in conditionals(x, loc, precision, gamma > 0):
        inverse, weights = torch.cholesky_inverse(part.factor), gamma[part.row, part.component]
        means = loc[part.component] + part.moved(inverse)
        first.index_add_(0, part.row, weights.unsqueeze(-1) * means)
        for some in torch.arange(len(weights), device=x.device).split(max(LARGEST // dim**2, 1)):
            square = means[some].unsqueeze(-1) * means[some].unsqueeze(-2)
            places = part.elements[part.kind[some]] % dim**2
            square.flatten(1).scatter_add_(1, places.flatten(1), inverse[part.kind[some]].flatten(1))
            second.index_add_(0, part.row[some], weights[some].unsqueeze(-1) * packed.pack(square))
    return packed.join(half, -half, -0.5 * second, first)


def _complete_table(x: Tensor, stats: Tensor) -> Tensor:
    """E[log p] of rows without missing numbers, and 0 for others, [N, K]."""
    complete = ~x.isnan().any(-1)
    rows = x[complete]
    values = NORMAL_WISHART.expected_log_likelihood(rows, torch.zeros_like(rows), stats)
    return values.new_zeros(len(x), len(stats)).index_put((complete,), values)


def _valued(
    x: Tensor, shared: Tensor, loc: Tensor, precision: Tensor, chosen: Tensor | None = None
) -> Iterator[tuple[Conditional, Tensor]]:
    """:func:`conditionals`, and the bound on E[log p] of each pair, [r]."""
    for part in conditionals(x, loc, precision, chosen):
        constant = shared[part.component] - (x.shape[-1] - part.places.shape[-1]) * math.log(2 * math.pi)
        yield part, 0.5 * (constant - part.distance - part.log_determinant)


class _Filled:
    """Sums of the sufficient statistics of rows filled in by E[x_m | x_o] and their covariance.

    Args:
        loc: means of the components, [K, D].
    """

    def __init__(self, loc: Tensor) -> None:
        self.loc, self.half = loc, loc.new_zeros(len(loc))
        self.first, self.second = torch.zeros_like(loc), loc.new_zeros(*loc.shape, loc.shape[-1])

    def add(self, part: Conditional, weights: Tensor) -> None:
        """Add pairs with their weights, [r]."""
        inverse = torch.cholesky_inverse(part.factor)
        means = self.loc[part.component] + part.moved(inverse)
        heavy = weights.unsqueeze(-1) * means
        sizes = part.component.bincount(minlength=len(self.loc)).tolist()
        for square, left, right in zip(self.second, heavy.split(sizes), means.split(sizes), strict=True):
            square.addmm_(left.mT, right)
        of_kind = weights.new_zeros(len(inverse)).index_add(0, part.kind, weights)
        spread = of_kind[:, None, None] * inverse
        self.second.view(-1).index_add_(0, part.elements.flatten(), spread.flatten())
        self.first.index_add_(0, part.component, heavy)
        self.half.index_add_(0, part.component, 0.5 * weights)

    def sums(self) -> Tensor:
        """Sums in the layout of ``NormalWishartFamily``, [K, P]."""
        return packed.join(self.half, -self.half, -0.5 * packed.pack(self.second), self.first)


def _ranges(x: Tensor, loc: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds from below and above of (x_o - μ_o)ᵀ Σ_oo⁻¹ (x_o - μ_o) + log det Λ_mm, [N, K] each.

    With y_o = x_o - μ_o, the distance is at most yᵀ Λ y, and with v = Λ y at missing places 0, it is at least
    (vᵀ y)² / vᵀ Σ v. Both are it where Λ y is 0 at missing places, to which conjugate gradients take y. The
    determinant is at least the product of the pivots of Λ, and at most that of its diagonal.

    Args:
        x: rows [N, D], NaN where missing.
        loc: μ, [K, D].
        precision: Λ, [K, D, D].
    """
    factor, tiny = torch.linalg.cholesky(precision), torch.finfo(precision.dtype).tiny
    pivots, sizes = packed.diagonal(factor).square(), packed.diagonal(precision)
    gone = x.isnan()
    filled = torch.where(gone, 0.0, x - loc.unsqueeze(1))
    pull, step, size = filled @ precision, torch.zeros_like(filled), None
    for _ in range(STEPS):
        left = torch.where(gone, pull, 0.0)
        scaled = left / sizes.unsqueeze(1)
        before, size = size, (left * scaled).sum(-1, keepdim=True)
        step = scaled if before is None else scaled + size / before.clamp(min=tiny) * step
        change = step @ precision
        length = size / (step * change).sum(-1, keepdim=True).clamp(min=tiny)
        filled, pull = filled - length * step, pull - length * change
    own = torch.where(gone, 0.0, pull)
    white = torch.linalg.solve_triangular(factor, own.mT, upper=False)
    near = (own * filled).sum(-1).square() / white.square().sum(-2).clamp(min=tiny)
    far, missing = (filled * pull).sum(-1), gone.double()
    return near.mT + missing @ pivots.log().mT, far.mT + missing @ sizes.log().mT


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
    complete = ~x.isnan().any(-1)
    rows = x[complete]
    target = NORMAL_WISHART.conjugate_update(prior, weights[complete], rows, torch.zeros_like(rows))
    _, loc, precision = _normals(stats)
    filled = _Filled(loc)
    for part in conditionals(x, loc, precision, weights > NEGLIGIBLE * weights.max()):
        filled.add(part, weights[part.row, part.component])
    return target + filled.sums()


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


def _normals(stats: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E[log det Λ] - D/s [K], the mean m [K, D] of μ, and E[Λ] [K, D, D], of E[t]."""
    log_precision, square, lower, scaled_loc = packed.split(stats)
    precision = packed.halved(packed.unpack(lower, scaled_loc.shape[-1]))
    factor = torch.linalg.cholesky(precision)
    loc = torch.cholesky_solve(scaled_loc.unsqueeze(-1), factor).squeeze(-1)
    return log_precision - square + (loc * scaled_loc).sum(-1), loc, precision


@register_expected_log_prob(dist.Delta, MarginalComponent)
def _marginal(q: dist.Delta, p: MarginalComponent, posteriors: Posteriors) -> Tensor:
    posterior: Distribution = unwrap(posteriors["loc_precision"])
    if not isinstance(posterior, NaturalDistribution):
        raise NotImplementedError(f"no closed form of E[log p] under {type(posterior).__name__}")
    return marginal_table(q.v, posterior.expected_stats()).to(torch.promote_types(q.v.dtype, torch.float32))
