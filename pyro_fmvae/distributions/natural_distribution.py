"""Members of exponential families in natural parameters, and the registry of families by their priors."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import (
    Distribution,
    constraints,
    register_kl,
)
from torch.distributions.utils import lazy_property
from torch.utils._python_dispatch import _get_current_dispatch_mode

from pyro_fmvae.distributions.exponential_family import ExponentialFamily, scale_gradient, to_float64

# Members of exponential families in standard parameters, where torch has no such distribution.


class StandardDistribution(TorchDistribution):
    """Base of a family's members in standard parameters, which are tensors that ``arg_constraints`` names.

    Each is kept expanded to the batch shape, with a shape of its own behind it. ``register_family`` has torch
    find the KL divergence between two members.
    """

    has_rsample = True

    @property
    def standard(self) -> tuple[Tensor, ...]:
        """The parameters in the order of the arguments, in the dtype in which they are kept."""
        return tuple(getattr(self, name) for name in self.arg_constraints)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Expand every parameter to ``batch_shape``."""
        new: Any = self._get_checked_instance(type(self), _instance)
        for name, parameter in zip(self.arg_constraints, self.standard, strict=True):
            own = parameter.shape[len(self.batch_shape) :]
            setattr(new, name, parameter.expand(*batch_shape, *own))
        TorchDistribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new


N = TypeVar("N", bound="type[NaturalDistribution]")

_NATURAL: dict[type[Distribution], "type[NaturalDistribution]"] = {}


class NaturalDistribution(Distribution):
    """Base of a family's members in natural parameters, which receive natural gradients.

    A subclass also inherits from the family's distribution in standard parameters, whose attributes it has::

        @register_family(Gamma)
        class NaturalGamma(NaturalDistribution, Gamma):
            family = GAMMA

    Args:
        natural: λ, float64 [..., P] in the layout of the family, usually a ``NaturalParameter``.
        dtype: of draws and log-densities; torch's default dtype if None.

    Raises:
        ValueError: λ of another shape or dtype, or (with validation on) outside the family's domain.
    """

    family: ClassVar[ExponentialFamily]
    natural: Tensor
    dtype: torch.dtype
    _known_stats: tuple[Any, Tensor] | None = None

    def __init__(
        self, natural: Tensor, dtype: torch.dtype | None = None, validate_args: bool | None = None
    ) -> None:
        check_natural(natural)
        event = self.family.event_shape(natural.shape[-1] if natural.dim() else 0)
        self.natural = natural
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        self._init_shapes(event, validate_args)

    def _init_shapes(self, event: torch.Size, validate_args: bool | None) -> None:
        """Have shapes set, and λ checked if validation is on.

        Raises:
            OutsideDomainError: λ is outside the family's domain.
        """
        try:
            Distribution.__init__(self, self.natural.shape[:-1], event, validate_args)
        except ValueError:
            raise OutsideDomainError(
                f"natural: expected parameters in the {Domain(self.family)}. They leave it by noisy steps "
                "that are too long: along draws, as under Pyro's own ELBOs, take a smaller rate and more "
                "particles"
            ) from None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_known_stats"}

    @lazy_property
    def standard(self) -> tuple[Tensor, ...]:
        """The standard parameters in float64. Draws and densities need them; closed forms do not."""
        event = self.natural.dim() - 1
        parameters = self.family.standard(self.natural)
        return tuple(t.expand(self.batch_shape + t.shape[event:]) for t in parameters)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Expand to ``batch_shape``; the natural parameters stay the tensor that was given."""
        new: Any = self._get_checked_instance(type(self), _instance)
        new.natural, new.dtype = self.natural, self.dtype
        Distribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def with_natural(self, natural: Tensor) -> Any:
        """A member of this family and dtype with other natural parameters, [..., P]."""
        return type(self)(natural, self.dtype, validate_args=False)

    def with_gradient_scale(self, factor: Tensor | float) -> Any:
        """This distribution, with gradients that reach λ multiplied by ``factor``."""
        return self.with_natural(scale_gradient(self.natural, factor)).expand(self.batch_shape)

    def expected_stats(self) -> Tensor:
        """E[t] in float64, with natural gradients: [..., P] with the batch shape of ``natural``.

        Computed once for as long as λ keeps its values, and anew while operations are being recorded.
        """
        natural = self.natural
        if torch.is_inference_mode_enabled() or natural.is_inference():
            return self.family.expected_stats(natural)
        graded = torch.is_grad_enabled() and natural.requires_grad
        key = (natural._version, graded, _get_current_dispatch_mode())
        if self._known_stats is None or self._known_stats[0] != key:
            self._known_stats = (key, self.family.expected_stats(natural))
        return self._known_stats[1]


class Domain(constraints.Constraint):
    """Natural parameters of the proper members of a family, [..., P]."""

    event_dim = 1

    def __init__(self, family: ExponentialFamily) -> None:
        self.family = family

    def check(self, value: Tensor) -> Tensor:
        return self.family.in_domain(value)

    def __repr__(self) -> str:
        return f"domain of {type(self.family).__name__} ({self.family.domain})"


class OutsideDomainError(ValueError):
    """Natural parameters of no member of their family.

    The message has one line: Pyro adds the shapes of a trace to others, which say nothing here.
    """

    def __str__(self) -> str:
        return super().__str__().partition("\n")[0]


def register_family(prior: type[Distribution]) -> Callable[[N], N]:
    """Register a family, by decorating its class in natural parameters.

    Inference then finds the conjugate posterior of such priors, and torch the KL divergence between the two,
    and between two members that are a :class:`StandardDistribution`.

    Args:
        prior: class of the priors, in standard parameters. Its subclasses are priors of the family too.
    """

    def decorate(kind: N) -> N:
        any_kind: Any = kind
        any_kind.arg_constraints = {"natural": Domain(kind.family)}
        for number, name in enumerate(kind.family.names):
            words = f"The standard parameter {name.replace('_', ' ')}, in ``dtype``."
            setattr(kind, name, property(partial(_parameter, number), doc=words))
        _NATURAL[prior] = kind
        register_kl(kind, prior)(_kl)
        if issubclass(own := kind.family.distribution, StandardDistribution):
            register_kl(own, prior)(partial(_kl_standard, kind.family))
        return kind

    return decorate


def _parameter(number: int, member: NaturalDistribution) -> Tensor:
    return member.standard[number].to(member.dtype)


def natural_class(prior: Distribution) -> "type[NaturalDistribution] | None":
    """The class of the conjugate posteriors of a prior, the most specific one registered; None if none is."""
    return next((_NATURAL[base] for base in type(prior).__mro__ if base in _NATURAL), None)


def natural_classes_on(
    support: constraints.Constraint, event: torch.Size
) -> "list[type[NaturalDistribution]]":
    """The classes of families that take part in plain programs, with members on a support.

    Args:
        support: of a site's distribution; ``independent`` around it does not matter, nor whether 0 is in it.
        event: shape of a site's values.

    Returns:
        Those with the fewest dimensions in an event first.
    """
    wanted = _elementary(support)
    found = [
        kind
        for kind in dict.fromkeys(_NATURAL.values())
        if kind.family.monomials
        and event_dim_of(kind.family) <= len(event)
        and _elementary(kind.family.distribution.support) == wanted
    ]
    return sorted(found, key=lambda kind: event_dim_of(kind.family))


def event_dim_of(family: ExponentialFamily) -> int:
    """The number of dimensions of a family's values."""
    return int(family.distribution.support.event_dim)


def _elementary(support: constraints.Constraint) -> tuple[Any, ...]:
    """Kind and bounds of a support, by which supports are equal up to a set of measure 0."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is constraints.real_vector:
        support = constraints.real
    bounds = [getattr(support, name, None) for name in ("lower_bound", "upper_bound")]
    if bounds == [None, None]:
        return (type(support),)
    return tuple(
        bound if bound is None else tuple(torch.as_tensor(bound).unique().tolist()) for bound in bounds
    )


def natural_class_named(name: str) -> "type[NaturalDistribution]":
    """The class of natural distributions of a name.

    Raises:
        ValueError: there is none.
    """
    classes: list[type[NaturalDistribution]] = [NaturalDistribution]
    for each in classes:
        if each.__name__ == name:
            return each
        classes += each.__subclasses__()
    raise ValueError(f"no family of posteriors is called {name!r}; import the module that has it")


def known_priors() -> list[str]:
    """Names of the classes of priors whose families are registered."""
    return [prior.__name__ for prior in _NATURAL]


def natural_of(member: Distribution, family: ExponentialFamily) -> Tensor:
    """λ of a family's member in either form, float64, broadcastable to its batch shape and P.

    Both forms are packed from standard parameters, so that gradients follow the rule for these.
    """
    if isinstance(member, NaturalDistribution):
        return family.natural(*member.standard)
    return family.pack(member)


def stats_under(posterior: Distribution, family: ExponentialFamily) -> Tensor:
    """E[t] in float64 under a family's member in either form, or t at a point mass: [..., P].

    Raises:
        NotImplementedError: another distribution.
    """
    if isinstance(posterior, dist.Delta):
        return family.stats(to_float64(posterior.v))
    kind = natural_class(posterior)
    if kind is None or kind.family is not family:
        raise NotImplementedError(f"no closed form of E[log p] under {type(posterior).__name__}")
    if isinstance(posterior, NaturalDistribution):
        return posterior.expected_stats()
    return family.stats_from_standard(*family.standard_of(posterior))


def _kl(q: Any, p: Distribution) -> Tensor:
    prior = natural_of(p, q.family).to(q.natural)
    kl = q.family.kl(q.natural, prior, q.expected_stats())
    return kl.expand(broadcast_shape(q.batch_shape, p.batch_shape))


def _kl_standard(family: ExponentialFamily, q: StandardDistribution, p: Distribution) -> Tensor:
    standard = family.standard_of(q)
    stats = family.stats_from_standard(*standard)
    return family.relative_entropy(family.natural(*standard), family.pack(p), stats).to(q.standard[0])


def check_natural(natural: Tensor) -> None:
    """Refuse natural parameters that lost their digits, say by ``module.float()``.

    Raises:
        ValueError: ``natural`` is not a tensor in float64.
    """
    dtype = getattr(natural, "dtype", type(natural).__name__)
    if dtype != torch.float64:
        raise ValueError(f"natural: expected float64 (a NaturalParameter is), got {dtype}")


class NaturalParameter(torch.nn.Parameter):
    """Natural parameters, recognised by type: also after a copy or loading of a state.

    Args:
        data: natural parameters [..., P] of some :class:`ExponentialFamily`, copied and converted to float64
            (why: see :class:`NormalGammaFamily`).
        requires_grad: as in :class:`torch.nn.Parameter`.

    Attributes:
        moves: where steps of rate 1 move it: 1 there and 0 elsewhere, [C + 1, ..., 1], a row for each of C
            turns and one of 1 for all at once. None if it moves in each. An ELBO leaves it here, for
            :class:`~pyro_fmvae.infer.natural_gradient.NaturalGradient`; copies have none.
    """

    moves: Tensor | None = None

    def __new__(cls, data: Tensor, requires_grad: bool = True) -> "NaturalParameter":
        with torch.inference_mode(False):  # a tensor of inference mode could never be trained
            return super().__new__(cls, data.detach().to(torch.float64, copy=True), requires_grad)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copy as this class; torch's own rule would give a plain ``Parameter``."""
        return NaturalParameter, (self.data, self.requires_grad)


def natural_prior(prior: Distribution) -> NaturalDistribution:
    """A prior in natural parameters: of the class that its conjugate posteriors have, λ detached.

    Raises:
        NotImplementedError: no conjugate posterior is known for the class.
    """
    prior = unwrap(prior)
    kind = natural_class(prior)
    if kind is None:
        raise NotImplementedError(
            f"no conjugate posterior is known for {type(prior).__name__}; take a prior of a family that has "
            f"one ({', '.join(sorted(known_priors()))}), or add the family with register_family"
        )
    natural = natural_of(prior, kind.family).detach()
    return kind(natural.expand(*prior.batch_shape, natural.shape[-1]))


def unwrap(fn: Distribution) -> Distribution:
    """The distribution inside any ``Independent`` wrappers."""
    while isinstance(fn, torch.distributions.Independent):
        fn = fn.base_dist
    return fn
