"""Expansion of what a program computed from values that are not there into sums of products of elements.

One rule per function of torch, none per pair of distributions. Hoffman, Johnson and Tran (2018), Section 3,
rewrite log-densities in this way, and Winn and Bishop (2005), Variational message passing, Section 3, show
what the form is good for: the expectation of each product is a product of expected statistics.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Set
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributions import constraints, transform_to
from torch.distributions.constraints import Constraint
from torch.utils._pytree import tree_leaves, tree_map

from pyro_fmvae.distributions.recorded import is_recorded
from pyro_fmvae.infer.elbo.lazy import Computed, Lazy, Sampled, is_lazy, memory_of, name_of, sites_of
from pyro_fmvae.infer.elbo.linear_rules import (
    COPIES,
    LINEAR,
    RESHAPES,
    Tried,
    arguments,
    at_index,
    check_arguments,
    check_index,
    cumulating,
    dim_of,
    gather_slim,
    joined,
    slim_index,
    unknown,
)
from pyro_fmvae.infer.elbo.sums import (
    Factor,
    Product,
    SquareOfSum,
    Sum,
    apply,
    element,
    exact,
    gather,
    is_plain,
    multiply,
    number,
    picked,
    scale,
    select,
    sites_in,
    square,
    total,
    whole,
)

# Identities that hold whatever the values of sites are, found out by trying random values.

_CLOSE = 1e-4


def is_one(x: Lazy, known: dict[Hashable, bool], units: Set[int] = frozenset()) -> bool:
    """True for a sum of probabilities, which is 1 whatever the values of the sites.

    Args:
        x: any value.
        known: what was found out before, by the structure of expressions; added to.
        units: memory of the values of one-hot sites.
    """
    call = x.origin
    return (
        isinstance(call, Computed)
        and call.name == "sum"
        and adds_to_one(call.args[0], call, lambda p: p, known, units)
    )


def adds_to_one(
    terms: Lazy,
    call: Computed,
    function: Callable[[Tensor], Tensor],
    known: dict[Hashable, bool],
    units: Set[int] = frozenset(),
) -> bool:
    """True if a function of terms adds to 1 in the last dimension: tried on draws of the sites, once.

    Args:
        terms: the values that are added up.
        call: the function that adds them.
        function: of the terms, before they are added.
        known, units: as in :func:`is_one`.
    """
    (dim,) = arguments(call, "dim")
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    if dims not in ([-1], [terms.dim() - 1]):
        return False
    inner = _without_views(terms, known, units)
    structure = _structure(inner)
    if structure is None:
        return False
    key = (call.name, structure)
    if key not in known:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            sums = [function(at_values(inner)).sum(-1) for _ in range(2)]
        known[key] = all(bool((s - 1).abs().max() < _CLOSE) for s in sums)
    return known[key]


def so_far(known: dict[Hashable, bool], key: Hashable, look: Callable[[], bool]) -> bool:
    """Look at numbers of the program; in a recording, which may not, return True if all looks before did.

    Args:
        known: what was found out before; added to.
        key: of what is asked.
        look: returns the answer.
    """
    if is_recorded():
        return known.get(key, False)
    found = look()
    known[key] = found and known.get(key, True)
    return found


def sum_of_cases(call: Computed) -> Lazy | None:
    """A sum over the last dimension of one of two values as one of two sums; None for any other call.

    The condition may not vary in that dimension.
    """
    source = call.args[0]
    if call.name != "sum" or not isinstance(source.origin, Computed) or source.origin.name != "where":
        return None
    (dim, keepdim), cases = arguments(call, "dim", "keepdim"), cases_of(source.origin)
    if dim not in (-1, [-1], (-1,)) or cases is None:
        return None
    condition, one, other = (torch.as_tensor(each).expand(source.shape) for each in cases)
    if condition.stride(-1) != 0 and source.shape[-1] > 1:
        return None
    condition = condition[..., :1] if keepdim else condition[..., 0]
    result: Any = torch.where(condition, one.sum(-1, bool(keepdim)), other.sum(-1, bool(keepdim)))
    return result


def cases_of(call: Computed) -> tuple[Any, Any, Any] | None:
    """The condition of a ``where``, the value where it holds, and the other one; None if it is not known."""
    if len(call.args) != 3:
        return None
    first, second, third = call.args
    condition, *values = (second, first, third) if call.function is Tensor.where else call.args
    return None if isinstance(condition, Lazy) else (condition, *values)


def _without_views(x: Lazy, known: dict[Hashable, bool], units: Set[int]) -> Lazy:
    """The value inside of functions that leave its last dimension whole, in any order."""
    while isinstance(x.origin, Computed) and x.origin.args:
        call, source = x.origin, x.origin.args[0]
        if not isinstance(source, Lazy) and name_of(call) == "matmul" and memory_of(source) in units:
            x = call.args[1]
            continue
        if not isinstance(source, Lazy):
            break
        by_rows = call.name in COPIES | RESHAPES | {"unsqueeze"}
        if call.name == "__getitem__":
            by_rows = _is_by_rows(call.args[1], source, known)
        if call.name == "index_select":
            by_rows = dim_of(call, source) != -1
        if not by_rows or source.shape[-1:] != x.shape[-1:]:
            break
        x = source
    return x


def _is_by_rows(index: Any, source: Lazy, known: dict[Hashable, bool]) -> bool:
    """True if an index leaves rows whole, in any order; ``Vindex`` may write them as a range."""
    *others, last = index if isinstance(index, tuple) else (index,)
    if isinstance(last, slice) and last == slice(None):
        return True
    whole = not any(each is Ellipsis for each in (*others, last))
    if whole and sum(each is not None for each in (*others, last)) < source.dim():
        return True
    if not isinstance(last, Tensor | list) or len(last) != source.shape[-1]:
        return False
    tensors = [each for each in others if isinstance(each, Tensor)]
    if any(each.shape[-1:].numel() > 1 for each in tensors) or (tensors and len(tensors) < len(others)):
        return False
    shapes = tuple(each.shape for each in tensors)
    numbers = repr(last) if isinstance(last, list) else last.shape
    key = ("rows", _structure(source), len(others), shapes, numbers)
    return so_far(known, key, lambda: torch.as_tensor(last).sort()[0].tolist() == list(range(len(last))))


def _structure(x: Any) -> Hashable | None:
    """An expression as nested tuples that can be compared; None if it has numbers of the program's in it."""
    if isinstance(x, Lazy):
        if isinstance(x.origin, Sampled):
            return ("site", x.origin.name, str(x.origin.support), tuple(x.shape))
        parts = [_structure(leaf) for leaf in tree_leaves((x.origin.args, x.origin.kwargs))]
        if None in parts:
            return None
        return (x.origin.name, x.origin.output, tuple(x.shape), *parts)
    return None if isinstance(x, Tensor) else ("constant", repr(x))


def at_values(x: Any, known: dict[Any, Any] | None = None) -> Any:
    """An expression at values of its sites, by name; random ones where there is none."""
    known = {} if known is None else known
    if not isinstance(x, Lazy):
        return x
    if isinstance(x.origin, Sampled):
        if x.origin.name not in known:
            transform = transform_to(x.origin.support)
            free = torch.randn(transform.inverse_shape(x.shape), dtype=x.dtype)
            known[x.origin.name] = transform(free).to(x.device)
        return known[x.origin.name]
    if id(x) not in known:
        args, kwargs = tree_map(lambda y: at_values(y, known), (x.origin.args, x.origin.kwargs))
        result = x.origin.function(*args, **kwargs)
        known[id(x)] = result[x.origin.output] if isinstance(result, tuple | list) else result
    return known[id(x)]


# Rules for logarithms of x and of 1 - x, for functions that do more than pick elements.


_IMPOSSIBLE = -1e30  # in the place of log 0, so that 0 log 0 is 0; it has no gradient


class _Expands(Protocol):
    identities: dict[Hashable, bool]
    units: Set[int]

    def of(self, x: Any) -> Sum: ...

    def log(self, x: Any, kind: str = "log") -> Sum: ...


def log_of_number(x: Tensor | float, kind: str) -> Sum:
    """The logarithm of a known x, or of 1 - x for ``kind`` "log1m"."""
    if isinstance(x, Tensor):
        x = exact(x)
        impossible = x == (0 if kind == "log" else 1)
        inside = x.where(~impossible, 0.5)
        return [
            [number((inside.log() if kind == "log" else (-inside).log1p()).where(~impossible, _IMPOSSIBLE))]
        ]
    size = x if kind == "log" else 1 - x
    if size <= 0:
        return [[number(math.nan if size < 0 else _IMPOSSIBLE)]]
    return [[number(math.log(x) if kind == "log" else math.log1p(-x))]]


def log_of_call(expansion: _Expands, x: Lazy, call: Computed, kind: str) -> Sum | None:
    """The logarithm of a computed x, or of 1 - x; None if there is no rule."""
    remainder = _one_minus(call)
    if remainder is not None:
        return expansion.log(remainder, "log" if kind == "log1m" else "log1m")
    found = _log_by_function(expansion, x, call) if kind == "log" else None
    return _log_of_cases(expansion, x, kind) if found is None else found


def _log_by_function(expansion: _Expands, x: Lazy, call: Computed) -> Sum | None:
    name = name_of(call)
    a, b = (*call.args, None, None)[:2]
    if name == "mul":
        return expansion.log(a) + expansion.log(b)
    if name == "div":
        return expansion.log(a) + scale(expansion.log(b), -1)
    if name == "exp":
        return expansion.of(a)
    if name == "cumprod":
        return apply(expansion.log(a), dim_of(call, a), cumulating(x, dim_of(call, a)))
    if name == "prod" and isinstance(b, int):
        keepdim = bool(arguments(call, "dim", "keepdim")[1])
        return total(expansion.log(a), a.shape, [dim_of(call, a)], keepdim)
    if name == "sum" and is_one(x, expansion.identities, expansion.units):
        return []
    cases = sum_of_cases(call)
    if cases is not None:
        return expansion.log(cases)
    if name in ("add", "sub", "rsub", "sum"):
        return None
    terms, exponent = expansion.of(a if name == "abs" else x), _exponent(call)
    if len(terms) == 1 and is_plain(terms[0]) and all(f.function in ("", "x") for f in terms[0]):
        return [_log_of_factor(f) for f in terms[0]]
    return scale(expansion.log(a), exponent) if exponent in (-1, 0.5, -0.5) else None


def _log_of_factor(f: Factor) -> Product:
    if f.is_number:
        return [f._replace(tensor=_log_of_size(f.tensor))]
    return [number(float(f.power)), f._replace(function="log", power=1)]


def _log_of_cases(expansion: _Expands, x: Lazy, kind: str) -> Sum | None:
    """The logarithm of a sum in which numbers (indicators, say) leave one term or none at a position."""
    result: Sum = []
    terms = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    for term in expansion.of(x):
        factors = [f for f in term if not f.is_number]
        if not is_plain(term) or any(f.function != "x" for f in factors):
            return None
        one = torch.ones((), dtype=x.dtype, device=x.device)
        known = math.prod((whole(f, x) for f in term if f.is_number), start=one)
        if kind == "log1m" and factors:
            if len(factors) > 1 or factors[0].power != 1 or not _hold(x, (known == 0) | (known == 1)):
                return None
            result.append([number(known), factors[0]._replace(function=kind)])
        elif kind == "log1m":
            result += log_of_number(known.expand(x.shape), kind)
        else:
            chosen = (known != 0).to(x.dtype)
            result.append([number(chosen * _log_of_size(known))])
            result += [[number(chosen * f.power), f._replace(function="log", power=1)] for f in factors]
        terms = terms + (known != 0)
    if not _hold(x, terms <= 1):
        return None
    if kind == "log":
        result.append([number(_IMPOSSIBLE * (terms == 0).to(x.dtype))])
    return result


def _hold(x: Lazy, conditions: Tensor) -> bool:
    """True if all conditions on the numbers in a sum hold; where a step is recorded, nobody may look."""
    try:
        return bool(conditions.all())
    except RuntimeError as error:
        raise type(error)(
            f"the logarithm of a sum with values of site '{min(sites_of(x))}' in it depends on which of its "
            "terms are 0: write torch.where(a == 1, x, y) for a * x + (1 - a) * y, and "
            "torch.where(a == 1, x, 0.0) for a * x"
        ) from None


def _log_of_size(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.where(value != 0, 1.0).abs().log().where(value != 0, _IMPOSSIBLE)
    return math.log(abs(value)) if value else _IMPOSSIBLE


def _one_minus(call: Computed) -> Any:
    """The y of a call that computes 1 - y; None for another call."""
    a, b = (*call.args, None, None)[:2]
    name = name_of(call)
    one, other = (b, a) if name == "rsub" else (a, b)
    is_one = name in ("sub", "rsub") and isinstance(one, int | float) and one == 1
    return other if is_one and not call.kwargs else None


_VIEWS = RESHAPES | {
    *("unsqueeze", "transpose", "permute", "mT", "T", "t", "__getitem__", "select", "index_select", "gather"),
    *("flip", "narrow", "unbind", "diagonal", "swapaxes", "movedim", "take_along_dim", "split", "chunk"),
}
_POWERS = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}
OF_A_SUM = " of a sum"
"""How the name of a power ends that has no closed form because its base is a sum."""
_MOST_FACTORS = 4  # of one sum in a power of it
_MOST_SITES = 8  # in a sum whose square is spelt out
_GUARD = 1.001e-6  # a clamp at 1e-6 from the end of an interval, or closer, keeps a logarithm finite
_LARGEST_GUARD = 1e-2  # of those that a reason names


class Expansion:
    """Expands values into sums of products.

    Args:
        identities: what was found out about expressions, by their structure. It may be kept between runs: an
            identity that holds for random values of the sites holds for all.
        centres: name of a site → numbers c, if the products are to be those of x - c, of as many dimensions
            as x and broadcastable to it.
        units: memory of the values of one-hot sites: products with these pick elements.
        without_guards: leave out small numbers that are added, and clamps close to the end of an interval.
        keeps_squares: leave the square of a sum with many sites as one factor, as it has the square of their
            number of products: see :class:`SquareOfSum`.

    Attributes:
        squares: the sums whose squares are factors, by the names that these factors have as sites.
        left_out: name of a site → the clamp of it that was left out, as it keeps all but a negligible part of
            the interval; also any other guard, where these are left out.

    Raises:
        NeedsValueError: (by the methods) a function that is no sum of products.
    """

    def __init__(
        self,
        identities: dict[Hashable, bool],
        centres: Mapping[str, Tensor] | None = None,
        units: Set[int] = frozenset(),
        without_guards: bool = False,
        keeps_squares: bool = False,
    ) -> None:
        self.identities, self._centres, self.units = identities, centres or {}, units
        self._without_guards, self._keeps_squares = without_guards, keeps_squares
        self.squares: dict[str, SquareOfSum] = {}
        self.left_out: dict[str, str] = {}
        self._known: dict[int, tuple[Lazy, Sum]] = {}

    def of(self, x: Any) -> Sum:
        """A value as a sum of products."""
        if not isinstance(x, Lazy):
            is_unit = isinstance(x, Tensor) and memory_of(x) in self.units
            return [[number(exact(x) if isinstance(x, Tensor) and not is_unit else x)]]
        if id(x) not in self._known:
            self._known[id(x)] = (x, self._of(x))
        return self._known[id(x)][1]

    def _of(self, x: Lazy) -> Sum:
        if isinstance(x.origin, Sampled):
            itself = [element(x.origin.name, torch.arange(x.numel(), device=x.device).view(x.shape))]
            centre = self._centres.get(x.origin.name)
            return [itself] if centre is None else [itself, [number(centre)]]
        call = x.origin
        check_arguments(x, call)
        guarded = self.without_guard(call)
        if guarded is not None:
            return self.of(guarded)
        name = name_of(call)
        a, b = (*call.args, None, None)[:2]
        rule = getattr(self, f"_{name}", None) if name in _RULES else None
        if rule is not None:
            return rule(x, call, a, b)
        found = LINEAR[name](self.of, x, call) if name in LINEAR else None
        if found is not None:
            return gather(picked(found, self.units))
        exponent = _exponent(call)
        if exponent is not None:
            return self._power(a, exponent)
        terms = self._selected(x, call, self.of) or Tried(x, call, self.identities).linear(self.of)
        if terms is None:
            raise unknown(x, call.name)
        return gather(terms)

    # Arithmetic

    def without_guard(self, call: Computed) -> Any:
        """The value that a small number guards, if guards are left out; None for another call."""
        a, b = (*call.args, None)[:2]
        if not self._without_guards or name_of(call) not in ("add", "maximum") or is_lazy(b):
            return None
        size = torch.as_tensor(b, dtype=torch.float64).max()
        if not 0 < size <= _LARGEST_GUARD:
            return None
        text = f"+ {size:g}" if name_of(call) == "add" else f"maximum with {size:g}"
        self.left_out |= dict.fromkeys(sites_of(a), text)
        return a

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
        if isinstance(b, Lazy):
            return multiply(self.of(a), self._power(b, -1))
        return multiply(self.of(a), [[number(1 / (exact(b) if isinstance(b, Tensor) else b))]])

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

    def _log_beta(self, x: Lazy, call: Computed, a: Any, b: Any) -> Sum:
        """Where one of the arguments is 1: log B(1, b) = -log b."""
        for position, (one, other) in enumerate(((a, b), (b, a))):
            key = ("one", position, x.shape, frozenset(sites_of(x)))
            if so_far(self.identities, key, lambda one=one: self._is_one(one)):  # type: ignore[misc]
                return scale(self.log(other), -1)
        raise unknown(x, "the normaliser of a Beta of which no argument is 1")

    def _is_one(self, x: Any) -> bool:
        """True for a value that is 1 everywhere, whatever the sites' values are."""
        if not isinstance(x, Lazy):
            return bool((torch.as_tensor(x) == 1).all())
        ones = torch.ones(x.shape, dtype=x.dtype, device=x.device)
        for term in self.of(x):
            known = math.prod((whole(f, x) for f in term if f.is_number), start=torch.ones_like(ones))
            if all(f.is_number for f in term):
                ones = ones - known
            elif not is_plain(term) or bool((known != 0).any()):
                return False
        return not ones.requires_grad and not bool((ones != 0).any())

    def _power(self, x: Any, exponent: float) -> Sum:
        if not isinstance(x, Lazy):
            return [[number(x**exponent if isinstance(x, Tensor) else float(x) ** exponent)]]
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
        found = self._power_of_call(x, exponent)
        if found is not None:
            return found
        if whole and 1 < exponent <= _MOST_FACTORS:
            if exponent == 2 and self._keeps_squares and len(sites_in(terms)) > _MOST_SITES:
                name = f"square {len(self.squares)}"
                self.squares[name] = SquareOfSum(terms, x.shape)
                numbers = torch.arange(x.numel(), device=x.device).view(x.shape)
                return [[element(name, numbers)._replace(function="square")]]
            result = square(terms)
            for _ in range(int(exponent) - 2):
                result = multiply(result, terms)
            return result
        is_sum = len(terms) > 1 or not is_plain(terms[0])
        raise unknown(x, f"the power {exponent:g}{OF_A_SUM if is_sum else ''}")

    def _power_of_call(self, x: Lazy, exponent: float) -> Sum | None:
        """The power of a product, or of what picks among values: that of each; None for anything else."""
        call = x.origin
        assert isinstance(call, Computed)
        a, b = (*call.args, None, None)[:2]
        name, inner, cases = name_of(call), _exponent(call), sum_of_cases(call)
        if cases is not None:
            return self._power(cases, exponent)
        if name == "mul":
            return multiply(self._power(a, exponent), self._power(b, exponent))
        if name == "div":
            return multiply(self._power(a, exponent), self._power(b, -exponent))
        if inner is not None and exponent == int(exponent):
            return self._power(a, inner * exponent)
        return self._selected(x, call, lambda y: self._power(y, exponent))

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

    def _chosen(self, x: Lazy, call: Computed, expand: Callable[[Any], Sum]) -> Sum | None:
        """One of two values where a condition holds, the other one elsewhere."""
        cases = cases_of(call)
        if cases is None:
            return None
        condition, one, other = cases
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
        if name_of(call) == "clamp" and (_keeps_all(call) or (self._without_guards and _is_guard(call))):
            self._note_clamp(x, call)
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
        if name == "where":
            return self._chosen(x, call, expand)
        known = name_of(call) in _RULES or name_of(call) in LINEAR or _exponent(call) is not None
        return None if known else Tried(x, call, self.identities).elements(expand)

    def _note_clamp(self, x: Lazy, call: Computed) -> None:
        """Keep in mind a clamp that is left out, unless it is of torch's own distributions."""
        ends = arguments(call, "min", "max")
        edge = torch.finfo(call.args[0].dtype).eps
        if ends != [edge, 1 - edge]:
            given = (
                f"{name}={end:g}" for name, end in zip(("min", "max"), ends, strict=True) if end is not None
            )
            self.left_out |= dict.fromkeys(sites_of(x), f"clamp({', '.join(given)})")

    # Logarithms

    def log(self, x: Any, kind: str = "log") -> Sum:
        """The logarithm of x, or of 1 - x for ``kind`` "log1m", as a sum of products."""
        if not isinstance(x, Lazy):
            return log_of_number(x, kind)
        if isinstance(x.origin, Sampled):
            return [[f._replace(function=kind) for f in self.of(x)[0]]]
        call = x.origin
        check_arguments(x, call)
        guarded = self.without_guard(call)
        if guarded is not None:
            return self.log(guarded, kind)
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
    *("exp", "logsumexp", "log_beta"),
}


def _exponent(call: Computed) -> float | None:
    """The power that a call raises a value to; None for any other call."""
    exponent = _POWERS.get(name_of(call), call.args[1] if name_of(call) == "pow" else None)
    return exponent if isinstance(exponent, int | float) and isinstance(call.args[0], Lazy) else None


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
            edge = torch.finfo(call.args[0].dtype).eps
            return (low, high) == (edge, 1 - edge)
        source = source.origin.args[0]
    least, greatest = _ends(source.origin.support)
    keeps_low = low is None or (abs(low) < _GUARD and least >= 0)
    return keeps_low and (high is None or (abs(1 - high) < _GUARD and greatest <= 1))


def _is_guard(call: Computed) -> bool:
    """True for a clamp by numbers close to 0 and 1."""
    low, high = arguments(call, "min", "max")
    is_low = low is None or (isinstance(low, int | float) and abs(low) <= _LARGEST_GUARD)
    return is_low and (high is None or (isinstance(high, int | float) and abs(1 - high) <= _LARGEST_GUARD))


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
