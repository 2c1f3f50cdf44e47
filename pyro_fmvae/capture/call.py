"""The arguments of a step, taken apart into data and constants of a captured program."""

from collections.abc import Hashable, Iterable
from enum import Enum
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

_CONSTANTS = (bool, int, float, complex, str, torch.dtype, torch.device, Enum, FunctionType, torch.nn.Module)


class Call:
    """Arguments, however nested, taken apart.

    Attributes:
        data: the tensors among them.
        key: equal for calls that one program serves: for tensors of the same shapes, strides, types and
            devices, and for the same constants.

    Raises:
        ValueError: an argument that is neither a tensor nor a constant, or a tensor that a gradient is wanted
            of: that of an argument is not computed.
    """

    def __init__(self, args: Any, kwargs: Any) -> None:
        self._leaves, self._spec = tree_flatten((args, kwargs))
        self.data: list[Tensor] = [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]
        self.key: Hashable = (str(self._spec), *map(_signature, self._leaves))

    def arguments(self, data: Iterable[Tensor]) -> tuple[Any, Any]:
        """Positional and keyword arguments with other tensors in the place of the data."""
        tensors = iter(data)
        leaves = [next(tensors) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        args, kwargs = tree_unflatten(leaves, self._spec)
        return args, kwargs

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """Shapes of the data."""
        return tuple(tensor.shape for tensor in self.data)

    @property
    def rows(self) -> int:
        """Length of the first of the data; 1 of a scalar, 0 where there are none."""
        return int(self.data[0].shape[:1].numel()) if self.data else 0


def _signature(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        if leaf.requires_grad:
            raise ValueError(
                f"a captured step takes data, got a tensor of shape {list(leaf.shape)} that requires a "
                "gradient: detach it, make it a parameter of the model or guide, or pass eager=True"
            )
        return (leaf.shape, leaf.stride(), leaf.dtype, leaf.device)
    if leaf is None or isinstance(leaf, _CONSTANTS):
        return type(leaf), leaf  # 1, 1.0 and True are equal, but not the same to a program
    raise ValueError(
        "a captured step takes tensors, and numbers, strings, functions and modules as constants, got "
        f"{type(leaf).__name__}; make a tensor of it, or pass eager=True"
    )
