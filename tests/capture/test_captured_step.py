"""Single captured steps: checkpoints, what is not finite, and the values that are filled in."""

import copy

import pyro
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pyro_fmvae.infer import TraceConjugate_ELBO
from tests.capture.captured import CLOSE, EXACT, Plain, SpoiltGradient, numbers, plainly, svi_for
from tests.infer.programs import Toy


def started(eager, **settings):
    pyro.set_rng_seed(1)
    toy = Toy()
    optim_of = svi_for(toy, eager=eager, **settings)
    optim_of.optim.adopt(list(toy.decoder.parameters()) + list(toy.encoder.parameters()))
    return toy, optim_of


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("first", [False, True], ids=["captured first", "eager first"])
def test_checkpoints_move_between_eager_and_captured(first, recompute):
    """Ten steps, saved, loaded into a new model and optimiser, ten more: as without the interruption."""
    x = torch.bernoulli(torch.full((6, 5), 0.5))
    whole, svi = started(first, recompute=recompute)
    pyro.set_rng_seed(5)
    for _ in range(20):
        svi.step(x)
    half, svi = started(first, recompute=recompute)
    pyro.set_rng_seed(5)
    for _ in range(10):
        svi.step(x)
    random = torch.get_rng_state()
    saved = copy.deepcopy((half.state_dict(), svi.optim.state_dict()))
    other, svi = started(not first, recompute=recompute)
    other.load_state_dict(saved[0])
    svi.optim.load_state_dict(saved[1])
    torch.set_rng_state(random)
    for _ in range(10):
        svi.step(x)
    assert svi.optim.steps == 20
    for (name, p), q in zip(whole.named_parameters(), other.parameters(), strict=True):
        assert_close(q, p, **CLOSE, msg=lambda text, n=name: f"{n}: {text}")


def snapshot(program, svi):
    moments = [v.clone() for s in svi.optim.others.state.values() for v in s.values()]
    return numbers(program), moments, svi.optim.steps


def assert_unchanged(before, program, svi):
    after = snapshot(program, svi)
    assert before[2] == after[2]
    assert all(map(torch.equal, before[1], after[1]))
    for name, value in before[0].items():
        assert torch.equal(after[0][name], value), name
    assert all(p.grad is None for p in program.parameters())


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_loss_that_is_not_finite_changes_nothing(bad, recompute):
    toy = Toy()
    x = toy.data(6)
    svi = svi_for(toy, recompute=recompute)
    svi.step(x)
    before, spoilt = snapshot(toy, svi), x.clone()
    spoilt[0, 0] = bad
    with pytest.raises(ValueError, match=r"'x'|distribution Normal|loc"):
        svi.step(spoilt)
    assert_unchanged(before, toy, svi)
    assert len(svi._steps) == 1
    assert svi.step(x) > 0
    assert svi.optim.steps == 2


def test_a_gradient_that_is_not_finite_changes_nothing():
    """The loss is finite, the decoder's gradient is not: parameters and site are named."""
    program = Plain(lambda p, z, x, factor: SpoiltGradient.apply(p.decoder(z), factor))
    svi, x = svi_for(program), torch.randn(6, 3)
    svi.step(x, torch.ones(()))
    before = snapshot(program, svi)
    with pytest.raises(ValueError, match=r"gradient of .*decoder\$\$\$weight.* is not finite; sites .*: 'x'"):
        svi.step(x, torch.tensor(torch.inf))
    assert_unchanged(before, program, svi)
    svi.step(x, torch.ones(()))


def test_without_validation_nothing_is_checked():
    toy = Toy()
    x = toy.data(6)
    svi = svi_for(toy)
    with pyro.validation_enabled(False):
        svi.step(x)
        x[0, 0] = torch.nan
        assert svi.step(x) != svi.step(x)  # NaN
    assert svi.optim.steps == 3
    assert not toy.loc_precision.natural.isfinite().all()


def test_a_new_encoder_that_fails_leaves_natural_parameters_alone():
    """With recompute, the second pass may be the first to see it."""
    toy = Toy()
    svi = svi_for(toy, lambda p: torch.optim.SGD(p, lr=1e200), recompute=True)
    before = toy.loc_precision.natural.clone()
    with pytest.raises(ValueError, match=r"Expected parameter|not finite"):
        svi.step(toy.data(6))
    assert torch.equal(toy.loc_precision.natural, before)
    assert svi.optim.steps == 0


@pytest.mark.parametrize("name", ["kl_weight", "label_weight"])
def test_weights_are_inputs(name):
    """Each change moves the loss, as in an eager step, and needs no other program."""
    toy = Toy(standard=True)
    x, labels = toy.data(6), torch.arange(12).reshape(2, 6) % 4 - 1
    losses = []
    for eager in (True, False):
        elbo = TraceConjugate_ELBO(**{name: 0.5})
        svi = svi_for(copy.deepcopy(toy), lambda p: torch.optim.SGD(p, lr=0.0), elbo=elbo, eager=eager)
        losses.append([])
        for value in (0.5, 7.0, torch.tensor(2.0), 2.0):
            setattr(elbo, name, value)
            pyro.set_rng_seed(0)
            losses[-1].append(svi.step(x, labels))
    assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=1e-13, atol=0)
    assert losses[1][2] == losses[1][3]
    assert len(set(losses[1])) == 3
    assert len(svi._steps) == 1


def test_a_rate_is_an_input():
    """λ moves by ρ times its gradient: twice as far at twice the rate, by the same program."""
    toy = Toy()
    x, rates, moves = toy.data(6), [0.1, 0.2, 1.0], []
    svi = svi_for(toy, lambda p: torch.optim.SGD(p, lr=0.0))
    start = toy.weights.natural.clone()
    for rate in rates:
        svi.optim.rate = rate
        with torch.no_grad():
            toy.weights.natural.copy_(start)
        pyro.set_rng_seed(0)
        loc_precision = toy.loc_precision.natural.clone()
        svi.step(x)
        moves.append((toy.weights.natural - start).detach())
        with torch.no_grad():
            toy.loc_precision.natural.copy_(loc_precision)
    assert len(svi._steps) == 1
    for rate, move in zip(rates, moves, strict=True):
        assert_close(move, rate * moves[2], rtol=1e-11, atol=1e-11)


def test_a_tensor_as_learning_rate():
    x = torch.randn(6, 3)
    runs = []
    for eager in (True, False):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        program = Plain(plainly)
        rate = torch.tensor(1e-3)
        svi = svi_for(program, lambda p, rate=rate: torch.optim.Adam(p, lr=rate, fused=True), eager=eager)
        for step in range(6):
            rate.fill_(1e-3 * (1 + step))
            svi.step(x)
        runs.append(numbers(program))
    for name, value in runs[0].items():
        assert_close(runs[1][name], value, **EXACT)


def test_gradients_of_others_are_left_where_they_are():
    """A parameter that the optimiser knows from another program keeps its value and its gradient."""
    program, apart = Plain(plainly), nn.Parameter(torch.ones(2))
    svi = svi_for(program)
    svi.optim.adopt([apart])
    apart.grad = torch.ones(2)
    svi.step(torch.randn(6, 3))
    svi.step(torch.randn(6, 3))
    assert torch.equal(apart, torch.ones(2))
    assert torch.equal(apart.grad, torch.ones(2))
