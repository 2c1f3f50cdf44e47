"""Labels of points without one, by neighbours and classifiers, as far as hidden labels bear them out."""

import math
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from torch import Tensor

from pyro_fmvae.learn.stacking import calibrated, classifiers, folds_of, predicted, stored
from pyro_fmvae.models.label_predictor import LabelPredictor, weighted_mean

if TYPE_CHECKING:
    from sklearn.decomposition import PCA

NEIGHBOURS = 7
MOST_POINTS = 5000
"""Training points from which on labels are not spread: their neighbours take too long to find."""
COMPARABLE: Final = f"{NEIGHBOURS + 1} to {MOST_POINTS:,} points without missing numbers"
"""Points that labels may be spread among, for messages."""
MOST_NUMBERS = 64
"""Numbers of a point, of more than which as many principal components are compared."""
SEED = 0
"""Seed of the hidden parts and of the forest."""
Teacher = Callable[[Tensor], Tensor]
"""From labels int64 [N], -1 = unknown, to probabilities of the values of every point, float64 [N, C]."""
CLASSIFICATION: Final = 50.0
"""Δ times the share of points whose label is known, in nats per point and label."""


class Cloud(Protocol):
    """Points, such as a :class:`~pyro_fmvae.data.Split`."""

    def __len__(self) -> int:
        """N, the number of points."""

    @property
    def observations(self) -> Tensor:
        """Their numbers, float32 ``[N, *event_shape]``, read when they are asked for; NaN is missing."""


_POINTS: Final = WeakKeyDictionary[Cloud, "_Points"]()
"""The points of each cloud in use: options ask for their labels, and so does training."""


def spread_labels(cloud: Cloud, labels: Tensor, precision: float) -> Tensor:
    """Label points by those that have a label, each column for itself.

    Three teachers tell each point's label: labels that spread over the graph of the seven nearest neighbours
    (Zhou et al., 2004, "Learning with local and global consistency"), a logistic regression on principal
    components, and a random forest. A fifth of the known labels at a time is hidden and predicted from the
    others. That weighs and calibrates the teachers, as :func:`~pyro_fmvae.learn.stacking.calibrated` does, so
    that each point gets one probability of each value. It also gives the least probability that can be
    trusted: of the hidden labels with at least that probability, a share of ``precision`` must be predicted
    correctly; if it is right of all of them, every point is labelled. One more right and one more wrong one
    are counted, so that a few known labels prove nothing. Where nothing tells the labels, as nothing tells
    expressions of faces, none are spread. Nor are they where half of the points have a label: a few wrong
    ones would cost more than the others bring.

    Args:
        cloud: N points.
        labels: int64 [N, L], -1 = unknown.
        precision: share of the hidden labels, in (0, 1], that have to be right; 0 spreads none.

    Returns:
        Labels [N, L]: those that were known, and those that were spread. Of more than 5,000 points, of fewer
        than eight, and of points with missing numbers, those that were known.
    """
    if not precision or not comparable(cloud):
        return labels
    points, key = _points(cloud), (labels.cpu().numpy().tobytes(), precision)
    if key not in points.found:
        columns = [_spread(points, column, precision) for column in labels.cpu().unbind(-1)]
        points.found[key] = torch.stack(columns, -1)
    return points.found[key].to(labels)


def predictors_of_unlearnt(cloud: Cloud, labels: Tensor, codes: Tensor) -> dict[int, LabelPredictor]:
    """Predictors of the labels that a model has not learnt, by its own training labels.

    The logistic regression and the random forest of :func:`spread_labels` tell a fifth of the known labels
    at a time from the others. A model that was trained on all of them should be right of more. Where it is
    right of fewer, by more than the standard error of the difference, the two predict the label in its place.

    Args:
        cloud: N points.
        labels: that the model was trained on, int64 [N, L], -1 = unknown.
        codes: the values that it predicts for all points, int64 [N, L].

    Returns:
        Column → its predictor, in which the model itself has no weight. None of more than 5,000 points, of
        fewer than eight, and of points with missing numbers.
    """
    if not comparable(cloud):
        return {}
    points, labels, codes = _points(cloud), labels.cpu(), codes.cpu()
    found = {
        column: _better(points, labels[:, column], codes[:, column]) for column in range(labels.shape[1])
    }
    return {column: predictor for column, predictor in found.items() if predictor is not None}


def comparable(cloud: Cloud) -> bool:
    """True if labels of the points may be spread: see :data:`COMPARABLE`."""
    return NEIGHBOURS < len(cloud) <= MOST_POINTS and not bool(cloud.observations.isnan().any())


def _points(cloud: Cloud) -> "_Points":
    if cloud not in _POINTS:
        _POINTS[cloud] = _Points(cloud)
    return _POINTS[cloud]


class _Points:
    """Points as the teachers see them."""

    def __init__(self, cloud: Cloud) -> None:
        self.numbers = cloud.observations.flatten(1).cpu()
        self.found: dict[tuple[bytes, float], Tensor] = {}  # labels that were spread, by labels and precision

    @cached_property
    def pca(self) -> "PCA | None":
        """The principal components of many numbers; None of few."""
        if self.numbers.shape[1] <= MOST_NUMBERS:
            return None
        from sklearn.decomposition import PCA  # here: scikit-learn takes a while to import

        components = min(MOST_NUMBERS, len(self.numbers))
        return PCA(components, random_state=0).fit(self.numbers.double().numpy())

    @cached_property
    def components(self) -> Tensor:
        """The numbers or, of many, their principal components: float64 [N, F]."""
        x = self.numbers.double()
        return x if self.pca is None else torch.from_numpy(self.pca.transform(x.numpy()))

    @cached_property
    def graph(self) -> csr_matrix:
        """Nearest neighbours of each point, [N, N]."""
        from sklearn.neighbors import kneighbors_graph  # here: scikit-learn takes a while to import

        return kneighbors_graph(self.components.numpy(), NEIGHBOURS, include_self=True)

    def teachers(self, size: int) -> list[Teacher]:
        regression, forest = classifiers(size, SEED)
        return [
            partial(_by_neighbours, self.graph, size),
            partial(_by_classifier, regression, self.components, size),
            partial(_by_classifier, forest, self.numbers, size),
        ]


def _spread(points: _Points, labels: Tensor, precision: float) -> Tensor:
    known = (labels >= 0).nonzero().squeeze(-1)
    truth = labels[known]
    if len(truth.unique()) < 2 or 2 * len(known) >= len(labels):
        return labels
    teachers, folds = points.teachers(int(truth.max()) + 1), folds_of(truth.unsqueeze(-1), SEED)
    hidden = torch.stack([_held_out(teacher, labels, known, folds) for teacher in teachers])
    powers, weights = calibrated(hidden, truth)
    sure, said = weighted_mean(hidden, powers, weights).max(-1)
    sure, order = sure.sort(descending=True, stable=True)
    share = ((said == truth)[order].cumsum(0) + 1) / (torch.arange(len(known)) + 3)
    surer = torch.cat([sure[:-1] > sure[1:], torch.ones(1, dtype=torch.bool)])  # than all that follow
    (enough,) = ((share >= precision) & surer).nonzero(as_tuple=True)
    if not len(enough):
        return labels
    least = sure[enough[-1]] if enough[-1] < len(known) - 1 else 0.0
    members = torch.stack([teacher(labels) for teacher in teachers])
    probability, said = weighted_mean(members, powers, weights).max(-1)
    return torch.where((labels < 0) & (probability >= least), said, labels)


def _better(points: _Points, labels: Tensor, codes: Tensor) -> LabelPredictor | None:
    """A predictor of a column of labels [N]; None where a model's values [N] are as right as its own."""
    known = (labels >= 0).nonzero().squeeze(-1)
    truth = labels[known]
    right = (codes[known] == truth).double()
    if len(truth.unique()) < 2 or right.all():
        return None
    size, number = int(truth.max()) + 1, len(known)
    folds = folds_of(truth.unsqueeze(-1), SEED)
    hidden = torch.stack(
        [_held_out(teacher, labels, known, folds) for teacher in points.teachers(size)[1:]]  # no neighbours
    )
    powers, weights = calibrated(hidden, truth)
    counts = torch.stack([(weighted_mean(hidden, powers, weights).argmax(-1) == truth).sum(), right.sum()])
    teachers, model = ((counts + 1) / (number + 2)).tolist()
    error = math.sqrt((teachers * (1 - teachers) + model * (1 - model)) / number)
    if teachers - model <= error:
        return None
    regression, forest = (
        classifier.fit(x[known].numpy(), truth.numpy())
        for classifier, x in zip(classifiers(size, SEED), (points.components, points.numbers), strict=True)
    )
    if points.pca is not None:  # in numbers, not in components
        regression.coef_ = regression.coef_ @ points.pca.components_
        regression.intercept_ = regression.intercept_ - regression.coef_ @ points.pca.mean_
    predictor = stored(regression, forest, size)
    predictor.powers[1:] = powers
    predictor.weights.copy_(torch.cat([torch.zeros(1), weights]))
    predictor.accuracies[0] = right.mean()
    predictor.accuracies[1:] = (hidden.argmax(-1) == truth).double().mean(-1)
    predictor.known.fill_(number)
    return predictor


def _held_out(teacher: Teacher, labels: Tensor, known: Tensor, folds: Tensor) -> Tensor:
    """Probabilities of the known labels, float64 [n, C], each predicted without the labels of its fold."""
    parts = []
    for fold in folds.unique():
        hidden = known[folds == fold]
        parts.append(teacher(labels.index_fill(0, hidden, -1))[hidden])
    return torch.cat(parts)[folds.argsort(stable=True).argsort()]


def _by_neighbours(graph: csr_matrix, size: int, labels: Tensor) -> Tensor:
    from sklearn.semi_supervised import LabelSpreading  # here: scikit-learn takes a while to import

    fitted = LabelSpreading(kernel=lambda *_: graph).fit(np.zeros((len(labels), 1)), labels.numpy())
    probabilities = torch.zeros(len(labels), size, dtype=torch.float64)
    probabilities[:, fitted.classes_] = torch.from_numpy(fitted.label_distributions_)
    return probabilities


def _by_classifier(classifier: Any, features: Tensor, size: int, labels: Tensor) -> Tensor:
    known = labels >= 0
    return predicted(classifier, features[known], labels[known], features, size)
