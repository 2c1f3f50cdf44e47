"""Generate: draws with chosen properties, one of them moved within its component, and all of them saved."""

import tempfile
from pathlib import Path
from typing import Any, Final

import gradio as gr

from pyro_fmvae.app.explorer import generation
from pyro_fmvae.app.explorer.exploration import Exploration
from pyro_fmvae.app.explorer.generation import Draws
from pyro_fmvae.app.explorer.tabs.common import Points, as_handler, chosen

DRAWS: Final = 12
ANY: Final = ("any", -1)


def generate_tab(explored: Exploration, page: gr.Blocks) -> None:
    """Lay out the tab."""
    run = explored.run
    names, count = run.recipe.factor_names, len(run.recipe.factors)
    with gr.Row():
        selectors = [
            gr.Dropdown([ANY, *explored.choices(factor)], value=-1, label=name, min_width=120)
            for factor, name in enumerate(names)
        ]
    with gr.Row():
        again = gr.Button("Draw again", variant="primary", elem_id="draw-again")
        keep = gr.Button("Save with codes", elem_id="save-draws")
    drawn, seed = gr.State(None), gr.State(0)
    file = gr.File(label="Draws with their codes", visible=False, elem_id="draws-file")
    points = Points(explored, "Click one to move it", elem_id="draws")

    def draw(number: int, *codes: int) -> tuple[Any, Draws]:
        found = generation.draw(explored, DRAWS, codes, number)
        return points.shown(found.x, _notes(explored, found), "code"), found

    draw_again = as_handler(lambda number, *codes: (*draw(number + 1, *codes), number + 1))
    again.click(draw_again, [seed, *selectors], [points.block, drawn, seed])
    for selector in selectors:
        selector.input(as_handler(draw), [seed, *selectors], [points.block, drawn])
    page.load(as_handler(draw), [seed, *selectors], [points.block, drawn])

    def save(found: Draws) -> Any:
        target = Path(tempfile.mkdtemp(), f"{run.folder.resolve().name}-draws.zip")
        return gr.File(str(generation.save(explored, found, target)), visible=True)

    keep.click(as_handler(save), [drawn], [file])
    if count:
        _within(explored, page, points, drawn)
    for factor, selector in enumerate(selectors):
        refreshed = as_handler(
            lambda factor=factor: gr.Dropdown(
                [ANY, *explored.choices(factor)], label=explored.run.recipe.factor_names[factor]
            )
        )
        page.load(refreshed, None, [selector])


def _notes(explored: Exploration, drawn: Draws) -> list[str]:
    """Properties and values of each draw on a line; factors without a name only where none has one."""
    described = [generation.described(explored, code) for code in drawn.codes]
    names = explored.run.recipe.factor_names
    named = [name for factor, name in enumerate(names) if name != f"factor {factor}"] or names
    return [", ".join(f"{name}: {one[name]}" for name in named) for one in described]


def _within(explored: Exploration, page: gr.Blocks, points: Points, drawn: gr.State) -> None:
    """Sliders that move the clicked draw within a component."""
    factors = generation.movable(explored)
    picked, sliding = gr.State(None), gr.State([])
    with gr.Row():
        with gr.Column():
            which = gr.Dropdown(
                [explored.factors[factor] for factor in factors], value=factors[0], label="Move within"
            )
            sliders = [
                gr.Slider(
                    -generation.REACH,
                    generation.REACH,
                    0.0,
                    step=0.1,
                    label=f"direction {number + 1}, in standard deviations",
                    visible=False,
                    elem_id=f"direction-{number}",
                )
                for number in range(generation.SLIDERS)
            ]
        with gr.Column():
            moved = Points(explored, "Moved", columns=1, elem_id="moved")

    def place(one: Draws | None, factor: int) -> list[Any]:
        if one is None:
            return [None, [], *(gr.Slider(visible=False) for _ in sliders)]
        directions = generation.directions(explored, one, factor)
        at = generation.place(explored, one, factor)
        shown = [gr.Slider(value=round(at[direction], 1), visible=True) for direction in directions]
        hidden = [gr.Slider(visible=False) for _ in sliders[len(directions) :]]
        return [points_of(one), directions, *shown, *hidden]

    def points_of(one: Draws) -> Any:
        return moved.shown(one.x, _notes(explored, one), "code")

    def pick(found: Draws, factor: int, event: gr.SelectData) -> list[Any]:
        one = found.only(chosen(event))
        return [one, *place(one, factor)]

    def move(one: Draws, factor: int, directions: list[int], *amounts: float) -> Any:
        by = dict(zip(directions, amounts, strict=False))
        return points_of(generation.move(explored, one, factor, by))

    page.load(
        as_handler(lambda: gr.Dropdown([explored.factors[factor] for factor in factors])), None, [which]
    )
    placed = [moved.block, sliding, *sliders]
    points.block.select(as_handler(pick), [drawn, which], [picked, *placed])
    which.input(as_handler(place), [picked, which], placed)
    for slider in sliders:
        slider.release(as_handler(move), [picked, which, sliding, *sliders], [moved.block])
