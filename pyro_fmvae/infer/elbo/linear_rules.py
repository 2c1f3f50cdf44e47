"""Rules for linear functions: sums, products of matrices, values side by side, and the log-determinant."""

import math
import string
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_fmvae.infer.elbo.calls import arguments, cumulating, dim_of, unknown
from pyro_fmvae.infer.elbo.lazy import Computed, Lazy
from pyro_fmvae.infer.elbo.sums import (
    Factor,
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

Expand = Callable[[Any], Sum]
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


def _einsum(of: Expand, x: Lazy, call: Computed) -> Sum:
    formula, operands = call.args[0], list(call.args[1:])
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    inputs, arrow, output = formula.replace(" ", "").partition("->")
    letters = inputs.split(",")
    if arrow and "..." in formula:
        letters, output = _spelt_out(letters, output, [operand.dim() for operand in operands])
    spelt = (*letters, output)
    if not arrow or any("." in each or len(set(each)) < len(each) for each in spelt):
        raise unknown(x, "einsum")
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
    """Of a drawn matrix, or of positive numbers times one."""
    a = call.args[0]
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
    """Of positive numbers times a known matrix."""
    return _of_scaled(of, x, call, torch.linalg.cholesky, 0.5)


def _cholesky_inverse(of: Expand, x: Lazy, call: Computed) -> Sum:
    """Of positive numbers times a known factor."""
    return _of_scaled(of, x, call, torch.cholesky_inverse, -2)


def _of_scaled(
    of: Expand, x: Lazy, call: Computed, function: Callable[[Tensor], Tensor], power: float
) -> Sum:
    """A function of numbers times a matrix that is the same function of the matrix times a power of these."""
    a = call.args[0]
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


LINEAR: dict[str, Callable[[Expand, Lazy, Computed], Sum]] = {
    "sum": _sum,
    "mean": _mean,
    "cumsum": _cumsum,
    "matmul": _matmul,
    "rmatmul": _rmatmul,
    "linear": _linear,
    "einsum": _einsum,
    "logdet": _logdet,
    "cholesky": _cholesky,
    "linalg_cholesky": _cholesky,
    "cholesky_inverse": _cholesky_inverse,
    "slogdet": _slogdet,
}
"""Name of a function → its rule, which takes the expansion of arguments, the value and the call."""
