"""The pace of a training: how long its steps take, and which way of taking them pays."""

import logging
import statistics
from collections import deque
from collections.abc import Callable
from functools import cache

from pyro_fmvae.learn.phase import Phase

TRIED = 100  # eager steps that have to fit into the time that is left for capturing them to pay
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
