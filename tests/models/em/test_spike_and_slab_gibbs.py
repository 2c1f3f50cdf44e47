import math

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.models.em import spike_and_slab_gibbs
from pyro_fmvae.models.em.spike_and_slab_gibbs import SpikeAndSlabGibbs, SpikeAndSlabParameters
from pyro_fmvae.models.em.spike_and_slab_rules import LinearRule, MaxRule
from tests.models.em.two_causes import log_joint_grid, parameters

RULES = {"max": MaxRule(), "linear": LinearRule()}
CHAINS, SWEEPS = 20000, 15


def two_units():
    """A point that either unit explains, or both; one element is missing."""
    weight = torch.tensor([[2.0, 0.3], [-1.0, 1.5], [1.8, 1.7], [0.0, -1.2], [3.0, 1.0]])
    return torch.tensor([[2.2, 1.1, 2.5, -0.4, math.nan]]), weight


def assert_posterior(s, y, p, kind, floor=False):
    """Probabilities of the four patterns and first moments, against a grid."""
    states, log_weights = log_joint_grid(y, p, kind, 40, floor)
    share = log_weights[0].softmax(-1)
    pattern = ((states != 0) * torch.tensor([1, 2])).sum(-1)
    exact = torch.zeros(4).index_add(0, pattern, share)
    drawn = torch.bincount(((s != 0) * torch.tensor([1, 2])).sum(-1), minlength=4) / len(s)
    assert (exact > 0.02).sum() > 1
    assert ((drawn - exact).abs() <= 4 * (exact * (1 - exact) / len(s)).sqrt() + 1e-9).all()
    mean = share @ states
    deviation = (share @ states.square() - mean.square()).sqrt()
    assert ((s.mean(0) - mean).abs() < 4 * deviation / math.sqrt(len(s))).all()


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("kind", RULES)
def test_chains_end_in_the_exact_posterior(kind, temperature):
    y, weight = two_units()
    p = parameters(weight, [0.4, 0.3], [1.0, 0.8], [0.3, 0.2])
    many, off = y.expand(CHAINS, -1), torch.zeros(1, CHAINS, 2)
    s = SpikeAndSlabGibbs(RULES[kind])(many, p, off, SWEEPS, 1, temperature)
    assert s.shape == (1, 1, CHAINS, 2)
    tempered = p._replace(noise_variance=temperature * p.noise_variance)
    assert_posterior(s[0, 0], y, tempered, kind)


def test_units_left_out_still_give_nothing():
    """What both units give is negative where they are on; with the third, off, the maximum is 0."""
    y = torch.tensor([[-1.0, -1.2, -0.2, 0.5]])
    weight = torch.tensor([[-1.0, -0.8, 0.0], [-0.7, -1.0, 0.0], [0.4, 0.1, 0.0], [0.4, 0.6, 0.0]])
    p = parameters(weight, [0.6, 0.6, 0.01])
    gibbs = SpikeAndSlabGibbs(MaxRule(), preselect=2)
    assert set(gibbs.select(y, p, p.noise_variance)[0, 0].tolist()) == {0, 1}
    s = gibbs(y.expand(CHAINS, -1), p, torch.zeros(1, CHAINS, 3), SWEEPS)[0, 0]
    assert (s[:, 2] == 0).all()
    two = p._replace(weight=p.weight[..., :2], probs=p.probs[:, :2])
    assert_posterior(s[:, :2], y, two, "max", floor=True)
    alone = SpikeAndSlabGibbs(MaxRule())(y.expand(CHAINS, -1), two, torch.zeros(1, CHAINS, 2), SWEEPS)[0, 0]
    assert_posterior(alone, y, two, "max")
    with pytest.raises(AssertionError):
        assert_posterior(s[:, :2], y, two, "max")


def test_one_unit_that_may_be_on():
    """Preselection of one leaves the maximum with 0: what the single-cause log-odds say."""
    y, weight = two_units()
    p = parameters(torch.cat([weight, torch.zeros(5, 1)], -1), 0.3)
    for rule in RULES.values():
        s = SpikeAndSlabGibbs(rule, 1)(y.expand(CHAINS, -1), p, torch.zeros(1, CHAINS, 3))[0, 0]
        odds = rule.single_cause_log_odds(y, p.weight, p.slab, p.noise_variance)[0, 0]
        share = odds.max().sigmoid()
        on = (s != 0).double().mean(0)
        assert abs(on[odds.argmax()] - share) < 4 * (share * (1 - share) / CHAINS).sqrt() + 1e-9
        assert (on > 0).sum() == 1


@pytest.mark.parametrize("kind", RULES)
def test_preselection_has_the_true_unit_first(kind):
    """Of 20 units, for each of 200 points that one unit made; the others are off, whatever they were."""
    weight = 3 * torch.randn(2, 16, 20)
    true = torch.randint(20, (200,))
    y = weight[0].T[true]
    y = (y.clamp(min=0) if kind == "max" else y) + 0.5 * torch.randn(200, 16)
    p = SpikeAndSlabParameters(
        weight, torch.full((2, 1), 0.1), torch.ones(2, 1), torch.full((2, 1), 0.1), torch.full((2,), 0.25)
    )
    gibbs = SpikeAndSlabGibbs(RULES[kind], 3)
    chosen = gibbs.select(y, p, p.noise_variance)
    assert chosen.shape == (2, 200, 3)
    assert (chosen[0, :, 0] == true).double().mean() > 0.98
    s = gibbs(y, p, torch.ones(2, 200, 20), 3, 2)
    assert s.shape == (2, 2, 200, 20)
    assert ((s != 0).sum(-1) <= 3).all()
    on = s[0].gather(-1, true.expand(2, 200).unsqueeze(-1))
    assert (on != 0).double().mean() > 0.98


def test_chunks_of_data_are_the_same_chains(monkeypatch):
    """With all causes known to the noise, whatever the chunks are."""
    weight = 3 * torch.rand(1, 9, 4)
    true = torch.rand(1, 30, 4) + 0.5
    y = (true[0].unsqueeze(-2) * weight[0]).sum(-1)
    p = SpikeAndSlabParameters(
        weight, *(torch.full((1, 1), t) for t in (0.99, 1.0, 1.0)), torch.full((1,), 1e-10)
    )
    monkeypatch.setattr(spike_and_slab_gibbs, "LARGEST", 12 * 9 * 4 * 7)
    assert_close(SpikeAndSlabGibbs(LinearRule())(y, p, true)[:, 0], true, atol=1e-2, rtol=0)


def test_only_states_of_the_last_sweeps_are_kept():
    y, weight = two_units()
    p, start = parameters(weight), torch.zeros(1, 1, 2)
    torch.manual_seed(3)
    several = SpikeAndSlabGibbs(MaxRule())(y, p, start, 4, 3)
    torch.manual_seed(3)
    last = SpikeAndSlabGibbs(MaxRule())(y, p, start, 4, 1)
    assert several.shape == (1, 3, 1, 2)
    assert_close(several[:, -1:], last)


def test_single_precision_data_and_parameters_give_double():
    y, weight = two_units()
    p = SpikeAndSlabParameters(*(t.float() for t in parameters(weight)))
    for rule in RULES.values():
        assert SpikeAndSlabGibbs(rule)(y.float(), p, torch.zeros(1, 1, 2)).dtype == torch.float64


def test_wrong_arguments():
    y, weight = two_units()
    p, gibbs = parameters(weight), SpikeAndSlabGibbs(MaxRule())
    with pytest.raises(ValueError, match="preselect: expected a number of units >= 1, or None, got 0"):
        SpikeAndSlabGibbs(MaxRule(), 0)
    with pytest.raises(ValueError, match="kept: expected a number from 1 to sweeps = 2, got 3"):
        gibbs(y, p, torch.zeros(1, 1, 2), 2, 3)
    with pytest.raises(ValueError, match=r"latents: expected at least 2 units, got \[1, 1, 1\]"):
        gibbs(y, parameters(weight[:, :1]), torch.zeros(1, 1, 1))
