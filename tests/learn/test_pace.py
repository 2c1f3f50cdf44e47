"""When the steps of a phase are compiled, on a clock of its own."""

import pytest
import torch

from pyro_fmvae import fit
from pyro_fmvae.learn import fitting
from pyro_fmvae.learn.pace import COST, MEASURED, SAVED, Compiling, Pace
from pyro_fmvae.learn.phase import Budget, Phase


class Captured(Phase):
    """Phase whose first step takes ``setup`` seconds more, and whose first compiled one takes ``cost``."""

    def __init__(self, name, minutes, clock, setup=1.0, plain=0.01, cost=40.0, compiled=0.004):
        super().__init__(name, Budget(minutes=minutes), torch.nn.Identity())
        self.clock, self.pending, self.seconds = clock, setup, plain
        self.cost, self.fast, self.compiled_at = cost, compiled, None

    def enter(self):
        pass

    def compile(self):
        self.compiled_at = self.clock[0]
        self.pending, self.seconds = self.cost, self.fast
        return True

    def step(self, *batch):
        self.clock[0] += self.pending + self.seconds
        self.pending = 0.0
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
    compiling = Compiling(works)
    return compiling, list(fit(phases, [(1,)], compiling=compiling))


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
    assert (phase.compiled_at is not None) is expected
    assert len([line for line in caplog.messages if "to save" in line]) == 1
    assert records[-1].seconds == pytest.approx(60 * minutes, rel=1e-3)


@pytest.mark.parametrize(("minutes", "expected"), [(1.95, False), (2.05, True)])
def test_no_more_than_half_of_a_step_is_hoped_for(clock, minutes, expected):
    phase = Captured("joint", minutes, clock, setup=1.0, plain=0.004)
    learn([phase])
    assert (phase.compiled_at is not None) is expected


def test_what_compiling_took_and_saved_decides_from_then_on(clock, caplog):
    first = Captured("pretrain", 2 * BREAK_EVEN, clock, cost=20.0, compiled=0.004)
    second = Captured("joint", 1.0, clock, cost=20.0)
    third = Captured("refine", 0.2, clock, cost=20.0)
    with caplog.at_level("INFO"):
        compiling, _ = learn([first, second, third])
    assert "pretrain: compiled in 20 s: steps of 4 ms instead of 10 ms" in caplog.messages
    assert (compiling.cost, compiling.saved) == (pytest.approx(20), pytest.approx(0.006))
    assert second.compiled_at is not None  # 20 s save half of a minute; without the first they would not
    assert third.compiled_at is None


def test_a_phase_that_compiling_does_not_help_is_the_last(clock):
    first = Captured("pretrain", 2 * BREAK_EVEN, clock, compiled=0.011)
    second = Captured("joint", 100 * BREAK_EVEN, clock)
    learn([first, second])
    assert first.compiled_at is not None and second.compiled_at is None


def test_asked_once_and_only_if_it_would_pay(clock):
    asked = []

    def works():
        asked.append(clock[0])
        return False

    phases = [Captured(name, minutes, clock) for name, minutes in (("a", 1.0), ("b", 600.0), ("c", 900.0))]
    learn(phases, works)
    assert len(asked) == 1 and asked[0] > 60
    assert all(phase.compiled_at is None for phase in phases)
