"""A training session at the terminal: progress bar, log, records, checkpoints, and the report at the end."""

import json
import logging
import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from pyro_fmvae import checkpoint
from pyro_fmvae.building import SparseCoder
from pyro_fmvae.codes import unit_measures
from pyro_fmvae.data import Batches, Dataset, Split
from pyro_fmvae.evaluate import bound, label_agreement, rows_without_bound
from pyro_fmvae.learn.fitting import Record
from pyro_fmvae.models import FactorialMixtureVAE
from pyro_fmvae.nn import ConvDecoder
from pyro_fmvae.runs.gallery import draw
from pyro_fmvae.runs.run import FIGURES, METRICS
from pyro_fmvae.runs.training import Training

MONITORED_POINTS = 500
CHECKPOINT_EVERY = 10.0  # seconds
BEYOND = "so far from the training data that there is no finite bound"

logger = logging.getLogger("pyro_fmvae")


def follow(training: Training, dataset: Dataset, resumed: bool) -> int:
    """Train to the end, or until Ctrl-C; returns the exit status."""
    folder = training.run.folder
    with _log_file(folder / "train.log"), _interruption() as interrupted:
        verb = "resuming" if resumed else "starting"
        points, device = training.run.num_data, training.device
        logger.info("%s %s on %s, %d points, steps %s", verb, folder, device, points, training.stepping)
        decoder = getattr(training.model, "decoder", None)
        if isinstance(decoder, ConvDecoder) and (change := decoder.canvas.describe()):
            logger.info("%s for the networks", change)
        if _loop(training, dataset, resumed, interrupted):
            print(f"\nStopped. Continue with: pyro-fmvae train --resume {folder}", file=sys.stderr)
            return 130
        progress = training.progress
        logger.info("trained %d steps in %.0f s", progress.total_steps, progress.total_seconds)
    report(training, dataset)
    return 0


def _loop(training: Training, dataset: Dataset, resumed: bool, interrupted: list[bool]) -> bool:
    """Consume the records; returns whether it was interrupted."""
    metrics = _Metrics(training, dataset, resumed)
    saved = time.monotonic()
    with _Bar(training) as bar:
        for record in training.records(resumed):
            values = metrics.record(record)
            bar.update(record, values)
            if record.step == 0 or interrupted or time.monotonic() - saved > CHECKPOINT_EVERY:
                training.save()
                saved = time.monotonic()
            if interrupted:
                return True
    training.save()
    return False


def _measure(training: Training) -> str:
    """What tells of progress: the bound, where there is one."""
    return "elbo" if training.model.bounded else "reconstruction"


class _Metrics:
    """Appends a record of validation measures to ``metrics.jsonl`` every so many steps."""

    def __init__(self, training: Training, dataset: Dataset, resumed: bool) -> None:
        self.training, self.path = training, training.run.folder / METRICS
        rows = torch.arange(min(MONITORED_POINTS, len(dataset.valid)))
        self.validation = replace(dataset.valid.select(rows), labels=None)
        self.measure, self.left_out = _measure(training), 0
        if resumed:
            self._drop_later_records()

    def _drop_later_records(self) -> None:
        """Forget what was recorded after the checkpoint: it is going to be recorded again.

        Lines that are no records are dropped, too.
        """
        progress, phases = self.training.progress, self.training.phases
        begun = [phase.name for phase in phases[: progress.phase + 1]]  # the next one starts at the same step

        def known(line: str) -> bool:
            try:
                record = json.loads(line)
                return record["step"] <= progress.total_steps and record["phase"] in begun
            except (ValueError, KeyError, TypeError):
                return False

        text = self.path.read_text(errors="replace") if self.path.exists() else ""
        lines = text.splitlines(keepends=True)
        kept = "".join(line for line in lines if line.endswith("\n") and known(line))
        checkpoint.write_atomically(self.path, lambda path: path.write_text(kept))

    def record(self, record: Record) -> dict[str, Any] | None:
        """Measure, append and return, if it is time to; None otherwise."""
        model, phase = self.training.model, self.training.phases[self.training.progress.phase]
        if record.step % phase.record_every and record.fraction < 1:
            return None
        with _evaluating(model, phase.program):
            measures, rows = _bound(phase.program, self.validation, self.training.device)
        left_out = len(self.validation) - len(rows)
        if left_out != self.left_out:
            logger.warning("validation points that are left out: %d, %s", left_out, BEYOND)
            self.left_out = left_out
        used: list[int] = []
        if isinstance(model, FactorialMixtureVAE):
            used = model.used_components() if phase.program is model else [0] * len(model.num_components)
        names = ("elbo", "reconstruction", "kl_z", "kl_r", "kl_global")
        values = {
            "step": record.total_steps,
            "phase": record.phase,
            **{name: measures[name] for name in names},
            "used_components": used,
            "seconds": round(record.seconds, 3),
            **phase.measures(),
        }
        with self.path.open("a") as file:
            file.write(json.dumps(values) + "\n")
        where = f"{record.phase} step {record.step}"
        components = f", used components {used}" if used else ""
        logger.info("%s: %s %.2f%s", where, self.measure, values[self.measure], components)
        return values


def _in_order(rows: Split, device: torch.device) -> Batches:
    return Batches(rows, MONITORED_POINTS, shuffle=False, device=device)


def _bound(model: Any, rows: Split, device: torch.device) -> tuple[dict[str, float], Split]:
    """The bound of some rows, and those of them that it is the mean of: all that have a finite one."""
    try:
        return bound(model, _in_order(rows, device)), rows
    except ValueError:
        far = rows_without_bound(model, _in_order(rows, device))
        if not 0 < len(far) < len(rows):
            raise
    near = torch.ones(len(rows), dtype=torch.bool)
    near[far] = False
    return _bound(model, rows.select(near.nonzero().squeeze(-1)), device)


@contextmanager
def _evaluating(*modules: torch.nn.Module) -> Iterator[None]:
    """Modules in the mode for evaluation, then in that of before.

    The program of a phase may be another module than the model whose networks it shares: its mode is its own.
    """
    before = [module.training for module in modules]
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for module, mode in zip(modules, before, strict=True):
            module.train(mode)


class _Bar:
    """A progress bar over the phases, where standard error is a terminal."""

    def __init__(self, training: Training) -> None:
        total = sum(not phase.budget.empty for phase in training.phases)
        done = sum(not phase.budget.empty for phase in training.phases[: training.progress.phase])
        layout = "{desc:<9}{percentage:3.0f}%|{bar}| {elapsed}{postfix}"
        self.bar = tqdm(total=total, initial=done, disable=None, bar_format=layout)
        self.done = float(done)
        self.measure = _measure(training)

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
            self.bar.set_postfix_str(f"validation {name} {values[self.measure]:.2f} nats")


def report(training: Training, dataset: Dataset) -> None:
    """Print what was learnt, on test data (validation data if there are none), and draw the figures."""
    run, model = training.run, training.model.eval()
    tested = "valid" if dataset.test is None else "test"
    names = [tested] if dataset.unseen is None else [tested, "unseen"]
    agreements, measured = {}, {}
    print()
    for name in names:
        everything = dataset.split(name)
        measures, rows = _bound(model, everything, training.device)
        measured[name] = rows
        batches = _in_order(rows, training.device)
        text = f"reconstruction {measures['reconstruction']:.2f}"
        if model.bounded:
            assigned = f" - KL[r] {measures['kl_r']:.2f}" if run.factorial else ""
            text = f"ELBO {measures['elbo']:.2f} = {text} - KL[z] {measures['kl_z']:.2f}{assigned}"
        beyond = f" ({len(everything) - len(rows)} left out: {BEYOND})" if len(rows) < len(everything) else ""
        print(f"{len(rows):,} {name} points{beyond}, nats per point: {text}")
        if rows.labels is not None and isinstance(model, FactorialMixtureVAE):
            labels = dataset.label_names
            agreements[name] = label_agreement(model, batches, labels, run.factors_of(labels))
    if isinstance(model, SparseCoder):
        _print_units(unit_measures(model, run.config.data))
    if isinstance(model, FactorialMixtureVAE):
        used = zip(model.used_components(), model.num_components, strict=True)
        print(f"components in use: {', '.join(f'{number} of {size}' for number, size in used)}")
    if agreements:
        _print_agreement(agreements, run.config.labels or 0.0)
    draw(run, model, measured[tested], tested)
    print(f"figures in {run.folder / FIGURES}, everything else in {run.folder}")


def _print_units(found: dict[str, Any]) -> None:
    """How many units there are, what noise was found, and how many known units."""
    recovered = f", recovered units: {found['recovered']}" if "recovered" in found else ""
    print(f"units: {found['units']}, standard deviation of the noise: {found['noise']:.4g}{recovered}")


def _print_agreement(agreements: dict[str, dict[str, Any]], share: float) -> None:
    """Tables of the agreement with labels, by split; `unseen` are combinations that training lacked."""
    first, *others = agreements.values()
    tested, *_ = agreements
    width = max([12, *(len(label) + 1 for label in (*first["accuracy"], *first["clustering"]))])
    if first["accuracy"]:
        labelled = f"{share:.0%} of the training points were labelled"
        beside = ", then on unseen combinations" if others else ""
        print(f"\n{'property':<{width + 2}}accuracy on unlabelled {tested} points{beside} ({labelled})")
        for label in first["accuracy"]:
            columns = (
                f"{agreement['accuracy'].get(label, math.nan):.4f}" for agreement in agreements.values()
            )
            print(f"  {label:<{width}}{'  '.join(columns)}")
    if first["clustering"]:
        print(f"\n{'label':<{width + 2}}best factor   matching accuracy   NMI")
        for label, values in first["clustering"].items():
            print(f"  {label:<{width}}{values['factor']:>7}{values['accuracy']:>20.4f}{values['nmi']:>12.4f}")
    print()


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
