"""A Normal-Gamma for each column: the conjugate prior of Gaussian columns of which some numbers are missing.

A missing number (NaN) tells nothing of its column, so the counts s and a differ from column to column, where
:class:`~pyro_fmvae.distributions.normal_gamma.NormalGamma` has one of each for all of them. The two agree
where nothing is missing. The likelihood is that of the numbers that are there, which is right where numbers
are missing at random: Little and Rubin (2019), Statistical analysis with missing data, Section 6.2.
"""

import math
from collections.abc import Sequence

import torch
from pyro.distributions import Independent, StudentT
from torch import Tensor
from torch.distributions import constraints

from pyro_fmvae.distributions.exponential_family import (
    ExponentialFamily,
    NaturalDistribution,
    StandardDistribution,
    register_family,
)
from pyro_fmvae.distributions.mixture import Component, RealOrMissing
from pyro_fmvae.distributions.normal_gamma import NORMAL_GAMMA, NormalGamma


class ColumnNormalGamma(StandardDistribution):
    """Independent Normal-Gammas over the (μ_d, α_d) of D columns: a draw has shape (2, D), row 1 is α.

    Args:
        loc: m, mean of μ, [..., D].
        mean_concentration: s > 0, pseudo-observations behind each ``loc``, [..., D].
        concentration: a > 0, shape of the Gamma over each α, [..., D].
        rate: b > 0, its rate, [..., D].

    Raises:
        ValueError: shapes that don't fit, or (with validation on) a parameter outside its domain.
    """

    arg_constraints: dict[str, constraints.Constraint] = {  # noqa: RUF012
        "loc": constraints.real_vector,
        "mean_concentration": constraints.independent(constraints.positive, 1),
        "concentration": constraints.independent(constraints.positive, 1),
        "rate": constraints.independent(constraints.positive, 1),
    }
    support = NormalGamma.support

    loc: Tensor
    mean_concentration: Tensor
    concentration: Tensor
    rate: Tensor

    def __init__(
        self,
        loc: Tensor,
        mean_concentration: Tensor,
        concentration: Tensor,
        rate: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        if loc.dim() == 0:
            raise ValueError("loc: expected a tensor of shape [..., D]")
        parameters = torch.broadcast_tensors(loc, mean_concentration, concentration, rate)
        self.loc, self.mean_concentration, self.concentration, self.rate = parameters
        shape = self.loc.shape
        super().__init__(shape[:-1], torch.Size((2, shape[-1])), validate_args=validate_args)

    @property
    def columns(self) -> NormalGamma:
        """The Normal-Gamma of each column, batch shape [..., D], event shape (2, 1)."""
        m, s, a, b = self.loc, self.mean_concentration, self.concentration, self.rate
        return NormalGamma(m.unsqueeze(-1), s, a, b.unsqueeze(-1), validate_args=False)

    @property
    def mean(self) -> Tensor:
        """E[(μ, α)] = (m, a/b), [..., 2, D]."""
        return self.columns.mean.squeeze(-1).mT

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Reparameterised draws, [*sample_shape, ..., 2, D]; precisions are at least 1e-30."""
        batch = (*self.batch_shape, self.event_shape[-1])
        return self.columns.expand(batch).rsample(sample_shape).squeeze(-1).mT.to(self.loc)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of (μ, α) [..., 2, D], summed over D."""
        if self._validate_args:
            self._validate_sample(value)
        return self.columns.log_prob(value.mT.unsqueeze(-1)).sum(-1)


class ColumnNormalGammaFamily(ExponentialFamily):
    """Π_d N(μ_d; m_d, 1/(s_d α_d)) Gamma(α_d; a_d, rate b_d).

    Packed as λ [4D], column by column in the layout of :class:`NormalGammaFamily` with D = 1.
    """

    distribution = ColumnNormalGamma
    names = ("loc", "mean_concentration", "concentration", "rate")

    def natural(self, *standard: Tensor) -> Tensor:
        """Pack m, s, a and b, each [..., D], into [..., 4D]."""
        m, s, a, b = standard
        return NORMAL_GAMMA.natural(m.unsqueeze(-1), s, a, b.unsqueeze(-1)).flatten(-2)

    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """(m, s, a, b), each [..., D]."""
        m, s, a, b = NORMAL_GAMMA.unpack(_by_column(natural))
        return m.squeeze(-1), s, a, b.squeeze(-1)

    def event_shape(self, size: int) -> torch.Size:
        """(2, D)."""
        if size < 4 or size % 4:
            raise ValueError(
                f"natural: expected shape [..., 4D] with D >= 1, got {size} in the last dimension"
            )
        return torch.Size((2, size // 4))

    def stats(self, value: Tensor) -> Tensor:
        """The statistics at (μ, α) [..., 2, D]."""
        return NORMAL_GAMMA.stats(value.mT.unsqueeze(-1)).flatten(-2)

    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(λ), the sum of the columns'."""
        return NORMAL_GAMMA.log_normalizer(_by_column(natural)).sum(-1)

    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[t], column by column."""
        return NORMAL_GAMMA.mean_stats(_by_column(natural)).flatten(-2)

    def stats_from_standard(self, *standard: Tensor) -> Tensor:
        """E[t] [..., 4D] at m, s, a and b [..., D], without the digits that λ would lose."""
        m, s, a, b = standard
        return NORMAL_GAMMA.stats_from_standard(m.unsqueeze(-1), s, a, b.unsqueeze(-1)).flatten(-2)

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """KL(λ || λ₀), the sum of the columns'."""
        known = None if stats is None else _by_column(stats)
        return NORMAL_GAMMA.relative_entropy(_by_column(natural), _by_column(prior), known).sum(-1)

    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """Column by column, as the metric has a block for each."""
        apart = [(m.unsqueeze(-1), s, a, b.unsqueeze(-1)) for m, s, a, b in (standard, grads)]
        return NORMAL_GAMMA.inverse_fisher(*apart).flatten(-2)

    def in_domain(self, natural: Tensor) -> Tensor:
        """True where every s, a and b is positive."""
        return NORMAL_GAMMA.in_domain(_by_column(natural)).all(-1)

    def data_stats(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Statistics of :class:`NormalGammaFamily` column by column, 0 where ``mean`` is NaN: [..., 4D]."""
        known = ~mean.isnan()
        stats = NORMAL_GAMMA.data_stats(mean.where(known, 0.0).unsqueeze(-1), variance.unsqueeze(-1))
        return torch.where(known.unsqueeze(-1), stats, 0.0).flatten(-2)

    def expected_log_likelihood(self, mean: Tensor, variance: Tensor, stats: Tensor) -> Tensor:
        """E[log N(z; μ_k, 1/α_k)] of the numbers that are there, in float64 until the end: [..., N, K]."""
        known = (~mean.isnan()).sum(-1, keepdim=True)
        table = super().expected_log_likelihood(mean.double(), variance.double(), stats)
        return (table - 0.5 * math.log(2 * math.pi) * known).to(mean)

    def random_start(self, prior: Tensor, count: float, generator: torch.Generator | None) -> Tensor:
        """``count`` observations of unit variance around a random mean (m0 plus unit noise)."""
        return NORMAL_GAMMA.random_start(_by_column(prior), count, generator).flatten(-2)

    def predictive(self, standard: tuple[Tensor, ...], dtype: torch.dtype) -> Independent:
        """Student-t in every column, as for :class:`NormalGammaFamily`."""
        m, s, a, b = standard
        scale = ((s + 1) / s * b / a).sqrt()
        return Independent(StudentT(*(t.to(dtype) for t in (2 * a, m, scale)), validate_args=False), 1)


def _by_column(packed: Tensor) -> Tensor:
    """λ or statistics [..., 4D] as [..., D, 4], a Normal-Gamma of one dimension for each column."""
    return packed.unflatten(-1, (-1, 4))


COLUMN_NORMAL_GAMMA = ColumnNormalGammaFamily()


@register_family(ColumnNormalGamma)
class NaturalColumnNormalGamma(NaturalDistribution, ColumnNormalGamma):  # type: ignore[misc, override]
    """A posterior in natural parameters λ [..., 4D]: see :class:`NaturalDistribution`."""

    family = COLUMN_NORMAL_GAMMA


class ColumnComponent(Component):
    """A row's own Gaussian component, of which some columns may be missing: x_d | r=k ~ N(μ_kd, 1/α_kd).

    NaN is a missing number. It is marginalised: its factor of the density is 1.

    Args:
        loc_precision: (μ, α) stacked, the very value of a :class:`ColumnNormalGamma` site, [..., K, 2, D].
        assignment: component indices, the very value of an ``Assignment`` site, [...].

    Raises:
        ValueError: shapes that don't fit.
    """

    family = COLUMN_NORMAL_GAMMA  # type: ignore[assignment]
    support = RealOrMissing()  # type: ignore[assignment]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of x [..., D], log N(x; μ_r, 1/α_r), summed over the columns that are not NaN."""
        if self._validate_args:
            self._validate_sample(value)
        loc, precision = self._selected().unbind(-2)
        known = ~value.isnan()
        gap = value.where(known, 0.0) - loc
        terms = 0.5 * (precision.log() - math.log(2 * math.pi) - precision * gap * gap)
        log_prob = torch.where(known, terms, 0.0).sum(-1)
        return log_prob.expand(torch.broadcast_shapes(self.batch_shape, value.shape[:-1]))
