"""Clusters: the components of a factor by share, what is typical of each, draws, and names."""

from typing import Any

import gradio as gr
import torch

from pyro_fmvae.app.explorer.exploration import Exploration
from pyro_fmvae.app.explorer.factor_views import clusters, draws_of, notes_of
from pyro_fmvae.app.explorer.tabs.common import Points, as_handler, chosen, plain


def clusters_tab(explored: Exploration, page: gr.Blocks) -> None:
    """Lay out the tab."""
    run = explored.run
    factor = gr.Dropdown(
        explored.factors, value=len(run.recipe.labelled) % len(run.recipe.factor_names), label="Factor"
    )
    listed, picked = gr.State([]), gr.State(None)
    overview = Points(explored, "The most typical training point of each; click one", 10, elem_id="clusters")
    with gr.Row():
        name = gr.Textbox(label="Name of the component", elem_id="component-name", max_lines=1, scale=3)
        rename = gr.Button("Rename", elem_id="rename", scale=1)
    with gr.Row():
        nearest = Points(explored, "Nearest training points", columns=3, elem_id="nearest")
        draws = Points(explored, "Draws", columns=3, elem_id="cluster-draws")

    def look(of: int) -> tuple[Any, list[int]]:
        found = clusters(explored, of)
        first = torch.tensor([int(one.rows[0]) for one in found])
        notes = notes_of(explored, of, found)
        x = explored.points.select(first).observations
        return overview.shown(x, notes, "component"), [one.component for one in found]

    def pick(of: int, components: list[int], event: gr.SelectData) -> list[Any]:
        return show(of, components[chosen(event)])

    def show(of: int, component: int) -> list[Any]:
        (one,) = (one for one in clusters(explored, of) if one.component == component)
        x = explored.points.select(torch.from_numpy(one.rows)).observations
        names = explored.row_names
        shown = nearest.shown(x, names.values[one.rows].tolist(), names.title)
        return [shown, draws.shown(draws_of(explored, of, component)), one.name, component]

    def give(of: int, component: int | None, text: str) -> tuple[Any, list[int]]:
        if component is None:
            raise ValueError("Click a component first.")
        explored.rename(of, component, text)
        gr.Info(f"Kept in {plain(run.folder / 'names.json')}" if text.strip() else "The name is taken away")
        return look(of)

    factor.input(as_handler(look), [factor], [overview.block, listed])
    page.load(as_handler(lambda: gr.Dropdown(explored.factors)), None, [factor])
    page.load(as_handler(look), [factor], [overview.block, listed])

    overview.block.select(as_handler(pick), [factor, listed], [nearest.block, draws.block, name, picked])
    gr.on([rename.click, name.submit], as_handler(give), [factor, picked, name], [overview.block, listed])
