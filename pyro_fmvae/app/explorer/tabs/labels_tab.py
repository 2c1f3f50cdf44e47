"""Label these next: the points whose label would tell most, and a model that learns from the answers."""

from typing import Any, Final

import gradio as gr
import torch

from pyro_fmvae.app.explorer.exploration import Exploration
from pyro_fmvae.app.explorer.label_session import LabelSession
from pyro_fmvae.app.explorer.tabs.common import Points, as_handler, plain
from pyro_fmvae.data.own.folder import TABLE
from pyro_fmvae.learn.phase import Budget

AHEAD: Final = 10
"""Points that are chosen at once."""
LEARN: Final = "Learn from the labels so far"


def labels_tab(explored: Exploration, session: LabelSession, page: gr.Blocks) -> None:
    """Lay out the tab."""
    queue = gr.State([])
    with gr.Row():
        which = gr.Dropdown(list(session.properties), label="Property", elem_id="property")
        with gr.Column():
            name = gr.Textbox(label="Or begin one", placeholder="hat", max_lines=1, elem_id="new-property")
            values = gr.Textbox(label="Its values", placeholder="no, yes", max_lines=1, elem_id="new-values")
        begin = gr.Button("Begin", elem_id="begin")
    with gr.Row():
        with gr.Column():
            asked = Points(explored, "What is this?", columns=1, elem_id="asked")
        with gr.Column():
            answer = gr.Radio([], label="It is", elem_id="answer")
            with gr.Row():
                skip = gr.Button("Skip", elem_id="skip")
                back = gr.Button("Take the last one back", elem_id="take-back")
            tally = gr.Markdown(elem_id="tally")
            seconds = gr.Slider(2, 60, 5, step=1, label="Seconds of learning")
            refine = gr.Button(LEARN, variant="primary", elem_id="refine")

    def ask(of: str | None, rows: list[int]) -> list[Any]:
        if of is None:
            return [rows, None, gr.Radio([], value=None), told_of(of)]
        rows = rows or session.next(of, AHEAD)
        if not rows:
            return [rows, None, gr.Radio([], value=None), "Every point has a label."]
        x = explored.points.select(torch.tensor(rows[:1])).observations
        known, names = session.properties[of].values, explored.row_names
        options = gr.Radio([(text, number) for number, text in enumerate(known)], value=None)
        return [rows, asked.shown(x, [names.values[rows[0]]], names.title), options, told_of(of)]

    def told_of(of: str | None) -> str:
        if of is None:
            return "Choose a property, or begin one."
        chosen = session.properties[of]
        right, number = chosen.tally
        if not chosen.given:
            return "No label yet. Each answer is saved at once."
        text = f"**{len(chosen.given)} labelled**, saved in {plain(explored.run.folder / TABLE)}."
        learnt = (
            f"The model has learnt from {chosen.learnt or 'none'} of them{'' if chosen.learnt else ' yet'}."
        )
        if not number:
            return f"{text} {learnt}"
        return (
            f"{text} {learnt} Before they were used, it knew {right} of {number} (**{right / number:.0%}**). "
            "These are chosen to be new to it, so it knows more of the others."
        )

    def choose(of: str | None) -> list[Any]:
        return ask(of, [])

    def give(of: str, rows: list[int], value: int | None) -> list[Any]:
        if not rows or value is None:
            raise ValueError("Choose a property first.")
        session.give(of, rows[0], value)
        return ask(of, rows[1:])

    def take_back(of: str | None, rows: list[int]) -> list[Any]:
        if of is not None and (row := session.take_back(of)) is not None:
            rows = [row, *rows]
        return ask(of, rows)

    def start(text: str, of_values: str) -> list[Any]:
        session.begin(text, of_values.split(","))
        chosen = text.strip()
        return [gr.Dropdown(list(session.properties), value=chosen), *ask(chosen, [])]

    def announce(time: float) -> list[Any]:
        text = f"Learning from all labels, which takes about {time:.0f} s …"
        return [gr.Button("Learning …", interactive=False), text]

    def learn(of: str | None, time: float) -> list[Any]:
        session.refine(Budget(minutes=time / 60))
        return ask(of, [])

    def end(of: str | None) -> list[Any]:
        return [gr.Button(LEARN, interactive=True), told_of(of)]

    def reload() -> list[Any]:
        known = list(session.properties)
        first = known[0] if known else None
        return [gr.Dropdown(known, value=first), *ask(first, [])]

    shown = [queue, asked.block, answer, tally]
    page.load(as_handler(reload), None, [which, *shown])
    which.input(as_handler(choose), [which], shown)
    begin.click(as_handler(start), [name, values], [which, *shown])
    answer.input(as_handler(give), [which, queue, answer], shown)
    skip.click(as_handler(lambda of, rows: ask(of, rows[1:])), [which, queue], shown)
    back.click(as_handler(take_back), [which, queue], shown)
    begun = refine.click(announce, [seconds], [refine, tally])
    learning = begun.then(as_handler(learn), [which, seconds], shown, show_progress_on=[asked.block, answer])
    learning.then(end, [which], [refine, tally])
