"""A training session at the terminal: progress bar, log, checkpoints, and Ctrl-C."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import auto, std

from pyro_fmvae.data import Dataset
from pyro_fmvae.learn.fitting import Record
from pyro_fmvae.nn import ConvDecoder
from pyro_fmvae.runs.journal import Journal, main_measure
from pyro_fmvae.runs.keeper import Keeper
from pyro_fmvae.runs.outlook import Outlook, announce
from pyro_fmvae.runs.report import report
from pyro_fmvae.runs.trainer import Trainer

CHECKPOINT_EVERY = 10.0  # seconds

IN_NOTEBOOK = auto.notebook_tqdm is not std.tqdm  # one that can show a progress bar

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
        if not resumed:
            announce(trainer)
        if _loop(trainer, dataset, resumed, interrupted):
            print(f"\nStopped. Continue with: pyro-fmvae train --resume {folder}", file=sys.stderr)
            return 130
        progress = trainer.progress
        logger.info("trained %d steps in %.0f s", progress.total_steps, progress.total_seconds)
    report(trainer, dataset)
    return 0


def _loop(trainer: Trainer, dataset: Dataset, resumed: bool, interrupted: list[bool]) -> bool:
    """Consume the records; returns whether it was interrupted."""
    keeper = Keeper(trainer, dataset, Journal(trainer, dataset, resumed))
    outlook, saved = Outlook(trainer.device), time.monotonic()
    with _Bar(trainer) as bar:
        for record in trainer.records(resumed):
            values = keeper.follow(record)
            outlook.update(record)
            bar.update(record, values)
            if keeper.ended is not None:
                continue  # to the end; what is kept is written down before the last checkpoint
            if record.step == 0 or interrupted or time.monotonic() - saved > CHECKPOINT_EVERY:
                trainer.save()
                saved = time.monotonic()
            if interrupted:
                return True
    keeper.finish()
    trainer.save()
    return bool(interrupted)


class _Bar:
    """A progress bar over the phases, in a terminal or a notebook."""

    def __init__(self, trainer: Trainer) -> None:
        total = sum(not phase.budget.empty for phase in trainer.phases)
        done = sum(not phase.budget.empty for phase in trainer.phases[: trainer.progress.phase])
        layout = "{desc:<9}{percentage:3.0f}%|{bar}| {elapsed}{postfix}"
        self.bar = auto.tqdm(total=total, initial=done, disable=None, bar_format=layout)
        self.done, self.measured = float(done), ""
        self.trainer, self.measure = trainer, main_measure(trainer)

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.close()

    def update(self, record: Record, values: dict[str, Any] | None) -> None:
        """Move on to where the record stands."""
        if record.step == 0:
            self.bar.set_description_str(record.phase)
        self.bar.update(self.done + record.fraction - self.bar.n)
        if record.fraction >= 1 or self.trainer.progress.stopped:
            self.done += 1
        if values:
            name = "ELBO" if self.measure == "elbo" else self.measure
            self.measured = f"validation {name} {values[self.measure]:.2f} nats"
        left = "" if record.left is None else f"{auto.tqdm.format_interval(record.left)} left"
        self.bar.set_postfix_str(", ".join(filter(None, (left, self.measured))), refresh=bool(values))


@contextmanager
def _interruption() -> Iterator[list[bool]]:
    """A list that Ctrl-C fills, so that training stops between two steps; a second one stops it at once.

    Only the main thread hears it; in another one the list stays empty.
    """
    flag: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

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
    """Write the package's log to a file, and to standard error unless a progress bar is shown."""
    handlers: list[logging.Handler] = [logging.FileHandler(path)]
    if not (sys.stderr.isatty() or IN_NOTEBOOK):
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
