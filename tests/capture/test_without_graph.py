"""When a step becomes a CUDA graph, and what happens to one that does not; optimisers inside of graphs."""

import logging
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.fx import Graph
from torch.testing import assert_close

from pyro_fmvae.capture import captured_svi
from pyro_fmvae.capture.captured_svi import CapturedStep
from pyro_fmvae.capture.playback import CUDAGraph, NotRecordable, OptimizerOnDevice
from pyro_fmvae.capture.recording import Layout, Recording, record
from tests.capture.captured import CLOSE, numbers, svi_for, trained
from tests.capture.cuda_double import stand_in
from tests.infer.programs import Toy

fused = partial(torch.optim.Adam, lr=2**-7, fused=True)  # a number of float32, as fused kernels read it


@pytest.fixture
def cuda(monkeypatch):
    return stand_in(monkeypatch)


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "pyro_fmvae")
    return caplog


def reasons(log):
    start = "steps are not replayed as CUDA graphs: "
    messages = [record.getMessage() for record in log.records]
    return [message.removeprefix(start) for message in messages if message.startswith(start)]


# ------------------------------------------------------------------ programs with tensors on the host


def program_of(*steps, state=()):
    """A recording by hand of operations, (target, device of the result), and of state, by its devices."""
    graph = Graph()
    node = graph.placeholder("x")
    for target, device in steps:
        node = graph.call_function(target, (node,))
        node.meta["layouts"] = [Layout(torch.Size([2]), (1,), torch.float32, torch.device(device))]
    graph.output((node,))
    return Recording(graph, tuple(SimpleNamespace(device=torch.device(device)) for device in state))


SIN, NUMBER = torch.ops.aten.sin.default, torch.ops.aten.scalar_tensor.default


@pytest.mark.parametrize(
    ("steps", "state", "expected"),
    [
        ([(SIN, "cuda")], [], True),
        ([(SIN, "cuda"), (SIN, "cuda")], ["cuda"], True),
        ([(SIN, "cuda"), (SIN, "cpu")], ["cuda"], False),
        ([(SIN, "cpu")], [], False),
        ([(SIN, "cuda")], ["cuda", "cpu"], False),
        ([(SIN, "cuda"), (NUMBER, "cpu")], [], True),  # a number that was written into the program
        ([(torch.ops.aten.full.default, "cpu"), (SIN, "cuda")], [], True),
    ],
)
def test_where_a_programs_tensors_are(steps, state, expected):
    assert program_of(*steps, state=state).on_device() is expected


def test_a_program_on_the_host_is_not_on_a_gpu():
    weight = torch.ones(2)
    assert not record(lambda x: ((x * weight).sum(),), [torch.ones(2)]).on_device()


def test_says_that_tensors_are_on_the_host(log):
    def step(scalar, on_device):
        svi = SimpleNamespace(ranks=None)
        lists = {name: [] for name in ("used", "sites", "others", "sums")}
        recorded = SimpleNamespace(**lists, svi=svi, checked=True, inside=None, turns=None, scalars=[scalar])
        return CapturedStep(recorded, [], None, None, None, on_device)

    step(SimpleNamespace(is_cuda=True), on_device=True)
    assert reasons(log) == []
    step(SimpleNamespace(is_cuda=True), on_device=False)._no_graph("anything else")
    assert reasons(log) == ["the program has tensors on the host"]
    step(torch.zeros(()), on_device=False)
    assert len(reasons(log)) == 1  # nobody expects graphs on a CPU


def test_batches_on_the_host_take_steps_by_parts(cuda, log, monkeypatch):
    monkeypatch.setattr(captured_svi, "_on_gpu", lambda inputs: len(inputs) == 1)  # but for the data
    toy = Toy()
    svi, x = svi_for(toy, fused), toy.data(6)
    for _ in range(6):
        svi.step(x)
    assert cuda.graphs == []
    assert reasons(log) == ["the program has tensors on the host"]


def test_an_optimiser_that_needs_the_host_is_named_once(cuda, log):
    toy = Toy()
    svi, x = svi_for(toy), toy.data(6)
    for _ in range(6):
        svi.step(x)
    assert cuda.graphs == []
    assert reasons(log) == ["the optimiser has hooks, or is neither fused nor capturable"]


# ------------------------------------------------------------------ graphs that cannot be recorded


@pytest.mark.parametrize("recompute", [False, True])
def test_steps_that_cannot_be_recorded_are_taken_by_parts(cuda, log, recompute):
    batches = [(Toy().data(6),)] * 9
    settings = {"optimizer": fused, "recompute": recompute}
    cuda.refusal = "operation not permitted when stream is capturing\nmore of it"
    losses, state, svi = trained(Toy, batches, **settings)
    assert reasons(log) == ["operation not permitted when stream is capturing"]
    assert [graph.replays for graph in cuda.graphs] == [0]
    eager, expected, _ = trained(Toy, batches, eager=True, **settings)
    assert svi.optim.steps == 9
    assert_close(torch.tensor(losses), torch.tensor(eager), **CLOSE)
    for name, value in expected.items():
        assert_close(state[name], value, **CLOSE, msg=lambda text, n=name: f"{n}: {text}")
    assert type(svi.optim.others.param_groups[0]["lr"]) is float
    assert not hasattr(svi.optim.others, "found_inf")


def test_steps_by_parts_after_a_refusal_check_too(cuda):
    toy = Toy()
    x = toy.data(6)
    svi = svi_for(toy, fused)
    cuda.refusal = "no"
    for _ in range(6):
        svi.step(x)
    before, spoilt = numbers(toy), x.clone()
    spoilt[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"'x'|Expected parameter"):
        svi.step(spoilt)
    assert all(torch.equal(value, before[name]) for name, value in numbers(toy).items())


def test_what_a_graph_cannot_hold(cuda):
    graph = CUDAGraph(lambda x: x.sum())
    for _ in range(3):
        assert graph(torch.ones(2)) == 2
    cuda.refusal = "no\nwhy"
    with pytest.raises(NotRecordable, match=r"^no$"):
        graph(torch.ones(2))
    cuda.refusal = ""
    assert graph(2 * torch.ones(2)) == 4


@pytest.mark.parametrize(
    "x",
    [torch.rand(3, 4).mT, torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.rand(6)[::2]],
    ids=["transposed", "channels last", "every other"],
)
def test_where_data_are_copied_to_has_their_strides(cuda, x):
    """A program was recorded for them: its views would be of other elements."""
    strides, weights = x.stride(), torch.arange(x.numel()).reshape(x.shape).to(x)
    graph = CUDAGraph(lambda x: (x.as_strided(weights.shape, strides) * weights).sum())
    for call in range(6):
        x.mul_(1 + call)
        assert_close(graph(x), (x * weights).sum())


# ------------------------------------------------------------------ optimisers inside


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lr", [0.25, torch.tensor(0.25, dtype=torch.float64)])
def test_learning_rates_are_what_fused_kernels_read(dtype, lr):
    torch.set_default_dtype(dtype)
    p = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([p], lr=lr, fused=True)
    device = OptimizerOnDevice(optimizer, torch.device("cpu"))
    device.fill()
    with device.steps(skip=None):
        rate = optimizer.param_groups[0]["lr"]
    assert rate.dtype == torch.float32
    assert rate == 0.25
    assert optimizer.param_groups[0]["lr"] is lr


@pytest.mark.parametrize(
    ("name", "value"), [("betas", (0.5, 0.9)), ("weight_decay", 0.1), ("eps", 1e-3), ("maximize", True)]
)
def test_current_notices_settings_that_a_graph_holds(name, value):
    optimizer = fused([nn.Parameter(torch.ones(2))])
    device = OptimizerOnDevice(optimizer, torch.device("cpu"))
    optimizer.param_groups[0]["lr"] = 0.5
    with device.steps(skip=None):
        optimizer.step()
    assert device.current(optimizer)
    optimizer.param_groups[0][name] = value
    assert not device.current(optimizer)


def test_other_settings_record_anew(cuda):
    batches = [(Toy().data(6),)] * 12

    def between(step, svi, program):
        if step == 6:
            svi.optim.others.param_groups[0]["betas"] = (0.5, 0.6)
        if step == 7:
            svi.optim.others.param_groups[0]["weight_decay"] = 0.3

    settings = {"optimizer": fused, "between": between}
    losses, _, _ = trained(Toy, batches, **settings)
    assert [graph.replays for graph in cuda.graphs] == [2, 2]
    eager, _, _ = trained(Toy, batches, eager=True, **settings)
    assert_close(torch.tensor(losses), torch.tensor(eager), **CLOSE)
