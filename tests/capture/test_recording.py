"""A function on tensors as a recording."""

import weakref

import pytest
import torch
from torch import library as operators
from torch import nn
from torch.utils.checkpoint import checkpoint

from pyro_fmvae.capture import CaptureError
from pyro_fmvae.capture.recording import record
from tests.capture.captured import Plain, svi_for


def ran(recording, *inputs):
    with torch.no_grad():
        return recording.function()(*inputs, *recording.state)


def test_given_tensors_are_inputs_and_found_ones_are_read_anew():
    found, x = torch.tensor([1.0, 2.0]), torch.ones(2)
    recording = record(lambda x: (x * found,), [x])
    assert any(tensor.data_ptr() == found.data_ptr() for tensor in recording.state)
    found.fill_(5.0)
    assert ran(recording, 2 * x)[0].tolist() == [10.0, 10.0]


def test_found_tensors_that_come_first_leave_the_graph_whole():
    """Compilers walk it backwards as well."""
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    nodes = record(lambda x: (one * two + x,), [torch.ones(2)]).graph.nodes
    assert list(reversed(nodes)) == list(nodes)[::-1]


def test_one_tensor_given_twice_is_two_inputs():
    x = torch.ones(2)
    recording = record(lambda x, y: (x - y,), [x, x])
    assert ran(recording, 3 * x, x)[0].tolist() == [2.0, 2.0]


def test_results_in_lists_and_changes_of_lists_are_recorded():
    weight = torch.zeros(2)

    def function(x):
        first, second = x.split([1, 2])
        torch._foreach_add_([weight], [second])
        return first, weight * 2, *torch.nn.functional.layer_norm(x, (3,)).unbind()

    recording = record(function, [torch.randn(3)], [weight])
    x = torch.tensor([1.0, 2.0, 4.0])
    first, doubled, *normal = ran(recording, x)
    assert first == 1
    assert weight.tolist() == [2.0, 4.0]
    assert doubled.tolist() == [4.0, 8.0]
    assert torch.equal(torch.stack(normal), torch.nn.functional.layer_norm(x, (3,)))


def test_a_cast_from_before_the_recording_is_not_taken_for_a_constant():
    x, weight = (
        torch.ones(2, 2, dtype=torch.float32),
        torch.ones(2, 2, dtype=torch.float32, requires_grad=True),
    )
    with torch.autocast("cpu", torch.bfloat16):
        x @ weight  # the cast of the weight is kept while autocast is on
        recording = record(lambda x: (x @ weight,), [x])
        assert torch.is_autocast_cache_enabled()
    with torch.no_grad():
        weight.fill_(3.0)
    assert ran(recording, x)[0].tolist() == [[6.0, 6.0], [6.0, 6.0]]


def test_a_loop_takes_memory_for_the_results_that_are_alive():
    alive = []

    def function(x):
        for _ in range(50):
            x = x + 1.0
            alive.append(weakref.ref(x))
        assert sum(each() is not None for each in alive) == 1
        return (x,)

    record(function, [torch.ones(3)])


@pytest.mark.parametrize("fails", [False, True])
def test_state_and_random_numbers_are_restored(fails):
    state = torch.zeros(2)

    def function(x):
        state.add_(torch.rand(2))
        if fails:
            state.sum().item()
        return (state * x,)

    random = torch.get_rng_state()
    if fails:
        with pytest.raises(CaptureError, match=r"state\.sum\(\)\.item\(\)"):
            record(function, [torch.ones(())], [state])
    else:
        recording = record(function, [torch.ones(())], [state])
    assert torch.equal(state, torch.zeros(2))
    assert torch.equal(torch.get_rng_state(), random)
    if not fails:
        first = ran(recording, torch.ones(()))[0].clone()
        assert torch.equal(first, state)
        assert not torch.equal(ran(recording, torch.ones(()))[0] - first, first)


def test_split_runs_the_same_operations_in_two_parts():
    weight = torch.ones(2)

    def function(x):
        y = x * weight
        loss = (y**2).sum()
        weight.mul_(3.0)
        return loss, (y * weight).sum()

    recording = record(function, [torch.ones(2)], [weight])
    first, second = recording.split(1, 1)
    x = torch.tensor([1.0, 2.0])
    loss, *crossing = results = ran(first, x)
    assert loss == 5
    assert len(crossing) == 1
    assert torch.equal(weight, torch.ones(2))
    weight.fill_(10.0)  # what an optimiser does in between
    (rest,) = ran(second, x, *results)
    assert rest == 3 * 10 * 3
    assert torch.equal(weight, torch.full((2,), 30.0))


@pytest.mark.parametrize(
    "body",
    [
        lambda p, z, x: (torch.manual_seed(0), p.decoder(z) + torch.rand(3))[1],
        lambda p, z, x: checkpoint(lambda t: nn.functional.dropout(p.decoder(t)), z, use_reentrant=False),
    ],
    ids=["seed", "checkpoint"],
)
def test_refuses_to_rewind_random_numbers(body):
    with pytest.raises(CaptureError, match="it sets the state of the random number generator"):
        svi_for(Plain(body)).step(torch.randn(6, 3))


def test_what_does_not_run_again_is_an_error():
    runs = []

    @operators.custom_op("pyro_fmvae_tests::once", mutates_args=())
    def once(x: torch.Tensor) -> torch.Tensor:
        runs.append(x)
        if len(runs) > 1:
            raise RuntimeError("it ran before")
        return x.clone()

    with pytest.raises(CaptureError, match=r"does not run again \(it ran before\)\. Pass eager=True"):
        record(lambda x: (once(x),), [torch.ones(2)])
