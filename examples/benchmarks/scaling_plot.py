"""The picture of ``scaling.py``: time and memory of the prior against K and against I, on log axes."""

from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from step_plot import COLOURS

AXES = {"K": "components K (I = 1, D = 64, B = 64)", "I": "factors I (K = 64, D = 8, B = 64)"}
VALUES = {"ms": "time of a step, ms", "peak_mb": "peak memory of a step, MB"}


def draw(records: list[dict[str, Any]], path: str) -> None:
    """Draw four panels: K and I side by side, time above memory."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 7), sharex="col", sharey="row")
    methods = list(dict.fromkeys(record["method"] for record in records))
    for row, (value, label) in zip(axes, VALUES.items(), strict=True):
        for axis, varied in zip(row, AXES, strict=True):
            for method in methods:
                points = [
                    (r[varied], r[value])
                    for r in records
                    if r["method"] == method and r["varied"] == varied and value in r
                ]
                stopped = any(
                    r["method"] == method and r["varied"] == varied and "skipped" in r for r in records
                )
                if points:
                    axis.plot(*zip(*points, strict=True), "o-", ms=4, color=COLOURS[method], label=method)
                if points and stopped:
                    above = {"xytext": (-7, 0), "textcoords": "offset points", "ha": "right"}
                    axis.annotate("stops: memory", points[-1], fontsize=8, **above)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(sorted({r[varied] for r in records if r["varied"] == varied}))
            axis.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:,.0f}"))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
            if value == "ms":
                axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.grid(lw=0.4, alpha=0.7)
        row[0].set_ylabel(label)
    for axis, label in zip(axes[1], AXES.values(), strict=True):
        axis.set_xlabel(label)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=150)
    plt.close(figure)
