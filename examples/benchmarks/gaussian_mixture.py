"""Speed of the library's prior alone, a Bayesian Gaussian mixture, against scikit-learn's.

    python examples/benchmarks/gaussian_mixture.py                  # 10^5 points, D = 16, K = 64
    python examples/benchmarks/gaussian_mixture.py --points 1000000 --batch-size 10000 --plot curves.png

``minibatch`` takes natural-gradient steps with a Robbins-Monro rate. ``full batch`` takes steps of size 1
with all data, which is coordinate ascent. Both are an ordinary Pyro program under ``TraceConjugate_ELBO`` in
float32, with steps that are eager, captured, or captured and compiled (``--step``). ``sklearn`` is
``BayesianGaussianMixture(covariance_type="diag")`` until it reports convergence, ``sklearn float32`` the same
on float32 data, and ``sklearn exact`` the same with a corrected E-step (see
``gaussian_mixture_posterior.py``). All have the same prior and start at the same k-means++ points.

All are scored by the same measures on held-out points, in nats per point: ``bound`` is the mean of log Σ_k
exp E[log π_k + log N(x | μ_k, 1/α_k)], ``predictive`` the mean log posterior predictive density. Seconds are
those of training. Choosing the start (``init_seconds``, in JSON) and capturing and compiling before the first
step (``setup``, by the wall clock) are reported apart, and scoring is not counted. ``to_sklearn`` is the time
until the bound is within ``--margin`` of the last bound of ``sklearn``, ``to_ours`` the same for the best
bound of this library, and ``to_own`` for the method's own best. ``active`` counts components with more than a
twentieth of an equal share of the data. The data are drawn from K overlapping Gaussians of unequal weights.
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
from gaussian_mixture_methods import (
    STEPS,
    ExactMixture,
    TracedMixture,
    fit_full_batch,
    fit_minibatch,
    fit_sklearn,
)
from gaussian_mixture_posterior import CLOCKS, Posterior, Priors, Trace
from matplotlib.axes import Axes
from sklearn.cluster import kmeans_plusplus
from threadpoolctl import threadpool_limits

from pyro_fmvae import RobbinsMonro

OURS = ("minibatch", "full batch")
THEIRS = ("sklearn", "sklearn float32", "sklearn exact")
MARGIN_SHOWN = 0.25  # nats below the best bound that a plot shows
Fit = Callable[[Trace], None]


@dataclass(frozen=True)
class Truth:
    """The mixture of Gaussians that the data come from."""

    weights: np.ndarray  # [K]
    loc: np.ndarray  # [K, D]
    scale: np.ndarray  # [K, D]

    @classmethod
    def draw(cls, components: int, dim: int, rng: np.random.Generator) -> "Truth":
        """Draw overlapping components: at K = 64, D = 16 the best classifier errs on one point in four."""
        weights = rng.dirichlet(np.full(components, 2.0))
        loc = 0.8 * rng.standard_normal((components, dim))
        return cls(weights, loc, np.exp(0.3 * rng.standard_normal((components, dim))))

    def sample(self, points: int, rng: np.random.Generator) -> np.ndarray:
        """Draw points [N, D]."""
        kinds = rng.choice(len(self.weights), size=points, p=self.weights)
        return self.loc[kinds] + self.scale[kinds] * rng.standard_normal((points, self.loc.shape[1]))

    def log_density(self, x: np.ndarray) -> float:
        """Mean log-density over points, which a fit can exceed only by chance."""
        components = torch.distributions.Normal(torch.as_tensor(self.loc), torch.as_tensor(self.scale))
        table = components.log_prob(torch.as_tensor(x).unsqueeze(-2)).sum(-1)
        return (table + torch.as_tensor(self.weights).log()).logsumexp(-1).mean().item()


def measure(points: int, options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """One record per method, and its curve of seconds and bound, [2, records]."""
    rng, clock = np.random.default_rng(options.seed), CLOCKS[options.clock]
    truth = Truth.draw(options.components, options.dim, rng)
    x, held_out = truth.sample(points, rng), truth.sample(options.held_out, rng)
    begun = clock()
    seeds = kmeans_plusplus(x, options.components, random_state=options.seed)[1]
    shared = {
        "points": points,
        "dim": options.dim,
        "components": options.components,
        "threads": torch.get_num_threads(),
        "clock": options.clock,
        "init_seconds": round(clock() - begun, 3),
        "true_log_density": round(truth.log_density(held_out), 4),
    }
    priors, test = Priors.of_data(x, options.components), torch.as_tensor(held_out)
    records, curves = [], {}
    for name, fit in methods(x, priors, seeds, options):
        if re.split(" of |, ", name)[0] not in options.method:
            continue
        trace = Trace(clock, options.max_seconds)
        fit(trace)
        seconds, steps, posteriors = zip(*trace.points, strict=True)
        curves[name] = np.array([seconds, [posterior.bound(test) for posterior in posteriors]])
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
                "active": posteriors[-1].active(priors, points),
            }
        )
    sklearn_end = curves["sklearn"][1, -1] if "sklearn" in curves else None
    ours = max((curve[1].max() for name, curve in curves.items() if name.startswith(OURS)), default=None)
    for record, curve in zip(records, curves.values(), strict=True):
        record["to_sklearn"] = seconds_to(curve, sklearn_end, options.margin)
        record["to_ours"] = seconds_to(curve, ours, options.margin)
        record["to_own"] = seconds_to(curve, curve[1].max(), options.margin)
    return records, curves


def methods(
    x: np.ndarray, priors: Priors, seeds: np.ndarray, options: argparse.Namespace
) -> Iterator[tuple[str, Fit]]:
    """All methods by name."""
    single, components = torch.as_tensor(x, dtype=torch.float32), len(seeds)
    start = Posterior.after(priors, torch.as_tensor(x[seeds]), torch.eye(components))
    rate = RobbinsMonro(delay=30.0, forgetting=0.9, first_step=0.9)
    for step, size in product(options.step, options.batch_size):
        arguments = {"step": step, "rate": rate, "size": min(size, len(x)), "epochs": options.epochs}
        generator = torch.Generator().manual_seed(options.seed)
        fit = partial(fit_minibatch, single, priors, start, generator=generator, **arguments)
        yield f"minibatch of {size}, {step}", fit
    for step in options.step:
        yield f"full batch, {step}", partial(fit_full_batch, single, priors, start, step=step, tol=1e-7)
    for name, data, kind in (
        ("sklearn", x, TracedMixture),
        ("sklearn float32", single.numpy(), TracedMixture),
        ("sklearn exact", x, ExactMixture),
    ):
        yield name, partial(fit_sklearn, data, priors, seeds, tol=1e-3, kind=kind)


def seconds_to(curve: np.ndarray, bound: float | None, margin: float) -> float | None:
    """Time at which a curve [2, records] first comes within the margin of a bound, or None."""
    if bound is None:
        return None
    there = curve[1] >= bound - margin
    return round(curve[0, there.argmax()], 3) if there.any() else None


COLUMNS = (
    *("method", "points", "setup", "steps", "seconds", "bound", "best_bound", "predictive", "active"),
    *("to_sklearn", "to_ours", "to_own"),
)


def as_row(values: dict[str, Any]) -> str:
    """Format a record, or the names of the columns, as a line of the table."""
    cells = ("-" if values[name] is None else str(values[name]) for name in COLUMNS)
    return "".join(cell.ljust(28) if i == 0 else cell.rjust(11) for i, cell in enumerate(cells))


def plot(curves: dict[int, dict[str, np.ndarray]], truth: dict[int, float], clock: str, path: str) -> None:
    """Plot the held-out bound against seconds, with a panel for each number of points."""
    figure, panels = plt.subplots(
        1, len(curves), figsize=(6.4 * len(curves), 5.2), squeeze=False, layout="constrained"
    )
    for axes, (points, lines) in zip(panels[0], curves.items(), strict=True):
        draw(axes, lines, truth[points])
        axes.set(title=f"{points:,} points", xlabel=f"seconds of training ({clock})")
    panels[0, 0].set_ylabel("held-out bound, nats per point")
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw(axes: Axes, lines: dict[str, np.ndarray], truth: float) -> None:
    """Draw one panel."""
    for name, (seconds, bounds) in lines.items():
        axes.plot(seconds[1:], bounds[1:], label=name, linestyle="--" if name.startswith("sklearn") else "-")
    axes.axhline(truth, color="0.6", linewidth=0.8, label="log-density of the truth")
    best = max(bounds.max() for _, bounds in lines.values())
    axes.set(xscale="log", ylim=(best - MARGIN_SHOWN, max(best, truth) + 0.02))


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    parser = Parser(__doc__, devices=False)
    parser.add_argument(
        "--points", type=natural_number, action="append", help="N; may be repeated (default: 10^5)"
    )
    parser.add_argument("--dim", type=natural_number, default=16, help="D (default: 16)")
    parser.add_argument("--components", type=natural_number, default=64, help="K (default: 64)")
    parser.add_argument(
        "--batch-size", type=natural_number, action="append", help="B; may be repeated (default: 5000)"
    )
    parser.add_argument(
        "--step",
        choices=STEPS,
        action="append",
        help="kind of steps; may be repeated (default: eager, compiled)",
    )
    parser.add_argument(
        "--epochs", type=natural_number, default=30, help="passes in minibatches (default: 30)"
    )
    parser.add_argument(
        "--method", choices=OURS + THEIRS, action="append", help="may be repeated (default: all)"
    )
    parser.add_argument(
        "--held-out", type=natural_number, default=20_000, help="points to score by (default: 20000)"
    )
    parser.add_argument("--margin", type=float, default=0.01, help="nats per point (default: 0.01)")
    parser.add_argument(
        "--max-seconds", type=float, default=300.0, help="seconds for each method (default: 300)"
    )
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: total time of all threads")
    options = parser.parse_args(arguments)
    options.batch_size, options.method = options.batch_size or [5000], options.method or OURS + THEIRS
    options.step = options.step or ["eager", "compiled"]
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.json:
        print(f"{machine(torch.device('cpu'))}, scikit-learn {sklearn.__version__}")
        print(as_row({name: name for name in COLUMNS}), flush=True)
    curves, truth = {}, {}
    with threadpool_limits(options.threads), pyro.validation_enabled(False):
        for points in options.points or [100_000]:
            records, curves[points] = measure(points, options)
            truth[points] = records[0]["true_log_density"]
            for record in records:
                print(json.dumps(record) if options.json else as_row(record), flush=True)
    if options.plot:
        plot(curves, truth, options.clock, options.plot)


if __name__ == "__main__":
    main()
