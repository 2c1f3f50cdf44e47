"""The training loop: phases in, records out. Progress bars, logs and checkpoints hang on it from outside."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyro_fmvae.learn.phase import Phase, arguments, endless


@dataclass
class Progress:
    """Position in a training: enough, with the model's and the phase's own state, to continue it.

    Attributes:
        phase: index of the current phase; the number of phases when all is done.
        step: steps taken in it.
        total_steps: steps taken in all phases.
        seconds: spent in the current phase.
        total_seconds: spent in all phases.
        stopped: True if the current phase is to end here, whatever is left of its budget. The consumer of the
            records sets it.
    """

    phase: int = 0
    step: int = 0
    total_steps: int = 0
    seconds: float = 0.0
    total_seconds: float = 0.0
    stopped: bool = False


@dataclass(frozen=True)
class Record:
    """One step of training (or, with ``step`` 0, the start of a phase, before its first step).

    Attributes:
        phase: its name.
        step: steps taken in it.
        total_steps: steps taken in all phases.
        fraction: share of the phase's budget that is used up, in [0, 1].
        loss: of the step's batch before the step, in nats for all N points; None at the start of a phase.
        seconds: spent in training so far.
    """

    phase: str
    step: int
    total_steps: int
    fraction: float
    loss: float | None
    seconds: float


def fit(
    phases: Sequence[Phase], batches: Iterable[Any], progress: Progress | None = None, resumed: bool = False
) -> Iterator[Record]:
    """Run phases one after another, and yield a record at the start of each and after every step.

    The consumer of the records may save, log, draw, or simply stop: between two records everything is
    consistent. To continue in the same process, call it again with the same progress and ``resumed=True``.

    Args:
        phases: in order; phases with an empty budget are left out.
        batches: a loader, iterated over again and again. A batch is a tensor ``x`` or a tuple of arguments
            for the model and the guide, such as ``(x, labels)``.
        progress: where to start, and kept up to date; a fresh one if None.
        resumed: the current phase was entered and its state loaded already, so that it must not be started
            anew.

    Yields:
        A :class:`Record` for every step.

    Raises:
        ValueError: ``batches`` is empty.
    """
    progress = progress or Progress()
    source = endless(batches)
    while progress.phase < len(phases):
        phase = phases[progress.phase]
        if not phase.budget.empty:
            started = time.monotonic() - progress.seconds
            before = progress.total_seconds - progress.seconds
            if not resumed:
                phase.enter()
                phase.prepare(batches)
                yield _record(phase, progress, None)
            while not progress.stopped and (
                (fraction := phase.budget.fraction(progress.step, progress.seconds)) < 1
            ):
                phase.between_steps(batches, progress.step)
                phase.before_step(fraction)
                batch = next(source)
                loss = phase.step(*arguments(batch))
                progress.step += 1
                progress.total_steps += 1
                progress.seconds = time.monotonic() - started
                progress.total_seconds = before + progress.seconds
                yield _record(phase, progress, loss)
        resumed = progress.stopped = False
        progress.phase, progress.step, progress.seconds = progress.phase + 1, 0, 0.0


def _record(phase: Phase, progress: Progress, loss: float | None) -> Record:
    fraction = min(phase.budget.fraction(progress.step, progress.seconds), 1.0)
    return Record(phase.name, progress.step, progress.total_steps, fraction, loss, progress.total_seconds)
