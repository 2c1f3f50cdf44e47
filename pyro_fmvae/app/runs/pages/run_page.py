"""The page of one run: ``report.html`` in its folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from pyro_fmvae.app.runs.closing_table import TRAINING, duration, labelled
from pyro_fmvae.app.runs.pages import markup
from pyro_fmvae.app.runs.pages.advice import advice
from pyro_fmvae.app.runs.pages.evidence import Evidence, describe_data, lead
from pyro_fmvae.app.runs.pages.measure_tables import measure_tables
from pyro_fmvae.app.runs.pages.prototypes import COMPONENTS, POINTS, Prototype, prototypes
from pyro_fmvae.app.runs.run import FIGURES, Run
from pyro_fmvae.data import Dataset
from pyro_fmvae.figures.components import percent

PAGE: Final = "report.html"
LARGEST = 96  # side of a thumbnail in pixels
CHARTS: Final = (TRAINING, "columns", "words", "clusters", "starts")
"""Figures that are lines and bars on white."""
CAPTIONS: Final = {
    "confusion": "How often points of each true value are given each value, or are in each component.",
    "reconstructions": "Pictures that training did not see, and below each what the model makes of its code.",
    "columns": "Means of the columns of each component.",
    "words": "Shares of the categories in each component.",
    "clusters": "How components join into clusters: a valley of the density that is deeper than the dashed "
    "line separates two. With networks, they are components of a mixture of the codes.",
    "spectrum": "How clear the clusters along each independent direction were, and the pictures that it "
    "moves.",
    "components": "What each component's mean decodes to, from the most to the least used.",
    "factors": "In each row a drawn picture, then the same with one factor at a time drawn anew.",
    "attributes": "Drawn pictures by the values of labels.",
    "pairs": "Mean pictures by the components of two factors without labels; all others are held.",
    "samples": "Drawn from the model.",
    "spread": "Means and standard deviations of drawn pictures.",
    "dictionary": "The units, from the most to the least active.",
    "sweeps": "One active latent at a time, moved over the range of its values.",
    "toggles": "One active latent at a time, turned off.",
    "conditional-samples": "One latent at a time, drawn anew.",
    "activity": "How often each latent is active, by class.",
    "correlations": "Correlations of latents with the known sources.",
    "recovered": "Known units, and the learnt unit that is most like each.",
    "starts": "The objective of each random start.",
}
"""Captions of figures in the order of the page; figures without one come after them."""
TITLES: Final = {
    "confusion": "Confusion",
    "reconstructions": "Reconstructions",
    "columns": "Columns",
    "words": "Categories",
    "clusters": "Clusters",
    "dictionary": "Units",
}
"""Figures with a section of their own."""


def write_page(
    run: Run, target: Path, model: Any = None, dataset: Dataset | None = None, note: str = ""
) -> None:
    """Write the page of a run, from what its folder holds.

    Args:
        run: the run; records, measures and figures that it lacks are left out.
        target: the file.
        model: as trained; without it or the data, no training pictures are shown.
        dataset: the run's data.
        note: why there are no data, for the page.
    """
    evidence = Evidence.of(run)
    nearest: list[list[tuple[Prototype, np.ndarray]]] = []
    if model is not None and dataset is not None and run.recipe.image and run.recipe.factorial:
        try:
            nearest = prototypes(run, model, dataset.train)
        except ValueError as error:  # points without a finite bound
            note = f"There are no training pictures here: {error}."
    markup.write_document(target, run.folder.resolve().name, _parts(evidence, dataset, nearest, note))


def _parts(
    evidence: Evidence,
    dataset: Dataset | None,
    nearest: Sequence[Sequence[tuple[Prototype, np.ndarray]]],
    note: str,
) -> list[str]:
    run = evidence.run
    training = picture(run, TRAINING, "The validation bound and its terms against the step.")
    options = f"<details><summary>Every option</summary>\n{markup.facts(evidence.options)}\n</details>"
    return [
        markup.paragraph(lead(evidence), "lead"),
        markup.section("Warnings", [markup.bullets(evidence.report.get("warnings", []))], "warn"),
        markup.section("Result", measure_tables(evidence)),
        markup.section("What to try next", [markup.bullets(advice(evidence))]),
        markup.section("What was trained", [markup.facts(_facts(evidence, dataset)), options]),
        markup.section("How its columns are read", _plan(evidence)),
        markup.section("Training", [training]),
        *(markup.section(title, [picture(run, name)]) for name, title in TITLES.items()),
        markup.section("Components", _components(run, nearest, note)),
        markup.section("More pictures", [picture(run, name) for name in _others(run)]),
    ]


def _plan(evidence: Evidence) -> list[str]:
    """The plan of a table's columns; nothing if there is none."""
    titles = {"name": "column", "kind": "kind", "values": "values", "treatment": "treatment", "why": "why"}
    rows = [[row[name] for name in titles] for row in evidence.report.get("columns", [])]
    return [markup.table([*titles.values()], rows)]


def picture(run: Run, name: str, caption: str | None = None) -> str:
    """A figure of a run as HTML; nothing if there is none of this name.

    Args:
        run: the run.
        name: of the figure.
        caption: below it; that of :data:`CAPTIONS` if left out.
    """
    path = run.folder / FIGURES / f"{name}.png"
    if not path.is_file():
        return ""
    kind = name if name in CAPTIONS else name.partition("-")[0]  # of pairs-2-3
    text = CAPTIONS.get(kind, name) if caption is None else caption
    return markup.figure(path.read_bytes(), name.replace("-", " "), text, chart=name in CHARTS)


def _others(run: Run) -> list[str]:
    """Names of the figures that have no section of their own."""
    found = {path.stem for path in (run.folder / FIGURES).glob("*.png")}
    known = [name for name in CAPTIONS if name in found]
    placed = {TRAINING, *TITLES, "components"}
    return [name for name in (*known, *sorted(found - set(known))) if name not in placed]


def _facts(evidence: Evidence, dataset: Dataset | None) -> dict[str, str]:
    run, derived = evidence.run, evidence.derived
    versions = derived.get("versions", {})
    found = {"model": f"{run.recipe.title} (--model {run.recipe.name})"}
    if run.recipe.factorial:
        sizes = zip(run.recipe.factor_names, run.recipe.factors, strict=True)
        found["factors"] = "; ".join(f"{name}: {size} components" for name, size in sizes)
    found["data"] = f"{run.config.data}: {describe_data(run)}"
    if dataset is not None:
        valid = dataset.valid if dataset.validated else None
        splits = {"validation": valid, "test": dataset.test, "unseen combinations": dataset.unseen}
        apart = ", ".join(f"{len(split):,} {name}" for name, split in splits.items() if split is not None)
        found["held out"] = apart or "nothing"
    if found_labelled := evidence.report.get("labelled"):
        found["labelled points used"] = labelled(found_labelled)
    found["options given"] = evidence.given
    found["seed"] = str(run.config.seed)
    if evidence.records:
        found["time"] = duration(evidence.records[-1]["seconds"])
    if "machine" in derived:
        found["machine"] = derived["machine"]
    found["versions"] = ", ".join(f"{name} {number}" for name, number in versions.items())
    return found


def _components(run: Run, nearest: Sequence[Sequence[tuple[Prototype, np.ndarray]]], note: str) -> list[str]:
    parts = [picture(run, "components")]
    for name, found in zip(run.recipe.factor_names, nearest, strict=False):
        cards = "".join(
            markup.thumbnails(list(pictures), f"{one.name}: {percent(one.share)}", LARGEST)
            for one, pictures in found
        )
        parts += [markup.heading(name), f'<div class="cards">{cards}</div>']
    if nearest:
        number = min(POINTS, run.recipe.num_data)
        parts.insert(
            1,
            markup.paragraph(
                "Below are the training pictures that are most typical of each component, and its share of "
                f"the {'' if number == run.recipe.num_data else 'first '}{number:,} training pictures. Of "
                f"each factor at most {COMPONENTS} components are shown."
            ),
        )
    return [*parts, markup.paragraph(note) if note else ""]
