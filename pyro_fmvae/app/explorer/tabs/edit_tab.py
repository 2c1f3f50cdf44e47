"""Edit: a point, its code with probabilities, and how it looks with another value of a property."""

from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import torch

from pyro_fmvae.app.explorer import alteration
from pyro_fmvae.app.explorer.exploration import Exploration
from pyro_fmvae.app.explorer.tabs.common import Points, as_handler
from pyro_fmvae.app.runs.pages import markup
from pyro_fmvae.data import Split


def edit_tab(explored: Exploration, page: gr.Blocks) -> None:
    """Lay out the tab."""
    run, image = explored.run, explored.run.recipe.image
    point, seen = gr.State(None), gr.State(0)
    with gr.Row():
        with gr.Column():
            given: gr.File | gr.Dataframe
            if image:
                given = gr.File(
                    label="Drop a picture here", file_types=["image"], elem_id="picture", height=120
                )
                taken = Points(explored, "The picture, as the run takes it", columns=1, elem_id="taken")
            else:
                given = gr.Dataframe(label="A row, whose cells you may change", elem_id="row", buttons=[])
            another = gr.Button(
                "Take a training point", elem_id="training-point", visible=explored.rows is not None
            )
        with gr.Column():
            gr.Markdown("Code")
            code = gr.HTML(elem_id="code")
    with gr.Row():
        factor = gr.Dropdown(explored.factors, value=0, label="Change")
        component = gr.Dropdown(explored.choices(0), value=0, label="to")
        apply = gr.Button("Change it", variant="primary", elem_id="change")
    with gr.Row():
        before = Points(explored, "Before, as the model sees it", columns=1, elem_id="before")
        after = Points(explored, "After", columns=1, elem_id="after")
    others = len(run.recipe.factor_names) > 1
    gr.Markdown("The other properties, as the model reads both", visible=others)
    kept = gr.HTML(elem_id="kept", visible=others)

    def read(split: Split) -> tuple[Split, str]:
        reading, rows = alteration.read(explored, split), []
        for name, told_of in zip(run.recipe.factor_names, reading.probabilities, strict=True):
            (value, sure), *others = told_of
            rows.append([name, value, f"{sure:.2f}", ", ".join(f"{other} {p:.2f}" for other, p in others)])
        return split, markup.table(["property", "value", "probability", "next"], rows)

    def open_picture(path: str | None) -> tuple[Any, Split | None, str]:
        if path is None:
            return None, None, ""
        try:
            split = alteration.open_picture(explored, Path(path))
        except ValueError as error:  # of a copy, whose folder means nothing to the reader
            raise ValueError(str(error).replace(path, Path(path).name)) from error
        return taken.shown(split.observations), *read(split)

    def open_row(row: Any) -> tuple[Split, str]:
        return read(alteration.open_row(explored, [str(cell) for cell in np.asarray(row)[0].tolist()]))

    def training_point(number: int) -> tuple[Any, Split, str, int]:
        points = explored.points
        row = int(np.random.default_rng(number).integers(len(points)))
        split = points.select(torch.tensor([row]))
        header, cells = ([], []) if image else explored.table(split.observations)
        shown = taken.shown(split.observations) if image else {"headers": header, "data": cells}
        return shown, *read(split), number + 1

    def change(split: Split | None, of: int, to: int) -> tuple[Any, Any, str]:
        if split is None:
            raise ValueError("Drop a picture first, or take a training point.")
        found = alteration.change(explored, split, of, to)
        told_of = markup.table(["property", "before", "after"], found.kept)
        return before.shown(found.before), after.shown(found.after), told_of

    if image:
        given.upload(as_handler(open_picture), [given], [taken.block, point, code])
    else:
        given.input(as_handler(open_row), [given], [point, code])
    place = taken.block if image else given
    another.click(as_handler(training_point), [seen], [place, point, code, seen])
    factor.input(as_handler(lambda of: gr.Dropdown(explored.choices(of), value=0)), [factor], [component])
    page.load(as_handler(lambda: gr.Dropdown(explored.factors, value=0)), None, [factor])
    page.load(as_handler(lambda: gr.Dropdown(explored.choices(0), value=0)), None, [component])
    apply.click(as_handler(change), [point, factor, component], [before.block, after.block, kept])
