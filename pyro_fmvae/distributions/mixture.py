"""Assignments to mixture components and their children, as distributions that remember their parents.

``TraceConjugate_ELBO`` recognises a conjugate program by the classes at its sites and by the *identity* of
the tensors that they were built from, so each class here keeps those very tensors through ``expand``, and
lists them in ``parents``.

Shapes: a component index k is the last batch dimension of ``loc_precision``; its other batch dimensions
(factors, particles) line up with those of the assignment left of the data. With factors at -2 and data at
-1,

    weights [I, 1, K]    loc_precision [I, K, 2, D]    assignment [I, B]    z [I, B, D]
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import Categorical, MultivariateNormal, Normal, TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from pyro_fmvae.distributions.exponential_family import ExponentialFamily
from pyro_fmvae.distributions.normal_gamma import NORMAL_GAMMA
from pyro_fmvae.distributions.normal_wishart import NORMAL_WISHART
from pyro_fmvae.distributions.packed_matrices import diagonal


class Assignment(TorchDistribution):
    """Which component each point belongs to: r ~ Categorical(π). Paquet et al. (2018), equation 1.

    Args:
        weights: π, on the simplex, [..., K], the very value of a Dirichlet site.

    ``pyro.distributions.Categorical`` renormalises and so loses the tensor that it was given. This class
    keeps it, and reads its numbers only to draw or to score.
    """

    parents = ("weights",)
    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    has_enumerate_support = True

    weights: Tensor

    def __init__(self, weights: Tensor, validate_args: bool | None = None) -> None:
        if weights.dim() == 0:
            raise ValueError("weights: expected shape [..., K], as a Dirichlet's draws have, got a scalar")
        self.weights = weights
        super().__init__(weights.shape[:-1], torch.Size(), validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:
        """{0, ..., K-1}."""
        return constraints.integer_interval(0, self.num_components - 1)

    @property
    def num_components(self) -> int:
        """K."""
        return self.weights.shape[-1]

    @lazy_property
    def categorical(self) -> Categorical:
        """This distribution as one of Pyro's own class."""
        weights = self.weights.expand(*self.batch_shape, self.num_components)
        return Categorical(probs=weights, validate_args=self._validate_args)

    @property
    def probs(self) -> Tensor:
        """Normalised probabilities, expanded to the batch shape, [..., K]."""
        return self.categorical.probs

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "Assignment":
        """Expand to ``batch_shape``; ``weights`` stays the tensor that was given."""
        return _expand_keeping(self, batch_shape, "weights")

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Component indices, int64 [*sample_shape, ...]."""
        return self.categorical.sample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of indices [...], log π_r."""
        return self.categorical.log_prob(value)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All indices, [K, ...], or [K, 1, ..., 1] if not ``expand``."""
        indices = torch.arange(self.num_components, device=self.weights.device)
        indices = indices.view(-1, *[1] * len(self.batch_shape))
        return indices.expand(-1, *self.batch_shape) if expand else indices


class Label(TorchDistribution):
    """A label of an assignment: certain where it is known, and without information where it is -1.

    As an observed child of the assignment (``pyro.sample("label", Label(assignment), obs=labels)``) it
    clamps the assignments of the labelled points: log-probability 0 if the label equals the assignment or is
    -1, else -inf. With ``values``, several components may stand for one value, and a label clamps to all of
    them.

    Args:
        assignment: component indices, the very value of an :class:`Assignment` site, [...].
        values: the value >= 0 that each component stands for, integers [K]; None: its own index.

    Raises:
        ValueError: ``values`` of another kind.
    """

    parents = ("assignment",)
    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    support = constraints.integer_interval(-1, torch.iinfo(torch.int64).max)

    assignment: Tensor
    values: Tensor | None

    def __init__(
        self, assignment: Tensor, values: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        if values is not None and (values.dim() != 1 or values.dtype != torch.int64):
            raise ValueError(
                f"values: expected an integer >= 0 for each component, int64 [K], got {values.dtype} "
                f"{list(values.shape)}"
            )
        self.assignment, self.values = assignment, values
        super().__init__(assignment.shape, torch.Size(), validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "Label":
        """Expand to ``batch_shape``; ``assignment`` stays the tensor that was given."""
        return _expand_keeping(self, batch_shape, "assignment", "values")

    def log_prob(self, value: Tensor) -> Tensor:
        """0 where the label is the assignment's value or unknown (-1), -inf elsewhere."""
        if self._validate_args:
            self._validate_sample(value)
        own = self._own_value()
        impossible = ((value >= 0) & (value != own)).expand(_joint_shape(self, value.shape))
        return torch.zeros((), device=value.device).masked_fill(impossible, -torch.inf)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """The assignment's value: labels drawn from the model are always known."""
        return self._own_value().expand(self._extended_shape(sample_shape))

    def _own_value(self) -> Tensor:
        return self.assignment if self.values is None else self.values[self.assignment]


class MixtureComponent(TorchDistribution):
    """Base of a point's distribution given its own component: x | r=k ~ p(x | θ_k), θ from a conjugate prior.

    A subclass names θ and makes p; ``TraceConjugate_ELBO`` then integrates over θ. Exponential waiting
    times, for instance, where ``GAMMA`` is the family of their rate::

        class Waiting(MixtureComponent):
            parents, family = ("rate", "assignment"), GAMMA
            support, has_rsample = constraints.positive, True

            def given(self, rate):
                return Exponential(rate)

    Args:
        parameter: θ of all components, the very value of a conjugate site, [..., K, *event shape of θ].
        assignment: component indices, the very value of an :class:`Assignment` site, [...].
        event_shape: of x.

    Attributes:
        parents: the name of θ as an argument and attribute, then ``"assignment"``.
        family: the conjugate family of θ.
        parameter_dim: number of dimensions in the event shape of θ.

    Raises:
        ValueError: shapes that don't fit.
    """

    parents: tuple[str, str]
    family: ExponentialFamily
    parameter_dim = 0
    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012

    assignment: Tensor

    def __init__(
        self,
        parameter: Tensor,
        assignment: Tensor,
        event_shape: torch.Size = torch.Size(),  # noqa: B008
        validate_args: bool | None = None,
    ) -> None:
        name, _ = self.parents
        if parameter.dim() <= self.parameter_dim:
            raise ValueError(f"{name}: expected components in a batch dimension, got {list(parameter.shape)}")
        setattr(self, name, parameter)
        self.assignment = assignment
        leading = self._leading
        try:
            batch = broadcast_shape((*leading, 1) if leading else (), assignment.shape)
        except ValueError:
            raise ValueError(
                f"assignment: expected a shape [..., B] that fits {list(leading)}, left of the components in "
                f"{name}, got {list(assignment.shape)}"
            ) from None
        super().__init__(batch, event_shape, validate_args=validate_args)

    def given(self, parameter: Tensor) -> TorchDistribution:
        """p(x | θ) of points whose own θ is given, [..., *event shape of θ]."""
        raise NotImplementedError

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Expand to ``batch_shape``; both parents stay the tensors that were given."""
        return _expand_keeping(self, batch_shape, *self.parents)

    @property
    def _leading(self) -> torch.Size:
        """Batch dimensions of θ left of its components."""
        shape: torch.Size = getattr(self, self.parents[0]).shape
        return shape[: len(shape) - 1 - self.parameter_dim]

    def _selected(self) -> Tensor:
        """θ of each point's own component (assignments may be enumerated)."""
        leading = self._leading
        index = tuple(
            torch.arange(size, device=self.assignment.device).view(-1, *(1,) * (len(leading) - i))
            for i, size in enumerate(leading)
        )
        return getattr(self, self.parents[0])[(*index, self.assignment)]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log p(x | θ_r)."""
        if self._validate_args:
            self._validate_sample(value)
        log_prob = self.given(self._selected()).log_prob(value)
        return log_prob.expand(_joint_shape(self, value.shape[: value.dim() - self.event_dim]))

    def _drawing(self, sample_shape: Sequence[int]) -> TorchDistribution:
        return self.given(self._selected()).expand(torch.Size((*sample_shape, *self.batch_shape)))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws [*sample_shape, ..., *event_shape]."""
        return self._drawing(sample_shape).sample()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Reparameterised draws, where ``has_rsample``."""
        return self._drawing(sample_shape).rsample()


class Component(MixtureComponent):
    """A point's own Gaussian component: z | r=k ~ N(μ_k, 1/α_k). Paquet et al. (2018), equation 1.

    Args:
        loc_precision: (μ, α) stacked, the very value of a Normal-Gamma site, [..., K, 2, D].
        assignment: component indices, the very value of an :class:`Assignment` site, [...].

    Raises:
        ValueError: shapes that don't fit.
    """

    parents, family, parameter_dim = ("loc_precision", "assignment"), NORMAL_GAMMA, 2
    support = constraints.real_vector
    has_rsample = True

    loc_precision: Tensor

    def __init__(self, loc_precision: Tensor, assignment: Tensor, validate_args: bool | None = None) -> None:
        if loc_precision.dim() < 3 or loc_precision.shape[-2] != 2:
            shape = list(loc_precision.shape)
            raise ValueError(f"loc_precision: expected shape [..., K, 2, D], got {shape}")
        super().__init__(loc_precision, assignment, loc_precision.shape[-1:], validate_args)

    def given(self, parameter: Tensor) -> TorchDistribution:
        """N(μ, 1/α) of (μ, α) [..., 2, D]."""
        loc, precision = parameter.unbind(-2)
        return Normal(loc, precision.rsqrt(), validate_args=False).to_event(1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of z [..., D], log N(z; μ_r, 1/α_r), summed over D."""
        if self._validate_args:
            self._validate_sample(value)
        loc, precision = self._selected().unbind(-2)
        gap = value - loc
        # In terms of α, never of α^(-1/2): where α is 1e-30, the gradient of that is beyond float32.
        log_prob = 0.5 * (precision.log() - math.log(2 * math.pi) - precision * gap * gap).sum(-1)
        return log_prob.expand(_joint_shape(self, value.shape[:-1]))


class FullComponent(MixtureComponent):
    """A point's own Gaussian component with a full covariance: z | r=k ~ N(μ_k, Λ_k⁻¹).

    Args:
        loc_precision: μ above the lower triangular T with Λ = TᵀT, the very value of a Normal-Wishart site,
            [..., K, D+1, D].
        assignment: component indices, the very value of an :class:`Assignment` site, [...].

    Raises:
        ValueError: shapes that don't fit.
    """

    parents, family, parameter_dim = ("loc_precision", "assignment"), NORMAL_WISHART, 2
    support = constraints.real_vector
    has_rsample = True

    loc_precision: Tensor

    def __init__(self, loc_precision: Tensor, assignment: Tensor, validate_args: bool | None = None) -> None:
        if loc_precision.dim() < 3 or loc_precision.shape[-2] != loc_precision.shape[-1] + 1:
            shape = list(loc_precision.shape)
            raise ValueError(f"loc_precision: expected shape [..., K, D+1, D], got {shape}")
        super().__init__(loc_precision, assignment, loc_precision.shape[-1:], validate_args)

    def given(self, parameter: Tensor) -> TorchDistribution:
        """N(μ, (TᵀT)⁻¹) of (μ, T) [..., D+1, D]."""
        loc, factor = parameter[..., 0, :], parameter[..., 1:, :]
        identity = torch.eye(loc.shape[-1], dtype=loc.dtype, device=loc.device)
        scale_tril = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
        return MultivariateNormal(loc, scale_tril=scale_tril, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of z [..., D], computed without the inverse of T."""
        if self._validate_args:
            self._validate_sample(value)
        selected = self._selected()
        loc, factor = selected[..., 0, :], selected[..., 1:, :]
        white = (factor @ (value - loc).unsqueeze(-1)).squeeze(-1)
        own = diagonal(factor).log() - 0.5 * math.log(2 * math.pi)
        log_prob = (own - 0.5 * white.square()).sum(-1)
        return log_prob.expand(broadcast_shape(self.batch_shape, value.shape[:-1]))


class RealOrMissing(constraints.Constraint):
    """Numbers, and NaN where none is known."""

    event_dim = 1

    def check(self, value: Any) -> Tensor:
        return ~value.isinf().any(-1)


def _joint_shape(fn: Any, batch_shape: torch.Size) -> torch.Size:
    return broadcast_shape(fn.batch_shape, batch_shape)


def _expand_keeping(fn: Any, batch_shape: Sequence[int], *parents: str) -> Any:
    new = fn._get_checked_instance(type(fn))
    for parent in parents:
        setattr(new, parent, getattr(fn, parent))
    TorchDistribution.__init__(new, torch.Size(batch_shape), fn.event_shape, validate_args=False)
    new._validate_args = fn._validate_args
    return new
