import math

import pyro
import pytest
import torch

from pyro_fmvae import FactorialMixtureVAE, GaussianObservation, Role, TraceConjugate_ELBO
from pyro_fmvae.evaluate import bound, tighter_bounds
from pyro_fmvae.evaluate.randomness import seeded
from tests.models.small import binary_data, brute_force, small_model


def test_draws_of_the_bound_are_made_one_after_another(monkeypatch):
    model, x, at_once = small_model((3,)), binary_data(7), []
    plain = TraceConjugate_ELBO.loss_per_role

    def watched(elbo, *args):
        at_once.append(elbo.num_particles)
        return plain(elbo, *args)

    singly = [bound(model, [(x,)], seed=3)["reconstruction"]]
    monkeypatch.setattr(TraceConjugate_ELBO, "loss_per_role", watched)
    several = bound(model, [(x,)], seed=3, num_samples=400)
    assert at_once == [1] * 400
    monkeypatch.undo()
    elbo = TraceConjugate_ELBO(num_particles=400)
    with seeded(3), torch.no_grad():
        parts = elbo.loss_per_role(model.model, model.guide, x)
    assert several["reconstruction"] == pytest.approx(-parts[Role.RECONSTRUCTION].item() / model.num_data)
    assert several["reconstruction"] != singly[0]


@pytest.mark.parametrize("sizes", [(3,), (2, 3)])
def test_bound_is_brute_force_evaluation(sizes):
    model, x = small_model(sizes), binary_data(7)
    measures = bound(model, [(x,)], seed=3)  # the seed of the brute-force evaluation
    expected = {role: loss.item() / model.num_data for role, loss in brute_force(model, x).items()}
    assert measures["n"] == 7
    assert measures["reconstruction"] == pytest.approx(-expected[Role.RECONSTRUCTION])
    assert measures["kl_z"] == pytest.approx(expected[Role.KL_Z])
    assert measures["kl_r"] == pytest.approx(expected[Role.KL_R])
    assert measures["kl_global"] == pytest.approx(expected[Role.KL_GLOBAL])
    assert measures["elbo"] == measures["reconstruction"] - measures["kl_z"] - measures["kl_r"]


def test_bound_averages_over_points_whatever_the_batches_and_the_labels():
    model, x = small_model((2, 3), labelled=(0,)), binary_data(9)
    whole = bound(model, [(x,)])
    parts = bound(model, [(x[:8], torch.ones(8, 1)), (x[8:], torch.ones(1, 1))])
    for name in ("n", "kl_z", "kl_r", "kl_global"):
        assert parts[name] == pytest.approx(whole[name]), name


def one_dimensional(num_data=10):
    """x = 2 z + 0.5 + noise of deviation near 0.5, three components in one dimension."""
    encoder, decoder = OneDimensionalEncoder(), torch.nn.Linear(1, 2)
    with torch.no_grad():
        decoder.weight.copy_(torch.tensor([[2.0], [0.0]]))
        decoder.bias.copy_(torch.tensor([0.5, 0.0]))
    decoder = torch.nn.Sequential(decoder, torch.nn.Unflatten(-1, (2, 1)))
    model = FactorialMixtureVAE(encoder, decoder, GaussianObservation(1, 0.4, 0.6), (3,), 1, num_data)
    model.groups[0].set_natural(
        *(t.natural_value() for t in (small_groups().weights, small_groups().loc_precision))
    )
    return model


def small_groups():
    torch.manual_seed(5)
    return small_model((3,), dim=1).factor_groups()[0]


class OneDimensionalEncoder(torch.nn.Module):
    def forward(self, x):
        return (x - 0.3) / 2.2, torch.full_like(x, 0.4)


def test_importance_weighting_approaches_quadrature():
    model, x = one_dimensional(), torch.linspace(-2, 3, 4).unsqueeze(-1)
    z = torch.linspace(-30, 30, 20001).unsqueeze(-1)
    with torch.no_grad():
        log_prior = model.log_prior(z)
        likelihood = model.observation(model.decoder(z))
        exact = torch.stack([(likelihood.log_prob(point) + log_prior).logsumexp(0) for point in x])
        exact = (exact + math.log(60 / 20000)).mean().item()
    measures = tighter_bounds(model, [(x[:3],), (x[3:],)], 1500)
    assert measures["num_samples"] == 1500
    assert measures["importance_weighted"] == pytest.approx(exact, abs=0.02)
    assert bound(model, [(x,)])["elbo"] < measures["collapsed"] < exact - 0.02


def test_one_sample_gives_equal_bounds():
    measures = tighter_bounds(small_model(), [(binary_data(5),)], 1)
    assert measures["collapsed"] == pytest.approx(measures["importance_weighted"])


def test_draws_depend_on_the_seed_alone():
    model, data = small_model(), [(binary_data(5),)]
    for measure in (lambda seed: bound(model, data, seed), lambda seed: tighter_bounds(model, data, 2, seed)):
        state = torch.get_rng_state()
        first = measure(1)
        assert torch.equal(torch.get_rng_state(), state)
        torch.rand(3)
        assert measure(1) == first
        assert measure(2) != first


@pytest.mark.parametrize("measure", [bound, lambda *args: tighter_bounds(*args, 3)])
def test_no_data(measure):
    with pytest.raises(ValueError, match=r"^batches: expected at least one data point"):
        measure(small_model(), [])


def test_no_samples():
    with pytest.raises(ValueError, match=r"^num_samples: expected a number >= 1, got 0"):
        tighter_bounds(small_model(), [(binary_data(5),)], 0)


@pytest.mark.parametrize("measure", [bound, lambda model, batches: tighter_bounds(model, batches, 2)])
def test_a_bound_that_is_no_number_is_refused(measure):
    x = torch.full((3, 1), 1e200)  # whose square is beyond float64
    with (
        pyro.validation_enabled(False),
        pytest.raises(ValueError, match="expected points that have a finite"),
    ):
        measure(one_dimensional(), [(x,)])
