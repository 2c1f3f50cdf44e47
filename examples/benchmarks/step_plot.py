"""The picture of ``step.py``: the time of each method in units of the floor's."""

from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

# One hue for each program; the faster of two variants is darker.
COLOURS = {
    "vae": "#c7c7c7",
    "vae compiled": "#8c8c8c",
    "vae compiled step": "#4d4d4d",
    "vae as one graph": "#252525",
    "closed form by hand": "#f5c26b",
    "closed form by hand, compiled": "#d98e04",
    "closed form by hand, as one graph": "#8a5a00",
    "SVI TraceConjugate (eager)": "#9ecae1",
    "SVI TraceConjugate (eager, validated)": "#c6dbef",
    "captured": "#4292c6",
    "captured compiled": "#08519c",
    "captured compiled, bfloat16": "#041f40",
    "TraceEnum (assignment in the model)": "#fb9a99",
    "TraceEnum (assignment in the model), compiled networks": "#c0232c",
    "TraceEnum (assignment in the guide)": "#cab2d6",
    "TraceEnum (assignment in the guide), compiled networks": "#6a3d9a",
    "Trace_ELBO MixtureSameFamily": "#b2df8a",
    "Trace_ELBO MixtureSameFamily, compiled networks": "#33802c",
}


def draw(records: list[dict[str, Any]], path: str) -> None:
    """Draw ``ratio`` as bars on a log axis, with a panel per pair of networks and a group per setting."""
    nets = list(dict.fromkeys(record["net"] for record in records))
    settings = list(dict.fromkeys(_setting(record) for record in records))
    methods = list(dict.fromkeys(record["method"] for record in records))
    figure, axes = plt.subplots(
        len(nets), 1, figsize=(4 + 2.0 * len(settings), 1.6 + 3.2 * len(nets)), sharex=True, squeeze=False
    )
    width = 0.84 / len(methods)
    for axis, net in zip(axes[:, 0], nets, strict=True):
        for place, method in enumerate(methods):
            bars = [r for r in records if r["net"] == net and r["method"] == method and "ratio" in r]
            left = [settings.index(_setting(r)) + (place + 0.5) * width - 0.42 for r in bars]
            values = [r["ratio"] for r in bars]
            errors = [[abs(r["ratio"] - r["ratio_quartiles"][side]) for r in bars] for side in (0, 1)]
            for r in records:
                if r["net"] == net and r["method"] == method and "skipped" in r:
                    at = settings.index(_setting(r)) + (place + 0.5) * width - 0.42
                    axis.text(at, 1.1, "skipped", rotation=90, fontsize=6, ha="center", color=COLOURS[method])
            axis.bar(left, values, width, color=COLOURS[method], yerr=errors, error_kw={"lw": 0.6})
        axis.axhline(1.0, color="black", lw=0.8)
        axis.set_yscale("log")
        axis.set_ylim(bottom=0.5)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.grid(axis="y", lw=0.4, alpha=0.7)
        axis.set_axisbelow(True)
        axis.set_title(f"{net} networks", loc="left", fontsize=10)
        axis.set_ylabel("time of a step / floor")
        axis.set_xticks(range(len(settings)), settings)
        axis.set_xlim(-0.5, len(settings) - 0.5)
    axes[-1, 0].set_xlabel("I, D, K, B (factors, dimensions, components, batch)")
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[method]) for method in methods]
    columns = 3 if len(settings) > 3 else 2
    figure.legend(handles, methods, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _setting(record: dict[str, Any]) -> str:
    return ", ".join(str(record[name]) for name in ("I", "D", "K", "B"))
