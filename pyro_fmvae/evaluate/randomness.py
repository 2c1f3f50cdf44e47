"""Draws that depend on a seed alone, and leave the generators of the caller as they were."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Stream:
    """Random numbers that start from a seed, and go on each time where they were left.

    Args:
        seed: of the first ones.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._states: tuple[Tensor, list[Tensor]] | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Inside, torch's generators (of GPUs too, if any is in use) are this stream; outside they go on."""
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
    """Inside, torch's generators (of GPUs too, if any is in use) start from a seed; outside they go on."""
    with Stream(seed).open():
        yield
