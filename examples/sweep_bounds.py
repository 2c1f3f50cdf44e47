"""Bounds against the number of components: the rows, a table of them, Figure 3 of Paquet et al. (2018)."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from sweep import Row, scaled, where

PANELS = {"elbo": "ELBO (equation 11)", "reconstruction": "reconstruction", "kl_z": "KL[z]", "kl_r": "KL[r]"}
COLUMNS = (
    *("prior", "factors", "seed", "iterations", "ELBO (eq. 11)", "reconstruction", "KL[z]", "KL[r]"),
    *("in use", "collapsed", "IW gain", "hours"),
)


PRETRAINING = 10_000
JOINT = 40_000
LONG = 100_000
LEARNING = {"final_learning_rate": 1e-5, "weight_decay": 0.05, "augmentation": 0.33}
DIM = 64  # of z


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the option of these sweeps."""
    text = "networks in float32, which is faster on processors without instructions for bfloat16"
    parser.add_argument("--float32", action="store_true", help=text)


@dataclass(frozen=True)
class Bounds:
    """The variables of a sweep.

    Args:
        data: name of the data set, of 28×28 images.
        mixtures: components of each factor → seeds, the more important ones first. Several factors share the
            dimensions. The N(0, I) prior has as many seeds as the most of them.
        long: the same, of rows with more iterations.
        published: K → ELBO of the paper.
    """

    data: str
    mixtures: Mapping[tuple[int, ...], Sequence[int]]
    long: Mapping[tuple[int, ...], Sequence[int]] = field(default_factory=dict)
    published: Mapping[int, float] = field(default_factory=dict)

    def rows(self, chosen: argparse.Namespace) -> Iterator[Row]:
        """All rows; those that only others start from have no file."""
        seeds = max(self.mixtures.values(), key=len)
        for seed in sorted({*seeds, *chain(*self.long.values())}):
            train = {"model": "vae", "factor_dim": DIM, "pretrain_iterations": PRETRAINING}
            yield self._row(chosen, "pretrained", seed, {**train, "joint_iterations": 0}, start=True)
        yield from self._mixtures(chosen, self.mixtures, "", JOINT)
        for seed in seeds:
            train = {"model": "vae", "factor_dim": DIM, "joint_iterations": JOINT}
            yield self._row(chosen, "normal", seed, train, prior="N(0, I)")
        yield from self._mixtures(chosen, self.long, "-long", LONG)

    def report(self, records: Sequence[Mapping[str, Any]], picture: Path | None) -> str:
        """A table of finished rows; with a path, also Figure 3."""
        if picture is not None and records:
            figure_3(records, picture, self.published)
        return table(records)

    def _mixtures(
        self,
        chosen: argparse.Namespace,
        mixtures: Mapping[tuple[int, ...], Sequence[int]],
        ending: str,
        joint: int,
    ) -> Iterator[Row]:
        for factors, seeds in mixtures.items():
            name = f"K{'x'.join(map(str, factors))}{ending}"
            train = {"factors": factors, "factor_dim": DIM // len(factors), "prior_iterations": 1000}
            for seed in seeds:
                yield self._row(chosen, name, seed, {**train, "joint_iterations": joint}, prior="mixture")

    def _row(
        self,
        chosen: argparse.Namespace,
        name: str,
        seed: int,
        train: Mapping[str, Any],
        start: bool = False,
        **about: Any,
    ) -> Row:
        given = where(chosen)
        common = {"data": self.data, **given, "seed": seed, "network": "conv28"}
        common["autocast"] = not chosen.float32
        if start:
            return Row(f"{name}-seed{seed}", {**common, **scaled(train, chosen.scale)})
        split = {"split": chosen.split}
        evaluate = {
            "bounds": {**split, "num_samples": 5},
            "tight": {**split, "points": 100, "num_samples": 1000},
        }
        train = {**common, **scaled(train, chosen.scale), **LEARNING}
        return Row(f"{name}-seed{seed}", train, evaluate, f"pretrained-seed{seed}", {**split, **about})


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """One line per row, nats per image.

    Iterations are those of pretraining + the joint phase. The gain is the difference between the
    importance-weighted bound and equation 11 on the first images. The bound's own mean over so few images
    would say little.
    """
    lines = [COLUMNS, ("---",) * len(COLUMNS)]
    for record in records:
        bounds, tight = record["result"]["bounds"], record["result"]["tight"]
        mixture = record["prior"] == "mixture"
        lines.append(
            (
                record["prior"],
                " and ".join(map(str, record["factors"])) if mixture else "",
                str(record["seed"]),
                f"{record['pretrain_iterations']:,} + {record['joint_iterations']:,}",
                *(f"{bounds[name]:.2f}" for name in PANELS),
                ", ".join(map(str, bounds["used_components"])) if mixture else "",
                f"{bounds['collapsed']:.2f}",
                f"{tight['importance_weighted'] - tight['elbo']:.2f}",
                f"{record['seconds'] / 3600:.2f}",
            )
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def figure_3(records: Sequence[Mapping[str, Any]], path: Path, published: Mapping[int, float]) -> None:
    """ELBO, reconstruction, KL[z] and KL[r] against log2 K; the N(0, I) prior as a band.

    Args:
        records: rows; a line joins the means over seeds of rows with one factor and equal numbers of joint
            iterations.
        path: path of the PNG.
        published: K → ELBO of the paper.
    """
    single = [r for r in records if r["prior"] == "mixture" and len(r["factors"]) == 1]
    normal = [r for r in records if r["prior"] != "mixture"]
    ticks = sorted({*published, *(r["factors"][0] for r in single)})
    shown, axes = plt.subplots(1, 4, figsize=(13, 3.4))
    for axis, (name, title) in zip(axes, PANELS.items(), strict=True):
        for budget in sorted({r["joint_iterations"] for r in single}):
            rows = [r for r in single if r["joint_iterations"] == budget]
            sizes = sorted({r["factors"][0] for r in rows})
            values = {k: [_value(r, name) for r in rows if r["factors"][0] == k] for k in sizes}
            means = [sum(values[k]) / len(values[k]) for k in sizes]
            line = axis.plot(sizes, means, "o-", ms=4, label=f"mixture, {budget:,} iterations")[0]
            for k in sizes:
                if len(values[k]) > 1:  # one for each seed
                    axis.plot([k] * len(values[k]), values[k], "_", ms=8, color=line.get_color())
        if normal:
            level = [_value(r, name) for r in normal]
            budget = normal[0]["joint_iterations"]
            axis.axhspan(min(level), max(level), color="0.75", lw=1)
            axis.axhline(sum(level) / len(level), color="0.4", lw=1, label=f"N(0, I), {budget:,} iterations")
        if name == "elbo" and published:
            axis.plot(*zip(*published.items(), strict=True), "k*", label="published, test images")
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, map(str, ticks), fontsize=9)
        axis.set(title=title, xlabel="components K")
        axis.grid(lw=0.4, alpha=0.7)
    axes[0].set_ylabel("nats per image")
    handles, labels = axes[0].get_legend_handles_labels()
    shown.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    shown.set_layout_engine("constrained")
    shown.savefig(path, dpi=150)
    plt.close(shown)


def _value(record: Mapping[str, Any], name: str) -> float:
    return record["result"]["bounds"][name]
