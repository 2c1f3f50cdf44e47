"""Animations in which one factor's block moves from component to component."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.figures.components import share_caption
from pyro_fmvae.figures.draws import draw_codes, draw_latent
from pyro_fmvae.figures.factors import Factors, with_block
from pyro_fmvae.figures.page import MARGIN, NOTE, QUIET, Page, shorten, wrap
from pyro_fmvae.figures.tiles import as_images, cell_size
from pyro_fmvae.files.checkpoint import write_atomically

_TARGET = 128
_GAP = 6
_COLUMNS = 6
_HEAD = 56
_NARROWEST = 320


def traversal(
    factors: Factors, factor: int, bases: int = 6, steps: int = 8, most: int = 16, seed: int = 0
) -> list[np.ndarray]:
    """Frames in which one factor's block moves through its components, with the rest of z held fixed.

    The block is the same in all images of a frame. It moves along straight lines between the locations of
    components, in the order of their numbers and back to the first, so that the animation can loop. Unused
    components are skipped. Each frame names the nearest component of its line. The caller's random generators
    are left alone.

    Args:
        factors: factors of a model of images.
        factor: index of the factor.
        bases: number of draws of z, one for each image of a frame.
        steps: number of frames from one component to the next.
        most: largest number of components; the most used ones are taken.
        seed: seed of the draws.

    Returns:
        Pages uint8 [H, W, 3], ``steps`` for each component, or a single one if only one component is in use.

    Raises:
        ValueError: a number out of range, or a decoder that does not return images.
    """
    factors.check_factor("factor", factor)
    if min(bases, steps, most) < 1:
        raise ValueError(f"bases, steps, most: expected numbers >= 1, got {bases}, {steps} and {most}")
    order = factors.order(factor)
    stops = order[factors.used(factor)[order]][:most].sort().values
    with seeded(seed):
        base = draw_latent(factors, draw_codes(factors, bases))
    names, path = _path(factors.means[factor].detach(), stops, steps)
    z = torch.cat([with_block(base, block.expand(bases, -1), factor) for block in path])
    images = as_images("decode", factors.decode_all(z))
    frames = images.reshape(len(path), bases, *images.shape[1:])
    left_out = factors.sizes[factor] - len(stops)
    return [
        _frame(factors, factor, component, left_out, frame)
        for component, frame in zip(names, frames, strict=True)
    ]


def _path(means: Tensor, stops: Tensor, steps: int) -> tuple[list[int], Tensor]:
    """The nearest component and the block of each frame, [frames] and [frames, D]."""
    if len(stops) == 1:
        return stops.tolist(), means[stops.to(means.device)]
    names, path = [], []
    for start, end in zip(stops.tolist(), stops.roll(-1).tolist(), strict=True):
        for step in range(steps):
            share = step / steps
            names.append(start if share <= 0.5 else end)
            path.append(torch.lerp(means[start], means[end], share))
    return names, torch.stack(path)


def _frame(factors: Factors, factor: int, component: int, left_out: int, images: np.ndarray) -> np.ndarray:
    """Draw a page with images [bases, H, W] or [bases, H, W, 3]."""
    height, width = cell_size(images, _TARGET)
    columns = min(_COLUMNS, len(images))
    wide = max(2 * MARGIN + columns * (width + _GAP) - _GAP, _NARROWEST)
    room = wide - 2 * MARGIN
    note = "All else is held in each image."
    if left_out:
        note += f" The {left_out} least used of {factors.sizes[factor]} components are left out."
    notes = wrap(note, room, 8)
    bottom = MARGIN + _HEAD + -(-len(images) // columns) * (height + _GAP)
    page = Page(wide, bottom + NOTE * len(notes) + MARGIN // 2)
    name = factors.component_name(factor, component)
    page.text(MARGIN, MARGIN + 14, shorten(factors.names[factor], room, 9), 9, color=QUIET, va="baseline")
    share = f"({share_caption(factors, factor, component)})"
    page.text(
        MARGIN,
        MARGIN + 40,
        shorten(f"{name}  {share}", room, 11, weight="bold"),
        11,
        weight="bold",
        va="baseline",
    )
    for number, image in enumerate(images):
        left = MARGIN + number % columns * (width + _GAP)
        page.picture(image, left, MARGIN + _HEAD + number // columns * (height + _GAP), (height, width))
    page.notes(notes, bottom)
    return page.pixels()


def save_animation(frames: Sequence[np.ndarray], path: str | Path, milliseconds: int = 120) -> None:
    """Save frames as a GIF that loops for ever, atomically.

    Args:
        frames: uint8 [H, W, 3] or [H, W], all of one size.
        path: name that ends in .gif; missing folders are created.
        milliseconds: duration of each frame.

    Raises:
        ValueError: another ending, no frames, or frames of another type or of different sizes.
    """
    path = Path(path)
    if path.suffix.lower() != ".gif":
        raise ValueError(f"path: expected a name that ends in .gif, got {path}")
    shapes = {frame.shape for frame in frames}
    if len(shapes) != 1 or any(frame.dtype != np.uint8 for frame in frames):
        raise ValueError(f"frames: expected uint8 arrays of one shape, got {sorted(shapes)}")
    images = [Image.fromarray(frame).quantize(dither=Image.Dither.NONE) for frame in frames]

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            images[0].save(
                file, format="GIF", save_all=True, append_images=images[1:], duration=milliseconds, loop=0
            )

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, write)
