"""Signals that ask a process to stop: Ctrl-C, and those of schedulers and of terminals that are closed."""

import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
PATIENCE: Final = 1.0
"""Seconds after which a training that has not stopped yet says what it waits for."""
WAITING: Final = (
    "\nStopping: the step under way is finished first, and a checkpoint written. While steps are compiled "
    "that may take a minute. Ctrl-C again stops at once; then training goes on from the checkpoint before."
)


class Stopped(KeyboardInterrupt):
    """A signal asked the process to stop at once."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_status(number: int) -> int:
    """Exit status of a process that a signal stopped: 130 for Ctrl-C."""
    return 128 + number


def stop_as_by_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP raise `Stopped`, so that files that are half-written and locks are removed.

    Signals that are ignored, as under ``nohup``, stay so. ``pyro-fmvae`` calls this function first.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _raise)


@contextmanager
def interruption(together: bool = False) -> Iterator[list[int]]:
    """A list that the first of `SIGNALS` is put into, so that training stops between two steps.

    A second one raises `Stopped`. Only the main thread hears signals; in another one the list stays empty.

    Args:
        together: with several ranks, a second signal that comes at once is the same: torchrun passes on what
            the terminal has sent to all processes.
    """
    heard: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return
    waiting = threading.Timer(PATIENCE, lambda: print(WAITING, file=sys.stderr))
    waiting.daemon = True

    first = -math.inf

    def handler(number: int, _: Any) -> None:
        nonlocal first
        if heard:
            if together and time.monotonic() - first < PATIENCE:
                return
            raise Stopped(number)
        first = time.monotonic()
        heard.append(number)
        waiting.start()

    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        for number, previous in before.items():
            if previous is not signal.SIG_IGN:
                signal.signal(number, handler)
        yield heard
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
        waiting.cancel()


def _raise(number: int, _: Any) -> None:
    raise Stopped(number)
