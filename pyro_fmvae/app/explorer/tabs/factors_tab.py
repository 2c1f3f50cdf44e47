"""Factors: the components of each side by side with everything else fixed, and fields to name them."""

from functools import partial
from typing import Any, Final

import gradio as gr

from pyro_fmvae.app.explorer.exploration import Exploration
from pyro_fmvae.app.explorer.factor_views import example, factor_view
from pyro_fmvae.app.explorer.generation import movable
from pyro_fmvae.app.explorer.tabs.common import Points, as_handler

FACTORS: Final = 12
"""Factors shown, the first ones."""


def factors_tab(explored: Exploration, page: gr.Blocks) -> None:
    """Lay out the tab."""
    factors = movable(explored)[:FACTORS]
    seed = gr.State(0)
    with gr.Row():
        gr.Markdown(
            "Each row is one point with one property changed. Name what changes: the names are saved with "
            "the run, and all tabs, figures and commands know them."
        )
        another = gr.Button("Another point", elem_id="another-point", scale=0, min_width=160)
    shown: list[Any] = []
    fields, buttons = [], []
    for factor in factors:
        with gr.Row():
            with gr.Column(scale=1, min_width=240):
                name = gr.Textbox(
                    label="Property",
                    max_lines=1,
                    interactive=factor not in explored.run.recipe.labelled,
                    elem_id=f"factor-name-{factor}",
                )
                values = gr.Textbox(
                    label="Its values, in the order of the pictures",
                    placeholder="no, yes",
                    max_lines=1,
                    elem_id=f"factor-values-{factor}",
                )
                buttons.append(gr.Button("Keep the names", size="sm", elem_id=f"keep-names-{factor}"))
            with gr.Column(scale=4):
                points = Points(explored, "", columns=6, elem_id=f"factor-{factor}")
        shown += [points, name, values]
        fields.append((name, values))
    outputs = [part.block if isinstance(part, Points) else part for part in shown]

    def show(number: int) -> list[Any]:
        point, found = example(explored, number), list[Any]()
        for factor, points in zip(factors, shown[::3], strict=True):
            view = factor_view(explored, point, factor)
            names = dict((k, text) for text, k in explored.choices(factor))
            known = [names[k % len(names)] for k in view.components]
            unnamed = all(text == str(k) for text, k in zip(known, view.components, strict=True))
            texts = explored.run.recipe.factor_names[factor], "" if unnamed else ", ".join(known)
            found += [points.shown(view.x, view.notes, "component"), *texts]
        return found

    def keep(factor: int, number: int, own: str, values: str) -> list[Any]:
        view = factor_view(explored, example(explored), factor)
        explored.name_factor(factor, own, view.components, values)
        gr.Info("The names are saved with the run. The other tabs show them once you reload the page.")
        return show(number)

    page.load(as_handler(show), [seed], outputs)
    another.click(as_handler(lambda number: [number + 1, *show(number + 1)]), [seed], [seed, *outputs])
    for factor, button, texts in zip(factors, buttons, fields, strict=True):
        button.click(as_handler(partial(keep, factor)), [seed, *texts], outputs)
