"""The smiley data set: generated 32×32 faces with four independent attributes and 18 known sources.

Each attribute (eyes, mouth, hat, bowtie) is present with probability 1/2, and its shape is set by 3, 5, 6 and
4 standard normal values. Pixel coordinates run from 1 to 32, columns to the right and rows downwards.

Source: the Smiley data set of variational sparse coding; the two mouth positions have a standard deviation of
0.25 pixels, as in its released generator (its text says 0.5).
"""

from typing import Final, NamedTuple

import numpy as np
import torch

from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.loader import Loader
from pyro_fmvae.data.preprocessing import Kind, Preprocessing

ATTRIBUTES: Final = ("eyes", "mouth", "hat", "bowtie")
FEATURES: Final = (3, 5, 6, 4)
"""Number of sources of each attribute, in the order of `ATTRIBUTES`: the blocks of the columns of S and V."""
SOURCES: Final = (
    *("separation", "row", "radius"),
    *("width", "height", "column", "row", "curvature"),
    *("column", "row", "brim width", "brim height", "crown width", "crown height"),
    *("column", "row", "length", "height"),
)
"""Quantity that each source sets, within its attribute; rows and columns are those of centres."""

SIDE: Final = 32
CENTRE: Final = 16.5
_SIZES: Final = {"train": 20_000, "valid": 2_000, "test": 4_000}
_SEEDS: Final = {"train": 1, "valid": 2, "test": 3}
_CHUNK: Final = 500  # images drawn at once: keeps the [chunk, 32, 32] intermediates in the cache

_pixel = np.arange(1, SIDE + 1, dtype=np.float64)
_face = (_pixel[:, None] - CENTRE) ** 2 + (_pixel - CENTRE) ** 2 <= 10.0**2


class Smileys(NamedTuple):
    """Result of `smiley`."""

    x: np.ndarray
    """Pixels in {0, 1}, uint8 [n, 32, 32]."""
    labels: np.ndarray
    """Presence of eyes, mouth, hat and bowtie in {0, 1}, int64 [n, 4]."""
    presence: np.ndarray
    """S: `labels`, repeated for each source of the attribute, float64 [n, 18]."""
    values: np.ndarray
    """V: standard normal, drawn for absent attributes too, float64 [n, 18]. The sources are S ⊙ V."""


def smiley(n: int, seed: int) -> Smileys:
    """Draw `n` faces; equal arguments give equal faces.

    Raises:
        ValueError: `n` is negative.
    """
    if n < 0:
        raise ValueError(f"n: expected a number of images >= 0, got {n}")
    labels, presence, values = _draw_sources(n, seed)
    x = np.empty((n, SIDE, SIDE), dtype=np.uint8)
    for start in range(0, n, _CHUNK):
        rows = slice(start, start + _CHUNK)
        x[rows] = _draw(labels[rows].astype(bool), values[rows])
    return Smileys(x, labels, presence, values)


def smiley_sources(split: str) -> np.ndarray:
    """Return S ⊙ V of the faces of a split of `load_smiley`, in their order: float64 [n, 18], 0 where absent.

    Args:
        split: 'train', 'valid' or 'test'.

    Raises:
        ValueError: another name.
    """
    if split not in _SIZES:
        raise ValueError(f"split: expected one of {', '.join(_SIZES)}, got {split!r}")
    _, presence, values = _draw_sources(_SIZES[split], _SEEDS[split])
    return presence * values


def load_smiley() -> Dataset:
    """Draw 20,000 training, 2,000 validation and 4,000 test faces, equal in every run; all labels known."""
    splits = {}
    for name, n in _SIZES.items():
        faces = smiley(n, _SEEDS[name])
        splits[name] = Split(torch.from_numpy(faces.x.astype(bool)), torch.from_numpy(faces.labels))
    return Dataset(
        name="smiley",
        train=splits["train"],
        valid=splits["valid"],
        test=splits["test"],
        preprocessing=Preprocessing(Kind.BINARY, (SIDE, SIDE)),
        label_names=ATTRIBUTES,
        label_sizes=(2,) * len(ATTRIBUTES),
    )


def _draw_sources(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw the presence of attributes [n, 4] and of sources [n, 18], and the sources' values [n, 18]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, size=(n, len(ATTRIBUTES)))
    values = rng.standard_normal((n, sum(FEATURES)))
    return labels, np.repeat(labels, FEATURES, axis=1).astype(np.float64), values


def _draw(present: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Draw faces, bool [n, 32, 32], from the presence [n, 4] and the values [n, 18] of their attributes."""
    eyes, mouth, hat, bowtie = (present[:, [attribute]] for attribute in range(len(ATTRIBUTES)))
    eye, lip, cap, tie = np.split(values.T[:, :, None], np.cumsum(FEATURES)[:-1])  # each [features, n, 1]
    x = _face | _bowtie(tie, bowtie)
    x &= ~_eyes(eye, eyes)
    _erase_mouth(x, lip, mouth)
    return x | _hat(cap, hat)


def _eyes(v: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Two discs, mirror images of each other: separation, vertical position, radius."""
    separation, y, radius = 4 + 0.5 * v[0], 14 + 0.5 * v[1], np.maximum(2 + 0.5 * v[2], 0)
    # The nearer of the two discs decides, so that one distance serves both.
    dx = np.abs(np.abs(_pixel - CENTRE) - separation)
    reach = np.where(present, radius**2, -1) - (_pixel - y) ** 2
    return (dx**2)[:, None, :] <= reach[:, :, None]


def _erase_mouth(x: np.ndarray, v: np.ndarray, present: np.ndarray) -> None:
    """Clear, in `x`, a rectangle and four pixels beside it that turn its corners up or down.

    The values are width, height, horizontal and vertical position, and curvature.
    """
    width, height, px, py, k = 4 + 0.5 * v[0], 2 + 0.5 * v[1], 16 + 0.25 * v[2], 22 + 0.25 * v[3], 0.5 * v[4]
    left, right = np.rint(px - width / 2), np.rint(px + width / 2)
    columns = (_pixel >= left) & (_pixel <= right)
    x &= ~_outer(_between(py - height / 2, py + height / 2) & present, columns)
    for distance, bend in ((1, k), (2, 1.4 * k)):
        beside = (_pixel == left - distance) | (_pixel == right + distance)
        x &= ~_outer((_pixel == np.rint(py + bend)) & present, beside)


def _hat(v: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Brim (horizontal and vertical position, width, height) and a crown on top of it (width, height)."""
    x, y = CENTRE + 0.5 * v[0], 6 + 0.5 * v[1]
    half_width, half_height = (15 + 1.5 * v[2]) / 2, (2 + 1.0 * v[3]) / 2
    crown_half_width, crown_height = (10 + 1.0 * v[4]) / 2, 2 + 0.5 * v[5]
    top = y - half_height
    brim = _outer(_between(top, y + half_height) & present, _between(x - half_width, x + half_width))
    crown_columns = _between(x - crown_half_width, x + crown_half_width)
    return brim | _outer(_between(top - crown_height, top) & present, crown_columns)


def _bowtie(v: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Two triangles that meet at a corner: horizontal and vertical position, length, height."""
    half_length, half_height = (12 + 1.5 * v[2]) / 2, (5 + 1.0 * v[3]) / 2
    across = np.abs(_pixel - (CENTRE + 0.25 * v[0])) / np.maximum(half_length, 1e-6)
    down = np.abs(_pixel - (29 + 0.5 * v[1])) / np.maximum(half_height, 1e-6)
    # |y| <= |x| inside the unit square; what lies outside it is further out than any |x| there.
    across = np.where(across <= 1, across, -1)
    down = np.where(present, down, np.inf)
    return down[:, :, None] <= across[:, None, :]


def _between(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Pixels from edge to edge, both rounded and both included: bool [n, 32] from edges [n, 1]."""
    return (_pixel >= np.rint(low)) & (_pixel <= np.rint(high))


def _outer(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Rectangles, bool [n, 32, 32], from rows and columns [n, 32]."""
    return rows[:, :, None] & columns[:, None, :]


LOADER: Final = Loader("smiley", lambda _: load_smiley())
