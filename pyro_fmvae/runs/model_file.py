"""A trained model in one file that travels: safetensors, with options and card in its header."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from pyro_fmvae import checkpoint

ENDING: Final = ".fmvae"


def is_model_file(path: Path) -> bool:
    """Return True for what may be such a file, by its ending."""
    return path.suffix == ENDING and path.is_file()


def write_model(path: Path, values: Mapping[str, Any], card: str, model: Mapping[str, Tensor]) -> None:
    """Write a model, atomically; make missing folders.

    Args:
        path: the file.
        values: contents of ``config.json`` without paths.
        card: about the model, in Markdown.
        model: its state dictionary.
    """
    checkpoint.save_file(path, {"config": dict(values), "card": card, "model": dict(model)})


def read_model(path: Path) -> dict[str, Any]:
    """Read what :func:`write_model` wrote: ``config``, ``card`` and ``model``, its tensors on the CPU.

    Raises:
        ValueError: the file is damaged, is no such file, or is larger than the memory that it may take.
    """
    state, _ = checkpoint.load_file(path)
    kinds = {"config": dict, "card": str, "model": dict}
    whole = isinstance(state, dict) and all(isinstance(state.get(name), kind) for name, kind in kinds.items())
    if not whole:
        raise ValueError(f"{path}: not an exported model (a checkpoint of a run, perhaps: give its folder)")
    return state
