"""Greys made binary, by chance or by a threshold."""

from typing import Literal, get_args

import torch
from torch import Tensor

from pyro_fmvae.data.storage import as_float, sample_binary

Binarization = Literal["dynamic", "threshold"]

_SAMPLING_SEED = 0  # of the one draw of binary pixels for data that must look the same at every visit


def check_binarization(binarization: str) -> Binarization:
    """Return the argument, checked.

    Raises:
        ValueError: it is neither 'dynamic' nor 'threshold'.
    """
    for known in get_args(Binarization):
        if binarization == known:
            return known
    raise ValueError(f"binarization: expected 'dynamic' or 'threshold', got {binarization!r}")


def to_binary(stored: Tensor, binarization: Binarization | None, source: str) -> Tensor:
    """Binary pixels, bool, of stored ones of the same shape.

    Args:
        stored: bool, uint8 (255 = 1.0) or float32 in [0, 1].
        binarization: of greys; None: the pixels are 0 and 1 already.
        source: name of the array in messages.

    Raises:
        ValueError: other values than 0 and 1 without ``binarization``, or nothing else with it.
    """
    if stored.dtype == torch.bool:
        return stored
    if binarization is None:
        if not ((stored == 0) | (stored == 1)).all():
            raise ValueError(f"{source}: expected binary values, 0 or 1, but there are others")
        return stored.bool()
    if stored.dtype == torch.uint8 and stored.numel() and stored.max() == 1:
        raise ValueError(
            f"{source}: expected greys from 0 to 255, but the maximum of this uint8 array is 1; "
            "give binary pixels as bool"
        )
    if binarization == "threshold":
        return as_float(stored) >= 0.5
    return sample_binary(stored, torch.Generator().manual_seed(_SAMPLING_SEED))
