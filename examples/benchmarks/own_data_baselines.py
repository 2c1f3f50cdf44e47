"""What ``own_data.py`` compares with: scikit-learn's clusterings, classifiers and outlier detectors.

Columns are standardised by the training rows; missing entries become the column's mean, and each word of a
categorical column a column of its own. Pixels are divided by 255.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from own_data_sets import Data
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, IsolationForest, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.neighbors import LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.semi_supervised import LabelSpreading
from sklearn.svm import SVC

STARTS = 10
MOST_COLUMNS = 64  # of mixtures and k-means: more pixels than that become principal components
COMPONENTS = 50
MAJORITY = "majority"
K_MEANS = "k-means"
BOOSTING = "gradient boosting"
LEAF = 5  # rows of a leaf of boosted trees; the default, 20, splits nothing where labels are few


def features(train: Data) -> Callable[[Data], np.ndarray]:
    """Make the numbers that all baselines get, [n, D], by what the training rows are like."""
    if train.pictures:
        return lambda data: data.x.reshape(len(data), -1) / 255.0
    words = train.words or {}
    numbers = [column for column in range(train.x.shape[1]) if column not in words]
    scaled = make_pipeline(SimpleImputer(), StandardScaler())
    coded = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    made = ColumnTransformer([("numbers", scaled, numbers), ("words", coded, list(words))]).fit(train.x)
    return lambda data: made.transform(data.x)


def _mixture(kind: type, covariance: str) -> Callable[[int, int], Any]:
    return lambda k, seed: kind(
        n_components=k, covariance_type=covariance, n_init=STARTS, max_iter=300, random_state=seed
    )


CLUSTERERS: dict[str, Callable[[int, int], Any]] = {
    K_MEANS: lambda k, seed: KMeans(k, n_init=STARTS, random_state=seed),
    "Gaussian mixture, diagonal": _mixture(GaussianMixture, "diag"),
    "Gaussian mixture, full": _mixture(GaussianMixture, "full"),
    "Bayesian mixture, diagonal": _mixture(BayesianGaussianMixture, "diag"),
    "Bayesian mixture, full": _mixture(BayesianGaussianMixture, "full"),
}
"""Clusterings of K clusters, by the best of ten starts."""


def clusters(method: str, data: Data, k: int, seed: int) -> np.ndarray:
    """Clusters of all rows, [n]; pictures are reduced to 50 principal components first."""
    x = features(data)(data)
    if data.pictures and x.shape[1] > MOST_COLUMNS:
        x = PCA(min(COMPONENTS, *x.shape), random_state=seed).fit_transform(x)
    return CLUSTERERS[method](k, seed).fit_predict(x)


CLASSIFIERS: dict[str, Callable[[int], Any]] = {
    MAJORITY: lambda seed: DummyClassifier(strategy="most_frequent"),
    "logistic regression": lambda seed: LogisticRegression(max_iter=2000),
    "SVC": lambda seed: SVC(random_state=seed),
    "random forest": lambda seed: RandomForestClassifier(300, random_state=seed),
    BOOSTING: lambda seed: HistGradientBoostingClassifier(min_samples_leaf=LEAF, random_state=seed),
    "label spreading": lambda seed: LabelSpreading(kernel="knn", n_neighbors=7),
}
"""Classifiers with scikit-learn's defaults, but for more trees, iterations and leaves, and neighbours."""


def predictions(method: str, train: Data, test: Data, seed: int) -> np.ndarray:
    """Predicted labels of the test rows, [n, L]: one classifier for each property.

    Only label spreading sees the training rows whose label is unknown (-1).
    """
    make = features(train)
    x, new = make(train), make(test)
    columns = []
    for labels in train.labels.T:
        known = np.ones(len(x), bool) if method == "label spreading" else labels >= 0
        with np.errstate(invalid="ignore"):  # label spreading: rows that no label reaches
            columns.append(CLASSIFIERS[method](seed).fit(x[known], labels[known]).predict(new))
    return np.stack(columns, -1)


class _Reconstruction:
    """Squared error of a reconstruction by the principal components that hold 95 % of the variance."""

    def __init__(self) -> None:
        self.pca = PCA(0.95, svd_solver="full")

    def fit(self, x: np.ndarray) -> "_Reconstruction":
        """Find the components."""
        self.pca.fit(x)
        return self

    def score_samples(self, x: np.ndarray) -> np.ndarray:
        """Minus the squared error, [n]."""
        return -np.square(x - self.pca.inverse_transform(self.pca.transform(x))).sum(-1)


DETECTORS: dict[str, Callable[[int], Any]] = {
    "isolation forest": lambda seed: IsolationForest(random_state=seed),
    "LOF": lambda seed: LocalOutlierFactor(novelty=True),
    "PCA": lambda seed: _Reconstruction(),
}
"""Detectors of outliers, trained on rows without outliers."""


def outlier_scores(method: str, train: Data, test: Data, seed: int) -> np.ndarray:
    """Scores of the test rows, [n]: the higher, the more outlying."""
    make = features(train)
    return -DETECTORS[method](seed).fit(make(train)).score_samples(make(test))
