"""Blocks of factors leave a latent vector and come back to their places."""

import pytest
import torch

from pyro_fmvae.models.factorial_prior import FactorLayout

D = 2


@pytest.mark.parametrize("groups", [[(0, 1, 2)], [(1,), (0, 2)], [(2, 0), (1,)]])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_join_inverts_split_and_take(groups, batch):
    layout = FactorLayout(groups, D)
    z = torch.randn(*batch, 4, 3 * D)
    blocks = layout.split("z", z)
    assert torch.equal(blocks[1], z[..., D : 2 * D])
    taken = [layout.take(blocks, group).movedim(0, -3) for group in groups]
    assert torch.equal(layout.join(taken).reshape(z.shape), z)


def test_entries_of_groups_are_sorted_by_factor():
    assert FactorLayout([(2, 0), (1,)], D).in_order("caB") == ["a", "B", "c"]


def test_split_refuses_another_size():
    with pytest.raises(ValueError, match="loc: expected 6 latent dimensions"):
        FactorLayout([(0, 1, 2)], D).split("loc", torch.zeros(4, 5))
