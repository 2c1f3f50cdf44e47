"""Training curves: the bound, its terms and the number of components in use against the step."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np

from pyro_fmvae.figures.page import FAINT, MARGIN, QUIET, Axes, Figure, Page, plain_axes, shorten, text_width

_PHASES = ("#e6eef8", "#fbf2dc", "#e6f3e6", "#f2e9f6", "#eeeeee")
_BOUND = (("elbo", "ELBO", "#16457f"), ("reconstruction", "reconstruction", "#d2691e"))
_KL = (("kl_z", "KL[z]", "#1f8a66"), ("kl_r", "KL[r]", "#8b49a6"), ("kl_global", "KL[global]", "#808080"))
_WIDTH, _INDENT, _RIGHT = 940, 104, 36
_LINE = 22


class _Curve(NamedTuple):
    name: str
    colour: Any
    values: np.ndarray  # [records], NaN where there is none


class _Panel(NamedTuple):
    label: str
    height: int
    curves: list[_Curve]
    whole: bool
    """True if the values are counts."""


def training_curves(records: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> Figure:
    """The ELBO, its terms and the components in use against the step, with shaded phases.

    Missing values leave gaps. Panels without values and records without a step are left out. The legend gives
    the last value of each curve. Extreme values of the first steps may lie outside the axes.

    Args:
        records: records of a run's ``metrics.jsonl``, with any of the keys step, phase, elbo, reconstruction,
            kl_z, kl_r, kl_global and used_components (a list, one number per factor). Steps count through
            all phases.
        names: names of the factors; 'factor 0', … if left out.

    Raises:
        ValueError: no record with a step, or too few names.
    """
    records = sorted(
        (r for r in records if math.isfinite(_number(r, "step"))), key=lambda r: _number(r, "step")
    )
    if not records:
        raise ValueError("records: expected at least one with a 'step'")
    steps = np.array([_number(record, "step") for record in records])
    return _page(_panels(records, names), steps, _phases(records, steps))


def compared_curves(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """The ELBO and the reconstruction of several runs against the step, a curve for each run.

    The legend gives the last value of each curve.

    Args:
        runs: name → records of the run's ``metrics.jsonl``; records without a step are left out.

    Raises:
        ValueError: no run has a record with a step.
    """
    steps = np.unique([step for records in runs.values() for step in _steps(records)])
    if not len(steps):
        raise ValueError("runs: expected a record with a 'step'")
    colours = _colours(len(runs))
    panels = []
    for key, label, _ in _BOUND:
        curves = []
        for (name, records), colour in zip(runs.items(), colours, strict=True):
            values = {_number(record, "step"): _number(record, key) for record in records}
            at_steps = np.array([values.get(step, math.nan) for step in steps.tolist()])
            curves.append(_Curve(shorten(name, 400, 8), colour, at_steps))
        panels.append(_Panel(f"{label}, nats", 200, _known(curves), False))
    return _page(panels, steps, [])


def _page(panels: list[_Panel], steps: np.ndarray, phases: list[tuple[str, str, float, float]]) -> Figure:
    """Panels with a curve or more below each other, each under its legend."""
    panels = [panel for panel in panels if panel.curves]
    legends = [
        _wrap(list({name: colour for name, colour, *_ in phases}.items())),
        *(_wrap([(_entry(c, panel.whole), c.colour) for c in panel.curves]) for panel in panels),
    ]
    heights = [len(legend) * _LINE + 6 for legend in legends]
    page = Page(_WIDTH, MARGIN + sum(heights) + sum(panel.height + 18 for panel in panels) + 34 + MARGIN)
    top = MARGIN
    _draw_legend(page, legends[0], top, square=True)
    top += heights[0]
    for number, panel in enumerate(panels):
        _draw_legend(page, legends[number + 1], top)
        top += heights[number + 1]
        axes = page.axes(_INDENT, top, _WIDTH - _INDENT - _RIGHT, panel.height)
        _draw(axes, panel, steps, phases, last=number == len(panels) - 1)
        middle = top + panel.height / 2
        page.text(MARGIN, middle, panel.label, 8, rotation=90, va="center", color=QUIET)
        top += panel.height + 18
    page.text((_INDENT + _WIDTH - _RIGHT) / 2, page.height - MARGIN - 4, "step", 8, ha="center", color=QUIET)
    return page.figure


def _steps(records: Sequence[Mapping[str, Any]]) -> list[float]:
    return [step for record in records if math.isfinite(step := _number(record, "step"))]


def _known(curves: list[_Curve]) -> list[_Curve]:
    """Curves with a finite value."""
    return [curve for curve in curves if np.isfinite(curve.values).any()]


def _colours(count: int) -> Any:
    """Colours that differ, RGBA [count, 4]."""
    where = np.arange(count) if count <= 10 else np.linspace(0, 0.95, count)
    return matplotlib.colormaps["tab10" if count <= 10 else "turbo"](where)


def _number(record: Mapping[str, Any], key: str) -> float:
    value = record.get(key)
    return float(value) if isinstance(value, (int, float)) else math.nan


def _panels(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[_Panel]:
    def curves(wanted: tuple[tuple[str, str, str], ...]) -> list[_Curve]:
        found = [
            _Curve(name, colour, np.array([_number(r, key) for r in records])) for key, name, colour in wanted
        ]
        return _known(found)

    lists = (record.get("used_components") for record in records)
    used = [list(row) if isinstance(row, (list, tuple)) else [] for row in lists]
    count = max(len(row) for row in used)
    if names and len(names) < count:
        raise ValueError(f"names: expected {count}, got {len(names)}")
    names = names or [f"factor {factor}" for factor in range(count)]
    colours = _colours(count)
    factors = [
        _Curve(
            shorten(names[factor], 180, 8),
            colours[factor],
            np.array([row[factor] if factor < len(row) else math.nan for row in used], dtype=float),
        )
        for factor in range(count)
    ]
    return [
        _Panel("nats per data point", 240, curves(_BOUND), False),
        _Panel("nats per data point", 150, curves(_KL), False),
        _Panel("components in use", 150, _known(factors), True),
    ]


def _phases(records: Sequence[Mapping[str, Any]], steps: np.ndarray) -> list[tuple[str, str, float, float]]:
    """Name, colour, first and last step of each phase; a phase begins at the last record before it."""
    found: list[tuple[str, float]] = []
    before = steps[0]
    for record, step in zip(records, steps, strict=True):
        name = str(record.get("phase") or "")
        if not found or found[-1][0] != name:
            found.append((name, before))
        before = step
    ends = [*(start for _, start in found[1:]), steps[-1]]
    colour: dict[str, str] = {}
    for name, _ in found:
        if name:
            colour.setdefault(name, _PHASES[len(colour) % len(_PHASES)])
    return [(name, colour[name], start, end) for (name, start), end in zip(found, ends, strict=True) if name]


def _entry(curve: _Curve, whole: bool) -> str:
    final = curve.values[np.isfinite(curve.values)][-1]
    return f"{curve.name}  {final:.0f}" if whole else f"{curve.name}  {final:.2f}".replace("-", "−")


def _wrap(entries: Sequence[tuple[str, Any]]) -> list[list[tuple[float, str, Any]]]:
    """Lines of legend entries: (left, text, colour)."""
    lines: list[list[tuple[float, str, Any]]] = []
    left = math.inf
    for text, colour in entries:
        width = 20 + text_width(text, 8)
        if left + width > _WIDTH - MARGIN:
            lines.append([])
            left = _INDENT
        lines[-1].append((left, text, colour))
        left += width + 24
    return lines


def _draw_legend(
    page: Page, lines: list[list[tuple[float, str, Any]]], top: float, square: bool = False
) -> None:
    for number, line in enumerate(lines):
        middle = top + (number + 0.5) * _LINE
        for left, text, colour in line:
            page.swatch(left, middle, 12, 12 if square else 3, colour)
            page.text(left + 20, middle, text, 8)


def _draw(
    axes: Axes, panel: _Panel, steps: np.ndarray, phases: list[tuple[str, str, float, float]], last: bool
) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator
    from matplotlib.transforms import Affine2D

    first, final = (steps[0], steps[-1]) if steps[0] < steps[-1] else (steps[0] - 1, steps[0] + 1)
    for _, colour, start, end in phases:
        lone = steps[0] == steps[-1]
        axes.axvspan(first if lone else start, final if lone else end, color=colour, linewidth=0)
    for number, curve in enumerate(panel.curves):
        known = np.isfinite(curve.values)
        # Counts often coincide: a shift of a pixel or two keeps them apart.
        shift = (number - (len(panel.curves) - 1) / 2) * min(3.0, 16 / len(panel.curves))
        axes.plot(
            steps[known],
            curve.values[known],
            color=curve.colour,
            linewidth=1.5,
            marker="o" if known.sum() <= 20 else "",
            markersize=3 if known.sum() > 1 else 6,
            drawstyle="steps-post" if panel.whole else "default",
            transform=axes.transData + Affine2D().translate(0, shift if panel.whole else 0),
        )
    axes.set_xlim(first, final)
    axes.set_ylim(*_limits([curve.values for curve in panel.curves], panel.whole))
    few = [steps[0]] if len(set(steps)) == 1 else None
    axes.xaxis.set_major_locator(FixedLocator(few) if few else MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(6 if panel.height > 200 else 4, integer=panel.whole))
    plain_axes(axes, grid="white" if phases else FAINT)
    axes.tick_params(labelbottom=last, bottom=last)


def _limits(curves: Sequence[np.ndarray], whole: bool) -> tuple[float, float]:
    """Limits of the vertical axis, which may leave out a few outliers of each curve."""
    finite = [values[np.isfinite(values)] for values in curves]
    low, high = (np.array(ends) for ends in zip(*map(_ends, finite), strict=True))
    if whole:
        return 0.0, max(high.max(), 1.0) * 1.2
    pad = 0.06 * (high.max() - low.min()) or 1.0
    return low.min() - pad, high.max() + pad


def _ends(values: np.ndarray) -> tuple[float, float]:
    """Smallest and largest value, at most twice the spread of the middle 80 % away from them."""
    low, high = float(values.min()), float(values.max())
    if len(values) < 4:
        return low, high
    # Of a few values, too, the lowest one alone is left out of the middle: often that is the very first.
    inner_low, inner_high = np.quantile(values, [0.1, 0.9], method="higher")
    reach = 2 * (inner_high - inner_low)
    return max(low, inner_low - reach), min(high, inner_high + reach)
