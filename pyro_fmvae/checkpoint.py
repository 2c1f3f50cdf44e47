"""Checkpoints: one safetensors file with everything in it, and a readable JSON beside it. Nothing is ever unpickled."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

TENSORS = "state.safetensors"
READABLE = "state.json"


def save(folder: Path, state: Any, clock: dict[str, float] | None = None) -> None:
    """Write a checkpoint, atomically: whatever happens, the folder holds the old one or the new one.

    Args:
        folder: made if need be; the file names in it are fixed.
        state: nested dictionaries and lists of tensors and of what JSON can hold; keys may be integers.
        clock: times, which go into the JSON file alone, so that equal runs write equal tensors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    encoded = json.dumps(_encode(state, "", tensors))
    write_atomically(folder / TENSORS, lambda path: save_file(tensors, path, metadata={"state": encoded}))
    readable = {**json.loads(encoded), **({"clock": clock} if clock else {})}
    write_atomically(folder / READABLE, lambda path: path.write_text(json.dumps(readable, indent=1)))


def load(folder: Path, device: torch.device | str = "cpu") -> tuple[Any, dict[str, float]]:
    """Read what :func:`save` wrote: the state and the clock (empty if its file is missing).

    Raises:
        FileNotFoundError: there is no checkpoint in ``folder``.
        ValueError: the file is damaged or not one of ours.
    """
    path = folder / TENSORS
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: no checkpoint ({TENSORS}) there")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            encoded = json.loads(file.metadata()["state"])
            state = _decode(encoded, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not a checkpoint of pyro_fmvae, or damaged ({error})") from None
    try:
        clock = json.loads((folder / READABLE).read_text()).get("clock", {})
    except (OSError, json.JSONDecodeError):
        clock = {}
    return state, clock


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary file in the same folder, sync it, and rename it to ``path``."""
    temporary = path.with_name(f".{path.name}.tmp")
    write(temporary)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"items": [[key, _encode(item, f"{name}/{key}".lstrip("/"), tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [_encode(item, f"{name}/{index}".lstrip("/"), tensors) for index, item in enumerate(value)]
    return value


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    return {key: _decode(item, tensors) for key, item in value["items"]}
