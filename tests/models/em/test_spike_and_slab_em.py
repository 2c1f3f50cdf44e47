import math

import pytest
import torch
from torch.distributions import Independent, Normal
from torch.testing import assert_close

from pyro_fmvae.distributions import SpikeAndSlab
from pyro_fmvae.models.em import (
    Expectation,
    LinearRule,
    MaxRule,
    SpikeAndSlabEM,
    SpikeAndSlabParameters,
    Statistics,
)
from tests.models.em.two_causes import log_likelihood, parameters

RULES = {"max": MaxRule(), "linear": LinearRule()}
LEAST = SpikeAndSlabParameters(-math.inf, 1e-6, -math.inf, 1e-4, 0.0)
GREATEST = SpikeAndSlabParameters(math.inf, 1 - 1e-6, math.inf, math.inf, math.inf)


def made(rule, weight, number, noise=0.5):
    """Data of units that are on with probability 0.3, at N(1, 0.3²)."""
    s = (torch.rand(number, weight.shape[1]) < 0.3) * (1 + 0.3 * torch.randn(number, weight.shape[1]))
    return rule.superpose(s, weight) + noise * torch.randn(number, len(weight))


def fit(em, x, iterations, starts=1, hottest=1.0):
    """Full-batch EM, T falling linearly over the first 60 %; every E-step and M-step, and the parameters."""
    p = em.start(x, starts)
    latents = em.start_latents(p, len(x))
    for i in range(iterations):
        found = em.e_step(x, p, latents, 1 + (hottest - 1) * max(1 - i / (0.6 * iterations), 0.0))
        maximum = em.m_step(found.statistics, p, x, found)
        yield p, found, maximum
        p, latents = maximum.parameters, found.latents * maximum.unit.unsqueeze(1)


def joint(rule, x, samples, p):
    """Mean over draws of log p(y, s) per point of every start, from the distributions; [R]."""
    results = []
    for r, draws in enumerate(samples):
        prior = SpikeAndSlab(p.loc[r], p.variance[r].sqrt(), p.probs[r].logit())
        likelihood = rule.likelihood(draws, p.weight[r], p.noise_variance[r].sqrt())
        results.append((likelihood.log_prob(x) + prior.log_prob(draws).sum(-1)).mean())
    return torch.stack(results)


def problem(kind, shared=True, missing=True):
    rule = RULES[kind]
    x = made(rule, 2 * torch.randn(6, 4), 80)
    if missing:
        x[torch.rand_like(x) < 0.1] = math.nan
        x[3] = math.nan
    em = SpikeAndSlabEM(rule, 4, 3, shared=shared)
    steps = list(fit(em, x, 6, 2))
    return em, x, *steps[-1]


def expectation(em, x, samples, p):
    """The result of an E-step that has drawn these samples."""
    statistics = em.statistics(x, samples, p)
    return Expectation(samples[:, -1], statistics, em.expected_log_joint(statistics, p), samples)


def assert_maximal(em, maximum):
    """No step along the gradient leads anywhere: none is left, or the parameter is at its limit."""
    free = [t.clone().requires_grad_() for t in maximum.parameters]
    value = em.expected_log_joint(maximum.statistics, SpikeAndSlabParameters(*free)).sum()
    slopes = torch.autograd.grad(value, free)
    for here, slope, least, greatest in zip(maximum.parameters, slopes, LEAST, GREATEST, strict=True):
        assert_close((here + slope).clamp(least, greatest), here, atol=1e-9, rtol=0)
    return value


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", RULES)
def test_objective_is_that_of_the_distributions(kind, shared):
    em, x, p, found, _ = problem(kind, shared)
    assert_close(found.objective, joint(em.rule, x, found.samples, p))
    assert p.loc.shape == (2, 1 if shared else 4)
    assert_close(found.latents, found.samples[:, -1])
    assert found.samples.shape == (2, 2, 80, 4)
    assert found.statistics.count == 80


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", RULES)
def test_objective_never_falls_in_an_m_step(kind, shared):
    """Nor does it from bad starts, where the maximum for given attributions often fails."""
    rule = RULES[kind]
    x = made(rule, 2 * torch.randn(6, 4), 60)
    em = SpikeAndSlabEM(rule, 4, None, 1, 1, shared)
    count = halved = 0
    for p, found, maximum in fit(em, x, 25, 8):
        before = joint(rule, x, found.samples, p)
        new = maximum.parameters
        after = joint(rule, x, found.samples * maximum.unit[:, None, None], new)
        raw = rule.maximum(found.statistics.values, p.weight)
        old, reached = (em._error(x, found.samples, w) for w in (p.weight, raw))
        halved += int((reached > old).sum())
        on = (found.samples != 0).double().mean(1).sum(1) / len(x)
        gain = after - before + (on * maximum.unit.abs().log()).sum(-1)  # the density of s is in new units
        assert (gain > -1e-9).all()
        count += gain.numel()
    assert count == 200
    assert (halved > 0) == (kind == "max")


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", RULES)
def test_m_step_is_stationary_for_given_attributions(kind, shared):
    """In all parameters at once, by the gradient of the objective of the statistics."""
    em, _, p, found, _ = problem(kind, shared)
    maximum = em.m_step(found.statistics, p)
    value = assert_maximal(em, maximum)
    assert (value > em.expected_log_joint(found.statistics, p).sum()) or kind == "max"


@pytest.mark.parametrize("kind", RULES)
def test_m_step_with_data_is_the_one_of_statistics_where_nothing_moves(kind):
    """σ² of the data is that of statistics taken anew with the new W."""
    em, x, p, found, maximum = problem(kind)
    weight = maximum.parameters.weight
    draws = found.samples * maximum.unit[:, None, None]
    again = em.rule.statistics(x, draws, weight)
    error = x.square().nansum() - em.rule.explained(again, weight)
    assert_close(maximum.parameters.noise_variance, error / (~x.isnan()).sum())
    assert_close(em.noise(maximum.parameters).square(), maximum.parameters.noise_variance)
    assert (em.m_step(found.statistics, p).parameters.probs == maximum.parameters.probs).all()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", RULES)
def test_gauge_leaves_the_likelihood(kind, shared):
    """After an M-step μ = 1 (or ψ = 1 around 0); draws, statistics and parameters tell the same of data."""
    em, x, p, found, maximum = problem(kind, shared)
    new, unit = maximum.parameters, maximum.unit
    around_zero = new.loc.abs() <= 0.5
    assert_close(torch.where(around_zero, new.variance, new.loc), torch.ones_like(new.loc))
    draws = found.samples * unit[:, None, None]
    assert_close(em._error(x, draws, new.weight), em._error(x, found.samples, new.weight * unit.unsqueeze(1)))
    on = (draws != 0).sum((1, 2)).double()
    moments = [draws.sum((1, 2)), draws.square().sum((1, 2))]
    on, *moments = (t.sum(-1, keepdim=True) if shared else t for t in (on, *moments))
    assert_close(moments[0], on * new.loc)
    used = on > 0
    assert_close((moments[1] / on - new.loc.square())[used], new.variance[used])
    statistics = maximum.statistics.values
    assert_close(statistics["cause"], draws.mean(1).sum(1))
    assert_close(statistics["energy"], draws.square().mean(1).sum(1))
    again = em.rule.statistics(x, draws, p.weight / unit.unsqueeze(1))
    for name, value in again.items():
        assert_close(statistics[name], value)


def test_gauge_leaves_the_exact_likelihood():
    """Of μ < 0 too: weights and causes change their sign."""
    weight = torch.randn(4, 2)
    x = torch.randn(5, 4)
    p = parameters(weight, loc=-0.7, variance=0.2)
    q = parameters(-0.7 * weight, loc=1.0, variance=0.2 / 0.49)
    for kind in RULES:
        assert_close(log_likelihood(x, p, kind), log_likelihood(x, q, kind))


@pytest.mark.parametrize("kind", RULES)
def test_a_slab_around_zero_has_unit_variance(kind):
    em, x, p, found, _ = problem(kind, missing=False)
    draws = torch.cat([found.samples, -found.samples], 1)
    statistics = em.statistics(x, draws, p)
    maximum = em.m_step(statistics, p)
    assert_close(maximum.parameters.loc, torch.zeros(2, 1), atol=1e-12, rtol=0)
    assert_close(maximum.parameters.variance, torch.ones(2, 1))
    on, energy = (statistics.values[name].sum(-1) for name in ("on", "energy"))
    unit = (on / energy).sqrt()
    assert_close(maximum.unit, unit[:, None].expand(2, 4))


@pytest.mark.parametrize("kind", RULES)
def test_a_unit_that_is_never_on_keeps_its_slab_and_weights(kind):
    """No draw depends on them; they come back as they were, in the units of the M-step."""
    em, x, p, found, _ = problem(kind, shared=False)
    samples = found.samples.clone()
    samples[..., 2] = 0.0
    for loc in (1.0, -2.0):
        p = p._replace(loc=torch.full_like(p.loc, loc), variance=torch.full_like(p.variance, 0.5))
        found = expectation(em, x, samples, p)
        for maximum in (em.m_step(found.statistics, p), em.m_step(found.statistics, p, x, found)):
            new, unit = maximum.parameters, maximum.unit
            assert (new.probs[:, 2] == 1e-6).all()
            assert_close(unit[:, 2], p.loc.reciprocal()[:, 2])
            assert_close(new.loc[:, 2], torch.ones(2))
            assert_close(new.variance[:, 2], p.variance[:, 2] / loc**2)
            assert_close(new.weight[..., 2], p.weight[..., 2] * loc)
        again = em.e_step(x, new, found.latents * unit.unsqueeze(1))
        assert again.objective.isfinite().all()


@pytest.mark.parametrize("share", [0.0, 1e-310, 5e-324])
@pytest.mark.parametrize("kind", RULES)
def test_the_m_step_is_defined_however_little_a_unit_is_on(kind, share):
    """Blended statistics of a unit that is never on again fade until nothing can be divided by them."""
    em, _, p, found, _ = problem(kind, shared=False)
    values = {name: value.clone() for name, value in found.statistics.values.items()}
    for name in ("on", "cause", "energy", "product", "square"):
        if name in values:
            values[name][..., 2] *= share
    if "gram" in values:
        values["gram"][..., 2] *= share
        values["gram"][..., 2, :] = values["gram"][..., 2]
    maximum = em.m_step(Statistics(values, found.statistics.count), p)
    new, unit = maximum.parameters, maximum.unit
    assert (new.probs[:, 2] == 1e-6).all()
    assert_close(unit[:, 2], torch.ones(2))
    assert_close(new.variance[:, 2], p.variance[:, 2])
    assert_close(new.weight[..., 2], p.weight[..., 2])
    assert_maximal(em, maximum)


def test_data_that_are_explained_leave_a_millionth():
    em, x, p, found, _ = problem("max", missing=False)
    x = em.rule.superpose(found.samples[0, 0], p.weight[0])
    draws = found.samples[:1, :1].expand(2, 1, 80, 4)
    p = p._replace(weight=p.weight[:1].expand(2, 6, 4))
    values = {**found.statistics.values, **em.rule.statistics(x, draws, p.weight)}
    values["power"] = x.square().sum().expand(2)
    new = em.m_step(Statistics(values, 80.0), p).parameters
    assert_close(new.noise_variance, 1e-6 * x.square().mean().expand(2))


def test_data_without_noise_leave_a_little():
    x = torch.eye(4).repeat(5, 1) * 3.0
    *_, (_, _, maximum) = fit(SpikeAndSlabEM(MaxRule(), 4, None), x, 30, 3)
    assert all(t.isfinite().all() for t in maximum.parameters)
    assert (maximum.parameters.noise_variance > 0).all()


@pytest.mark.parametrize("kind", RULES)
def test_stepwise_calls_find_what_full_batches_find(kind):
    """Statistics of batches add up to those of all data; with ρ = 1 blending is EM."""
    em, x, p, found, _ = problem(kind)
    parts = [em.rule.statistics(x[i], found.samples[:, :, i], p.weight) for i in (slice(30), slice(30, None))]
    for name in parts[0]:
        assert_close((parts[0][name] + parts[1][name]), found.statistics.values[name])
    blended = found.statistics.blend(found.statistics, 0.3)
    assert_close(em.m_step(blended, p).parameters, em.m_step(found.statistics, p).parameters)


def test_starts_do_not_see_each_other():
    em, x, p, found, maximum = problem("max")
    for r in range(2):
        one = SpikeAndSlabParameters(*(t[r : r + 1] for t in p))
        values = em.rule.statistics(x, found.samples[r : r + 1], one.weight)
        for name, value in values.items():
            assert_close(found.statistics.values[name][r : r + 1], value)
        alone = Expectation(
            found.latents[r : r + 1],
            Statistics({k: v[r : r + 1] for k, v in found.statistics.values.items()}, 80.0),
            found.objective[r : r + 1],
            found.samples[r : r + 1],
        )
        single = em.m_step(alone.statistics, one, x, alone)
        for several, only in zip(maximum.parameters, single.parameters, strict=True):
            assert_close(several[r : r + 1], only)


def test_start_is_about_the_data():
    x = 5 + 2 * torch.randn(400, 6)
    x[:, 2] = math.nan
    em = SpikeAndSlabEM(MaxRule(), 50)
    p = em.start(x, 3)
    assert p.weight.shape == (3, 6, 50)
    mean = p.weight.mean((0, 2))
    assert_close(mean, x.nanmean(0).nan_to_num(), atol=0.2, rtol=0)
    assert_close(p.weight.std((0, 2)).mean(), torch.tensor(0.5), atol=0.05, rtol=0)
    assert_close(p.noise_variance, torch.full((3,), 4.0), atol=0.5, rtol=0)
    assert_close(p.probs, torch.full((3, 1), 2 / 50))
    assert (em.start_latents(p, 7) == torch.zeros(3, 7, 50)).all()
    assert SpikeAndSlabEM(MaxRule(), 3, shared=False).start(x, 1).probs.tolist() == [[0.5, 0.5, 0.5]]
    order = em.quality(p._replace(noise_variance=torch.tensor([2.0, 1.0, 3.0])), torch.zeros(3))
    assert order.argmax() == 1


@pytest.mark.parametrize("kind", RULES)
def test_exact_likelihood_rises(kind):
    """Over EM with many draws, by two-dimensional quadrature, to what the true parameters give or above."""
    rule = RULES[kind]
    weight = torch.tensor([[3.0, 0.0], [2.0, 1.0], [0.0, 3.0], [0.5, 2.5]])
    x = made(rule, weight, 100, 0.5)
    em = SpikeAndSlabEM(rule, 2, None, 40, 30)
    values = [log_likelihood(x, p, kind, 16).mean() for p, _, _ in fit(em, x, 12)]
    steps = torch.stack(values).diff()
    assert (steps > -1e-3).all()
    assert values[-1] - values[0] > 0.5
    truth = parameters(weight, 0.3, 1.0, 0.09, 0.25)
    assert values[-1] > log_likelihood(x, truth, kind, 16).mean() - 0.02


def test_bars_are_found():
    """All 6 bars of 3 x 3 pictures in the better of two starts, and the noise."""
    bars = torch.zeros(3, 3, 6)
    for i in range(3):
        bars[i, :, i] = bars[:, i, 3 + i] = 10.0
    weight = bars.flatten(0, 1)
    s = (torch.rand(300, 6) < 1 / 3) * (1 + 0.2 * torch.randn(300, 6))
    x = MaxRule().superpose(s, weight) + torch.randn(300, 9)
    em = SpikeAndSlabEM(MaxRule(), 6, 5)
    *_, (_, _, maximum) = fit(em, x, 40, 2, 3.0)
    found = maximum.parameters
    best = em.quality(found, torch.zeros(2)).argmax()
    cosine = torch.nn.functional.normalize(weight, dim=0).T @ torch.nn.functional.normalize(
        found.weight[best], dim=0
    )
    assert (cosine.amax(1) > 0.95).all()
    assert len(set(cosine.argmax(1).tolist())) == 6
    assert em.noise(found)[best] < 1.15


def test_wrong_arguments():
    with pytest.raises(ValueError, match="preselect: expected a number of units >= 1, or None, got 0"):
        SpikeAndSlabEM(MaxRule(), 4, 0)


def test_normal_is_the_oracle_of_the_grid():
    """Without slabs' variance both rules are mixtures of four normals."""
    weight, x = torch.randn(3, 2), torch.randn(4, 3)
    p = parameters(weight, 0.3, 1.0, 1e-8)
    for kind, rule in RULES.items():
        parts = []
        for pattern in torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 2):
            mean = rule.superpose(pattern, weight)
            prior = torch.where(pattern == 1, 0.3, 0.7).log().sum()
            parts.append(prior + Independent(Normal(mean, math.sqrt(0.5)), 1).log_prob(x))
        assert_close(log_likelihood(x, p, kind), torch.stack(parts).logsumexp(0), atol=1e-5, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", RULES)
def test_all_stays_on_the_gpu(kind):
    rule = RULES[kind]
    x = made(rule, 2 * torch.randn(6, 4), 80).float().cuda()
    x[0, 0] = math.nan
    for _, found, maximum in fit(SpikeAndSlabEM(rule, 4, 3), x, 5, 2):
        tensors = (*maximum.parameters, *maximum.statistics.values.values(), found.samples, found.objective)
        assert {t.device.type for t in tensors} == {"cuda"}
        assert all(t.isfinite().all() for t in tensors)
