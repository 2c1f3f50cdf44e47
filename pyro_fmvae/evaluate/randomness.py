"""Draws that depend on a seed alone, and leave the generators of the caller as they were."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's generators start from a seed; afterwards they are what they were."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
