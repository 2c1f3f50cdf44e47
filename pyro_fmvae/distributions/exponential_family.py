"""The interface of an exponential family in minimal natural parameters, and the two backward rules.

A density of the family is ``log p(θ) = λ·t(θ) - A(λ) + log h(θ)``, with natural parameters λ, statistics t
and log-normaliser A. Families pack λ, and E[t] with it, into the last dimension of one float64 tensor, in
the same order.

Plain programs never name a family: ``TraceConjugate_ELBO`` finds one by what a program computes. It asks each
family which products of θ's elements t holds, by :attr:`ExponentialFamily.monomials`, and where, by
:meth:`ExponentialFamily.locate`.

A family is the conjugate prior of some observations x, whose log-density is linear in the same statistics:
``log p(x | θ) = T(x)·t(θ) + log h(x)``. Observing x adds T(x) to λ.

An optimiser over λ is trivial, because the gradients that arrive at λ already are *natural* gradients (the
ordinary gradient times the inverse Fisher matrix). Two rules give them without ever forming that matrix:

* a closed form is a function of the expected statistics, and ``∂f/∂E[t]`` *is* the natural gradient of f
  with respect to λ, because the Fisher matrix is ``∂E[t]/∂λ``. So :meth:`ExponentialFamily.expected_stats`
  passes the gradient through unchanged, and :meth:`ExponentialFamily.kl`, whose natural gradient is ``λ -
  λ₀``, says just that;
* a draw is a function of the standard parameters, so :meth:`ExponentialFamily.standard` applies the inverse
  Fisher matrix to the gradient, in closed form.

See Hoffman et al. (2013), Stochastic variational inference, Section 2, and Paquet et al. (2018), equations 7
and 12-14.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import Distribution, ExpTransform, Transform, constraints, register_kl, transform_to
from torch.distributions.utils import lazy_property
from torch.utils._python_dispatch import _get_current_dispatch_mode

N = TypeVar("N", bound="type[NaturalDistribution]")
_NATURAL: dict[type[Distribution], "type[NaturalDistribution]"] = {}

# Functions with a backward of their own, by which natural gradients reach λ.


def expected_stats(natural: Tensor, family: "ExponentialFamily") -> Tensor:
    """E[t] [..., P] of λ [..., P], whose gradient passes to λ unchanged."""
    return _ExpectedStats.apply(natural, family)


def standard_parameters(natural: Tensor, family: "ExponentialFamily") -> tuple[Tensor, ...]:
    """Standard parameters of λ [..., P], whose gradients reach λ through the inverse Fisher matrix."""
    return _Standard.apply(natural, family)


def relative_entropy(
    natural: Tensor, prior: Tensor, stats: Tensor | None, family: "ExponentialFamily"
) -> Tensor:
    """KL(λ || λ₀) [...], which gives λ the gradient λ - λ₀ and λ₀ the ordinary one; E[t] may be given."""
    return _RelativeEntropy.apply(natural, prior, stats, family)


class _ExpectedStats(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, natural: Tensor, family: "ExponentialFamily") -> Tensor:
        return family.mean_stats(natural)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Standard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, natural: Tensor, family: "ExponentialFamily") -> tuple[Tensor, ...]:
        standard = tuple(parameter.clone() for parameter in family.unpack(natural))
        ctx.save_for_backward(*standard)
        ctx.family = family
        return standard

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.family.inverse_fisher(ctx.saved_tensors, grads), None


class _RelativeEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, natural: Tensor, prior: Tensor, stats: Tensor | None, family: "ExponentialFamily"
    ) -> Tensor:
        stats = family.mean_stats(natural) if stats is None else stats
        ctx.save_for_backward(natural, prior, stats)
        ctx.family = family
        return family.relative_entropy(natural, prior, stats)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        natural, prior, stats = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        to_prior = None
        if ctx.needs_input_grad[1]:
            to_prior = (grad * (ctx.family.mean_stats(prior) - stats)).sum_to_size(prior.shape)
        return (natural - prior).mul_(grad).sum_to_size(natural.shape), to_prior, None, None


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: Tensor | float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


def scale_gradient(tensor: Tensor, factor: Tensor | float) -> Tensor:
    """Multiply the gradient by ``factor`` in the backward pass; the values stay as they are.

    Args:
        tensor: of any shape.
        factor: a number or a tensor. Where the tensor lacks its dimensions it is expanded to them, so that
            each part of the gradient is multiplied by its own factor before they are added up.
    """
    if isinstance(factor, Tensor):
        tensor = tensor.expand(torch.broadcast_shapes(tensor.shape, factor.shape))
    return _ScaleGradient.apply(tensor, factor)


def blend(old: Tensor, new: Tensor, rate: float) -> Tensor:
    """(1 - ρ) old + ρ new: one step of natural gradients, and of stepwise EM.

    Sufficient statistics move in this way towards those of a batch that stands for all data, and natural
    parameters towards the conjugate posterior λ*, which is these statistics plus the prior's parameters.

    Args:
        old, new: of the same shape.
        rate: ρ in [0, 1]; with 1 the result is ``new`` to the bit.
    """
    return torch.lerp(old, new, rate)


class ExponentialFamily(ABC):
    """An exponential family that is a conjugate prior; stateless, so one instance serves all its members.

    A new family is a subclass of this and one of :class:`NaturalDistribution`, under ``register_family``.
    Inference calls these methods; it never asks which family it is. Families of mixture components also have
    :meth:`data_stats` and :meth:`predictive`.

    Attributes:
        distribution: class of the members in standard parameters, with their domains as ``arg_constraints``.
        names: the standard parameters, keyword arguments and attributes of ``distribution``.
        monomials: the products of functions of θ's elements that plain programs may have of θ, each a sorted
            tuple of names: ``"x"`` an element itself, ``"1/x"`` its inverse, ``"log"`` its logarithm,
            ``"log1m"`` that of one minus it, ``"logdet"`` the log-determinant of the whole θ. ``("x", "x")``
            is a product of two elements, or a square. Empty for a family that takes no part in plain
            programs; one that does implements :meth:`size`, :meth:`locate` and what they say.
        domain: what :meth:`in_domain` asks for, in words for an error message.
        is_sparse: whether t lacks the products of some pairs of elements; :meth:`locate` gives -1 there.
    """

    distribution: ClassVar[Any]
    names: ClassVar[tuple[str, ...]]
    monomials: ClassVar[frozenset[tuple[str, ...]]] = frozenset()
    domain: ClassVar[str] = "a proper member"
    is_sparse: ClassVar[bool] = False

    @abstractmethod
    def natural(self, *standard: Tensor) -> Tensor:
        """Pack standard parameters into natural ones, shape [..., P]."""

    @abstractmethod
    def unpack(self, natural: Tensor) -> tuple[Tensor, ...]:
        """Natural parameters [..., P] to standard ones, differentiated as it stands."""

    @abstractmethod
    def event_shape(self, size: int) -> torch.Size:
        """Shape of θ for natural parameters of ``size`` numbers.

        Raises:
            ValueError: no member has so many; the message starts with ``natural: expected shape``.
        """

    @abstractmethod
    def stats(self, value: Tensor) -> Tensor:
        """t(θ) at values [..., *event_shape], packed like λ: [..., P]."""

    @abstractmethod
    def log_normalizer(self, natural: Tensor) -> Tensor:
        """A(λ), shape [...]; its gradient is E[t]."""

    @abstractmethod
    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[t] = ∇A(λ), packed like λ, differentiated as it stands."""

    @abstractmethod
    def inverse_fisher(self, standard: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        """Natural gradient [..., P] from the gradients with respect to the standard parameters."""

    @abstractmethod
    def in_domain(self, natural: Tensor) -> Tensor:
        """True where λ [..., P] is a proper member of the family: bool [...]."""

    @abstractmethod
    def random_start(self, prior: Tensor, count: float, generator: torch.Generator | None) -> Tensor:
        """λ [..., P] as if ``count`` random observations had been added to a prior's λ₀ [..., P].

        Components start apart, so that they divide the data among them.
        """

    def scattered_start(self, prior: Tensor, count: float, generator: torch.Generator | None) -> Tensor:
        """As :meth:`random_start`, but also members that a program treats alike start apart.

        The weights of a mixture may start equal, its components may not. Override it where ``random_start``
        has nothing random in it.
        """
        return self.random_start(prior, count, generator)

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """KL(λ || λ₀) [...], differentiated as it stands. Override it where the terms nearly cancel.

        Args:
            natural: λ, [..., P].
            prior: λ₀, [..., P] or broadcastable to that.
            stats: E[t] at λ if it is known already, [..., P].
        """
        stats = self.mean_stats(natural) if stats is None else stats
        gap = ((natural - prior) * stats).sum(-1)
        return gap - self.log_normalizer(natural) + self.log_normalizer(prior)

    def entropy(self, natural: Tensor) -> Tensor:
        """The entropy [...] at λ [..., P]."""
        entropy: Tensor = self.member(*self.unpack(natural)).entropy()
        return entropy

    def stats_from_standard(self, *standard: Tensor) -> Tensor:
        """E[t] [..., P] at standard parameters. Override it where λ would lose digits of them."""
        return self.mean_stats(self.natural(*standard))

    def standard_of(self, member: Distribution) -> tuple[Tensor, ...]:
        """Standard parameters of a ``distribution``, in float64."""
        return tuple(to_float64(getattr(member, name)) for name in self.names)

    def member(self, *standard: Tensor) -> Any:
        """The ``distribution`` with these standard parameters."""
        return self.distribution(**dict(zip(self.names, standard, strict=True)))

    def pack(self, member: Distribution) -> Tensor:
        """λ of a ``distribution``, float64, broadcastable to its batch shape and P."""
        return self.natural(*self.standard_of(member))

    def transforms(self) -> dict[str, Transform]:
        """Name of each standard parameter → the transform from any real numbers to its domain."""
        return {name: _transform_to(self.distribution.arg_constraints[name]) for name in self.names}

    # Families of mixture components

    def data_stats(self, mean: Tensor, variance: Tensor) -> Tensor:
        """E[T(x)] [..., P] of observations with a mean and a variance, each [..., *shape of x].

        The variance is that of each number in x, 0 where x is known. Observations whose T(x) is another
        function of x than a quadratic one need a family of their own.

        Raises:
            NotImplementedError: the family is not one of mixture components; plain programs need no such T.
        """
        raise NotImplementedError(_no_components(self, "data_stats"))

    def predictive(self, standard: tuple[Tensor, ...], dtype: torch.dtype) -> Distribution:
        """p(x) with θ integrated out, batch shape [...], with parameters of the given type.

        Raises:
            NotImplementedError: the family is not one of mixture components. It may have predictive
                distributions of several kinds of x, each under a name of its own.
        """
        raise NotImplementedError(_no_components(self, "predictive"))

    def expected_log_likelihood(self, mean: Tensor, variance: Tensor, stats: Tensor) -> Tensor:
        """E[log p(x | θ_k)] of N observations under K members, differentiable: [..., N, K], as ``mean`` is.

        Without log h(x): a family whose observations have one, or that has a faster form, overrides this.

        Args:
            mean, variance: of the observations, [..., N, *shape of x].
            stats: E[t] of the members, float64 [..., K, P].
        """
        with torch.autocast(mean.device.type, enabled=False):
            return (self.data_stats(mean, variance).to(stats) @ stats.mT).to(mean)

    def conjugate_update(
        self, prior: Tensor, weights: Tensor, mean: Tensor, variance: Tensor, scale: float = 1.0
    ) -> Tensor:
        """λ* = λ₀ + Σ_n w_nk E[T(x_n)], the posterior given weighted observations: float64 [..., K, P].

        Args:
            prior: λ₀, [..., K, P].
            weights: how much each observation counts for each member, [..., N, K].
            mean, variance: of the observations, [..., N, *shape of x].
            scale: how many data points each observation stands for.
        """
        stats = self.data_stats(mean.double(), variance.double())
        return prior.double() + scale * weights.double().mT @ stats

    # Plain programs

    def size(self, event: torch.Size) -> int:
        """P, the inverse of :meth:`event_shape`, for θ of an event shape.

        Raises:
            ValueError: no member has values of that shape.
        """
        raise NotImplementedError(f"{type(self).__name__} takes no part in plain programs: it has no size")

    def locate(self, monomial: tuple[str, ...], elements: tuple[Tensor, ...], event: torch.Size) -> Tensor:
        """Positions of a monomial in the last dimension of t, int64 of the elements' shape.

        Args:
            monomial: one of :attr:`monomials`.
            elements: for each of its functions, numbers of the elements that it is of, in θ flattened, int64
                of one shape. For ``"logdet"`` they mean nothing.
            event: shape of θ.

        Returns:
            -1 where t does not hold the product of these elements.
        """
        raise NotImplementedError(f"{type(self).__name__} takes no part in plain programs: it has no locate")

    def pairs(self, event: torch.Size, device: torch.device) -> Tensor:
        """The elements of the products that t has, for a family of locations: int64 [2, ...].

        Its statistics are the elements themselves and these products, in this order.
        """
        return torch.zeros(2, 1, dtype=torch.int64, device=device)

    def multiplicity(self, event: torch.Size) -> Tensor | None:
        """How many times its monomial each entry of t is, float64 [P]; None if all are 1.

        A symmetric matrix of which a triangle is kept has 2 off its diagonal.
        """
        return None

    def stats_about(self, natural: Tensor, centre: Tensor) -> Tensor | None:
        """E[t] [..., P] of θ - c in place of θ, at λ [..., P] and numbers c [..., *event_shape].

        Families of locations have it, without the digits that E[t] loses far from 0. Others return None.
        """
        return None

    def log_base_measure(self, stats: Tensor) -> Tensor:
        """E[log h(θ)] [...] from E[t] [..., P], in which log h has to be linear; with all constants.

        E[log q(θ)] is λ·E[t] - A(λ) plus this.
        """
        return torch.zeros_like(stats[..., 0])

    # Natural gradients

    def expected_stats(self, natural: Tensor) -> Tensor:
        """E[t] [..., P], whose backward delivers natural gradients to λ."""
        return expected_stats(natural, self)

    def standard(self, natural: Tensor) -> tuple[Tensor, ...]:
        """Standard parameters, whose backward delivers natural gradients to λ."""
        if torch.is_inference_mode_enabled():  # even where ``lazy_property`` has enabled gradients
            return self.unpack(natural)
        return standard_parameters(natural, self)

    def kl(self, natural: Tensor, prior: Tensor, stats: Tensor | None = None) -> Tensor:
        """KL(λ || λ₀) [...], whose backward delivers λ - λ₀ to λ, and the ordinary gradient to λ₀.

        Args:
            natural: λ, [..., P].
            prior: λ₀, [..., P] or broadcastable to that.
            stats: E[t] at λ if it is known already, [..., P].
        """
        return relative_entropy(natural, prior, None if stats is None else stats.detach(), self)


def _no_components(family: ExponentialFamily, method: str) -> str:
    return f"{type(family).__name__} is not a family of mixture components: it has no {method}"


def _transform_to(domain: constraints.Constraint) -> Transform:
    while isinstance(domain, constraints.independent):
        domain = domain.base_constraint
    # That of the registry would add 0 after the exponential.
    return ExpTransform() if domain is constraints.positive else transform_to(domain)


def to_float64(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU if its own device has no float64 (Apple's)."""
    return tensor.to("cpu" if tensor.device.type == "mps" else tensor.device, torch.float64)


# Families of one number whose statistics are products of functions of it.


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "x": lambda x: x,
    "1/x": torch.reciprocal,
    "log": torch.log,
    "log1m": lambda x: torch.log1p(-x),
}


class ScalarFamily(ExponentialFamily):
    """A family of numbers. The elements of a larger site are a batch of its members.

    A subclass names its statistics and says what they are good for: the standard parameters, A(λ), E[t], the
    inverse Fisher matrix and the domain.

    Attributes:
        statistics: the monomials that t consists of, in order; see :attr:`ExponentialFamily.monomials`.
    """

    statistics: ClassVar[tuple[tuple[str, ...], ...]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.monomials = frozenset(cls.statistics)

    def event_shape(self, size: int) -> torch.Size:
        """(), the shape of a number."""
        if size != len(self.statistics):
            raise ValueError(
                f"natural: expected shape [..., {len(self.statistics)}], got {size} as last size"
            )
        return torch.Size()

    def size(self, event: torch.Size) -> int:
        """How many statistics there are."""
        if len(event):
            raise ValueError(f"{type(self).__name__}: expected values that are numbers, got {list(event)}")
        return len(self.statistics)

    def locate(self, monomial: tuple[str, ...], elements: tuple[Tensor, ...], event: torch.Size) -> Tensor:
        """The place of the monomial among the statistics."""
        return torch.full_like(elements[0], self.statistics.index(monomial))

    def stats(self, value: Tensor) -> Tensor:
        """The statistics at numbers [...]: [..., P]."""
        products = (
            torch.stack([_FUNCTIONS[name](value) for name in monomial]).prod(0)
            for monomial in self.statistics
        )
        return torch.stack(tuple(products), -1)


# Members of families, in standard and in natural parameters, and the registry of families by their priors.


class StandardDistribution(TorchDistribution):
    """Base of a family's members in standard parameters, which are tensors that ``arg_constraints`` names.

    Each is kept expanded to the batch shape, with a shape of its own behind it. ``register_family`` has torch
    find the KL divergence between two members.
    """

    has_rsample = True

    @property
    def standard(self) -> tuple[Tensor, ...]:
        """The parameters in the order of the arguments, in the dtype in which they are stored."""
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
