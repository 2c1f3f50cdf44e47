"""Sums of products: of numbers, and of functions of single elements of sites' values.

A :class:`Factor` names its dimensions: negative names are those of the result, counted from the last, others
are summed over, as in a product of matrices. Dimensions along which a factor does not vary are left out, so
that data stay [N, D] and parameters [K, D] until ``einsum`` brings them together.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fmvae.infer.elbo.lazy import memory_of

_fresh = itertools.count()


class Factor(NamedTuple):
    """One factor of a product.

    Args:
        site: name of the site that it is a function of, "" for numbers.
        function: ``"x"``, ``"log"``, ``"log1m"`` or ``"logdet"`` of an element of the site's value;
            ``"square"`` of an element of a sum, which has a name in the place of a site.
        power: the power that it is raised to; for ``"x"`` alone other than 1.
        tensor: the numbers; or which elements of the value, flattened, it is of (int64).
        names: of the tensor's dimensions.
    """

    site: str
    function: str
    power: float
    tensor: Tensor | float
    names: tuple[int, ...]

    @property
    def is_number(self) -> bool:
        """True for a factor that is known."""
        return not self.site

    @property
    def elements(self) -> Tensor:
        """The numbers of the elements of the site's value, int64."""
        assert isinstance(self.tensor, Tensor)
        return self.tensor


Product = list[Factor]
Sum = list[Product]


class SquareOfSum(NamedTuple):
    """A sum whose square is a factor: its elements, numbered, are those of the factor.

    Args:
        terms: the sum.
        shape: of its value.
    """

    terms: Sum
    shape: torch.Size

    def times(self, terms: Sum, own: Factor, rest: Product) -> Sum:
        """A sum of the shape of the value, at the elements of the factor ``own``, times a product."""
        names = {name for f in (own, *rest) for name in f.names if name >= 0}
        marks = {name: -(10**6) - name for name in names}  # so that sums they share stay the same
        picked = select(terms, self.shape, lambda tensor, _: tensor.reshape(-1)[own.elements])
        outer = {i - len(own.names): marks.get(name, name) for i, name in enumerate(own.names)}
        result = multiply([rename(rest, marks)], [rename(term, outer) for term in picked])
        return [rename(term, {mark: name for name, mark in marks.items()}) for term in result]


def sites_in(terms: Sum) -> set[str]:
    """The names of the sites in a sum."""
    return {f.site for term in terms for f in term if f.site}


def widest(device: torch.device) -> torch.dtype:
    """The type of numbers that are added up and may cancel: float64, but for devices without it (Apple's)."""
    return torch.float32 if device.type == "mps" else torch.float64


def exact(x: Tensor) -> Tensor:
    """Numbers of a floating type in the widest one."""
    return x.to(widest(x.device)) if x.is_floating_point() else x


def number(value: Tensor | float) -> Factor:
    """A known factor."""
    return Factor("", "", 1, float(value), ()) if not isinstance(value, Tensor) else _lean(value)


def element(site: str, index: Tensor) -> Factor:
    """Elements of a site's value by their numbers in it."""
    return _lean(index, site=site, function="x")


def _lean(
    tensor: Tensor, names: Sequence[int] | None = None, site: str = "", function: str = "", power: float = 1
) -> Factor:
    """A factor without the dimensions along which nothing varies."""
    names = tuple(range(-tensor.dim(), 0)) if names is None else tuple(names)
    sizes = tensor.shape  # 0: sticks of a process of one component
    varying = [i for i, size in enumerate(sizes) if size == 0 or (size > 1 and tensor.stride(i) != 0)]
    tensor = tensor[tuple(slice(None) if i in varying else 0 for i in range(tensor.dim()))]
    return Factor(site, function, power, tensor, tuple(names[i] for i in varying))


def place(tensor: Tensor, names: Sequence[int], order: Sequence[int]) -> Tensor:
    """The dimensions of a tensor in a given order, those that it lacks of size 1."""
    tensor = tensor.permute([names.index(name) for name in order if name in names])
    return tensor[tuple(slice(None) if name in names else None for name in order)]


def rename(product: Product, names: Mapping[int, int]) -> Product:
    """The product with other names of dimensions."""
    return [f._replace(names=tuple(names.get(name, name) for name in f.names)) for f in product]


def times(left: Product, right: Product) -> Product:
    """The product of two products; sums that both have become different sums.

    A number by itself stays apart from tensors: it is multiplied to the smallest one in the end.
    """
    clash = {name for f in left for name in f.names if name >= 0}
    right = rename(right, {name: next(_fresh) for f in right for name in f.names if name in clash})
    result = list(left)
    for f in right:
        for i, g in enumerate(result):
            if f.is_number and g.is_number and isinstance(f.tensor, float) == isinstance(g.tensor, float):
                small, large = (f, g) if set(f.names) <= set(g.names) else (g, f)
                if set(small.names) <= set(large.names):
                    value = small.tensor
                    if isinstance(value, Tensor):
                        value = place(value, small.names, large.names)
                    result[i] = large._replace(tensor=value * large.tensor)
                    break
            elif (
                f.site
                and f[:2] == g[:2]
                and f.function == "x"
                and f.names == g.names
                and f.tensor is g.tensor
            ):
                result[i] = g._replace(power=f.power + g.power)
                break
        else:
            result.append(f)
    return [f for f in result if f.power != 0]


def multiply(left: Sum, right: Sum) -> Sum:
    """The product of two sums."""
    return [times(a, b) for a in left for b in right]


def square(terms: Sum) -> Sum:
    """The product of a sum with itself, in which each product of two of its terms is there once."""
    pairs = itertools.combinations(terms, 2)
    return [times(a, a) for a in terms] + [times([number(2.0)], times(a, b)) for a, b in pairs]


def scale(terms: Sum, by: float) -> Sum:
    """A sum times a number."""
    return terms if by == 1 else [times([number(by)], term) for term in terms]


def gather(terms: Sum) -> Sum:
    """A sum with all its numbers in one term, so that x - c is subtracted before it is squared."""
    known = [term for term in terms if all(f.is_number for f in term)]
    if len(known) < 2 and all(map(is_plain, known)):
        return terms
    names = tuple(sorted({name for term in known for f in term for name in f.names if name < 0}))
    value = sum(_number_of(term, names) for term in known)
    total = Factor("", "", 1, value, names if isinstance(value, Tensor) else ())
    return [*(term for term in terms if any(f.site for f in term)), [total]]


def _number_of(term: Product, names: Sequence[int]) -> Tensor | float:
    """The value of a product of numbers, with so many dimensions."""
    factor = math.prod(f.tensor for f in term if isinstance(f.tensor, float))
    operands = [(f.tensor, f.names) for f in term if isinstance(f.tensor, Tensor)]
    own = tuple(name for name in names if any(name in f.names for f in term))
    return place(contract(operands, factor, own), own, names) if operands else factor


def contract(operands: list[tuple[Tensor, tuple[int, ...]]], factor: float, names: tuple[int, ...]) -> Tensor:
    """The product of a number and of tensors with named dimensions, summed over all but ``names``."""
    operands = sorted(operands, key=lambda operand: operand[0].numel())
    if factor != 1:
        operands[0] = operands[0][0] * factor, operands[0][1]
    if all(name < 0 for _, own in operands for name in own):
        return math.prod((place(*o, names) for o in operands[1:]), start=place(*operands[0], names))
    *others, (last, own) = operands
    if names and set(names) < set(own) <= {name for _, each in others for name in each}:
        # einsum would end in a product of matrices of one row or column each, one for each row of data.
        product = _einsum(others, own) if len(others) > 1 else place(*others[0], own)
        total = (product * last).sum([own.index(name) for name in own if name not in names])
        return place(total, [name for name in own if name in names], names)
    return _einsum(operands, names)


def _einsum(operands: list[tuple[Tensor, tuple[int, ...]]], names: Sequence[int]) -> Tensor:
    letters = {name: chr(97 + i) for i, name in enumerate({name: 0 for _, own in operands for name in own})}
    inputs = ",".join("".join(letters[name] for name in own) for _, own in operands)
    output = "".join(letters[name] for name in names)
    return torch.einsum(f"{inputs}->{output}", *(tensor for tensor, _ in operands))


def whole(known: Factor, x: Tensor) -> Tensor:
    """A known factor with the dimensions of a value."""
    if isinstance(known.tensor, float):
        return torch.tensor(known.tensor, dtype=x.dtype, device=x.device)
    return place(known.tensor, known.names, range(-x.dim(), 0))


def is_plain(term: Product) -> bool:
    """True if nothing is summed over in a product."""
    return all(name < 0 for f in term for name in f.names)


def select(terms: Sum, shape: torch.Size, pick: Callable[[Tensor, frozenset[int]], Tensor]) -> Sum:
    """Apply a function that selects elements of a tensor to a sum.

    Args:
        terms: the sum.
        shape: of its value.
        pick: the function. It is given dimensions (negative) along which the tensor does not vary, too, and
            may leave those that come from them in its result at size 1.
    """
    result = []
    for term in terms:
        new = []
        for f in term:
            own, summed = [n for n in f.names if n < 0], [n for n in f.names if n >= 0]
            if not own or not isinstance(f.tensor, Tensor):
                new.append(f)
                continue
            full = place(f.tensor, f.names, (*range(-len(shape), 0), *summed))
            constant = frozenset(set(range(-len(shape), 0)) - set(own))
            if not summed:
                new.append(_lean(pick(full.expand(shape), constant), None, *f[:3]))
            else:
                table = full.flatten(0, len(shape) - 1)
                numbers = torch.arange(len(table), device=full.device).view(full.shape[: len(shape)])
                where = _lean(pick(numbers.expand(shape), constant))
                index, rest = where.elements, table.shape[1:]
                rows = table.index_select(0, index.reshape(-1)).view(*index.shape, *rest)
                new.append(f._replace(tensor=rows, names=(*where.names, *summed)))
        result.append(new)
    return result


def total(terms: Sum, shape: torch.Size, dims: Sequence[int], keepdim: bool) -> Sum:
    """The sum over dimensions (negative, of a tensor of a shape)."""
    for dim in sorted(dims):
        summed = []
        for term in terms:
            names = {dim: next(_fresh)}
            if not any(dim in f.names for f in term):
                term = times([number(float(shape[dim]))], term)
            if not keepdim:
                names.update({n: n + 1 for f in term for n in f.names if n < dim})
            summed.append(rename(term, names))
        terms = summed
    return terms


def apply(terms: Sum, dim: int, matrix: Tensor) -> Sum:
    """A matrix [out, in] applied along a dimension (negative)."""
    result = []
    for term in terms:
        if any(dim in f.names for f in term):
            inner = next(_fresh)
            linear = [Factor("", "", 1, matrix, (dim, inner))]
            result.append(_times_along(rename(term, {dim: inner}), linear, inner))
        else:
            result.append(times(term, [Factor("", "", 1, matrix.sum(-1), (dim,))]))
    return result


def matrix_product(left: Sum, right: Sum, left_dim: int, right_dim: int, size: int) -> Sum:
    """The matrix product of tensors with so many dimensions; ``size`` is that of the one summed over."""
    inner = next(_fresh)
    left_names, right_names = {-1: inner}, {-1 if right_dim == 1 else -2: inner}
    if right_dim == 1:
        left_names.update({name: name + 1 for name in range(-left_dim, -1)})
    if left_dim == 1 and right_dim > 1:
        right_names.update({name: name + 1 for name in range(-right_dim, -2)})
    result = []
    for a, b in itertools.product(left, right):
        a, b = rename(a, left_names), rename(b, right_names)
        if not any(inner in f.names for f in (*a, *b)):
            a = times([number(float(size))], a)
        result.append(_times_along(a, b, inner))
    return result


def picked(terms: Sum, units: Set[int]) -> Sum:
    """A sum in which unit vectors pick elements, in place of sums over products with all elements.

    ``units`` is the memory of unit matrices, whose rows or columns are the values of one-hot sites.
    """
    return [_picked(term, units) for term in terms] if units else terms


def _picked(term: Product, units: Set[int]) -> Product:
    for f in term:
        if not f.is_number or memory_of(f.tensor) not in units or len(f.names) != 2:
            continue
        (outer, inner), shape = sorted(f.names), f.tensor.shape  # type: ignore[union-attr]
        others = [g for g in term if g is not f]
        together = any(outer in g.names and inner in g.names for g in others)
        if shape[0] == shape[1] and outer < 0 <= inner and not together:
            return _picked(rename(others, {inner: outer}), units)
    return term


def contraction(operands: list[Sum], letters: list[str], output: str, shapes: list[torch.Size]) -> Sum:
    """The sum over all letters that are not of the output, as ``einsum`` has it; no letter twice in one."""
    marks = {letter: -(10**6) - i for i, letter in enumerate(sorted(set("".join(letters))))}
    sizes: dict[str, int] = {}
    for each, shape in zip(letters, shapes, strict=True):
        sizes.update({a: max(n, sizes.get(a, 1)) for a, n in zip(each, shape, strict=True)})
    result: Sum = [[]]
    for terms, each in zip(operands, letters, strict=True):
        names = {i - len(each): marks[letter] for i, letter in enumerate(each)}
        result = multiply(result, [rename(term, names) for term in terms])
    final = []
    for term in result:
        present = {name for f in term for name in f.names}
        names = {marks[letter]: i - len(output) for i, letter in enumerate(output)}
        for letter in sorted(set(marks) - set(output)):
            names[marks[letter]] = next(_fresh)
            if marks[letter] not in present:
                term = times([number(float(sizes[letter]))], term)
        final.append(rename(term, names))
    return final


def _times_along(left: Product, right: Product, inner: int) -> Product:
    """The product of two products that are summed together over one dimension."""
    mark = -(10**6)  # no name of a sum, so that it stays the same dimension in both
    return rename(times(rename(left, {inner: mark}), rename(right, {inner: mark})), {mark: inner})
