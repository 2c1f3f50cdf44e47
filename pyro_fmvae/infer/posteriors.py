"""Posteriors of conjugate sites as modules, in natural or in standard parameters."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import unquote

import torch
from pyro.distributions import Dirichlet
from torch import Tensor, nn
from torch.distributions import Distribution

from pyro_fmvae.distributions import (
    DIRICHLET,
    NORMAL_GAMMA,
    NaturalDirichlet,
    NaturalNormalGamma,
    NaturalParameter,
    NormalGamma,
)
from pyro_fmvae.distributions.expected_log_prob import unwrap

_TAKEN = frozenset(dir(nn.ModuleDict()))


class ConjugatePosterior(nn.Module, ABC):
    """The posterior of one conjugate site: calling it gives the distribution."""

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
        kind: ``NaturalDirichlet`` or ``NaturalNormalGamma``.
        natural: initial λ, [..., P].
    """

    def __init__(self, kind: type[NaturalDirichlet] | type[NaturalNormalGamma], natural: Tensor) -> None:
        super().__init__()
        self.kind = kind
        self.natural = NaturalParameter(natural)

    def forward(self) -> Distribution:
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
        return self.kind(self.natural)

    def natural_value(self) -> Tensor:
        """λ, detached; it shares memory with the parameter."""
        return self.natural.detach()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        """Keep λ's class where what is loaded takes its place, by ``load_state_dict(..., assign=True)``."""
        name = prefix + "natural"
        if local_metadata.get("assign_to_params_buffers") and isinstance(state_dict.get(name), Tensor):
            state_dict[name] = NaturalParameter(state_dict[name], self.natural.requires_grad)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


class StandardDirichlet(ConjugatePosterior):
    """A Dirichlet in log c, for a first-order optimiser (Paquet et al., 2018, Section 2.5, while Δ > 0).

    Args:
        natural: initial concentrations c, [..., K].
    """

    def __init__(self, natural: Tensor) -> None:
        super().__init__()
        self.log_concentration = nn.Parameter(natural.detach().double().log())

    def forward(self) -> Distribution:
        """Dirichlet(c), in torch's default dtype."""
        return Dirichlet(self.log_concentration.exp().to(torch.get_default_dtype()))

    def natural_value(self) -> Tensor:
        """c, detached."""
        return self.log_concentration.detach().exp()


class StandardNormalGamma(ConjugatePosterior):
    """A Normal-Gamma in (m, log s, log a, log b), for a first-order optimiser (Section 2.5, while Δ > 0).

    Args:
        natural: initial λ, [..., 2D+2].
    """

    def __init__(self, natural: Tensor) -> None:
        super().__init__()
        m, s, a, b = NORMAL_GAMMA.unpack(natural.detach().double())
        self.loc = nn.Parameter(m.clone())
        self.log_mean_concentration = nn.Parameter(s.log())
        self.log_concentration = nn.Parameter(a.log())
        self.log_rate = nn.Parameter(b.log())

    def _standard(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.loc, self.log_mean_concentration.exp(), self.log_concentration.exp(), self.log_rate.exp()

    def forward(self) -> Distribution:
        """NormalGamma(m, s, a, b), in torch's default dtype."""
        m, s, a, b = (parameter.to(torch.get_default_dtype()) for parameter in self._standard())
        return NormalGamma(m, s, a, b)

    def natural_value(self) -> Tensor:
        """λ, detached; it shares memory with the parameter."""
        return NORMAL_GAMMA.natural(*(parameter.detach() for parameter in self._standard()))


def natural_prior(prior: Distribution) -> tuple[type[NaturalDirichlet] | type[NaturalNormalGamma], Tensor]:
    """The class of natural posterior that is conjugate to a prior, and the prior's own λ (float64).

    Raises:
        NotImplementedError: no conjugate posterior is known for the class.
    """
    prior = unwrap(prior)
    if isinstance(prior, NormalGamma):
        return NaturalNormalGamma, NORMAL_GAMMA.natural(*(t.detach().double() for t in prior.standard))
    if isinstance(prior, Dirichlet):
        return NaturalDirichlet, DIRICHLET.natural(prior.concentration.detach().double())
    raise NotImplementedError(f"no conjugate posterior is known for {type(prior).__name__}")


def to_standard(posterior: ConjugatePosterior) -> ConjugatePosterior:
    """The same posterior in standard parameters."""
    if isinstance(posterior, NaturalPosterior):
        dirichlet = posterior.kind is NaturalDirichlet
        return (StandardDirichlet if dirichlet else StandardNormalGamma)(posterior.natural_value())
    return posterior


def to_natural(posterior: ConjugatePosterior) -> ConjugatePosterior:
    """The same posterior in natural parameters."""
    if isinstance(posterior, NaturalPosterior):
        return posterior
    kind = NaturalDirichlet if isinstance(posterior, StandardDirichlet) else NaturalNormalGamma
    return NaturalPosterior(kind, posterior.natural_value())


def random_natural(prior: Distribution, count: float, generator: torch.Generator | None = None) -> Tensor:
    """Natural parameters that differ from component to component, so that the first responsibilities do too.

    Args:
        prior: Dirichlet or NormalGamma.
        count: pseudo-observations that the posterior starts with, > 0.
        generator: source of the random numbers; torch's own if None.

    Returns:
        λ [..., P], float64: after ``count`` observations of unit variance around a random mean (m0 plus unit
        noise), or ``count`` observations of each component.
    """
    kind, natural = natural_prior(prior)
    if kind is NaturalDirichlet:
        return natural + count
    m0, s0, a0, b0 = NORMAL_GAMMA.unpack(natural)
    noise = torch.randn(m0.shape, dtype=m0.dtype, generator=generator).to(m0.device)
    return NORMAL_GAMMA.natural(m0 + noise, s0 + count, a0 + count / 2, b0 + count / 2)


class PosteriorDict(nn.ModuleDict):
    """Modules by the names of sites, which may have dots in them, or be those of methods of a module."""

    def __getitem__(self, key: str) -> nn.Module:
        return super().__getitem__(_key(key))

    def __setitem__(self, key: str, module: nn.Module) -> None:
        super().__setitem__(_key(key), module)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(_key(key))

    def __contains__(self, key: str) -> bool:
        return super().__contains__(_key(key))

    def __iter__(self) -> Iterator[str]:
        return map(unquote, super().__iter__())

    def keys(self) -> Iterable[str]:  # type: ignore[override]
        """The names of the sites."""
        return list(self)

    def items(self) -> Iterable[tuple[str, nn.Module]]:  # type: ignore[override]
        """The names of the sites, each with its module."""
        return list(zip(self, self.values(), strict=True))


def _key(site: str) -> str:
    """The name of a submodule for that of a site: the same, wherever it may be."""
    key = site.replace("%", "%25").replace(".", "%2E")
    return f"%{ord(key[0]):02X}{key[1:]}" if key in _TAKEN else key
