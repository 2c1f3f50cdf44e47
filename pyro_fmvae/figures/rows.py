"""Rows of images under common headings."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

from pyro_fmvae.figures.page import INK, MARGIN, NOTE, QUIET, Figure, Page, shorten, text_width, wrap
from pyro_fmvae.figures.tiles import as_images, cell_size, in_parts

Decoder: TypeAlias = Callable[[Tensor], Tensor]
"""Maps z [n, J] to E[x | z]: images [n, H, W] or [n, H, W, 3] in [0, 1]."""

_TARGET = 96
_GAP = 4
_APART = 18  # between groups of columns
_CAPTION = 18
_LINE = 18
_LONGEST_LABEL = 180
_NARROWEST, _LOWEST = 320, 16  # width of the page, height of a row


class Row(NamedTuple):
    """Images of one row, by group of columns; rows may have different numbers of images."""

    label: str
    groups: Sequence[np.ndarray]
    """[n, H, W] or [n, H, W, 3] in [0, 1] for each group; n may be 0."""
    captions: Sequence[Sequence[str]] = ()
    """Text below the images of each group; none if left out."""


def image_rows(rows: Sequence[Row], headings: Sequence[str], note: str) -> Figure:
    """Rows of images, in groups of columns that have a heading each.

    Args:
        rows: at least one row with an image.
        headings: headings of the groups.
        note: text at the bottom.
    """
    shown = next(group for row in rows for group in row.groups if len(group))
    height, width = cell_size(shown, _TARGET)
    captions = [text for row in rows for group in row.captions for text in group]
    pitch = max([width, *(math.ceil(text_width(text, 7)) for text in captions)]) + _GAP
    counts = [max(len(row.groups[number]) for row in rows) for number in range(len(headings))]
    words = [max(text_width(word, 8) for word in heading.split()) for heading in headings]
    widths = [
        max(count * pitch - _GAP, math.ceil(longest)) if count else 0
        for count, longest in zip(counts, words, strict=True)
    ]
    labels = [shorten(row.label, _LONGEST_LABEL, 8) for row in rows]
    longest_label = math.ceil(max(text_width(label, 8) for label in labels))
    lefts = [MARGIN + (longest_label + 10 if longest_label else 0)]
    for group in widths:
        lefts.append(lefts[-1] + group + (_APART if group else 0))
    titles = [wrap(heading, room, 8) if room else [] for heading, room in zip(headings, widths, strict=True)]
    head = MARGIN + _LINE * max(map(len, titles)) + 6
    line = max(height, _LOWEST) + (_CAPTION if captions else 0) + _GAP
    page_width = max(lefts[-1] - _APART + MARGIN, _NARROWEST)
    notes = wrap(note, page_width - 2 * MARGIN, 8)
    bottom = head + line * len(rows) + 4
    page = Page(page_width, bottom + NOTE * len(notes) + MARGIN)
    for left, lines in zip(lefts, titles, strict=False):
        for number, text in enumerate(reversed(lines)):
            page.text(left, head - 8 - _LINE * number, text, 8, va="baseline", color=QUIET)
    for number, (label, row) in enumerate(zip(labels, rows, strict=True)):
        top = head + number * line + max(_LOWEST - height, 0) // 2
        page.text(lefts[0] - 10, top + height / 2, label, 8, ha="right", color=INK)
        for group, images in enumerate(row.groups):
            for column, image in enumerate(images):
                left = lefts[group] + column * pitch
                page.picture(image, left, top, (height, width))
                if row.captions:
                    below = top + height + 13
                    text = row.captions[group][column]
                    page.text(left + width / 2, below, text, 7, ha="center", va="baseline", color=QUIET)
    page.notes(notes, bottom)
    return page.figure


def decode_images(decode: Decoder, z: Tensor) -> np.ndarray:
    """Decode z [n, J] in chunks to save memory: float64 images, clipped to [0, 1].

    Raises:
        ValueError: the decoder does not return an image for each.
    """
    images = as_images("decode", in_parts(decode, z))
    if len(images) != len(z):
        raise ValueError(f"decode: expected {len(z)} images, got {len(images)}")
    return images


def check_codes(z: Tensor, latents: Tensor) -> None:
    """Raise ValueError unless z [n, J], n at least 1, and latents [N, J] have the same J."""
    if z.dim() != 2 or not len(z) or latents.dim() != 2 or z.shape[1] != latents.shape[1]:
        raise ValueError(
            f"z, latents: expected [n, J] and [N, J], n at least 1, "
            f"got {list(z.shape)} and {list(latents.shape)}"
        )
