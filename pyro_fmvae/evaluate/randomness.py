"""Draws that depend on a seed only, and do not disturb the caller's generators."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Stream:
    """A stream of random numbers that resumes where it was left.

    Args:
        seed: seed of the stream.
    """

    def __init__(self, seed: int) -> None:
        self.seed = int(seed)  # PyTorch takes none of NumPy
        self._states: tuple[Tensor, list[Tensor]] | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Let torch's generators (of GPUs in use, too) draw from this stream; restore them at the end."""
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
        with torch.random.fork_rng(devices=devices):
            if self._states is None:
                torch.default_generator.manual_seed(self.seed)
                if devices:
                    torch.cuda.manual_seed_all(self.seed)
            else:
                torch.set_rng_state(self._states[0])
                for device, state in zip(devices, self._states[1], strict=False):
                    torch.cuda.set_rng_state(state, device)
            yield
            self._states = torch.get_rng_state(), [torch.cuda.get_rng_state(device) for device in devices]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Start torch's generators (of GPUs in use, too) from a seed; restore them at the end."""
    with Stream(seed).open():
        yield


def resolve_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is a GPU where there is one.

    Raises:
        ValueError: there is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ValueError(f"device: '{name}' cannot be used here ({str(error).splitlines()[0]})") from None
    return device
