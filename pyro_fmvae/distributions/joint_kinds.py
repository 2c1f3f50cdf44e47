"""The kinds of joint posteriors of a location and its precision, found by the independent ones."""

from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions.gamma import NaturalGamma
from pyro_fmvae.distributions.inverse_gamma import NaturalInverseGamma
from pyro_fmvae.distributions.joint_parts import (
    JointGamma,
    JointInverseGamma,
    JointMatrix,
    JointMatrixNoise,
    JointMultivariateNormal,
    JointNoise,
    JointNoiseVariance,
    JointNormal,
    JointNormalByVariance,
    JointPart,
    JointWeights,
    JointWeightsByVariance,
    JointWishart,
)
from pyro_fmvae.distributions.matrix_normal_wishart import NaturalMatrixNormalWishart
from pyro_fmvae.distributions.multivariate_normal import NaturalMultivariateNormal
from pyro_fmvae.distributions.multivariate_normal_gamma import NaturalMultivariateNormalGamma
from pyro_fmvae.distributions.natural_distribution import NaturalDistribution, event_dim_of
from pyro_fmvae.distributions.normal import NaturalNormal
from pyro_fmvae.distributions.normal_gamma import NaturalNormalGamma
from pyro_fmvae.distributions.normal_wishart import NaturalNormalWishart
from pyro_fmvae.distributions.wishart import NaturalWishart, wishart_shapes


class JointKind(NamedTuple):
    """A kind of joint posterior.

    Args:
        location, precision: classes of the two sites' natural posteriors where these are independent.
        kind: class of the joint natural posteriors.
        parts: classes of the two sites' distributions in a guide where they have a joint posterior.
        exponent: 1 if the second site is the precision, -1 if it is a variance.
    """

    location: type[NaturalDistribution]
    precision: type[NaturalDistribution]
    kind: type[NaturalDistribution]
    parts: tuple[type[JointPart], type[JointPart]]
    exponent: int = 1

    @property
    def is_scaled(self) -> bool:
        """True if the precision is a number that scales the precision matrix of a vector."""
        return self.kind is NaturalMultivariateNormalGamma

    @property
    def is_matrix(self) -> bool:
        """True if the location is a matrix, whose rows have the same precision matrix."""
        return self.kind is NaturalMatrixNormalWishart

    def event(self, shape: torch.Size) -> torch.Size:
        """The last dimensions of a location's value, those of one posterior."""
        dims = 2 if self.is_matrix else event_dim_of(self.location.family)
        return shape[len(shape) - dims :]

    def precision_event(self, event: torch.Size) -> torch.Size:
        """The last dimensions of its precision."""
        return torch.Size(event[-1:] * event_dim_of(self.precision.family))

    def size(self, event: torch.Size) -> int:
        """P, the number of natural parameters of one posterior."""
        if self.is_matrix:
            rows, dim = event
            return self.kind.family.size(torch.Size((rows + dim, dim)))
        return event.numel() * (event.numel() + 3) // 2 + 2

    def together(self, location: Tensor, precision: Tensor) -> Tensor:
        """λ of a joint posterior near independent ones, given their natural parameters.

        The location's mean and the precision's distribution are theirs. The location's variance is theirs at
        the mean precision; for vectors, on the average over directions, and for matrices row by row.
        """
        m, scale = self.location.family.unpack(location)
        a, rate = self.precision.family.unpack(precision)
        if self.kind is NaturalNormalGamma:
            s = rate / (a * scale.square())
            return self.kind.family.natural(m.unsqueeze(-1), s, a, rate.unsqueeze(-1))
        if self.is_scaled:
            return self.kind.family.natural(m, scale * (a / rate).sqrt()[..., None, None], a, rate)
        half_df = wishart_shapes(a, m.shape[-1])[..., -1]
        rates = rate.unsqueeze(-3) if self.is_matrix else rate
        spread = torch.linalg.solve_triangular(scale, rates, upper=False).square().sum((-2, -1))
        if self.is_matrix:
            scales = (half_df.unsqueeze(-1) * m.shape[-1] / spread).sqrt()
            return self.kind.family.natural(m, torch.diag_embed(scales), a, rate)
        return self.kind.family.natural(m, spread / (half_df * m.shape[-1]), a, rate)

    def marginals(self, joint: Any) -> tuple[Distribution, Distribution]:
        """The location by itself, a Student-t distribution, and the precision by itself, a natural one.

        Of a matrix, it is that of each row by itself.
        """
        if self.is_matrix:
            m, tril, a, rate = joint.standard
            precision = self.precision(self.precision.family.natural(a, rate), joint.dtype)
            scales = (tril.norm(dim=-1) * a.unsqueeze(-1).rsqrt())[..., None, None]
            rows = (2 * a.unsqueeze(-1), m, scales * rate.unsqueeze(-3))
            return dist.MultivariateStudentT(*(t.to(joint.dtype) for t in rows)), precision
        if self.is_scaled:
            m, tril, a, rate = joint.standard
            precision = self.precision(self.precision.family.natural(a, rate), joint.dtype)
            tril = tril * (rate / a).sqrt()[..., None, None]
            return dist.MultivariateStudentT(*(t.to(joint.dtype) for t in (2 * a, m, tril))), precision
        m, s, a, rate = joint.standard
        numbers = self.kind is NaturalNormalGamma
        own_rate = rate.squeeze(-1) if numbers else rate
        precision = self.precision(self.precision.family.natural(a, own_rate), joint.dtype)
        m, s, a, rate = (parameter.to(joint.dtype) for parameter in (m, s, a, own_rate))
        if numbers:
            return dist.StudentT(2 * a, m.squeeze(-1), (rate / (a * s)).sqrt()), precision
        scale_tril = rate * (a * s).rsqrt()[..., None, None]
        return dist.MultivariateStudentT(2 * a, m, scale_tril), precision


_NORMAL_GAMMA = JointKind(NaturalNormal, NaturalGamma, NaturalNormalGamma, (JointNormal, JointGamma))
_BY_VARIANCE = JointKind(
    NaturalNormal,
    NaturalInverseGamma,
    NaturalNormalGamma,
    (JointNormalByVariance, JointInverseGamma),
    exponent=-1,
)
_NORMAL_WISHART = JointKind(
    NaturalMultivariateNormal,
    NaturalWishart,
    NaturalNormalWishart,
    (JointMultivariateNormal, JointWishart),
)


_WEIGHTS = JointKind(
    NaturalMultivariateNormal, NaturalGamma, NaturalMultivariateNormalGamma, (JointWeights, JointNoise)
)
_WEIGHTS_BY_VARIANCE = JointKind(
    NaturalMultivariateNormal,
    NaturalInverseGamma,
    NaturalMultivariateNormalGamma,
    (JointWeightsByVariance, JointNoiseVariance),
    exponent=-1,
)
_MATRICES = JointKind(
    NaturalMultivariateNormal, NaturalWishart, NaturalMatrixNormalWishart, (JointMatrix, JointMatrixNoise)
)
_KINDS = (_NORMAL_GAMMA, _BY_VARIANCE, _NORMAL_WISHART, _WEIGHTS, _WEIGHTS_BY_VARIANCE, _MATRICES)


def joint_kind_of(kind: type[NaturalDistribution]) -> JointKind:
    """The kind of joint posterior that a class is of."""
    return next(each for each in _KINDS if each.kind is kind)


def joint_kind(
    location: type[NaturalDistribution], precision: type[NaturalDistribution], events: tuple[int, int]
) -> JointKind | None:
    """The kind of joint posterior of two sites; None if there is none.

    Args:
        location, precision: classes of their independent posteriors.
        events: the numbers of dimensions in an event of theirs.
    """
    are_matrices = events[0] >= events[1] > 1
    kinds = [kind for kind in _KINDS if (kind.location, kind.precision) == (location, precision)]
    return next((kind for kind in kinds if kind.is_matrix == are_matrices), kinds[0] if kinds else None)


def kind_of_part(part: Distribution) -> JointKind | None:
    """The kind of joint posterior that a distribution is a part of; None if it is of none."""
    return next((kind for kind in _KINDS if type(part) in kind.parts), None)
