"""A training session at the terminal: progress bar, log, checkpoints, and Ctrl-C."""

import logging
import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from pyro_fmvae.data import Dataset
from pyro_fmvae.learn.fitting import Record
from pyro_fmvae.memory import most_used
from pyro_fmvae.nn import ConvDecoder
from pyro_fmvae.runs.journal import Journal, main_measure
from pyro_fmvae.runs.report import report
from pyro_fmvae.runs.trainer import Trainer

CHECKPOINT_EVERY, OUTLOOK_EVERY = 10.0, 60.0  # seconds

logger = logging.getLogger("pyro_fmvae")


def follow(trainer: Trainer, dataset: Dataset, resumed: bool) -> int:
    """Train to the end, or until Ctrl-C; returns the exit status."""
    folder = trainer.run.folder
    with _log_file(folder / "train.log"), _interruption() as interrupted:
        verb = "resuming" if resumed else "starting"
        points, device = trainer.run.num_data, trainer.device
        logger.info("%s %s on %s, %d points, steps %s", verb, folder, device, points, trainer.stepping)
        if dataset.note:
            logger.info("%s", dataset.note)
        decoder = getattr(trainer.model, "decoder", None)
        if isinstance(decoder, ConvDecoder) and (change := decoder.canvas.describe()):
            logger.info("%s for the networks", change)
        if _loop(trainer, dataset, resumed, interrupted):
            print(f"\nStopped. Continue with: pyro-fmvae train --resume {folder}", file=sys.stderr)
            return 130
        progress = trainer.progress
        logger.info("trained %d steps in %.0f s", progress.total_steps, progress.total_seconds)
    report(trainer, dataset)
    return 0


def _loop(trainer: Trainer, dataset: Dataset, resumed: bool, interrupted: list[bool]) -> bool:
    """Consume the records; returns whether it was interrupted."""
    journal, outlook = Journal(trainer, dataset, resumed), _Outlook(trainer.device)
    saved = time.monotonic()
    with _Bar(trainer) as bar:
        for record in trainer.records(resumed):
            values = journal.record(record)
            outlook.update(record)
            bar.update(record, values)
            if record.step == 0 or interrupted or time.monotonic() - saved > CHECKPOINT_EVERY:
                trainer.save()
                saved = time.monotonic()
            if interrupted:
                return True
    trainer.save()
    return False


class _Outlook:
    """Logs how long training will take, as soon as that can be told, and every minute what is left of it.

    Args:
        device: that memory is taken on.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.said = device, float("nan")

    def update(self, record: Record) -> None:
        """Look at a record, and say what is to be said."""
        if record.left is None or record.pace is None:
            return
        if math.isnan(self.said):
            self._estimate(record, record.left, record.pace)
        elif record.seconds - self.said >= OUTLOOK_EVERY:
            logger.info("%s step %d: about %s left", record.phase, record.step, duration(record.left))
        else:
            return
        self.said = record.seconds

    def _estimate(self, record: Record, left: float, pace: float) -> None:
        steps = record.total_steps + round(left / pace)
        cuda = self.device.type == "cuda"
        memory = torch.cuda.max_memory_allocated(self.device) if cuda else most_used()
        held = "" if memory is None else f"; {memory / 2**30:.1f} GiB of memory so far"
        length = duration(record.seconds + left)
        logger.info("about %s: %s steps of %s%s", length, f"{steps:,}", _short(pace), held)


def duration(seconds: float) -> str:
    """A length of time in words: seconds up to two minutes, then minutes, then hours.

    >>> duration(100), duration(200), duration(40_000)
    ('100 seconds', '3 minutes', '11.1 hours')
    """
    if seconds < 120:
        number = max(round(seconds), 1)
        return f"{number} second{'s' if number > 1 else ''}"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def _short(seconds: float) -> str:
    """Time of a step."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.2g} ms"


class _Bar:
    """A progress bar over the phases, where standard error is a terminal."""

    def __init__(self, trainer: Trainer) -> None:
        total = sum(not phase.budget.empty for phase in trainer.phases)
        done = sum(not phase.budget.empty for phase in trainer.phases[: trainer.progress.phase])
        layout = "{desc:<9}{percentage:3.0f}%|{bar}| {elapsed}{postfix}"
        self.bar = tqdm(total=total, initial=done, disable=None, bar_format=layout)
        self.done, self.measured = float(done), ""
        self.measure = main_measure(trainer)

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.close()

    def update(self, record: Record, values: dict[str, Any] | None) -> None:
        """Move on to where the record stands."""
        if record.step == 0:
            self.bar.set_description_str(record.phase)
        self.bar.update(self.done + record.fraction - self.bar.n)
        if record.fraction >= 1:
            self.done += 1
        if values:
            name = "ELBO" if self.measure == "elbo" else self.measure
            self.measured = f"validation {name} {values[self.measure]:.2f} nats"
        left = "" if record.left is None else f"{tqdm.format_interval(record.left)} left"
        self.bar.set_postfix_str(", ".join(filter(None, (left, self.measured))), refresh=False)


@contextmanager
def _interruption() -> Iterator[list[bool]]:
    """A list that Ctrl-C fills, so that training stops between two steps; a second one stops it at once."""
    flag: list[bool] = []

    def handler(*_: Any) -> None:
        if flag:
            raise KeyboardInterrupt
        flag.append(True)

    previous = signal.signal(signal.SIGINT, handler)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """Write the package's log to a file, and to standard error unless a terminal shows a progress bar."""
    handlers: list[logging.Handler] = [logging.FileHandler(path)]
    if not sys.stderr.isatty():
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
