"""Size of networks before they are built."""

from collections.abc import Callable, Iterable
from typing import Final

import torch
from torch import nn

from pyro_fmvae.memory import describe, limit

COPIES: Final = 4
"""Numbers that training holds for each parameter: itself, its gradient, and two moments of Adam."""


def network_bytes(build: Callable[[], Iterable[nn.Module]]) -> int:
    """Bytes of the parameters and buffers of networks, found without any memory for them.

    Args:
        build: makes the networks, on the default device.
    """
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        state = [tensor for network in build() for tensor in network.state_dict().values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in state)


def check_size(build: Callable[[], Iterable[nn.Module]]) -> None:
    """Check that networks can be trained in the memory that there is.

    Args:
        build: as for :func:`network_bytes`.

    Raises:
        ValueError: their parameters alone need more than :func:`~pyro_fmvae.memory.limit`.
    """
    size = network_bytes(build)
    if COPIES * size > limit():
        raise ValueError(
            f"hidden, width: the networks would take {describe(size)}, and {describe(COPIES * size)} with "
            f"gradients and Adam's moments, of at most {describe(limit())}; choose smaller ones, or another "
            "limit by --max-memory"
        )
