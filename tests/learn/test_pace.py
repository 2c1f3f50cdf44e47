"""When the steps of a phase are compiled, on a clock of its own."""

import pytest
import torch

from pyro_fmvae import fit
from pyro_fmvae.learn import fitting
from pyro_fmvae.learn.fitting import COST, MEASURED, SAVED, TRIED, Pace, Stepping
from pyro_fmvae.learn.phase import Budget, Phase


class Captured(Phase):
    """Phase whose captured steps need ``setup`` seconds at first, and compiled ones ``cost`` seconds."""

    def __init__(self, name, minutes, clock, setup=1.0, plain=0.01, cost=40.0, compiled=0.004, eager=0.05):
        super().__init__(name, Budget(minutes=minutes), torch.nn.Identity())
        self.clock, self.ways = (
            clock,
            {"eager": (0, eager), "plain": (setup, plain), "fast": (cost, compiled)},
        )
        self.taken, self.way = [], "plain"

    def enter(self):
        pass

    def take_steps(self, eager=False, compile=False):
        self.way = "eager" if eager else "fast" if compile else "plain"
        return True

    def step(self, *batch):
        setup, seconds = self.ways[self.way]
        self.clock[0] += seconds + (0 if self.way in self.taken[-1:] else setup)
        self.taken.append(self.way)
        return 1.0

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(fitting.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(fitting.time, "perf_counter", lambda: now[0])
    return now


def learn(phases, works=lambda: True):
    stepping = Stepping(works)
    return stepping, list(fit(phases, [(1,)], stepping=stepping))


def test_pace_is_the_median_of_steps_after_the_first():
    pace = Pace()
    for seconds in (9.0, 1.0, 2.0, 50.0, 1.5, 1.2, 1.3, 1.1):
        pace.add(seconds)
    assert not pace.known
    pace.add(1.4)
    assert pace.known and pace.steps == MEASURED
    assert pace.seconds == pytest.approx(1.35)
    assert pace.setup == pytest.approx(9 - 1.35)


BREAK_EVEN = COST / SAVED * 0.01 / 60  # minutes of steps of 0.01 s


@pytest.mark.parametrize(("minutes", "expected"), [(0.95 * BREAK_EVEN, False), (1.1 * BREAK_EVEN, True)])
def test_compiled_where_that_pays_within_the_time_that_is_left(clock, minutes, expected, caplog):
    phase = Captured("joint", minutes, clock)
    with caplog.at_level("INFO"):
        _, records = learn([phase])
    assert ("fast" in phase.taken) is expected
    assert len([line for line in caplog.messages if "to save" in line]) == 1
    assert records[-1].seconds == pytest.approx(60 * minutes, rel=1e-3)


@pytest.mark.parametrize(("seconds", "expected"), [(0.95, {"eager"}), (1.1, {"eager", "plain"})])
def test_captured_if_enough_eager_steps_would_fit(clock, seconds, expected):
    """As in a phase that takes a second, where capturing takes as long."""
    phase = Captured("prior", TRIED * 0.05 * seconds / 60 + 0.1 / 60, clock)
    _, records = learn([phase])
    assert set(phase.taken) == expected and phase.taken[:2] == ["eager", "eager"]
    assert records[-1].seconds == pytest.approx(60 * phase.budget.minutes, rel=0.02)


@pytest.mark.parametrize(("minutes", "expected"), [(1.95, False), (2.05, True)])
def test_no_more_than_half_of_a_step_is_hoped_for(clock, minutes, expected):
    phase = Captured("joint", minutes, clock, setup=1.0, plain=0.004)
    learn([phase])
    assert ("fast" in phase.taken) is expected


def test_what_compiling_took_and_saved_decides_from_then_on(clock, caplog):
    first = Captured("pretrain", 2 * BREAK_EVEN, clock, cost=20.0, compiled=0.004)
    second = Captured("joint", 1.0, clock, cost=20.0)
    third = Captured("refine", 0.2, clock, cost=20.0)
    with caplog.at_level("INFO"):
        stepping, _ = learn([first, second, third])
    assert "pretrain: compiled in 20 s: steps of 4 ms instead of 10 ms" in caplog.messages
    assert (stepping.cost, stepping.saved) == (pytest.approx(20), pytest.approx(0.006))
    assert "fast" in second.taken  # 20 s save half of a minute; without the first they would not
    assert "fast" not in third.taken


def test_a_phase_that_compiling_does_not_help_is_the_last(clock):
    first = Captured("pretrain", 2 * BREAK_EVEN, clock, compiled=0.011)
    second = Captured("joint", 3 * BREAK_EVEN, clock)
    learn([first, second])
    assert "fast" in first.taken and "fast" not in second.taken


def test_asked_once_and_only_if_it_would_pay(clock):
    asked = []

    def works():
        asked.append(clock[0])
        return False

    phases = [
        Captured(name, minutes, clock)
        for name, minutes in (("a", 1.0), ("b", 2 * BREAK_EVEN), ("c", 3 * BREAK_EVEN))
    ]
    learn(phases, works)
    assert len(asked) == 1 and asked[0] > 60
    assert all("fast" not in phase.taken for phase in phases)
