"""The pace of a training: how long its steps take, and whether compiling them would pay."""

import logging
import statistics
from collections import deque
from collections.abc import Callable
from functools import cache

from pyro_fmvae.learn.phase import Phase

MEASURED = 8  # steps after the first one, which tell the pace
WINDOW = 50  # steps that the pace goes by
COST, SAVED = 60.0, 0.0025  # what compiling takes, and saves of each step, as multiples of the set-up
MOST = 0.5  # share of a step that compiling may be hoped to save

logger = logging.getLogger("pyro_fmvae")


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


class Compiling:
    """Compiles the steps of a phase where that pays within the time that is left of it.

    A recorded step grows with its number of operations, and so do the time that it takes to record it, the
    time to compile it, and the time that passes between its operations until they are fused. All of them grow
    with the load of the machine. So the set-up of a phase, which is measured, tells the others: ``COST`` and
    ``SAVED`` times as much, which is cautious. What compiling took and saved in a phase is used for the next.

    Args:
        works: tells whether steps can be compiled on this machine; asked once, and only if it would pay.
    """

    def __init__(self, works: Callable[[], bool]) -> None:
        self.cost, self.saved = COST, SAVED
        self._works = cache(works)
        self._before: tuple[Phase, Pace] | None = None  # what was compiled last, and its pace until then

    def consider(self, phase: Phase, pace: Pace, left: float) -> Pace:
        """Decide, as soon as the pace of a phase is known, and learn from what compiling has brought.

        Args:
            phase: whose steps may be compiled.
            pace: of its steps; called after each of them.
            left: seconds left of the phase.

        Returns:
            The pace to go on with: a fresh one if steps are compiled from now on.
        """
        if pace.steps != MEASURED:
            return pace
        if self._before is not None and self._before[0] is phase:
            self._learn(phase, self._before[1], pace)
            return pace
        cost = self.cost * pace.setup
        saved = min(self.saved * pace.setup / pace.seconds, MOST) * left
        if cost < saved and self._works() and phase.compile():
            logger.info("%s: compiling, about %.0f s to save %.0f s", phase.name, cost, saved)
            self._before = phase, pace
            return Pace()
        logger.info("%s: not compiled, about %.0f s to save %.0f s", phase.name, cost, saved)
        return pace

    def _learn(self, phase: Phase, before: Pace, after: Pace) -> None:
        """Take cost and gain of compiling from the first time."""
        self.cost = after.setup / before.setup
        self.saved = (before.seconds - after.seconds) / before.setup
        how = f"steps of {1000 * after.seconds:.0f} ms instead of {1000 * before.seconds:.0f} ms"
        logger.info("%s: compiled in %.0f s: %s", phase.name, after.setup, how)
