import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.stats import wishart

from pyro_fmvae.distributions import ColumnNormalGamma, NormalWishart
from pyro_fmvae.infer import TraceConjugate_ELBO, natural_prior
from pyro_fmvae.learn.mixture_search import ascend, bound_of
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
    assert SHAPES[0] < shape < SHAPES[1]
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
        learnt = LearntPrior(2, full=posterior is of_wisharts, shape=1.0, variance=0.2)
        learnt.update(natural_prior(posterior))
        assert learnt.shape.item() == pytest.approx(shape, rel=0.05)
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
    learnt = LearntPrior(2, full=True, shape=half - 0.5, variance=1.0)
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
    """A mixture that learns the scale of a prior, and the rows' statistics at known clusters."""
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
def test_no_other_scale_has_a_greater_evidence(full, learn_s0):
    """Of rows whose components are known: Σ_k A(λ0 + T_k) - A(λ0), at other scales and other s0."""
    model, x, gamma = given(full, learn_s0)
    seen = model.observations(x)
    for _ in range(200):
        ascend(model, seen, gamma)
    q, learnt = model.natural("x_parameter"), model.learnt
    told = q.natural - model.natural_priors()["x_parameter"].natural
    assert (learnt.mean_concentration.max() < 0.5) == learn_s0

    def evidence():
        prior = model.natural_priors()["x_parameter"].natural
        gains = q.family.log_normalizer(prior + told) - q.family.log_normalizer(prior.expand_as(told))
        return float(gains.sum())

    most = evidence()
    for number in [learnt.scale, learnt.mean_concentration][: 1 + learn_s0]:
        before = number.clone()
        around = [(number.copy_(before * factor), evidence())[1] for factor in (0.999, 1.001)]
        number.copy_(before)
        assert most - 1e-3 < min(around) and max(around) < most - 1e-7


def test_a_single_component_expects_the_covariance_of_the_rows():
    """n log c - (n + N/2) log(c + N/2n) is greatest at 1, if the prior has the covariance of the rows."""
    x = rows()[0] - rows()[0].mean(0)
    prior = NormalWishart(torch.zeros(D).double(), 1.0, 0.5, torch.linalg.cholesky(1.5 * x.mT @ x / N))
    model = ObservedMixture((0,) * D, 1, N, (), TablePrior(numbers=prior), True, learn_prior=True)
    ascend(model, model.observations(x), torch.ones(N, 1).double())
    assert model.learnt.scale.item() == pytest.approx(1)
