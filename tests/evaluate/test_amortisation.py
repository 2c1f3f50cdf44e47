"""The amortisation gap: against its closed form in a linear model, and on trained ones."""

import math

import pytest
import torch
from torch import nn

from pyro_fmvae import VAE, FactorialMixtureVAE, GaussianObservation, fit
from pyro_fmvae.evaluate import bound
from pyro_fmvae.evaluate.amortisation import amortisation_gap
from pyro_fmvae.learn.fmvae_phases import Joint
from pyro_fmvae.learn.options import FMVAEOptions, VAEOptions
from pyro_fmvae.learn.phase import Budget
from pyro_fmvae.learn.vae_phases import VAEJoint
from pyro_fmvae.models.vae import PointPosterior
from pyro_fmvae.nn import MLPDecoder, MLPEncoder
from tests.models.small import Linear, binary_data, small_model

SIGMA = 0.8


class Posterior(nn.Module):
    """The best factorised Gaussian, moved, and its scale multiplied."""

    def __init__(self, matrix, shift, factor):
        super().__init__()
        self.precision = torch.eye(2) + matrix.T @ matrix / SIGMA**2
        self.gain = torch.linalg.inv(self.precision) @ matrix.T / SIGMA**2
        self.shift, self.factor = shift, factor

    def forward(self, x):
        loc = x @ self.gain.T + self.shift
        return loc, (self.factor / self.precision.diagonal().sqrt()).expand_as(loc)


def linear(shift, factor):
    matrix = torch.tensor([[1.0, 0.3], [-0.4, 0.8], [0.2, 0.5]])
    observation = GaussianObservation(1, SIGMA - 0.1, SIGMA + 0.1)
    return VAE(Posterior(matrix, shift, factor), Linear(matrix), observation, 2, 40)


@pytest.mark.parametrize(("shift", "factor"), [((0.0, 0.0), 1.0), ((0.5, -0.3), 1.0), ((0.2, 0.1), 2.0)])
def test_gap_is_that_of_the_closed_form(shift, factor):
    """Half δᵀ P δ for a location, half of f² - 1 - log f² for each of two scales."""
    vae, delta = linear(torch.tensor(shift), factor), torch.tensor(shift)
    expected = 0.5 * delta @ vae.encoder.precision @ delta + factor**2 - 1 - 2 * math.log(factor)
    found = amortisation_gap(vae, [(torch.randn(1000, 3),)], steps=400, num_samples=30)
    assert found["n"] == 1000
    tolerance = 4 * found["standard_error"] + 0.02  # the steps stop a little short of the optimum
    assert found["amortisation_gap"] == pytest.approx(expected.item(), abs=tolerance)
    assert tolerance < 0.08
    difference = found["elbo_free"] - found["elbo_amortised"]
    assert found["amortisation_gap"] == pytest.approx(difference)


def trained(kind):
    """On points of a curve, with an encoder that is but linear."""
    angle = torch.linspace(0, 2 * math.pi, 61)[:60]
    x = 3 * torch.stack([f(k * angle) for k in (1, 2) for f in (torch.cos, torch.sin)], -1)
    networks = MLPEncoder((4,), 2, ()), MLPDecoder(2, (4,), 2, (20,)), GaussianObservation(1, 0.1, 0.5)
    if kind == "vae":
        model, phase, options = VAE(*networks, 2, 60), VAEJoint, VAEOptions
    else:
        model, phase, options = FactorialMixtureVAE(*networks, (3,), 2, 60), Joint, FMVAEOptions
    for _ in fit([phase(model, options(learning_rate=1e-2), Budget(iterations=300))], [x]):
        pass
    return model.eval(), x


@pytest.mark.parametrize("kind", ["vae", "mixture"])
def test_free_steps_raise_the_bound_of_trained_models(kind):
    """Acceptance check 16: in a paired comparison, clearly above 0."""
    model, x = trained(kind)
    batches = [(x[:45],), (x[45:], torch.ones(15, 1))]
    found = amortisation_gap(model, batches, 100, num_samples=8, seed=3)
    assert found["n"] == 60
    assert found["amortisation_gap"] > 4 * found["standard_error"] > 0
    draws = torch.tensor([bound(model, [(x,)], seed)["elbo"] for seed in range(50)])
    error = draws.std().item() * (1 / 8 + 1 / 50) ** 0.5
    assert found["elbo_amortised"] == pytest.approx(draws.mean().item(), abs=4 * error)


def test_the_amortised_bound_is_that_of_equation_11():
    model, x = small_model((2, 3)).eval(), binary_data(30)
    found = amortisation_gap(model, [(x,)], 1, num_samples=50)
    measured = [bound(model, [(x,)], seed) for seed in range(50)]
    draws = torch.tensor([measures["elbo"] for measures in measured])
    error = draws.std().item() * (2 / 50) ** 0.5
    assert found["elbo_amortised"] == pytest.approx(draws.mean().item(), abs=4 * error)
    assert measured[0]["kl_r"] > 8 * error


def test_model_and_generators_are_left_as_they_were():
    model, x = small_model((1, 1)).pretraining().eval(), binary_data(6)
    before, state = [p.clone() for p in model.parameters()], torch.get_rng_state()
    first = amortisation_gap(model, [(x,)], 3, num_samples=2, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, model.parameters(), before))
    assert all(p.grad is None for p in model.parameters())
    torch.rand(3)
    assert amortisation_gap(model, [(x,)], 3, num_samples=2, seed=1) == first
    assert amortisation_gap(model, [(x,)], 3, num_samples=2, seed=2) != first


def test_draws_of_batches_differ():
    """The same points in two batches, which have different bounds."""
    model, x = small_model((1, 1)).pretraining().eval(), binary_data(6)
    one, two = (amortisation_gap(model, [(x,)] * n, 1, num_samples=1) for n in (1, 2))
    assert one["elbo_amortised"] != pytest.approx(two["elbo_amortised"], rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": ()}, "batches: expected at least two data points, got 0"),
        ({"sizes": (1,)}, "batches: expected at least two data points, got 1"),
        ({"num_samples": 0}, "num_samples: expected a number >= 1, got 0"),
        ({"steps": 0}, "steps: expected a number >= 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate: expected a number > 0, got 0.0"),
    ],
)
def test_refuses(changes, message):
    arguments = {"sizes": (6,), "steps": 1, **changes}
    batches = [(binary_data(size),) for size in arguments.pop("sizes")]
    with pytest.raises(ValueError, match=rf"^{message}"):
        amortisation_gap(small_model((1, 1)).pretraining(), batches, **arguments)


def test_refuses_a_model_without_a_bound():
    model = small_model((1, 1)).pretraining()
    model.family = PointPosterior()
    with pytest.raises(ValueError, match=r"^model: expected one whose loss is a bound"):
        amortisation_gap(model, [(binary_data(6),)])
