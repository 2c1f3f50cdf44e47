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


def test_decodes_particle_by_particle(example, program):
    z = torch.randn(PARTICLES, example.I, 5, example.D)
    together, one_by_one = program[0].decode(z), [program[0].decode(one) for one in z]
    assert torch.allclose(together, torch.stack(one_by_one))
    assert together.shape == (PARTICLES, example.I, 5, example.X)


def test_vectorised_particles(program):
    one_by_one = torch.tensor([TraceConjugate_ELBO().loss(*program) for _ in range(NUMBER)])
    vectorised = TraceConjugate_ELBO(num_particles=NUMBER, vectorize_particles=True, max_plate_nesting=2)
    standard_error = one_by_one.std() * (2 / NUMBER) ** 0.5  # of the difference of two means
    assert abs(vectorised.loss(*program) - one_by_one.mean()) < 4 * standard_error


def test_predictive_in_parallel(example, program):
    model, guide, x = program
    drawn = Predictive(model, guide=guide, num_samples=PARTICLES, parallel=True)(x)
    assert drawn["x"].shape == (PARTICLES, *x.shape)
