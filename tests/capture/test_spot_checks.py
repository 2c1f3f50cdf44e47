"""Spot checks find what the watch cannot see, and change nothing else."""

import logging
import random
from functools import partial

import numpy as np
import pyro
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pyro_fmvae.capture import captured_svi
from pyro_fmvae.capture.captured_svi import SpotCheck
from pyro_fmvae.capture.recording import record
from pyro_fmvae.infer import TraceConjugate_ELBO
from tests.capture.captured import CLOSE, EXACT, Plain, assert_twins, plainly, trained
from tests.capture.cuda_double import stand_in
from tests.infer.programs import Toy
from tests.models.small import binary_data, small_model

CHECKED = (2, 4, 8)


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Checks at steps 2, 4 and 8, compiled ones at 4 and 8."""
    monkeypatch.setattr(captured_svi, "_FIRST", 2)
    monkeypatch.setattr(captured_svi, "_GROWTH", 2)


@pytest.fixture
def eager_runs(monkeypatch):
    losses, eager = [], SpotCheck.eager

    def noted(*arguments):
        losses.append(eager(*arguments))
        return losses[-1]

    monkeypatch.setattr(SpotCheck, "eager", noted)
    return losses


def warnings(log):
    ours = [record for record in log.records if record.name == "pyro_fmvae"]
    return [record.getMessage() for record in ours if record.levelno == logging.WARNING]


def captures(log):
    return sum(record.getMessage().startswith("captured the step") for record in log.records)


def spot_check(steps=0, dtype=torch.float64, compiled=False):
    recording = record(lambda x: (x + 1,), [torch.zeros(2, dtype=dtype)])
    check = SpotCheck(recording, ["z", "x", "z"], [], compiled)
    check.steps = steps
    return check


def test_steps_that_are_checked(monkeypatch):
    monkeypatch.undo()
    check = {compiled: spot_check(compiled=compiled) for compiled in (False, True)}
    due = {compiled: [] for compiled in check}
    for number in range(1, 20_000):
        for compiled, each in check.items():
            if each.due:
                due[compiled].append(number)
            each.steps = number
    assert due == {False: [64, 1024, 16384], True: [1024, 16384]}


@pytest.mark.parametrize(
    ("dtype", "captured", "sites"),
    [
        (torch.float64, (1.0, 1000.0, 2.0), []),
        (torch.float64, (1.0, 1000.0 + 1e-5, 2.0), []),
        (torch.float64, (1.0, 1000.0 + 1e-4, 2.0), ["x"]),
        (torch.float64, (0.5, 1000.0, 2.5), []),  # one site's terms count together
        (torch.float32, (1.0, 1000.2, 2.0), []),
        (torch.float32, (1.0, 1000.2, 2.002), ["z"]),
        (torch.float32, (1.0, float("inf"), 2.002), ["z", "x"]),
        (torch.bfloat16, (1.0, 1020.0, 8.0), []),  # rounding of the whole loss
        (torch.bfloat16, (1.0, 1200.0, 2.0), ["x"]),
        (torch.float64, (float("nan"), 1000.0, 2.0), ["z"]),
    ],
)
def test_differences(dtype, captured, sites):
    lines = spot_check(dtype=dtype).differences({"x": 1000.0, "z": 3.0}, [*map(torch.tensor, captured)])
    assert sorted(line.split("'")[1] for line in lines) == sorted(sites)


def test_sites_that_one_loss_lacks():
    values = [torch.tensor(1.0), torch.tensor(2.0), torch.tensor(float("nan"))]
    lines = spot_check().differences({"x": 2.0, "y": 3.0, "z": float("nan")}, values)
    assert lines == ["'y' (3 eagerly, 0 captured)"]


class Noisy(nn.Module):
    """Dropout, batch norm, and a mean that is no buffer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5), nn.Linear(2, 3))
        self.mean = torch.zeros(())

    def forward(self, z):
        self.mean.mul_(0.9).add_(z.detach().mean())
        return self.layers(z) + self.mean


def subsampling():
    toy = Toy(num_data=12)
    toy.batch_size = 4
    return toy


def toys(size):
    return [(torch.bernoulli(torch.full((size, 5), 0.5)),)] * 9


def images():
    return [(binary_data(8),)] * 9


PROGRAMS = {
    "plain": (partial(Plain, plainly), lambda: [(torch.randn(6, 3),)] * 9, {}),
    "noisy": (lambda: Plain(plainly, Noisy()), lambda: [(torch.randn(6, 3),)] * 9, {}),
    "recompute": (Toy, lambda: toys(6), {"recompute": True}),
    "subsampling": (subsampling, lambda: toys(12), {}),
    "particles": (Toy, lambda: toys(6), {"elbo": partial(TraceConjugate_ELBO, num_particles=2)}),
    "mixtures": (lambda: small_model((3, 2)), images, {"elbo": partial(TraceConjugate_ELBO, kl_weight=0.7)}),
    "penalty": (
        lambda: small_model((3, 2)),
        images,
        {"elbo": partial(TraceConjugate_ELBO, independence_weight=0.1)},
    ),
    "compiled": (Toy, lambda: toys(6), {"compile": True}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "compiled" else []) for name in PROGRAMS]
)
def test_checks_change_nothing(name, eager_runs, caplog):
    """Neither numbers nor random ones, buffers or gradients; and they find nothing."""
    make, batches, settings = PROGRAMS[name]
    batches, runs = batches(), []
    for checked in (False, True):
        losses, state, svi = trained(make, batches, spot_checks=checked, **settings)
        runs.append((losses, state, torch.get_rng_state()))
        due = CHECKED[name == "compiled" :]
        assert len(eager_runs) == checked * len(due)
        assert all(p.grad is None for p in state.values())
        (step,) = svi._steps.values()
        assert step.spot_check.steps == len(batches)
    (losses, state, drawn), (others, same, drawn_too) = runs
    assert losses == others
    assert torch.equal(drawn, drawn_too)
    for key, value in state.items():
        assert_close(same[key], value, **EXACT, msg=key)
    found = [sum(loss.values()) for loss in eager_runs]
    assert_close(torch.tensor(found), torch.tensor([losses[step - 1] for step in due]), **CLOSE)
    assert not warnings(caplog)


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rounding_of_bfloat16_is_no_difference(compile, single_precision, eager_runs, caplog):
    trained(lambda: small_model((3, 2)), images(), autocast=torch.bfloat16, compile=compile)
    assert len(eager_runs) == len(CHECKED[compile:])
    assert not warnings(caplog)


def in_an_array(program, step):
    program.array[0] = 1.0 + (step > 4)


def in_a_long_list(program, step):
    program.numbers[7] = 1.0 + (step > 4)


@pytest.mark.parametrize("change", [in_an_array, in_a_long_list])
def test_finds_what_is_not_watched(change, caplog):
    """From the ninth step on the program is the changed one; the warning names the site alone."""
    caplog.set_level(logging.INFO, "pyro_fmvae")

    def make():
        program = Plain(lambda program, z, x: program.decoder(z) * program.array[0] * program.numbers[7])
        program.array, program.numbers = np.ones(1), [1.0] * 300
        return program

    def between(step, svi, program):
        change(program, step)
        if step == 8:  # eager steps have learnt something else in between
            program.load_state_dict(start)
            svi.optim.others.state.clear()
            pyro.set_rng_seed(3)

    start, batches = make().state_dict(), [(torch.randn(6, 3),)] * 12
    (losses, *_), (captured, *_) = (
        trained(make, batches, between=between, eager=eager) for eager in (True, False)
    )
    assert captured[:5] == losses[:5]
    assert captured[5] != losses[5]
    assert captured[8:] == losses[8:]
    [warning] = warnings(caplog)
    assert "the captured step 8 differs from an eager one on the same random numbers, at 'x' (" in warning
    assert captures(caplog) == 2


def test_generators_of_python_and_numpy(caplog):
    """They are constants of a captured program: noticed, named, and left as they were."""
    program = Plain(lambda program, z, x: program.decoder(z) + random.random() + np.random.rand())
    states = []

    def between(step, svi, program):
        states.append((random.getstate(), np.random.get_state()[2]))

    trained(lambda: program, [(torch.randn(6, 3),)] * 4, between=between)
    assert states[1] == states[2]
    assert [message.split(" differs")[0] for message in warnings(caplog)] == [
        "the captured step 2",
        "the captured step 4",
    ]


def test_graphs(monkeypatch, eager_runs, caplog):
    """On the stand-in for CUDA's, whose replays write the terms of the loss, too; four steps come before."""
    recorder = stand_in(monkeypatch)
    optimizer = partial(torch.optim.Adam, lr=2**-7, fused=True)
    assert_twins(lambda: Plain(plainly), [(torch.randn(6, 3),)] * 9, CLOSE, optimizer=optimizer)
    assert len(eager_runs) == len(CHECKED)
    assert [graph.replays for graph in recorder.graphs] == [5]
    assert not warnings(caplog)


def test_an_error_in_an_eager_run_is_one_of_the_step():
    program = Plain(lambda program, z, x: program.decoder(z) if program.array[0] else None)
    program.array = np.ones(1)

    def between(step, svi, program):
        if step == 1:
            program.array[0] = 0.0
            before.append(torch.get_rng_state())

    before = []
    with pytest.raises(ValueError, match="must all be instances of"):
        trained(lambda: program, [(torch.randn(6, 3),)] * 2, between=between)
    assert torch.equal(torch.get_rng_state(), before[0])


def test_draws_in_vain_are_not_compared_where_a_compiler_may_drop_them():
    def function(x):
        torch.randn(2)
        return (x + torch.randn(2),)

    recording = record(function, [torch.zeros(2)])
    assert recording.draws_in_vain
    for compiled in (False, True):
        check = SpotCheck(recording, ["x"], [], compiled)
        assert bool(check.differences({"x": 1.0}, [torch.tensor(2.0)])) is not compiled
    assert not record(lambda x: (x + torch.randn(2),), [torch.zeros(2)]).draws_in_vain
