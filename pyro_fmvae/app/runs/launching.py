"""Ranks that torchrun starts: how they find each other, and who says what has ended them."""

import json
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist

from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.infer.ranks import AnotherRankError, LostRankError, Ranks, together, world

# Signals that ask a process to stop: Ctrl-C, and those of schedulers and of terminals that are closed.

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


T = TypeVar("T")

TIMEOUT: Final = 600.0
"""Seconds that ranks wait for one that does not answer, unless another number is given."""
ROLL_CALL: Final = 3.0
"""Seconds in which the ranks that are left answer, when one was lost."""
LAUNCH: Final = ".launch"
"""File in a run's folder that says which launch of torchrun began it."""


logger = logging.getLogger("pyro_fmvae")


class SpokenElsewhereError(Exception):
    """An error that another rank prints; the cause is that of this rank."""


@contextmanager
def quiet_unless_first() -> Iterator[None]:
    """Let rank 0 of torchrun alone print and log; the others do the same work in silence."""
    if not dist.is_torchelastic_launched() or int(os.environ["RANK"]) == 0:
        yield
        return
    before, logger.disabled = logger.disabled, True
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
    finally:
        logger.disabled = before


@contextmanager
def launched(timeout: float = TIMEOUT, checked: bool = False) -> Iterator[Ranks]:
    """The ranks of torchrun that run this command; started otherwise, the process is alone.

    Inside, ``ranks.world`` gives them. An error that ends the command leaves with the rank that is to name
    (``error.rank``), on one rank only. The others raise SpokenElsewhereError.

    Args:
        timeout: seconds that ranks wait for one that does not answer.
        checked: check now and then that all ranks have the same numbers (``ranks.checked``).

    Raises:
        ValueError: no positive timeout, or torchrun's ranks do not find each other.
    """
    if not timeout > 0:
        raise ValueError(f"rank_timeout: expected seconds > 0, got {timeout}")
    if not dist.is_torchelastic_launched():
        yield Ranks()
        return
    launch = _Launch(timeout)
    launch.ranks.checked = checked
    try:
        with together(launch.ranks), quiet_unless_first():
            yield launch.ranks
    except (Exception, KeyboardInterrupt) as error:
        launch.explain(error)
    finally:
        with suppress(Exception):  # of a connection that is lost
            dist.destroy_process_group()


def launch_name() -> str:
    """Name that the restarts of one launch of torchrun have in common; empty without torchrun."""
    if not dist.is_torchelastic_launched():
        return ""
    name = os.environ["TORCHELASTIC_RUN_ID"]
    return name if name not in ("", "none") else f"process {os.getppid()}"


def is_restart_of(folder: Path) -> bool:
    """True if torchrun has started this process again, and the run in the folder was begun by it before."""
    if not launch_name() or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) == 0:
        return False
    with suppress(OSError):
        return (folder / LAUNCH).read_text() == launch_name()
    return False


def note_launch(folder: Path) -> None:
    """Write down, in the folder of a run, which launch of torchrun works on it."""
    if name := launch_name():
        (folder / LAUNCH).write_text(name)


def first_before_others(function: Callable[[], T]) -> T:
    """Call a function on rank 0, then on the others, which find what the first one left in a cache.

    Raises:
        Exception: what the function raises on any rank; AnotherRankError on the others.
    """
    ranks = world()
    with ranks.agreeing():
        found = function() if ranks.leads else None
    with ranks.agreeing():
        return found if ranks.leads else function()  # type: ignore[return-value]


@contextmanager
def first_alone() -> Iterator[bool]:
    """Rank 0 goes on inside as if it were alone; whether this process is the one."""
    leads = world().leads
    with together(Ranks()):
        yield leads


def check_equal(run: Run) -> None:
    """Check that all ranks have chosen the same options by their data.

    Raises:
        ValueError: they have not.
    """
    options = json.dumps(run.config.to_dict(), default=str)
    for rank, other in enumerate(theirs := world().texts(f"{options} {run.fingerprint}")):
        if other != theirs[0]:
            raise ValueError(f"data: rank {rank} has other data than rank 0, or chose other options")


class _Launch:
    """The ranks of a launch, and the store through which they talk when a connection is lost."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        limit = timedelta(seconds=timeout)
        try:
            store, rank, size = next(dist.rendezvous("env://", timeout=limit))
            # torchrun gives the restarted workers the store of those before, with their addresses in it.
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            self.store = dist.PrefixStore(f"attempt {attempt}", store)
            backend = "gloo"
            if torch.cuda.is_available() and dist.is_nccl_available():
                local = int(os.environ["LOCAL_RANK"])
                if local >= (found := torch.cuda.device_count()):
                    raise ValueError(f"device: expected a GPU for each rank here, but there are {found}")
                torch.cuda.set_device(local)
                backend = "cpu:gloo,cuda:nccl"
            dist.init_process_group(backend, store=self.store, rank=rank, world_size=size, timeout=limit)
        except (RuntimeError, OSError) as error:  # DistError is a RuntimeError
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"ranks: not all were found within {timeout:g} s ({reason})") from error
        self.ranks = Ranks(dist.group.WORLD)
        self.store.set(f"who/{rank}", f"{socket.gethostname()}, process {os.getpid()}")

    def explain(self, error: BaseException) -> None:
        """Raise the error on the rank that is to print it, with what is known of it; elsewhere, say so.

        Raises:
            Exception, KeyboardInterrupt: always.
        """
        for number in SIGNALS:  # torchrun ends the others as soon as one is lost
            signal.signal(number, signal.SIG_IGN)
        if isinstance(error, AnotherRankError):
            raise SpokenElsewhereError from error
        first = getattr(error, "first_rank", None)
        if first is not None:
            self._end(error, first == self.ranks.rank)
        lost = isinstance(error, LostRankError) or "gloo" in str(error) or isinstance(error, dist.DistError)
        if not lost and not isinstance(error, KeyboardInterrupt):
            self._say("ended")
            self._end(error, self._is_first_to_speak())
        absent, ended = self._roll_call()
        if not absent:
            stopped = isinstance(error, KeyboardInterrupt)
            speaks = self.ranks.leads if stopped else self._is_first_to_speak()
            self._end(error, speaks and not ended)
        timed_out = "timed out" in str(error).lower()
        did = f"has not answered for {self.timeout:g} s" if timed_out else "was killed or has crashed"
        names = " and ".join(f"rank {rank} ({self._who(rank)})" for rank in absent)
        found = LostRankError(f"{names} {did}")
        found.__cause__, found.__notes__ = error, getattr(error, "__notes__", [])
        self._end(found, self._is_first_to_speak())

    def _end(self, error: Any, speak: bool) -> None:
        if not speak:
            raise SpokenElsewhereError from error
        error.rank = self.ranks.rank
        raise error

    def _roll_call(self) -> tuple[list[int], bool]:
        """The ranks that neither answer nor have said that they end; and whether one has said so."""
        self._say("present")
        until = time.monotonic() + ROLL_CALL
        with suppress(RuntimeError):  # the store is gone, too
            while True:
                ended = [rank for rank in range(self.ranks.size) if self.store.check([f"ended/{rank}"])]
                absent = [
                    rank
                    for rank in range(self.ranks.size)
                    if rank not in ended and not self.store.check([f"present/{rank}"])
                ]
                if not absent or time.monotonic() > until:
                    return absent, bool(ended)
                time.sleep(0.05)
        return [], False

    def _say(self, what: str) -> None:
        with suppress(RuntimeError):
            self.store.set(f"{what}/{self.ranks.rank}", "")

    def _is_first_to_speak(self) -> bool:
        with suppress(RuntimeError):
            return bool(self.store.add("spoken", 1) == 1)
        return True

    def _who(self, rank: int) -> str:
        with suppress(RuntimeError):
            return str(self.store.get(f"who/{rank}").decode())
        return "unknown"
