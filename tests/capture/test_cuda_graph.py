"""The logic of CUDA graphs on a stand-in for CUDA's, and the real thing where there is a GPU."""

import copy
from functools import partial

import pyro
import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_fmvae.capture.playback import CUDAGraph, OptimizerOnDevice
from tests.capture.captured import CLOSE, Plain, SpoiltGradient, numbers, svi_for, trained
from tests.capture.cuda_double import stand_in
from tests.infer.programs import Toy
from tests.models.small import binary_data, small_model

fused = partial(torch.optim.Adam, lr=1e-2, fused=True)


@pytest.fixture
def cuda(monkeypatch):
    return stand_in(monkeypatch)


def test_every_call_is_one_call_of_the_function(cuda):
    total, seen = torch.zeros(()), []

    def function(x, factor):
        seen.append((x, factor))
        total.add_((x * factor).sum())
        return total.clone()

    graph, factor = CUDAGraph(function), torch.ones(())
    results = []
    for call in range(6):
        factor.fill_(call)
        results.append(graph(torch.ones(2), factor).item())
    assert results == [0, 2, 6, 12, 20, 30]
    assert cuda.streams == 3
    assert [g.replays for g in cuda.graphs] == [3]
    assert len(seen) == 4  # a replay runs no Python
    assert all(x is seen[0][0] and y is seen[0][1] for x, y in seen)  # where data are copied to
    assert seen[0][1] is not factor


def test_a_graph_holds_what_was_read_from_the_host(cuda):
    """As CUDA's do; or else the stand-in would not notice a host's number in the place of an input."""
    total, number = torch.zeros(()), [1.0]
    graph = CUDAGraph(lambda x: total.add_(number[0] * x.sum()).clone())
    results = []
    for call in range(6):
        number[0] = float(call)
        results.append(graph(torch.ones(1)).item())
    assert results == [0, 1, 3, 6, 9, 12]


@pytest.mark.parametrize("shape", [(2,), ()])
def test_the_callers_own_tensors_are_not_written_to(cuda, shape):
    graph, x = CUDAGraph(lambda x: x.sum()), torch.ones(shape)
    for _ in range(4):
        graph(x)
    x.fill_(2.0)
    assert graph(x) == 2 * x.numel()
    assert graph(torch.zeros(shape)) == 0
    assert torch.equal(x, torch.full(shape, 2.0))


def schedule(step, svi, program):
    svi.elbo.kl_weight = 0.5 + step / 20
    svi.optim.rate = 0.1 + step / 50
    if step > 0:
        svi.optim.others.param_groups[0]["lr"] = 1e-2 / (1 + step)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.slow
def test_whole_steps_as_graphs(cuda, recompute):
    """Warm-up, recorded and replayed steps are the eager ones; weights, ρ and rates are inputs."""
    batches = [(binary_data(7 - (step % 4 == 3)),) for step in range(24)]
    settings = {"between": schedule, "optimizer": fused, "recompute": recompute}
    losses, state, svi = trained(small_model, batches, **settings)
    # Of 18 and 6 steps three warm up, and of the 18 one makes Adam, and one has a KL weight of exactly 1.
    assert [graph.replays for graph in cuda.graphs] == [13, 3]
    eager, expected, other = trained(small_model, batches, eager=True, **settings)
    assert_close(torch.tensor(losses), torch.tensor(eager), **CLOSE)
    assert svi.optim.steps == other.optim.steps == 24
    groups = svi.optim.others.param_groups
    assert [group["lr"] for group in groups] == [group["lr"] for group in other.optim.others.param_groups]
    assert groups[0]["capturable"] is False
    assert not hasattr(svi.optim.others, "found_inf")
    for name, value in expected.items():
        assert_close(state[name], value, **CLOSE, msg=lambda text, n=name: f"{n}: {text}")


class Waits(TorchDispatchMode):
    """Counts how often the value of a tensor is asked, for which the host would wait."""

    number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_asynchronous_steps_are_the_same_and_wait_for_nothing(cuda):
    x, waits = Toy().data(6), {}
    for name in ("step", "step_async"):
        pyro.set_rng_seed(0)
        svi = svi_for(Toy(), fused)
        losses = [getattr(svi, name)(x) for _ in range(6)]
        with Waits() as counted:
            losses += [getattr(svi, name)(x) for _ in range(4)]
        waits[name] = counted.number, torch.tensor([float(loss) for loss in losses])
    assert torch.equal(waits["step"][1], waits["step_async"][1])
    assert waits["step_async"][0] == 0 < waits["step"][0]


@pytest.mark.parametrize("by", ["step_async", "step", "settle"])
def test_what_is_not_finite_in_an_asynchronous_step_is_found_by_the_next_call(cuda, by):
    toy = Toy()
    x = toy.data(6)
    svi = svi_for(toy, fused)
    for _ in range(6):
        svi.step(x)
    before, spoilt = numbers(toy), x.clone()
    spoilt[0, 0] = torch.nan
    assert svi.step_async(spoilt).isnan()
    for name, value in numbers(toy).items():
        assert torch.equal(value, before[name]), name
    with pytest.raises(ValueError, match=r"'x'|Expected parameter"):
        getattr(svi, by)(*(() if by == "settle" else (x,)))
    svi.settle()
    assert svi.step_async(x).isfinite()


@pytest.mark.parametrize("warm", [0, 4])
def test_a_step_that_is_not_finite_is_skipped_on_the_device(cuda, warm):
    toy = Toy()
    x = toy.data(6)
    svi = svi_for(toy, fused)
    for _ in range(1 + warm):
        svi.step(x)
    before, spoilt = numbers(toy), x.clone()
    spoilt[0, 0] = torch.nan
    steps = svi.optim.steps
    with pytest.raises(ValueError, match=r"'x'|Expected parameter"):
        svi.step(spoilt)
    for name, value in numbers(toy).items():
        assert torch.equal(value, before[name]), name
    assert svi.optim.steps == steps
    svi.step(x)
    assert svi.optim.steps == steps + 1


def test_the_first_step_of_all_is_skipped_too(cuda):
    """The optimiser is made in that step, unless its parameters were given."""
    program = Plain(lambda p, z, x, factor: SpoiltGradient.apply(p.decoder(z), factor))
    svi, x = svi_for(program, fused), torch.randn(6, 3)
    before = {name: value.clone() for name, value in program.state_dict().items()}
    with pytest.raises(ValueError, match="is not finite"):
        svi.step(x, torch.tensor(torch.inf))
    for name, value in program.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_loading_a_state_records_anew(cuda):
    toy = Toy()
    x = toy.data(6)
    svi = svi_for(toy, fused)
    for _ in range(6):
        svi.step(x)
    assert [graph.replays for graph in cuda.graphs] == [2]
    state = copy.deepcopy(svi.optim.state_dict())
    svi.optim.load_state_dict(state)
    for _ in range(6):
        svi.step(x)
    assert [graph.replays for graph in cuda.graphs] == [2, 3]


def test_a_state_that_was_cleared_records_anew(cuda):
    """The graph would go on with tensors that nobody else has."""
    batches = [(Toy().data(6),)] * 12

    def between(step, svi, program):
        if step == 6:
            svi.optim.others.state.clear()

    rate = 2**-7  # the same number in float32, as fused kernels read it: a new Adam's steps are large
    settings = {"optimizer": partial(torch.optim.Adam, lr=rate, fused=True), "between": between}
    losses, _, svi = trained(Toy, batches, **settings)
    assert [graph.replays for graph in cuda.graphs] == [2, 3]
    eager, _, other = trained(Toy, batches, eager=True, **settings)
    assert_close(torch.tensor(losses), torch.tensor(eager), **CLOSE)
    for one in (svi, other):
        assert {float(state["step"]) for state in one.optim.others.state.values()} == {6.0}


def test_a_hook_of_the_optimisers_steps_is_run_by_parts(cuda):
    batches, calls = [(Toy().data(6),)] * 9, []

    def between(step, svi, program):
        if step == 6:
            svi.optim.others.register_step_pre_hook(lambda *_: calls.append(step))

    settings = {"optimizer": fused, "between": between}
    losses, _, _ = trained(Toy, batches, **settings)
    assert [graph.replays for graph in cuda.graphs] == [2]
    assert len(calls) == 3
    eager, _, _ = trained(Toy, batches, eager=True, **settings)
    assert_close(torch.tensor(losses), torch.tensor(eager), **CLOSE)


def test_other_memory_records_anew(cuda):
    """A graph knows addresses; a parameter whose values moved would be read at the old one."""
    toy = Toy()
    x = toy.data(6)
    svi = svi_for(toy, fused)
    for _ in range(6):
        svi.step(x)
    toy.decoder.weight.data = toy.decoder.weight.data.clone()
    for _ in range(5):
        svi.step(x)
    assert [graph.replays for graph in cuda.graphs] == [2, 2]


def test_an_optimiser_that_needs_the_host_takes_steps_by_parts(cuda):
    toy = Toy()
    svi = svi_for(toy, partial(torch.optim.Adam, lr=1e-2))
    for _ in range(6):
        svi.step(toy.data(6))
    assert cuda.graphs == []


@pytest.mark.parametrize("make", [fused, partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True)])
def test_settings_of_groups_are_put_back(make):
    p = torch.nn.Parameter(torch.ones(2))
    optimizer = make([p])
    lr, settings = optimizer.param_groups[0]["lr"], dict(optimizer.param_groups[0])
    device = OptimizerOnDevice(optimizer, torch.device("cpu"))
    device.fill()
    p.grad = torch.ones(2)
    with pytest.raises(KeyError), device.steps(skip=torch.tensor(True)):
        assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(lr)
        optimizer.step()
        raise KeyError
    assert p.tolist() == [1.0, 1.0]
    assert {**optimizer.param_groups[0], "params": None} == {**settings, "params": None}
    assert type(optimizer.param_groups[0]["lr"]) is float
    assert not hasattr(optimizer, "found_inf")
    with device.steps(skip=None):
        optimizer.step()
    assert p.tolist() != [1.0, 1.0]


def test_current_knows_the_optimiser_by_its_state_and_groups():
    p = torch.nn.Parameter(torch.ones(2))
    one = fused([p])
    device = OptimizerOnDevice(one, torch.device("cpu"))
    assert device.current(one)
    assert not device.current(None)
    assert not device.current(fused([p]))
    one.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    assert not device.current(one)
    none = OptimizerOnDevice(None, torch.device("cpu"))
    assert none.current(None)
    assert not none.current(one)
    assert OptimizerOnDevice.possible(None)
    assert not OptimizerOnDevice.possible(torch.optim.Adam([p]))


def on_gpu(eager, batches, **settings):
    return trained(
        lambda: small_model((3, 2)).cuda(),
        batches,
        optimizer=fused,
        eager=eager,
        between=schedule,
        **settings,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("recompute", [False, True])
def test_a_gpu_takes_the_same_steps(recompute):
    batches = [(binary_data(7 - (step % 4 == 3)).cuda(),) for step in range(40)]
    (eager, expected, _), (losses, state, svi) = (
        on_gpu(eager, batches, recompute=recompute) for eager in (True, False)
    )
    assert all(step._graph is not None for step in svi._steps.values())
    # A graph's random numbers come in the order of eager ones, at offsets of its own: so both in their mean.
    assert sum(losses[20:]) == pytest.approx(sum(eager[20:]), rel=0.1)
    assert losses[0] == pytest.approx(eager[0], rel=1e-6)
    assert state.keys() == expected.keys()


@pytest.mark.gpu
def test_a_graph_on_a_gpu_draws_fresh_numbers():
    model = small_model().cuda()
    svi = svi_for(model, partial(torch.optim.SGD, lr=0.0, fused=True), rate=1e-9)
    x = binary_data(7).cuda()
    assert len({svi.step(x) for _ in range(20)}) == 20
    pyro.set_rng_seed(3)
    first = svi.step(x)
    pyro.set_rng_seed(3)
    assert svi.step(x) == pytest.approx(first, rel=1e-6)


@pytest.mark.gpu
def test_short_batches_on_a_gpu():
    model = small_model().cuda()
    svi = svi_for(model, fused)
    for step in range(16):
        svi.step(binary_data(7 if step % 4 else 3).cuda())
    assert len(svi._steps) == 2
    assert all(torch.isfinite(p).all() for p in model.parameters())
