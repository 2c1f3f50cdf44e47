"""Predictors of labels, by cross-validation on the labelled rows.

Members are weighed by how probable they make labels that they have not seen (stacking; Wolpert, 1992).
"""

import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.models import ObservedMixture
from pyro_fmvae.models.label_predictor import LabelPredictor, tempered
from pyro_fmvae.models.table_sites import label_site

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

FOLDS: Final = 5
STARTS: Final = 4  # of the mixture of a fold
TREES: Final = 100
LEAVES: Final = 1000  # of a tree, at most
LARGEST: Final = 2**24  # probabilities that a forest keeps, at most
POWERS: Final = tuple(5.0 ** (step / 12) for step in range(-12, 13))  # tried for each member
CERTAIN: Final = 4.0  # nats that a power of e costs
EQUAL: Final = 2.0  # rows that speak for each member before any is seen
SPREAD: Final = 0.01  # share of a prediction that goes to all values alike, so that no row decides alone
BELIEVED: Final = 1000.0  # rows that speak for the shares among labelled rows before any is seen
UPDATES: Final = 200  # of weights, and of shares

logger = logging.getLogger("pyro_fmvae")


@torch.no_grad()
def learn_predictors(
    model: ObservedMixture,
    start: Callable[..., Any],
    x: Tensor,
    labels: Tensor,
    searched: Tensor,
    seed: int,
    until: float = math.inf,
    end: float = math.inf,
) -> None:
    """Give a mixture a predictor of each label of which two values at least have two labelled rows each.

    Args:
        model: fitted to the labels; its ``predictors`` are replaced.
        start: :func:`~pyro_fmvae.learn.mixture.mixture_of_rows`, but for its first argument.
        x: all rows, [N, D].
        labels: int64 [N, L], -1 = unknown.
        searched: indices of the rows for cross-validation.
        seed: of folds, starts and trees.
        until: time of ``time.monotonic()``, after which the mixtures of the folds are not improved further.
        end: time of ``time.monotonic()``, after which no further predictor is begun; the mixture
            alone predicts the labels that are left, and the log says so.
    """
    model.predictors.clear()
    tried = labels[searched]
    learnable = [label for label in range(labels.shape[1]) if _learnable(tried[:, label])]
    if not learnable:
        return
    folds = folds_of(tried, seed)
    mixtures = _mixtures_held_out(model, start, x[searched], tried, folds, seed, until)
    features, own = model.features(x), _own_predictions(model, x)
    for number, label in enumerate(learnable):
        if time.monotonic() > end:
            left = len(learnable) - number
            logger.warning("labels: the mixture alone predicts %d of them: the time is up", left)
            break
        known, rows = labels[:, label] >= 0, searched[tried[:, label] >= 0]
        fold, truth = folds[tried[:, label] >= 0], labels[rows, label]
        size = model.label_sizes[label]
        others = [_held_out(kind, features[rows], truth, fold, size) for kind in classifiers(size, seed)]
        members = torch.stack([mixtures[label][tried[:, label] >= 0], *others])
        regression, forest = (
            kind.fit(_array(features[known]), _array(labels[known, label]))
            for kind in classifiers(size, seed)
        )
        predictor = stored(regression, forest, size).to(x.device)
        powers, weights = calibrated(members, truth)
        predictor.powers.copy_(powers)
        predictor.weights.copy_(weights)
        predictor.accuracies.copy_((members.argmax(-1) == truth).double().mean(-1))
        predictor.known.fill_(len(truth))
        shares = torch.bincount(labels[known, label], minlength=size).double() / known.sum()
        probs = predictor.untilted(features[~known], own[label][~known])
        predictor.tilt.copy_(tilt(probs, shares))
        model.predictors[label_site(label)] = predictor


def calibrated(members: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Powers and weights of members that make held-out labels most probable: float64 [J] each.

    A power is that of its member by itself, under a log-normal prior. Weights maximise
    Σ_n log Σ_j w_j p_nj under a Dirichlet prior, by EM.

    Args:
        members: probabilities of values, float64 [J, n, C].
        truth: the values, int64 [n].
    """
    of_truth = truth.expand(len(members), -1).unsqueeze(-1)

    def right(powers: Tensor) -> Tensor:
        probs = tempered(members, powers[:, None, None]).gather(2, of_truth).squeeze(-1)
        return (1 - SPREAD) * probs + SPREAD / members.shape[-1]

    grid = torch.tensor(POWERS, dtype=torch.float64, device=members.device)
    scores = [
        right(power.expand(len(members))).log().sum(-1) - CERTAIN * power.log().square() for power in grid
    ]
    powers = grid[torch.stack(scores).argmax(0)]
    probs, weights = right(powers), torch.full_like(powers, 1 / len(members))
    for _ in range(UPDATES):
        joint = weights.unsqueeze(-1) * probs
        counts = (joint / joint.sum(0)).sum(-1) + EQUAL
        weights = counts / counts.sum()
    return powers, weights


def tilt(probs: Tensor, shares: Tensor) -> Tensor:
    """Factors [C] by which values are more common among unlabelled rows than among labelled ones, by EM.

    The shares among unlabelled rows have a Dirichlet prior around those of the labelled ones; without it this
    is the method of Saerens, Latinne and Decaestecker (2002).

    Args:
        probs: of the values of unlabelled rows, by the shares of the labelled ones, float64 [n, C].
        shares: of the values among the labelled rows, float64 [C].
    """
    factors = torch.ones_like(shares)
    for _ in range(UPDATES):
        joint = factors * probs
        counts = (joint / joint.sum(-1, keepdim=True)).sum(0) + BELIEVED * shares
        factors = torch.where(shares > 0, counts / (counts.sum() * shares), 1.0)
    return factors


def stored(regression: "LogisticRegression", forest: "RandomForestClassifier", size: int) -> LabelPredictor:
    """A predictor of fitted classifiers.

    Args:
        regression, forest: of the same features and labels.
        size: C, values of the label; some may be unknown to the classifiers.
    """
    trees = [tree.tree_ for tree in forest.estimators_]
    starts = np.cumsum([0, *(tree.node_count for tree in trees)])
    predictor = LabelPredictor(forest.n_features_in_, size, len(trees), int(starts[-1]))
    known = torch.from_numpy(forest.classes_)
    coefficients, intercepts = regression.coef_, regression.intercept_
    if len(known) == 2:  # scores of the second value alone
        coefficients, intercepts = (np.stack([0 * part[0], part[0]]) for part in (coefficients, intercepts))
    linear, nodes_of = predictor.regression, predictor.forest
    linear.weight.zero_()[known] = torch.from_numpy(coefficients)
    linear.bias.fill_(-torch.inf)[known] = torch.from_numpy(intercepts)
    nodes_of.roots.copy_(torch.from_numpy(starts[:-1]))
    for start, tree in zip(starts, trees, strict=False):
        nodes, inner = slice(start, start + tree.node_count), torch.from_numpy(tree.feature >= 0)
        nodes_of.feature[nodes] = torch.from_numpy(tree.feature).clamp(min=0)
        nodes_of.threshold[nodes] = torch.from_numpy(tree.threshold)
        children = torch.from_numpy(np.stack([tree.children_left, tree.children_right], -1)) + start
        nodes_of.below[nodes] = torch.where(inner.unsqueeze(-1), children, nodes_of.below[nodes])
        counts = torch.from_numpy(tree.value[:, 0])
        nodes_of.probs[nodes.start : nodes.stop, known] = (counts / counts.sum(-1, keepdim=True)).float()
    return predictor


def classifiers(size: int, seed: int) -> tuple[Any, Any]:
    """A logistic regression and a random forest, not fitted, for labels of so many values."""
    from sklearn.ensemble import RandomForestClassifier  # here: scikit-learn takes a while to import
    from sklearn.linear_model import LogisticRegression

    leaves = max(min(LEAVES, LARGEST // (2 * TREES * size)), 2)
    forest = RandomForestClassifier(TREES, max_leaf_nodes=leaves, random_state=seed)
    return LogisticRegression(max_iter=2000), forest


def predicted(classifier: Any, features: Tensor, values: Tensor, new: Tensor, size: int) -> Tensor:
    """Probabilities of values by a classifier, float64 [m, C].

    Args:
        classifier: as scikit-learn's; it is fitted.
        features: of the rows that it learns from, [n, F].
        values: of these rows, int64 [n]; a single one is taken for certain.
        new: features of the rows to tell, [m, F].
        size: C, values of the label.
    """
    found, known = torch.zeros(len(new), size, dtype=torch.float64, device=new.device), values.unique()
    if len(known) == 1:
        found[:, known] = 1.0
        return found
    probs = classifier.fit(_array(features), _array(values)).predict_proba(_array(new))
    found[:, known] = torch.from_numpy(probs).to(found)
    return found


def _learnable(labels: Tensor) -> bool:
    return int((labels[labels >= 0].bincount() > 1).sum()) > 1


def folds_of(labels: Tensor, seed: int) -> Tensor:
    """Number of the fold of each row, int64 [n]: rows of equal labels [n, L] are dealt out in turn."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    for label in reversed(range(labels.shape[1])):
        order = order[labels[order, label].argsort(stable=True)]
    folds = torch.empty_like(order)
    folds[order] = torch.arange(len(order), device=order.device) % FOLDS
    return folds


def _mixtures_held_out(
    model: ObservedMixture,
    start: Callable[..., Any],
    x: Tensor,
    labels: Tensor,
    folds: Tensor,
    seed: int,
    until: float,
) -> list[Tensor]:
    """Probabilities of each label's values by mixtures that did not see the labels of the row's fold."""
    found = [torch.zeros(len(x), size, dtype=torch.float64, device=x.device) for size in model.label_sizes]
    for fold in range(FOLDS):
        held_out = folds == fold
        known = labels.masked_fill(held_out.unsqueeze(-1), -1)
        fitted = start(x, seed, model.components, STARTS, labels=known, until=until).model
        for part, probs in zip(found, _own_predictions(fitted, x[held_out]), strict=True):
            part[held_out] = probs
    return found


def _own_predictions(model: ObservedMixture, x: Tensor) -> list[Tensor]:
    return model.own_predictions(model.table(model.observations(x)).softmax(-1))


def _held_out(classifier: Any, features: Tensor, truth: Tensor, folds: Tensor, size: int) -> Tensor:
    """Probabilities of values, float64 [n, C], by a classifier that did not see the row's fold."""
    found = torch.zeros(len(truth), size, dtype=torch.float64, device=features.device)
    for fold in folds.unique():
        fitted = folds != fold
        found[~fitted] = predicted(classifier, features[fitted], truth[fitted], features[~fitted], size)
    return found


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.cpu().numpy()
    return array
