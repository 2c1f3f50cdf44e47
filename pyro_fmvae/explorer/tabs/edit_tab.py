"""Edit: a point, its code with probabilities, and how it looks with another value of a property."""

from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import torch

from pyro_fmvae.data import Split
from pyro_fmvae.explorer import alteration
from pyro_fmvae.explorer.exploration import Exploration
from pyro_fmvae.explorer.tabs.common import Points, told


def edit_tab(explored: Exploration, page: gr.Blocks) -> None:
    """Lay out the tab."""
    run, image = explored.run, explored.run.image
    point, seen = gr.State(None), gr.State(0)
    with gr.Row():
        with gr.Column():
            given: gr.Image | gr.Dataframe
            if image:
                gr.Markdown("Drop a picture here")
                given = gr.Image(
                    show_label=False,
                    type="filepath",
                    sources=["upload", "clipboard"],
                    elem_id="picture",
                    height=260,
                    buttons=[],
                )
            else:
                given = gr.Dataframe(label="A row, whose cells you may change", elem_id="row", buttons=[])
            another = gr.Button(
                "Take a training point", elem_id="training-point", visible=explored.rows is not None
            )
        with gr.Column():
            code = gr.Dataframe(
                headers=["property", "value", "probability", "next"],
                label="Code",
                interactive=False,
                elem_id="code",
                buttons=[],
            )
    with gr.Row():
        factor = gr.Dropdown(
            list(zip(run.factor_names, range(len(run.factor_names)), strict=True)), value=0, label="Change"
        )
        component = gr.Dropdown(explored.choices(0), value=0, label="to")
        apply = gr.Button("Change it", variant="primary", elem_id="change")
    with gr.Row():
        before = Points(explored, "Before, as the model sees it", columns=1, elem_id="before")
        after = Points(explored, "After", columns=1, elem_id="after")
    kept = gr.Dataframe(
        headers=["kept", "before", "after"],
        label="The other properties, as the model reads both",
        interactive=False,
        elem_id="kept",
        buttons=[],
    )

    def rows_of(reading: alteration.Reading) -> list[list[str]]:
        rows = []
        for name, told_of in zip(run.factor_names, reading.probabilities, strict=True):
            (value, sure), *others = told_of
            rest = ", ".join(f"{other} {p:.2f}" for other, p in others)
            rows.append([name, value, f"{sure:.2f}", rest])
        return rows

    def read(split: Split) -> tuple[Split, list[list[str]]]:
        return split, rows_of(alteration.read(explored, split))

    def opened(value: Any) -> tuple[Split | None, list[list[str]]]:
        if value is None:
            return None, []
        if image:
            return read(alteration.open_picture(explored, Path(value)))
        return read(alteration.open_row(explored, [str(cell) for cell in np.asarray(value)[0].tolist()]))

    def training_point(number: int) -> tuple[Any, Split, list[list[str]], int]:
        points = explored.points
        row = int(np.random.default_rng(number).integers(len(points)))
        split = points.select(torch.tensor([row]))
        x = split.observations
        if image:
            value: Any = explored.pictures(x)[0]
        else:
            header, cells = explored.table(x)
            value = {"headers": header, "data": cells}
        return value, *read(split), number + 1

    def change(split: Split | None, of: int, to: int) -> tuple[Any, Any, list[list[str]]]:
        if split is None:
            raise ValueError("Drop a picture first, or take a training point.")
        found = alteration.change(explored, split, of, to)
        return before.shown(found.before), after.shown(found.after), [list(one) for one in found.kept]

    (given.upload if image else given.input)(told(opened), [given], [point, code])
    another.click(told(training_point), [seen], [given, point, code, seen])
    factor.input(told(lambda of: gr.Dropdown(explored.choices(of), value=0)), [factor], [component])
    page.load(told(lambda: gr.Dropdown(explored.choices(0), value=0)), None, [component])
    apply.click(told(change), [point, factor, component], [before.block, after.block, kept])
