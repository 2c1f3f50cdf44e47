import math
from itertools import product

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceEnum_ELBO, config_enumerate
from sklearn.mixture import BayesianGaussianMixture
from torch.testing import assert_close

from pyro_fmvae.distributions.category import indicators
from pyro_fmvae.evaluate import bound, edit_rows, outlier_scores
from pyro_fmvae.infer import TraceConjugate_ELBO
from pyro_fmvae.learn.coordinate_ascent import ascend, bound_of
from pyro_fmvae.models import ObservedMixture, TablePrior
from tests.models.mixture_case import PRIOR, STICKS, K, N, fitted


def marginals(normals, x):
    """Log-densities [S, B, K] of what is not missing, under normals of batch shape [S, 1, K]."""
    parts = []
    for row in x:
        known = (~row.isnan()).nonzero().squeeze(-1)
        covariance = normals.covariance_matrix[:, 0][..., known, :][..., known]
        alone = torch.distributions.MultivariateNormal(normals.loc[:, 0][..., known], covariance)
        parts.append(alone.log_prob(row[known]) if len(known) else torch.zeros(covariance.shape[:2]).double())
    return torch.stack(parts, 1)


@pytest.mark.parametrize("prior", [PRIOR, STICKS])
def test_the_bound_is_pyros_where_assignments_are_enumerated(prior):
    """In expectation over the parameters, which ``TraceEnum_ELBO`` draws."""
    model, x, labels = fitted(steps=20, prior=prior)
    gamma = model.table(model.observations(x, labels)).softmax(-1)

    def guide(x, labels):
        model.guide(x, labels)
        with pyro.plate("data", N, dim=-1):
            pyro.sample("assignment", dist.Categorical(gamma), infer={"enumerate": "parallel"})

    losses = [
        TraceEnum_ELBO(max_plate_nesting=1).loss(config_enumerate(model.model), guide, x, labels)
        for _ in range(100)
    ]
    exact = TraceConjugate_ELBO().loss(model.model, model.guide, x, labels)
    error = np.std(losses) / len(losses) ** 0.5
    assert abs(np.mean(losses) - exact) < 4 * error < 0.05 * abs(exact)


def test_the_posterior_is_scikit_learns():
    """Of full covariances, whose E-step has no approximation there, at the same fixed point."""
    x = torch.cat(
        [torch.randn(40, 2), torch.randn(40, 2) @ torch.tensor([[1.0, 0.7], [0.0, 0.4]]) + 5]
    ).double()
    prior = TablePrior(c0=0.5, s0=0.3, a0=1.0, b0=0.4)
    theirs = BayesianGaussianMixture(
        n_components=2,
        weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=prior.c0,
        mean_precision_prior=prior.s0,
        mean_prior=np.zeros(2),
        degrees_of_freedom_prior=2 * prior.a0 + 1,
        covariance_prior=2 * prior.b0 * np.eye(2),
        reg_covar=0.0,
        tol=1e-12,
        max_iter=1000,
        random_state=0,
    ).fit(x)
    model = ObservedMixture((0, 0), 2, 80, (), prior, full=True)
    seen = model.observations(x)
    gamma = torch.from_numpy(theirs.predict_proba(x))
    for _ in range(200):
        ascend(model, seen, gamma)
        gamma = model.table(seen).softmax(-1)
    assert_close(gamma, torch.from_numpy(theirs.predict_proba(x)), rtol=0, atol=1e-6)
    assert_close(model.locations().double(), torch.from_numpy(theirs.means_), rtol=0, atol=1e-5)


def test_what_is_missing_is_marginalised():
    """A row without anything says nothing; a row with one number is judged by that number alone."""
    model, _, _ = fitted()
    nothing = torch.full((1, 6), torch.nan)
    assert_close(model.table(model.observations(nothing))[0], model.natural("weights").expected_stats())
    assert_close(model.log_predictive(nothing), torch.zeros(1).double(), rtol=0, atol=1e-9)
    grid = torch.linspace(-60, 60, 24_001)
    rows = torch.full((len(grid), 6), torch.nan)
    rows[:, 0] = grid
    mass = model.log_predictive(rows).exp().sum() * (grid[1] - grid[0])
    assert mass.item() == pytest.approx(1.0, abs=0.01)  # Student-t tails
    for column, values in (1, 3), (4, 400), (5, 400):
        alone = torch.full((values, 6), torch.nan)
        alone[:, column] = torch.arange(float(values))
        assert_close(model.log_predictive(alone).exp().sum(), torch.ones(()).double())


def test_full_covariances_are_learnt_where_every_row_lacks_a_number():
    """With thousands of rows the posterior is next to the maximum of the likelihood, found by L-BFGS."""
    covariance = torch.tensor([[1.0, 0.8, -0.5], [0.8, 1.0, -0.3], [-0.5, -0.3, 1.0]])
    x = torch.distributions.MultivariateNormal(torch.zeros(3), covariance).sample((3000,))
    x[torch.arange(3000), torch.arange(3000) % 3] = torch.nan
    model = ObservedMixture((0, 0, 0), 1, 3000, full=True)
    seen = model.observations(x)
    model.forget()
    for _ in range(60):
        ascend(model, seen, torch.ones(3000, 1))
    _, _, a, tril = model.natural("x_parameter").standard
    factor, loc = torch.eye(3).requires_grad_(), torch.zeros(3).requires_grad_()
    optimizer = torch.optim.LBFGS([factor, loc], max_iter=200)

    def loss():
        optimizer.zero_grad()
        whole = torch.distributions.MultivariateNormal(loc, scale_tril=factor.tril())
        total = torch.zeros(())
        for missing in range(3):
            known = [column for column in range(3) if column != missing]
            own = whole.covariance_matrix[known][:, known]
            rows = x[missing::3][:, known]
            total = total - torch.distributions.MultivariateNormal(loc[known], own).log_prob(rows).sum()
        total.backward()
        return total

    optimizer.step(loss)
    likeliest = (factor.tril() @ factor.tril().mT).detach()
    assert_close((tril @ tril.mT / a)[0], likeliest, rtol=0, atol=0.003)


@pytest.mark.parametrize("full", [False, True])
def test_the_predictive_density_is_the_mean_over_the_posterior(full):
    """By draws of all parameters."""
    model, x, _ = fitted(full, steps=20)
    rows = x[:4].double()
    draws = {name: model.natural(name).sample((20_000,)).double() for name in model.sites.priors()}
    total = draws["weights"].log().unsqueeze(1)  # [S, 1, K]
    for name, seen in model.observations(rows).items():
        component = model.sites.child(name)(draws[f"{name}_parameter"][0], torch.zeros(1).long())
        for_all = component.given(draws[f"{name}_parameter"].unsqueeze(1))  # [S, 1, K]
        if name == "column_1":
            part = for_all.probs.log() @ indicators(seen, for_all.probs.shape[-1]).double().unsqueeze(-1)
            part = part.squeeze(-1)
        elif full and name == "x":
            part = marginals(for_all, seen)
        else:
            part = for_all.base_dist.log_prob(seen.nan_to_num(0.0).unsqueeze(1))
            part = part.masked_fill(seen.isnan().unsqueeze(1), 0.0).sum(-1)
        total = total + part
    densities = total.logsumexp(-1).exp()
    error = densities.std(0) / len(densities) ** 0.5
    assert ((densities.mean(0) - model.log_predictive(rows).exp()).abs() < 5 * error + 1e-12).all()


def test_labels_are_predicted_by_every_component():
    model, x, labels = fitted(steps=20)
    first, second, gamma = model.responsibilities(x)
    for part, size in ((first, 2), (second, 3), (gamma, K)):
        assert part.shape == (N, size)
        assert_close(part.sum(-1), torch.ones(N), rtol=0, atol=1e-6)
    codes = model.codes(x)
    assert codes.shape == (N, 3)
    seen = (~x[:, 0].isnan()) & (~x[:, 1].isnan())
    assert (codes[seen, 1] == torch.arange(N)[seen] % 3).float().mean() > 0.9
    # a label changes the responsibilities of its own row, but codes never see it
    assert not torch.equal(model.table(model.observations(x, labels)), model.table(model.observations(x)))


def test_draws_follow_codes():
    model, _, _ = fitted(steps=20)
    drawn = model.sample_codes(4000)
    shares = torch.stack([(drawn[:, -1] == k).double().mean() for k in range(K)])
    assert_close(shares, model.weights(), rtol=0, atol=0.04)
    given = torch.tensor([[-1, 2, -1]]).expand(500, -1)
    codes = model.sample_codes(500, given)
    assert (codes[:, 1] == 2).all()
    of_two = model.responsibilities(torch.full((1, 6), torch.nan))[-1]
    assert not torch.allclose(torch.bincount(codes[:, -1], minlength=K) / 500, of_two[0], atol=0.1)
    rows = model.sample_latent(500, codes)
    assert rows.shape == (500, 6) and rows.isfinite().all() and set(rows[:, 1].tolist()) <= {0.0, 1.0, 2.0}
    (component,) = codes[:, -1].unique()[:1]
    own = rows[codes[:, -1] == component, 0]
    assert abs(own.median() - model.locations()[component, 0]) < 1
    assert model.sample_latent(0).shape == (0, 6)


@pytest.mark.parametrize("full", [False, True])
def test_edits_move_rows_and_keep_how_they_differ(full):
    model, x, _ = fitted(full, steps=20)
    codes = model.codes(x)
    target = (int(codes[0, -1]) + 1) % K
    moved = edit_rows(model, x, {2: target})
    assert not moved.isnan().any()
    there, back = model.codes(moved), edit_rows(model, moved, {2: int(codes[0, -1])})
    assert (there[:, -1] == target).float().mean() > 0.8
    own = (codes[:, -1] == codes[0, -1]) & (there[:, -1] == target) & ~x.isnan().any(-1)
    assert_close(back[own][:, model.sites.numbers], x[own][:, model.sites.numbers], rtol=0, atol=1e-4)
    same = codes[:, -1] == target
    assert_close(moved[same], model.filled(x)[same])
    with pytest.raises(ValueError, match=r"changes: expected values below \(2, 3, 3\), got 3 of entry 2"):
        edit_rows(model, x, {2: 3})


def test_an_edit_to_the_value_that_a_row_has_leaves_it_in_its_component():
    """Also where another component is a likelier one of that value."""
    model, x, _ = fitted(steps=20, start=torch.eye(K, dtype=torch.float64).repeat(N // K, 1))
    codes = model.codes(x)
    have = codes[:, 0] == 0
    assert len(codes[have, -1].unique()) == 2
    assert torch.equal(edit_rows(model, x, {0: 0})[have], model.filled(x)[have])


def test_it_is_evaluated_and_scored_as_any_model():
    model, x, _ = fitted(steps=20)
    found = bound(model, [(x,)])
    assert found["kl_z"] == 0 and found["elbo"] == pytest.approx(found["reconstruction"] - found["kl_r"])
    far = x.clone()
    far[1, 0] = 40.0
    scores = outlier_scores(model, [(far,)])
    assert scores["iwae"].argmax() == scores["elbo"].argmax() == 1
    assert_close(torch.from_numpy(scores["iwae"]), -model.log_predictive(far), rtol=1e-6, atol=1e-6)


def test_the_surprise_of_a_new_word_is_that_of_one_category_more():
    """By draws from Dirichlets that have one category more."""
    model, x, _ = fitted(steps=20)
    rows = x[:5].clone()
    rows[:, 1] = torch.nan
    new = torch.zeros(rows.shape, dtype=torch.bool)
    new[:4, 1] = True
    logits = model.weights().log() + sum(
        model.log_predictives(name, seen) for name, seen in model.observations(rows.double()).items()
    )
    (concentration,) = model.natural("column_1_parameter").standard
    d0 = torch.full((len(concentration), 1), model.prior.d0).double()
    draws = dist.Dirichlet(torch.cat([concentration, d0], -1)).sample((20_000,))[..., -1]  # [S, K]
    of_rows = (logits.softmax(-1).unsqueeze(0) * draws.unsqueeze(1)).sum(-1)  # [S, B]
    error = of_rows.std(0) / len(draws) ** 0.5
    found = (-model.surprise(rows, new)).exp()
    assert ((of_rows.mean(0) - found).abs()[:4] < 5 * error[:4]).all() and (error < 0.1 * found)[:4].all()
    assert_close(found[4], torch.ones(()).double())


def test_missing_entries_are_filled_by_what_is_there():
    model, x, _ = fitted(steps=20)
    filled = model.filled(x)
    assert torch.equal(filled[~x.isnan()], x[~x.isnan()]) and not filled.isnan().any()
    row = torch.tensor([[6.0, torch.nan, 0.0, 0.0, torch.nan, torch.nan]])
    assert model.filled(row)[0, 1] == 2.0  # the category of the rows around 6
    assert_close(model.posterior(row).mean, model.filled(row))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((), 2, 5), "levels: expected a number >= -1 for each column"),
        (((0, -2), 2, 5), "levels: expected a number >= -1 for each column"),
        (((0,), 0, 5), "components"),
        (((0,), 2, 0), "num_data"),
        (((0,), 2, 5, (0,)), "label_sizes"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ObservedMixture(*arguments)


def test_labels_of_another_shape():
    model, x, _ = fitted()
    with pytest.raises(ValueError, match=r"labels: expected int64 \[30, 2\]"):
        model.model(x, torch.zeros(N, 3).long())


def test_brute_force_evidence_of_few_rows_is_above_the_bound():
    """Σ over all assignments of the exact marginal likelihood: the bound is below it, and not by much."""
    x = torch.tensor([[0.1], [0.3], [4.0], [4.2]]).double()
    prior = TablePrior()
    model = ObservedMixture((0,), 2, 4, (), prior)
    seen, gamma = model.observations(x), torch.tensor([[1.0, 0.0]] * 2 + [[0.0, 1.0]] * 2).double()
    for _ in range(100):
        ascend(model, seen, gamma)
        rows = model.table(seen)
        gamma = rows.softmax(-1)

    def marginal(values):
        n = len(values)
        if not n:
            return 0.0
        values = np.array(values)
        s, a, mean = prior.s0 + n, prior.a0 + n / 2, values.mean()
        b = prior.b0 + 0.5 * ((values - mean) ** 2).sum() + 0.5 * prior.s0 * n / s * mean**2
        return (
            math.lgamma(a)
            - math.lgamma(prior.a0)
            + prior.a0 * math.log(prior.b0)
            - a * math.log(b)
            + 0.5 * math.log(prior.s0 / s)
            - n / 2 * math.log(2 * math.pi)
        )

    total = -math.inf
    for assignment in product(range(2), repeat=4):
        counts = [assignment.count(k) for k in range(2)]
        weights = math.lgamma(2) - math.lgamma(6) + sum(math.lgamma(1 + n) for n in counts)
        parts = [[float(v) for v, k in zip(x, assignment, strict=True) if k == own] for own in range(2)]
        total = np.logaddexp(total, weights + sum(map(marginal, parts)))
    evidence = bound_of(model, rows) + math.log(2)
    assert evidence < total < evidence + 0.5
