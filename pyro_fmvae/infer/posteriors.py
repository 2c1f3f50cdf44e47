"""Posteriors of conjugate sites as modules, in natural or in standard parameters, of any family."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import torch
from pyro.distributions import constraints
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import effectful
from torch import Tensor, nn
from torch.distributions import Distribution, ExpTransform, Transform, identity_transform

from pyro_fmvae.distributions import NaturalDistribution, NaturalParameter
from pyro_fmvae.distributions.exponential_family import natural_prior

# Telling Pyro about the parameters of a module without putting them into its global store.


def param_statements(name: str, module: torch.nn.Module) -> None:
    """Issue a ``pyro.param`` statement for every parameter of a module, for handlers and ``SVI`` to see.

    ``pyro.module`` keeps parameters in a global store under their names; a second module of the same name is
    then silently left untrained. These statements carry the module's own parameters and store nothing,
    whatever ``pyro.settings`` says about ``module_local_params``.

    Args:
        name: prefix of the statements' names, unique within a model or guide.
        module: the module; parameters that need no gradient are left out.
    """
    for suffix, parameter in module.named_parameters():
        if parameter.requires_grad:
            _statement(f"{name}$$${suffix}", parameter)


class GivenParameters(Messenger):
    """Gives ``pyro.param`` statements the values that they have elsewhere, so that nothing is stored.

    Args:
        values: by the statements' full names, those of ``pyro.module`` included.
    """

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._values = values

    def _pyro_param(self, msg: Any) -> None:
        if msg["name"] in self._values:
            msg["value"], msg["done"] = self._values[msg["name"]], True


def _value(parameter: Any, constraint: constraints.Constraint) -> Any:
    return parameter


_param = effectful(_value, type="param")


class _Reference(weakref.ref[Any]):
    """A weak reference that is left out of pickles: a parameter with one can be in them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def _statement(name: str, parameter: Any) -> None:
    parameter.unconstrained = _Reference(parameter)
    _param(parameter, constraint=constraints.real, name=name)


_TAKEN = frozenset(dir(nn.ModuleDict()))


class ConjugatePosterior(nn.Module, ABC):
    """The posterior of one conjugate site: calling it gives the distribution.

    Attributes:
        kind: its class in natural parameters, whose ``family`` knows the rest.
        dtype: of draws; torch's default dtype at the time if None.
    """

    kind: type[NaturalDistribution]
    dtype: torch.dtype | None

    @abstractmethod
    def forward(self) -> Distribution:
        """The distribution, for ``pyro.sample`` in a guide."""

    @abstractmethod
    def natural_value(self) -> Tensor:
        """Its natural parameters, float64, detached."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move between devices, but stay in float64 through ``module.float()`` and the like."""

        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(keep_dtype, recurse)


class NaturalPosterior(ConjugatePosterior):
    """A posterior in natural parameters, for ``NaturalGradient``.

    Args:
        kind: class of the posterior, a subclass of ``NaturalDistribution``.
        natural: initial λ, [..., P].
        dtype: of draws; torch's default dtype at the time if None.
    """

    def __init__(
        self, kind: type[NaturalDistribution], natural: Tensor, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.kind, self.dtype = kind, dtype
        self.natural = NaturalParameter(natural)

    def forward(self) -> Any:
        """The natural posterior.

        Raises:
            TypeError: λ has become a parameter of another class, which a first-order optimiser would train.
        """
        if isinstance(self.natural, nn.Parameter) and not isinstance(self.natural, NaturalParameter):
            kind = type(self.natural).__name__
            raise TypeError(
                f"natural: expected a NaturalParameter, got a {kind}; after to_empty() or another conversion "
                "that makes new parameters, load_state_dict(..., assign=True) makes it one again"
            )
        return self.kind(self.natural, self.dtype)

    def natural_value(self) -> Tensor:
        """λ, detached; it shares memory with the parameter."""
        return self.natural.detach()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        """Keep λ's class where a loaded tensor takes its place, by ``load_state_dict(..., assign=True)``."""
        name = prefix + "natural"
        if local_metadata.get("assign_to_params_buffers") and isinstance(state_dict.get(name), Tensor):
            state_dict[name] = NaturalParameter(state_dict[name], self.natural.requires_grad)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


class StandardPosterior(ConjugatePosterior):
    """A posterior in unconstrained standard parameters, for a first-order optimiser.

    The module's parameters are named after the family's: ``loc`` where any real number will do, ``log_rate``
    where only positive ones do. Paquet et al. (2018), Section 2.5, use this form while Δ > 0.

    Args:
        kind: class of the natural posteriors of the family.
        natural: initial λ, [..., P].
        dtype: as of :class:`NaturalPosterior`.
    """

    def __init__(
        self, kind: type[NaturalDistribution], natural: Tensor, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.kind, self.dtype = kind, dtype
        standard = kind.family.unpack(natural.detach().double())
        for (name, transform), value in zip(self._transforms().items(), standard, strict=True):
            self.register_parameter(name, nn.Parameter(transform.inv(value).clone()))

    @classmethod
    def of_state(
        cls, kind: type[NaturalDistribution], state: Mapping[str, Tensor], dtype: torch.dtype | None = None
    ) -> "StandardPosterior":
        """The posterior with the parameters of a state; other arguments as of the class."""
        transforms = kind.family.transforms()
        standard = (
            transform(state[_unconstrained_name(name, transform)]) for name, transform in transforms.items()
        )
        posterior = cls(kind, kind.family.natural(*standard), dtype)
        posterior.load_state_dict(state)
        return posterior

    def _transforms(self) -> dict[str, Transform]:
        """Name of each of the module's parameters → the transform to a standard parameter."""
        transforms = self.kind.family.transforms()
        return {_unconstrained_name(name, transform): transform for name, transform in transforms.items()}

    def _standard(self) -> tuple[Tensor, ...]:
        return tuple(transform(getattr(self, name)) for name, transform in self._transforms().items())

    def forward(self) -> Distribution:
        """The family's distribution in standard parameters."""
        dtype = self.dtype or torch.get_default_dtype()
        return self.kind.family.member(*(parameter.to(dtype) for parameter in self._standard()))

    def natural_value(self) -> Tensor:
        """λ, detached."""
        return self.kind.family.natural(*self._standard()).detach()


def _unconstrained_name(name: str, transform: Transform) -> str:
    if transform == identity_transform:
        return name
    return f"log_{name}" if isinstance(transform, ExpTransform) else f"unconstrained_{name}"


def to_standard(posterior: ConjugatePosterior) -> StandardPosterior:
    """The posterior in standard parameters, itself if it is already."""
    if isinstance(posterior, StandardPosterior):
        return posterior
    return StandardPosterior(posterior.kind, posterior.natural_value(), posterior.dtype)


def to_natural(posterior: ConjugatePosterior) -> NaturalPosterior:
    """The posterior in natural parameters, itself if it is already."""
    if isinstance(posterior, NaturalPosterior):
        return posterior
    return NaturalPosterior(posterior.kind, posterior.natural_value(), posterior.dtype)


def random_posterior(
    prior: Distribution, count: float, generator: torch.Generator | None = None
) -> NaturalPosterior:
    """A posterior whose components differ, where they can, so that the first responsibilities do too.

    Args:
        prior: of a registered family.
        count: random observations that the posterior starts with beside the prior, > 0.
        generator: source of the random numbers; torch's own if None.

    Raises:
        NotImplementedError: no conjugate posterior is known for the prior's class.
    """
    start = natural_prior(prior)
    return NaturalPosterior(type(start), start.family.random_start(start.natural, count, generator))


class PosteriorDict(nn.ModuleDict):
    """Modules by the names of sites; a name may contain dots or equal that of a module's method.

    A state may be loaded before the modules are there, as in an ``AutoConjugate`` that has not run yet. What
    belongs to a site then waits until its module is set, and stays in the state of this module.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[str, dict[str, Tensor]] = {}

    @property
    def is_waiting(self) -> bool:
        """True if a loaded state waits for its modules."""
        return bool(self._waiting)

    def waiting(
        self, site: str, kind: type[NaturalDistribution], dtype: torch.dtype | None
    ) -> ConjugatePosterior:
        """A module with the loaded state of a site that has none yet.

        Args:
            site: its name.
            kind, dtype: as of :class:`NaturalPosterior`.
        """
        state = self._waiting[key_of(site)]
        if "natural" in state:
            return NaturalPosterior(kind, state["natural"], dtype)
        return StandardPosterior.of_state(kind, state, dtype)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Keep the tensors of sites that have no module yet; nothing is loaded if one has another shape."""
        for key, module in self._modules.items():
            assert module is not None
            check_shapes(f"site '{unquote(key)}'", module, state_dict, f"{prefix}{key}.")
        for name in [name for name in state_dict if name.startswith(prefix)]:
            key, _, parameter = name.removeprefix(prefix).partition(".")
            if key not in self._modules and parameter:
                self._waiting.setdefault(key, {})[parameter] = state_dict.pop(name).detach().clone()
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for key, state in self._waiting.items():
            destination.update({f"{prefix}{key}.{parameter}": value for parameter, value in state.items()})

    def __getitem__(self, key: str) -> nn.Module:
        return super().__getitem__(key_of(key))

    def __setitem__(self, key: str, module: nn.Module) -> None:
        state = self._waiting.get(key_of(key))
        if state is not None:
            if isinstance(module, NaturalPosterior) and "natural" not in state:
                module = to_standard(module)
            check_shapes(f"site '{key}'", module, state)
            module.load_state_dict(state)
            del self._waiting[key_of(key)]
        super().__setitem__(key_of(key), module)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key_of(key))

    def __contains__(self, key: str) -> bool:
        return super().__contains__(key_of(key))

    def __iter__(self) -> Iterator[str]:
        return map(unquote, super().__iter__())

    def keys(self) -> Iterable[str]:  # type: ignore[override]
        """The names of the sites."""
        return list(self)

    def items(self) -> Iterable[tuple[str, nn.Module]]:  # type: ignore[override]
        """The names of the sites, each with its module."""
        return list(zip(self, self.values(), strict=True))


def check_shapes(owner: str, module: nn.Module, state: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse a state of other sizes than those of a module.

    Args:
        owner: the beginning of the message.
        module: that the state is for.
        state: to be loaded.
        prefix: of the names of the module's parameters in it.

    Raises:
        ValueError: a tensor has another shape than the parameter; the message has both.
    """
    for name, parameter in module.named_parameters():
        found = state.get(prefix + name)
        if isinstance(found, Tensor) and found.shape != parameter.shape:
            raise ValueError(
                f"{owner}: '{name}' is of shape {tuple(found.shape)} in the state, but "
                f"{tuple(parameter.shape)} in this guide; load it into the guide of a model of the same sizes"
            )


def key_of(site: str) -> str:
    """The name of a submodule for that of a site: the same, wherever it may be."""
    key = site.replace("%", "%25").replace(".", "%2E")
    return f"%{ord(key[0]):02X}{key[1:]}" if key in _TAKEN else key
