"""Reading recorded calls."""

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.infer.elbo.linear_rules import gather_slim

X = torch.arange(24.0).view(2, 3, 4)


@pytest.mark.parametrize(
    ("tensor", "index", "constant"),
    [
        (X, torch.tensor([[[3, 0], [1, 1], [2, 0]], [[0, 0], [1, 3], [3, 3]]]), ()),
        (X, torch.tensor([[[3, 0, 1], [1, 1, 2]]]), ()),
        (X[:1].expand(2, 3, 4), torch.tensor([3, 0]).view(2, 1, 1).expand(2, 3, 1), (-3,)),
        (X[:1].expand(2, 3, 4), torch.tensor([3, 0]).view(2, 1, 1).expand(2, 2, 1), (-3,)),
        (X[:1, :1].expand(2, 3, 4), torch.tensor([3, 0, 1]).view(1, 3, 1).expand(2, 3, 1), (-3, -2)),
        (X, torch.tensor(2).expand(2, 3, 5), ()),
    ],
    ids=["both vary", "fewer", "one each", "one each, fewer", "neither", "the same five times"],
)
@pytest.mark.parametrize("dim", [-1, 2])
def test_elements_are_gathered(tensor, index, constant, dim):
    found = gather_slim(tensor, dim, index, frozenset(constant))
    assert_close(found.expand(index.shape), tensor.gather(dim, index))
