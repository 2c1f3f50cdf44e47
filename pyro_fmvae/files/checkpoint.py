"""Checkpoints: everything in one safetensors file, and a readable JSON beside it. Nothing is unpickled."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from pyro_fmvae.files.memory import check_fits
from pyro_fmvae.files.untrusted import HUGE, parse_json, read_json

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

LARGEST = 100_000_000
"""Bytes of JSON; safetensors takes no larger header."""
TENSORS = "state.safetensors"
READABLE = "state.json"


def save(folder: Path, state: Any, clock: dict[str, float] | None = None) -> None:
    """Write a checkpoint, atomically: whatever happens, the folder holds the old one or the new one.

    For one process at a time: see :func:`alone`.

    Args:
        folder: made if need be; the file names in it are fixed.
        state: nested dictionaries and lists of tensors and of what JSON can hold; keys may be integers.
            Tuples come back as lists.
        clock: times, which go into the JSON file alone, so that equal runs write equal tensors.

    Raises:
        TypeError: something in ``state`` that is neither a tensor nor fit for JSON.
    """
    encoded, digest = save_file(folder / TENSORS, state)
    readable = {"sha256": digest, "state": json.loads(encoded), "clock": clock or {}}
    write_atomically(folder / READABLE, lambda path: path.write_text(json.dumps(readable, indent=1)))


def save_file(path: Path, state: Any) -> tuple[str, str]:
    """Write a state to one safetensors file, atomically; make missing folders.

    Args:
        path: the file.
        state: as for :func:`save`.

    Returns:
        The JSON of the state, with names in the place of tensors, and the SHA-256 of everything.

    Raises:
        TypeError: something in ``state`` that is neither a tensor nor fit for JSON.
    """
    tensors: dict[str, Tensor] = {}
    encoded = json.dumps(_encode(state, "", tensors))
    digest = _digest(encoded, tensors)
    header = json.dumps({"sha256": digest, "state": encoded})
    content = safetensors.torch.save(tensors, metadata={"state": header})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
    return encoded, digest


def load(folder: Path) -> tuple[Any, dict[str, float]]:
    """Read what :func:`save` wrote: the state, its tensors on the CPU, and the clock.

    The clock is empty if it is lost, or that of another checkpoint: a process may end between the two files.

    The file is opened once: what is read is one checkpoint, also while another process writes the next.

    Raises:
        FileNotFoundError: there is no checkpoint in ``folder``.
        ValueError: the file is damaged (SHA-256 tells of single bits), is not one of ours, or is larger than
            the memory that it may take.
    """
    path = folder / TENSORS
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: no checkpoint ({TENSORS}) there")
    state, digest = load_file(path)
    return state, _clock(folder / READABLE, digest)


def load_file(path: Path) -> tuple[Any, str]:
    """Read what :func:`save_file` wrote: the state, its tensors on the CPU, and its SHA-256.

    Raises:
        ValueError: as for :func:`load`.
    """
    check_fits(2 * path.stat().st_size, str(path))  # the file, and the tensors
    try:
        content = path.read_bytes()
        tensors = safetensors.torch.load(content)
        header = parse_json(_metadata(content)["state"], LARGEST)
        digest = _digest(header["state"], tensors)
        if header["sha256"] != digest:
            raise ValueError("its sha256 is another")
        state = _decode(parse_json(header["state"], LARGEST), tensors)
    except (SafetensorError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}: not a checkpoint of pyro_fmvae, or damaged ({error})") from error
    return state, digest


def _clock(path: Path, digest: str) -> dict[str, float]:
    """The times in a JSON file beside a checkpoint; none if it is lost, damaged or of another checkpoint."""
    try:
        readable = read_json(path, 10 * LARGEST)
        clock = readable["clock"] if readable["sha256"] == digest else {}
        known = isinstance(clock, dict) and all(map(_is_time, clock.values()))
    except (OSError, AttributeError, ValueError, LookupError, TypeError):
        return {}
    return clock if known else {}


def _is_time(value: Any) -> bool:
    return value is None or (isinstance(value, bool | int | float) and abs(value) <= HUGE)


@contextmanager
def alone(path: Path, doing: str = "training") -> Iterator[None]:
    """Let one process at a time do something with a folder or a file, where the system has such locks.

    Args:
        path: the folder or file.
        doing: what each of them does with a run, in the message.

    Raises:
        ValueError: another process does.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{path}: another process is {doing} this run") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for processes that inherited the descriptor
        os.close(descriptor)


def _metadata(content: bytes) -> dict[str, str]:
    """Metadata in the header of a safetensors file (its length in eight bytes, then JSON)."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length])["__metadata__"]


def _digest(encoded: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of a text and of all tensors: their names, types, shapes and numbers, in the order of names."""
    digest = hashlib.sha256(encoded.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary file of this process beside ``path``, sync it, then move it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # elsewhere folders cannot be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Encode a value for JSON, with names in the place of tensors, which are added to ``tensors``."""
    if isinstance(value, Tensor):
        while name in tensors:  # the keys 1 and "1", or "a/b" and "b" in "a"
            name += "'"
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}
    if isinstance(value, dict):
        if strange := [key for key in value if not isinstance(key, str | int)]:
            raise TypeError(f"state: expected keys that are strings or integers, got {strange[0]!r}")
        return {"items": [[key, _encode(item, _join(name, key), tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [_encode(item, _join(name, index), tensors) for index, item in enumerate(value)]
    return value


def _join(name: str, key: Any) -> str:
    return f"{name}/{key}" if name else str(key)


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    return {key: _decode(item, tensors) for key, item in value["items"]}
