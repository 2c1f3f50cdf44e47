import math

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.models.em import spike_and_slab_rules
from pyro_fmvae.models.em.piecewise_normal import Column
from pyro_fmvae.models.em.spike_and_slab_rules import LinearRule, MaxRule, Slab
from tests.models.em.two_causes import panels

RULES = {"max": MaxRule(), "linear": LinearRule()}
STARTS, DRAWS, POINTS, PIXELS, UNITS = 2, 3, 6, 4, 3


def drawn(missing=True):
    """Data, sparse draws of causes, and weights."""
    y = torch.randn(POINTS, PIXELS)
    if missing:
        y[0, 1] = y[2, 3] = y[3] = math.nan
    samples = torch.randn(STARTS, DRAWS, POINTS, UNITS) * (torch.rand(STARTS, DRAWS, POINTS, UNITS) < 0.7)
    return y, samples, torch.randn(STARTS, PIXELS, UNITS)


def slab_of(dtype):
    logits, loc = (torch.tensor(t, dtype=dtype) for t in ([-1.0, 0.5, 0.0], [1.0, -0.5, 0.2]))
    return Slab(*(t.expand(STARTS, 1, UNITS) for t in (logits, loc, loc.square() + 0.1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", RULES)
def test_single_cause_log_odds_are_those_of_quadrature(kind, dtype):
    y, _, weight = (t.to(dtype) for t in drawn())
    slab, noise = slab_of(dtype), torch.tensor([0.4, 1.3], dtype=dtype)
    actual = RULES[kind].single_cause_log_odds(y, weight, slab, noise)
    assert actual.dtype == dtype
    for r in range(STARTS):
        for h in range(UNITS):
            logits, loc, variance = (t[r, 0, h].double() for t in slab)
            wide = 12 * variance.sqrt()
            sides = panels(loc - wide, 0 * loc), panels(0 * loc, loc + wide)  # the kink is at 0
            s, node = (torch.cat(t) for t in zip(*sides, strict=True))
            mean = s[:, None] * weight[r, :, h].double()
            mean = mean.clamp(min=0) if kind == "max" else mean
            error = ((y.double()[:, None] - mean).square() - y.double()[:, None].square()).nansum(-1)
            density = (-0.5 * (s - loc).square() / variance).exp() / (2 * math.pi * variance).sqrt()
            exact = (node * density * (-0.5 * error / noise[r].double()).exp()).sum(-1).log() + logits
            tolerance = 1e-4 if dtype == torch.float32 else 1e-9
            assert_close(actual[r, :, h].double(), exact, atol=tolerance, rtol=0)


def test_single_cause_of_the_maximum_is_the_conditional_without_others():
    y, _, weight = drawn()
    slab, noise = slab_of(torch.float64), torch.tensor([0.4, 1.3])
    actual = MaxRule().single_cause_log_odds(y, weight, slab, noise)
    for h in range(UNITS):
        column = Column(y, weight[:, None, :, h], noise[:, None, None])
        logits, loc, variance = (t[..., h] for t in slab)
        found = column.conditional(torch.zeros(STARTS, POINTS, PIXELS), loc, variance)
        assert_close(actual[..., h], found.log_odds(logits))


def errors(rule, y, samples, weight, responsible=None):
    """Mean over draws of the sums of squared errors, [R]; of a given unit for each pixel if there is one."""
    products = samples.unsqueeze(-2) * weight[:, None, None]
    mean = (
        rule.superpose(samples, weight[:, None, None])
        if responsible is None
        else products.gather(-1, responsible.unsqueeze(-1)).squeeze(-1)
    )
    return torch.where(y.isnan(), 0.0, y - mean).square().sum((-2, -1)).mean(1)


@pytest.mark.parametrize("missing", [True, False])
@pytest.mark.parametrize("kind", RULES)
def test_what_is_explained_is_what_the_errors_lack(kind, missing):
    y, samples, weight = drawn(missing)
    rule = RULES[kind]
    statistics = rule.statistics(y, samples, weight)
    expected = y.square().nansum() - errors(rule, y, samples, weight)
    assert_close(rule.explained(statistics, weight), expected)


@pytest.mark.parametrize("missing", [True, False])
@pytest.mark.parametrize("kind", RULES)
def test_maximum_is_stationary_and_least(kind, missing):
    """With the units that are responsible held fixed, for the rule of the maximum."""
    y, samples, weight = drawn(missing)
    rule = RULES[kind]
    products = samples.unsqueeze(-2) * weight[:, None, None]
    responsible = products.argmax(-1) if kind == "max" else None
    statistics = rule.statistics(y, samples, weight)
    best = rule.maximum(statistics, weight).requires_grad_()
    (slope,) = torch.autograd.grad(errors(rule, y, samples, best, responsible).sum(), best)
    assert_close(slope, torch.zeros_like(slope), atol=1e-10, rtol=0)
    for _ in range(20):
        other = best.detach() + 0.1 * torch.randn_like(best)
        assert (
            errors(rule, y, samples, other, responsible) > errors(rule, y, samples, best, responsible)
        ).all()


@pytest.mark.parametrize("kind", RULES)
def test_weights_that_data_say_nothing_of_stay(kind):
    y, samples, weight = drawn(missing=False)
    y[:, 2] = math.nan
    samples[..., 1] = 0.0
    best = RULES[kind].maximum(RULES[kind].statistics(y, samples, weight), weight)
    assert_close(best[:, 2], weight[:, 2])
    assert_close(best[:, :, 1], weight[:, :, 1])
    assert (best - weight).abs().max() > 1e-3


@pytest.mark.parametrize("missing", [True, False])
@pytest.mark.parametrize("kind", RULES)
def test_rescaled_statistics_are_those_of_rescaled_draws(kind, missing):
    """A unit may be negative: what causes give to data is the same, and so is the largest."""
    y, samples, weight = drawn(missing)
    unit = torch.tensor([[2.0, -0.5, 1.0], [-3.0, 1.5, 0.1]])
    rule = RULES[kind]
    actual = rule.rescaled(rule.statistics(y, samples, weight), unit)
    new = rule.statistics(y, samples * unit[:, None, None], weight / unit[:, None])
    for name, value in new.items():
        assert_close(actual[name], value)


@pytest.mark.parametrize("missing", [True, False])
@pytest.mark.parametrize("kind", RULES)
def test_statistics_are_sums_over_parts_of_data(kind, missing, monkeypatch):
    y, samples, weight = drawn(missing)
    rule = RULES[kind]
    whole = rule.statistics(y, samples, weight)
    parts = [rule.statistics(y[i], samples[:, :, i], weight) for i in (slice(4), slice(4, None))]
    for name, value in whole.items():
        assert_close((parts[0][name] + parts[1][name]).expand_as(value), value)
    monkeypatch.setattr(spike_and_slab_rules, "LARGEST", 1)
    for name, value in rule.statistics(y, samples, weight).items():
        assert_close(value, whole[name])


def test_likelihoods_have_the_means_of_their_rules():
    _, samples, weight = drawn()
    for rule in RULES.values():
        mean = rule.likelihood(samples[0], weight[0], torch.tensor(1.0)).mean
        assert_close(rule.superpose(samples, weight[:, None, None])[0], mean)
