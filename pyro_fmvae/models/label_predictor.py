"""Prediction of a label from a row of a table: a mixture's own, a logistic regression's and a forest's."""

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

MEMBERS: Final = ("mixture", "logistic regression", "random forest")
"""Names of the members."""
LEAST: Final = 1e-4
"""Probability that a member gives a value at least, before powers are taken."""


class LabelPredictor(nn.Module):
    """A weighted mean of calibrated predictions, p(y | x) ∝ t_y Σ_j w_j p_j(y | x)^β_j / Z_j(x).

    The weights w of the :data:`MEMBERS` (stacking; Wolpert, 1992) and their powers β, which are inverse
    temperatures (Guo et al., 2017), are learnt by cross-validation. The first member is the mixture that the
    predictor belongs to; its probabilities are an argument. Factors t correct the shares of the values, where
    those of the labelled rows are not those of all rows (Saerens et al., 2002).

    Args:
        features: F, numbers that a row is given by.
        classes: C, values of the label.
        trees, nodes: of the :class:`~pyro_fmvae.models.label_predictor.Forest`.

    Attributes:
        regression: scores of the values, linear in the features.
        forest: decision trees on the features.
        weights: w, float64 [3].
        powers: β, float64 [3].
        tilt: t, float64 [C].
        accuracies: of the members on labelled rows that they were not fitted to, float64 [3]. Beside
            networks, the first is that of the networks, on the rows that they were trained on.
        known: number of these rows.
    """

    weights: Tensor
    powers: Tensor
    tilt: Tensor
    accuracies: Tensor
    known: Tensor

    def __init__(self, features: int, classes: int, trees: int, nodes: int) -> None:
        super().__init__()
        self.regression = nn.Linear(features, classes, dtype=torch.float64).requires_grad_(False)
        self.forest = Forest(trees, nodes, classes)
        ones = torch.ones(len(MEMBERS), dtype=torch.float64)
        self.register_buffer("weights", ones / len(MEMBERS))
        self.register_buffer("powers", ones.clone())
        self.register_buffer("tilt", torch.ones(classes, dtype=torch.float64))
        self.register_buffer("accuracies", torch.zeros_like(ones))
        self.register_buffer("known", torch.tensor(0))

    @classmethod
    def of_state(cls, state: Mapping[str, Tensor]) -> "LabelPredictor":
        """A predictor into which a state dictionary can be loaded."""
        classes, features = state["regression.weight"].shape
        return cls(features, classes, len(state["forest.roots"]), len(state["forest.feature"]))

    def forward(self, features: Tensor, own: Tensor) -> Tensor:
        """Probabilities of the values, float64 [B, C].

        Args:
            features: of rows, float64 [B, F].
            own: the mixture's p(y | x), [B, C].
        """
        tilted = self.tilt * self.untilted(features, own)
        return tilted / tilted.sum(-1, keepdim=True)

    def untilted(self, features: Tensor, own: Tensor) -> Tensor:
        """:meth:`forward` for rows whose values have the shares that they have among the labelled rows."""
        regression = self.regression(features).softmax(-1)
        members = torch.stack([own.double(), regression, self.forest(features.float()).double()])
        return weighted_mean(members, self.powers, self.weights)

    def summary(self) -> str:
        """Members with their weights, and how well each does by itself: for the closing table."""
        weighed = [
            f"{name} {weight:.0%}" for name, weight in zip(MEMBERS, self.weights.tolist(), strict=True)
        ]
        alone = ", ".join(f"{share:.2f}" for share in self.accuracies.tolist())
        return (
            f"{', '.join(weighed)}; accuracies by cross-validation on the {int(self.known):,} labelled rows: "
            f"{alone}"
        )


def tempered(probs: Tensor, power: Tensor | float) -> Tensor:
    """Probabilities [..., C] to a power, normalised."""
    return (power * probs.clamp(min=LEAST).log()).softmax(-1)


def weighted_mean(members: Tensor, powers: Tensor, weights: Tensor) -> Tensor:
    """The mean of calibrated predictions, [n, C].

    Args:
        members: probabilities of values, [J, n, C].
        powers, weights: of the members, [J] each.
    """
    return (weights[:, None, None] * tempered(members, powers[:, None, None])).sum(0)


def predictors_of(state: Mapping[str, Any], prefix: str) -> dict[str, LabelPredictor]:
    """Predictors by site, into which the entries of a model's state dictionary can be loaded."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in state.items():
        if name.startswith(prefix):
            site, entry = name.removeprefix(prefix).split(".", 1)
            parts.setdefault(site, {})[entry] = value
    return {site: LabelPredictor.of_state(part) for site, part in parts.items()}


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
