from functools import cache

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pyro_fmvae import Progress, fit
from pyro_fmvae.learn import fitting as train
from pyro_fmvae.learn.fmvae_phases import Joint, Pretraining, PriorFitting
from pyro_fmvae.learn.options import FMVAEOptions
from pyro_fmvae.learn.phase import Budget, Phase
from tests.models.small import binary_data, small_model


class Scripted(Phase):
    """A phase that only writes down what happens to it."""

    def __init__(self, name, budget, log):
        super().__init__(name, budget, torch.nn.Identity())
        self.log = log

    def enter(self):
        self.log.append(f"{self.name}: enter")

    def prepare(self, batches):
        self.log.append(f"{self.name}: prepare from {len(list(batches))}")

    def between_steps(self, batches, step):
        self.log.append(f"{self.name}: after {step}, sees {len(list(batches))}")

    def before_step(self, fraction):
        self.log.append(f"{self.name}: at {fraction:g}")

    def step(self, *batch):
        self.log.append(f"{self.name}: step on {batch}")
        return float(len(self.log))

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def scripted(log, *iterations):
    return [Scripted("abc"[i], Budget(iterations=n), log) for i, n in enumerate(iterations)]


def where(record):
    return record.phase, record.step, record.total_steps, record.fraction


def test_phases_run_one_after_another():
    log = []
    records = list(fit(scripted(log, 2, 0, 1), [("x", "y"), ("z",)]))
    assert [where(record) for record in records] == [
        ("a", 0, 0, 0.0),
        ("a", 1, 1, 0.5),
        ("a", 2, 2, 1.0),
        ("c", 0, 2, 0.0),
        ("c", 1, 3, 1.0),
    ]
    assert [record.loss is None for record in records] == [True, False, False, True, False]
    assert log == [
        *(
            "a: enter",
            "a: prepare from 2",
            *("a: after 0, sees 2", "a: at 0", "a: step on ('x', 'y')"),
            *("a: after 1, sees 2", "a: at 0.5", "a: step on ('z',)"),
        ),
        *("c: enter", "c: prepare from 2", "c: after 0, sees 2", "c: at 0", "c: step on ('x', 'y')"),
    ]


def test_progress_is_kept_up_to_date():
    progress = Progress()
    for record in fit(scripted([], 2, 2), [(1,)], progress):
        assert (record.step, record.total_steps) == (progress.step, progress.total_steps)
        assert record.phase == "ab"[progress.phase]
        assert record.seconds == progress.total_seconds
    assert (progress.phase, progress.step, progress.total_steps) == (2, 0, 4)


def test_nothing_is_left_to_do_for_a_finished_run():
    assert list(fit(scripted([], 2), [(1,)], Progress(phase=1))) == []


def test_resumed_phase_is_not_entered_again():
    log = []
    records = list(fit(scripted(log, 2, 1), [(1,)], Progress(phase=0, step=1, total_steps=1), resumed=True))
    assert [where(r) for r in records] == [("a", 2, 2, 1.0), ("b", 0, 2, 0.0), ("b", 1, 3, 1.0)]
    assert log[:4] == ["a: after 1, sees 1", "a: at 0.5", "a: step on (1,)", "b: enter"]


def test_phase_resumed_at_its_last_step_is_over():
    log = []
    records = list(fit(scripted(log, 2, 1), [(1,)], Progress(phase=0, step=2, total_steps=2), resumed=True))
    assert [where(r) for r in records] == [("b", 0, 2, 0.0), ("b", 1, 3, 1.0)]


def test_empty_loader():
    with pytest.raises(ValueError, match=r"^batches: expected at least one"):
        list(fit(scripted([], 1), []))


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless a phase or a test moves it."""
    now = [1000.0]
    monkeypatch.setattr(train.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(train.time, "perf_counter", lambda: now[0])
    return now


class Slow(Scripted):
    """A phase whose steps, and whose preparation, take some seconds on the clock."""

    def __init__(self, name, budget, clock, seconds=6.0, setup=0.0):
        super().__init__(name, budget, [])
        self.clock, self.seconds, self.setup = clock, seconds, setup

    def prepare(self, batches):
        self.clock[0] += self.setup

    def step(self, *batch):
        self.clock[0] += self.seconds
        return 1.0


def steps_of(records):
    return {record.phase: record.step for record in records}


def test_minutes(clock):
    budgets = {"a": 0.5, "b": 0.0, "c": 0.1}
    phases = [Slow(name, Budget(minutes=minutes), clock) for name, minutes in budgets.items()]
    records = list(fit(phases, [(1,)]))
    assert [where(r) for r in records] == [
        ("a", 0, 0, 0.0),
        *[("a", step, step, pytest.approx(step / 5)) for step in range(1, 6)],
        ("c", 0, 5, 0.0),
        ("c", 1, 6, 1.0),
    ]
    assert [r.seconds for r in records] == [0, 6, 12, 18, 24, 30, 30, 36]


def test_resumed_minutes_go_on_where_they_stood(clock):
    phases = [Slow("a", Budget(minutes=0.5), clock)]
    progress = Progress(step=3, total_steps=3, seconds=18.0, total_seconds=18.0)
    assert [r.seconds for r in fit(phases, [(1,)], progress, resumed=True)] == [24, 30]


@pytest.mark.parametrize(("seconds", "steps"), [(8.0, 4), (14.0, 2)])
def test_a_step_begins_if_half_of_it_fits(clock, seconds, steps):
    assert steps_of(fit([Slow("a", Budget(minutes=0.5), clock, seconds)], [(1,)])) == {"a": steps}


def test_later_phases_share_the_time_that_a_slow_start_has_cost(clock):
    phases = [
        Slow("a", Budget(minutes=1.0), clock, 10.0, setup=240.0),
        Slow("b", Budget(minutes=3.0), clock, 10.0),
        Slow("c", Budget(minutes=6.0), clock, 10.0),
    ]
    records = list(fit(phases, [(1,)]))
    # of the 360 seconds that are left a tenth, then a third of what is left, then all of it
    assert steps_of(records) == {"a": 4, "b": 11, "c": 21}
    assert records[-1].seconds == 600


def test_what_happens_between_records_counts(clock):
    records = []
    for record in fit([Slow(name, Budget(minutes=1.0), clock, 5.0) for name in "ab"], [(1,)]):
        clock[0] += 5.0
        records.append(record)
    assert steps_of(records) == {"a": 6, "b": 5}
    assert records[-1].seconds == 115  # and 5 to close with


@pytest.mark.parametrize("stop", range(0, 24, 3))
def test_the_clock_is_kept_when_a_training_is_resumed(clock, stop):
    def phases():
        return [Slow(name, Budget(minutes=m), clock, 5.0, setup) for name, m, setup in CLOCKED]

    whole = list(fit(phases(), [(1,)]))
    progress, first = Progress(), []
    for record in fit(phases(), [(1,)], progress):
        first.append(record)
        if len(first) > stop:
            break
    clock[0] += 10_000.0
    both = first + list(fit(phases(), [(1,)], progress, resumed=True))
    assert [*dict.fromkeys(record.phase for record in both)] == ["a", "b", "c"]
    assert both[-1].seconds == pytest.approx(whole[-1].seconds, abs=5)  # a step that half fits may be taken


CLOCKED = (("a", 0.5, 60.0), ("b", 1.0, 20.0), ("c", 0.5, 5.0))


def test_iterations_are_taken_where_the_time_is_enough_for_them(clock):
    phases = [Slow(name, Budget(20, 1.0), clock, 3.0) for name in "ab"]
    records = list(fit(phases, [(1,)]))
    assert steps_of(records) == {"a": 20, "b": 20}
    assert [record.fraction for record in records[:21]] == [step / 20 for step in range(21)]


def test_iterations_are_cut_short_where_they_would_take_too_long(clock):
    phases = [Slow("a", Budget(10, 1.0), clock, 1.0), Slow("b", Budget(100, 2.0), clock, 5.0)]
    records = list(fit(phases, [(1,)]))
    assert steps_of(records) == {"a": 10, "b": 34}  # in 170 seconds: its own, and 50 that were left over
    ends = [record.fraction for record in records if record.phase == "b"]
    assert ends[8:10] == pytest.approx([8 / 100, 45 / 170]) and ends[-1] == 1


def test_what_is_left_is_told_as_soon_as_the_pace_is_known(clock):
    phases = [Slow("a", Budget(iterations=20), clock, 3.0), Slow("b", Budget(iterations=5), clock, 3.0)]
    records = list(fit(phases, [(1,)]))
    assert [record.left for record in records[:9]] == [None] * 9
    assert (records[9].pace, records[9].left) == (3.0, 3.0 * 16)
    assert records[20].left == 15.0
    by_clock = list(fit([Slow("a", Budget(minutes=1.0), clock, 3.0)], [(1,)]))
    assert by_clock[9].left == 60 - 27


def test_iterations_do_not_look_at_the_clock(monkeypatch):
    monkeypatch.setattr(train.time, "monotonic", iter(range(0, 10**9, 10**6)).__next__)
    assert len(list(fit(scripted([], 3), [(1,)]))) == 4


def phases_of(model, eager=True):
    options = FMVAEOptions(
        label_weight=5.0, kl_annealing=0.5, kl_weight=2.0, final_learning_rate=1e-4, eager=eager
    )
    budget = Budget(iterations=4)
    last = [Joint(model, options, budget), Joint(model, FMVAEOptions(eager=eager), budget, name="refine")]
    if not eager:  # to capture the steps of a phase takes long
        return last
    return [Pretraining(model, options, budget), PriorFitting(model, options, budget), *last]


def fresh_model():
    torch.manual_seed(4)
    return small_model((2, 3), labelled=(0,), spread=False)


def stored(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def ten_points():
    torch.manual_seed(0)
    return [(binary_data(10), torch.randint(-1, 2, (10, 1)))]


@cache
def never_stopped(eager):
    """The model at the end."""
    batches, model = ten_points(), fresh_model()
    list(fit(phases_of(model, eager), batches))
    return stored(model)


@pytest.mark.parametrize(("stops", "eager"), [((0, 2, 7, 9, 10, 17, 19), True), ((2,), False)])
def test_stopped_and_continued_is_as_if_never_stopped(stops, eager):
    whole = never_stopped(eager)
    batches, model = ten_points(), fresh_model()
    phases, progress, number = phases_of(model, eager), Progress(), -1
    for stop in stops:
        for _ in fit(phases, batches, progress, resumed=number >= 0):
            number += 1
            if number == stop:
                break
    assert number == stops[-1]
    list(fit(phases, batches, progress, resumed=True))
    assert all(torch.equal(value, whole[name]) for name, value in stored(model).items())


@pytest.mark.parametrize("labelled", [False, True], ids=["tensors", "tuples"])
def test_torch_data_loaders(labelled):
    x, y = binary_data(20), torch.randint(-1, 2, (20, 1))
    data = TensorDataset(x, y) if labelled else x
    model = fresh_model()
    before = stored(model)
    records = list(fit(phases_of(model), DataLoader(data, batch_size=8, shuffle=True)))
    assert len(records) == 20
    assert all(not torch.equal(value, before[name]) for name, value in stored(model).items())


def test_a_phase_that_is_stopped_gives_way_to_the_next():
    log, progress, records = [], Progress(), []
    for record in fit(scripted(log, 5, 2), [(1,)], progress):
        records.append((record.phase, record.step))
        progress.stopped = records[-1] == ("a", 2)
    assert records == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)]
    assert not progress.stopped
    assert log.count("b: enter") == 1


def test_a_stopped_phase_is_not_resumed():
    progress = Progress(phase=0, step=2, total_steps=2, stopped=True)
    records = list(fit(scripted([], 5, 1), [(1,)], progress, resumed=True))
    assert [(record.phase, record.step) for record in records] == [("b", 0), ("b", 1)]
