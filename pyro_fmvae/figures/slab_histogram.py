"""The averaged posterior of spike-and-slab latents against their prior."""

import math

import numpy as np

from pyro_fmvae.figures.page import INK, MARGIN, QUIET, Axes, Figure, Page, plain_axes, text_width
from pyro_fmvae.figures.tiles import Array, as_array

_WIDTH, _HEIGHT, _INDENT = 640, 300, 92
_BARS, _BETWEEN = 150, 84
_HEAD, _FOOT = 34, 56
_POSTERIOR, _PRIOR = "#9db8d9", "#d2691e"
_MOST_BINS = 80
_REACH = 4.0  # standard deviations of the prior's slab that are shown
_OUTER = 0.0005  # share of the draws at either end that may lie outside the axes


def slab_histogram(draws: Array, probs: Array | float, loc: Array | float, scale: Array | float) -> Figure:
    """A histogram of non-zero latents with the density of the prior's slab, and the shares of zeros.

    If latents have different slabs, the density is their mixture, weighted by the probabilities of being on.
    At an optimum of maximum likelihood of a well-specified model, the averaged posterior is the prior.

    Args:
        draws: draws of latents from the posteriors of many data points, exactly zero where one is off, of
            shape [..., H], or of any shape if all latents have the same prior.
        probs: probability that a latent is on, in [0, 1], a number or [H].
        loc: mean of the slab, a number or [H].
        scale: standard deviation of the slab, above 0, a number or [H].

    Raises:
        ValueError: no draws, arguments of other shapes or out of range, or values that are not finite.
    """
    values = as_array("draws", draws)
    if not values.size:
        raise ValueError("draws: expected at least one, got none")
    on, mean, sd = _prior(values.shape, probs, loc, scale)
    active = values[values != 0]
    low, high = _range(active, mean, sd)
    page = Page(_INDENT + _WIDTH + _BETWEEN + _BARS + MARGIN, MARGIN + _HEAD + _HEIGHT + _FOOT)
    axes = page.axes(_INDENT, MARGIN + _HEAD, _WIDTH, _HEIGHT)
    if active.size:
        bins = min(_MOST_BINS, max(10, round(2 * active.size ** (1 / 3))))
        heights, edges = np.histogram(active, bins, (low, high))
        width = (high - low) / bins
        axes.bar(edges[:-1], heights / (active.size * width), width, align="edge", color=_POSTERIOR)
    grid = np.linspace(low, high, 600)
    axes.plot(grid, _density(grid, on, mean, sd), color=_PRIOR, linewidth=1.8)
    axes.set(xlim=(low, high), ylim=(0, None))
    _plain(axes)
    middle = MARGIN + _HEAD + _HEIGHT
    page.text(_INDENT + _WIDTH / 2, middle + 36, "value of s where it is not 0", 8, ha="center", color=QUIET)
    half = middle - _HEIGHT / 2
    page.text(MARGIN + 4, half, "density", 8, rotation=90, ha="center", va="center", color=QUIET)
    left = float(_INDENT)
    count = f"posterior draws, {active.size:,} not 0"
    for text, colour, thick in ((count, _POSTERIOR, 12), ("slab of the prior", _PRIOR, 3)):
        page.swatch(left, MARGIN + 10, 12, thick, colour)
        page.text(left + 20, MARGIN + 10, text, 8)
        left += 44 + text_width(text, 8)
    _zeros(page, float((values == 0).mean()), float(1 - on.mean()))
    return page.figure


def _prior(
    shape: tuple[int, ...], probs: Array | float, loc: Array | float, scale: Array | float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Check the parameters and bring them to one shape: [H], or [1] if all latents share them."""
    arrays = []
    for name, value in (("probs", probs), ("loc", loc), ("scale", scale)):
        array = as_array(name, np.asarray(float(value)) if isinstance(value, (int, float)) else value)
        if array.size != 1 and array.shape != shape[-1:]:
            raise ValueError(
                f"{name}: expected a number or the draws' shape {list(shape[-1:])}, got {list(array.shape)}"
            )
        arrays.append(array.reshape(-1))
    on, mean, sd = np.broadcast_arrays(*arrays)
    if on.min() < 0 or on.max() > 1:
        raise ValueError(f"probs: expected values in [0, 1], got {on.min():g} to {on.max():g}")
    if sd.min() <= 0:
        raise ValueError(f"scale: expected values > 0, got {sd.min():g}")
    return on, mean, sd


def _density(x: np.ndarray, on: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Mixture of slabs, weighted by the probabilities of being on; equal weights if all are 0."""
    weights = on / on.sum() if on.sum() > 0 else np.full(len(on), 1 / len(on))
    normals = np.exp(-0.5 * ((x[:, None] - mean) / sd) ** 2) / (sd * math.sqrt(2 * math.pi))
    return np.asarray(normals @ weights)


def _range(active: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> tuple[float, float]:
    low, high = float((mean - _REACH * sd).min()), float((mean + _REACH * sd).max())
    if active.size:
        first, last = np.quantile(active, [_OUTER, 1 - _OUTER])
        low, high = min(low, float(first)), max(high, float(last))
    return low, high


def _zeros(page: Page, posterior: float, prior: float) -> None:
    """Draw two bars with the shares of zeros."""
    left, top = _INDENT + _WIDTH + _BETWEEN, MARGIN + _HEAD
    axes = page.axes(left, top, _BARS, _HEIGHT)
    axes.bar([0, 1], [posterior, prior], 0.6, color=[_POSTERIOR, _PRIOR])
    axes.set(xlim=(-0.6, 1.6), ylim=(0, 1))
    _plain(axes)
    axes.set_xticks([])
    page.text(left + _BARS / 2, MARGIN + 10, "share of zeros", 8, ha="center")
    for place, (name, share) in enumerate((("posterior", posterior), ("prior", prior))):
        centre = left + (place + 0.6) / 2.2 * _BARS
        page.text(centre, top + _HEIGHT + 15, name, 8, ha="center", color=QUIET)
        page.text(centre, top + _HEIGHT + 36, f"{100 * share:.1f} %", 8, ha="center", color=INK)


def _plain(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    plain_axes(axes, grid=None)
