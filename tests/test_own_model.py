"""The example that users begin with works with whatever Pyro puts to the left of its plates."""

from pathlib import Path

import pytest
import torch
from pyro.infer import Predictive

from pyro_fmvae import TraceConjugate_ELBO
from tests.scripts import imported

PARTICLES, NUMBER = 3, 400


@pytest.fixture
def example():
    with imported(Path(__file__).resolve().parent.parent / "examples", ["own_model"]) as modules:
        yield modules.own_model


@pytest.fixture
def program(example):
    model = example.Model()
    return model, example.Guide(model), torch.randn(example.I, 5, example.X)


def test_each_factor_has_its_decoder(example, program):
    model, z = program[0], torch.randn(PARTICLES, example.I, 5, example.D)
    decoded = model.decode(z)
    assert decoded.shape == (PARTICLES, example.I, 5, example.X)
    for particle in range(PARTICLES):
        assert torch.allclose(model.decode(z[particle]), decoded[particle])
        for i in range(example.I):
            alone = model.decoders[i](z[particle, i])
            assert torch.allclose(alone.reshape(5, example.X), decoded[particle, i])


def test_vectorised_particles(program):
    one_by_one = torch.tensor([TraceConjugate_ELBO().loss(*program) for _ in range(NUMBER)])
    vectorised = TraceConjugate_ELBO(num_particles=NUMBER, vectorize_particles=True, max_plate_nesting=2)
    standard_error = one_by_one.std() * (2 / NUMBER) ** 0.5  # of the difference of two means
    assert abs(vectorised.loss(*program) - one_by_one.mean()) < 4 * standard_error


def test_predictive_in_parallel(example, program):
    model, guide, x = program
    drawn = Predictive(model, guide=guide, num_samples=PARTICLES, parallel=True)(x)
    assert drawn["x"].shape == (PARTICLES, *x.shape)
