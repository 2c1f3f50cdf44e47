"""Runs side by side: one page with what differs, the measures, the curves and the pictures."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pyro_fmvae.app.runs.closing_table import TRAINING, duration
from pyro_fmvae.app.runs.pages import markup
from pyro_fmvae.app.runs.pages.evidence import Evidence, describe_data
from pyro_fmvae.app.runs.pages.markup import number
from pyro_fmvae.app.runs.pages.measure_tables import TERMS, terms_of
from pyro_fmvae.app.runs.pages.run_page import CAPTIONS, picture
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.figures import compared_curves

FIRST: Final = ("reconstructions", "columns", "components", "dictionary", "confusion")
"""Figures that are shown first; those that runs have beside them come in the order of a run's own page."""


def write_comparison(runs: Sequence[Run], target: Path) -> None:
    """Write a page that shows runs side by side.

    Args:
        runs: at least two, in different folders; whatever their folders lack is left out.
        target: the file.
    """
    named = {name: Evidence.of(run) for name, run in zip(names_of(runs), runs, strict=True)}
    parts = [
        markup.paragraph(f"{len(runs)} runs side by side.", "lead"),
        markup.section("Options that differ", [_differences(named)]),
        markup.section("Result", [_table(named, {name: _measured(one) for name, one in named.items()})]),
        markup.section("Training", [_curves(named)]),
        *(
            markup.section(CAPTIONS[name].rstrip("."), [_beside(named, name)])
            for name in dict.fromkeys((*FIRST, *CAPTIONS))
        ),
    ]
    markup.write_document(target, " and ".join(named), parts)


def names_of(runs: Sequence[Run]) -> list[str]:
    """Short names that tell runs apart: the last part of the folder's path, or more where these are equal."""
    parts = [run.folder.resolve().parts for run in runs]
    for length in range(1, max(map(len, parts))):
        names = ["/".join(one[-length:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [str(run.folder) for run in runs]


def _differences(named: Mapping[str, Evidence]) -> str:
    """A table of the options that all runs have with different values, and of those that were given."""
    described = {
        name: {"training points": describe_data(one.run), **one.options, "options given": one.given}
        for name, one in named.items()
    }
    common = set.intersection(*(set(column) for column in described.values()))
    differing = {key for key in common if len({column[key] for column in described.values()}) > 1}
    return _table(
        named,
        {name: {k: v for k, v in column.items() if k in differing} for name, column in described.items()},
    )


def _measured(evidence: Evidence) -> dict[str, str]:
    """Measures by name: those of the report, else the last validation measures."""
    found = {}
    if evidence.records:
        last = evidence.records[-1]
        found = {"steps": f"{last['step']:,}", "time": duration(last["seconds"])}
    bounds = evidence.tested or evidence.closing
    where = {"train": "training", "test": "test"}.get(evidence.report.get("split", ""), "validation")
    for term in terms_of(evidence):
        if bounds.get(term) is not None:
            found[f"{where} {TERMS[term]}"] = number(bounds[term], 2)
    for name, classified in evidence.tested.get("classification", {}).items():
        found[f"accuracy of {name}"] = number(classified["accuracy"])
    for name, clustered in evidence.tested.get("clustering", {}).items():
        found[f"matching accuracy of {name}"] = number(clustered["accuracy"])
    for name, (used, size) in evidence.used.items():
        found[f"components in use, {name}"] = f"{used} of {size}"
    return found


def _table(named: Mapping[str, Evidence], columns: Mapping[str, Mapping[str, str]]) -> str:
    """A column for each run, and a row for everything that one of them has."""
    keys = dict.fromkeys(key for column in columns.values() for key in column)
    rows = [(key, *(column.get(key, "") for column in columns.values())) for key in keys]
    return markup.table(("", *named), rows)


def _curves(named: Mapping[str, Evidence]) -> str:
    records = {name: evidence.records for name, evidence in named.items()}
    if not any(records.values()):
        return ""
    file = io.BytesIO()
    compared_curves(records).savefig(file, format="png")
    caption = "Validation bound and reconstruction against the step."
    return markup.figure(file.getvalue(), TRAINING, caption, chart=True)


def _beside(named: Mapping[str, Evidence], figure: str) -> str:
    shown = [picture(evidence.run, figure, name) for name, evidence in named.items()]
    return f'<div class="beside">{"".join(shown)}</div>' if any(shown) else ""
