"""Data sets of patches that are cut from images at random."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.loader import SparseOptions
from pyro_fmvae.data.patch_transform import PatchTransform
from pyro_fmvae.data.preprocessing import Kind, Preprocessing
from pyro_fmvae.data.splitting import split_rows
from pyro_fmvae.data.storage import as_float, luminance, to_stored

FLAT: Final = 0.01
"""Least standard deviation of the greys, from 0 to 1, of a patch that is kept."""
_SEED: Final = 0  # of the patches of a new file or folder
_SPARE: Final = 3  # positions that are tried for each patch wanted
_TILES: Final = (4, 2, 1)  # sides of the regions that make up splits, in patches; the first that gives enough
_ENOUGH: Final = 10


class Pictures(NamedTuple):
    """Images of any sizes, read when they are needed."""

    names: list[str]
    """Name of each of n images in messages."""
    sizes: list[tuple[int, int]]
    """Their heights and widths in pixels."""
    read: Callable[[int], Tensor]
    """Reads the image of that number as greys in [0, 1], float32 [H, W]."""
    splits: tuple[str, ...] = ()
    """Split of each image, if its folder says so: 'train', 'valid' or 'test'; else empty."""


def greys_of(image: np.ndarray, source: str) -> Tensor:
    """Convert an image to greys in [0, 1], float32 [H, W].

    Args:
        image: [H, W] or [H, W, 3], bool, uint8 or floats in [0, 1].
        source: name of the image in messages.

    Raises:
        ValueError: numbers outside [0, 1], or NaN.
    """
    return luminance(as_float(to_stored(image, source)))


def stacked(images: np.ndarray, source: str) -> Pictures:
    """Make pictures of an array of images, all of one size.

    Args:
        images: [n, H, W] or [n, H, W, 3], bool, uint8 or floats in [0, 1].
        source: name of the images in messages.

    Raises:
        ValueError: `images` are a table [n, D].
    """
    if images.ndim < 3:
        raise ValueError(
            f"{source}: expected images to cut patches from, got rows of {images.shape[1]} numbers"
        )
    height, width = images.shape[1:3]
    return Pictures(
        [source] * len(images),
        [(height, width)] * len(images),
        lambda number: greys_of(images[number], source),
    )


def split_patches(pictures: Pictures, name: str, size: int, options: SparseOptions, seed: int) -> Dataset:
    """Make a data set of patches: 80 % training, 10 % validation, 10 % test.

    Where folders are the splits of the images, they are those of the patches, too. Images are divided into
    regions of about 4 x 4 patches (2 x 2 or 1 if that gives fewer than ten). Each region lies in one split,
    so splits share no pixel. Positions are drawn without replacement. Flat patches are left out, so there may
    be fewer patches than were asked for.

    Args:
        pictures: at least `size` pixels high and wide.
        name: of the data set.
        size: P.
        options: number and transform of the patches.
        seed: of the regions and positions, at least 0.

    Raises:
        ValueError: an image is too small, there are fewer than three regions, all patches of a split are
            flat, or there are fewer training patches than whitening needs.
    """
    if small := _too_small(pictures, size):
        found, (height, width) = small
        largest = min(height, width)
        raise ValueError(
            f"patch_size: expected at most {largest}, as {found} is {width} x {height} pixels, got {size}"
        )
    for factor in _TILES:
        regions = _tiles(pictures.sizes, factor * size)
        if len(regions) >= _ENOUGH:
            break
    source = f"patch_size: expected images of at least 3 regions of {size} x {size} pixels"
    rng = np.random.default_rng(seed)
    held_out = max(1, options.patches // 10)
    wanted = [options.patches - 2 * held_out, held_out, held_out]
    splits = np.array(pictures.splits or ["train"] * len(pictures.names))[regions[:, 0]]
    parts = _split_regions(splits, seed, source)
    positions = [_draw(regions[part], size, count, rng) for part, count in zip(parts, wanted, strict=True)]
    train, valid, test = _cut(pictures, positions, size, wanted)
    transform = options.transform
    if transform is None:
        transform = PatchTransform.fit(train, options.patches, options.whiten, options.on_off)
    preprocessing = Preprocessing(Kind.PATCHES, transform.event_shape, patches=transform)
    preprocessed = (Split(preprocessing(greys.numpy())) for greys in (train, valid, test))
    return Dataset(name, next(preprocessed), next(preprocessed), next(preprocessed), preprocessing)


def load_patches(pictures: Pictures, transform: PatchTransform) -> Split:
    """Cut patches from new images, with a fixed seed, under the preprocessing of a run.

    Args:
        pictures: the images.
        transform: the run's; at most `transform.count` patches are cut.

    Raises:
        ValueError: an image is too small, or all patches are flat.
    """
    size, count = transform.size, transform.count
    if small := _too_small(pictures, size):
        found, (height, width) = small
        raise ValueError(
            f"data: expected images of at least {size} x {size} pixels, as the run's patches are, {found} is "
            f"{width} x {height}"
        )
    regions = np.array([(image, 0, 0, *shape) for image, shape in enumerate(pictures.sizes)])
    positions = _draw(regions, size, count, np.random.default_rng(_SEED))
    (greys,) = _cut(pictures, [positions], size, [count])
    return Split(Preprocessing(Kind.PATCHES, transform.event_shape, patches=transform)(greys.numpy()))


def _too_small(pictures: Pictures, size: int) -> tuple[str, tuple[int, int]] | None:
    """Return name, height and width of the first picture too small for a patch, or None."""
    named = zip(pictures.names, pictures.sizes, strict=True)
    return next(((name, shape) for name, shape in named if min(shape) < size), None)


def _tiles(sizes: list[tuple[int, int]], side: int) -> np.ndarray:
    """Divide images into nearly equal regions of about `side`: image, top, left, height and width, [m, 5]."""
    tiles = []
    for image, shape in enumerate(sizes):
        rows, columns = (
            np.linspace(0, length, max(length // side, 1) + 1).astype(int).tolist() for length in shape
        )
        tiles += [
            (image, top, left, bottom - top, right - left)
            for top, bottom in pairwise(rows)
            for left, right in pairwise(columns)
        ]
    return np.array(tiles)


def _split_regions(splits: np.ndarray, seed: int, expected: str) -> list[np.ndarray]:
    """Regions for training, validation and testing; those of a split that is not there come from training.

    Args:
        splits: of the image of each region.
        seed, expected: see `split_rows`.
    """
    train, valid, test = (np.flatnonzero(splits == name) for name in ("train", "valid", "test"))
    if len(valid) and len(test):
        return [train, valid, test]
    left, more_valid, more_test = (train[rows] for rows in split_rows(len(train), seed, expected))
    if len(valid):
        return [np.concatenate([left, more_valid]), valid, more_test]
    if len(test):
        return [np.concatenate([left, more_test]), more_valid, test]
    return [left, more_valid, more_test]


def _draw(regions: np.ndarray, size: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw positions of patches inside regions, at most `_SPARE * count`: image, top and left, [m, 3]."""
    across = regions[:, 4] - size + 1
    ends = np.cumsum((regions[:, 3] - size + 1) * across)
    drawn = rng.choice(ends[-1], min(_SPARE * count, ends[-1]), replace=False)
    region = np.searchsorted(ends, drawn, side="right")
    top, left = np.divmod(drawn - np.concatenate([[0], ends])[region], across[region])
    return np.stack([regions[region, 0], regions[region, 1] + top, regions[region, 2] + left], axis=1)


def _cut(pictures: Pictures, positions: list[np.ndarray], size: int, wanted: list[int]) -> list[Tensor]:
    """Cut the patches of each split, [n, P, P], flat ones left out, as many as wanted or fewer.

    Each image is read once.
    """
    image, top, left = torch.from_numpy(np.concatenate(positions)).T
    patches = torch.empty(len(image), size, size, dtype=torch.float32)
    order = image.argsort()
    numbers, counts = image[order].unique_consecutive(return_counts=True)
    for number, rows in zip(numbers.tolist(), order.split(counts.tolist()), strict=True):
        windows = pictures.read(number).unfold(0, size, 1).unfold(1, size, 1)
        patches[rows] = windows[top[rows], left[rows]]
    parts = []
    for part, count in zip(patches.split([len(part) for part in positions]), wanted, strict=True):
        textured = part[part.flatten(1).std(dim=1, correction=0) >= FLAT][:count]
        if len(textured) == 0:
            raise ValueError("patches: expected some that are not flat in each split, all of them are")
        parts.append(textured)
    return parts
