"""Log-densities of distributions whose value or arguments are not there."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, overload

import torch
from pyro.distributions import ExpandedDistribution, MaskedDistribution
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, Transform

from pyro_fmvae.distributions.chain import Chain, log_probabilities
from pyro_fmvae.distributions.gaussian_chain import GaussianChain
from pyro_fmvae.distributions.hidden_markov import HiddenMarkov
from pyro_fmvae.distributions.linear_dynamics import LinearDynamics
from pyro_fmvae.distributions.linear_gaussian_chain import LinearGaussianChain
from pyro_fmvae.distributions.restated import restated_log_prob
from pyro_fmvae.infer.elbo.admixtures import Likelihoods, Observations
from pyro_fmvae.infer.elbo.calls import name_of
from pyro_fmvae.infer.elbo.kept import KeptExpectations
from pyro_fmvae.infer.elbo.lazy import Computed, Lazy, NeedsValueError, is_lazy, sites_of
from pyro_fmvae.infer.elbo.sums import exact

Evaluate = Callable[[Lazy], Tensor]


def has_lazy_arguments(fn: Distribution) -> bool:
    """True if a distribution, or one inside of it, was made from values that are not there."""
    return is_lazy(list(held(fn)))


def lazy_sites(fn: Distribution) -> set[str]:
    """Names of the sites without values that a distribution was made from."""
    return sites_of(list(held(fn)))


def device_of(fn: Distribution) -> torch.device:
    """The device of a distribution's parameters; the CPU if it has no tensors."""
    return next((part.device for _, part in held(fn) if isinstance(part, Tensor)), torch.device("cpu"))


def dtype_of(fn: Distribution) -> torch.dtype:
    """The floating-point type of a distribution's parameters; torch's default if it has none."""
    dtypes = (part.dtype for _, part in held(fn) if isinstance(part, Tensor))
    return next((dtype for dtype in dtypes if dtype.is_floating_point), torch.get_default_dtype())


def held(fn: Distribution | Transform, seen: frozenset[int] = frozenset()) -> Iterator[tuple[str, Any]]:
    """Attributes of a distribution, and of those and the transforms inside of it, by name.

    Args:
        fn: a distribution or a transform.
        seen: identities of those that it is inside of: a transform and its inverse have each other.
    """
    for name, value in vars(fn).items():
        for part in value if isinstance(value, list) else [value]:  # of transforms
            if not isinstance(part, Distribution | Transform):
                yield name, part
            elif id(part) not in seen:
                yield from held(part, seen | {id(fn)})


def log_density(
    fn: Distribution, value: Tensor, evaluate: Evaluate, kept: KeptExpectations | None = None
) -> Tensor:
    """``fn.log_prob(value)``, a :class:`Lazy` where value or arguments are not there, else numbers.

    Args:
        fn, value: of a site.
        evaluate: takes the expectation of a lazy table of log-densities. A ``MixtureSameFamily`` asks for it
            before it sums over its components, as over an assignment at its optimal probabilities, and so do
            chains before they sum or integrate over their states.
        kept: expectations that stay the same between several evaluations.
    """
    value = as_number(value)
    if not (is_lazy(value) or has_lazy_arguments(fn)):
        return fn.log_prob(value)
    if isinstance(fn, Independent):
        base = log_density(fn.base_dist, value, evaluate, kept)
        last = fn.reinterpreted_batch_ndims
        return base.flatten(base.dim() - last).sum(-1) if last else base
    if isinstance(fn, ExpandedDistribution):
        return log_density(fn.base_dist, value, evaluate, kept)
    if isinstance(fn, MaskedDistribution):
        base = log_density(fn.base_dist, value, evaluate, kept)
        mask = torch.as_tensor(fn._mask, device=base.device)
        return torch.where(mask, base, torch.zeros((), dtype=base.dtype, device=base.device))
    if isinstance(fn, MixtureSameFamily):
        return _mixture(fn, value, evaluate, kept)
    if isinstance(fn, HiddenMarkov):
        return hidden_chain(fn, value, evaluate).log_evidence()
    if isinstance(fn, LinearGaussianChain):
        return hidden_chain(fn, value, evaluate).log_evidence().to(value.dtype)
    if isinstance(fn, LinearDynamics):
        return fn.chain(*expectations(evaluate)).log_weight(value).to(value.dtype)
    if ends := sites_of(list(vars(fn.support).values())):
        raise NeedsValueError.of(ends, "an end of a support, beyond which the density is 0")
    return restated_log_prob(_slim(fn), value if is_lazy(value) else exact(value))


def as_number(value: Tensor) -> Tensor:
    """An observed value: 0 and 1 in the place of booleans, which torch has no log-densities of."""
    return value.to(torch.get_default_dtype()) if value.dtype == torch.bool else value


def _mixture(
    fn: MixtureSameFamily, value: Tensor, evaluate: Evaluate, kept: KeptExpectations | None
) -> Tensor:
    weights, categories = _numbers(_log_weights(fn), evaluate), _categories(fn.component_distribution)
    kept = kept or KeptExpectations()
    points = Observations.of(weights, fn.batch_shape)
    if points and categories is not None:
        table = _numbers(categories, evaluate)
        found = kept.derived(table, lambda: Likelihoods.looked_up(points, table, value))
        return found.log_sum(weights).to(table)
    table = _numbers(log_density(fn.component_distribution, fn._pad(value), evaluate, kept), evaluate)
    if points and kept.is_constant(table):
        return kept.derived(table, lambda: Likelihoods.kept(points, table)).log_sum(weights).to(table)
    return (table + weights).logsumexp(-1)


def _categories(fn: Distribution) -> Tensor | None:
    """Log-probabilities [K, V] of the categories of a mixture's components.

    None if they differ between data points, or have numbers.
    """
    found = _unexpanded(vars(fn).get("probs")) if isinstance(fn, Categorical) else None
    return found.log() if isinstance(found, Lazy) and found.dim() == 2 else None


def _unexpanded(x: Any) -> Any:
    """A value as it was before it was expanded."""
    while isinstance(x, Lazy) and isinstance(x.origin, Computed) and name_of(x.origin) == "expand":
        x = x.origin.args[0]
    return x


@overload
def hidden_chain(fn: HiddenMarkov, value: Tensor, evaluate: Evaluate) -> Chain: ...
@overload
def hidden_chain(fn: LinearGaussianChain, value: Tensor, evaluate: Evaluate) -> GaussianChain: ...
def hidden_chain(
    fn: HiddenMarkov | LinearGaussianChain, value: Tensor, evaluate: Evaluate
) -> Chain | GaussianChain:
    """The chain of the hidden states of sequences [..., T, *event], under expected log-densities."""
    number, density = expectations(evaluate)
    if isinstance(fn, HiddenMarkov):
        return fn.chain(value, lambda p: number(p.log() if is_lazy(p) else log_probabilities(p)), density)
    return fn.chain(value, number, density)


def expectations(
    evaluate: Evaluate,
) -> tuple[Callable[[Tensor], Tensor], Callable[[Distribution, Tensor], Tensor]]:
    """Functions that give the expectations of what a chain computes: of a tensor, and of a log-density."""

    def number(table: Tensor) -> Tensor:
        return _numbers(table, evaluate)

    return number, lambda fn, value: number(log_density(fn, value, evaluate))


def _numbers(table: Tensor, evaluate: Evaluate) -> Tensor:
    return evaluate(table) if isinstance(table, Lazy) else table


def _log_weights(fn: MixtureSameFamily) -> Tensor:
    categorical = fn.mixture_distribution
    return _unexpanded(categorical.probs).log() if has_lazy_arguments(categorical) else categorical.logits


def _slim(fn: Distribution) -> Distribution:
    """The distribution with numbers as they were before they were expanded, without checks of values."""
    fn, events = copy.copy(fn), len(fn.event_shape)
    fn._validate_args = False  # which expand keeps, and which a captured step cannot make
    for name, value in vars(fn).items():
        if isinstance(value, Tensor) and not isinstance(value, Lazy):
            batch = range(value.dim() - events)
            vars(fn)[name] = value[tuple(slice(0, 1) if value.stride(i) == 0 else slice(None) for i in batch)]
        elif isinstance(value, Distribution):
            vars(fn)[name] = _slim(value)
    return fn
