"""Rules for linear functions: sums, products of matrices, values side by side, and the log-determinant.

Functions without a rule of their own are tried: one that only moves elements about, or that is linear, is
found out by what it does to random numbers.
"""

import math
import string
import warnings
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from pyro_fmvae.infer.elbo.lazy import Computed, Lazy, NeedsValueError, name_of, shapes_of, sites_of
from pyro_fmvae.infer.elbo.sums import (
    Factor,
    Product,
    Sum,
    apply,
    contraction,
    is_plain,
    matrix_product,
    number,
    rename,
    scale,
    select,
    times,
    total,
    whole,
)

# Reading recorded calls: their names, their arguments, and the error for those without a rule.

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


Expand = Callable[[Any], Sum]
_MOST_ENTRIES = 2**22  # of the matrix of a linear function
_UP = {name: name + 2 for name in range(-64, -2)}  # dimensions of a tensor without its last two


def _times(of: Expand, a: Any, b: Any) -> Sum:
    return matrix_product(of(a), of(b), a.dim(), b.dim(), a.shape[-1])


def _sum(of: Expand, x: Lazy, call: Computed) -> Sum:
    a = call.args[0]
    dim, keepdim = arguments(call, "dim", "keepdim")
    dims = range(a.dim()) if dim is None or not a.dim() else (dim,) if isinstance(dim, int) else dim
    return total(of(a), a.shape, [d - a.dim() if d >= 0 else d for d in dims], bool(keepdim))


def _mean(of: Expand, x: Lazy, call: Computed) -> Sum:
    a = call.args[0]
    return scale(_sum(of, x, call), x.numel() / a.numel())


def _cumsum(of: Expand, x: Lazy, call: Computed) -> Sum:
    a = call.args[0]
    return apply(of(a), dim_of(call, a), cumulating(x, dim_of(call, a)))


def _matmul(of: Expand, x: Lazy, call: Computed) -> Sum:
    return _times(of, *call.args[:2])


def _rmatmul(of: Expand, x: Lazy, call: Computed) -> Sum:
    b, a = call.args[:2]
    return _times(of, a, b)


def _linear(of: Expand, x: Lazy, call: Computed) -> Sum:
    a = call.args[0]
    weight, bias = arguments(call, "weight", "bias")
    product = a @ (weight.mT if weight.dim() > 1 else weight)
    return of(product if bias is None else product + bias)


def _outer(of: Expand, x: Lazy, call: Computed) -> Sum:
    a, b = call.args
    return of(a.unsqueeze(-1) * b)


def _einsum(of: Expand, x: Lazy, call: Computed) -> Sum | None:
    formula, operands = call.args[0], list(call.args[1:])
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    inputs, arrow, output = formula.replace(" ", "").partition("->")
    letters = inputs.split(",")
    if arrow and "..." in formula:
        letters, output = _spelt_out(letters, output, [operand.dim() for operand in operands])
    spelt = (*letters, output)
    if not arrow or any("." in each or len(set(each)) < len(each) for each in spelt):
        return None
    return contraction([of(each) for each in operands], letters, output, [o.shape for o in operands])


def _spelt_out(letters: list[str], output: str, dims: list[int]) -> tuple[list[str], str]:
    """The letters of a formula of ``einsum`` with others in the place of dots."""
    counts = [dim - len(each.replace("...", "")) for each, dim in zip(letters, dims, strict=True)]
    used = {*"".join(letters), *output}
    free = [letter for letter in string.ascii_letters if letter not in used]
    spelt = [
        each.replace("...", "".join(free[:count][::-1])) for each, count in zip(letters, counts, strict=True)
    ]
    return spelt, output.replace("...", "".join(free[: max(counts)][::-1]))


def _logdet(of: Expand, x: Lazy, call: Computed) -> Sum:
    """Log-determinant of a drawn matrix, of positive numbers times one, or of numbers on a diagonal."""
    a = call.args[0]
    diagonal = _diagonal(a)
    if diagonal is not None:
        return of(diagonal.log().sum(-1))
    terms = of(a)
    drawn = [f for term in terms for f in term if not f.is_number]
    known = [f for term in terms for f in term if f.is_number]
    scaled = _scaled_matrix(terms, a) if a.shape[-1] > 1 else None  # which may be a drawn matrix, too
    if scaled is not None:
        numbers, matrix = scaled
        logs = [
            rename([number(float(a.shape[-1] * f.power)), f._replace(function="log", power=1)], _UP)
            for f in numbers
        ]
        return [*logs, [number(matrix.logdet())]]
    alone = len(terms) == 1 and len(drawn) == 1 and drawn[0].function == "x" and drawn[0].power == 1
    if not alone or any(name >= -2 for f in known for name in f.names):
        raise unknown(x, "logdet")

    def pick(tensor: Tensor, constant: frozenset[int]) -> Tensor:
        return tensor[..., 0, 0]

    result = [[drawn[0]._replace(function="logdet")]]
    for f in known:
        size = torch.as_tensor(f.tensor, dtype=x.dtype, device=x.device)
        result.append([number(float(a.shape[-1])), f._replace(tensor=size.log())])
    return select(result, a.shape, pick)


def _diagonal(a: Any) -> Tensor | None:
    """The diagonal of a matrix that was made of it, or of a Cholesky factor of one; None for others."""
    call = a.origin if isinstance(a, Lazy) else None
    if not isinstance(call, Computed):
        return None
    if call.name in ("diag_embed", "diag"):
        diagonal: Tensor = a.diagonal(dim1=-2, dim2=-1)
        return diagonal
    inner = _diagonal(call.args[0]) if call.name in ("expand", "cholesky", "linalg_cholesky") else None
    return inner if inner is None or call.name == "expand" else inner.sqrt()


def _scaled_matrix(terms: Sum, a: Lazy) -> tuple[list[Factor], Tensor] | None:
    """The drawn numbers and the known matrix [..., D, D] whose product a matrix is; None if it is none."""
    if len(terms) != 1:
        return None
    drawn = [f for f in terms[0] if not f.is_number]
    known = [whole(f, a) for f in terms[0] if f.is_number]
    inside = {name for f in drawn for name in f.names} & {-1, -2}
    if inside or not drawn or not known or not is_plain(terms[0]) or any(f.function != "x" for f in drawn):
        return None
    matrix = math.prod(known[1:], start=known[0])
    return drawn, matrix.expand(*matrix.shape[:-2], *a.shape[-2:])


def _cholesky(of: Expand, x: Lazy, call: Computed) -> Sum:
    """Cholesky factor of positive numbers times a known matrix, or on a diagonal."""
    return _of_scaled(of, x, call, torch.linalg.cholesky, 0.5)


def _cholesky_inverse(of: Expand, x: Lazy, call: Computed) -> Sum:
    """Inverse from the Cholesky factor of positive numbers times a known one, or on a diagonal."""
    return _of_scaled(of, x, call, torch.cholesky_inverse, -2)


def _of_scaled(
    of: Expand, x: Lazy, call: Computed, function: Callable[[Tensor], Tensor], power: float
) -> Sum:
    """A function of numbers times a matrix that is the same function of the matrix times a power of these."""
    a = call.args[0]
    diagonal = _diagonal(a)
    if diagonal is not None:
        return of((diagonal**power).diag_embed())
    scaled = _scaled_matrix(of(a), a)
    if scaled is None:
        raise unknown(x, call.name)
    numbers, matrix = scaled
    return [[*(f._replace(power=f.power * power) for f in numbers), number(function(matrix))]]


def _slogdet(of: Expand, x: Lazy, call: Computed) -> Sum:
    if call.output == 1:
        return _logdet(of, x, call)
    raise unknown(x, "slogdet")


def joined(expand: Expand, x: Lazy, call: Computed) -> Sum:
    """Values side by side, by ``stack`` or ``cat``."""
    (dim,) = arguments(call, "dim")
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


class Tried:
    """A recorded call as a function of the elements of all values in it that are not there.

    Args:
        x, call: the value, and how it came to be.
        known: what was found out before, by the structure of calls; added to.
    """

    def __init__(self, x: Lazy, call: Computed, known: dict[Hashable, bool]) -> None:
        self._x, self._call, self._known = x, call, known
        self._leaves, self._spec = tree_flatten((call.args, call.kwargs))
        self._parts = list({id(leaf): leaf for leaf in self._leaves if isinstance(leaf, Lazy)}.values())
        self._sizes = [part.numel() for part in self._parts]
        tensors = {i: leaf for i, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)}
        self._known_tensors = {i: leaf for i, leaf in tensors.items() if not isinstance(leaf, Lazy)}

    def elements(self, expand: Expand) -> Sum | None:
        """The value, if each of its elements is one of an argument, or a number, whatever the numbers are.

        ``expand`` may be any function of single elements, such as their logarithm.
        """
        if not sum(self._sizes):
            return expand(self._at(torch.zeros(0, device=self._x.device)).to(self._x.dtype))
        if not self._finds("elements", self._moves_elements):
            return None
        zeros, ones, numbers = map(self._at, self._counted())
        moved = ones - zeros == 1
        index, start, result = numbers.where(moved, 0).long(), 0, list[Product]()
        all_moved = self._known.get(self._key("all"), False)
        for part, size in zip(self._parts, self._sizes, strict=True):
            own = (index - start).clamp(0, max(size - 1, 0))
            found = select(expand(part), part.shape, partial(_elements_at, own))
            if not all_moved or len(self._parts) > 1:
                here = moved & (index >= start) & (index < start + size)
                found = [times([number(here.to(self._x.dtype))], term) for term in found]
            start += size
            result += found
        if not all_moved:
            (filled,) = expand(zeros.where(~moved, 1.0).to(self._x.dtype))
            result.append(times([number((~moved).to(self._x.dtype))], filled))
        return result

    def linear(self, expand: Expand) -> Sum | None:
        """The value, if it is a linear function of the elements, plus numbers."""
        if sum(self._sizes) * self._x.numel() > _MOST_ENTRIES or not self._finds("linear", self._is_linear):
            return None
        constant, *_ = map(self._at, self._counted())
        units = torch.eye(sum(self._sizes), dtype=torch.float64, device=self._x.device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of functions that vmap has no fast way for
            matrix = (torch.vmap(self._at)(units) - constant).to(self._x.dtype)
        result: Sum = [[number(constant.to(self._x.dtype))]]
        for part, rows in zip(self._parts, matrix.split(self._sizes), strict=True):
            inner = string.ascii_letters[: part.dim()]
            outer = string.ascii_letters[part.dim() : part.dim() + self._x.dim()]
            own = rows.view(*part.shape, *self._x.shape)
            factors = [[[number(own)]], expand(part)]
            result += contraction(factors, [inner + outer, inner], outer, [own.shape, part.shape])
        return result

    def _counted(self) -> Iterator[Tensor]:
        """Values of 0, of 1, and the numbers of all elements, float64."""
        numbers = torch.arange(sum(self._sizes), dtype=torch.float64, device=self._x.device)
        return iter((torch.zeros_like(numbers), torch.ones_like(numbers), numbers))

    def _at(self, elements: Tensor, others: Mapping[int, Tensor] = MappingProxyType({})) -> Tensor:
        """The function at elements, float64; with other numbers in the place of some of its own."""
        parts = zip(self._parts, elements.split(self._sizes), strict=True)
        values = {id(part): own.view(part.shape) for part, own in parts}
        leaves = []
        for position, leaf in enumerate(self._leaves):
            if isinstance(leaf, Tensor) and not isinstance(leaf, Lazy):
                leaf = others.get(position, leaf.to(elements) if leaf.is_floating_point() else leaf)
            leaves.append(values.get(id(leaf), leaf))
        args, kwargs = tree_unflatten(leaves, self._spec)
        result: Tensor = tree_leaves(self._call.function(*args, **kwargs))[self._call.output]
        return result

    def _moves_elements(self) -> bool:
        """True if every element of the result is an element of the arguments, or depends on none."""
        moved = index = torch.empty(0)
        for trial, (one, other, numbers) in enumerate(self._trials(3)):
            one = one.sign() * 10 ** (15 * other)
            values = self._at(one, numbers)
            if trial == 0:
                order = one.argsort()
                index = order[torch.searchsorted(one[order], values.contiguous()).clamp(max=len(one) - 1)]
                moved = one[index] == values
                self._known[self._key("all")] = bool(moved.all()) and not self._known_tensors
            for each in (one, -one, 1 / one, other):
                if not torch.equal(values.where(~moved, each[index]), self._at(each, numbers)):
                    return False
        return True

    def _is_linear(self) -> bool:
        """True if the result is a linear function of the elements, plus numbers."""
        for size, (one, other, numbers) in zip((1e-30, 1e-8, 1.0, 1e8, 1e30), self._trials(5), strict=True):
            constant = self._at(0 * one, numbers)
            values = (one, size * one, size * other, size * (other - 2 * one))
            unit, first, second, both = (self._at(v, numbers) - constant for v in values)
            close = 1e-10 * max(first.abs().max(), second.abs().max()) + 1e-13 * constant.abs().max()
            if not bool(((both - second + 2 * first).abs() <= close).all()):
                return False
            if not bool(((first - size * unit).abs() <= close + 1e-13 * size * constant.abs().max()).all()):
                return False  # such as a threshold between the sizes
        return True

    def _trials(self, count: int) -> Iterator[tuple[Tensor, Tensor, dict[int, Tensor]]]:
        """Two random vectors, and other numbers for the place of the call's own, of either sign.

        Whole numbers stay, as indices do, where the function does not take fractions.
        """
        source = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            size, sign = torch.rand(2, *shape, generator=source, dtype=torch.float64)
            return (torch.where(sign < 0.5, -1, 1) * (0.5 + 1.5 * size)).to(self._x.device)

        tensors = {i: leaf for i, leaf in self._known_tensors.items() if leaf.dtype != torch.bool}
        count_of_all = sum(self._sizes)
        try:
            self._at(random(count_of_all), {i: random(*leaf.shape) for i, leaf in tensors.items()})
        except (RuntimeError, ValueError, TypeError, IndexError):
            tensors = {i: leaf for i, leaf in tensors.items() if leaf.is_floating_point()}
        for _ in range(count):
            numbers = {i: random(*leaf.shape) for i, leaf in tensors.items()}
            yield random(count_of_all), random(count_of_all), numbers

    def _key(self, what: str) -> Hashable:
        return "tried", what, self._call.function, self._call.output, shapes_of(tuple(self._leaves))

    def _finds(self, what: str, check: Callable[[], bool]) -> bool:
        """Run a check, once for all calls of a structure. A function that draws random numbers fails any."""
        key = self._key(what)
        if key not in self._known:
            before = torch.get_rng_state()
            try:
                with torch.no_grad(), torch.random.fork_rng(devices=[]):
                    self._known[key] = check() and torch.equal(before, torch.get_rng_state())
            except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
                self._known[key] = False
        return self._known[key]


def _elements_at(index: Tensor, tensor: Tensor, constant: frozenset[int]) -> Tensor:
    return tensor.reshape(-1)[index]


LINEAR: dict[str, Callable[[Expand, Lazy, Computed], Sum | None]] = {
    "sum": _sum,
    "mean": _mean,
    "cumsum": _cumsum,
    "matmul": _matmul,
    "rmatmul": _rmatmul,
    "linear": _linear,
    "outer": _outer,
    "einsum": _einsum,
    "logdet": _logdet,
    "cholesky": _cholesky,
    "linalg_cholesky": _cholesky,
    "cholesky_inverse": _cholesky_inverse,
    "slogdet": _slogdet,
}
"""Name of a function → its rule, which takes the expansion of arguments, the value and the call.

A rule may return None for arguments that it does not read.
"""
