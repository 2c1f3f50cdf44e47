"""Cutting an image into patches, and putting it together again."""

from collections.abc import Sequence

import torch
from torch import Tensor


def extract_patches(image: Tensor, size: int, stride: int = 1) -> Tensor:
    """Cut an image into square patches that cover it, [n, P, P], row by row.

    Patches begin at every `stride`-th pixel down and across; the last ones end at the edge, so that no pixel
    is left out.

    Args:
        image: [H, W].
        size: P, at least 1 and at most H and W.
        stride: from 1 to P.

    Raises:
        ValueError: an argument is not as described.
    """
    if image.dim() != 2:
        raise ValueError(f"image: expected [H, W], got {list(image.shape)}")
    if not 1 <= size <= min(image.shape):
        raise ValueError(f"size: expected 1 to {min(image.shape)}, the image's smaller side, got {size}")
    if not 1 <= stride <= size:
        raise ValueError(f"stride: expected 1 to {size}, the patches' size, got {stride}")
    rows, columns = (_starts(length - size, stride) for length in image.shape)
    windows = image.unfold(0, size, 1).unfold(1, size, 1)
    return windows[torch.tensor(rows)[:, None], torch.tensor(columns)].reshape(-1, size, size)


def assemble_patches(patches: Tensor, image_shape: Sequence[int], stride: int = 1) -> Tensor:
    """Put an image [H, W] together from its patches: the inverse of `extract_patches`.

    Where patches overlap, they are averaged. NaN does not count; a pixel that is NaN in all of them is NaN.

    Args:
        patches: [n, P, P], in the order of `extract_patches`.
        image_shape: H and W.
        stride: as in `extract_patches`.

    Raises:
        ValueError: an argument is not as described, or `patches` are not as many as `extract_patches` gives.
    """
    height, width = image_shape
    if patches.dim() != 3 or patches.shape[1] != patches.shape[2]:
        raise ValueError(f"patches: expected [n, P, P], got {list(patches.shape)}")
    pixels = torch.arange(height * width, device=patches.device).reshape(height, width)
    index = extract_patches(pixels, patches.shape[1], stride)
    if index.shape != patches.shape:
        raise ValueError(
            f"patches: expected {len(index)} of them for an image {height} x {width}, got {len(patches)}"
        )
    known = ~patches.isnan()
    total, count = patches.new_zeros(2, height * width)
    total.index_add_(0, index.flatten(), patches.where(known, patches.new_zeros(())).flatten())
    count.index_add_(0, index.flatten(), known.to(patches.dtype).flatten())
    return (total / count).reshape(height, width)


def _starts(last: int, stride: int) -> list[int]:
    """List the starts of patches along a side: every `stride`-th pixel up to `last`, and `last`."""
    starts = list(range(0, last + 1, stride))
    return starts if starts[-1] == last else [*starts, last]
