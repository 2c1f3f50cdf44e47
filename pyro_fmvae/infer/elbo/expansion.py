"""Expansion of what a program computed from values that are not there into sums of products of elements.

One rule per function of torch, none per pair of distributions. Hoffman, Johnson and Tran (2018), Section 3,
rewrite log-densities in this way, and Winn and Bishop (2005), Variational message passing, Section 3, show
what the form is good for: the expectation of each product is a product of expected statistics.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Set
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from pyro_fmvae.infer.elbo.calls import (
    COPIES,
    RESHAPES,
    arguments,
    at_index,
    check_arguments,
    check_index,
    gather_slim,
    name_of,
    slim_index,
    unknown,
)
from pyro_fmvae.infer.elbo.identities import adds_to_one, is_one
from pyro_fmvae.infer.elbo.lazy import Computed, Lazy, Sampled, is_lazy
from pyro_fmvae.infer.elbo.linear_rules import LINEAR, joined
from pyro_fmvae.infer.elbo.logarithms import log_of_call, log_of_number
from pyro_fmvae.infer.elbo.sums import (
    Sum,
    element,
    gather,
    is_plain,
    multiply,
    number,
    picked,
    scale,
    select,
    square,
    whole,
)

_VIEWS = RESHAPES | {
    *("unsqueeze", "transpose", "permute", "mT", "T", "t", "__getitem__", "select", "index_select", "gather"),
    *("flip", "narrow", "unbind", "diagonal", "swapaxes", "movedim", "take_along_dim", "split", "chunk"),
}
_POWERS = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}
OF_A_SUM = " of a sum"
"""How the name of a power ends that has no closed form because its base is a sum."""
_MOST_FACTORS = 4  # of one sum in a power of it
_GUARD = 1e-6  # a clamp no further than this from the end of an interval keeps a logarithm finite


class Expansion:
    """Expands values into sums of products.

    Args:
        identities: what was found out about expressions, by their structure. It may be kept between runs: an
            identity that holds for random values of the sites holds for all.
        centres: name of a site → numbers c, if the products are to be those of x - c, of as many dimensions
            as x and broadcastable to it.
        units: memory of the values of one-hot sites: products with these pick elements.

    Raises:
        NeedsValueError: (by the methods) a function that is no sum of products.
    """

    def __init__(
        self,
        identities: dict[Hashable, bool],
        centres: Mapping[str, Tensor] | None = None,
        units: Set[int] = frozenset(),
    ) -> None:
        self.identities, self._centres, self.units = identities, centres or {}, units
        self._known: dict[int, tuple[Lazy, Sum]] = {}

    def of(self, x: Any) -> Sum:
        """A value as a sum of products."""
        if not isinstance(x, Lazy):
            return [[number(x)]]
        if id(x) not in self._known:
            self._known[id(x)] = (x, self._of(x))
        return self._known[id(x)][1]

    def _of(self, x: Lazy) -> Sum:
        if isinstance(x.origin, Sampled):
            itself = [element(x.origin.name, torch.arange(x.numel(), device=x.device).view(x.shape))]
            centre = self._centres.get(x.origin.name)
            return [itself] if centre is None else [itself, [number(centre.to(x.dtype))]]
        call = x.origin
        check_arguments(x, call)
        name = name_of(call)
        a, b = (*call.args, None, None)[:2]
        rule = getattr(self, f"_{name}", None) if name in _RULES else None
        if rule is not None:
            return rule(x, call, a, b)
        if name in LINEAR:
            return gather(picked(LINEAR[name](self.of, x, call), self.units))
        if name in _POWERS or name == "pow":
            exponent = _POWERS.get(name, b)
            if isinstance(a, Lazy) and isinstance(exponent, int | float):
                return self._power(a, exponent)
        terms = self._selected(x, call, self.of)
        if terms is None:
            raise unknown(x, call.name)
        return terms

    # Arithmetic

    def _add(self, x: Lazy, call: Computed, a: Any, b: Any) -> Sum:
        return gather(self.of(a) + scale(self.of(b), call.kwargs.get("alpha", 1)))

    def _sub(self, x: Lazy, call: Computed, a: Any, b: Any) -> Sum:
        return gather(self.of(a) + scale(self.of(b), -call.kwargs.get("alpha", 1)))

    def _rsub(self, x: Lazy, call: Computed, a: Any, b: Any) -> Sum:
        return gather(scale(self.of(a), -call.kwargs.get("alpha", 1)) + self.of(b))

    def _neg(self, x: Lazy, call: Computed, a: Any, b: Any) -> Sum:
        return scale(self.of(a), -1)

    def _mul(self, x: Lazy, call: Computed, a: Any, b: Any) -> Sum:
        return multiply(self.of(a), self.of(b))

    def _div(self, x: Lazy, call: Computed, a: Any, b: Any) -> Sum:
        return multiply(self.of(a), self._power(b, -1) if isinstance(b, Lazy) else [[number(1 / b)]])

    def _rdiv(self, x: Lazy, call: Computed, a: Any, b: Any) -> Sum:
        return multiply(self._power(a, -1), self.of(b))

    def _log(self, x: Lazy, call: Computed, a: Any, b: Any) -> Sum:
        return self.log(a)

    def _log1p(self, x: Lazy, call: Computed, a: Any, b: Any) -> Sum:
        if isinstance(a.origin, Computed) and name_of(a.origin) == "neg":
            return self.log(a.origin.args[0], "log1m")
        raise unknown(x, "log1p")

    def _xlogy(self, x: Lazy, call: Computed, a: Any, b: Any) -> Sum:
        return multiply(self.of(a), self.log(b))

    def _power(self, x: Lazy, exponent: float) -> Sum:
        terms = self.of(x)
        whole = exponent == int(exponent)
        if not whole and any(f.site and f.power % 2 == 0 for term in terms for f in term):
            raise unknown(x, "the root of a square")  # an absolute value, where the site may be negative
        if len(terms) == 1 and is_plain(terms[0]) and all(f.function in ("", "x") for f in terms[0]):
            return [
                [
                    f._replace(tensor=f.tensor**exponent)
                    if f.is_number
                    else f._replace(power=f.power * exponent)
                    for f in terms[0]
                ]
            ]
        if exponent == -1 and is_one(x, self.identities, self.units):
            return [[number(1.0)]]
        if whole and 1 < exponent <= _MOST_FACTORS:
            result = square(terms)
            for _ in range(int(exponent) - 2):
                result = multiply(result, terms)
            return result
        is_sum = len(terms) > 1 or not is_plain(terms[0])
        raise unknown(x, f"the power {exponent:g}{OF_A_SUM if is_sum else ''}")

    def _exp(self, x: Lazy, call: Computed, a: Lazy, b: Any) -> Sum:
        result: Sum = [[number(1.0)]]
        for term in self.of(a):
            known = [f for f in term if f.is_number]
            logs = [f for f in term if f.function == "log"]
            if not is_plain(term) or len(known) + len(logs) < len(term) or len(logs) > 1:
                raise unknown(x, "exp")
            if not logs:
                exponents = [whole(f, x) for f in known]
                result = multiply(result, [[number(math.prod(exponents[1:], start=exponents[0]).exp())]])
            elif all(isinstance(f.tensor, float) for f in known):
                exponent = math.prod(float(f.tensor) for f in known)
                result = multiply(result, [[logs[0]._replace(function="x", power=exponent)]])
            else:
                raise unknown(x, "exp")
        return result

    def _logsumexp(self, x: Lazy, call: Computed, a: Lazy, b: Any) -> Sum:
        if adds_to_one(a, call, torch.exp, self.identities, self.units):
            return []
        raise unknown(x, "logsumexp")

    def _chosen(self, x: Lazy, call: Computed, expand: Callable[[Any], Sum]) -> Sum:
        """One of two values where a condition holds, the other one elsewhere."""
        condition, one, other = call.args
        if call.function is Tensor.where:
            condition, one = one, condition
        if is_lazy(condition):
            raise unknown(x, "where")
        result: Sum = []
        for value, chosen in ((one, condition), (other, ~condition)):
            if isinstance(value, Tensor) and not isinstance(value, Lazy):
                value = value.where(chosen, 1.0)  # 0 * NaN is NaN
            result += multiply([[number(chosen.to(x.dtype))]], expand(value))
        return result

    # Functions that pick elements: they act on values and on their logarithms alike

    def _selected(self, x: Lazy, call: Computed, expand: Callable[[Any], Sum]) -> Sum | None:
        name, args = call.name, call.args
        if name in COPIES or (name in RESHAPES and x.shape == args[0].shape):
            return expand(args[0])
        if name == "clamp" and _keeps_all(call):
            return expand(args[0])
        if name in _VIEWS and not is_lazy(args[1:], call.kwargs):
            if name == "__getitem__":
                check_index(args[0], args[1], sizes=(1,))

            def pick(tensor: Tensor, constant: frozenset[int]) -> Tensor:
                if name == "__getitem__":
                    return at_index(tensor, slim_index(args[1], tensor.dim(), constant))
                if name == "gather":
                    dim, index = arguments(call, "dim", "index")
                    return gather_slim(tensor, dim, index, constant)
                function = torch.Tensor.reshape if name == "view" else call.function
                result = function(tensor, *args[1:], **call.kwargs)
                return result[call.output] if isinstance(result, tuple | list) else result

            terms = expand(args[0])
            try:
                return select(terms, args[0].shape, pick)
            except IndexError:
                if name == "__getitem__":
                    check_index(args[0], args[1], sizes=args[0].shape)
                raise
        if name in ("stack", "cat"):
            return joined(expand, x, call)
        if name == "where" and len(args) == 3:
            return self._chosen(x, call, expand)
        return None

    # Logarithms

    def log(self, x: Any, kind: str = "log") -> Sum:
        """The logarithm of x, or of 1 - x for ``kind`` "log1m", as a sum of products."""
        if not isinstance(x, Lazy):
            return log_of_number(x, kind)
        if isinstance(x.origin, Sampled):
            return [[f._replace(function=kind) for f in self.of(x)[0]]]
        call = x.origin
        check_arguments(x, call)
        terms = self._selected(x, call, lambda y: self.log(y, kind))
        if terms is not None:
            return terms
        found = log_of_call(self, x, call, kind)
        if found is None:
            raise unknown(
                x,
                f"the logarithm of one minus '{call.name}'"
                if kind != "log"
                else f"the logarithm of '{call.name}'",
            )
        return found


_RULES = {
    *("add", "sub", "rsub", "neg", "mul", "div", "rdiv", "log", "log1p", "xlogy"),
    *("exp", "logsumexp"),
}


def _keeps_all(call: Computed) -> bool:
    """True for a clamp that only keeps elements of a site off the ends of its support, [0, ∞) or [0, 1].

    Probabilities that were computed are in [0, 1] if torch's distributions clamp them, by the type's epsilon.
    """
    low, high = arguments(call, "min", "max")
    if not isinstance(low, int | float | None) or not isinstance(high, int | float | None):
        return False
    source = call.args[0]
    while isinstance(source.origin, Computed):
        if source.origin.name not in _VIEWS | COPIES:  # computed: of torch's own distributions alone
            edge = torch.finfo(source.dtype).eps
            return (low, high) == (edge, 1 - edge)
        source = source.origin.args[0]
    least, greatest = _ends(source.origin.support)
    keeps_low = low is None or (abs(low) < _GUARD and least >= 0)
    return keeps_low and (high is None or (abs(1 - high) < _GUARD and greatest <= 1))


def _ends(support: Constraint) -> tuple[float, float]:
    """The least and the greatest number of a support, infinite where that is not known."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is constraints.simplex:
        return 0.0, 1.0
    ends = (
        getattr(support, name, end) for name, end in (("lower_bound", -math.inf), ("upper_bound", math.inf))
    )
    least, greatest = (float(end) if isinstance(end, int | float) else math.nan for end in ends)
    return least, greatest
