"""Speed of the library's prior alone, a Bayesian Gaussian mixture, against scikit-learn's.

    python examples/benchmarks/gaussian_mixture.py                  # 10^5 points, D = 16, K = 20, full
    python examples/benchmarks/gaussian_mixture.py --covariances diag --points 1000000 --plot curves.png

``minibatch`` takes natural-gradient steps with a Robbins-Monro rate. ``best start`` does so from the best of
``--starts`` starts, by the bound on a sample after ``--trial`` steps each. ``full batch`` takes steps of size
1 with all data, which is coordinate ascent. All three are an ordinary Pyro program in float32 under
``TraceConjugate_ELBO``, with steps that are eager, captured, or captured and compiled (``--step``).
``estimator`` is ``pyro_fmvae.sklearn.BayesianMixture``, with ``--n-init`` starts of its own, whose sweeps
take parts of ``--batch-size`` points in float64; ``estimator, full batch`` takes all points at once.
``sklearn`` is ``BayesianGaussianMixture`` with its defaults: one start, until it reports convergence, or for
100 iterations (``--iterations``, also for ``full batch``). ``sklearn float32`` is the same on float32 data,
and ``sklearn exact``, for diagonal covariances, the same with a corrected E-step (see
``gaussian_mixture_posterior.py``). All have the same prior. All but ``best start`` and ``estimator`` start
at the same posterior, that of k-means clusters of ``--sample`` points; the estimator's choice of a start is
its ``setup``.

All are scored by the same measures, in nats per point: ``bound`` is the bound on the log-evidence of all
data, with assignments at their optimum, and ``predictive`` the mean log posterior predictive density of
held-out points. ``seconds`` include capturing and compiling before the first step (``setup``), and all starts
of ``best start``. Choosing the common start (``start``) is reported apart, and scoring of the records is not
counted. (Compilers run in processes of their own, which ``--clock cpu`` leaves out.) ``to_M`` is the time
until the bound is within ``--margin`` M of the last bound of ``sklearn``. ``active`` counts components with
more than a twentieth of an equal share of the data. The data are drawn from K Gaussians of unequal weights,
some of which overlap.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pyro
import sklearn
import torch
from command_line import Parser, machine, natural_number
from gaussian_mixture_estimator import fit_estimator
from gaussian_mixture_methods import (
    STEPS,
    ExactMixture,
    Minibatches,
    Start,
    TracedMixture,
    fit_full_batch,
    fit_sklearn,
)
from gaussian_mixture_posterior import CLOCKS, COVARIANCES, Priors, Trace
from matplotlib.axes import Axes
from threadpoolctl import threadpool_limits

from pyro_fmvae import RobbinsMonro, keep_freed_memory

OURS = ("minibatch", "best start", "full batch", "estimator")
THEIRS = ("sklearn", "sklearn float32", "sklearn exact")
RATE = RobbinsMonro(delay=3.0, forgetting=0.7, first_step=0.9)
LEAST_SHOWN = 1e-5  # nats below the best bound: a plot shows no less
Fit = Callable[[Trace], None]


@dataclass(frozen=True)
class Truth:
    """The mixture of Gaussians that the data come from."""

    weights: np.ndarray  # [K]
    loc: np.ndarray  # [K, D]
    scale_tril: np.ndarray  # [K, D, D]

    @classmethod
    def draw(cls, components: int, dim: int, covariances: str, rng: np.random.Generator) -> "Truth":
        """Draw overlapping components."""
        weights = rng.dirichlet(np.full(components, 2.0))
        loc = 0.8 * rng.standard_normal((components, dim))
        scale_tril = np.exp(0.3 * rng.standard_normal((components, dim)))[..., None] * np.eye(dim)
        if covariances == "full":
            scale_tril += 0.3 * np.tril(rng.standard_normal(scale_tril.shape), -1)
        return cls(weights, loc, scale_tril)

    def sample(self, points: int, rng: np.random.Generator) -> np.ndarray:
        """Draw points [N, D]."""
        kinds = rng.choice(len(self.weights), size=points, p=self.weights)
        x = rng.standard_normal((points, self.loc.shape[1]))
        for kind, (loc, scale_tril) in enumerate(zip(self.loc, self.scale_tril, strict=True)):
            x[kinds == kind] = loc + x[kinds == kind] @ scale_tril.T
        return x

    def log_joint(self, x: np.ndarray) -> torch.Tensor:
        """log p(k, x) of points [N, D]: [N, K]."""
        loc, scale_tril = torch.as_tensor(self.loc), torch.as_tensor(self.scale_tril)
        components = torch.distributions.MultivariateNormal(loc, scale_tril=scale_tril)
        return torch.as_tensor(self.weights).log() + components.log_prob(torch.as_tensor(x).unsqueeze(-2))


def measure(points: int, options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """One record per method, and its curve of seconds and bound, [2, records]."""
    rng, clock = np.random.default_rng(options.seed), CLOCKS[options.clock]
    truth = Truth.draw(options.components, options.dim, options.covariances, rng)
    x, held_out = truth.sample(points, rng), truth.sample(options.held_out, rng)
    data, test = torch.as_tensor(x), torch.as_tensor(held_out)
    generator = torch.Generator().manual_seed(options.seed)
    begun = clock()
    priors = Priors.of_data(x, options.components, options.covariances)
    start = Start.by_kmeans(data, min(options.sample, points), options.components, generator)
    start_seconds = clock() - begun
    true = truth.log_joint(held_out)
    shared = {
        "points": points,
        "dim": options.dim,
        "components": options.components,
        "covariances": options.covariances,
        "threads": torch.get_num_threads(),
        "clock": options.clock,
        "start": round(start_seconds, 3),
        "true_log_density": round(true.logsumexp(-1).mean().item(), 4),
        "error_of_best_classifier": round(1 - true.softmax(-1).amax(-1).mean().item(), 3),
    }
    records, curves = [], {}
    for name, fit in methods(x, priors, start, options):
        if re.split(" of |, ", name)[0] not in options.method:
            continue
        trace = Trace(clock, options.max_seconds)
        fit(trace)
        seconds, steps, posteriors = zip(*trace.points, strict=True)
        curves[name] = np.array([seconds, [posterior.bound(data) for posterior in posteriors]])
        records.append(
            {
                "method": name,
                **shared,
                "setup": round(trace.setup, 3),
                "steps": steps[-1],
                "seconds": round(seconds[-1], 3),
                "converged": trace.converged,
                "bound": round(curves[name][1, -1], 4),
                "best_bound": round(curves[name][1].max(), 4),
                "predictive": round(posteriors[-1].log_predictive(test), 4),
                "active": posteriors[-1].active(points),
            }
        )
    goal = curves["sklearn"][1, -1] if "sklearn" in curves else None
    for record, curve in zip(records, curves.values(), strict=True):
        for margin in options.margin:
            record[f"to_{margin}"] = seconds_to(curve, goal, margin)
    return records, curves


def methods(
    x: np.ndarray, priors: Priors, start: Start, options: argparse.Namespace
) -> Iterator[tuple[str, Fit]]:
    """All methods by name."""
    single, first = torch.as_tensor(x, dtype=torch.float32), start.posterior(torch.as_tensor(x), priors)
    sample = min(options.sample, len(x))
    tries = {"starts": options.starts, "trial": options.trial, "sample": sample}
    for step, size in product(options.step, options.batch_size):
        minibatches = Minibatches(step, RATE, min(size, len(x)), options.epochs)
        first_order, order = (torch.Generator().manual_seed(options.seed) for _ in range(2))
        yield f"minibatch of {size}, {step}", partial(minibatches.fit, single, first, generator=first_order)
        fit_best = partial(minibatches.fit_best, single, priors, options.components, **tries)
        yield f"best start of {size}, {step}", partial(fit_best, generator=order)
    limit, tries = options.iterations, {"starts": options.n_init, "seed": options.seed}
    tries |= {"components": options.components, "iterations": limit}
    for size in options.batch_size:
        yield f"estimator of {size}", partial(fit_estimator, x, priors, size=min(size, len(x)), **tries)
    yield "estimator, full batch", partial(fit_estimator, x, priors, size=len(x), **tries)
    for step in options.step:
        fit = partial(fit_full_batch, single, first, step=step, tol=1e-7, iterations=limit)
        yield f"full batch, {step}", fit
    for name, data, kind in (
        ("sklearn", x, TracedMixture),
        ("sklearn float32", single.numpy(), TracedMixture),
        ("sklearn exact", x, ExactMixture),
    ):
        if kind is TracedMixture or options.covariances == "diag":
            yield name, partial(fit_sklearn, data, priors, start, iterations=limit, kind=kind)


def seconds_to(curve: np.ndarray, bound: float | None, margin: float) -> float | None:
    """Time at which a curve [2, records] first comes within the margin of a bound, or None."""
    if bound is None:
        return None
    there = curve[1] >= bound - margin
    return round(curve[0, there.argmax()], 3) if there.any() else None


COLUMNS = (
    *("method", "points", "start", "setup", "steps", "seconds"),
    *("bound", "best_bound", "predictive", "active"),
)


def as_row(values: dict[str, Any]) -> str:
    """Format a record, or the names of the columns, as a line of the table."""
    names = [*COLUMNS, *(name for name in values if name.startswith("to_"))]
    cells = ("-" if values[name] is None else str(values[name]) for name in names)
    return "".join(cell.ljust(28) if i == 0 else cell.rjust(11) for i, cell in enumerate(cells))


def plot(curves: dict[int, dict[str, np.ndarray]], clock: str, path: str) -> None:
    """Plot how far the bound is below the best of all against seconds, with a panel for each N."""
    figure, panels = plt.subplots(
        1, len(curves), figsize=(5.2 * len(curves), 4.6), squeeze=False, layout="constrained", sharey=True
    )
    for axes, (points, lines) in zip(panels[0], curves.items(), strict=True):
        draw(axes, lines)
        axes.set(title=f"{points:,} points", xlabel=f"seconds of training ({clock})")
    panels[0, 0].set_ylabel("below the best bound, nats per point")
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw(axes: Axes, lines: dict[str, np.ndarray]) -> None:
    """Draw one panel."""
    best = max(bounds.max() for _, bounds in lines.values())
    for name, (seconds, bounds) in lines.items():
        first = 0 if name.startswith("best start") else 1  # without the start that the others share
        gap, style = np.maximum(best - bounds, LEAST_SHOWN), "--" if name.startswith("sklearn") else "-"
        axes.plot(seconds[first:], gap[first:], style, marker=".", label=name)
    axes.set(xscale="log", yscale="log")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    parser = Parser(__doc__, devices=False)
    parser.add_argument(
        "--points", type=natural_number, action="append", help="N; may be repeated (default: 10^5)"
    )
    parser.add_argument("--dim", type=natural_number, default=16, help="D (default: 16)")
    parser.add_argument("--components", type=natural_number, default=20, help="K (default: 20)")
    parser.add_argument(
        "--covariances", choices=COVARIANCES, default="full", help="of the components (default: full)"
    )
    parser.add_argument(
        "--sample", type=natural_number, default=10_000, help="points to start by (default: 10000)"
    )
    parser.add_argument(
        "--batch-size", type=natural_number, action="append", help="B; may be repeated (default: 5000)"
    )
    parser.add_argument(
        "--step",
        choices=STEPS,
        action="append",
        help="kind of steps; may be repeated (default: eager, captured)",
    )
    parser.add_argument(
        "--epochs", type=natural_number, default=30, help="passes in minibatches (default: 30)"
    )
    parser.add_argument(
        "--starts", type=natural_number, default=8, help="of the method `best start` (default: 8)"
    )
    parser.add_argument("--trial", type=natural_number, default=30, help="steps of each start (default: 30)")
    parser.add_argument(
        "--n-init", type=natural_number, default=4, help="starts of the method `estimator` (default: 4)"
    )
    parser.add_argument(
        "--iterations",
        type=natural_number,
        default=100,
        help="of sklearn, full batches and estimator, at most (default: 100)",
    )
    parser.add_argument(
        "--method", choices=OURS + THEIRS, action="append", help="may be repeated (default: all)"
    )
    parser.add_argument(
        "--held-out", type=natural_number, default=20_000, help="further points to score (default: 20000)"
    )
    parser.add_argument(
        "--margin",
        type=float,
        action="append",
        help="nats per point; may be repeated (default: 0.01, 0.001)",
    )
    parser.add_argument(
        "--max-seconds", type=float, default=300.0, help="seconds for each method (default: 300)"
    )
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: total time of all threads")
    options = parser.parse_args(arguments)
    options.batch_size, options.method = options.batch_size or [5000], options.method or OURS + THEIRS
    options.step = options.step or ["eager", "captured"]
    options.margin = options.margin or [0.01, 0.001]
    if options.threads:
        torch.set_num_threads(options.threads)
    keep_freed_memory()
    if not options.json:
        print(f"{machine(torch.device('cpu'))}, scikit-learn {sklearn.__version__}")
        names = (*COLUMNS, *(f"to_{margin}" for margin in options.margin))
        print(as_row({name: name for name in names}), flush=True)
    curves = {}
    with threadpool_limits(options.threads), pyro.validation_enabled(False):
        for points in options.points or [100_000]:
            records, curves[points] = measure(points, options)
            for record in records:
                print(json.dumps(record) if options.json else as_row(record), flush=True)
    if options.plot:
        plot(curves, options.clock, options.plot)


if __name__ == "__main__":
    main()
