"""The ranks of a training as a whole, and the clock that they go by."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyro_fmvae.ranks.group import Ranks

_worlds = [Ranks()]


def world() -> Ranks:
    """The ranks that train together: those of :func:`together`, outside of it this process alone."""
    return _worlds[-1]


@contextmanager
def together(ranks: Ranks) -> Iterator[Ranks]:
    """Inside, loops, clocks, stopping and files are those of several ranks."""
    _worlds.append(ranks)
    try:
        yield ranks
    finally:
        _worlds.pop()


def now() -> float:
    """Seconds of a clock that all ranks share, rank 0's; each has to ask for it as often as the others."""
    return world().numbers_of_first([time.monotonic()])[0]
