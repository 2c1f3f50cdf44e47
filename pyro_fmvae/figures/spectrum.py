"""How clearly points fall apart along independent directions of their codes."""

from collections.abc import Sequence

from pyro_fmvae.figures.page import MARGIN, QUIET, Figure, Page, plain_axes

_BAR, _HEIGHT, _INDENT, _HEAD, _FOOT = 44, 220, 64, 28, 44
_CLEAR, _OTHER = "#16457f", "#c9ced6"


def spectrum(bits: Sequence[float], clustered: int) -> Figure:
    """Bars of the information that assignments to clusters have, H(π) - E[H(γ)].

    Args:
        bits: of each group of directions, those with clusters first.
        clustered: how many have clusters: the factors that were found.

    Raises:
        ValueError: no groups.
    """
    if not bits:
        raise ValueError("bits: expected at least one number, got none")
    count = len(bits)
    page = Page(_INDENT + max(_BAR * count, 320) + MARGIN, MARGIN + _HEAD + _HEIGHT + _FOOT)
    axes = page.axes(_INDENT, MARGIN + _HEAD, _BAR * count, _HEIGHT)
    colours = [_CLEAR if number < clustered else _OTHER for number in range(count)]
    axes.bar(range(count), bits, 0.7, color=colours)
    for number, each in enumerate(bits):
        axes.text(number, each, f"{each:.2f}", ha="center", va="bottom", fontsize=8)
    axes.set(xlim=(-0.6, count - 0.4), ylim=(0, 1.15 * max(*bits, 1e-3)))
    plain_axes(axes)
    axes.set_xticks([])
    page.text(_INDENT, MARGIN + 10, f"{clustered} with clusters (dark)", 9)
    bottom = MARGIN + _HEAD + _HEIGHT + 20
    page.text(_INDENT, bottom, "bits of clusters, by independent direction", 8, color=QUIET)
    return page.figure
