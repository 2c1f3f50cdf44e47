"""Tensors that a program makes out of plain numbers: the same in every replay, so their values may be asked.

Torch's own distributions do so: ``Wishart`` compares its degrees of freedom with the size of the matrix, and
transforms to correlation matrices pick the triangle of a matrix by a mask.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

_MAKE = {"tensor", "as_tensor", "arange", "eye", "ones", "zeros", "full"}
_KEEP = {
    *(
        "lt",
        "le",
        "gt",
        "ge",
        "eq",
        "ne",
        "any",
        "all",
        "is_all_true",  # of values, by distributions of torch after 2.6
        "logical_not",
        "add",
        "sub",
        "rsub",
        "mul",
        "div",
        "neg",
    ),
    *("view", "reshape", "unsqueeze", "squeeze", "expand", "to", "float", "double", "clone", "detach"),
}
_ASK = {"__bool__", "__int__", "__float__", "item"}


class FixedTensors:
    """Remembers the tensors that were made out of plain numbers alone, while a program is recorded."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, int]] = {}  # by identity; kept, so that no other gets it

    def __contains__(self, value: Any) -> bool:
        known = self._known.get(id(value))
        return known is not None and known[1] == value._version

    def see(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Take note of the result of a function."""
        makes, keeps = name in _MAKE, name.strip("_") in _KEEP
        if isinstance(result, Tensor) and (makes or keeps):
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            if (tensors or makes) and all(tensor in self for tensor in tensors):
                self._known[id(result)] = result, result._version

    def answers(self, name: str, args: Any) -> bool:
        """True for a question of a tensor's value that has the same answer in every replay."""
        return name in _ASK and args[0] in self

    @staticmethod
    def answer(func: Any, args: Any) -> Any:
        """Answer such a question outside of the recording."""
        with _disable_current_modes():
            return func(*args)

    def by_numbers(self, name: str, args: Any) -> Any:
        """Arguments of a tensor's index, with the places of its ones for a mask that is fixed."""
        if name not in ("__getitem__", "__setitem__"):
            return args
        index: list[Any] = []
        for part in args[1] if isinstance(args[1], tuple) else args[1:2]:
            if isinstance(part, Tensor) and part.dtype == torch.bool and part in self:
                with _disable_current_modes():
                    places = [place.tolist() for place in part.nonzero(as_tuple=True)]
                index += [torch.tensor(place, dtype=torch.int64, device=part.device) for place in places]
            else:
                index.append(part)
        return args if len(index) == 1 and index[0] is args[1] else (args[0], tuple(index), *args[2:])
