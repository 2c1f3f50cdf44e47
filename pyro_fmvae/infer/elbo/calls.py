"""Reading recorded calls: their names, their arguments, and the error for those without a rule."""

from typing import Any

import torch
from torch import Tensor

from pyro_fmvae.infer.elbo.lazy import Computed, Lazy, NeedsValueError, sites_of

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
COPIES = {"expand", "expand_as", "broadcast_to", "contiguous", "clone", "to", "float", "double", "type_as"}
"""Functions whose value is that of their first argument."""
RESHAPES = {"reshape", "view", "flatten", "squeeze"}
"""Functions that keep the order of elements."""


def name_of(call: Computed) -> str:
    """One name for a function, its method and its operator."""
    return _ALIASES.get(call.name, call.name)


def unknown(x: Lazy, use: str) -> NeedsValueError:
    """The error for a value that has no rule: a function's name, or words."""
    return NeedsValueError.of(sites_of(x), use if " " in use else f"'{use}'")


def arguments(call: Computed, *names: str) -> list[Any]:
    """Arguments behind the first, by position or by name; None if they are not given."""
    return [call.args[i] if i < len(call.args) else call.kwargs.get(name) for i, name in enumerate(names, 1)]


def dim_of(call: Computed, a: Lazy) -> int:
    """The dimension that a function acts on, counted from the last."""
    (dim,) = arguments(call, "dim")
    return dim - a.dim() if dim >= 0 else dim


def cumulating(x: Lazy, dim: int) -> Tensor:
    """The matrix of a cumulative sum."""
    size = x.shape[dim]
    return torch.ones(size, size, dtype=x.dtype, device=x.device).tril()


def slim_index(index: Any, dims: int, constant: frozenset[int]) -> Any:
    """An index whose tensors are of size 1 where they index dimensions along which nothing varies.

    Args:
        index: of a tensor.
        dims: the number of its dimensions.
        constant: the negative numbers of those along which it does not vary.
    """
    parts = index if isinstance(index, tuple) else (index,)
    used = sum(part is not None and part is not Ellipsis for part in parts)
    if not constant or any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts):
        return index
    result, dim = [], -dims
    for part in parts:
        if isinstance(part, Tensor) and dim in constant:
            part = part.new_zeros([1] * part.dim())
        result.append(part)
        if part is Ellipsis:
            dim += dims - used
        elif part is not None:
            dim += 1
    return tuple(result)


def gather_slim(tensor: Tensor, dim: int, index: Tensor, constant: frozenset[int]) -> Tensor:
    """``tensor.gather(dim, index)``, of size 1 along dimensions where neither tensor nor index varies."""
    for each in constant - {dim, dim - tensor.dim()}:
        if index.stride(each) == 0:
            tensor, index = tensor.narrow(each, 0, 1), index.narrow(each, 0, 1)
    return tensor.gather(dim, index)
