import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch.testing import assert_close

from pyro_fmvae.learn.mixture import mixture_of_rows
from pyro_fmvae.learn.stacking import (
    BELIEVED,
    CERTAIN,
    EQUAL,
    SPREAD,
    calibrated,
    learn_predictors,
    stored,
    tilt,
)
from pyro_fmvae.models import ObservedMixture
from pyro_fmvae.models.label_predictor import tempered

N = 200
LEVELS = (0, 0, 0, 3)


def table():
    """Two clusters, which the label does not follow: it is a step in a column without clusters."""
    torch.manual_seed(0)
    clusters = torch.arange(N) % 2
    x = torch.randn(N, 4)
    x[:, 1] += 8.0 * clusters
    x[:, 3] = torch.randint(3, (N,)).float()
    x[::9, 1] = torch.nan
    truth = (x[:, 0] > 0).long()
    labels = torch.where(torch.arange(N) < 60, truth, -1).unsqueeze(-1)
    return x, labels, truth


def make(components=2, rows=N):
    return ObservedMixture(LEVELS, components, rows, (2,))


START = partial(mixture_of_rows, make)


@pytest.fixture
def learnt():
    x, labels, truth = table()
    model = mixture_of_rows(make, x, 0, 2, labels=labels).model
    learn_predictors(model, START, x, labels, torch.arange(N), seed=0)
    return model, x, truth


def test_labels_that_clusters_do_not_follow_are_predicted(learnt):
    model, x, truth = learnt
    predictor = model.predictor_of(0)
    mixture, regression, forest = predictor.weights.tolist()
    assert mixture < min(regression, forest) and predictor.known == 60
    assert predictor.accuracies[0] < 0.75 < 0.9 < predictor.accuracies[1:].min()
    gamma = model.table(model.observations(x)).softmax(-1)
    (own,) = model.own_predictions(gamma)
    unseen = torch.arange(N) >= 60
    assert (own.argmax(-1) == truth)[unseen].double().mean() < 0.75
    assert (model.codes(x)[:, 0] == truth)[unseen].double().mean() > 0.9


def test_held_out_labels_are_not_seen():
    """By chance as many are right as wrong: a member that saw them would be right."""
    x, labels, _ = table()
    torch.manual_seed(1)
    labels[:60, 0] = torch.arange(60)[torch.randperm(60)] % 2
    model = mixture_of_rows(make, x, 0, 2, labels=labels).model
    learn_predictors(model, START, x, labels, torch.arange(N), seed=0)
    assert model.predictor_of(0).accuracies.max() < 0.7


def test_each_label_is_hidden_from_one_mixture():
    x, labels, _ = table()
    hidden = []

    def spied(*others, labels, **options):
        seen = labels
        hidden.append((known >= 0) & (seen < 0))
        assert torch.equal(seen[~hidden[-1]], known[~hidden[-1]])
        return START(*others, labels=seen, **options)

    known = labels
    learn_predictors(make(), spied, x, labels, torch.arange(N), seed=0)
    assert torch.equal(torch.stack(hidden).sum(0), (labels >= 0).long())
    counts = [(part & (labels == value)).sum().item() for part in hidden for value in range(2)]
    assert len(hidden) == 5 and max(counts) - min(counts) <= 3


def test_no_predictor_is_begun_when_the_time_is_up(caplog):
    x, labels, _ = table()
    model = make()
    learn_predictors(model, START, x, labels, torch.arange(N), seed=0, end=-math.inf)
    assert model.predictor_of(0) is None
    assert "the mixture alone predicts 1 of them: the time is up" in caplog.text


def test_predictors_are_loaded_with_the_model(learnt):
    model, x, _ = learnt
    state, again = model.state_dict(), make()
    again.match(state)
    again.load_state_dict(state)
    for one, other in zip(model.responsibilities(x), again.responsibilities(x), strict=True):
        assert torch.equal(one, other)


def test_single_labels_of_values_are_left_to_the_mixture():
    x, labels, truth = table()
    kept = [int((truth == value).nonzero()[0]) for value in range(2)]
    labels.fill_(-1)[kept, 0] = torch.arange(2)
    model = make()
    learn_predictors(model, START, x, labels, torch.arange(N), seed=0)
    assert model.predictor_of(0) is None


@pytest.mark.parametrize("values", [(0, 2), (0, 1, 3)])
def test_stored_classifiers_predict_as_scikit_learn_does(values):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 4))
    y = np.array(values)[rng.integers(0, len(values), 150)]
    x[:, 0] += y
    regression = LogisticRegression().fit(x, y)
    forest = RandomForestClassifier(20, max_leaf_nodes=12, random_state=0).fit(x, y)
    predictor, new = stored(regression, forest, 4), rng.normal(1.0, 2.0, size=(500, 4))
    found = {
        regression: predictor.regression(torch.from_numpy(new)).softmax(-1),
        forest: predictor.forest(torch.from_numpy(new).float()).double(),
    }
    for theirs, ours in found.items():
        expected = np.zeros((500, 4))
        expected[:, values] = theirs.predict_proba(new)
        assert_close(ours, torch.from_numpy(expected), rtol=0, atol=1e-6)


def test_powers_and_weights_are_where_the_posterior_is_greatest():
    torch.manual_seed(0)
    n = 300
    truth = torch.randint(3, (n,))
    scores = torch.randn(2, n, 3, dtype=torch.float64) + 2.0 * torch.eye(3).double()[truth]
    members = torch.stack(
        [(3.0 * scores[0]).softmax(-1), scores[1].softmax(-1)]
    )  # the first is overconfident

    def probs(power, member):
        p = tempered(members[member], power)[torch.arange(n), truth].numpy()
        return (1 - SPREAD) * p + SPREAD / 3

    powers, weights = calibrated(members, truth)
    for member, power in enumerate(powers.tolist()):
        best = minimize(
            lambda log, member=member: CERTAIN * log[0] ** 2 - np.log(probs(np.exp(log[0]), member)).sum(),
            [0.0],
        )
        assert abs(np.log(power) - best.x[0]) < np.log(5.0) / 24 + 1e-3  # half a step of the grid
    assert powers[0] < 0.8 < powers[1]
    both = np.stack([probs(power, member) for member, power in enumerate(powers.tolist())])

    def loss(share):
        w = np.array([share[0], 1 - share[0]])
        return -np.log(w @ both).sum() - EQUAL * np.log(w).sum()

    best = minimize(loss, [0.5], bounds=[(0.01, 0.99)])
    assert weights[0] == pytest.approx(best.x[0], abs=1e-3)


def test_the_tilt_finds_the_shares_of_unlabelled_rows():
    torch.manual_seed(0)
    n, truth = 50_000, torch.tensor([0.9, 0.1], dtype=torch.float64)
    y = (torch.rand(n) > truth[0]).long()
    x = torch.randn(n, dtype=torch.float64) + 2.0 * y
    even = torch.tensor([0.5, 0.5], dtype=torch.float64)
    densities = torch.stack([-0.5 * x.square(), -0.5 * (x - 2).square()], -1)
    found = even * tilt(densities.softmax(-1), even)
    assert_close(found, truth, rtol=0, atol=0.03)
    likely = densities.exp().numpy()

    def loss(share):
        pi = np.array([share[0], 1 - share[0]])
        return -np.log(likely @ pi).sum() - BELIEVED * 0.5 * np.log(pi).sum()

    best = minimize(loss, [0.5], bounds=[(0.01, 0.99)], tol=1e-12)
    assert found[0] == pytest.approx(best.x[0], abs=1e-4)
    assert torch.equal(tilt(densities[:0].softmax(-1), even), torch.ones(2).double())
