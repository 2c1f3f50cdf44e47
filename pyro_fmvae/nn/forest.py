"""Decision trees as plain tensors."""

import torch
from torch import Tensor, nn


class Forest(nn.Module):
    """The mean prediction of decision trees, whose leaves have probabilities of classes (Breiman, 2001).

    All trees share one numbering of their nodes. A leaf is its own child on both sides.

    Args:
        trees: T.
        nodes: S, of all trees together.
        classes: C.

    Attributes:
        roots: node that each tree begins with, int64 [T].
        feature: column that a node looks at, int64 [S].
        threshold: rows that are not above it go to the left, float64 [S].
        below: left and right child of each node, int64 [S, 2].
        probs: of classes at each node, float32 [S, C]; only those of leaves are used.
    """

    roots: Tensor
    feature: Tensor
    threshold: Tensor
    below: Tensor
    probs: Tensor

    def __init__(self, trees: int, nodes: int, classes: int) -> None:
        super().__init__()
        leaves = torch.arange(nodes)
        self.register_buffer("roots", torch.zeros(trees, dtype=torch.int64))
        self.register_buffer("feature", torch.zeros(nodes, dtype=torch.int64))
        self.register_buffer("threshold", torch.zeros(nodes, dtype=torch.float64))
        self.register_buffer("below", torch.stack([leaves, leaves], -1))
        self.register_buffer("probs", torch.zeros(nodes, classes, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities of classes, [B, C], of rows [B, F]."""
        node, before = self.roots.expand(len(x), -1), None
        while before is None or not torch.equal(node, before):
            before = node
            right = x.gather(1, self.feature[node]) > self.threshold[node]
            node = self.below[node, right.long()]
        return nn.functional.embedding_bag(node, self.probs, mode="mean")
