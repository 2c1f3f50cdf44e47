"""Curves of a measure of several models against a varied number, with error bars over seeds."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np

from pyro_fmvae.figures.page import (
    MARGIN,
    NOTE,
    QUIET,
    Axes,
    Figure,
    Page,
    plain_axes,
    shorten,
    text_width,
    tick_label,
    wrap,
)

_WIDTH, _HEIGHT, _INDENT = 720, 320, 96
_LINE = 22
_APART, _APART_ALONE = 5.0, 24.0  # pixels between two models at one place, and where there is no other place
_COLOURS = ("#16457f", "#d2691e", "#1f8a66", "#8b49a6", "#808080", "#b8860b")


class _MeanCurve(NamedTuple):
    name: str
    x: np.ndarray  # ascending, [P]
    mean: np.ndarray  # [P]
    sd: np.ndarray  # [P], NaN of a single seed

    @property
    def reach(self) -> tuple[float, float]:
        """Lower end of the lowest error bar, and upper end of the highest."""
        half = np.nan_to_num(self.sd)
        return float((self.mean - half).min()), float((self.mean + half).max())


def measure_curves(
    measured: Mapping[str, Mapping[float, Sequence[float]]], x_label: str, y_label: str, log: bool = False
) -> Figure:
    """Mean and standard deviation over seeds, with a curve per model; the legend gives the number of seeds.

    Args:
        measured: name of a model → varied number → values of the measure, one per seed. Numbers and seeds may
            differ between models.
        x_label: name of the varied number, such as "latent dimensions".
        y_label: name of the measure, such as "ELBO, nats per data point".
        log: True for a logarithmic axis of the varied number.

    Raises:
        ValueError: no model, one without values, values that are not finite, or ``log`` with numbers <= 0.
    """
    if not measured:
        raise ValueError("measured: expected at least one model, got none")
    curves = [_curve(name, values) for name, values in measured.items()]
    places = np.unique(np.concatenate([curve.x for curve in curves]))
    if log and places[0] <= 0:
        raise ValueError(f"log: expected numbers > 0, got {places[0]:g}")
    legend = _legend(
        [_entry(curve.name, values) for curve, values in zip(curves, measured.values(), strict=True)]
    )
    top = MARGIN + _LINE * (legend[-1][1] + 1) + 6
    several = any(len(values) > 1 for by_place in measured.values() for values in by_place.values())
    note = "Error bars: one standard deviation over seeds in each direction." if several else ""
    notes = wrap(note, _WIDTH - 2 * MARGIN, 8)
    bottom = top + _HEIGHT + 46
    page = Page(_WIDTH, bottom + NOTE * len(notes) + MARGIN)
    axes = page.axes(_INDENT, top, _WIDTH - _INDENT - 2 * MARGIN, _HEIGHT)
    _prepare(axes, places, log)
    apart = _APART if len(places) > 1 else _APART_ALONE
    from matplotlib.transforms import Affine2D

    for number, (curve, (left, line, text)) in enumerate(zip(curves, legend, strict=True)):
        colour = _colour(number, len(curves))
        shift = (number - (len(curves) - 1) / 2) * apart
        axes.errorbar(
            curve.x,
            curve.mean,
            yerr=curve.sd,
            color=colour,
            linewidth=1.5,
            elinewidth=1.0,
            capsize=3,
            marker="o",
            markersize=4,
            transform=axes.transData + Affine2D().translate(shift, 0),
        )
        middle = MARGIN + (line + 0.5) * _LINE
        page.swatch(left, middle, 12, 3, colour)
        page.text(left + 20, middle, text, 8)
    low, high = min(curve.reach[0] for curve in curves), max(curve.reach[1] for curve in curves)
    pad = 0.06 * (high - low) or 1.0
    axes.set_ylim(low - pad, high + pad)
    across, up = shorten(x_label, _WIDTH - 2 * _INDENT, 8), shorten(y_label, _HEIGHT, 8)
    page.text((_INDENT + _WIDTH - 2 * MARGIN) / 2, top + _HEIGHT + 36, across, 8, ha="center", color=QUIET)
    page.text(MARGIN + 4, top + _HEIGHT / 2, up, 8, rotation=90, ha="center", va="center", color=QUIET)
    page.notes(notes, bottom)
    return page.figure


def _curve(name: str, values: Mapping[float, Sequence[float]]) -> _MeanCurve:
    if not values or not all(len(seeds) for seeds in values.values()):
        raise ValueError(f"measured: expected values of at least one seed everywhere, {name} lacks some")
    x = np.array(sorted(values), dtype=np.float64)
    seeds = [np.asarray(values[place], dtype=np.float64) for place in sorted(values)]
    if not np.isfinite(x).all() or not all(np.isfinite(row).all() for row in seeds):
        raise ValueError(f"measured: expected finite numbers, got others for {name}")
    sd = [row.std(ddof=1) if len(row) > 1 else np.nan for row in seeds]
    return _MeanCurve(name, x, np.array([row.mean() for row in seeds]), np.array(sd))


def _entry(name: str, values: Mapping[float, Sequence[float]]) -> str:
    counts = [len(seeds) for seeds in values.values()]
    least, most = min(counts), max(counts)
    number = f"{most}" if least == most else f"{least} to {most}"
    return f"{shorten(name, 280, 8)}  ({number} seed{'s' if most > 1 else ''})"


def _legend(entries: list[str]) -> list[tuple[float, int, str]]:
    """Left, line and text of each entry."""
    placed: list[tuple[float, int, str]] = []
    left, line = float(_INDENT), 0
    for text in entries:
        width = 20 + text_width(text, 8)
        if placed and left + width > _WIDTH - MARGIN:
            left, line = float(_INDENT), line + 1
        placed.append((left, line, text))
        left += width + 24
    return placed


def _colour(number: int, count: int) -> str:
    if count <= len(_COLOURS):
        return _COLOURS[number]
    return matplotlib.colors.to_hex(matplotlib.colormaps["turbo"](0.95 * number / (count - 1)))


def _prepare(axes: Axes, places: np.ndarray, log: bool) -> None:
    """Set scale, ticks and frame."""
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    if log:
        axes.set_xscale("log")
        reach = (places[-1] / places[0]) ** 0.06 if len(places) > 1 else 2.0
        axes.set_xlim(places[0] / reach, places[-1] * reach)
    else:
        reach = 0.06 * (places[-1] - places[0]) or 1.0
        axes.set_xlim(places[0] - reach, places[-1] + reach)
    axes.xaxis.set_major_locator(FixedLocator(_ticks(axes, places)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(MaxNLocator(6))
    plain_axes(axes)


def _ticks(axes: Axes, places: np.ndarray) -> list[float]:
    """The first place, and the others whose label keeps clear of the one before."""
    ticks: list[float] = []
    end = -np.inf
    for place in places.tolist():
        middle = axes.transData.transform((place, 0.0))[0]
        half = text_width(tick_label(place), 8) / 2
        if middle - half >= end + 8:
            ticks.append(place)
            end = middle + half
    return ticks
