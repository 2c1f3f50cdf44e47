"""Tensors in one piece of memory per type, so that they are summed over ranks by one call each."""

from collections.abc import Sequence

import torch
from torch import Tensor


class FlatSums:
    """Tensors multiplied by a weight, end to end.

    Args:
        tensors: of any shapes and types.
        weight: of this rank.

    Attributes:
        flats: one vector for each type, in the order in which the types come.
    """

    def __init__(self, tensors: Sequence[Tensor], weight: float) -> None:
        self._like = [(tensor.shape, tensor.dtype) for tensor in tensors]
        self._types = list(dict.fromkeys(dtype for _, dtype in self._like))
        self.flats = [
            weight * torch.cat([tensor.reshape(-1) for tensor in tensors if tensor.dtype == dtype])
            for dtype in self._types
        ]

    def parts(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """Views of vectors like ``flats`` in the shapes of the tensors, in their order."""
        pieces = {}
        for dtype, flat in zip(self._types, flats, strict=True):
            sizes = [shape.numel() for shape, kind in self._like if kind == dtype]
            pieces[dtype] = iter(flat.split(sizes))
        return [next(pieces[dtype]).view(shape) for shape, dtype in self._like]
