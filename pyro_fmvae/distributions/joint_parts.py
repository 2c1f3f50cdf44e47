"""Joint posteriors of a location and its precision (or variance), which a program samples at two sites.

The joint posterior is Normal-Gamma, or Normal-Wishart for vectors, or multivariate Normal-Gamma for vectors
with one precision: the precision has its marginal distribution, and the location is normal given it. Bernardo
and Smith (1994), Bayesian Theory, Section 5.2, and Bishop (2006), Pattern Recognition and Machine Learning,
Section 2.3.6.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution, PowerTransform, Transform

from pyro_fmvae.distributions import packed_matrices as packed
from pyro_fmvae.distributions.exponential_family import (
    Domain,
    NaturalDistribution,
    check_natural,
    event_dim_of,
)
from pyro_fmvae.distributions.gamma import NaturalGamma
from pyro_fmvae.distributions.inverse_gamma import NaturalInverseGamma
from pyro_fmvae.distributions.matrix_normal_wishart import MATRIX_NORMAL_WISHART, NaturalMatrixNormalWishart
from pyro_fmvae.distributions.multivariate_normal import (
    FEW,
    MULTIVARIATE_NORMAL,
    MatrixNormal,
    NaturalMultivariateNormal,
    sparse_kind,
)
from pyro_fmvae.distributions.multivariate_normal_gamma import (
    MULTIVARIATE_NORMAL_GAMMA,
    MultivariateNormalGammaFamily,
    NaturalMultivariateNormalGamma,
)
from pyro_fmvae.distributions.normal import NaturalNormal
from pyro_fmvae.distributions.normal_gamma import NaturalNormalGamma, NormalGammaFamily
from pyro_fmvae.distributions.normal_wishart import NaturalNormalWishart, NormalWishartFamily
from pyro_fmvae.distributions.restated import restate, restated_log_prob
from pyro_fmvae.distributions.wishart import NaturalWishart, RateWishart, wishart_shapes

MOST_TOGETHER = 256  # numbers in a block that is chosen for the user: its precision matrix is dense


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
    concentration = JointGamma.concentration

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
    concentration = JointGamma.concentration

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
    loc = JointMultivariateNormal.loc

    def _event(self, size: int) -> torch.Size:
        return torch.Size(packed.rows_and_columns(size))

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
    concentration, rate_tril = JointWishart.concentration, JointWishart.rate_tril

    def _event(self, size: int) -> torch.Size:
        _, dim = packed.rows_and_columns(size)
        return torch.Size((dim, dim))


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


def joint_kind_of(kind: type[NaturalDistribution]) -> JointKind:
    """The kind of joint posterior that a class is of."""
    return next(each for each in _KINDS if each.kind is kind)


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


@dataclass(frozen=True)
class NormalBlock:
    """Sites whose values, flattened, are one vector after another in a vector of D numbers.

    Attributes:
        names: of the sites.
        shapes: of their values.
        kind: class of the vector's posterior.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    kind: type[NaturalDistribution] = NaturalMultivariateNormal

    @classmethod
    def of(
        cls, values: Mapping[str, Tensor], pairs: Tensor | None, limit: float = MOST_TOGETHER
    ) -> "NormalBlock | None":
        """The block of sites, those of the fewest numbers first; None if it is too large to be dense.

        Args:
            values: of the sites, by name.
            pairs: of elements that depend on each other, numbered one site after another, int64 [2, ...];
                None for all.
            limit: the numbers of a block with a dense precision matrix, at most.
        """
        names = tuple(sorted(values, key=lambda name: values[name].numel()))
        dense = cls(names, tuple(values[name].shape for name in names))
        sizes = [values[name].numel() for name in names]
        dim = sum(sizes)
        if pairs is not None and dim > FEW and 8 * pairs.shape[1] < dim**2:
            starts = cls(tuple(values), tuple(value.shape for value in values.values())).starts
            places = [
                torch.arange(values[name].numel(), device=pairs.device) + starts[name] for name in names
            ]
            with suppress(ValueError):
                kind = sparse_kind(sizes, torch.cat(places).argsort()[pairs])
                if len(kind.family.rounds) * 8 < dim:  # few numbers a round are no gain
                    return replace(dense, kind=kind)
        return dense if dim <= limit else None

    def described(self) -> list[Any]:
        """All that :meth:`of_description` needs, in lists, words and numbers."""
        family: Any = self.kind.family
        pairs = family.couplings.tolist() if family.is_sparse else None
        return [self.names, [list(shape) for shape in self.shapes], pairs]

    @classmethod
    def of_description(cls, description: Any) -> "NormalBlock":
        """The block of a description."""
        names, shapes, pairs = description
        block = cls(tuple(names), tuple(torch.Size(shape) for shape in shapes))
        sizes = [shape.numel() for shape in block.shapes]
        return block if pairs is None else replace(block, kind=sparse_kind(sizes, torch.tensor(pairs)))

    @cached_property
    def starts(self) -> dict[str, int]:
        """The number of each site's first element."""
        sizes = [shape.numel() for shape in self.shapes]
        return {name: sum(sizes[:number]) for number, name in enumerate(self.names)}

    def shape_of(self, name: str) -> torch.Size:
        """Shape of a site's value."""
        return self.shapes[self.names.index(name)]

    def natural(self, members: Mapping[str, NaturalDistribution]) -> Tensor:
        """λ of independent Normal members, by site."""
        family: Any = self.kind.family
        size = torch.Size([sum(shape.numel() for shape in self.shapes)])
        means, entries = [], members[self.names[0]].natural.new_zeros(family.size(size))
        for name in self.names:
            m, scale = members[name].family.unpack(members[name].natural)
            is_vector = len(members[name].event_shape)
            m, scale = (m, scale @ scale.mT) if is_vector else (m[..., None], scale.square()[..., None, None])
            index = torch.arange(m.numel(), device=m.device).view(-1, m.shape[-1]) + self.starts[name]
            one, other = torch.broadcast_tensors(index.unsqueeze(-1), index.unsqueeze(-2))
            entries[family.locate(("x", "x"), (one, other), size)] = scale.reshape(one.shape)
            means.append(m.reshape(-1))
        return family.of_covariances(torch.cat(means), entries[size[0] :])

    def outer(self, name: str, shape: torch.Size) -> torch.Size:
        """Leading dimensions of a site's value that are not its own, nor 1 for a plate of another site."""
        lead = list(shape[: len(shape) - len(self.shape_of(name))])
        while lead and lead[-1] == 1:
            lead.pop()
        return torch.Size(lead)

    def apart(self, vector: Tensor) -> dict[str, Tensor]:
        """The sites' values [*S, *shape], given vectors [*S, D]."""
        parts = vector.split([shape.numel() for shape in self.shapes], -1)
        found = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.reshape(part.shape[:-1] + shape) for name, part, shape in found}

    def part(
        self, name: str, natural: Tensor, dtype: torch.dtype, given: Mapping[str, Tensor]
    ) -> "BlockNormal":
        """The distribution of a site of the block in a guide.

        Args:
            name: of the site.
            natural: λ of the block, float64 [P].
            dtype: of draws.
            given: values of the sites before it, which a draw or a density depends on.
        """
        first = self.names[: self.names.index(name)]
        before = tuple(given[other] for other in first if other in given)
        return BlockNormal(natural, dtype, self, name, before if len(before) == len(first) else None)

    def marginal(self, name: str, natural: Tensor, dtype: torch.dtype) -> dist.Normal:
        """The Normal distributions of the numbers of a site, each by itself."""
        part = BlockNormal(natural, dtype, self, name)
        return dist.Normal(part.loc, part.scale, validate_args=False)


class BlockNormal(JointPart, dist.Normal):
    """The posterior of a site of a :class:`NormalBlock`, given the values of those before it.

    Its log-density is a sum over the numbers of the value, each given those before it. ``loc`` and ``scale``
    are those of the numbers by themselves.

    Args:
        natural: λ of the block, float64 [P].
        dtype: of draws.
        block, name: the block, and which of its sites this is.
        before: values of the sites before it, with leading dimensions that are not theirs, if any.
    """

    family = MULTIVARIATE_NORMAL

    def __init__(
        self,
        natural: Tensor,
        dtype: torch.dtype,
        block: NormalBlock,
        name: str,
        before: tuple[Tensor, ...] | None = None,
    ) -> None:
        self.natural, self.dtype, self.given = natural, dtype, None
        self.block, self.name, self.before = block, name, before
        any_self: Any = self
        any_self.family = block.kind.family
        self._validate_args = False
        dist.TorchDistribution.__init__(self, block.shape_of(name), torch.Size(), validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Expand to ``batch_shape``; the natural parameters stay the tensor that was given."""
        new = BlockNormal(self.natural, self.dtype, self.block, self.name, self.before)
        dist.TorchDistribution.__init__(new, torch.Size(batch_shape), torch.Size(), validate_args=False)
        return new

    def with_natural(self, natural: Tensor) -> Any:
        """The part of a block with other natural parameters."""
        return BlockNormal(natural, self.dtype, self.block, self.name, self.before)

    def whole(self) -> Any:
        """The distribution of the block's vector."""
        return self.block.kind(self.natural, self.dtype, validate_args=False)

    @cached_property
    def standard(self) -> tuple[Tensor, ...]:
        """The standard parameters of the block's vector, float64."""
        return self.family.standard(self.natural)

    @property
    def _rows(self) -> slice:
        start = self.block.starts[self.name]
        return slice(start, start + self.block.shape_of(self.name).numel())

    @property
    def loc(self) -> Tensor:
        """The mean of each number."""
        return self.standard[0][self._rows].to(self.dtype).view(self.block.shape_of(self.name))

    @property
    def scale(self) -> Tensor:
        """The standard deviation of each number."""
        found = self.family.deviations(self.standard)[self._rows]
        return found.to(self.dtype).view(self.block.shape_of(self.name))

    def _before(self) -> Tensor:
        """The values of the sites before, flattened: [*S, start]."""
        if not self._rows.start:
            return self.standard[0][:0]
        assert self.before is not None
        known = zip(self.before, self.block.names, strict=False)
        values = [value.double().reshape(*self.block.outer(name, value.shape), -1) for value, name in known]
        lead = torch.broadcast_shapes(*(value.shape[:-1] for value in values))
        return torch.cat([value.expand(*lead, -1) for value in values], -1)

    def rsample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Reparameterised draws, [*sample_shape, *batch_shape]."""
        shape = torch.Size(sample_shape) + self.batch_shape
        m, count = self.standard[0], self._rows.stop - self._rows.start
        outer = self.block.outer(self.name, shape)
        noise = torch.randn(*outer, count, dtype=m.dtype, device=m.device)
        drawn: Tensor = self.family.draw(self.standard, self._before(), noise)
        return drawn.to(self.dtype).reshape(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of each number given those before it."""
        flat = value.double().reshape(*self.block.outer(self.name, value.shape), -1)
        noise, deviations = self.family.noise(self.standard, self._before(), flat)
        density = -0.5 * noise.square() - deviations.log() - 0.5 * math.log(2 * math.pi)
        return density.to(self.dtype).reshape(value.shape)

    def entropy(self) -> Tensor:
        """The entropy of each number given those before it."""
        _, deviations = self.family.noise(self.standard, self._before(), self.standard[0][self._rows])
        numbers = deviations.log() + 0.5 * math.log(2 * math.pi * math.e)
        return numbers.to(self.dtype).view(self.block.shape_of(self.name)).expand(self.batch_shape)
