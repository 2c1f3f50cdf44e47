"""A training session at the terminal: progress bar, log, checkpoints, and signals that stop it."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from tqdm import auto, std

from pyro_fmvae.data import Dataset
from pyro_fmvae.learn.fitting import Record
from pyro_fmvae.nn import ConvDecoder
from pyro_fmvae.ranks import world
from pyro_fmvae.runs.event_log import event_log
from pyro_fmvae.runs.journal import Journal, main_measure
from pyro_fmvae.runs.keeper import Keeper
from pyro_fmvae.runs.outlook import Outlook, announce
from pyro_fmvae.runs.report import report
from pyro_fmvae.runs.stopping import exit_status, interruption
from pyro_fmvae.runs.trainer import Trainer
from pyro_fmvae.runs.unlearnt_labels import predict_unlearnt

CHECKPOINT_EVERY = 10.0  # seconds
CHECK_EVERY = 100  # steps between two comparisons of ranks, with --debug

IN_NOTEBOOK = auto.notebook_tqdm is not std.tqdm  # one that can show a progress bar

logger = logging.getLogger("pyro_fmvae")


def follow(trainer: Trainer, dataset: Dataset, resumed: bool) -> int:
    """Train to the end, or until a signal such as Ctrl-C stops it; returns the exit status."""
    folder, ranks = trainer.run.folder, world()
    log = _log_file(folder / "train.log") if ranks.leads else nullcontext()
    with log, interruption(together=not ranks.alone) as heard:
        verb = "resuming" if resumed else "starting"
        points, device = trainer.run.num_data, trainer.device
        where = f"{ranks.size} ranks, each on {device}" if ranks.size > 1 else str(device)
        logger.info("%s %s on %s, %d points, steps %s", verb, folder, where, points, trainer.stepping)
        if dataset.unseen is not None:
            logger.info("%d points have combinations of labels that are held out", len(dataset.unseen))
        if dataset.note:
            logger.info("%s", dataset.note)
        decoder = getattr(trainer.model, "decoder", None)
        if isinstance(decoder, ConvDecoder) and (change := decoder.canvas.describe()):
            logger.info("%s for the networks", change)
        if not resumed:
            announce(trainer)
        with _same_kernels():
            number = _loop(trainer, dataset, resumed, heard)
        if number:
            print(f"\nStopped. Continue with: pyro-fmvae train --resume {folder}", file=sys.stderr)
            return exit_status(number)
        progress = trainer.progress
        logger.info("trained %d steps in %.0f s", progress.total_steps, progress.total_seconds)
    if ranks.leads:  # alone
        report(trainer, dataset)
    return 0


def _loop(trainer: Trainer, dataset: Dataset, resumed: bool, heard: list[int]) -> int:
    """Consume the records; returns the number of the signal that was heard, 0 if there was none."""
    keeper, ranks = Keeper(trainer, dataset, Journal(trainer, dataset, resumed)), world()
    outlook, saved = Outlook(trainer.device), time.monotonic()
    with _Bar(trainer) as bar, event_log(trainer, resumed) as log:
        for record in trainer.records(resumed):
            values = keeper.follow(record)
            if values:
                log(values)
            outlook.update(record)
            # What is kept is written down before the last checkpoint.
            (stop,) = ranks.largest([heard[0] if heard else 0])
            due = record.step == 0 or stop or time.monotonic() - saved > CHECKPOINT_EVERY
            if due and keeper.ended is None:
                trainer.save()
                saved = time.monotonic()
                if stop:
                    return stop
            if ranks.checked and record.step % CHECK_EVERY == 0:
                trainer.check_ranks()
            bar.update(record, values)  # last: the terminal may be gone
    keeper.finish()
    if ranks.leads:  # it alone saves, and reports
        predict_unlearnt(trainer, dataset)
    trainer.save()
    return ranks.largest([heard[0] if heard else 0])[0]


@contextmanager
def _same_kernels() -> Iterator[None]:
    """Have cuDNN use kernels that add in a fixed order, so that equal runs on a GPU end with equal bits."""
    before, torch.backends.cudnn.deterministic = torch.backends.cudnn.deterministic, True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


class _Bar:
    """A progress bar over the phases, in a terminal or a notebook."""

    def __init__(self, trainer: Trainer) -> None:
        total = sum(not phase.budget.empty for phase in trainer.phases)
        done = sum(not phase.budget.empty for phase in trainer.phases[: trainer.progress.phase])
        layout = "{desc:<9}{percentage:3.0f}%|{bar}| {elapsed}{postfix}"
        hidden = None if world().leads else True
        self.bar = auto.tqdm(total=total, initial=done, disable=hidden, bar_format=layout)
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


class _LogFile(logging.FileHandler):
    """A log file that raises the errors of writing to it, such as a full disk."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, self.baseFilename) from None
        super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):  # of what could not be written, and was told of
            super().close()


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """Write the package's log to a file, and to standard error unless a progress bar is shown."""
    handlers: list[logging.Handler] = [_LogFile(path)]
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
