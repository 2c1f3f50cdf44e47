"""Curves of EM: the objective and the noise of every start against the iteration."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pyro_fmvae.figures.page import MARGIN, NOTE, QUIET, Axes, Figure, Page, plain_axes, text_width, wrap

_WIDTH, _INDENT = 760, 104
_OBJECTIVE, _NOISE = 260, 180  # heights
_LINE, _BETWEEN = 26, 22
_CHOSEN, _OTHER = "#16457f", "#a9c0dc"
_BURN_IN = 0.1  # share of the iterations whose objective may lie outside the axes
_NAMES = (("objective", "objective, nats per data point"), ("noise", "noise, standard deviation"))


def em_curves(records: Sequence[Mapping[str, Any]], chosen: int | None = None) -> Figure:
    """The objective and the standard deviation of the noise of every start; the chosen start is bold.

    Args:
        records: one or more records with the keys step, objective and noise. The last two are lists or arrays
            with one number for each of the R starts. Values that are not finite leave gaps.
        chosen: index of the chosen start; if left out, that of the highest last objective.

    Raises:
        ValueError: no records, a record without a key or with another number of starts, no finite objective
            at the end, or ``chosen`` out of range.
    """
    steps, values = _read(records)
    objective, noise = values
    starts = objective.shape[1]
    if chosen is None:
        if not np.isfinite(objective[-1]).any():
            raise ValueError("records: expected a finite objective in the last one, got none")
        chosen = int(np.nanargmax(np.where(np.isfinite(objective[-1]), objective[-1], np.nan)))
    if not 0 <= chosen < starts:
        raise ValueError(f"chosen: expected a start from 0 to {starts - 1}, got {chosen}")
    limits = [_limits(objective[int(_BURN_IN * len(steps)) :]), _limits(noise)]
    inside = np.nanmin(np.where(np.isfinite(objective), objective, np.inf)) >= limits[0][0]
    note = "" if inside else "The first iterations lie in part outside the axes."
    notes = wrap(note, _WIDTH - 2 * MARGIN, 8)
    bottom = MARGIN + _LINE + _OBJECTIVE + _BETWEEN + _NOISE + 44
    page = Page(_WIDTH, bottom + NOTE * len(notes) + MARGIN)
    _legend(page, starts, objective[-1, chosen], noise[-1, chosen])
    top = MARGIN + _LINE
    for number, ((_, label), height) in enumerate(zip(_NAMES, (_OBJECTIVE, _NOISE), strict=True)):
        axes = page.axes(_INDENT, top, _WIDTH - _INDENT - 2 * MARGIN, height)
        _draw(axes, steps, values[number], chosen)
        axes.set_ylim(*limits[number])
        axes.tick_params(labelbottom=number == 1, bottom=number == 1)
        style = {"rotation": 90, "ha": "center", "va": "center", "color": QUIET}
        page.text(MARGIN + 4, top + height / 2, label, 8, **style)
        top += height + _BETWEEN
    middle = (_INDENT + _WIDTH - 2 * MARGIN) / 2
    page.text(middle, bottom - 8, "EM iteration", 8, ha="center", color=QUIET)
    page.notes(notes, bottom)
    return page.figure


def _read(records: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Steps [T], and objective and noise [2, T, R], in the order of the steps."""
    if not records:
        raise ValueError("records: expected at least one, got none")
    wanted = ("step", *(key for key, _ in _NAMES))
    if not all(key in record for record in records for key in wanted):
        raise ValueError(f"records: expected {', '.join(wanted)} in each")
    rows = [[np.asarray(record[key], dtype=np.float64) for key, _ in _NAMES] for record in records]
    shape = rows[0][0].shape
    if len(shape) != 1 or not shape[0] or any(array.shape != shape for row in rows for array in row):
        shapes = sorted({array.shape for row in rows for array in row})
        raise ValueError(f"records: expected R numbers per start everywhere, got shapes {shapes}")
    steps = np.array([float(record["step"]) for record in records])
    order = np.argsort(steps, kind="stable")
    return steps[order], np.array(rows).swapaxes(0, 1)[:, order]


def _legend(page: Page, starts: int, objective: float, noise: float) -> None:
    numbers = f"objective {objective:.2f}, noise {noise:.4g}".replace("-", "−")
    entries = [(numbers if starts == 1 else f"chosen start: {numbers}", _CHOSEN, 4)]
    if starts > 1:
        entries.append(("another start" if starts == 2 else f"{starts - 1} other starts", _OTHER, 2))
    left = float(_INDENT)
    for text, colour, thick in entries:
        page.swatch(left, MARGIN + 8, 14, thick, colour)
        page.text(left + 22, MARGIN + 8, text, 8)
        left += 46 + text_width(text, 8)


def _draw(axes: Axes, steps: np.ndarray, values: np.ndarray, chosen: int) -> None:
    """Draw one quantity of all starts [T, R], the chosen start on top."""
    from matplotlib.ticker import FixedLocator, MaxNLocator

    for start in (*(r for r in range(values.shape[1]) if r != chosen), chosen):
        axes.plot(
            steps,
            np.where(np.isfinite(values[:, start]), values[:, start], math.nan),
            color=_CHOSEN if start == chosen else _OTHER,
            linewidth=2.4 if start == chosen else 1.0,
            marker="o" if len(steps) == 1 else "",
            markersize=6 if start == chosen else 4,
        )
    first, last = (steps[0], steps[-1]) if steps[0] < steps[-1] else (steps[0] - 1, steps[0] + 1)
    axes.set_xlim(first, last)
    lone = steps[0] == steps[-1]
    axes.xaxis.set_major_locator(
        FixedLocator([steps[0]]) if lone else MaxNLocator(8, integer=True, steps=[1, 2, 2.5, 5, 10])
    )
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    plain_axes(axes)


def _limits(values: np.ndarray) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    pad = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return low - pad, high + pad
