"""Symmetric matrices as packed lower triangles, triangular factors, and points above such a factor."""

import math

import torch
from torch import Tensor
from torch.distributions import Transform, biject_to, constraints, transform_to

LEAST_SHARE = 1e-11  # that a difference has to keep of its terms, which float64 rounds at 1e-16


def dim_of(size: int) -> int:
    """D of two numbers, a packed matrix and a vector, D(D+3)/2 + 2 in all; for other sizes rounded down."""
    return (math.isqrt(max(8 * size - 7, 0)) - 3) // 2


def split(packed: Tensor) -> tuple[Tensor, ...]:
    """Two numbers [...], a packed matrix [..., D(D+1)/2] and a vector [..., D] in one dimension, apart."""
    dim = dim_of(packed.shape[-1])
    first, second, matrix, vector = packed.split([1, 1, dim * (dim + 1) // 2, dim], -1)
    return first.squeeze(-1), second.squeeze(-1), matrix, vector


def join(first: Tensor, second: Tensor, matrix: Tensor, vector: Tensor) -> Tensor:
    """The inverse of :func:`split`, whose arguments may broadcast: [..., D(D+3)/2 + 2]."""
    parts = first.unsqueeze(-1), second.unsqueeze(-1), matrix, vector
    batch = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*batch, part.shape[-1]) for part in parts], -1)


def rows_and_columns(size: int) -> tuple[int, int]:
    """K and D of (K+D)(K+D+1)/2 + K numbers, packed by :func:`join_rows`; for other sizes one is below 1."""
    total = (math.isqrt(max(8 * size - 7, 0)) - 1) // 2
    rows = size - total * (total + 1) // 2
    return rows, total - rows


def split_rows(packed: Tensor) -> tuple[Tensor, ...]:
    """Apart: [...], packed matrices [..., D(D+1)/2] and [..., K(K+1)/2], and a matrix [..., K, D]."""
    rows, dim = rows_and_columns(packed.shape[-1])
    sizes = [1, dim * (dim + 1) // 2, rows * (rows + 1) // 2, rows * dim, rows - 1]
    first, columns, own, matrix, _ = packed.split(sizes, -1)
    return first.squeeze(-1), columns, own, matrix.unflatten(-1, (rows, dim))


def join_rows(first: Tensor, columns: Tensor, own: Tensor, matrix: Tensor) -> Tensor:
    """The inverse of :func:`split_rows`, whose arguments may broadcast, with K - 1 zeros at the end.

    Their number tells K and D apart.
    """
    parts = first.unsqueeze(-1), columns, own, matrix.flatten(-2), matrix.new_zeros(matrix.shape[-2] - 1)
    batch = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*batch, part.shape[-1]) for part in parts], -1)


def pack(matrix: Tensor) -> Tensor:
    """The lower triangle of [..., D, D], row by row: [..., D(D+1)/2]."""
    rows, columns = torch.tril_indices(*matrix.shape[-2:], device=matrix.device)
    return matrix[..., rows, columns]


def pack_product(left: Tensor, right: Tensor) -> Tensor:
    """The lower triangle of the outer product of two vectors [..., D]: [..., D(D+1)/2]."""
    dim = left.shape[-1]
    rows, columns = torch.tril_indices(dim, dim, device=left.device)
    return left[..., rows] * right[..., columns]


def unpack(packed: Tensor, dim: int) -> Tensor:
    """The symmetric matrix [..., D, D] of a packed lower triangle."""
    index = torch.arange(dim, device=packed.device)
    return packed[..., position(index, index.unsqueeze(-1))]


def position(row: Tensor, column: Tensor) -> Tensor:
    """Place of an element of a symmetric matrix in its packed lower triangle, by row and column."""
    lower, upper = torch.maximum(row, column), torch.minimum(row, column)
    return lower * (lower + 1) // 2 + upper


def diagonal(matrix: Tensor) -> Tensor:
    """The diagonal of [..., D, D], [..., D], by indices: torch's own operation has its compiler warn."""
    index = torch.arange(matrix.shape[-1], device=matrix.device)
    return matrix[..., index, index]


def doubled(matrix: Tensor) -> Tensor:
    """A matrix [..., D, D] with twice its elements off the diagonal."""
    return matrix * (2 - torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device))


def halved(matrix: Tensor) -> Tensor:
    """A matrix [..., D, D] with half its elements off the diagonal."""
    return 0.5 * matrix * (1 + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device))


def cholesky_or_nan(matrix: Tensor, taken: Tensor | None = None) -> Tensor:
    """Lower Cholesky factor [..., D, D], NaN where there is none: to raise an error would wait for a GPU.

    Args:
        matrix: float64 [..., D, D].
        taken: where the matrix is a difference of two, the diagonal of the one taken away, [..., D].
            Where it has left few digits of the square of a diagonal element of the factor, that is NaN too.
    """
    factor, info = torch.linalg.cholesky_ex(matrix)
    lost = info != 0
    if taken is not None:
        left = unless_cancelled(diagonal(factor).square(), diagonal(matrix) + taken)
        lost = lost | left.isnan().any(-1)
    return factor.masked_fill(lost[..., None, None], torch.nan)


def divide(matrix: Tensor, tril: Tensor) -> Tensor:
    """A matrix times the inverse of a lower triangular one, [..., D, D]."""
    return torch.linalg.solve_triangular(tril, matrix, upper=False, left=False)


def log_determinant(tril: Tensor) -> Tensor:
    """Log det L Lᵀ [...] of a triangular L [..., D, D]."""
    return 2 * diagonal(tril).log().sum(-1)


def above(loc: Tensor, factor: Tensor) -> Tensor:
    """A vector [..., D] as the row above a matrix [..., D, D]: [..., D+1, D]."""
    return torch.cat([loc.unsqueeze(-2), factor], -2)


class AboveFactor(constraints.Constraint):
    """(K+D, D): K rows of real numbers above a lower triangular matrix with a positive diagonal.

    Args:
        rows: K.
    """

    event_dim = 2

    def __init__(self, rows: int = 1) -> None:
        self.rows = rows

    def check(self, value: Tensor) -> Tensor:
        """True where [..., K+D, D] is of that kind: bool [...]."""
        real = constraints.independent(constraints.real, 2).check(value[..., : self.rows, :])
        return real & constraints.lower_cholesky.check(value[..., self.rows :, :])


@biject_to.register(AboveFactor)
@transform_to.register(AboveFactor)
class _ToAboveFactor(Transform):
    """K D + D(D+1)/2 real numbers to an ``AboveFactor``: the rows, then the triangle with log-diagonal."""

    domain, bijective = constraints.real_vector, True

    def __init__(self, constraint: AboveFactor) -> None:
        super().__init__()
        self.codomain, self._rows = constraint, constraint.rows

    def _dim_of(self, size: int) -> int:
        odd = 2 * self._rows + 1
        return (math.isqrt(odd**2 + 8 * size) - odd) // 2

    def _call(self, x: Tensor) -> Tensor:
        rows, dim = self._rows, self._dim_of(x.shape[-1])
        lower = unpack(x[..., rows * dim :], dim)
        factor = lower.tril(-1) + torch.diag_embed(diagonal(lower).exp())
        return torch.cat([x[..., : rows * dim].unflatten(-1, (rows, dim)), factor], -2)

    def _inverse(self, y: Tensor) -> Tensor:
        rows, factor = y[..., : self._rows, :], y[..., self._rows :, :]
        lower = factor.tril(-1) + torch.diag_embed(diagonal(factor).log())
        return torch.cat([rows.flatten(-2), pack(lower)], -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * log_determinant(y[..., self._rows :, :])

    def forward_shape(self, shape: torch.Size) -> torch.Size:
        dim = self._dim_of(shape[-1])
        return torch.Size((*shape[:-1], self._rows + dim, dim))

    def inverse_shape(self, shape: torch.Size) -> torch.Size:
        dim = shape[-1]
        return torch.Size((*shape[:-2], self._rows * dim + dim * (dim + 1) // 2))


def unless_cancelled(difference: Tensor, term: Tensor) -> Tensor:
    """A difference of nearly equal float64 numbers, NaN where rounding leaves fewer than five digits of it.

    Args:
        difference: what is left, [...].
        term: the number that something was taken from, of the same shape.
    """
    return difference.where(difference > LEAST_SHARE * term, torch.nan)
