"""Seeing single tensor operations: which memory they work on, and as they were written, not compiled."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

NUMBER_WANTED = {"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy"} | {
    "__contains__",
    "__array__",
    "__array_interface__",
    "__dlpack__",
}
"""Names of functions that ask a tensor for its numbers."""


def memory_of(value: Any) -> int:
    """An identifier of the memory that a tensor's values are in; 0 for anything else."""
    strided = isinstance(value, Tensor) and value.layout == torch.strided
    return value.untyped_storage()._cdata if strided else 0


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled functions and modules as they were before ``torch.compile``."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is None:  # takes a second to import, and nothing was compiled without it
        yield
        return
    traced = dynamo.config.patch(error_on_nested_fx_trace=False)
    with dynamo.set_stance("force_eager"), traced:  # torch 2.6 would compile in a rehearsal
        yield
