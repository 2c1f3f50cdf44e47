import torch
from torch.testing import assert_close

from pyro_fmvae.nn.forest import Forest


def test_rows_fall_to_leaves_and_trees_are_averaged():
    """A tree of two splits, and one that is a leaf."""
    forest = Forest(trees=2, nodes=6, classes=2)
    forest.roots.copy_(torch.tensor([0, 5]))
    forest.feature[:3] = torch.tensor([1, 0, 0])
    forest.threshold[:3] = torch.tensor([0.5, -1.0, 9.0], dtype=torch.float64)
    forest.below[0], forest.below[1] = torch.tensor([1, 2]), torch.tensor([3, 4])
    forest.probs.copy_(torch.tensor([[9, 9], [9, 9], [0.2, 0.8], [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]))
    x = torch.tensor([[-1.0, 0.5], [0.0, 0.5], [0.0, 0.6]])
    assert_close(forest(x), torch.tensor([[0.75, 0.25], [0.25, 0.75], [0.35, 0.65]], dtype=torch.float32))
