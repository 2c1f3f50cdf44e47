"""Outliers: training points by how little the model expects them."""

from typing import Any, Final

import gradio as gr
import numpy as np
import torch

from pyro_fmvae.app.explorer.exploration import Exploration, rank, scores_of
from pyro_fmvae.app.explorer.tabs.common import Points, as_handler

SHOWN: Final = 24


def outliers_tab(explored: Exploration) -> None:
    """Lay out the tab."""
    with gr.Row():
        kind = gr.Dropdown([], label="Score, the higher the more outlying", elem_id="score", interactive=True)
        find = gr.Button("Rank the training points", variant="primary", elem_id="rank")
    points = Points(explored, "The most outlying training points", elem_id="outliers")
    found: dict[str, np.ndarray] = {}

    def show(of: str | None) -> tuple[Any, Any]:
        if not found:
            found.update(scores_of(explored))
        of = of or next(iter(found))
        ranked = rank(found[of], SHOWN)
        x = explored.points.select(torch.tensor([one.row for one in ranked])).observations
        notes = [f"{one.score:.4g} · {explored.row_names.values[one.row]}" for one in ranked]
        return points.shown(x, notes, "score"), gr.Dropdown(list(found), value=of)

    find.click(as_handler(show), [kind], [points.block, kind])
    kind.input(as_handler(show), [kind], [points.block, kind])
