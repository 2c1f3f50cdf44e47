"""Rules for logarithms of x and of 1 - x, for functions that do more than pick elements."""

import math
from collections.abc import Hashable, Set
from typing import Any, Protocol

import torch
from torch import Tensor

from pyro_fmvae.infer.elbo.calls import arguments, cumulating, dim_of, name_of
from pyro_fmvae.infer.elbo.identities import is_one, sum_of_cases
from pyro_fmvae.infer.elbo.lazy import Computed, Lazy, sites_of
from pyro_fmvae.infer.elbo.sums import (
    Factor,
    Product,
    Sum,
    apply,
    exact,
    is_plain,
    number,
    scale,
    total,
    whole,
)

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
    terms = expansion.of(a if name == "abs" else x)
    if len(terms) != 1 or not is_plain(terms[0]) or any(f.function not in ("", "x") for f in terms[0]):
        return None
    return [_log_of_factor(f) for f in terms[0]]


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
