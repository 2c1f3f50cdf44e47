"""Hidden Markov models as estimators: against all paths, hmmlearn and the Pyro program."""

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import betabinom, multivariate_t, nbinom, t
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_fmvae import ConjugateSVI, NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.distributions.marginal_component import marginal_table
from pyro_fmvae.files import checkpoint
from pyro_fmvae.learn import chain_ascent
from pyro_fmvae.models.observed_chain import SHARES, SequenceRows
from pyro_fmvae.models.table_sites import COUNTED, NUMBERS, parameter_of
from pyro_fmvae.sklearn import BayesianMixture, HiddenMarkovModel

LENGTHS = [60, 150, 40, 50]
KINDS = {"count_features": [2], "categorical_features": [3, 4], "binomial_features": {5: 6}}
WEIGHTS_OF_STEPS = "a weight belongs to a sequence; the check's differ within one"


def chain(rng, length, stays=0.9, states=3):
    """A path that stays in its state."""
    path = [0]
    while len(path) < length:
        path.append(path[-1] if rng.random() < stays else int(rng.integers(states)))
    return np.array(path)


@pytest.fixture(scope="module")
def table():
    """Steps with columns of numbers, counts, categories, successes and trials; and their states."""
    rng = np.random.default_rng(0)
    path = np.concatenate([chain(rng, length) for length in LENGTHS])
    count = len(path)
    trials = rng.integers(1, 9, size=count)
    columns = [
        rng.normal(4 * path, 1),
        rng.normal(100 * (path == 1), 30),
        rng.poisson(1 + 4 * path),
        (path + rng.integers(2, size=count)) % 4,
        rng.random(count) < 0.2 + 0.3 * path,
        rng.binomial(trials, 0.2 + 0.3 * path),
        trials,
    ]
    return np.column_stack(columns).astype(float), path


def numbers(table):
    return table[0][:, :2]


@parametrize_with_checks(
    [HiddenMarkovModel(2, n_init=1), HiddenMarkovModel(covariance_type="diag", n_init=1, tol=1e-3)],
    expected_failed_checks=lambda estimator: {
        "check_sample_weights_not_overwritten": WEIGHTS_OF_STEPS,
        "check_sample_weight_equivalence_on_dense_data": WEIGHTS_OF_STEPS,
    },
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("kind", "topology"), [("full", "ergodic"), ("diag", "left-to-right")])
def test_bound_is_that_of_the_program(table, kind, topology, dtype, clean_slate):
    """Recognised by the engine from Pyro's own distributions, which knows nothing of the estimator's sums."""
    torch.set_default_dtype(dtype)
    x, _ = table
    x = x.copy()
    gone = np.random.default_rng(1).random(x.shape) < 0.1
    gone[:, 1] = gone[:, 0]
    x[gone] = np.nan
    weights = [1.0, 2.0, 0.5, 0.0]
    model = HiddenMarkovModel(3, covariance_type=kind, topology=topology, random_state=0, **KINDS)
    model.fit(x, lengths=LENGTHS, sample_weight=weights)
    arguments = model.model_arguments(x, LENGTHS, weights)
    elbo = TraceConjugate_ELBO()
    scales = np.repeat(weights, LENGTHS) @ model._columns.log_scales(x)
    exact = 1e-9 if dtype == torch.float64 else 1e-5
    program, guide = model.model_, model.guide_
    start = guide.posterior("start")().mean.detach().numpy()  # before a call
    np.testing.assert_allclose(start, model.startprob_, rtol=exact, atol=1e-10)
    assert -elbo.loss(program, guide, *arguments) - scales == pytest.approx(model.lower_bound_, rel=exact)
    assert np.diff(model.lower_bounds_).min() > -1e-7
    svi = ConjugateSVI(program, guide, NaturalGradient(1.0), elbo)
    losses = [svi.step(*arguments) for _ in range(3)]
    assert losses[2] <= losses[0] * (1 + exact)  # the fit is where the program's steps end, too
    assert losses[2] == pytest.approx(losses[0], abs=1e-4 * len(x))


def densities(model, row, state):
    """Log posterior predictive density of a row in a state, column by column with SciPy."""
    posterior = model._chain
    if model.covariance_type == "full":
        m, s, a, tril = (part[state].numpy() for part in posterior.natural(parameter_of(NUMBERS)).standard)
        df, scale = 2 * a, tril @ tril.T * (s + 1) / (s * a)
    else:
        m, s, a, b = (part[state].numpy() for part in posterior.natural(parameter_of(NUMBERS)).standard)
    own = ~np.isnan(row[:2])
    centre, units = model._columns.centre[:2][own], model._columns.scale[:2][own]
    z, total = (row[:2][own] - centre) / units, -np.log(units).sum()
    if own.any() and model.covariance_type == "full":
        total += multivariate_t(m[own], scale[np.ix_(own, own)], df).logpdf(z)
    elif own.any():
        total += t.logpdf(z, 2 * a[own], m[own], np.sqrt(b[own] * (s[own] + 1) / (s[own] * a[own]))).sum()
    if not np.isnan(row[2]):
        a, b = (part[state, 0].item() for part in posterior.natural(parameter_of(COUNTED)).standard)
        total += nbinom.logpmf(row[2], a, b / (b + 1))
    for column in (3, 4):
        if not np.isnan(row[column]):
            total += np.log(model.probabilities_[column][state, int(row[column])])
    if not np.isnan(row[5:]).any():
        place = list(model._chain.sites.trials).index(5)
        a, b = posterior.natural(parameter_of(SHARES)).natural[state, place].tolist()
        total += betabinom.logpmf(row[5], row[6], a, b)
    return total


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_score_paths_and_probabilities_are_sums_over_all_paths(table, kind):
    x, _ = table
    model = HiddenMarkovModel(2, covariance_type=kind, random_state=0, **KINDS).fit(x, lengths=LENGTHS)
    new = x[[3, 70, 200, 150, 5]].copy()
    new[1, 0] = new[2, 5] = new[4, 3] = np.nan
    new[3] = np.nan
    each = np.array([[densities(model, row, state) for state in range(2)] for row in new])
    paths = np.array(list(itertools.product(range(2), repeat=5)))
    start, rows = np.log(model.startprob_), np.log(model.transmat_)
    weight = start[paths[:, 0]] + each[np.arange(5), paths].sum(1) + rows[paths[:, :-1], paths[:, 1:]].sum(1)
    assert model.score(new) == pytest.approx(logsumexp(weight), abs=1e-8)
    np.testing.assert_array_equal(model.predict(new), paths[weight.argmax()])
    probs = np.exp(weight - logsumexp(weight))
    first = np.stack([probs @ (paths == state) for state in range(2)], -1)
    np.testing.assert_allclose(model.predict_proba(new), first, atol=1e-9)
    for n in range(1, 6):
        np.testing.assert_allclose(model.filter(new)[n - 1], model.predict_proba(new[:n])[-1], atol=1e-9)
    map_ = clone(model).set_params(algorithm="map").fit(x, lengths=LENGTHS)
    np.testing.assert_array_equal(map_.predict(new), first.argmax(1))


def test_the_best_path_need_not_have_the_best_states():
    nothing = np.full((3, 1), np.nan)
    priors = {"startprob_prior": [600, 400], "transmat_prior": [[500, 500], [0, 1000]]}
    path = HiddenMarkovModel(2, random_state=0, **priors).fit(nothing)
    assert path.predict(nothing).tolist() == [1, 1, 1]  # 0.4; [0, 1, 1] has 0.3, and the other two 0.15
    assert clone(path).set_params(algorithm="map").fit(nothing).predict(nothing).tolist() == [0, 1, 1]


def test_steps_with_gaps_have_their_bound_in_every_state():
    rng = np.random.default_rng(0)
    x = rng.normal(np.repeat([0, 50], 60)[:, None], 1, (120, 12))
    x[::4, :9] = np.nan
    model = HiddenMarkovModel(2, n_init=1, random_state=0).fit(x)
    rows = model._columns.standardised(x, torch.device("cpu"))
    found = model._chain.chain(SequenceRows.of(model._chain, rows, torch.tensor([120]))).log_likelihood[0]
    exact = marginal_table(rows, model._chain.natural(parameter_of(NUMBERS)).expected_stats())
    torch.testing.assert_close(found, exact)


def test_posterior_is_that_of_hmmlearn(table):
    """From a posterior nearby: hmmlearn's own starts end in other maxima."""
    vhmm = pytest.importorskip("hmmlearn.vhmm")
    x = numbers(table)
    scale = np.cov(x.T) * 3
    ours = HiddenMarkovModel(
        3, transmat_prior=0.5, mean_precision_prior=0.7, degrees_of_freedom_prior=3.0,
        covariance_prior=scale, tol=1e-11, max_iter=3000, random_state=0,
    ).fit(x, lengths=LENGTHS)  # fmt: skip
    theirs = vhmm.VariationalGaussianHMM(3, "full", n_iter=3000, tol=1e-9, init_params="")
    priors = {
        "startprob": np.ones(3),
        "transmat": np.full((3, 3), 0.5),
        "means": np.tile(x.mean(0), (3, 1)),
        "beta": np.full(3, 0.7),
        "dof": np.full(3, 3.0),
        "scale": np.stack([scale] * 3),
    }
    near = {
        "startprob": np.ones(3),
        "transmat": 40 * ours.transmat_ + 1,
        "means": ours.means_ + 0.1 * x.std(0),
        "beta": np.full(3, 50.0),
        "dof": np.full(3, 50.0),
        "scale": 60 * ours.covariances_,
    }
    for name in priors:
        setattr(theirs, f"{name}_prior_", priors[name])
        setattr(theirs, f"{name}_posterior_", near[name])
    theirs.fit(x, LENGTHS)
    np.testing.assert_allclose(ours.means_, theirs.means_posterior_, atol=1e-4)
    transitions = theirs.transmat_posterior_ / theirs.transmat_posterior_.sum(1, keepdims=True)
    np.testing.assert_allclose(ours.transmat_, transitions, atol=1e-5)
    np.testing.assert_allclose(ours.degrees_of_freedom_, theirs.dof_posterior_, rtol=1e-5)
    constant = 0.5 * x.size * np.log(2 * np.pi)  # which hmmlearn leaves out
    assert ours.lower_bound_ == pytest.approx(theirs.monitor_.history[-1] - constant, abs=1e-4)


@pytest.mark.parametrize(
    "prior", [{"topology": "left-to-right"}, {"transmat_prior": np.triu(np.ones((3, 3)))}]
)
def test_draws_of_chains_that_do_not_go_everywhere(prior, table):
    torch.set_default_dtype(torch.float32)
    x = numbers(table)
    model = HiddenMarkovModel(3, random_state=0, **prior).fit(x, lengths=LENGTHS)
    with pytest.warns(ConvergenceWarning, match="n_draws: only 20 effective draws of '"):
        found = model.credible_interval(X=x, lengths=LENGTHS, n_draws=20)
    assert found.transmat[:, 2, 0].max() < 1e-6 and found.means.shape == (2, 3, 2)
    answers = HiddenMarkovModel(2, categorical_features=[0], random_state=0).fit((x[:, :1] > 0).astype(float))
    there = answers.model_arguments([[0.0], [1.0], [2.0]])[1]
    assert there.flatten().tolist() == [True, True, False]  # training had no 2
    with pytest.raises(ValueError, match="X: expected the data of the fit"):
        model.credible_interval(n_draws=20)
    known = HiddenMarkovModel(2, random_state=0).fit(x, states=np.arange(len(x)) % 2)
    with pytest.raises(ValueError, match="n_draws: expected None after a fit to known states"):
        known.credible_interval(X=x, n_draws=20)


def test_one_state_is_a_mixture_of_one_component(table):
    x = numbers(table)
    one = HiddenMarkovModel(1, random_state=0).fit(x, lengths=LENGTHS)
    same = BayesianMixture(1, random_state=0).fit(x)
    assert one.lower_bound_ == pytest.approx(same.lower_bound_, rel=1e-6)
    assert one.score(x) == pytest.approx(same.score_samples(x).sum(), rel=1e-6)
    np.testing.assert_allclose(one.credible_interval().means, same.credible_interval().means, rtol=1e-6)
    streamed = HiddenMarkovModel(1, covariance_prior=np.cov(x.T), mean_prior=x.mean(0), random_state=0)
    whole = clone(streamed).fit(x)
    streamed.fit(x[:100]).partial_fit(x[100:])
    columns = streamed._columns.scale, whole._columns.scale  # of the first call, or of all rows
    assert not np.allclose(*columns)
    np.testing.assert_allclose(streamed.means_, whole.means_, rtol=1e-6)
    np.testing.assert_allclose(streamed.covariances_, whole.covariances_, rtol=1e-6)


def test_states_are_found_in_their_own_units(table):
    x, path = table
    model = HiddenMarkovModel(3, random_state=0, **KINDS).fit(x, lengths=LENGTHS)
    order = np.argsort(model.means_[:, 0])
    assert np.mean(order.argsort()[model.predict(x, LENGTHS)] == path) > 0.97
    np.testing.assert_allclose(model.means_[order, 0], [0, 4, 8], atol=0.6)
    np.testing.assert_allclose(model.rates_[order, 0], [1, 5, 9], atol=1.2)
    np.testing.assert_allclose(model.probabilities_[5][order, 1], [0.2, 0.5, 0.8], atol=0.1)
    low, high = model.credible_interval(0.99).probabilities[5]
    assert (low < model.probabilities_[5]).all() and (model.probabilities_[5] < high).all()
    given, drawn = model.credible_interval(0.5), model.credible_interval(0.5, x, LENGTHS, n_draws=150)
    for one, other in zip((*given[:4], given[4][5]), (*drawn[:4], drawn[4][5]), strict=True):
        sizes = (one[1] - one[0]).clip(1e-2)  # states hardly overlap: both are the same but for noise
        assert one.shape == other.shape and np.abs((one - other) / sizes).max() < 0.6
    moved = x.copy()
    moved[:, 0] = 1e6 + 1e3 * moved[:, 0]
    other = clone(model).fit(moved, lengths=LENGTHS)
    assert other.lower_bound_ == pytest.approx(model.lower_bound_ - len(x) * np.log(1e3), rel=1e-6)


def test_lists_lengths_and_weights_say_the_same(table):
    x = numbers(table)
    parts = np.split(x, np.cumsum(LENGTHS)[:-1])
    model = HiddenMarkovModel(3, random_state=0)
    by_lengths = clone(model).fit(x, lengths=LENGTHS)
    by_list = clone(model).fit(parts)
    assert by_list.lower_bound_ == by_lengths.lower_bound_
    for part, wanted in zip(
        by_list.predict(parts), np.split(by_lengths.predict(x, LENGTHS), np.cumsum(LENGTHS)[:-1]), strict=True
    ):
        np.testing.assert_array_equal(part, wanted)
    tight = clone(model).set_params(tol=1e-11, n_init=1, max_iter=2000)
    twice = clone(tight).fit([*parts, parts[1]])
    heavy = clone(tight).fit(parts, sample_weight=[1.0, 2.0, 1.0, 1.0])
    assert heavy.lower_bound_ == pytest.approx(twice.lower_bound_, abs=1e-3)
    none = clone(tight).fit(parts, sample_weight=[1.0, 1.0, 0.0, 1.0])
    assert none.lower_bound_ == clone(tight).fit([parts[0], parts[1], parts[3]]).lower_bound_


def test_priors_of_transitions(table):
    x, path = table
    x = x[:, :2]
    model = HiddenMarkovModel(3, random_state=0)
    plain = clone(model).fit(x, lengths=LENGTHS)
    sticky = clone(model).set_params(sticky=500.0).fit(x, lengths=LENGTHS)
    assert sticky.transmat_.diagonal().min() > plain.transmat_.diagonal().max()
    rng = np.random.default_rng(2)
    ordered = np.concatenate([np.repeat([0, 1, 2], [20 + n, 15, 25 - n]) for n in range(8)])
    steps = rng.normal([[5.0, 0.0, 5.5]], 1, (len(ordered), 3))[np.arange(len(ordered)), ordered, None]
    left = HiddenMarkovModel(3, topology="left-to-right", random_state=0).fit(steps, lengths=[60] * 8)
    assert left.startprob_.tolist() == [1, 0, 0]
    assert (left.transmat_[np.tril_indices(3, -1)] == 0).all() and left.transmat_[0, 2] == 0
    found = left.predict(steps, [60] * 8)
    assert np.mean(found == ordered) > 0.95  # states 0 and 2 are alike but for their order
    skips = clone(model).set_params(transmat_prior=np.triu(np.ones((3, 3)))).fit(x, lengths=LENGTHS)
    assert (skips.transmat_[np.tril_indices(3, -1)] == 0).all()
    assert path.max() == 2


def test_known_states_give_the_states_their_numbers(table):
    x, path = table
    x = x[:, :2]
    known = np.where(np.random.default_rng(3).random(len(x)) < 0.1, 2 - path, -1)
    model = HiddenMarkovModel(3, random_state=0).fit(x, lengths=LENGTHS, states=known)
    assert np.mean(model.predict(x, LENGTHS) == 2 - path) > 0.97
    wrong = known.copy()
    wrong[np.flatnonzero(known >= 0)[0]] = 0 if known[known >= 0][0] else 1
    assert clone(model).fit(x, lengths=LENGTHS, states=wrong).lower_bound_ < model.lower_bound_
    with pytest.raises(ValueError, match="states: expected integers"):
        model.fit(x, lengths=LENGTHS, states=known + 5)
    back = np.full(300, -1)
    back[[3, 9]] = 1, 0
    with pytest.raises(ValueError, match=r"states: expected a path .* got none"):
        HiddenMarkovModel(3, topology="left-to-right").fit(x, states=back)
    ahead = np.where(np.arange(300) < 200, 0, -1)  # equal parts, without them, would end state 0 at 150
    left = HiddenMarkovModel(2, topology="left-to-right", max_iter=1, n_init=1, tol=0.0, random_state=0)
    with pytest.warns(ConvergenceWarning):
        left.fit(np.where(ahead[:, None] == 0, 0.0, 9.0), states=ahead)
    np.testing.assert_allclose(left.means_[:, 0], [0, 9], atol=0.2)


def test_further_sequences_have_the_bound_given_the_first(table):
    """With one state the bound is exact: log p(A) + log p(B | A) = log p(A, B)."""
    x = numbers(table)
    priors = {"mean_prior": [4, 30], "mean_precision_prior": 0.3, "degrees_of_freedom_prior": 3.0}
    model = HiddenMarkovModel(1, covariance_prior=np.diag([2.0, 900.0]), random_state=0, **priors)
    whole = clone(model).fit(x, lengths=[120, 180])
    parts = clone(model).fit(x[:120]).partial_fit(x[120:])
    assert (whole.credible_interval().transmat == 1).all()
    assert parts.lower_bound_ == pytest.approx(whole.lower_bound_, rel=1e-9)
    np.testing.assert_allclose(parts.covariances_, whole.covariances_)


@pytest.mark.parametrize(
    ("changed", "orders"),
    [
        ({"sticky": 5.0}, math.log(6)),
        ({"startprob_prior": [1, 1, 2]}, 0.0),
        ({"transmat_prior": np.eye(3) + np.triu(np.ones((3, 3)))}, 0.0),
        ({"covariance_prior": np.eye(2)}, math.log(6)),
    ],
)
def test_evidence_counts_orders_of_states_that_are_alike(table, changed, orders, monkeypatch):
    found = []
    climb = chain_ascent.climb_chain
    monkeypatch.setattr(chain_ascent, "climb_chain", lambda *args: found.append(climb(*args)) or found[-1])
    HiddenMarkovModel(3, n_init=1, tol=1e-2, random_state=0, **changed).fit(numbers(table))
    cost = found[-1].model.prior_cost()
    assert found[-1].evidence == pytest.approx(found[-1].bounds[-1] + orders - cost)
    assert (cost == 0) == ("covariance_prior" in changed)


def test_number_of_states_is_found(table):
    x, path = table
    model = HiddenMarkovModel("auto", n_init=2, random_state=0, **KINDS).fit(x, lengths=LENGTHS)
    assert model.n_components_ == path.max() + 1


def test_forecasts_go_on_where_sequences_end(table):
    x = numbers(table)
    model = HiddenMarkovModel(3, random_state=0).fit(x[:200])
    forecast = model.forecast(4)
    states = model.filter(x[:200])[-1]
    for step in range(4):
        states = states @ model.transmat_
        np.testing.assert_allclose(forecast.states[step], states, atol=1e-9)
    np.testing.assert_allclose(forecast.mean, forecast.states @ model.means_)
    given = model.append(x[200:230])
    np.testing.assert_allclose(given, model.filter(x[:230])[200:], atol=1e-9)
    np.testing.assert_allclose(model.forecast(2).mean, model.forecast(2, x[:230]).mean)
    assert model.forecast(2, x, LENGTHS).mean.shape == (4, 2, 2)
    far = model.forecast(200)  # the chain has forgotten where it was
    drawn, _ = model.sample(40_000)
    inside = ((far.lower[-1] < drawn) & (drawn < far.upper[-1])).mean(0)
    np.testing.assert_allclose(inside, 0.95, atol=0.01)
    assert (np.abs(far.mean[-1] - drawn.mean(0)) < 0.05 * x.std(0)).all()


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_a_state_in_a_file_is_the_model(table, covariance, tmp_path):
    x = table[0]
    model = HiddenMarkovModel(3, covariance_type=covariance, random_state=0, **KINDS).fit(x, lengths=LENGTHS)
    checkpoint.save_file(tmp_path / "state", model.state())
    state, _ = checkpoint.load_file(tmp_path / "state")
    again = clone(model).restore(state)
    np.testing.assert_array_equal(
        again.predict_proba(x, lengths=LENGTHS), model.predict_proba(x, lengths=LENGTHS)
    )
    for one, other in zip(again.forecast(3), model.forecast(3), strict=True):
        np.testing.assert_array_equal(one, other)
    assert {*vars(again)} - {"n_features_in_"} == {*vars(model)} - {"n_features_in_"}
    ends = [each.partial_fit(x[:60]).lower_bound_ for each in (again, model)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-12)


def test_samples_have_the_kinds_of_the_columns(table):
    x, _ = table
    model = HiddenMarkovModel(3, random_state=0, **KINDS).fit(x, lengths=LENGTHS)
    rows, states = model.sample(5000)
    assert rows.shape == (5000, 7) and states.max() == 2
    assert (rows[:, 2:] == np.floor(rows[:, 2:])).all() and (rows[:, 5] <= rows[:, 6]).all()
    for state in range(3):
        np.testing.assert_allclose(rows[states == state, 2].mean(), model.rates_[state, 0], rtol=0.1)
    trials = np.repeat([1.0, 2.0], 20)  # their median is none of them
    few = HiddenMarkovModel(1, binomial_features={0: 1}, random_state=0).fit(
        np.column_stack([trials, trials])
    )
    assert set(few.sample(50)[0][:, 1]) == {1} and few.forecast(1).mean[0, 1] == 1
    drawn = model.sample(40_000)[0]
    far = model.forecast(100).mean[0, -1]
    np.testing.assert_array_less(np.abs(far - drawn.mean(0)), 0.05 * drawn.std(0) + 1e-9)
    same = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(same.sample(10)[0], model.sample(10)[0])
    assert same.score(x, lengths=LENGTHS) == model.score(x, lengths=LENGTHS)


def test_gaps_are_marginalised(table):
    """A row in which all is missing is a step without an observation, and may be left out at the end."""
    x = numbers(table)[:200]
    model = HiddenMarkovModel(3, random_state=0).fit(x)
    longer = np.concatenate([x, np.full((5, 2), np.nan)])
    assert model.score(longer) == pytest.approx(model.score(x), rel=1e-12)
    np.testing.assert_allclose(model.predict_proba(longer)[200:], model.forecast(5).states, atol=1e-9)
    holes = np.where(np.random.default_rng(4).random(x.shape) < 0.2, np.nan, x)
    fitted = clone(model).fit(holes)
    assert np.diff(fitted.lower_bounds_).min() > -1e-6
    np.testing.assert_allclose(np.sort(fitted.means_[:, 0]), np.sort(model.means_[:, 0]), atol=0.5)


@pytest.mark.parametrize("levels", [2, 3])
def test_a_category_that_the_training_lacks_is_missing(table, levels):
    x = np.column_stack([numbers(table), np.arange(300) % levels])
    model = HiddenMarkovModel(3, categorical_features=[2], random_state=0).fit(x)
    new, gap = x.copy(), x.copy()
    new[7, 2], gap[7, 2] = levels, np.nan
    np.testing.assert_array_equal(model.predict_proba(new), model.predict_proba(gap))
    assert model.score(new) == model.score(gap)


@pytest.mark.parametrize("starts", [1, 3])
@pytest.mark.parametrize("updates", [1, 15])
def test_updates_are_at_most_as_many_as_are_allowed(table, starts, updates):
    model = HiddenMarkovModel(3, max_iter=updates, n_init=starts, tol=0.0, random_state=0)
    with pytest.warns(ConvergenceWarning, match=f"no convergence within {updates} updates"):
        model.fit(numbers(table))
    assert model.n_iter_ == len(model.lower_bounds_) == updates


@pytest.fixture(scope="module")
def slopes():
    """Steps whose two numbers are linear in two covariates, with other slopes in each of two states."""
    rng = np.random.default_rng(0)
    path = np.repeat(rng.integers(2, size=20), 20)
    covariates = rng.normal([5, 0], [3, 1], size=(400, 2))
    coef = np.array([[[1, 0], [0, 2]], [[-1, 0], [0, -2]]])
    y = np.einsum("ndp,np->nd", coef[path], covariates - [5, 0]) + rng.normal([10, 0], 0.5, size=(400, 2))
    return np.column_stack([y[:, 0], covariates, y[:, 1]]), path, coef


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_states_are_told_apart_by_slopes(slopes, kind, clean_slate):
    x, path, coef = slopes
    x = x.copy()
    x[::37, [0, 3]] = x[5, 1] = np.nan
    lengths = [150, 250]
    model = HiddenMarkovModel(2, covariance_type=kind, covariate_features=[1, 2], random_state=0)
    model.fit(x, lengths=lengths)
    found = model.predict(x, lengths=lengths)
    order = [0, 1] if np.mean(found == path) > 0.5 else [1, 0]
    assert np.mean(np.array(order)[found] == path) > 0.99
    np.testing.assert_allclose(model.coef_[order], coef, atol=0.1)
    np.testing.assert_allclose(model.means_, [[10, 0], [10, 0]], atol=0.5)  # at the covariates' means
    arguments = model.model_arguments(x, lengths)
    scales = model._columns.log_scales(model._checked(x, False)).sum()
    bound = -TraceConjugate_ELBO().loss(model.model_, model.guide_, *arguments) - scales
    assert bound == pytest.approx(model.lower_bound_, rel=1e-9)
    assert np.diff(model.lower_bounds_).min() > -1e-7
    ends, drawn = model.credible_interval(0.9), model.credible_interval(0.9, x, lengths, n_draws=300)
    width = (ends.coef[1] - ends.coef[0]).mean()
    np.testing.assert_allclose(ends.coef, drawn.coef, atol=0.4 * width)
    np.testing.assert_allclose(ends.means, drawn.means, atol=0.4 * (ends.means[1] - ends.means[0]).mean())
    again = clone(model).restore(model.state())
    assert again.score(x, lengths=lengths) == model.score(x, lengths=lengths)
    assert not np.isnan(x[5, [0, 3]]).any()  # what is given stays as it is
    gap = x[:101].copy()
    gap[5, [0, 3]] = np.nan  # a row without a covariate tells no more than one without numbers
    assert model.score(x[:101]) == model.score(gap)


def test_forecasts_know_the_covariates(slopes):
    x, _, _ = slopes
    model = HiddenMarkovModel(2, covariate_features=[1, 2], random_state=0).fit(x)
    ahead = np.array([[8.0, 1.0], [2.0, -1.0]])
    forecast = model.forecast(2, covariates=ahead)
    np.testing.assert_allclose(forecast.mean[:, [1, 2]], ahead)
    means = model.means_ + np.einsum("kdp,hp->hkd", model.coef_, ahead - x[:, [1, 2]].mean(0))
    np.testing.assert_allclose(
        forecast.mean[:, [0, 3]], np.einsum("hk,hkd->hd", forecast.states, means), atol=1e-9
    )
    rows, states = model.sample(2_000, np.tile(ahead, (1_000, 1)))
    drawn = np.stack([rows[0::2][states[0::2] == k][:, [0, 3]].mean(0) for k in range(2)])
    np.testing.assert_allclose(drawn, means[0], atol=0.15)
    same = model.forecast(2, covariates=ahead[[1, 1]])  # intervals are of a step's own covariates
    width = same.upper[1] - same.lower[1]
    for one, other in (forecast.lower, same.lower), (forecast.upper, same.upper):
        assert (np.abs(one[1] - other[1]) <= 0.1 * width).all()
    several = model.forecast(2, x, [200, 200], covariates=np.stack([ahead, ahead]))
    np.testing.assert_allclose(several.mean[1], forecast.mean, atol=1e-9)
    with pytest.raises(ValueError, match=r"covariates: expected finite numbers of shape \[2, 2\], got None"):
        model.forecast(2)
    with pytest.raises(ValueError, match="covariates: expected finite numbers, got NaN"):
        model.forecast(1, covariates=[[np.nan, 1]])
    with pytest.raises(
        ValueError, match=r"covariates: expected finite numbers of shape \[1, 2\], got others"
    ):
        model.forecast(1, covariates=[["low", 1]])
    with pytest.raises(ValueError, match="covariates: expected None, since the model has no"):
        HiddenMarkovModel(1).fit(x).sample(2, ahead)
    with pytest.raises(ValueError, match="covariate_features: expected a column of numbers beside them"):
        HiddenMarkovModel(1, covariate_features=[0, 1, 2, 3]).fit(x)
    with pytest.raises(ValueError, match="got column 1 twice"):
        HiddenMarkovModel(1, covariate_features=[1], categorical_features=[1]).fit(np.abs(x) // 1)


def test_one_state_has_the_evidence_of_a_regression(slopes):
    """All targets together are Student-t, given priors in the data's units and one row for a slope of 0."""
    x = slopes[0][:30, [0, 1, 2]]
    priors = {"mean_prior": [7.0], "mean_precision_prior": 0.4, "degrees_of_freedom_prior": 5.0}
    model = HiddenMarkovModel(
        1, covariance_type="diag", covariance_prior=[6.0], covariate_features=[1, 2], **priors
    )
    y, u = x[:, 0], (x[:, 1:] - x[:, 1:].mean(0)) / x[:, 1:].std(0)
    features = np.column_stack([np.ones(30), u])
    shape = 6.0 / 5.0 * (np.eye(30) + features @ np.diag([1 / 0.4, 1, 1]) @ features.T)
    evidence = multivariate_t(np.full(30, 7.0), shape, 5.0).logpdf(y)
    assert model.fit(x).lower_bound_ == pytest.approx(evidence, rel=1e-9)


def test_covariates_of_data_frames_have_names(slopes):
    pd = pytest.importorskip("pandas")
    x = pd.DataFrame(slopes[0], columns=["y", "price", "heat", "z"])
    model = HiddenMarkovModel(2, covariate_features=["price", "heat"], n_init=2, random_state=0).fit(x)
    ahead = pd.DataFrame({"heat": [1.0], "price": [8.0]})
    expected = model.forecast(1, covariates=[[8.0, 1.0]])
    np.testing.assert_array_equal(model.forecast(1, covariates=ahead).mean, expected.mean)
    np.testing.assert_array_equal(expected.mean[0, [1, 2]], [8.0, 1.0])
    with pytest.raises(ValueError, match="got none of the name 'heat'"):
        model.forecast(1, covariates=ahead[["price"]])
    again = clone(model).restore(model.state())
    assert again.score(x) == model.score(x)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_known_states_tell_their_lines(seed):
    rng = np.random.default_rng(seed)
    path = np.repeat(rng.integers(3, size=24), 10)
    covariate = rng.normal(size=240)
    y = (path - 1) * 3 * covariate + rng.normal(0, 0.3, 240)
    states = np.full(240, -1)
    for state in range(3):
        states[np.flatnonzero(path == state)[:3]] = state
    x = np.column_stack([y, covariate])
    model = HiddenMarkovModel(3, covariate_features=[1], random_state=seed).fit(x, states=states)
    assert np.mean(model.predict(x) == path) > 0.9


def test_the_step_before_makes_an_autoregressive_model():
    """One state is a Bayesian regression: its slope and noise are those of least squares on many steps."""
    rng = np.random.default_rng(0)
    series = np.zeros(1500)
    for step in range(1, 1500):
        series[step] = 1 + 0.95 * series[step - 1] + rng.normal(0, 0.1)
    before = np.concatenate([[np.nan], series[:-1]])
    model = HiddenMarkovModel(1, covariate_features=[1]).fit(np.column_stack([series, before]))
    slope, _ = np.polyfit(before[1:], series[1:], 1)
    assert model.coef_.item() == pytest.approx(slope, abs=2e-3)
    assert model.covariances_.item() == pytest.approx(0.01, rel=0.1)


@pytest.fixture(scope="module")
def driven():
    """Steps of a number with gaps and an input, which makes the two states stay or change places."""
    rng = np.random.default_rng(0)
    inputs, path = rng.integers(2, size=900), [0]
    for step in inputs[1:]:
        path.append(path[-1] if rng.random() < (0.95, 0.2)[step] else 1 - path[-1])
    x = np.column_stack([rng.normal(3 * np.array(path), 1), inputs])
    x[::9, 0] = np.nan
    return x, np.array(path)


PARTS = [300, 200, 400]


def test_inputs_choose_transitions(driven):
    """Score, states and filter are sums over all paths; forecasts and appended steps go on by them."""
    x, path = driven
    model = HiddenMarkovModel(2, transition_feature=1, random_state=0).fit(x, lengths=PARTS)
    order = model.means_[:, 0].argsort()
    np.testing.assert_allclose(
        model.transmat_[:, order][..., order].diagonal(0, 1, 2).T[0], [0.95, 0.2], atol=0.1
    )
    assert np.mean(order.argsort()[model.predict(x, PARTS)] == path) > 0.9
    plain = HiddenMarkovModel(2, random_state=0).fit(x[:, :1], lengths=PARTS)
    assert model.lower_bound_ > plain.lower_bound_ + 50
    new, (m, s, a, tril) = x[[3, 9, 14, 27, 31]], model._chain.numbers().standard
    scale = (tril[:, 0, 0] ** 2 * (s + 1) / (s * a)).sqrt().numpy()
    z = (new[:, :1] - model._columns.centre[0]) / model._columns.scale[0]
    each = t.logpdf(z, 2 * a.numpy(), m[:, 0].numpy(), scale) - np.log(model._columns.scale[0])
    each[np.isnan(new[:, 0])] = 0.0
    paths = np.array(list(itertools.product(range(2), repeat=5)))
    tables = np.log(model.transmat_)[new[1:, 1].astype(int)]
    weight = np.log(model.startprob_)[paths[:, 0]] + each[np.arange(5), paths].sum(1)
    weight += tables[np.arange(4), paths[:, :-1], paths[:, 1:]].sum(1)
    assert set(new[1:, 1]) == {0, 1} and np.isnan(new[:, 0]).any()
    assert model.score(new) == pytest.approx(logsumexp(weight), abs=1e-9)
    np.testing.assert_array_equal(model.predict(new), paths[weight.argmax()])
    probs = np.exp(weight - logsumexp(weight))
    np.testing.assert_allclose(model.predict_proba(new)[:, 1], probs @ paths, atol=1e-9)
    for n in range(1, 6):
        np.testing.assert_allclose(model.filter(new)[n - 1], model.predict_proba(new[:n])[-1], atol=1e-9)
    short = clone(model).fit(x[:400])
    states, ahead = short.filter(x[:400])[-1], short.forecast(3, inputs=[1, 0, 1])
    for step, number in enumerate([1, 0, 1]):
        states = states @ short.transmat_[number]
        np.testing.assert_allclose(ahead.states[step], states, atol=1e-9)
    np.testing.assert_array_equal(ahead.mean[:, 1], [1, 0, 1])
    np.testing.assert_array_equal(ahead.lower[:, 1], [1, 0, 1])
    np.testing.assert_allclose(short.append(x[400:430]), short.filter(x[:430])[400:], atol=1e-9)
    both = short.forecast(2, x, PARTS, inputs=[[0, 1], [1, 1], [0, 0]])
    np.testing.assert_allclose(both.mean[1], short.forecast(2, x[300:500], inputs=[1, 1]).mean)
    assert not np.allclose(both.mean[1], short.forecast(2, x[300:500], inputs=[0, 1]).mean)


def test_samples_follow_their_inputs(driven):
    model = HiddenMarkovModel(2, transition_feature=1, random_state=0).fit(driven[0], lengths=PARTS)
    inputs = np.arange(20_000) // 2 % 2
    rows, states = model.sample(20_000, inputs=inputs)
    np.testing.assert_array_equal(rows[:, 1], inputs)
    for number in range(2):
        for state in range(2):
            here = (inputs[1:] == number) & (states[:-1] == state)
            share = model.transmat_[number, state, 1]
            error = (share * (1 - share) / here.sum()) ** 0.5
            assert abs(states[1:][here].mean() - share) < 4 * error


def test_counts_of_known_transitions_are_those_of_their_input(driven):
    """If all states are known, the posterior of the transitions is Dirichlet in closed form."""
    x, path = driven
    priors = {"transmat_prior": 0.5, "sticky": 2.0, "transition_feature": 1}
    model = HiddenMarkovModel(2, random_state=0, **priors).fit(x, lengths=PARTS, states=path)
    counts, begins = np.zeros((2, 2, 2)) + 0.5 + 2 * np.eye(2), np.cumsum(PARTS)[:-1]
    for step in set(range(1, len(x))) - set(begins):
        counts[int(x[step, 1]), path[step - 1], path[step]] += 1
    np.testing.assert_allclose(model.transmat_, counts / counts.sum(-1, keepdims=True), rtol=1e-9)
    one = HiddenMarkovModel(1, transition_feature=1).fit(x[:500])
    whole = clone(one).fit(x, lengths=[500, 400])
    assert one._chain.natural("transitions").natural.shape == (2, 1, 1)
    one.partial_fit(x[500:])
    sums = [fitted._chain.natural("transitions").natural for fitted in (one, whole)]
    torch.testing.assert_close(*sums)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("kind", "topology"), [("full", "ergodic"), ("diag", "left-to-right")])
def test_bound_with_inputs_is_that_of_the_program(driven, kind, topology, dtype, clean_slate):
    torch.set_default_dtype(dtype)
    x, _ = driven
    rng = np.random.default_rng(1)
    slope = rng.normal(size=len(x))
    x = np.column_stack([x[:, 0] + slope, x[:, 1], slope, rng.poisson(3, len(x))])
    kinds = {"covariate_features": [2], "count_features": [3], "transition_feature": 1}
    model = HiddenMarkovModel(
        3, covariance_type=kind, topology=topology, n_init=1, tol=1e-4, random_state=0, **kinds
    )
    weights = [1.0, 2.0, 0.5]
    model.fit(x, lengths=PARTS, sample_weight=weights)
    arguments = model.model_arguments(x, PARTS, weights)
    scales = np.repeat(weights, PARTS) @ model._columns.log_scales(x)
    bound = -TraceConjugate_ELBO().loss(model.model_, model.guide_, *arguments) - scales
    assert bound == pytest.approx(model.lower_bound_, rel=1e-9 if dtype == torch.float64 else 1e-5)
    assert np.diff(model.lower_bounds_).min() > -1e-7
    if topology == "left-to-right":
        assert (model.transmat_[:, [1, 2, 2], [0, 0, 1]] == 0).all()
    again = clone(model).restore(model.state())
    assert again.score(x, lengths=PARTS) == model.score(x, lengths=PARTS)
    ahead = {"inputs": [1, 0], "covariates": [[0.5], [1.0]]}
    for one, other in zip(
        again.forecast(2, x[:50], **ahead), model.forecast(2, x[:50], **ahead), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_inputs_that_never_change_say_nothing(driven):
    x, _ = driven
    x, model = np.column_stack([x[:, 0], np.zeros(len(x))]), HiddenMarkovModel(2, random_state=0)
    plain = clone(model).fit(x[:, :1], lengths=PARTS)
    same = clone(model).set_params(transition_feature=1).fit(x, lengths=PARTS)
    assert same.lower_bound_ == pytest.approx(plain.lower_bound_, rel=1e-12)
    np.testing.assert_allclose(same.transmat_[0], plain.transmat_)


def test_intervals_of_transitions_by_input(driven):
    x = driven[0][:400]
    model = HiddenMarkovModel(2, transition_feature=1, n_init=1, random_state=0).fit(x)
    ends = model.credible_interval(0.9).transmat
    drawn = model.credible_interval(0.9, x, n_draws=400).transmat
    assert ends.shape == drawn.shape == (2, 2, 2, 2)
    assert (ends[0] < model.transmat_).all() and (model.transmat_ < ends[1]).all()
    np.testing.assert_allclose(drawn.mean(0), ends.mean(0), atol=0.06)
    assert (drawn[1] - drawn[0] > 0.8 * (ends[1] - ends[0])).all()


def test_inputs_that_are_refused(driven):
    x, model = driven[0], HiddenMarkovModel(2, transition_feature=1, random_state=0)
    for wrong in (np.nan, 0.5, -1):
        other = x.copy()
        other[5, 1] = wrong
        with pytest.raises(
            ValueError, match=f"X: expected whole numbers from 0 to 1 .*column 1, got {wrong:g}"
        ):
            clone(model).fit(other)
    model.fit(x)
    with pytest.raises(ValueError, match="X: expected whole numbers from 0 to 1 in transition_feature"):
        model.predict(np.column_stack([x[:, 0], 2 * x[:, 1]]))
    with pytest.raises(ValueError, match=r"inputs: expected whole numbers of shape \[2\], got None"):
        model.forecast(2)
    with pytest.raises(ValueError, match=r"inputs: expected whole numbers of shape \[2\], got shape \[1\]"):
        model.sample(2, inputs=[0])
    with pytest.raises(ValueError, match=r"inputs: expected whole numbers from 0 to 1 .* got 3"):
        model.forecast(1, inputs=[3])
    yes, whole = (model.forecast(2, inputs=given).mean for given in ([True, False], [1.0, 0]))
    np.testing.assert_array_equal(yes, whole)
    for wrong in [[0, 1], [0]], ["a", "b"], [{}, 0]:
        with pytest.raises(ValueError, match=r"inputs: expected whole numbers of shape \[2\], got others"):
            model.forecast(2, inputs=wrong)
    with pytest.raises(ValueError, match="inputs: expected None, since the model has no"):
        HiddenMarkovModel(1).fit(x).sample(2, inputs=[0, 1])
    years = np.column_stack([x[:, 0], 2022 + x[:, 1]])
    with pytest.raises(
        ValueError, match=r"transition_feature: expected most .* 2023 in column 1, got 2 diff"
    ):
        clone(model).fit(years)
    with pytest.raises(ValueError, match="transition_feature: expected a column beside it, got none"):
        HiddenMarkovModel(1, transition_feature=0).fit(x[:, 1:])
    with pytest.raises(ValueError, match="transition_feature: expected names or indices of columns"):
        HiddenMarkovModel(1, transition_feature=True).fit(x)
    with pytest.raises(ValueError, match="got column 1 twice"):
        HiddenMarkovModel(1, transition_feature=1, count_features=[1]).fit(x)


def test_what_is_wrong_is_said(table):
    x, _ = table
    with pytest.raises(ValueError, match=r"lengths: expected integers >= 1 whose sum is 300"):
        HiddenMarkovModel(2).fit(x, lengths=[10, 20])
    with pytest.raises(ValueError, match="lengths: expected None with a list"):
        HiddenMarkovModel(2).fit([x, x], lengths=[300, 300])
    with pytest.raises(ValueError, match="sample_weight: expected one weight for each sequence"):
        HiddenMarkovModel(2).fit(x, lengths=[100, 200], sample_weight=np.arange(300))
    with pytest.raises(ValueError, match="topology: expected 'ergodic' or 'left-to-right'"):
        HiddenMarkovModel(2, topology="ring").fit(x)
    with pytest.raises(ValueError, match="transmat_prior: expected"):
        HiddenMarkovModel(2, transmat_prior=np.zeros((2, 2))).fit(x)
    with pytest.raises(ValueError, match="more successes than trials"):
        HiddenMarkovModel(2, binomial_features={6: 5}).fit(x)
    with pytest.raises(ValueError, match="more successes than trials"):
        HiddenMarkovModel(2, binomial_features={5: 6}).fit(x).predict(x[:, [0, 1, 2, 3, 4, 6, 5]])
    with pytest.raises(ValueError, match=r"startprob_prior: expected .* no row all 0"):
        HiddenMarkovModel(2, startprob_prior=[0, 1], topology="left-to-right").fit(x)
    with pytest.raises(ValueError, match=r"transmat_prior: expected .* no row all 0"):
        HiddenMarkovModel(2, transmat_prior=[[1, 1], [1, 0]], topology="left-to-right").fit(x)
    with pytest.raises(ValueError, match="got column 5 twice"):
        HiddenMarkovModel(2, binomial_features={5: 6}, count_features=[5]).fit(x)
    with pytest.raises(ValueError, match=r"^n_components: expected a number >= 1 or 'auto', got 'x'$"):
        HiddenMarkovModel("x").fit(np.zeros((4, 1)))
    with pytest.raises(ValueError, match="tol: expected a number >= 0, got nan"):
        HiddenMarkovModel(2, tol=np.nan).fit(x)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        HiddenMarkovModel(3, max_iter=2, n_init=1, tol=1e-12).fit(x[:, :2])
    full = HiddenMarkovModel(1).fit(x[:, :2])
    with pytest.raises(ValueError, match="all numbers of a row or none"):
        full.model_arguments([[1.0, np.nan]])
