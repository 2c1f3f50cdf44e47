"""What a program computed from values that are not there, as a sum of products of single elements.

One rule per function of torch, none per pair of distributions. Hoffman, Johnson and Tran (2018), Section 3,
rewrite log-densities in this way, and Winn and Bishop (2005), Variational message passing, Section 3, show
what the form is good for: the expectation of each product is a product of expected statistics.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import transform_to
from torch.utils._pytree import tree_leaves, tree_map

from pyro_fmvae.infer.elbo.lazy import Call, Lazy, NeedsValueError, Site, is_lazy, sites_of
from pyro_fmvae.infer.elbo.sums import (
    Factor,
    Sum,
    apply,
    contraction,
    element,
    gather,
    is_plain,
    matrix_product,
    multiply,
    number,
    place,
    rename,
    scale,
    select,
    times,
    total,
)

_ALIASES = {
    "__add__": "add",
    "__radd__": "add",
    "__sub__": "sub",
    "subtract": "sub",
    "__rsub__": "rsub",
    "__mul__": "mul",
    "__rmul__": "mul",
    "multiply": "mul",
    "__truediv__": "div",
    "divide": "div",
    "true_divide": "div",
    "__rtruediv__": "rdiv",
    "__rdiv__": "rdiv",
    "__pow__": "pow",
    "__neg__": "neg",
    "negative": "neg",
    "__matmul__": "matmul",
    "__rmatmul__": "rmatmul",
    "mv": "matmul",
    "mm": "matmul",
    "dot": "matmul",
    "bmm": "matmul",
}
_SAME = {"expand", "expand_as", "broadcast_to", "contiguous", "clone", "to", "float", "double", "type_as"}
_RESHAPES = {"reshape", "view", "flatten", "squeeze"}
_VIEWS = _RESHAPES | {
    *("unsqueeze", "transpose", "permute", "mT", "T", "t", "__getitem__", "select", "index_select", "gather"),
    *("flip", "narrow", "unbind", "diagonal", "swapaxes", "movedim", "take_along_dim", "split", "chunk"),
}
_POWERS = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}
_MOST_FACTORS = 4  # of one sum in a power of it
_CLOSE = 1e-4
_GUARD = 1e-6  # a clamp no further than this from the end of an interval keeps a logarithm finite


class Expansion:
    """Expands values into sums of products.

    Args:
        identities: what was found out about expressions, by their structure. It may be kept between runs: an
            identity that holds for random values of the sites holds for all.
        centres: name of a site → numbers c of its value's shape, if the products are to be those of x - c.

    Raises:
        NeedsValueError: (by the methods) a function that is no sum of products.
    """

    def __init__(self, identities: dict[Hashable, bool], centres: Mapping[str, Tensor] | None = None) -> None:
        self._identities, self._centres = identities, centres or {}
        self._known: dict[int, tuple[Lazy, Sum]] = {}

    def of(self, x: Any) -> Sum:
        """A value as a sum of products."""
        if not isinstance(x, Lazy):
            return [[number(x)]]
        if id(x) not in self._known:
            self._known[id(x)] = (x, self._of(x))
        return self._known[id(x)][1]

    def _of(self, x: Lazy) -> Sum:
        if isinstance(x.origin, Site):
            itself = [element(x.origin.name, torch.arange(x.numel(), device=x.device).view(x.shape))]
            centre = self._centres.get(x.origin.name)
            return [itself] if centre is None else [itself, [number(centre.to(x.dtype))]]
        call = x.origin
        name = _ALIASES.get(call.name, call.name)
        a, b = (*call.args, None, None)[:2]
        rule = getattr(self, f"_{name}", None) if name in _RULES else None
        if rule is not None:
            return rule(x, call, a, b)
        if name in _POWERS or name == "pow":
            exponent = _POWERS.get(name, b)
            if isinstance(a, Lazy) and isinstance(exponent, int | float):
                return self._power(a, exponent)
        terms = self._selected(x, call, self.of)
        if terms is None:
            raise _unknown(x, call.name)
        return terms

    # Arithmetic

    def _add(self, x: Lazy, call: Call, a: Any, b: Any) -> Sum:
        return gather(self.of(a) + scale(self.of(b), call.kwargs.get("alpha", 1)))

    def _sub(self, x: Lazy, call: Call, a: Any, b: Any) -> Sum:
        return gather(self.of(a) + scale(self.of(b), -call.kwargs.get("alpha", 1)))

    def _rsub(self, x: Lazy, call: Call, a: Any, b: Any) -> Sum:
        return gather(scale(self.of(a), -1) + self.of(b))

    def _neg(self, x: Lazy, call: Call, a: Any, b: Any) -> Sum:
        return scale(self.of(a), -1)

    def _mul(self, x: Lazy, call: Call, a: Any, b: Any) -> Sum:
        return multiply(self.of(a), self.of(b))

    def _div(self, x: Lazy, call: Call, a: Any, b: Any) -> Sum:
        if call.kwargs.get("rounding_mode") is not None:
            raise _unknown(x, call.name)
        return multiply(self.of(a), self._power(b, -1) if isinstance(b, Lazy) else [[number(1 / b)]])

    def _rdiv(self, x: Lazy, call: Call, a: Any, b: Any) -> Sum:
        return multiply(self._power(a, -1), self.of(b))

    def _log(self, x: Lazy, call: Call, a: Any, b: Any) -> Sum:
        return self.log(a)

    def _log1p(self, x: Lazy, call: Call, a: Any, b: Any) -> Sum:
        if isinstance(a.origin, Call) and _ALIASES.get(a.origin.name, a.origin.name) == "neg":
            return self.log(a.origin.args[0], "log1m")
        raise _unknown(x, "log1p")

    def _xlogy(self, x: Lazy, call: Call, a: Any, b: Any) -> Sum:
        return multiply(self.of(a), self.log(b))

    def _power(self, x: Lazy, exponent: float) -> Sum:
        terms = self.of(x)
        if len(terms) == 1 and is_plain(terms[0]) and all(f.function in ("", "x") for f in terms[0]):
            return [
                [
                    f._replace(tensor=f.tensor**exponent)
                    if f.is_number
                    else f._replace(power=f.power * exponent)
                    for f in terms[0]
                ]
            ]
        if exponent == -1 and self._is_one(x):
            return [[number(1.0)]]
        if exponent == int(exponent) and 1 < exponent <= _MOST_FACTORS:
            result = terms
            for _ in range(int(exponent) - 1):
                result = multiply(result, terms)
            return result
        raise _unknown(x, f"the power {exponent:g} of a sum" if len(terms) > 1 else f"the power {exponent:g}")

    # Linear functions

    def _sum(self, x: Lazy, call: Call, a: Lazy, b: Any) -> Sum:
        dim, keepdim = _arguments(call, "dim", "keepdim")
        dims = range(a.dim()) if dim is None else (dim,) if isinstance(dim, int) else dim
        return total(self.of(a), a.shape, [d - a.dim() if d >= 0 else d for d in dims], bool(keepdim))

    def _mean(self, x: Lazy, call: Call, a: Lazy, b: Any) -> Sum:
        return scale(self._sum(x, call, a, b), x.numel() / a.numel())

    def _cumsum(self, x: Lazy, call: Call, a: Lazy, b: Any) -> Sum:
        return apply(self.of(a), _dim(call, a), _lower(x, _dim(call, a)))

    def _matmul(self, x: Lazy, call: Call, a: Any, b: Any) -> Sum:
        return matrix_product(self.of(a), self.of(b), a.dim(), b.dim(), a.shape[-1])

    def _rmatmul(self, x: Lazy, call: Call, a: Any, b: Any) -> Sum:
        return self._matmul(x, call, b, a)

    def _linear(self, x: Lazy, call: Call, a: Any, b: Any) -> Sum:
        weight, bias = _arguments(call, "weight", "bias")
        product = a @ weight.mT
        return self.of(product if bias is None else product + bias)

    def _einsum(self, x: Lazy, call: Call, a: Any, b: Any) -> Sum:
        formula, operands = call.args[0], list(call.args[1:])
        if len(operands) == 1 and isinstance(operands[0], list | tuple):
            operands = list(operands[0])
        inputs, arrow, output = formula.replace(" ", "").partition("->")
        letters = inputs.split(",")
        if not arrow or "." in formula or any(len(set(each)) < len(each) for each in (*letters, output)):
            raise _unknown(x, "einsum")
        return contraction([self.of(each) for each in operands], letters, output, [o.shape for o in operands])

    def _exp(self, x: Lazy, call: Call, a: Lazy, b: Any) -> Sum:
        result: Sum = [[number(1.0)]]
        for term in self.of(a):
            known = [f for f in term if f.is_number]
            logs = [f for f in term if f.function == "log"]
            if not is_plain(term) or len(known) + len(logs) < len(term) or len(logs) > 1:
                raise _unknown(x, "exp")
            if not logs:
                exponents = [_whole(f, x) for f in known]
                result = multiply(result, [[number(math.prod(exponents[1:], start=exponents[0]).exp())]])
            elif all(isinstance(f.tensor, float) for f in known):
                exponent = math.prod(float(f.tensor) for f in known)
                result = multiply(result, [[logs[0]._replace(function="x", power=exponent)]])
            else:
                raise _unknown(x, "exp")
        return result

    def _logsumexp(self, x: Lazy, call: Call, a: Lazy, b: Any) -> Sum:
        if self._adds_to_one(a, call, lambda logits: logits.exp()):
            return []
        raise _unknown(x, "logsumexp")

    def _chosen(self, x: Lazy, call: Call, expand: Callable[[Any], Sum]) -> Sum:
        """One of two values where a condition holds, the other one elsewhere."""
        condition, one, other = call.args
        if is_lazy(condition):
            raise _unknown(x, "where")
        result: Sum = []
        for value, chosen in ((one, condition), (other, ~condition)):
            if isinstance(value, Tensor) and not isinstance(value, Lazy):
                value = value.where(chosen, 1.0)  # 0 * NaN is NaN
            result += multiply([[number(chosen.to(x.dtype))]], expand(value))
        return result

    def _logdet(self, x: Lazy, call: Call, a: Lazy, b: Any) -> Sum:
        terms = self.of(a)
        alone = len(terms) == 1 and len(terms[0]) == 1 and terms[0][0].function == "x"
        if not alone or terms[0][0].power != 1:
            raise _unknown(x, "logdet")
        corner = select([[terms[0][0]._replace(function="logdet")]], a.shape, lambda t: t[..., 0, 0])
        return corner

    def _slogdet(self, x: Lazy, call: Call, a: Lazy, b: Any) -> Sum:
        if call.output == 1:
            return self._logdet(x, call, a, b)
        raise _unknown(x, "slogdet")

    # Functions that pick elements: they act on values and on their logarithms alike

    def _selected(self, x: Lazy, call: Call, expand: Callable[[Any], Sum]) -> Sum | None:
        name, args = call.name, call.args
        if name in _SAME or (name in _RESHAPES and x.shape == args[0].shape):
            return expand(args[0])
        if name == "clamp" and _is_guard(call):
            return expand(args[0])  # expectations in closed form need none
        if name in _VIEWS and not is_lazy(args[1:], call.kwargs):

            def pick(tensor: Tensor) -> Tensor:
                result = call.function(tensor, *args[1:], **call.kwargs)
                return result[call.output] if isinstance(result, tuple | list) else result

            return select(expand(args[0]), args[0].shape, pick)
        if name in ("stack", "cat"):
            return self._joined(x, call, expand)
        if name == "where" and len(args) == 3:
            return self._chosen(x, call, expand)
        return None

    def _joined(self, x: Lazy, call: Call, expand: Callable[[Any], Sum]) -> Sum:
        (dim,) = _arguments(call, "dim")
        dim, start, result = (dim or 0), 0, []
        dim = dim - x.dim() if dim >= 0 else dim
        for part in call.args[0]:
            part = part.unsqueeze(dim) if call.name == "stack" else part
            size = part.shape[dim]
            where = torch.eye(x.shape[dim], dtype=x.dtype, device=x.device)[:, start : start + size]
            start += size
            for term in expand(part):
                if size > 1:
                    result += apply([term], dim, where)
                else:
                    result.append(times(term, rename([number(where[:, 0])], {-1: dim})))
        return result

    # Logarithms

    def log(self, x: Any, kind: str = "log") -> Sum:
        """The logarithm of x, or of 1 - x for ``kind`` "log1m", as a sum of products."""
        if not isinstance(x, Lazy):
            tensor = torch.as_tensor(x, dtype=None if isinstance(x, Tensor) else torch.get_default_dtype())
            value = tensor.log() if kind == "log" else (-tensor).log1p()
            return [[number(value if isinstance(x, Tensor) else value.item())]]
        if isinstance(x.origin, Site):
            return [[f._replace(function=kind) for f in self.of(x)[0]]]
        call = x.origin
        terms = self._selected(x, call, lambda y: self.log(y, kind))
        if terms is not None:
            return terms
        found = self._log_of_call(x, call) if kind == "log" else None
        if found is None:
            raise _unknown(
                x,
                f"the logarithm of one minus '{call.name}'"
                if kind != "log"
                else f"the logarithm of '{call.name}'",
            )
        return found

    def _log_of_call(self, x: Lazy, call: Call) -> Sum | None:
        name = _ALIASES.get(call.name, call.name)
        a, b = (*call.args, None, None)[:2]
        if name == "mul":
            return self.log(a) + self.log(b)
        if name == "div":
            return self.log(a) + scale(self.log(b), -1)
        if name == "exp":
            return self.of(a)
        if name == "rsub" and _is_plain_one(b):
            return self.log(a, "log1m")
        if name == "sub" and _is_plain_one(a):
            return self.log(b, "log1m")
        if name == "cumprod":
            return apply(self.log(a), _dim(call, a), _lower(x, _dim(call, a)))
        if name == "pad":
            return self._log_of_padded(x, call)
        if name == "prod" and isinstance(b, int):
            return total(self.log(a), a.shape, [_dim(call, a)], bool(_arguments(call, "dim", "keepdim")[1]))
        if name == "sum" and self._is_one(x):
            return []
        if name in ("add", "sub", "rsub", "sum"):
            return None
        terms = self.of(a if name == "abs" else x)
        if len(terms) != 1 or not is_plain(terms[0]) or any(f.function not in ("", "x") for f in terms[0]):
            return None
        return [
            [f._replace(tensor=_log_of_size(f.tensor))]
            if f.is_number
            else [number(float(f.power)), f._replace(function="log", power=1)]
            for f in terms[0]
        ]

    def _log_of_padded(self, x: Lazy, call: Call) -> Sum | None:
        source, (pads, mode, value) = call.args[0], _arguments(call, "pad", "mode", "value")
        if value != 1 or mode not in (None, "constant") or len(pads) != 2:
            return None
        size = source.shape[-1]
        eye = torch.eye(size + sum(pads), dtype=x.dtype, device=x.device)
        return apply(self.log(source), -1, eye[:, pads[0] : pads[0] + size])

    # Identities

    def _is_one(self, x: Lazy) -> bool:
        """True for a sum of probabilities, which is 1 whatever the values of the sites."""
        call = x.origin
        return (
            isinstance(call, Call)
            and call.name == "sum"
            and self._adds_to_one(call.args[0], call, lambda p: p)
        )

    def _adds_to_one(self, terms: Lazy, call: Call, function: Callable[[Tensor], Tensor]) -> bool:
        """True if a function of terms adds to 1 in the last dimension: tried on draws of the sites, once."""
        (dim,) = _arguments(call, "dim")
        dims = [dim] if isinstance(dim, int) else list(dim or ())
        if dims not in ([-1], [terms.dim() - 1]):
            return False
        inner = _without_views(terms)
        structure = _structure(inner)
        if structure is None:
            return False
        key = (call.name, structure)
        if key not in self._identities:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                sums = [function(_at_random(inner)).sum(-1) for _ in range(2)]
            self._identities[key] = all(bool((s - 1).abs().max() < _CLOSE) for s in sums)
        return self._identities[key]


_RULES = {
    *("add", "sub", "rsub", "neg", "mul", "div", "rdiv", "log", "log1p", "xlogy"),
    *("sum", "mean", "cumsum", "matmul", "rmatmul", "linear", "einsum", "logdet", "slogdet"),
    *("exp", "logsumexp"),
}


def _unknown(x: Lazy, use: str) -> NeedsValueError:
    return NeedsValueError.of(sites_of(x), use if " " in use else f"'{use}'")


def _arguments(call: Call, *names: str) -> list[Any]:
    """Arguments behind the first, by position or by name; None if they are not given."""
    return [call.args[i] if i < len(call.args) else call.kwargs.get(name) for i, name in enumerate(names, 1)]


def _dim(call: Call, a: Lazy) -> int:
    (dim,) = _arguments(call, "dim")
    return dim - a.dim() if dim >= 0 else dim


def _lower(x: Lazy, dim: int) -> Tensor:
    """The matrix of a cumulative sum."""
    size = x.shape[dim]
    return torch.ones(size, size, dtype=x.dtype, device=x.device).tril()


def _whole(known: Factor, x: Lazy) -> Tensor:
    """A known factor with the dimensions of a value."""
    if isinstance(known.tensor, float):
        return torch.tensor(known.tensor, dtype=x.dtype, device=x.device)
    return place(known.tensor, known.names, range(-x.dim(), 0))


def _log_of_size(value: Tensor | float) -> Tensor | float:
    return value.abs().log() if isinstance(value, Tensor) else math.log(abs(value))


def _is_plain_one(value: Any) -> bool:
    return isinstance(value, int | float) and value == 1


def _is_guard(call: Call) -> bool:
    """True for a clamp to the interior of [0, ∞) or [0, 1]."""
    low, high = _arguments(call, "min", "max")
    if not isinstance(low, int | float | None) or not isinstance(high, int | float | None):
        return False
    return abs(low or 0.0) < _GUARD and (high is None or abs(1 - high) < _GUARD)


def _without_views(x: Lazy) -> Lazy:
    """The value inside of functions that leave its last dimension whole, and in order."""
    while isinstance(x.origin, Call) and x.origin.args and isinstance(x.origin.args[0], Lazy):
        call, source = x.origin, x.origin.args[0]
        whole = source.shape[-1:] == x.shape[-1:]
        if not whole or not (
            call.name in _SAME or (call.name == "__getitem__" and _by_rows(call.args[1], source))
        ):
            break
        x = source
    return x


def _by_rows(index: Any, source: Lazy) -> bool:
    """True if an index leaves the last dimension of a value alone."""
    index = index if isinstance(index, tuple) else (index,)
    if isinstance(index[-1], slice) and index[-1] == slice(None):
        return True
    whole = not any(each is Ellipsis for each in index)
    return whole and sum(each is not None for each in index) < source.dim()


def _structure(x: Any) -> Hashable | None:
    """An expression as nested tuples that can be compared; None if it has numbers of the program's in it."""
    if isinstance(x, Lazy):
        if isinstance(x.origin, Site):
            return ("site", x.origin.name, str(x.origin.support), tuple(x.shape))
        parts = [_structure(leaf) for leaf in tree_leaves((x.origin.args, x.origin.kwargs))]
        if None in parts:
            return None
        return (x.origin.name, x.origin.output, tuple(x.shape), *parts)
    return None if isinstance(x, Tensor) else ("constant", repr(x))


def _at_random(x: Any, known: dict[Any, Any] | None = None) -> Any:
    """An expression at random values of its sites."""
    known = {} if known is None else known
    if not isinstance(x, Lazy):
        return x
    if isinstance(x.origin, Site):
        if x.origin.name not in known:
            transform = transform_to(x.origin.support)
            free = torch.randn(transform.inverse_shape(x.shape), dtype=x.dtype)
            known[x.origin.name] = transform(free).to(x.device)
        return known[x.origin.name]
    if id(x) not in known:
        args, kwargs = tree_map(lambda y: _at_random(y, known), (x.origin.args, x.origin.kwargs))
        result = x.origin.function(*args, **kwargs)
        known[id(x)] = result[x.origin.output] if isinstance(result, tuple | list) else result
    return known[id(x)]
