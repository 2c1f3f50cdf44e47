"""Columns of several kinds side by side."""

import pyro.distributions as dist
import pytest
import torch

from pyro_fmvae import Columns, HiddenMarkov

LOCS, RATES, PROBS = [[0.0, 1.0], [4.0, 2.0]], [1.0, 5.0], [0.2, 0.7]


def parts():
    """Normals of two columns, Poissons and Bernoullis of one, in two states."""
    locs, rates, probs = map(torch.tensor, (LOCS, RATES, PROBS))
    return dist.Normal(locs, 1.0), dist.Poisson(rates), dist.Bernoulli(probs)


def columns():
    normals, *others = parts()
    return Columns(normals.to_event(1), *others)


def test_density_is_the_sum_of_the_columns():
    x = columns().sample((7,))
    assert x.shape == (7, 2, 4) and columns().event_shape == (4,)
    normals, poissons, bernoullis = parts()
    wanted = (
        normals.log_prob(x[..., :2]).sum(-1) + poissons.log_prob(x[..., 2]) + bernoullis.log_prob(x[..., 3])
    )
    torch.testing.assert_close(columns().log_prob(x), wanted)
    torch.testing.assert_close(columns().expand([3, 2]).log_prob(x[:3]), wanted[:3])


def test_they_are_emissions_of_a_chain():
    start, rows = torch.tensor([0.5, 0.5]), torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    chain = HiddenMarkov(start, rows, columns(), 3)
    x = chain.sample((5,))
    assert x.shape == (5, 3, 4)
    each = columns().log_prob(x.unsqueeze(-2))
    total = start.log() + each[:, 0]
    for step in (1, 2):
        total = (total.unsqueeze(-1) + rows.log()).logsumexp(-2) + each[:, step]
    torch.testing.assert_close(chain.log_prob(x), total.logsumexp(-1))


def test_masks_have_to_be_the_same_for_all_states():
    there = torch.tensor([True, False])
    _, poissons, bernoullis = parts()
    both = Columns(bernoullis, poissons.mask(there))
    with pytest.raises(ValueError, match="the same for all states"):
        HiddenMarkov(torch.ones(2) / 2, torch.ones(2, 2) / 2, both, 3, validate_args=True)


def test_a_part_may_not_lack_steps_alone():
    there = torch.tensor([[True], [False], [True]])
    _, poissons, bernoullis = parts()
    both = Columns(bernoullis, poissons.expand([3, 2]).mask(there))
    with pytest.raises(ValueError, match="expected a mask of whole steps"):
        _ = HiddenMarkov(torch.ones(2) / 2, torch.ones(2, 2) / 2, both, 3).present


def test_draws_have_the_widest_type():
    narrow, wide = (dist.Normal(torch.zeros(2, dtype=dtype), 1.0) for dtype in (torch.float32, torch.float64))
    assert Columns(narrow, wide).sample().dtype == torch.float64
    states = dist.Categorical(torch.ones(2, 3))
    assert Columns(states, narrow).sample().dtype == torch.float32
    assert Columns(states, states).sample().dtype == torch.get_default_dtype()


def test_parts_are_scalars_or_vectors():
    with pytest.raises(ValueError, match="parts: expected distributions of scalars or vectors"):
        Columns(dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))
