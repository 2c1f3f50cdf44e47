import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.stats import wishart

from pyro_fmvae.distributions import ColumnNormalGamma, NormalWishart
from pyro_fmvae.infer import TraceConjugate_ELBO, natural_prior
from pyro_fmvae.learn.coordinate_ascent import ascend, bound_of
from pyro_fmvae.models import ObservedMixture, TablePrior
from pyro_fmvae.models.learnt_prior import LEAST_VARIANCE, SHAPES, LearntPrior

N, K, D = 60, 3, 3
BOTH = pytest.mark.parametrize("full", [False, True])


def rows():
    """Three clusters of about the same covariance."""
    torch.manual_seed(0)
    kinds = torch.arange(N) % K
    x = torch.randn(N, D) @ torch.tensor([[1.0, 0.8, 0.0], [0.0, 0.5, 0.0], [0.3, 0.0, 0.7]])
    return (x + 3 * torch.eye(K)[kinds]).double(), torch.nn.functional.one_hot(kinds, K).double()


def fitted(full, steps=30, levels=(0,) * D):
    """A mixture at the end of its ascent, and its bounds."""
    x, gamma = rows()
    model, bounds = ObservedMixture(levels, K, N, (), TablePrior(), full, learn_prior=True), []
    seen = model.observations(x)
    for _ in range(steps):
        ascend(model, seen, gamma)
        table = model.table(seen)
        bounds.append(bound_of(model, table))
        gamma = table.softmax(-1)
    return model, x, bounds


@BOTH
def test_the_bound_rises_and_is_that_of_the_elbo(full):
    model, x, bounds = fitted(full)
    assert all(later >= earlier - 1e-6 for earlier, later in pairwise(bounds))
    assert TraceConjugate_ELBO().loss(model.model, model.guide, x) == pytest.approx(-bounds[-1], rel=1e-6)
    fixed = ObservedMixture((0,) * D, K, N, (), TablePrior(), full)
    seen = fixed.observations(x)
    gamma = model.table(model.observations(x)).softmax(-1)
    for _ in range(30):
        ascend(fixed, seen, gamma)
        gamma = fixed.table(seen).softmax(-1)
    assert bounds[-1] > bound_of(fixed, fixed.table(seen)) + 1


@BOTH
def test_no_other_prior_has_a_greater_bound_at_the_same_posterior(full):
    """The gradient of the divergence is zero, by finite differences in the shape and every entry of B."""
    model, _, _ = fitted(full, steps=5)
    learnt = model.learnt
    shape, rate, least = learnt.shape.clone(), learnt.rate.clone(), model.divergence().item()
    assert SHAPES[0] < shape.min() and shape.max() < SHAPES[1]
    step = 1e-4
    for direction in [None, *range(rate.numel())]:
        around = []
        for sign in (-step, step):
            changed = rate.clone()
            if direction is not None:
                changed.view(-1)[direction] += sign
                changed = 0.5 * (changed + changed.mT) if full else changed
            learnt.shape.copy_(shape + (sign if direction is None else 0.0))
            learnt.rate.copy_(changed)
            around.append(model.divergence().item())
        assert min(around) > least - 1e-9
        assert abs(around[1] - around[0]) / (2 * step) < 1e-2
    learnt.shape.copy_(shape), learnt.rate.copy_(rate)


def first_prior(full, shape, rate):
    """A prior of two columns."""
    zero, one = torch.zeros(2), torch.ones(2)
    if full:
        return NormalWishart(zero, 1.0, shape, rate**0.5)
    return ColumnNormalGamma(zero, one, shape * one, rate * one)


def test_the_prior_that_precisions_were_drawn_from_is_found():
    """Of drawn precisions that their posteriors know exactly."""
    scale, shapes, rates = np.array([[0.2, 0.05], [0.05, 0.1]]), 6.0, np.array([2.0, 0.5])
    wisharts = torch.from_numpy(wishart(14, scale).rvs(4000, random_state=0))
    gammas = torch.from_numpy(np.random.default_rng(0).gamma(shapes, 1 / rates, (4000, 2)))
    zero, known = torch.zeros(4000, 2).double(), torch.tensor(1e6).double()
    of_wisharts = NormalWishart(zero, 1.0, known, torch.linalg.cholesky(known * wisharts.inverse()))
    of_gammas = ColumnNormalGamma(zero, zero + 1, zero + known, known / gammas)
    for posterior, shape, rate in (
        (of_wisharts, 6.5, np.linalg.inv(scale) / 2),
        (of_gammas, shapes, rates),
    ):
        learnt = LearntPrior(first_prior(posterior is of_wisharts, 1.0, 0.2))
        learnt.update(natural_prior(posterior))
        assert learnt.shape.numpy() == pytest.approx(shape, rel=0.05)
        assert learnt.rate.numpy() == pytest.approx(rate, rel=0.08)


def test_the_price_is_by_the_curvature_of_the_exact_evidence():
    """Of covariances alone: n log det B - Σ (n + N_k/2) log det (B + S_k), in every direction of log B."""
    counts, half = torch.tensor([20.0, 30.0, 50.0]).double(), 6.0  # N_k, n
    told = (half * counts / 2 / (half + counts / 2)).sum()

    def evidence(log_rate):
        """Of B = exp(log_rate), where the scatter of all components is that of the covariance I/n."""
        rate = torch.matrix_exp(log_rate)
        scatter = counts[:, None, None] / (2 * half) * torch.eye(2).double()
        return half * len(counts) * rate.logdet() - ((half + counts / 2) * (rate + scatter).logdet()).sum()

    for direction in ([[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]):
        unit = torch.tensor(direction).double()
        unit = unit / unit.norm()
        step = torch.zeros((), dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(evidence(step * unit), step, create_graph=True)
        (curvature,) = torch.autograd.grad(slope, step)
        assert slope.item() == pytest.approx(0.0, abs=1e-9)
        assert -curvature.item() == pytest.approx(told.item())
    learnt = LearntPrior(first_prior(True, half - 0.5, half))
    zero = torch.zeros(3, 2).double()
    posterior = NormalWishart(zero, 1.0, half - 0.5 + counts / 2, torch.eye(2).double().expand(3, 2, 2))
    assert learnt.cost(natural_prior(posterior)) == pytest.approx(1.5 * math.log1p(told.item()))


def test_one_component_costs_as_by_schwarz():
    """Its prior is a point, which the rows alone tell about: log(1 + N/2) / 2 nats for each parameter."""
    model = ObservedMixture((0,) * D, 1, N, (), TablePrior(), True, learn_prior=True)
    x, _ = rows()
    seen = model.observations(x)
    for _ in range(100):
        ascend(model, seen, torch.ones(N, 1).double())
    assert model.prior_cost() == pytest.approx(0.5 * 6 * math.log(1 + N / 2), rel=0.02)


@BOTH
def test_columns_that_are_the_same_have_the_least_variance(full):
    x, gamma = rows()
    x = torch.cat([x, x[:, :1]], -1)
    model = ObservedMixture((0,) * (D + 1), K, N, (), TablePrior(), full, learn_prior=True)
    seen = model.observations(x)
    for _ in range(50):
        ascend(model, seen, gamma)
    assert math.isfinite(bound_of(model, model.table(seen)))
    if full:
        smallest = torch.linalg.eigvalsh(model.learnt.rate)[0] / (model.learnt.shape + D / 2)
        assert smallest == pytest.approx(LEAST_VARIANCE)


def test_words_alone_need_no_prior_of_numbers():
    model = ObservedMixture((2,), 2, N, learn_prior=True)
    assert model.learnt is None and model.prior_cost() == 0
    model.learn_prior()


def test_a_checkpoint_has_the_prior():
    model, x, bounds = fitted(True)
    new = ObservedMixture((0,) * D, K, N, (), TablePrior(), True, learn_prior=True)
    new.divergence()
    new.load_state_dict(model.state_dict())
    assert bound_of(new, new.table(new.observations(x))) == pytest.approx(bounds[-1])


def given(full, learn_s0=True):
    """A mixture that learns a prior along the axes of a given one, and the rows' known clusters."""
    x, gamma = rows()
    loc, spread = (
        0.1 * torch.ones(D).double(),
        torch.tensor([[1.0, 0.2, 0.0], [0.2, 0.7, 0.0], [0.0, 0.0, 0.9]]),
    )
    if full:
        prior = NormalWishart(loc, 1.0, 1.5, torch.linalg.cholesky(spread.double()))
    else:
        prior = ColumnNormalGamma(loc, torch.ones(D), 1.5 * torch.ones(D), spread.diagonal())
    table = TablePrior(numbers=prior, learn_s0=learn_s0)
    return ObservedMixture((0,) * D, K, N, (), table, full, learn_prior=True), x, gamma


@BOTH
@pytest.mark.parametrize("learn_s0", [False, True])
def test_no_other_prior_along_the_axes_has_a_greater_evidence(full, learn_s0):
    """Of rows whose components are known: Σ_k A(λ0 + T_k) - A(λ0) + D/2 log s0, by finite differences."""
    model, x, gamma = given(full, learn_s0)
    first = model.natural_priors()["x_parameter"].standard[-1][0]
    seen, axes = model.observations(x), torch.eye(D).double()
    if full:
        axes = torch.linalg.eigh(first @ first.mT)[1]
    for _ in range(500):
        ascend(model, seen, gamma)
    q, learnt = model.natural("x_parameter"), model.learnt
    told = q.natural - model.natural_priors()["x_parameter"].natural
    assert (learnt.mean_concentration.max() < 0.5) == learn_s0
    assert (learnt.shape == 1.5).all()
    if full:
        off = axes.mT @ learnt.rate @ axes
        assert off - off.diagonal().diag() == pytest.approx(torch.zeros(D, D).double(), abs=1e-9)

    def evidence():
        prior = model.natural_priors()["x_parameter"].natural
        gains = q.family.log_normalizer(prior + told) - q.family.log_normalizer(prior.expand_as(told))
        return float(gains.sum())

    def changed(number, change):
        before = number.clone()
        around = [(number.copy_(before + sign * change), evidence())[1] for sign in (-1, 1)]
        number.copy_(before)
        return around

    most = evidence()
    for axis in axes.mT:
        rate = learnt.rate
        step = 1e-3 * (axis @ rate @ axis * axis.outer(axis) if full else rate * axis)
        around = changed(rate, step)
        assert most - 1e-2 < min(around) and max(around) < most - 1e-7
    if learn_s0:
        around = changed(learnt.mean_concentration, 1e-3 * learnt.mean_concentration)
        assert most - 1e-2 < min(around) and max(around) < most - 1e-7


@BOTH
def test_a_single_component_expects_the_covariance_of_the_rows(full):
    """n log c - (n + N/2) log(c + N/2n) is greatest at 1, if the prior has the covariance of the rows."""
    x = rows()[0] - rows()[0].mean(0)
    spread = 1.5 * x.mT @ x / N
    if full:
        prior = NormalWishart(torch.zeros(D).double(), 1.0, 0.5, torch.linalg.cholesky(spread))
    else:
        ones = torch.ones(D).double()
        prior = ColumnNormalGamma(0 * ones, ones, 1.5 * ones, spread.diagonal())
    model = ObservedMixture((0,) * D, 1, N, (), TablePrior(numbers=prior), full, learn_prior=True)
    for _ in range(5):
        ascend(model, model.observations(x), torch.ones(N, 1).double())
    assert model.learnt.rate.numpy() == pytest.approx((spread if full else spread.diagonal()).numpy())


def test_constant_columns_do_not_change_the_scale_of_others():
    """One scale for all columns would follow the constant ones, of which every component is sure."""
    x, gamma = rows()
    rates = []
    for constant in (0, 5):
        x_ = torch.cat([x, torch.zeros(N, constant).double()], -1)
        spread = torch.block_diag(x.mT.cov(correction=0), torch.eye(constant).double())
        loc, dim = torch.zeros(D + constant).double(), D + constant
        prior = NormalWishart(loc, 1.0, (9 - dim) / 2, torch.linalg.cholesky(4 * spread))
        table = TablePrior(numbers=prior)
        model = ObservedMixture((0,) * dim, K, N, (), table, True, learn_prior=True)
        for _ in range(100):
            ascend(model, model.observations(x_), gamma)
        rates.append(model.learnt.rate[:D, :D])
    assert rates[1].numpy() == pytest.approx(rates[0].numpy())
