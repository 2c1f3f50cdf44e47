"""Refusals: programs that no recording could repeat, with the line that is to blame."""

import contextlib
import linecache
import logging
import os
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from pyro_fmvae.capture.fixed_tensors import FixedTensors

logger = logging.getLogger("pyro_fmvae")

PATIENCE = 5.0  # seconds that capturing may take without a word
_LIBRARIES = tuple(str(Path(module.__file__ or "").parent) + os.sep for module in (torch, pyro, contextlib))
_MACHINERY = tuple(_LIBRARIES[0] + name for name in ("_", "fx" + os.sep, "utils" + os.sep))
_PACKAGE = Path(__file__).parent.parent
_HERE = tuple(str(_PACKAGE / part) + os.sep for part in ("capture", "em", "infer", "ranks"))
_LEAVES_TENSORS = {"numpy", "tolist", "__array__", "__dlpack__", "data_ptr"}
_COPIES_LISTS = {"tensor", "as_tensor", "asarray", "new_tensor"}


class CaptureError(RuntimeError):
    """A step that cannot be captured; the message names the line of the program that prevents it."""


class RefusedCalls(TorchFunctionMode):
    """Refuses calls that take values out of tensors unseen by dispatch; makes others recordable.

    A sequential plate takes its indices out of ``torch.arange(size)``. They are the same in every replay.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ranges: dict[int, Tensor] = {}  # by identity; kept, so that no other tensor gets it
        self._indices: dict[int, tuple[Tensor, int]] = {}
        self._fixed = FixedTensors()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in _LEAVES_TENSORS:
            raise CaptureError(f"{name}() takes a tensor's values out")
        if name in _COPIES_LISTS and any(map(_has_tensors, (*args, *kwargs.values()))):
            raise CaptureError(f"{name}() takes the values of tensors in a list (torch.stack does not)")
        if name == "one_hot":
            return _one_hot(*args, **kwargs)
        if name == "lstm":  # on CPUs oneDNN's, whose way back no recording runs again
            with _without_onednn():
                return func(*args, **kwargs)
        if name == "item" and id(args[0]) in self._indices and not args[0]._version:
            return self._indices[id(args[0])][1]
        if self._fixed.answers(name, args):
            return self._fixed.answer(func, args)
        result = func(*self._fixed.by_numbers(name, args), **kwargs)
        self._fixed.see(name, args, kwargs, result)
        if name == "arange" and len(args) == 1 and isinstance(args[0], int) and "dtype" not in kwargs:
            self._ranges[id(result)] = result
        if name == "unbind" and id(args[0]) in self._ranges:
            self._indices |= {id(index): (index, number) for number, index in enumerate(result)}
        return result


def _has_tensors(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))


def _one_hot(labels: Tensor, num_classes: int = -1) -> Tensor:
    """``torch.nn.functional.one_hot`` without the check of the labels, which takes their values out."""
    if num_classes < 0:
        raise CaptureError("one_hot() without a number of classes looks for the largest label")
    return (labels.unsqueeze(-1) == torch.arange(num_classes, device=labels.device)).long()


class OperationChecks:
    """Refuses operations whose result, or its shape, Python would have to know; says so if there are many."""

    def __init__(self) -> None:
        self._operations, self._started = 0, time.perf_counter()

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Take an operation that is about to run.

        Raises:
            CaptureError: the value of a tensor is needed in Python, or a shape that depends on one, or a
                generator of random numbers besides torch's own.
        """
        self._operations += 1
        if self._started and time.perf_counter() - self._started > PATIENCE:
            self._started = 0.0
            logger.warning(
                "capturing the step, once for these shapes: %d operations in %.0f s so far. A plate, or a "
                "distribution of whole sequences, has fewer than a loop; eager=True captures nothing",
                self._operations,
                PATIENCE,
            )
        if torch.Tag.data_dependent_output in func.tags:
            raise CaptureError("a number or a truth value is asked of a tensor")
        if torch.Tag.dynamic_output_shape in func.tags and not _indexed_by_integers(func, args):
            raise CaptureError(f"the shape of {func.__name__.split('.')[0]}'s result depends on values")
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Generator):
                raise CaptureError("random numbers come from a generator of its own")
            if isinstance(value, torch.UntypedStorage):
                raise CaptureError("a tensor takes over the memory of another (as by copy.deepcopy)")


def _indexed_by_integers(func: Any, args: Sequence[Any]) -> bool:
    if func is not torch.ops.aten.index.Tensor:
        return False
    return not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    onednn: Any = torch.backends.mkldnn
    before, onednn.enabled = onednn.enabled, False
    try:
        yield
    finally:
        onednn.enabled = before


def refuse_results(tensor: Tensor) -> None:
    """Refuse a tensor that was computed from parameters before: no replay would compute it again.

    Raises:
        CaptureError: it was.
    """
    if tensor.requires_grad and not tensor.is_leaf:
        raise CaptureError(
            f"the step cannot be captured: a tensor of shape {list(tensor.shape)} was computed from "
            "parameters before the step, and kept. Compute it in the model or guide, or pass eager=True"
        )


def explain(error: Exception) -> str:
    """The message for an error, with the line of the user's code that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [f for f in frames if not f.filename.startswith((*_HERE, *_MACHINERY, "<"))]
    theirs = [f for f in outside if not f.filename.startswith(_LIBRARIES)] or outside
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    where, advice = "", "change the model"
    if theirs:
        frame, advice = theirs[-1], "replace the line (by torch.where, say)"
        if frame.filename.startswith(_LIBRARIES):
            advice = "replace the distribution or function of the model that runs this line"
        text = linecache.getline(frame.filename, frame.lineno or 0).strip()
        where = f", in {frame.filename}, line {frame.lineno}: {text}"
    return (
        f"the step cannot be captured: {reason}{where}. A captured program is tensor operations alone: "
        f"{advice}, or pass eager=True"
    )
