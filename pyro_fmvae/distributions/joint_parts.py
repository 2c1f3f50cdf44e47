"""Joint posteriors of a location and its precision (or variance), which a program samples at two sites.

The joint posterior is Normal-Gamma, or Normal-Wishart for vectors, or multivariate Normal-Gamma for vectors
with one precision: the precision has its marginal distribution, and the location is normal given it. Bernardo
and Smith (1994), Bayesian Theory, Section 5.2, and Bishop (2006), Pattern Recognition and Machine Learning,
Section 2.3.6.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import PowerTransform, Transform

from pyro_fmvae.distributions import packed_matrices as packed
from pyro_fmvae.distributions.matrix_normal_wishart import MATRIX_NORMAL_WISHART
from pyro_fmvae.distributions.multivariate_normal import MatrixNormal
from pyro_fmvae.distributions.multivariate_normal_gamma import (
    MULTIVARIATE_NORMAL_GAMMA,
    MultivariateNormalGammaFamily,
)
from pyro_fmvae.distributions.natural_distribution import Domain, NaturalDistribution, check_natural
from pyro_fmvae.distributions.normal_gamma import NormalGammaFamily
from pyro_fmvae.distributions.normal_wishart import NormalWishartFamily
from pyro_fmvae.distributions.restated import restate, restated_log_prob
from pyro_fmvae.distributions.wishart import RateWishart


class JointPart(NaturalDistribution):
    """The posterior of one of two sites that have a joint one.

    The natural parameters are those of both together, and so is the ``family``: its statistics are
    (log det Λ, μᵀΛμ, Λ, Λμ), packed as in :class:`NormalWishartFamily`. Numbers are vectors of one dimension.

    Args:
        natural: λ, float64 [..., P].
        dtype, validate_args: see :class:`NaturalDistribution`.
        given: the value of the other site, for the one that depends on it.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        any_class: Any = cls
        any_class.arg_constraints = {"natural": Domain(cls.family)}

    def __init__(
        self,
        natural: Tensor,
        dtype: torch.dtype | None = None,
        validate_args: bool | None = None,
        given: Tensor | None = None,
    ) -> None:
        check_natural(natural)
        self.natural, self.given = natural, given
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        self._init_shapes(self._event(natural.shape[-1]), validate_args)

    def _event(self, size: int) -> torch.Size:
        """Shape of a value of the site, for natural parameters of ``size`` numbers."""
        support: Any = self.support
        return torch.Size([packed.dim_of(size)] * support.event_dim)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Expand to ``batch_shape``; the natural parameters stay the tensor that was given."""
        new = super().expand(batch_shape, _instance)
        new.given = self.given
        return new

    def with_natural(self, natural: Tensor) -> Any:
        """The posterior with other natural parameters, [..., P]."""
        return type(self)(natural, self.dtype, False, self.given)


class _Numbers(NormalGammaFamily):
    def log_base_measure(self, stats: Tensor) -> Tensor:
        return torch.full_like(stats[..., 0], -0.5 * math.log(2 * math.pi))


class _NumbersByVariance(_Numbers):
    def log_base_measure(self, stats: Tensor) -> Tensor:
        return super().log_base_measure(stats) + 2 * stats[..., 0]  # the Jacobian of v = 1/α


class _Vectors(NormalWishartFamily):
    def log_base_measure(self, stats: Tensor) -> Tensor:
        dim = packed.dim_of(stats.shape[-1])
        constant = 0.5 * dim * math.log(2 * math.pi) + 0.25 * dim * (dim - 1) * math.log(math.pi)
        return torch.full_like(stats[..., 0], -constant)


class JointGamma(JointPart, dist.Gamma):
    """The precision of a number, with a Gamma distribution."""

    family = _Numbers()

    @property
    def concentration(self) -> Tensor:
        """The shape a."""
        return self.standard[2].to(self.dtype)

    @property
    def rate(self) -> Tensor:
        """The rate b."""
        return self.standard[3].squeeze(-1).to(self.dtype)


class JointInverseGamma(JointPart, dist.InverseGamma):
    """The variance of a number, with an inverse Gamma distribution."""

    family = _NumbersByVariance()
    concentration, rate = JointGamma.concentration, JointGamma.rate
    transforms: ClassVar[list[Transform]] = [PowerTransform(torch.tensor(-1.0))]

    @property
    def base_dist(self) -> Any:
        """The Gamma over the precision."""
        return dist.Gamma(self.concentration, self.rate, validate_args=False)


class JointWishart(JointPart, RateWishart):  # type: ignore[misc, override]
    """The precision matrix of a vector, with a Wishart distribution."""

    family = _Vectors()

    @property
    def concentration(self) -> Tensor:  # type: ignore[override]
        """See :class:`RateWishart`."""
        return self.standard[2].to(self.dtype)

    @property
    def rate_tril(self) -> Tensor:  # type: ignore[override]
        """See :class:`RateWishart`."""
        return self.standard[3].to(self.dtype)


class JointNormal(JointPart, dist.Normal):
    """A location, normal given its precision α: N(m, 1/(sα))."""

    family = _Numbers()

    @property
    def loc(self) -> Tensor:
        """The mean m."""
        return self.standard[0].squeeze(-1).to(self.dtype)

    @property
    def scale(self) -> Tensor:
        """The standard deviation, given the other site's value."""
        return (self.standard[1].to(self.dtype) * self._precision).rsqrt()

    @property
    def _precision(self) -> Tensor:
        assert self.given is not None
        return self.given


class JointNormalByVariance(JointNormal):
    """A location, normal given its variance v: N(m, v/s)."""

    family = _NumbersByVariance()

    @property
    def _precision(self) -> Tensor:
        return super()._precision.reciprocal()


class JointMultivariateNormal(JointPart, dist.MultivariateNormal):
    """A location vector, normal given its precision matrix Λ: N(m, (sΛ)⁻¹)."""

    family = _Vectors()

    @property
    def loc(self) -> Tensor:
        """The mean m."""
        return self.standard[0].to(self.dtype)

    @property
    def scale_tril(self) -> Tensor:
        """Cholesky factor of the covariance matrix, given the other site's value."""
        assert self.given is not None
        scale = self.standard[1].to(self.dtype).rsqrt()[..., None, None]
        return scale * torch.linalg.cholesky(torch.linalg.inv(self.given))

    _unbroadcasted_scale_tril = scale_tril


@restate(JointMultivariateNormal)
def _log_prob_given_precision(part: JointMultivariateNormal, value: Tensor) -> Tensor:
    """In the elements of the precision matrix, which may be a value that is not there."""
    assert part.given is not None
    precision = part.standard[1].to(part.dtype)[..., None, None] * part.given
    return restated_log_prob(
        dist.MultivariateNormal(part.loc, precision_matrix=precision, validate_args=False), value
    )


class _WeightsByVariance(MultivariateNormalGammaFamily):
    def log_base_measure(self, stats: Tensor) -> Tensor:
        return super().log_base_measure(stats) + 2 * stats[..., 0]  # the Jacobian of v = 1/τ


class JointNoise(JointPart, dist.Gamma):
    """The precision of a regression's noise, with a Gamma distribution."""

    family = MULTIVARIATE_NORMAL_GAMMA

    @property
    def concentration(self) -> Tensor:
        """The shape a."""
        return self.standard[2].to(self.dtype)

    @property
    def rate(self) -> Tensor:
        """The rate b."""
        return self.standard[3].to(self.dtype)


class JointNoiseVariance(JointPart, dist.InverseGamma):
    """The variance of a regression's noise, with an inverse Gamma distribution."""

    family = _WeightsByVariance()
    concentration, rate = JointNoise.concentration, JointNoise.rate
    transforms, base_dist = JointInverseGamma.transforms, JointInverseGamma.base_dist


class JointWeights(JointPart, dist.MultivariateNormal):
    """The weights of a regression, normal given the precision τ of its noise: N(m, LLᵀ/τ)."""

    family = MULTIVARIATE_NORMAL_GAMMA
    loc = JointMultivariateNormal.loc

    @property
    def scale_tril(self) -> Tensor:
        """Cholesky factor of the covariance matrix, given the other site's value."""
        return self.standard[1].to(self.dtype) * self.precision.rsqrt()[..., None, None]

    _unbroadcasted_scale_tril = scale_tril

    @property
    def precision(self) -> Tensor:
        """The precision τ, [...]."""
        assert self.given is not None
        return self.given


class JointWeightsByVariance(JointWeights):
    """The weights of a regression, normal given the variance v of its noise: N(m, v LLᵀ)."""

    family = _WeightsByVariance()

    @property
    def precision(self) -> Tensor:
        """The precision 1/v, [...]."""
        return super().precision.reciprocal()


@restate(JointWeights)
def _log_prob_given_noise(part: JointWeights, value: Tensor) -> Tensor:
    """In the precision of the noise, which may be a value that is not there."""
    matrix = part.precision[..., None, None] * torch.cholesky_inverse(part.standard[1]).to(part.dtype)
    return restated_log_prob(
        dist.MultivariateNormal(part.loc, precision_matrix=matrix, validate_args=False), value
    )


# The joint posterior of a matrix of weights and the precision matrix of its rows, at two sites of a program:
# matrix-Normal-Wishart.


class JointMatrix(JointPart, MatrixNormal):  # type: ignore[misc, override]
    """The weights of D numbers [K, D], matrix-normal given the precision matrix Λ of the noise."""

    family = MATRIX_NORMAL_WISHART

    def _event(self, size: int) -> torch.Size:
        return torch.Size(packed.rows_and_columns(size))

    @property
    def loc(self) -> Tensor:  # type: ignore[override]
        """The mean M."""
        return self.standard[0].to(self.dtype)

    @property
    def scale_tril(self) -> Tensor:  # type: ignore[override]
        """L: the covariance of rows is LLᵀ."""
        return self.standard[1].to(self.dtype)

    @property
    def precision_matrix(self) -> Tensor:  # type: ignore[override]
        """The value of the other site."""
        assert self.given is not None
        return self.given


class JointMatrixNoise(JointPart, RateWishart):  # type: ignore[misc, override]
    """The precision matrix of the noise of D numbers, with a Wishart distribution."""

    family = MATRIX_NORMAL_WISHART

    def _event(self, size: int) -> torch.Size:
        _, dim = packed.rows_and_columns(size)
        return torch.Size((dim, dim))

    @property
    def concentration(self) -> Tensor:  # type: ignore[override]
        """See :class:`RateWishart`."""
        return self.standard[2].to(self.dtype)

    @property
    def rate_tril(self) -> Tensor:  # type: ignore[override]
        """See :class:`RateWishart`."""
        return self.standard[3].to(self.dtype)
