"""A run as a notebook shows it."""

import base64
import json
from html import escape
from pathlib import Path
from typing import Final

from pyro_fmvae.runs.best import Kept
from pyro_fmvae.runs.closing_table import lines, read_report
from pyro_fmvae.runs.run import FIGURES, METRICS, REPORT, Run

PICTURES: Final = ("factors", "dictionary", "reconstructions", "columns", "training")
"""Figures that stand for a run: the first of them that it has."""


def card(run: Run, bounded: bool) -> str:
    """HTML of a run: its validation measures, its closing table, and one of its figures, embedded.

    Args:
        run: the run; records or figures that it lacks are left out.
        bounded: whether its model has a bound.
    """
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(text)}</td></tr>"
        for name, text in _measures(run, bounded).items()
    )
    html = f"<p><b>{escape(str(run.folder))}</b></p><table>{rows}</table>"
    if report := read_report(run.folder / REPORT):
        html += f"<pre>{escape(chr(10).join(lines(report)))}</pre>"
    figures = (run.folder / FIGURES / f"{name}.png" for name in PICTURES)
    figure = next((path for path in figures if path.is_file()), None)
    if figure is None:
        return html
    content = base64.b64encode(figure.read_bytes()).decode("ascii")
    return f"{html}<img alt='{figure.stem}' src='data:image/png;base64,{content}'>"


def _measures(run: Run, bounded: bool) -> dict[str, str]:
    """Model, data and the record of the model that was kept, or the last one, as text."""
    data = f"{Path(run.config.data).name}, {run.num_data:,} training points"
    described = {"model": run.recipe.title, "data": data}
    path = run.folder / METRICS
    lines = path.read_text().splitlines() if path.is_file() else []
    if not lines:
        return described
    records = {(record["phase"], record["step"]): record for record in map(json.loads, lines)}
    kept = Kept.read(run.folder)
    *_, last = records
    record = records[(kept.kept.phase, kept.kept.total_steps) if kept else last]
    described["step"] = f"{record['step']:,}, in phase {record['phase']}"
    terms = ["elbo", "reconstruction", "kl_z"] if bounded else ["reconstruction"]
    for term in [*terms, "kl_r"] if run.factorial else terms:
        described[f"validation {term}"] = f"{record[term]:.2f} nats per point"
    used = zip(run.factor_names, record["used_components"], run.recipe.factors, strict=True)
    return described | {name: f"{number} of {size} components in use" for name, number, size in used}
