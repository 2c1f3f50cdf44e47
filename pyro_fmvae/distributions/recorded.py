"""A flag that is set while tensor operations are recorded: no code may ask for values of tensors then."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_recorded = ContextVar("recorded", default=False)


def is_recorded() -> bool:
    """True inside of :func:`recorded`."""
    return _recorded.get()


@contextmanager
def recorded() -> Iterator[None]:
    """Say that operations are being recorded."""
    token = _recorded.set(True)
    try:
        yield
    finally:
        _recorded.reset(token)
