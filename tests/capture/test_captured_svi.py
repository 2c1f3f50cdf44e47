"""Captured steps give the numbers of eager steps, over hundreds of steps, from the same seeds."""

import logging
from functools import partial

import pyro
import pytest
import torch

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.capture.guards import Call
from pyro_fmvae.infer import NaturalGradient, RobbinsMonro, TraceConjugate_ELBO
from tests.capture.captured import (
    EXACT,
    Plain,
    a_toy,
    adam,
    assert_twins,
    batches_of,
    plainly,
    svi_for,
    trained,
)
from tests.infer.programs import Toy
from tests.models.small import binary_data, small_model


def schedules(step, svi, program):
    """A KL weight that passes through exactly 1, as a float and as a tensor; a learning rate that falls."""
    weight = 0.5 + step / 100 if step < 100 else 1.25
    svi.elbo.kl_weight = torch.tensor(weight) if step % 3 == 1 else weight
    if step in (75, 150):
        for group in svi.optim.others.param_groups:
            group["lr"] *= 0.3


def labels_for(size, columns):
    return torch.arange(size * columns).reshape(size, columns) % 4 - 1  # -1: unknown


@pytest.mark.parametrize(
    ("sizes", "recompute", "steps"),
    [((3,), False, 300), pytest.param((3, 2), True, 60, marks=pytest.mark.slow)],
)
def test_factorial_mixture_vae(sizes, recompute, steps):
    batches = batches_of([binary_data(20)], 7, steps)  # 7, 7 and 6 points
    svi = assert_twins(
        lambda: small_model(sizes),
        batches,
        between=schedules,
        rate=RobbinsMonro(delay=1.0, first_step=0.3),
        recompute=recompute,
    )
    assert len(svi._steps) == 3  # two shapes, and one of them with a weight of exactly 1


def standard_model():
    model = small_model((4, 3), labelled=(0,))
    for group in model.factor_groups():
        if group.columns:
            group.use_standard()
    return model


def label_schedule(step, svi, program):
    svi.elbo.label_weight = (0.0, 3.0, 3.0 + step, torch.tensor(2.0))[step // 5 % 4]


@pytest.mark.parametrize("recompute", [False, True])
def test_labels(recompute):
    data = [binary_data(20), labels_for(20, 1)]
    assert_twins(standard_model, batches_of(data, 20, 20), between=label_schedule, recompute=recompute)


def test_labels_of_natural_posteriors():
    """They clamp responsibilities; their weight is 0, and has to stay a number for that."""
    data = [binary_data(20), labels_for(20, 1)]
    assert_twins(lambda: small_model((4,), labelled=(0,)), batches_of(data, 20, 10))


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1),
        partial(torch.optim.Adam, lr=1e-2, fused=True),
        partial(torch.optim.SGD, lr=1e-4, momentum=0.9),
    ],
    ids=["AdamW", "fused", "SGD"],
)
def test_optimisers(optimizer):
    assert_twins(a_toy(), [(binary(6),)] * 40, optimizer=optimizer)


def binary(size):
    return torch.bernoulli(torch.full((size, 5), 0.5))


def test_learning_rate_scheduler():
    def between(step, svi, program):
        if step == 1:
            svi.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(svi.optim.others, 40)
        elif step > 1:
            svi.scheduler.step()

    assert_twins(a_toy(), [(binary(6),)] * 40, between=between)


@pytest.mark.parametrize(("vectorize", "recompute"), [(False, False), (True, True)])
def test_particles(vectorize, recompute):
    elbo = partial(
        TraceConjugate_ELBO,
        num_particles=2,
        vectorize_particles=vectorize,
        max_plate_nesting=2,
        kl_weight=0.7,
    )
    assert_twins(a_toy(), [(binary(6),)] * 10, elbo=elbo, recompute=recompute)


@pytest.mark.parametrize("recompute", [False, True])
def test_plate_that_draws_its_minibatch(recompute):
    def make():
        toy = Toy(num_data=12)
        toy.batch_size = 4
        return toy

    assert_twins(make, [(binary(12),)] * 60, recompute=recompute)


def small_vae():
    return small_model((1,)).pretraining()


@pytest.mark.parametrize("kind", [torch.tensor, float])
def test_vae_with_a_weight_among_its_arguments(kind):
    """As a tensor, the weight is an input of one program; each float has a program of its own."""
    weights = [0.1, 0.4, 0.7, 1.0]
    batches = [(x, None, kind(weights[n // 8])) for n, (x,) in enumerate(batches_of([binary_data()], 8, 32))]
    svi = assert_twins(small_vae, batches, EXACT)  # nothing is natural here
    assert len(svi._steps) == (2 if kind is torch.tensor else 8)


def test_programs_without_natural_parameters_agree_bit_by_bit():
    assert_twins(lambda: Plain(plainly, scale=True), [(torch.randn(6, 3),)] * 200, EXACT)


def test_the_moment_of_capture_does_not_matter():
    plain = [(binary(6),)] * 10

    def forget(step, svi, program):
        if step in (1, 5):
            svi._steps.clear()

    once, anew = (trained(Toy, plain, between=between) for between in (None, forget))
    assert once[0] == anew[0]
    for name, value in once[1].items():
        assert torch.equal(anew[1][name], value), name


@pytest.mark.parametrize("recompute", [False, True])
def test_capturing_changes_nothing(recompute):
    """Neither parameters nor buffers, optimiser or random numbers, whether it succeeds or not."""
    toy = Toy()
    x, y = toy.data(8), toy.data(6)
    toy.encoder = torch.nn.Sequential(torch.nn.BatchNorm1d(5), torch.nn.Dropout(0.5), toy.encoder)
    svi = svi_for(toy, recompute=recompute)
    svi.step(y)
    state = {name: value.clone() for name, value in toy.state_dict().items()}
    moments = [value.clone() for s in svi.optim.others.state.values() for value in s.values()]
    random = torch.get_rng_state()
    captured = svi._capture(Call((x,), {}))
    assert captured.assumptions.hold()
    assert torch.equal(torch.get_rng_state(), random)
    for name, value in toy.state_dict().items():
        assert torch.equal(value, state[name]), name
    after = [value for s in svi.optim.others.state.values() for value in s.values()]
    assert all(map(torch.equal, after, moments))
    assert all(p.grad is None for p in toy.parameters())
    assert svi.optim.steps == 1


def test_replays_draw_fresh_numbers():
    program = Plain(plainly)
    svi = svi_for(program, partial(torch.optim.SGD, lr=0.0))
    x = torch.randn(6, 3)
    losses = [svi.step(x) for _ in range(20)]
    assert len(set(losses)) == 20
    pyro.set_rng_seed(7)
    first = svi.step(x)
    pyro.set_rng_seed(7)
    assert svi.step(x) == first


def test_a_new_shape_is_captured_and_the_one_used_longest_ago_is_dropped(caplog):
    svi, x = svi_for(Plain(plainly)), torch.randn(20, 3)
    with caplog.at_level(logging.INFO, "pyro_fmvae"):
        for size in (*range(1, 9), 1, 9, 1, 2):  # 9 drops 2, since 1 was used again; then 2 drops 3
            svi.step(x[:size])
    sizes = [int(r.getMessage().split("[")[1].split(",")[0]) for r in caplog.records]
    assert sizes == [*range(1, 10), 2]
    assert len(svi._steps) == 8
    assert "captured the step on [9, 3]: " in caplog.records[8].getMessage()


def test_equal_numbers_of_different_types_are_different_arguments():
    def body(program, z, x, flag):
        return program.decoder(z) * (2.0 if flag is True else 1.0)

    batches = [(torch.randn(6, 3), flag) for flag in (1, True, 1.0, 1, True)]
    svi = assert_twins(lambda: Plain(body), batches, EXACT)
    assert len(svi._steps) == 3


def test_arguments_by_name_and_in_containers():
    def body(program, z, x, shift=0.0, more=()):
        return program.decoder(z) + shift + more[0] - more[1]

    program = Plain(body)
    svi, x = svi_for(program, partial(torch.optim.SGD, lr=0.0)), torch.zeros(6, 3)
    eager = svi_for(program, partial(torch.optim.SGD, lr=0.0), eager=True)
    for shift in (0.0, 5.0):
        kwargs = {"shift": torch.tensor(shift), "more": [torch.ones(3) * shift, 3]}
        values = []
        for each in (svi, eager):
            pyro.set_rng_seed(2)
            values.append(each.step(x, **kwargs))
        assert values[0] == values[1]
    assert len(svi._steps) == 1


def test_settings_may_change_between_steps():
    def between(step, svi, program):
        svi.recompute = step % 3 == 1

    assert_twins(a_toy(), [(binary(6),)] * 6, between=between)


def test_a_rate_out_of_range():
    toy = Toy()
    svi = CapturedSVI(
        toy.model, toy.guide, NaturalGradient(lambda step: 0.5 + step, adam), TraceConjugate_ELBO()
    )
    svi.step(toy.data(6))
    with pytest.raises(ValueError, match="rate: expected a step size"):
        svi.step(toy.data(6))
