import copy
from functools import partial

import pyro
import pytest
import torch
from torch.nn import Parameter
from torch.testing import assert_close

from pyro_fmvae.distributions import NaturalParameter
from pyro_fmvae.infer import NaturalGradient, RobbinsMonro
from pyro_fmvae.infer.natural_gradient import step_towards_posterior

adam = partial(torch.optim.Adam, lr=0.1)


def parameters(count=2):
    made = [NaturalParameter(torch.randn(3, 4)), *(Parameter(torch.randn(2, i + 1)) for i in range(count))]
    return set_gradients(made)


def set_gradients(params, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, dtype=p.dtype, generator=generator)
    return params


def clone(params):
    return [copy.deepcopy(p) for p in params]


def assert_equal(params, others):
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("rate", [1.0, 0.25, 1e-6])
def test_natural_parameters_move_by_rate_times_gradient(rate):
    natural, *_ = params = parameters()
    expected = natural.detach() - rate * natural.grad
    NaturalGradient(rate, adam)(params)
    assert_close(natural.detach(), expected, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("rate", [1.0, 0.3, 1e-3])
def test_the_step_rounds_alike_with_a_number_and_with_a_tensor(rate):
    """Eager steps have ρ as a number, captured ones as a tensor."""
    starts, grad = [100 * torch.randn(1000)] * 2, torch.randn(1000)
    moved = [NaturalParameter(start) for start in starts]
    for natural, given in zip(moved, (rate, torch.tensor(rate)), strict=True):
        with torch.no_grad():
            step_towards_posterior(natural, grad, given)
    assert torch.equal(*moved)
    assert_close(moved[0].detach(), starts[0] - rate * grad, rtol=1e-15, atol=1e-15)


def test_other_parameters_move_as_under_one_torch_optimiser():
    params = parameters()
    reference = [Parameter(p.detach().clone()) for p in params[1:]]
    optim, other = NaturalGradient(0.5, adam), adam(reference)
    for step in range(3):
        set_gradients(params, step)
        for p, q in zip(reference, params[1:], strict=True):
            p.grad = q.grad.clone()
        optim(params)
        other.step()
    assert_equal(params[1:], reference)
    assert isinstance(optim.others, torch.optim.Adam)
    assert [p for group in optim.others.param_groups for p in group["params"]] == params[1:]


def test_a_schedule_is_followed():
    natural, *_ = params = parameters()
    schedule, start = RobbinsMonro(3, 0.7), natural.detach().clone()
    optim = NaturalGradient(schedule, adam)
    for step in range(4):
        assert optim.current_rate == schedule(step)
        natural.grad = torch.ones_like(natural)
        optim(params)
    assert optim.steps == 4
    assert_close(natural.detach(), start - sum(schedule(step) for step in range(4)))


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0001, float("nan")])
def test_rate_out_of_range(rate):
    with pytest.raises(ValueError, match=r"rate: expected a step size in \(0, 1\], got"):
        NaturalGradient(rate, adam)
    natural, *_ = params = parameters()
    before = natural.detach().clone()
    with pytest.raises(ValueError, match=r"rate: expected a step size in \(0, 1\], got"):
        NaturalGradient(lambda step: rate, adam)(params)
    assert torch.equal(natural, before)


def test_nothing_is_left_of_a_step_at_a_rate_out_of_range():
    params = parameters()
    before = clone(params)
    optim = NaturalGradient(lambda step: 2.0, adam, params)
    with pytest.raises(ValueError, match="rate: expected a step size"):
        optim(params)
    assert_equal(params, before)
    assert all(p.grad is None for p in params)
    assert optim.steps == 0


def test_parameters_without_gradient_stay():
    params = parameters()
    for p in params[:2]:
        p.grad = None
    before = clone(params)
    NaturalGradient(0.5, adam)(params)
    assert_equal(params[:2], before[:2])
    assert not torch.equal(params[2], before[2])


def test_gradients_are_dropped_so_that_none_counts_twice():
    params = parameters()
    optim = NaturalGradient(0.5, adam)
    optim(params)
    assert all(p.grad is None for p in params)
    before = clone(params)
    optim(params)
    assert_equal(params, before)


def test_a_parameter_given_twice_moves_once():
    params = parameters()
    other = clone(params)
    for p, q in zip(other, params, strict=True):
        p.grad = q.grad.clone()
    NaturalGradient(0.5, adam)([*params, *params])
    NaturalGradient(0.5, adam)(other)
    assert_equal(params, other)


def test_known_parameters_that_are_not_given_stay():
    params = parameters(3)
    optim = NaturalGradient(0.5, adam, params)
    optim(params)
    before = clone(params)
    absent = params[1]
    grad = set_gradients(params, 1)[1].grad
    optim([p for p in params if p is not absent])
    assert torch.equal(absent, before[1])
    assert absent.grad is grad
    assert not torch.equal(params[2], before[2])


def test_parameters_added_later():
    natural, first, second = params = parameters()
    optim = NaturalGradient(0.5, adam, [natural, first])
    optim([natural, first])
    optim(set_gradients(params))
    assert [group["params"] for group in optim.others.param_groups] == [[first], [second]]
    assert optim.others.state[first]["step"] == 2
    assert optim.others.state[second]["step"] == 1


def test_order_of_parameters_in_the_store_does_not_depend_on_the_set():
    for name in "cab":
        pyro.param(name, torch.randn(2))
    tensors = [pyro.param(name).unconstrained() for name in "cab"]
    optim = NaturalGradient(0.5, adam)
    optim(set_gradients(tensors))
    expected = [pyro.param(name).unconstrained() for name in "abc"]
    assert all(p is q for p, q in zip(optim.others.param_groups[0]["params"], expected, strict=True))


def seeded_parameters(count):
    torch.manual_seed(0)
    return parameters(count)


def steps(optim, params, sizes, seeds):
    """One step for each seed; the i-th brings the first i groups of parameters."""
    for i, seed in enumerate(seeds):
        known = params[: 1 + sum(sizes[: i + 1])]
        optim(set_gradients(known, seed))


@pytest.mark.parametrize("sizes", [(2,), (1, 2), (2, 1, 1)])
def test_lazily_loaded_state_continues_to_the_bit(sizes):
    params, optim = seeded_parameters(sum(sizes)), NaturalGradient(RobbinsMonro(1), adam)
    steps(optim, params, sizes, range(4))
    state, middle = copy.deepcopy(optim.state_dict()), clone(params)
    fresh = NaturalGradient(RobbinsMonro(1), adam)
    fresh.load_state_dict(state)
    pending = fresh.state_dict()["others"]
    assert pending["state"].keys() == state["others"]["state"].keys()
    assert fresh.steps == 4
    for size in range(len(sizes)):  # the parameters turn up one group after another
        fresh.step_others([*middle[: 1 + sum(sizes[: size + 1])]])
        again = fresh.state_dict()["others"]  # as much as was loaded, whatever has turned up so far
        assert again["param_groups"] == state["others"]["param_groups"]
        assert again["state"].keys() == state["others"]["state"].keys()
        for number, kept in again["state"].items():
            assert_equal(kept.values(), state["others"]["state"][number].values())
    for p in middle:
        assert p.grad is None
    set_gradients(params, 9)
    set_gradients(middle, 9)
    optim(params)
    fresh(middle)
    assert_equal(params, middle)
    assert fresh.steps == optim.steps == 5
    for p, q in zip(params[1:], middle[1:], strict=True):
        assert_equal(optim.others.state[p].values(), fresh.others.state[q].values())


def test_a_group_that_turns_up_late_does_not_set_the_others_back():
    params, optim = seeded_parameters(2), NaturalGradient(0.5, adam)
    steps(optim, params, (1, 1), range(3))  # three steps of the first, two of the second
    fresh = NaturalGradient(0.5, adam)
    fresh.load_state_dict(copy.deepcopy(optim.state_dict()))
    fresh(set_gradients(params[:2]))
    fresh(set_gradients(params))
    assert [int(fresh.others.state[p]["step"]) for p in params[1:]] == [5, 3]


def test_state_loaded_when_all_parameters_are_known():
    params, optim = seeded_parameters(2), NaturalGradient(0.5, adam)
    steps(optim, params, (2,), range(3))
    other = clone(params)
    fresh = NaturalGradient(0.5, adam, other)
    fresh.set_state(copy.deepcopy(optim.get_state()))
    set_gradients(params, 9)
    set_gradients(other, 9)
    optim(params)
    fresh(other)
    assert_equal(params, other)


def test_state_of_other_sizes_is_refused():
    optim = NaturalGradient(0.5, adam, parameters(2))
    fresh = NaturalGradient(0.5, adam, parameters(3))
    with pytest.raises(ValueError, match="doesn't match the size"):
        fresh.load_state_dict(optim.state_dict())


def test_a_state_without_other_parameters():
    optim = NaturalGradient(0.5, adam)
    optim(parameters(0))
    assert optim.state_dict() == {"steps": 1, "others": None}
    fresh = NaturalGradient(0.5, adam)
    fresh.load_state_dict(optim.state_dict())
    fresh(parameters(1))
    assert fresh.steps == 2


def test_learning_rate_schedulers_work_on_the_others():
    _, first, _ = params = parameters()
    optim = NaturalGradient(0.5, partial(torch.optim.SGD, lr=1.0), params)
    scheduler = torch.optim.lr_scheduler.StepLR(optim.others, step_size=1, gamma=0.1)
    for size in (1.0, 0.1, 0.01):
        set_gradients(params)
        expected = first.detach() - size * first.grad
        optim(params)
        assert_close(first.detach(), expected, rtol=1e-14, atol=1e-14)
        scheduler.step()


def test_nothing_is_pickled(tmp_path):
    optim = NaturalGradient(0.1, partial(torch.optim.SGD, lr=0.1))
    with pytest.raises(NotImplementedError, match="save: would pickle"):
        optim.save(str(tmp_path / "state"))
    with pytest.raises(NotImplementedError, match="load: would unpickle"):
        optim.load(str(tmp_path / "state"))
    assert not list(tmp_path.iterdir())


def test_an_optimiser_of_pyros_is_refused():
    with pytest.raises(TypeError, match=r"others: expected a function .*, got one of Pyro's"):
        NaturalGradient(0.5, pyro.optim.Adam({"lr": 0.1}))


def test_a_function_that_makes_no_optimiser_is_refused():
    with pytest.raises(TypeError, match=r"others: expected a function .*, got what makes a NoneType"):
        NaturalGradient(0.5, lambda params: None)(parameters())
