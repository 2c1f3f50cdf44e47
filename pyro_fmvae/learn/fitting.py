"""The training loop: phases in, records out. Progress bars, logs and checkpoints hang on it from outside."""

import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pyro_fmvae.capture.playback import compiles
from pyro_fmvae.infer.elbo import NotFiniteError
from pyro_fmvae.infer.ranks import world
from pyro_fmvae.learn.phase import Phase, arguments, endless

# The pace of a training: how long its steps take, and which way of taking them pays.

TRIED = 100  # eager steps that have to fit into the time that is left for capturing them to pay
MEASURED = 8  # steps after the first one, which tell the pace
WINDOW = 50  # steps that the pace goes by
COST, SAVED = 60.0, 0.0025  # what compiling takes, and saves of each step, as multiples of the set-up
MOST = 0.5  # share of a step that compiling may be hoped to save

logger = logging.getLogger("pyro_fmvae")


LONG: Final = 10_000
"""Steps from which on compiling them pays, on whatever CPU."""


def compile_problem(device: torch.device) -> str:
    """A line that says why ``torch.compile`` does not work on some rank; empty if it works on all."""
    return next(filter(None, world().texts(compiles(device))), "")


class Pace:
    """Times of a phase's steps. The first step captures, so it counts as set-up."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._later: deque[float] = deque(maxlen=WINDOW)

    def add(self, seconds: float) -> None:
        """Take down the time of a step."""
        if self._first is None:
            self._first = seconds
        else:
            self._later.append(seconds)

    @property
    def steps(self) -> int:
        """Steps that the pace goes by, at most ``WINDOW``."""
        return len(self._later)

    @property
    def known(self) -> bool:
        """True once there are enough steps to tell the pace."""
        return self.steps >= MEASURED

    @property
    def seconds(self) -> float:
        """Median time of the latest steps."""
        return statistics.median(self._later)

    @property
    def setup(self) -> float:
        """Time that the first step took beyond that of a later one."""
        assert self._first is not None
        return max(self._first - self.seconds, 0.0)


class Stepping:
    """Chooses how the steps of a phase by the clock are taken: as it pays in the time that is left.

    The first two steps are eager. From then on steps are captured if at least ``TRIED`` eager ones would fit
    into the time that is left: capturing takes as long as eight slow ones, or as a hundred fast ones.
    Once the pace of captured steps is known, compiling them is considered.

    A recorded step grows with its number of operations, and so do the time that it takes to record it, the
    time to compile it, and the time that passes between its operations until they are fused. All of them grow
    with the load of the machine. So the set-up of a phase, which is measured, tells the others: ``COST`` and
    ``SAVED`` times as much, which is cautious. What compiling took and saved in a phase is used for the next.

    Args:
        compiles: tells whether steps can be compiled; asked once, and only if it would pay.
    """

    def __init__(self, compiles: Callable[[], bool]) -> None:
        self.cost, self.saved = COST, SAVED
        self._compiles = cache(compiles)
        self._before = Pace()  # of the phase that was compiled last, until then

    def begin(self, phase: Phase, by_clock: bool) -> None:
        """Start with a phase.

        Args:
            phase: it has been entered.
            by_clock: whether it goes by the clock from its start; False: it may do so later.
        """
        self._phase = phase
        self._decide = self._capture if by_clock and phase.take_steps(eager=True) else self._compile

    def consider(self, pace: Pace, left: float) -> Pace:
        """Decide as soon as enough is known.

        Args:
            pace: of the phase; called after each of its steps.
            left: seconds left of the phase.

        Returns:
            The pace to go on with: a fresh one if steps are taken in another way from now on.
        """
        return self._decide(pace, left)

    def _capture(self, pace: Pace, left: float) -> Pace:
        if not pace.steps:
            return pace
        if left < TRIED * pace.seconds:
            logger.info("%s: steps stay eager in the %.1f s that are left", self._phase.name, max(left, 0.0))
            self._decide = self._settled
            return pace
        self._phase.take_steps()
        self._decide = self._compile
        return Pace()

    def _compile(self, pace: Pace, left: float) -> Pace:
        if not pace.known:
            return pace
        cost = self.cost * pace.setup
        saved = min(self.saved * pace.setup / pace.seconds, MOST) * left
        pays = cost < saved and self._compiles() and self._phase.take_steps(compile=True)
        how = "compiling" if pays else "not compiled"
        logger.info("%s: %s, about %.0f s to save %.0f s", self._phase.name, how, cost, saved)
        self._before, self._decide = pace, self._learn if pays else self._settled
        return Pace() if pays else pace

    def _learn(self, pace: Pace, left: float) -> Pace:
        """Take cost and gain of compiling from what it brought."""
        if pace.known:
            before, self._decide = self._before, self._settled
            self.cost = pace.setup / before.setup
            self.saved = (before.seconds - pace.seconds) / before.setup
            how = f"steps of {1000 * pace.seconds:.0f} ms instead of {1000 * before.seconds:.0f} ms"
            logger.info("%s: compiled in %.0f s: %s", self._phase.name, pace.setup, how)
        return pace

    def _settled(self, pace: Pace, left: float) -> Pace:
        return pace


LONGER = 1.1
"""Times its minutes that a phase with iterations may be expected to take before minutes cut it short."""


@dataclass
class Progress:
    """Position in a training: enough, with the model's and the phase's own state, to continue it.

    Attributes:
        phase: index of the current phase; the number of phases when all is done.
        step: steps taken in it.
        total_steps: steps taken in all phases.
        seconds: spent in the current phase.
        total_seconds: spent in all phases.
        minutes: of the current phase, where its budget has any. Chosen at its start: what is left of the
            minutes of all phases after its set-up is shared out among the phases to come, in proportion to
            their own minutes.
        setup: seconds of the current phase that went into preparing it, and into capturing its first step.
        closing: seconds that the consumer of the records took at the start of the current phase; as many are
            kept for it at the end.
        by_clock: whether the phase ends with these minutes, not with its iterations.
        spare: seconds that the phases before left over; below 0, that they took too long.
        stopped: True if the current phase is to end here, whatever is left of its budget. The consumer of the
            records sets it.
    """

    phase: int = 0
    step: int = 0
    total_steps: int = 0
    seconds: float = 0.0
    total_seconds: float = 0.0
    minutes: float | None = None
    setup: float = 0.0
    closing: float = 0.0
    by_clock: bool = False
    spare: float = 0.0
    stopped: bool = False


@dataclass(frozen=True)
class Record:
    """One step of training (or, with ``step`` 0, the start of a phase, before its first step).

    Attributes:
        phase: its name.
        step: steps taken in it.
        total_steps: steps taken in all phases.
        fraction: share of the phase's budget that is used up, in [0, 1].
        loss: of the step's batch before the step, in nats for all N points; None at the start of a phase. It
            may be a tensor on a GPU: whoever reads it waits for the step.
        seconds: spent in training so far.
        pace: seconds that a step takes at present; None during the first steps of a phase.
        left: seconds until the end of training, if all steps to come take as long; None where ``pace`` is.
    """

    phase: str
    step: int
    total_steps: int
    fraction: float
    loss: float | Tensor | None
    seconds: float
    pace: float | None = None
    left: float | None = None


def fit(
    phases: Sequence[Phase],
    batches: Iterable[Any],
    progress: Progress | None = None,
    resumed: bool = False,
    stepping: Stepping | None = None,
) -> Iterator[Record]:
    """Run phases one after another, and yield a record at the start of each and after every step.

    The consumer of the records may save, log, draw, or simply stop: between two records everything is
    consistent. To continue in the same process, call it again with the same progress and ``resumed=True``.
    Minutes are those of a clock on the wall, of rank 0's under :func:`~pyro_fmvae.infer.ranks.together`:
    preparing a phase, capturing and compiling its steps, and what the consumer does between records all
    count.

    Args:
        phases: in order; phases with an empty budget are left out.
        batches: a loader, iterated over again and again. A batch is a tensor ``x`` or a tuple of arguments
            for the model and the guide, such as ``(x, labels)``.
        progress: where to start, and kept up to date; a fresh one if None.
        resumed: the current phase was entered and its state loaded already, so that it must not be started
            anew.
        stepping: chooses how the steps of phases that go by the clock are taken; None: as phases take them.

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
            clock = _Clock(phase, phases[progress.phase + 1 :], progress)
            if not resumed:
                phase.enter()
                phase.prepare(batches)
                _take_over_from_first(phase)
                clock.read()
                clock.set_up(progress.seconds)
                yield clock.record()
                clock.read()
                progress.closing = progress.seconds - progress.setup
                clock.set_up(2 * progress.closing)
            if stepping is not None:
                stepping.begin(phase, progress.by_clock)
            while not progress.stopped and (fraction := clock.fraction) < 1:
                if phase.between_steps(batches, progress.step):
                    world().copy_from_first(phase.program.state_dict().values())
                phase.before_step(fraction)
                batch = next(source)
                before = time.perf_counter()
                loss = phase.step(*arguments(batch))
                clock.add_step(time.perf_counter() - before)
                if stepping is not None and progress.by_clock:
                    clock.pace = stepping.consider(clock.pace, clock.end - progress.seconds)
                yield clock.record(loss)
            phase.settle()
            clock.read()
            if phase.budget.minutes is not None:
                progress.spare += 60 * phase.budget.minutes - progress.seconds
        resumed = progress.stopped = False
        progress.phase, progress.step, progress.seconds = progress.phase + 1, 0, 0.0
        progress.minutes, progress.setup, progress.closing, progress.by_clock = None, 0.0, 0.0, False


OF_A_DISTRIBUTION: Final = "Expected parameter"
"""Start of torch's message about parameters that are infinite or no numbers."""


@contextmanager
def naming_divergence(phases: Sequence[Phase], progress: Progress, advice: str) -> Iterator[None]:
    """Say in one line where training inside diverged, and what to change.

    Raises:
        ValueError: it diverged.
    """
    try:
        yield
    except ValueError as error:
        text = str(error).partition(", but found invalid values")[0]
        if not (isinstance(error, NotFiniteError) or text.startswith(OF_A_DISTRIBUTION)):
            raise
        phase, step = phases[progress.phase].name, progress.step + 1
        raise ValueError(f"{phase} diverged at step {step:,}: {text}. {advice}") from error


class _Clock:
    """The time of a phase, and its end: with its iterations, or with the minutes that are left for it.

    Args:
        phase: the phase.
        ahead: the phases after it.
        progress: kept up to date.

    Attributes:
        pace: of the phase's steps.
    """

    def __init__(self, phase: Phase, ahead: Sequence[Phase], progress: Progress) -> None:
        self.phase, self.progress, self.pace = phase, progress, Pace()
        self._later = [later.budget for later in ahead]
        self._before = progress.total_seconds - progress.seconds
        (now,) = world().numbers_of_first([time.monotonic()])
        self._started = now - progress.seconds
        if progress.minutes is None:
            self.set_up(0.0)

    def read(self, spent: float = 0.0) -> float:
        """Take the time; returns what was spent on a step, on the rank whose clock counts."""
        now, spent = world().numbers_of_first([time.monotonic(), spent])
        self.progress.seconds = now - self._started
        self.progress.total_seconds = self._before + self.progress.seconds
        return spent

    def set_up(self, seconds: float) -> None:
        """Choose the phase's minutes, when it begins and after so many more seconds of set-up."""
        budget, progress = self.phase.budget, self.progress
        if budget.minutes is None:
            return
        progress.setup += seconds
        setup, together = progress.setup / 60, self._minutes
        left = max(together + progress.spare / 60 - setup, 0.0)
        progress.by_clock = progress.by_clock or budget.iterations is None
        progress.minutes = setup + left * (budget.minutes / (together or 1.0))

    @property
    def _minutes(self) -> float:
        """Minutes of this phase and of those to come."""
        return sum(budget.minutes or 0.0 for budget in (self.phase.budget, *self._later))

    @property
    def end(self) -> float:
        """Seconds of the phase after which its last step ends, if it goes by the clock."""
        return max(60 * (self.progress.minutes or 0.0) - self.progress.closing, 0.0)

    @property
    def fraction(self) -> float:
        """Share of the phase that is over, 0 before its first step: it takes one, whatever its set-up took.

        By the clock any other step begins only if at least half of it still fits.
        """
        progress = self.progress
        if not progress.step:
            return 0.0
        if not progress.by_clock:
            return progress.step / (self.phase.budget.iterations or 1)
        half = self.pace.seconds / 2 if self.pace.steps else 0.0
        return progress.seconds / self.end if progress.seconds + half < self.end else 1.0

    def add_step(self, seconds: float) -> None:
        """Count a step that took so long.

        The phase goes by the clock from now on, if all its iterations would take longer than its minutes.
        """
        progress, pace = self.progress, self.pace
        pace.add(self.read(seconds))
        progress.step += 1
        progress.total_steps += 1
        if pace.steps == 1:
            self.set_up(pace.setup)
        if progress.by_clock or progress.minutes is None or not pace.known:
            return
        iterations = self.phase.budget.iterations or 0
        expected = progress.seconds + pace.seconds * (iterations - progress.step)
        if expected > LONGER * 60 * progress.minutes:
            progress.by_clock = True
            logger.info(
                "%s: ends after %.1f minutes; all %d iterations would take %.1f",
                *(self.phase.name, progress.minutes, iterations, expected / 60),
            )

    def record(self, loss: float | Tensor | None = None) -> Record:
        """The record of a step, or of the start."""
        progress, pace = self.progress, self.pace.seconds if self.pace.known else None
        counted = progress.step, progress.total_steps, self.fraction
        left = None if pace is None else self._left(pace)
        return Record(self.phase.name, *counted, loss, progress.total_seconds, pace, left)

    def _left(self, pace: float) -> float:
        """Seconds until training ends, if every step takes so many; by the clock what the clock leaves."""
        budget, progress = self.phase.budget, self.progress
        if progress.by_clock:
            left = 60 * (progress.minutes or 0.0) - progress.seconds
        else:
            left = pace * ((budget.iterations or 0) - progress.step)
        left = max(left, 0.0)
        for later in self._later:
            by_steps = math.inf if later.iterations is None else pace * later.iterations
            left += min(by_steps, math.inf if later.minutes is None else 60 * later.minutes)
        if budget.minutes is None:
            return left
        return max(min(left, 60 * self._minutes + progress.spare - progress.seconds), 0.0)


def _take_over_from_first(phase: Phase) -> None:
    """Start from what rank 0 has chosen: processors that are not alike may choose otherwise."""
    if world().alone:
        return
    state = phase.state_dict()
    world().copy_from_first(
        leaf for leaf in tree_leaves((phase.program.state_dict(), state)) if isinstance(leaf, Tensor)
    )
    phase.load_state_dict(state)
