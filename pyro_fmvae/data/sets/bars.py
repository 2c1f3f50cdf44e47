"""The bars test: generated images whose causes are the rows and columns of pixels, with known parameters.

Source: Földiák (1990), with the causes of binary sparse coding ('binary'), or of spike-and-slab sparse coding
with a linear ('linear') or a maximal ('max') superposition: Shelton et al. (2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.loader import Loader, LoadOptions
from pyro_fmvae.data.preprocessing import Kind, Preprocessing

BarsKind = Literal["binary", "linear", "max"]

NAMES: Final[dict[str, BarsKind]] = {f"bars-{kind}": kind for kind in get_args(BarsKind)}
"""Names of data sets, and what each shows."""
SIDE: Final = 4
_SIZES: Final = {"train": 500, "valid": 100, "test": 500}
_SEEDS: Final = {"train": 1, "valid": 2, "test": 3}


@dataclass(frozen=True, eq=False)
class BarsTruth:
    """The parameters that bars are generated with."""

    kind: BarsKind
    dictionary: Tensor
    """Bar of each cause at value 1, float64 [H, size, size]: rows from the top, then columns from the left.
    Bars add up, or of kind 'max' the largest one shows."""
    probs: float
    """Probability that a cause is not 0: 2 / H, two bars in an image on average."""
    loc: float | None
    """Mean of a cause that is not 0; None where it is 1 ('binary')."""
    scale: float | None
    """Standard deviation of a cause that is not 0; None where it is 1 ('binary')."""
    noise: float
    """Standard deviation of the noise that each pixel has."""


class Bars(NamedTuple):
    """Result of `bars`."""

    x: Tensor
    """Pixels, float64 [n, size, size]."""
    causes: Tensor
    """0 where a bar is absent, float64 [n, H]."""


def bars(kind: BarsKind, size: int = SIDE, num_data: int = 500, seed: int = 0) -> Bars:
    """Draw images of bars; equal arguments give equal images.

    Args:
        kind: 'binary': causes are 0 or 1, and their bars, of height 1, add up; noise 0.1. 'linear': causes
            are 0 or drawn from N(1, 0.2²), their bars, of height 10, add up; noise 1. 'max': as 'linear', but
            the largest cause of a pixel hides the others, absent ones being 0.
        size: side of the images in pixels, at least 2. H is twice that.
        num_data: n, at least 1.
        seed: of the draw, at least 0.

    Raises:
        ValueError: another kind, or a number that is too small.
    """
    if num_data < 1:
        raise ValueError(f"num_data: expected at least 1, got {num_data}")
    if seed < 0:
        raise ValueError(f"seed: expected at least 0, got {seed}")
    truth = _truth(kind, size)
    generator = torch.Generator().manual_seed(seed)
    shape = (num_data, len(truth.dictionary))
    causes = (torch.rand(shape, generator=generator, dtype=torch.float64) < truth.probs).double()
    if truth.loc is not None and truth.scale is not None:
        slab = torch.randn(shape, generator=generator, dtype=torch.float64)
        causes = causes * (truth.loc + truth.scale * slab)
    if kind == "max":
        mean = (causes[:, :, None, None] * truth.dictionary).amax(dim=1)
    else:
        mean = torch.einsum("nh,hrc->nrc", causes, truth.dictionary)
    noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64)
    return Bars(mean + truth.noise * noise, causes)


def bars_truth(name: str) -> BarsTruth | None:
    """Return the parameters of a data set in `NAMES`; None for any other name."""
    return _truth(NAMES[name], SIDE) if name in NAMES else None


def load_bars(name: str) -> Dataset:
    """Draw 500 training, 100 validation and 500 test images [4, 4] of 8 bars, equal in every run; no labels.

    Args:
        name: one of `NAMES`.
    """
    draws = {split: bars(NAMES[name], SIDE, n, _SEEDS[split]).x for split, n in _SIZES.items()}
    train, valid, test = (Split(x.float()) for x in draws.values())
    return Dataset(name, train, valid, test, Preprocessing(Kind.REAL, (SIDE, SIDE)))


def _load(name: str, _: LoadOptions) -> Dataset:
    return load_bars(name)


def _truth(kind: BarsKind, size: int) -> BarsTruth:
    if kind not in get_args(BarsKind):
        raise ValueError(f"kind: expected one of {', '.join(get_args(BarsKind))}, got {kind!r}")
    if size < 2:
        raise ValueError(f"size: expected at least 2, got {size}")
    line = torch.eye(size, dtype=torch.float64)
    rows = line[:, :, None].expand(size, size, size)
    masks = torch.cat([rows, rows.transpose(1, 2)])
    probs = 1 / size
    if kind == "binary":
        return BarsTruth(kind, masks, probs, None, None, 0.1)
    return BarsTruth(kind, 10 * masks, probs, 1.0, 0.2, 1.0)


LOADERS: Final = tuple(Loader(name, partial(_load, name), as_is=True) for name in NAMES)
