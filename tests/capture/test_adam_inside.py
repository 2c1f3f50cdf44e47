"""Captured steps that have Adam inside, as they are if compiled; here they run without a compiler."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pyro_fmvae.capture import CaptureError, captured_svi
from pyro_fmvae.capture.playback import plain
from pyro_fmvae.capture.recorded_adam import RecordedAdam
from tests.capture.captured import Methods, Plain, SpoiltGradient, a_toy, numbers, svi_for, trained
from tests.infer.programs import Toy

TOLERANCE = {"rtol": 1e-7, "atol": 1e-7}  # Adam's operations in another order, amplified by hundreds of steps

adam = partial(torch.optim.Adam, lr=1e-2)


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    monkeypatch.setattr(captured_svi, "compiled", plain)


def assert_twins(make, batches, inside=True, **settings):
    """Assert that eager steps and those with Adam inside (None: in some) agree; returns the captured SVI."""
    losses, state, eager = trained(make, batches, eager=True, **settings)
    captured, others, svi = trained(make, batches, compile=True, **settings)
    assert svi._steps
    assert inside is None or all((step.inside is not None) is inside for step in svi._steps.values())
    assert_close(torch.tensor(captured), torch.tensor(losses), **TOLERANCE)
    for name, value in state.items():
        assert_close(others[name], value, **TOLERANCE, msg=lambda text, n=name: f"{n}: {text}")
    one, other = (each.optim.state_dict()["others"] for each in (eager, svi))
    assert one["param_groups"] == other["param_groups"]
    assert one["state"].keys() == other["state"].keys()
    for number, moments in one["state"].items():
        for name, value in moments.items():
            assert_close(other["state"][number][name], value, **TOLERANCE)
    return svi


def binary(size=6):
    return torch.bernoulli(torch.full((size, 5), 0.5))


def schedule(step, svi, program):
    if step == 1:
        svi.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(svi.optim.others, 100)
    elif step > 1:
        svi.scheduler.step()


@pytest.mark.parametrize(
    ("optimizer", "recompute"), [(adam, True), (partial(torch.optim.AdamW, lr=1e-2, fused=True), False)]
)
def test_a_hundred_steps_and_a_schedule(optimizer, recompute):
    batches = [(binary(),)] * 100
    svi = assert_twins(a_toy(), batches, optimizer=optimizer, between=schedule, recompute=recompute)
    assert svi.optim.others.param_groups[0]["lr"] < 2e-5


def test_constants_of_the_optimiser_that_change():
    def between(step, svi, program):
        if step == 4:
            svi.optim.others.param_groups[0]["betas"] = (0.5, 0.6)
        if step == 8:
            svi.optim.others.param_groups[0]["weight_decay"] = 0.3

    assert_twins(a_toy(), [(binary(),)] * 12, between=between)


def forgotten(optimizer):
    optimizer.state.clear()


def of_one_parameter(optimizer):
    """Other tensors for what was there."""
    p = optimizer.param_groups[0]["params"][0]
    optimizer.state[p] = {name: 2 * value for name, value in optimizer.state[p].items()}


def in_place(optimizer):
    for state in optimizer.state.values():
        state["exp_avg"].mul_(0.5)


@pytest.mark.parametrize(("change", "times"), [(forgotten, 2), (of_one_parameter, 2), (in_place, 1)])
def test_another_state_of_the_optimiser(change, times, caplog):
    caplog.set_level("INFO", "pyro_fmvae")

    def between(step, svi, program):
        if step == 4:
            change(svi.optim.others)

    svi = assert_twins(a_toy(), [(binary(),)] * 8, between=between)
    assert len(caplog.records) == times
    counts = {float(one["step"]) for one in svi.optim.others.state.values()}
    assert counts == {forgotten: {4.0}, of_one_parameter: {8.0, 12.0}, in_place: {8.0}}[change]


def test_a_hook_of_the_optimisers_steps():
    """It runs from then on, and Adam's own step with it."""
    calls = []

    def between(step, svi, program):
        if step == 3:
            svi.optim.others.register_step_post_hook(lambda *_: calls.append(step))

    assert_twins(a_toy(), [(binary(),)] * 6, inside=False, between=between)
    assert calls == [3] * 6  # three in eager steps, and three in captured ones


def test_other_optimisers_stay_outside():
    for optimizer in (partial(torch.optim.Adam, amsgrad=True), partial(torch.optim.SGD, lr=1e-4)):
        assert_twins(a_toy(), [(binary(),)] * 5, inside=False, optimizer=optimizer)


def test_programs_for_small_batches_are_not_compiled(caplog):
    batches = [(binary(size),) for size in (6, 6, 4, 6, 4, 7, 6)]
    caplog.set_level("INFO", "pyro_fmvae")
    svi = assert_twins(a_toy(), batches, inside=None, compile_from=6)
    said = [record.getMessage() for record in caplog.records]
    assert [("[4, 5]" in line, "as they are" in line, "to compile" in line) for line in said] == [
        (False, False, True),
        (True, True, False),
        (False, False, True),
    ]
    assert [step.inside is not None for step in svi._steps.values()] == [False, True, True]  # 4, 7, 6


def state_of(program, svi):
    moments = [value.clone() for one in svi.optim.others.state.values() for value in one.values()]
    return [value for _, value in sorted(numbers(program).items())], moments, svi.optim.steps


def assert_unchanged(before, program, svi):
    after = state_of(program, svi)
    assert after[2] == before[2]
    for one, other in zip(before[:2], after[:2], strict=False):
        assert len(one) == len(other)
        assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_loss_that_is_not_finite_changes_nothing(bad, recompute):
    toy = Toy()
    svi, x = svi_for(toy, recompute=recompute, compile=True), toy.data(6)
    for _ in range(3):
        svi.step(x)
    before, spoilt = state_of(toy, svi), x.clone()
    spoilt[0, 0] = bad
    with pytest.raises(ValueError, match=r"'x'|distribution Normal|loc"):
        svi.step(spoilt)
    assert_unchanged(before, toy, svi)
    svi.step(x)
    assert svi.optim.steps == 4
    assert {float(one["step"]) for one in svi.optim.others.state.values()} == {4.0}


def test_a_gradient_that_is_not_finite_changes_nothing():
    program = Plain(lambda p, z, x, factor: SpoiltGradient.apply(p.decoder(z), factor))
    svi, x = svi_for(program, compile=True), torch.randn(6, 3)
    svi.step(x, torch.ones(()))
    before = state_of(program, svi)
    with pytest.raises(ValueError, match="is not finite"):
        svi.step(x, torch.tensor(torch.inf))
    assert_unchanged(before, program, svi)


@pytest.mark.parametrize("optimizer", [adam, partial(torch.optim.Adam, lr=1e-2, fused=True)])
def test_a_failed_capture_leaves_no_state(optimizer):
    program = Plain(lambda p, z, x: p.decoder(z) * z.mean().item())
    before = [p.detach().clone() for p in program.parameters()]
    svi = svi_for(program, optimizer, compile=True)
    with pytest.raises(CaptureError):
        svi.step(torch.randn(6, 3))
    assert not svi.optim.others.state
    assert all(map(torch.equal, before, program.parameters()))
    assert all(p.grad is None for p in program.parameters())
    eager = svi_for(program, optimizer, eager=True)
    svi.eager = True
    for each in (svi, eager):
        each.step(torch.randn(6, 3))
    assert len(svi.optim.others.state) == len(eager.optim.others.state) == 4


def test_a_failed_capture_keeps_the_state_that_there_was():
    program = Plain(lambda p, z, x, flag: p.decoder(z) * (z.mean().item() if flag else 1.0))
    svi, x = svi_for(program, compile=True), torch.randn(6, 3)
    svi.step(x, False)
    before = state_of(program, svi)
    with pytest.raises(CaptureError):
        svi.step(x, True)
    assert_unchanged(before, program, svi)


class Unused(Methods):
    def __init__(self):
        super().__init__()
        self.decoder.unused = nn.Parameter(torch.ones(2))


def test_a_parameter_without_gradient_gets_no_state():
    svi = assert_twins(Unused, [(torch.randn(6, 3),)] * 5)
    unused = svi.model.__self__.decoder.unused
    assert unused not in svi.optim.others.state
    assert len(svi.optim.others.state) == 4
    assert any(unused is p for p in svi.optim.others.param_groups[0]["params"])


def test_a_parameter_that_gets_a_gradient_later():
    def make():
        program = Plain(lambda p, z, x, flag: p.decoder(z) + (p.decoder.unused if flag else 0.0))
        program.decoder.unused = nn.Parameter(torch.ones(3))
        return program

    svi = assert_twins(make, [(torch.randn(6, 3), step > 3) for step in range(8)])
    assert len(svi._steps) == 2
    assert {float(one["step"]) for one in svi.optim.others.state.values()} == {4.0, 8.0}


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"capturable": True}, {"foreach": True}], ids=str)
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts_of_steps_have_torchs_own_dtype(options, default, dtype):
    torch.set_default_dtype(default)
    theirs, ours = (nn.Parameter(torch.ones(2, dtype=dtype)) for _ in range(2))
    own = torch.optim.Adam([theirs], fused=options.get("fused", False))
    theirs.grad = torch.ones_like(theirs)
    own.step()
    optimizer = torch.optim.Adam([ours], **options)
    RecordedAdam(optimizer, [ours])
    for name, value in own.state[theirs].items():
        assert optimizer.state[ours][name].dtype == value.dtype, name
        assert optimizer.state[ours][name].shape == value.shape, name


def test_state_that_was_made_is_kept_for_those_that_need_it():
    params = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = adam(params)
    params[0].grad = torch.ones(2)
    optimizer.step()
    recorded = RecordedAdam(optimizer, params)
    recorded.keep([params[1]])
    assert set(optimizer.state) == {params[0], params[1]}
    assert len(recorded.tensors) == 6
    recorded.keep([])  # a second time changes nothing
    assert set(optimizer.state) == {params[0], params[1]}
