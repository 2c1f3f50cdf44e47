"""Outliers in the classical sets of ADBench, by its unsupervised protocol: fit on all rows, score the same.

    python examples/benchmarks/adbench.py [--data DIR] [--seeds 0,1,2,3,4] [--only wine,glass]

DIR holds files ``NUMBER_NAME.npz`` with rows ``X`` and ``y``, 1 for outliers, of ADBench
(https://github.com/Minqi824/ADBench; Han et al., 2022). Without it, scikit-learn's wine takes their place,
with ten rows of a cultivar as outliers. Columns are scaled to [0, 1], as there. A line for each set has the
area under the ROC curve of ``OutlierDetector`` and of four other detectors, the mean over the
seeds: isolation forest, LOF and k-NN have the defaults of pyod, and ECOD is that of its paper.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from scipy.stats import skew
from sklearn.datasets import load_wine
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.preprocessing import MinMaxScaler

from pyro_fmvae.sklearn import OutlierDetector


def ours(x: np.ndarray, seed: int) -> np.ndarray:
    """Minus the mean log posterior predictive density."""
    return -OutlierDetector(random_state=seed, contamination=0.1).fit(x).score_samples(x)


def isolation_forest(x: np.ndarray, seed: int) -> np.ndarray:
    """Mean depth of isolation in 100 trees."""
    return -IsolationForest(random_state=seed).fit(x).score_samples(x)


def local_outlier_factor(x: np.ndarray, seed: int) -> np.ndarray:
    """Of 20 neighbours."""
    return -LocalOutlierFactor(20).fit(x).negative_outlier_factor_


def ecod(x: np.ndarray, seed: int) -> np.ndarray:
    """Tail probabilities by the empirical distributions of the columns (Li et al., 2022)."""
    ranks = np.sort(x, 0)
    left, right = (
        -np.log(np.stack([np.searchsorted(np.sort(s * c), s * c, "right") for c in x.T], 1) / len(ranks))
        for s in (1, -1)
    )
    by_skew = np.where(skew(x) < 0, left, right)
    return np.maximum(np.maximum(left.sum(1), right.sum(1)), by_skew.sum(1))


def neighbours(x: np.ndarray, seed: int) -> np.ndarray:
    """Distance to the fifth neighbour."""
    return NearestNeighbors(n_neighbors=5).fit(x).kneighbors()[0][:, -1]


METHODS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "pyro_fmvae": ours,
    "isolation forest": isolation_forest,
    "LOF": local_outlier_factor,
    "ECOD": ecod,
    "k-NN": neighbours,
}


def sets(folder: Path | None) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name, rows and outliers of each set."""
    if folder is None:
        x, kind = load_wine(return_X_y=True)
        rows = np.r_[np.flatnonzero(kind > 0), np.flatnonzero(kind == 0)[:10]]
        yield "wine", MinMaxScaler().fit_transform(x[rows]), (kind[rows] == 0).astype(int)
        return
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as found:
            yield path.stem.split("_", 1)[1], MinMaxScaler().fit_transform(found["X"]), found["y"].astype(int)


RANDOM = ours, isolation_forest


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    seeds, means = [int(seed) for seed in given.seeds.split(",")], []
    print("| set | rows | columns | outliers |", " | ".join(METHODS), "|")
    print("|", " | ".join(["---"] * (4 + len(METHODS))), "|")
    for name, x, y in sets(given.data):
        if given.only and name not in given.only.split(","):
            continue
        areas = [
            np.mean(
                [roc_auc_score(y, method(x, seed)) for seed in (seeds if method in RANDOM else seeds[:1])]
            )
            for method in METHODS.values()
        ]
        means.append(areas)
        cells = [name, f"{len(x):,}", str(x.shape[1]), f"{y.mean():.1%}", *(f"{area:.3f}" for area in areas)]
        print("|", " | ".join(cells), "|", flush=True)
    print("| mean | | | |", " | ".join(f"{mean:.3f}" for mean in np.mean(means, 0)), "|")


if __name__ == "__main__":
    main()
