"""How many components ``BayesianMixture(n_components="auto")`` finds, and scikit-learn's Dirichlet process.

    python examples/benchmarks/number_of_components.py --threads 1  # 3, 10, 30, 100; seeds 0 to 9
    python examples/benchmarks/number_of_components.py --threads 1 --true 30 --seeds 0 --dim 32 \\
        --points 100000 --spread 1 --truncation 60  # beside scikit-learn

Rows come from as many Gaussians as ``--true`` says, equally often. Their means are normal with the standard
deviation ``--spread``, their covariances full, with standard deviations of about 1.

``found`` counts the components of the estimator, and ``nmi`` is the normalised mutual information of its
clusters and the true ones. With ``--truncation`` T, ``BayesianGaussianMixture`` with T components, a
Dirichlet process prior and otherwise its defaults is fitted to the same rows; its ``found`` counts components
with rows. Seconds are process time, of fitting alone.
"""

import json
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from command_line import Parser, machine, natural_number
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import normalized_mutual_info_score
from sklearn.mixture import BayesianGaussianMixture
from threadpoolctl import threadpool_limits

from pyro_fmvae.sklearn import BayesianMixture

EACH = 100
"""Rows of each component, unless ``--points`` says how many there are in all."""


def draw(components: int, dim: int, points: int, spread: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, D] of a mixture, and the component of each."""
    rng = np.random.default_rng(seed)
    loc = rng.normal(0.0, spread, (components, dim))
    factors = np.eye(dim) + 0.3 * rng.standard_normal((components, dim, dim))
    kinds = rng.integers(components, size=points)
    x = rng.standard_normal((points, dim))
    for kind in range(components):
        x[kinds == kind] = loc[kind] + x[kinds == kind] @ factors[kind].T
    return x, kinds


def measure(name: str, estimator: Any, x: np.ndarray, kinds: np.ndarray) -> dict[str, Any]:
    """One record of a fit."""
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(x)
    seconds = time.process_time() - begun
    clusters = estimator.predict(x)
    return {
        "method": name,
        "found": len(np.unique(clusters)),
        "nmi": round(normalized_mutual_info_score(kinds, clusters), 4),
        "seconds": round(seconds, 2),
        "iterations": estimator.n_iter_,
        "converged": estimator.converged_,
    }


def numbers(text: str) -> list[int]:
    """Whole numbers >= 0, separated by commas."""
    return [int(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    parser = Parser(__doc__, devices=False, pictures=False)
    parser.add_argument("--true", type=numbers, default=[3, 10, 30, 100], metavar="K,K", help="components")
    parser.add_argument("--seeds", type=numbers, default=list(range(10)), help="in place of --seed")
    parser.add_argument("--dim", type=natural_number, default=8, help="columns")
    parser.add_argument("--points", type=natural_number, help=f"rows; default: {EACH} for each component")
    parser.add_argument("--spread", type=float, default=5.0, help="standard deviation of the means")
    parser.add_argument("--n-init", type=natural_number, default=4, help="starts of each number of clusters")
    parser.add_argument("--truncation", type=natural_number, metavar="T", help="fit scikit-learn's too")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.json:
        print(machine(torch.device("cpu")), flush=True)
    for components in options.true:
        for seed in options.seeds:
            points = options.points or EACH * components
            x, kinds = draw(components, options.dim, points, options.spread, seed)
            methods: dict[str, Any] = {
                "auto": BayesianMixture("auto", n_init=options.n_init, random_state=seed)
            }
            if options.truncation:
                theirs = BayesianGaussianMixture(n_components=options.truncation, random_state=seed)
                methods["scikit-learn"] = theirs
            for name, estimator in methods.items():
                with threadpool_limits(options.threads):
                    record = {"true": components, "seed": seed} | measure(name, estimator, x, kinds)
                text = ", ".join(f"{key} {value}" for key, value in record.items())
                print(json.dumps(record) if options.json else text, flush=True)


if __name__ == "__main__":
    main()
