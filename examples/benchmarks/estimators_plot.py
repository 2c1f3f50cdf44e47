"""The picture of ``estimators.py``: the bound on validation data against steps, and against seconds."""

from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from step_plot import COLOURS


def draw(records: list[dict[str, Any]], path: str) -> None:
    """Draw two panels with a curve for each method, up to the end of the shortest."""
    points = [record for record in records if record["measure"] == "training"]
    methods = list(dict.fromkeys(point["method"] for point in points))
    figure, axes = plt.subplots(1, 2, figsize=(10, 5), sharey=True)
    for axis, name in zip(axes, ("step", "seconds"), strict=True):
        for method in methods:
            curve = [(p[name], p["elbo"]) for p in points if p["method"] == method]
            dashed = "--" if method.startswith("SVI") else "-"  # the estimator of the captured steps
            axis.plot(*zip(*curve, strict=True), dashed, color=COLOURS[method], label=method, lw=1.6)
        ends = [max(p[name] for p in points if p["method"] == method) for method in methods]
        axis.set_xlim(0, min(ends))
        axis.grid(lw=0.4, alpha=0.7)
        axis.set_xlabel("steps" if name == "step" else "seconds in steps")
    axes[0].set_ylabel("bound of equation 11, validation data,\nnats per point")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=150)
    plt.close(figure)
