"""Common parts of the tabs: one computation at a time, errors as one line, how texts and points look."""

import functools
import string
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final

import gradio as gr
from torch import Tensor

from pyro_fmvae.app.explorer.exploration import Exploration
from pyro_fmvae.files.untrusted import printable

_MARKS: Final = str.maketrans({mark: f"&#{ord(mark)};" for mark in string.punctuation})
_ONE: Final = Lock()  # Pyro's and torch's random states belong to the process


def plain(text: object) -> str:
    """A text of the run, its data or its folder, for gradio's Markdown and HTML, which show it as it is.

    Without this a name could bring in a picture from another machine.
    """
    return str(text).translate(_MARKS)


def as_handler(function: Callable[..., Any]) -> Callable[..., Any]:
    """A handler that waits for others, and shows bad input as one line on the page."""

    @functools.wraps(function)
    def handler(*arguments: Any) -> Any:
        try:
            with _ONE:
                return function(*arguments)
        except (ValueError, OSError) as error:
            raise gr.Error(plain(printable(str(error))), print_exception=False) from error

    return handler


class Points:
    """A place on the page for several points: pictures in a gallery, rows in a table.

    Args:
        explored: whose points.
        label: above them.
        columns: pictures side by side.
        elem_id: name of the element, for tests.
    """

    def __init__(
        self, explored: Exploration, label: str, columns: int = 6, elem_id: str | None = None
    ) -> None:
        self.explored = explored
        self.block: gr.Gallery | gr.Dataframe
        with gr.Column(min_width=200):
            gr.Markdown(label)  # gradio's own labels lie on the first picture
            if explored.run.recipe.image:
                self.block = gr.Gallery(
                    show_label=False,
                    columns=columns,
                    height="auto",
                    object_fit="contain",
                    allow_preview=False,
                    buttons=[],
                    format="png",
                    elem_id=elem_id,
                    elem_classes=f"pictures-{columns}",
                    interactive=False,
                )
            else:
                self.block = gr.Dataframe(
                    show_label=False, interactive=False, elem_id=elem_id, buttons=[], max_height=400
                )

    def shown(self, x: Tensor, notes: Sequence[str] = (), title: str = "") -> Any:
        """Points as the component takes them.

        Args:
            x: as the model sees them, ``[n, *event_shape]``.
            notes: a line for each: below its picture, or in a first column.
            title: of that column.
        """
        if self.explored.run.recipe.image:
            pictures = self.explored.pictures(x)
            return list(zip(pictures, notes, strict=True)) if notes else pictures
        header, cells = self.explored.table(x)
        if notes:
            header, cells = [title, *header], [[note, *row] for note, row in zip(notes, cells, strict=True)]
        return {"headers": header, "data": cells}


def chosen(event: gr.SelectData) -> int:
    """Number of the picture or row that was clicked."""
    return int(event.index[0] if isinstance(event.index, list | tuple) else event.index)
