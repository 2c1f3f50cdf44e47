import itertools

import pytest
import torch
from torch.distributions import biject_to, transform_to
from torch.testing import assert_close

from pyro_fmvae.distributions import packed_matrices as packed


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_packing(dim):
    matrix = torch.randn(4, dim, dim)
    symmetric = matrix + matrix.mT
    lower = packed.pack(symmetric)
    assert lower.shape == (4, dim * (dim + 1) // 2)
    assert_close(packed.unpack(lower, dim), symmetric, rtol=0, atol=0)
    left, right = torch.randn(2, 4, dim)
    assert_close(packed.pack_product(left, right), packed.pack(left[..., None] * right[..., None, :]))
    assert_close(packed.halved(packed.doubled(symmetric)), symmetric)
    weights = packed.pack(packed.doubled(symmetric))
    assert_close(
        (weights * packed.pack_product(left, left)).sum(-1),
        torch.einsum("ni,nij,nj->n", left, symmetric, left),
    )
    parts = torch.randn(4), torch.randn(()), lower, left
    joined = packed.join(*parts)
    assert packed.dim_of(joined.shape[-1]) == dim
    for part, back in zip(parts, packed.split(joined), strict=True):
        assert_close(back, part.expand_as(back), rtol=0, atol=0)


def test_factors():
    tril = torch.randn(3, 2, 2).tril(-1) + torch.diag_embed(torch.rand(3, 2) + 0.5)
    matrix = tril @ tril.mT
    assert_close(packed.log_determinant(tril), matrix.logdet())
    assert_close(packed.divide(matrix, tril) @ tril, matrix)
    indefinite = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    matrices, taken = torch.stack([matrix[0], indefinite, matrix[2]]), torch.zeros(3, 2)
    factor = packed.cholesky_or_nan(matrices, taken)
    assert_close(factor[[0, 2]], tril[[0, 2]])
    assert factor[1].isnan().all()
    taken[0, 1] = 1e12  # of which less than 1e-11 is left
    factor = packed.cholesky_or_nan(matrices, taken)
    assert factor[0].isnan().all() and not factor[2].isnan().any()


@pytest.mark.parametrize("rows", [1, 2])
def test_points_above_factors(rows):
    """The support and its transforms, whose determinant is that of automatic differentiation."""
    support, x = packed.AboveFactor(rows), torch.randn(4, 6 + 3 * rows)
    for transform in (biject_to(support), transform_to(support)):
        y = transform(x)
        assert support.check(y).all() and y.shape == transform.forward_shape(x.shape) == (4, rows + 3, 3)
        assert_close(transform.inv(y), x)
        assert transform.inverse_shape(y.shape) == x.shape
    free = torch.cat([torch.ones(rows, 3), torch.ones(3, 3).tril()]).bool()
    for one in x:
        jacobian = torch.autograd.functional.jacobian(lambda x: transform(x)[free], one)
        determinant = transform.log_abs_det_jacobian(one, transform(one))
        assert_close(determinant, jacobian.det().abs().log())
    y[0, rows, 2], y[1, rows + 1, 1], y[2, 0, 0] = (
        1.0,
        -1.0,
        torch.nan,
    )  # above the diagonal, on it, in the row
    assert support.check(y).tolist() == [False, False, False, True]


def test_sizes_tell_rows_and_columns_apart():
    sizes = {}
    for rows, dim in itertools.product(range(1, 9), range(1, 9)):
        parts = torch.ones(2), torch.ones(dim * (dim + 1) // 2), torch.ones(2, rows * (rows + 1) // 2)
        joined = packed.join_rows(*parts, torch.randn(rows, dim))
        assert packed.rows_and_columns(joined.shape[-1]) == (rows, dim)
        assert [t.shape for t in packed.split_rows(joined)][::3] == [(2,), (2, rows, dim)]
        sizes[joined.shape[-1]] = rows, dim
    assert len(sizes) == 64
