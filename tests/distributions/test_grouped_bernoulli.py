import itertools

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import kl_divergence
from torch.testing import assert_close

from pyro_fmvae.distributions.grouped_bernoulli import GroupedBernoulli, binary_states
from pyro_fmvae.distributions.superposition import LinearNormal, expected_linear_normal

SIZES = [(1, 4, 4), (2, 2, 4), (3, 2, 5), (2, 3, 5), (4, 1, 4), (4, 2, 5)]  # g, groups, H


def grouped(size, groups, units, *batch, dtype=torch.float64):
    """Random tables, the units that don't exist being off."""
    probs = torch.rand(*batch, groups, 2**size, dtype=dtype) ** 3
    surplus = groups * size - units
    if surplus:
        on = binary_states(size, probs)[:, size - surplus :].any(-1)
        probs[..., -1, on] = 0
    return GroupedBernoulli(probs / probs.sum(-1, keepdim=True), units)


def enumerated(q):
    """All states [2^H, H], and their probabilities [2^H, ...], by the definition of the table."""
    states = torch.tensor(list(itertools.product((0.0, 1.0), repeat=q.event_shape[0])), dtype=q.probs.dtype)
    probs = []
    for state in states:
        total = torch.ones(q.batch_shape, dtype=q.probs.dtype)
        for group in range(q.probs.shape[-2]):
            own = state[group * q.group_size : (group + 1) * q.group_size]
            total = total * q.probs[..., group, sum(int(h) << i for i, h in enumerate(own))]
        probs.append(total)
    return states, torch.stack(probs)


def expectation(q, values):
    """E[f] from values f of all states, [2^H, ...]."""
    _, probs = enumerated(q)
    return torch.einsum("k...,kz->...z", probs, values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", SIZES)
def test_moments_are_those_of_enumeration(sizes, dtype):
    q = grouped(*sizes, 3, dtype=dtype)
    states, probs = enumerated(q)
    assert_close(probs.sum(0), torch.ones(3, dtype=dtype))
    mean = expectation(q, states)
    assert_close(q.mean, mean)
    assert_close(q.variance, expectation(q, states.square()) - mean.square())
    assert_close(q.entropy(), torch.special.entr(probs).sum(0))
    weight = torch.randn(6, q.event_shape[0], dtype=dtype)
    sums = states @ weight.T
    variance = expectation(q, sums.square()) - expectation(q, sums).square()
    assert_close(q.superposed_variance(weight), variance, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", SIZES)
def test_log_prob_is_that_of_the_table(sizes):
    q = grouped(*sizes, 3)
    states, probs = enumerated(q)
    assert_close(q.log_prob(states.unsqueeze(1)), probs.log())


@pytest.mark.parametrize("sizes", SIZES)
def test_second_moments_are_sums_over_points(sizes):
    q = grouped(*sizes, 2, 3)
    states, _ = enumerated(q)
    units = q.event_shape[0]
    products = (states.unsqueeze(-1) * states.unsqueeze(-2)).flatten(1)
    each = expectation(q, products).unflatten(-1, (units, units))
    assert_close(q.summed_second_moment(), each.sum(1))
    weights = torch.rand(3, 6)
    assert_close(q.summed_second_moment(weights), torch.einsum("bd,rbij->rdij", weights, each))


@pytest.mark.parametrize("sizes", SIZES)
def test_variance_of_sums_has_a_weight_for_each_start(sizes):
    q = grouped(*sizes, 2, 3)
    weight = torch.randn(2, 6, q.event_shape[0])
    alone = [GroupedBernoulli(q.probs[r], q.event_shape[0]).superposed_variance(weight[r]) for r in (0, 1)]
    assert_close(q.superposed_variance(weight), torch.stack(alone))


@pytest.mark.parametrize("sizes", SIZES)
def test_kl_is_that_of_enumeration(sizes):
    q = grouped(*sizes, 3)
    p = dist.Bernoulli(logits=torch.randn(3, q.event_shape[0])).to_event(1)
    states, probs = enumerated(q)
    ratios = probs.clamp_min(1e-300).log() - p.log_prob(states.unsqueeze(1))
    assert_close(kl_divergence(q, p), (probs * ratios).sum(0))


def test_kl_of_other_priors_is_not_known():
    q = grouped(2, 2, 4, 3)
    normal, shallow = dist.Normal(torch.zeros(3, 4), 1.0), dist.Bernoulli(torch.full((2, 3, 4), 0.5))
    for p in (normal.to_event(1), shallow.to_event(2)):
        with pytest.raises(NotImplementedError):
            kl_divergence(q, p)


def test_with_groups_of_one_it_is_independent():
    on = torch.rand(3, 4)
    q = GroupedBernoulli(torch.stack([1 - on, on], -1))
    bernoulli = dist.Bernoulli(on).to_event(1)
    assert_close(q.mean, on)
    assert_close(q.variance, bernoulli.variance)
    assert_close(q.entropy(), bernoulli.entropy())
    h = bernoulli.sample((5,))
    assert_close(q.log_prob(h), bernoulli.log_prob(h))
    assert_close(kl_divergence(q, bernoulli), torch.zeros(3))


@pytest.mark.parametrize("sizes", [(1, 4, 4), (3, 2, 5)])
def test_draws(sizes, assert_mean):
    q = grouped(*sizes, 2)
    h = q.sample((50_000,))
    assert h.shape == (50_000, 2, q.event_shape[0])
    assert_mean(h, q.mean)
    pairs = h.unsqueeze(-1) * h.unsqueeze(-2)
    single = [GroupedBernoulli(q.probs[n : n + 1], q.event_shape[0]).summed_second_moment() for n in (0, 1)]
    assert_mean(pairs, torch.stack(single))
    assert_mean(q.log_prob(h), -q.entropy())


def test_certain_states():
    q = GroupedBernoulli(torch.tensor([[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]]))
    assert_close(q.mean, torch.tensor([0.0, 1.0, 0.0, 0.0]))
    assert q.entropy() == 0
    assert (q.variance == 0).all()
    assert q.log_prob(torch.tensor([1.0, 0.0, 0.0, 0.0])) == -torch.inf


def test_expand():
    q = grouped(3, 2, 5).expand([4, 3])
    assert (q.batch_shape, q.event_shape, q.mean.shape) == ((4, 3), (5,), (4, 3, 5))
    assert q.sample((2,)).shape == (2, 4, 3, 5)
    assert q.log_prob(torch.zeros(5)).shape == (4, 3)
    assert type(q) is GroupedBernoulli


@pytest.mark.parametrize("sizes", [(1, 4, 4), (3, 2, 5)])
def test_expected_density_of_sums(sizes):
    q, x, weight = grouped(*sizes, 3), torch.randn(3, 6), torch.randn(6, sizes[2])
    x[0, 1] = torch.nan
    scale = torch.tensor(0.7)
    states, probs = enumerated(q)
    expected = (probs * LinearNormal(states.unsqueeze(1), weight, scale).log_prob(x)).sum(0)
    found = expected_linear_normal(
        dist.Delta(x, event_dim=1), LinearNormal(q.mean, weight, scale), {"causes": q}
    )
    assert_close(found, expected)


def test_it_is_a_site_of_pyro():
    q = grouped(2, 2, 4, 3)
    with pyro.plate("data", 3):
        assert pyro.sample("h", q).shape == (3, 4)
    with pytest.raises(ValueError, match="support"):
        q.log_prob(torch.full((3, 4), 0.5))


@pytest.mark.parametrize(
    ("shape", "units", "message"),
    [
        ((4,), None, r"probs: expected shape \[..., groups, 2\^g\], got \[4\]"),
        ((2, 3), None, "probs"),
        ((2, 1), None, "probs"),
        ((2, 4), 5, "units: expected 3 to 4, for 2 groups of 2, got 5"),
        ((2, 4), 2, "units"),
    ],
)
def test_wrong_shapes(shape, units, message):
    with pytest.raises(ValueError, match=message):
        GroupedBernoulli(torch.full(shape, 1 / shape[-1]), units)
