import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score

from pyro_fmvae import FactorialMixtureVAE, GaussianObservation, Role
from pyro_fmvae.evaluate import bound, label_agreement, matching_accuracy, tighter_bounds
from tests.models.small import binary_data, brute_force, small_model


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


@pytest.mark.parametrize(("kinds", "clusters"), [(3, 3), (2, 4), (4, 2), (1, 3), (3, 1)])
def test_matching_accuracy_is_the_best_of_all_matchings(kinds, clusters):
    rng = np.random.default_rng(0)
    y, c = rng.integers(0, kinds, 30), rng.integers(0, clusters, 30)
    size = max(kinds, clusters)
    best = max(np.mean(np.array(p)[c] == y) for p in itertools.permutations(range(size)))
    assert matching_accuracy(y, c) == pytest.approx(best)


def test_matching_accuracy_of_sparse_labels():
    assert matching_accuracy(np.array([10**15, 3, 3]), np.array([0, 1, 1])) == 1.0


class Codes:
    """A model whose codes are its data."""

    def codes(self, x):
        return x


def test_label_agreement():
    rng = np.random.default_rng(1)
    truth = torch.from_numpy(rng.integers(0, 3, (60, 3)))
    codes = torch.stack([truth[:, 0], (truth[:, 1] + 1) % 3, torch.from_numpy(rng.integers(0, 3, 60))], -1)
    codes[:6, 0] = (codes[:6, 0] + 1) % 3
    codes[50:, 1] = 0
    labels = truth.clone()
    labels[30:36, 0] = -1  # 30 + 24 points are known, 6 of the first are wrong
    labels[:, 2] = -1
    batches = [(codes[:40], labels[:40]), (codes[40:], labels[40:])]
    result = label_agreement(Codes(), batches, ("given", "found", "unknown"), (0, None, None))
    assert result["accuracy"] == {"given": pytest.approx(48 / 54)}
    nmi = normalized_mutual_info_score(truth[:, 1], codes[:, 1])
    best = max(
        np.mean(np.array(p)[codes[:, 1]] == truth[:, 1].numpy()) for p in itertools.permutations(range(3))
    )
    expected = {"factor": 1, "accuracy": pytest.approx(best), "nmi": pytest.approx(nmi)}
    assert result["clustering"] == {"found": expected}
