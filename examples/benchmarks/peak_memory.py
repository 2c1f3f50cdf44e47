"""The most memory that tensors take while something runs on the CPU."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Follows every tensor storage that operations make, forwards and backwards, until it is released.

    Its peak is that of torch's profiler, to within a few bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.in_use = self.peak = 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func`` and take note of storages that it did not get from outside."""
        self._known.update(_storages((args, kwargs)))
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result) - set(self._known):
            self._known.add(storage)
            self.in_use += storage.nbytes()
            weakref.finalize(storage, self._release, storage.nbytes())
        self.peak = max(self.peak, self.in_use)
        return result

    def _release(self, size: int) -> None:
        self.in_use -= size


def _storages(tree: Any) -> set[torch.UntypedStorage]:
    return {leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}
