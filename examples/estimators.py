"""Clusters with credible ellipses, and outliers: the estimators for scikit-learn on generated rows.

    python examples/estimators.py [--rows 600] [--picture estimators.png]

Rows of two numbers come from four Gaussian clusters, and a tenth of the entries are missing. The mixture
chooses its number of components. Then come as many new rows of the clusters, and twelve from elsewhere. The
script prints the number of components, how well the clusters of the new rows are found, 95 % intervals of the
weights, and how many of the new rows the detector calls outliers.

In the picture each component has an ellipse that holds 95 % of its draws, a box for the 95 % intervals of its
mean, and outliers have rings. Rows with a missing entry are not drawn.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, Rectangle
from scipy.stats import chi2
from sklearn.metrics import adjusted_rand_score

from pyro_fmvae.sklearn import BayesianMixture, OutlierDetector

CENTRES = np.array([[0.0, 0.0], [6.0, 1.0], [1.0, 6.0], [7.0, 7.0]])
SHEARS = np.array([[[1.0, 0.8], [0.0, 0.6]], [[0.5, 0.0], [0.0, 1.2]], [[1.4, 0.0], [0.4, 0.5]], np.eye(2)])
SHARES = (0.4, 0.3, 0.2, 0.1)
STRANGE = 12
COLOURS = ("C0", "C1", "C2", "C4", "C5", "C6", "C8", "C9")


def generate(number: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows [number, 2], NaN where missing, and their clusters."""
    kinds = rng.choice(len(SHARES), number, p=SHARES)
    rows = CENTRES[kinds] + np.einsum("nij,nj->ni", SHEARS[kinds], rng.standard_normal((number, 2)))
    holes = rng.random(number) < 0.2  # in one of two entries, so that a tenth of all is missing
    rows[holes, rng.integers(2, size=number)[holes]] = np.nan
    return rows, kinds


def draw(axes: Axes, rows: np.ndarray, mixture: BayesianMixture, outliers: np.ndarray) -> None:
    """Rows in the colours of their components, ellipses, boxes of the means, and rings around outliers."""
    clusters, (low, high) = mixture.predict(rows), mixture.credible_interval(0.95).means
    radius = np.sqrt(chi2.ppf(0.95, 2))
    for component, (mean, covariance) in enumerate(zip(mixture.means_, mixture.covariances_, strict=True)):
        colour = COLOURS[component % len(COLOURS)]
        axes.scatter(*rows[clusters == component].T, s=6, color=colour, alpha=0.5, linewidths=0)
        lengths, axis = np.linalg.eigh(covariance)
        width, height = 2 * radius * np.sqrt(lengths)
        angle = np.degrees(np.arctan2(axis[1, 0], axis[0, 0]))
        axes.add_patch(Ellipse(mean, width, height, angle=angle, fill=False, color=colour, linewidth=1.5))
        size = high[component] - low[component]
        axes.add_patch(Rectangle(low[component], *size, fill=False, color="black", linewidth=1, zorder=3))
    axes.scatter(*rows[outliers].T, s=60, facecolors="none", edgecolors="black", linewidths=0.9)
    axes.set(xlabel="first column", ylabel="second column")
    axes.set_aspect("equal")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, default=Path("estimators.png"))
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    learnt = generate(args.rows, rng)[0]
    mixture = BayesianMixture("auto", random_state=args.seed).fit(learnt)
    detector = OutlierDetector(random_state=args.seed).fit(learnt)
    known, kinds = generate(args.rows, rng)
    rows = np.concatenate([known, rng.uniform(-6, 14, (STRANGE, 2))])
    outliers = detector.predict(rows) < 0
    print(f"components: {mixture.n_components_}")
    print(f"adjusted Rand index: {adjusted_rand_score(kinds, mixture.predict(known)):.2f}")
    for weight, (low, high) in zip(mixture.weights_, mixture.credible_interval().weights.T, strict=True):
        print(f"weight {weight:.2f}, 95 % interval {low:.2f} to {high:.2f}")
    found = outliers[args.rows :].sum()
    print(f"outliers: {found} of the {STRANGE} rows from elsewhere, {outliers.sum() - found} of the others")
    figure = Figure(figsize=(6, 5), layout="constrained")
    draw(figure.subplots(), rows, mixture, outliers)
    args.picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.picture, dpi=110)


if __name__ == "__main__":
    main()
