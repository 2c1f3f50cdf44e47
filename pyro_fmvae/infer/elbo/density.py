"""Log-densities of distributions whose value or arguments are not there."""

import copy
import math
from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import torch
from pyro.distributions import ExpandedDistribution, MaskedDistribution
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily

from pyro_fmvae.distributions.chain import Chain, draw_index, log_probabilities
from pyro_fmvae.distributions.columns import Columns
from pyro_fmvae.distributions.gaussian_chain import GaussianChain
from pyro_fmvae.distributions.hidden_markov import HiddenMarkov
from pyro_fmvae.distributions.linear_dynamics import LinearDynamics, LinearGaussianChain
from pyro_fmvae.distributions.restated import restated_log_prob
from pyro_fmvae.infer.elbo.lazy import (
    Computed,
    Lazy,
    NeedsValueError,
    dtype_of,
    has_lazy_arguments,
    is_lazy,
    name_of,
    sites_of,
)
from pyro_fmvae.infer.elbo.sums import exact

# Sums over the components of mixtures whose weights are the same for many observations.
#
# Such are the words of a document, which have the document's shares of topics as their weights. Hoffman, Blei
# and Bach (2010), Online learning for latent Dirichlet allocation, Section 2, compute with exp E[log p] in
# the place of E[log p]: a sum over topics is then one product of matrices, and a further pass of coordinate
# ascent takes no exponentials of words.


@dataclass(frozen=True)
class Observations:
    """The observations of a mixture, by those that have the same weights.

    Attributes:
        batch: batch shape of the mixture.
        outer, inner: numbers of its dimensions along which weights vary and do not vary.
    """

    batch: torch.Size
    outer: tuple[int, ...]
    inner: tuple[int, ...]

    @classmethod
    def of(cls, weights: Tensor, batch: torch.Size) -> "Observations":
        """Observations under logarithms of weights [..., K], broadcastable to [*batch, K]."""
        weights = weights.expand(*batch, -1)
        varies = [weights.stride(i) != 0 and size > 1 for i, size in enumerate(batch)]
        outer = tuple(i for i, each in enumerate(varies) if each)
        return cls(batch, outer, tuple(i for i, each in enumerate(varies) if not each))

    def __bool__(self) -> bool:
        """True if several observations have the same weights."""
        return math.prod(self.batch[i] for i in self.inner) > 1

    @property
    def sizes(self) -> tuple[int, int]:
        """P, the number of different weights, and Q, that of observations under each."""
        return math.prod(self.batch[i] for i in self.outer), math.prod(self.batch[i] for i in self.inner)

    def weights(self, table: Tensor) -> Tensor:
        """Logarithms of weights [..., K], broadcastable to [*batch, K], as [P, K]."""
        lacking = len(self.batch) + 1 - table.dim()
        for i in sorted(self.inner, reverse=True):
            if i >= lacking:
                table = table.select(i - lacking, 0)
        return table.reshape(self.sizes[0], -1)

    def flat(self, table: Tensor) -> Tensor:
        """A table [*batch, ...] as [P, Q, ...]."""
        order = *self.outer, *self.inner
        rest = range(len(order), table.dim())
        return table.permute(*order, *rest).reshape(*self.sizes, *table.shape[len(order) :])

    def unflat(self, table: Tensor) -> Tensor:
        """The inverse of :meth:`flat` for a table [P, Q]."""
        order = *self.outer, *self.inner
        table = table.view([self.batch[i] for i in order])
        return table.permute([order.index(i) for i in range(len(order))])


@dataclass(frozen=True)
class Likelihoods:
    """Expected log-densities of observations under the components, as exponentials.

    Attributes:
        points: the P · Q observations.
        table: proportional to exp E[log p], float64 [P, Q, K].
        shift: the logarithm of what makes it equal, [P, Q]. It has no gradient.
    """

    points: Observations
    table: Tensor
    shift: Tensor

    @classmethod
    def of_table(cls, points: Observations, table: Tensor) -> "Likelihoods":
        """Likelihoods from constants E[log p] [*batch, K]."""
        return cls(points, *_exponentials(points.flat(table.expand(*points.batch, -1))))

    @classmethod
    def looked_up(cls, points: Observations, table: Tensor, value: Tensor) -> "Likelihoods":
        """Likelihoods of observations that are categories.

        Args:
            points: the observations.
            table: E[log p] of each category under each component, [K, V].
            value: the categories, broadcastable to the batch shape.
        """
        found, shift = _exponentials(table.T.contiguous())
        index = points.flat(value.expand(points.batch).long()).reshape(-1)
        rows = found.index_select(0, index).view(*points.sizes, -1)
        return cls(points, rows, shift.index_select(0, index).view(points.sizes))

    def log_sum(self, weights: Tensor) -> Tensor:
        """Logarithms of sums over components, float64 [*batch], given logarithms of weights [..., K]."""
        sums = _LogSums.apply(self.points.weights(weights).double(), self.table)
        return self.points.unflat(sums + self.shift)


def _exponentials(table: Tensor) -> tuple[Tensor, Tensor]:
    """Exponentials of a table [..., K] in proportion, and the largest logarithm of each row [...]: float64.

    The largest one is as large as sums of K products of two may be. What is less than e^-690 of it counts as
    that, and so no product is 0. In float32 that would be e^-80, and a concentration of 0.01 without data has
    an E[log π] of -100.
    """
    table = table.double()
    shift, largest = table.detach().amax(-1), _largest(table)
    least = 0.5 * math.log(torch.finfo(table.dtype).tiny) - largest
    return (table - shift.unsqueeze(-1)).clamp(min=least).exp() * math.exp(largest), shift


def _largest(table: Tensor) -> float:
    """The logarithm of numbers of which K products of two may be added without an overflow."""
    return 0.5 * (math.log(torch.finfo(table.dtype).max) - math.log(table.shape[-1]) - 1)


class _LogSums(torch.autograd.Function):
    """Logarithms of sums [P, Q] over components, of weights' logarithms [P, K] and likelihoods [P, Q, K].

    Both directions take products of exponentials, and read the likelihoods along their memory.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, table: Tensor) -> Tensor:
        factors, shift = _exponentials(weights)
        sums = torch.bmm(factors.unsqueeze(1), table.mT).squeeze(1)
        ctx.save_for_backward(factors, table, sums)
        return (sums * math.exp(-2 * _largest(table))).log() + shift.unsqueeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        factors, table, sums = ctx.saved_tensors
        slopes, (of_weights, of_table) = grad / sums, ctx.needs_input_grad
        return (
            factors * torch.bmm(slopes.unsqueeze(1), table).squeeze(1) if of_weights else None,
            slopes.unsqueeze(-1) * factors.unsqueeze(1) if of_table else None,
        )


# Expectations that need not be taken again while other posteriors change.

T = TypeVar("T")


@dataclass
class ReusedExpectations:
    """Expectations that are the same in several evaluations of one run, between which posteriors change.

    Attributes:
        moving: names of the sites whose posteriors change.
    """

    moving: Set[str] = frozenset()

    def __post_init__(self) -> None:
        self._known: dict[tuple[str, int], Tensor | None] = {}
        self._derived: dict[int, Any] = {}
        self._asked: Counter[str] = Counter()

    def restart(self) -> None:
        """Begin a further evaluation, which asks for the same expectations in the same order."""
        self._asked.clear()

    def value(self, site: str, table: Lazy, evaluate: Callable[[], Tensor]) -> Tensor:
        """The expectation of a table, as a constant where it depends on nothing that moves.

        Args:
            site: whose log-density asks for it.
            table: without numbers.
            evaluate: takes the expectation.
        """
        key = site, self._asked[site]
        self._asked[site] += 1
        if key not in self._known:
            stays = sites_of(table).isdisjoint(self.moving)
            self._known[key] = evaluate().detach() if stays else None
        known = self._known[key]
        return evaluate() if known is None else known

    def is_constant(self, table: Tensor) -> bool:
        """True for an expectation that is kept."""
        return any(table is known for known in self._known.values())

    def derived(self, table: Tensor, compute: Callable[[], T]) -> T:
        """Compute something of an expectation, once for all evaluations if it is kept."""
        if not self.is_constant(table):
            return compute()
        if id(table) not in self._derived:
            self._derived[id(table)] = compute()
        found: T = self._derived[id(table)]
        return found


Evaluate = Callable[[Lazy], Tensor]


def _result_type(fn: Distribution, value: Tensor) -> torch.dtype:
    return torch.promote_types(dtype_of(fn), value.dtype)


def log_density(
    fn: Distribution,
    value: Tensor,
    evaluate: Evaluate,
    reused: ReusedExpectations | None = None,
    drawn: bool = False,
) -> Tensor:
    """``fn.log_prob(value)``, a :class:`Lazy` where value or arguments are not there, else numbers.

    Args:
        fn, value: of a site.
        evaluate: takes the expectation of a lazy table of log-densities. A ``MixtureSameFamily`` asks for it
            before it sums over its components, as over an assignment at its optimal probabilities, and so do
            chains before they sum or integrate over their states.
        reused: expectations that stay the same between several evaluations.
        drawn: draw the components and the states, from their distribution under these tables, in place of
            summing over them: the result is the log-density of value and draws together.
    """
    value = as_number(value)
    if not (is_lazy(value) or has_lazy_arguments(fn)):
        return fn.log_prob(value)
    if isinstance(fn, Independent):
        base = log_density(fn.base_dist, value, evaluate, reused, drawn)
        last = fn.reinterpreted_batch_ndims
        return base.flatten(base.dim() - last).sum(-1) if last else base
    if isinstance(fn, ExpandedDistribution):
        return log_density(fn.base_dist, value, evaluate, reused, drawn)
    if isinstance(fn, MaskedDistribution):
        base = log_density(fn.base_dist, value, evaluate, reused, drawn)
        mask = torch.as_tensor(fn._mask, device=base.device)
        return torch.where(mask, base, torch.zeros((), dtype=base.dtype, device=base.device))
    if isinstance(fn, MixtureSameFamily):
        return _at_drawn_components(fn, value, evaluate) if drawn else _mixture(fn, value, evaluate, reused)
    if isinstance(fn, Columns):
        return fn.density(value, lambda part, piece: log_density(part, piece, evaluate, reused, drawn))
    if isinstance(fn, HiddenMarkov | LinearGaussianChain):
        chain = hidden_chain(fn, value, evaluate)
        weight = chain.log_weight(chain.draw()) if drawn else chain.log_evidence()
        return weight if isinstance(fn, HiddenMarkov) else weight.to(_result_type(fn, value))
    if isinstance(fn, LinearDynamics):
        return fn.chain(*expectations(evaluate)).log_weight(value).to(_result_type(fn, value))
    if ends := sites_of(list(vars(fn.support).values())):
        raise NeedsValueError.of(ends, "an end of a support, beyond which the density is 0")
    return restated_log_prob(_slim(fn), value if is_lazy(value) else exact(value))


def as_number(value: Tensor) -> Tensor:
    """An observed value: 0 and 1 in the place of booleans, which torch has no log-densities of."""
    return value.to(torch.get_default_dtype()) if value.dtype == torch.bool else value


def _mixture(
    fn: MixtureSameFamily, value: Tensor, evaluate: Evaluate, reused: ReusedExpectations | None
) -> Tensor:
    weights, categories = _numbers(_log_weights(fn), evaluate), _categories(fn.component_distribution)
    reused = reused or ReusedExpectations()
    points = Observations.of(weights, fn.batch_shape)
    if points and categories is not None:
        table = _numbers(categories, evaluate)
        found = reused.derived(table, lambda: Likelihoods.looked_up(points, table, value))
        return found.log_sum(weights).to(table)
    table = _numbers(log_density(fn.component_distribution, fn._pad(value), evaluate, reused), evaluate)
    if points and reused.is_constant(table):
        return reused.derived(table, lambda: Likelihoods.of_table(points, table)).log_sum(weights).to(table)
    return (table + weights).logsumexp(-1)


def _at_drawn_components(fn: MixtureSameFamily, value: Tensor, evaluate: Evaluate) -> Tensor:
    table = log_density(fn.component_distribution, fn._pad(value), evaluate, None, True)
    table = _numbers(table, evaluate) + _numbers(_log_weights(fn), evaluate)
    return table.gather(-1, draw_index(table, -1).unsqueeze(-1)).squeeze(-1)


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
