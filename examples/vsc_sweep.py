"""Variational sparse coding against β-VAEs: bounds, and correlations of latents with sources of smileys.

    python examples/vsc_sweep.py --out code-rows
    python examples/vsc_sweep.py --data-root DIR --out code-rows --rows mnist-vsc-J40-seed0
    python examples/vsc_sweep.py --out code-rows --report --figure pictures/codes.png

Rows are VSC, a VAE, a β-VAE and a β-TCVAE with 20, 40 and 80 latents, and a β-VAE with 40 latents for several
β, on smileys and on MNIST, with five seeds each. All have perceptrons of 400 units and the same number of
updates. Smileys have longer rows, too: `long` rows have the published schedule of 200,000 iterations, and
`tenfold` rows ten times as many iterations as the others. Finished rows are not run again. The script ends
with a table. Pictures, drawn from the rows' files, show the bound against the number of latents and against
β, and the correlations of latents and sources for each number of latents.
"""

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sweep import Row, Sweep, main, scaled, where

from pyro_fmvae import figures
from pyro_fmvae.app.recipes import codes_of, true_sources
from pyro_fmvae.app.runs import Run
from pyro_fmvae.data import Batches
from pyro_fmvae.data.sets import smileys
from pyro_fmvae.evaluate import correlation_matrix

SEEDS = range(5)
LATENTS = (20, 40, 80)
BETAS = (2.0, 4.0, 8.0, 16.0)
MODELS: dict[str, dict[str, Any]] = {
    "vsc": {"model": "vsc", "pretrain_iterations": 2000, "joint_iterations": 4000},
    "vae": {"model": "vae"},
    "beta4": {"model": "vae", "beta": 4.0},
    "tc6": {"model": "vae", "total_correlation": 6.0},
}
TITLES = {"vsc": "VSC", "vae": "VAE", "beta4": "β-VAE, β = 4", "tc6": "β-TCVAE, β = 6"}
LONG_LATENTS = (40, 80)
_LONG_PHASES = {"learning_rate": 5e-4, "pretrain_iterations": 60_000, "joint_iterations": 140_000}
_LONG_BASELINE = {"learning_rate": 5e-5, "pretrain_iterations": 0, "joint_iterations": 200_000}
LONG: dict[str, dict[str, Any]] = {  # the published schedule; ten times the short one
    "vsc-long": {
        **{"model": "vsc", "sparse_prior": "select", "pseudo_inputs": 20, "sparsity": 0.01},
        **{**_LONG_PHASES, "joint_learning_rate": 5e-5, "warm_up": (0.25, 0.3)},
    },
    "beta4-long": {**MODELS["beta4"], **_LONG_BASELINE},
    "tc6-long": {**MODELS["tc6"], **_LONG_BASELINE},
    "vsc-tenfold": {**MODELS["vsc"], "pretrain_iterations": 20_000, "joint_iterations": 40_000},
    "beta4-tenfold": {**MODELS["beta4"], "joint_iterations": 60_000},
    "tc6-tenfold": {**MODELS["tc6"], "joint_iterations": 60_000},
}
COMMON = {"network": "mlp", "hidden": (400,), "batch_size": 128}
ITERATIONS = {"pretrain_iterations": 0, "joint_iterations": 6000}  # of all but VSC
DATA: dict[str, dict[str, Any]] = {"smiley": {}, "mnist": {"binarization": "threshold"}}
AT_BETAS = 40  # latents
COLUMNS = (
    *("data", "model", "latents", "seeds", "ELBO", "importance-weighted, 5 draws", "share on", "active"),
    *(", ".join(smileys.ATTRIBUTES), "block concentration"),
)


class CodeSweep(Sweep):
    """Rows whose files also have the correlations of latents and sources, if sources are known."""

    def result(self, row: Row, folder: Path) -> dict[str, Any]:
        """The output of ``evaluate``, and the matrix [18, J] of correlations on validation images."""
        found = super().result(row, folder)
        run = Run.open(folder)
        rows = run.load_data(row.train.get("data_root")).valid
        sources = true_sources(run.config, "valid", len(rows))
        if sources is not None:
            model = run.load_model(torch.device("cpu"))
            codes = codes_of(model, Batches(rows, 500, shuffle=False))
            matrix = correlation_matrix(sources, codes.double().numpy())
            found["correlations"] = [" ".join(f"{value:.6g}" for value in line) for line in matrix]
        return found


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    """All rows, seed by seed."""
    given = where(chosen)
    for data, options in DATA.items():
        for seed in SEEDS:
            common = {"data": data, **options, **given, **COMMON, "seed": seed}
            for latents in LATENTS:
                for name, model in MODELS.items():
                    yield _row(chosen, name, {**common, **model, "latent_dim": latents})
            for beta in BETAS:
                if f"beta{beta:g}" not in MODELS:
                    train = {**common, "model": "vae", "beta": beta, "latent_dim": AT_BETAS}
                    yield _row(chosen, f"beta{beta:g}", train)
    for latents in LONG_LATENTS:
        for name, model in LONG.items():
            train = {"data": "smiley", **given, **COMMON, "seed": 0, **model, "latent_dim": latents}
            yield _row(chosen, name, train)


def _row(chosen: argparse.Namespace, name: str, train: Mapping[str, Any]) -> Row:
    data, latents, seed = train["data"], train["latent_dim"], train["seed"]
    about = {"data": data, "kind": name, "latents": latents, "beta": train.get("beta", 1.0)}
    options = scaled({**ITERATIONS, **train}, chosen.scale)
    evaluate = {"bounds": {"split": chosen.split, "num_samples": 5}}
    return Row(
        f"{data}-{name}-J{latents}-seed{seed}", options, evaluate, about={**about, "split": chosen.split}
    )


def report(records: Sequence[Mapping[str, Any]], picture: Path | None) -> str:
    """Means over seeds, with standard deviations if there are several."""
    lines = [f"| {' | '.join(COLUMNS)} |", "| --- " * len(COLUMNS) + "|"]
    groups: dict[tuple[str, str, int], list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["data"], record["kind"], record["latents"]), []).append(record)
    for (data, kind, latents), same in groups.items():
        found = [record["result"]["bounds"] for record in same]
        sources = [bounds["sources"] for bounds in found if "sources" in bounds]
        cells = [
            *(data, _title(kind), str(latents), str(len(same))),
            *(_mean([bounds[name] for bounds in found], 2) for name in ("elbo", "importance_weighted")),
            _mean([bounds["share_on"] for bounds in found if "share_on" in bounds], 2),
            _mean([source["active"] for source in sources], 1),
            ", ".join(_mean([source[name] for source in sources], 1, False) for name in smileys.ATTRIBUTES)
            if sources
            else "",
            _mean([source["block_concentration"] for source in sources], 2),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        _draw(records, picture)
    return "\n".join(lines)


def _title(kind: str) -> str:
    short, *length = kind.split("-")
    return ", ".join([TITLES.get(short, short.replace("beta", "β-VAE, β = ")), *length])


def _mean(values: Sequence[float], digits: int, spread: bool = True) -> str:
    values = [value for value in values if value is not None]
    if not values:
        return ""
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if spread and len(values) > 1 else mean


def _draw(records: Sequence[Mapping[str, Any]], picture: Path) -> None:
    """Draw bounds against latents and β, and matrices of the first seed, to files named after ``picture``."""
    for data in sorted({record["data"] for record in records}):
        of_data = [record for record in records if record["data"] == data]
        by_latents: dict[str, dict[float, list[float]]] = {}
        by_beta: dict[float, list[float]] = {}
        matrices: dict[str, dict[str, np.ndarray]] = {}
        for record in of_data:
            kind, latents, result = record["kind"], record["latents"], record["result"]
            elbo = result["bounds"]["elbo"]
            short, _, length = kind.partition("-")
            if short in TITLES and not length:
                by_latents.setdefault(TITLES[kind], {}).setdefault(latents, []).append(elbo)
            if short in TITLES and "correlations" in result:
                found = np.array([line.split() for line in result["correlations"]], float)
                name = f"J{latents}-{length}" if length else f"J{latents}"
                matrices.setdefault(name, {}).setdefault(TITLES[short], found)
            if latents == AT_BETAS and not length and short not in ("vsc", "tc6"):
                by_beta.setdefault(record["beta"], []).append(elbo)
        drawn = {}
        if by_latents:
            drawn["latents"] = _curves(by_latents, "latent dimensions")
        if len(by_beta) > 1:
            drawn["beta"] = _curves({"β-VAE": by_beta}, "β")
        blocks = dict(zip(smileys.ATTRIBUTES, smileys.FEATURES, strict=True))
        for name, found in matrices.items():
            drawn[name] = figures.correlation_matrices(found, smileys.SOURCES, blocks)
        for name, figure in drawn.items():
            figures.save(figure, picture.with_name(f"{picture.stem}-{data}-{name}.png"))


def _curves(measured: Mapping[str, Mapping[float, Sequence[float]]], label: str) -> Figure:
    """A curve per model against a varied number: means over seeds, and their standard deviations as bars."""
    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", xlabel=label, ylabel="ELBO, nats per data point")
    for name, values in measured.items():
        places = sorted(values)
        means = [np.mean(values[place]) for place in places]
        spread = [np.std(values[place], ddof=1) if len(values[place]) > 1 else 0.0 for place in places]
        axes.errorbar(places, means, spread if any(spread) else None, marker="o", capsize=3, label=name)
    places = sorted({place for values in measured.values() for place in values})
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.minorticks_off()
    figure.legend(loc="outside upper left", ncols=2, frameon=False)
    return figure


if __name__ == "__main__":
    main(__doc__, "code-rows", rows, report, CodeSweep)
