"""Identities that hold whatever the values of sites are, found out by trying random values."""

from collections.abc import Callable, Hashable, Set
from typing import Any

import torch
from torch import Tensor
from torch.distributions import transform_to
from torch.utils._pytree import tree_leaves, tree_map

from pyro_fmvae.distributions.recorded import is_recorded
from pyro_fmvae.infer.elbo.calls import COPIES, RESHAPES, arguments, dim_of, name_of
from pyro_fmvae.infer.elbo.lazy import Computed, Lazy, Sampled
from pyro_fmvae.infer.elbo.operations import memory_of

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
            sums = [function(_at_random(inner)).sum(-1) for _ in range(2)]
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


def _at_random(x: Any, known: dict[Any, Any] | None = None) -> Any:
    """An expression at random values of its sites."""
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
        args, kwargs = tree_map(lambda y: _at_random(y, known), (x.origin.args, x.origin.kwargs))
        result = x.origin.function(*args, **kwargs)
        known[id(x)] = result[x.origin.output] if isinstance(result, tuple | list) else result
    return known[id(x)]
