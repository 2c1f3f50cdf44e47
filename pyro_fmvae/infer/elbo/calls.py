"""Reading recorded calls: their names, their arguments, and the error for those without a rule."""

import math
from collections.abc import Container, Iterator
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
    "ger": "outer",
    "clip": "clamp",
    "clamp_min": "clamp",
    "__neg__": "neg",
    "negative": "neg",
    "__matmul__": "matmul",
    "__rmatmul__": "rmatmul",
    "mv": "matmul",
    "mm": "matmul",
    "dot": "matmul",
    "bmm": "matmul",
}
_READ = {
    **dict.fromkeys(("add", "sub", "rsub"), (2, {"alpha"})),
    **dict.fromkeys(("sum", "mean", "prod"), (3, {"dim", "keepdim", "dtype"})),
    **dict.fromkeys(("cumsum", "cumprod"), (2, {"dim", "dtype"})),
    "logsumexp": (3, {"dim", "keepdim"}),
    "linear": (3, {"weight", "bias"}),
    "einsum": (math.inf, set()),
    "clamp": (3, {"min", "max"}),
    **dict.fromkeys(("stack", "cat"), (2, {"dim"})),
    "where": (3, set()),
    **dict.fromkeys(("mul", "div", "rdiv", "xlogy", "pow", "matmul", "rmatmul", "outer"), (2, set())),
    **dict.fromkeys(
        ("neg", "log", "log1p", "exp", "abs", "square", "sqrt", "rsqrt", "reciprocal"), (1, set())
    ),
    **dict.fromkeys(("logdet", "slogdet", "cholesky", "linalg_cholesky", "cholesky_inverse"), (1, set())),
}
"""Functions with a rule → how many arguments it reads by position at most, and which others by name."""
COPIES = {"expand", "expand_as", "broadcast_to", "contiguous", "clone", "to", "float", "double", "type_as"}
"""Functions whose value is that of their first argument."""
RESHAPES = {"reshape", "view", "flatten", "squeeze"}
"""Functions that keep the order of elements."""


def name_of(call: Computed) -> str:
    """One name for a function, its method and its operator."""
    return _ALIASES.get(call.name, call.name)


def check_arguments(x: Lazy, call: Computed) -> None:
    """Refuse a call with arguments that the rule of its function does not read, or of whole numbers.

    Raises:
        NeedsValueError: there are such arguments, the numbers lose their decimals, or a tensor among the
            arguments has other numbers now.
    """
    most, names = _READ.get(name_of(call), (math.inf, call.kwargs))
    source = call.args[0] if call.args else None
    rounded = isinstance(source, Lazy) and source.dtype.is_floating_point and not x.dtype.is_floating_point
    if source is None or len(call.args) > most or not call.kwargs.keys() <= set(names) or rounded:
        raise unknown(x, call.name)
    if not call.holds():
        raise unknown(x, f"'{call.name}' with a tensor that is changed in place later")


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
    if not constant or _has_masks(index):
        return index
    return tuple(
        part.new_zeros([1] * part.dim()) if isinstance(part, Tensor) and dim in constant else part
        for dim, part in _indexed(index, dims)
    )


def at_index(tensor: Tensor, index: Any) -> Tensor:
    """``tensor[index]``; a position that is a tensor is not asked for its number, as torch does."""
    if _has_masks(index):
        return tensor[index]
    parts = []
    for dim, part in _indexed(index, tensor.dim()):
        if isinstance(part, Tensor) and part.dim() == 0:
            tensor = tensor[(slice(None),) * (dim + tensor.dim()) + (part.unsqueeze(0),)]
            part = 0
        parts.append(part)
    return tensor[tuple(parts)]


class OutOfRangeError(ValueError):
    """Numbers in the data pick elements of a site that are not there.

    Attributes:
        site: its name.
        size: how many elements it has there.
        number: one that it does not have.
    """

    def __init__(self, site: str, size: int, number: int) -> None:
        super().__init__(f"site '{site}': it is of size {size}, but an index asks for number {number}")
        self.site, self.size, self.number = site, size, number


def check_index(x: Lazy, index: Any, sizes: Container[int]) -> None:
    """Refuse an index beyond the size of a value, on a device that tells.

    Args:
        x: the value that is indexed.
        index: of it.
        sizes: of the dimensions that are looked at. :func:`slim_index` does not look at those of size 1.

    Raises:
        OutOfRangeError: the index is data.
        ValueError: it is an assignment; with the name of a site, its size and that of the index.
    """
    for dim, part in [] if _has_masks(index) else _indexed(index, x.dim()):
        size = x.shape[dim] if isinstance(part, Tensor) else -1
        if size not in sizes:
            continue
        try:
            part.new_empty(size)[part]
        except IndexError:
            site, values = min(sites_of(x)), part.numel()
            if not torch.equal(part.reshape(-1), torch.arange(values).to(part)):
                number = part.max() if part.max() >= size else part.min()
                raise OutOfRangeError(site, size, int(number)) from None
            raise ValueError(
                f"site '{site}': it is of size {size}, but an index picks among "
                f"{values}, as an assignment with {values} values does; put it into a plate of size {values}"
            ) from None


def _has_masks(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts)


def _indexed(index: Any, dims: int) -> Iterator[tuple[int, Any]]:
    """The parts of an index, each with the negative number of the dimension that it begins at."""
    parts = index if isinstance(index, tuple) else (index,)
    used = sum(part is not None and part is not Ellipsis for part in parts)
    dim = -dims
    for part in parts:
        yield dim, part
        if part is Ellipsis:
            dim += dims - used
        elif part is not None:
            dim += 1


def gather_slim(tensor: Tensor, dim: int, index: Tensor, constant: frozenset[int]) -> Tensor:
    """``tensor.gather(dim, index)``, of size 1 along dimensions where neither tensor nor index varies.

    Args:
        tensor, dim, index: as in torch.
        constant: the negative numbers of the dimensions along which the tensor does not vary.
    """
    dims = range(-tensor.dim(), 0)
    dim = dims[dim]
    small = [1 if each in constant else index.shape[each] for each in dims]
    few = [1 if index.stride(each) == 0 else index.shape[each] for each in dims]
    small[dim], few[dim] = tensor.shape[dim], index.shape[dim]
    if any(min(small[each], few[each]) > 1 for each in dims if each != dim):
        return tensor.gather(dim, index)
    tensor, index = (t[tuple(slice(n) for n in sizes)] for t, sizes in ((tensor, small), (index, few)))
    parts = (
        torch.arange(n, device=index.device).view(-1, *[1] * (-each - 1))
        for each, n in zip(dims, small, strict=True)
    )
    return tensor[tuple(index if each == dim else part for each, part in zip(dims, parts, strict=True))]
