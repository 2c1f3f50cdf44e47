import math

import pyro.poutine as poutine
import pytest
import torch
from torch.distributions import Independent
from torch.testing import assert_close

from pyro_fmvae.distributions import SpikeAndSlab
from pyro_fmvae.infer import TraceConjugate_ELBO
from pyro_fmvae.models.em.spike_and_slab_em import SpikeAndSlabEM
from pyro_fmvae.models.em.spike_and_slab_rules import LinearRule, MaxRule
from pyro_fmvae.models.spike_and_slab_sparse_coding import SpikeAndSlabSparseCoding
from tests.models.em.two_causes import log_joint_grid, log_likelihood, parameters

RULES = {"max": MaxRule(), "linear": LinearRule()}
SHAPE = (2, 3)


def two_units(kind, shared=True, burn_in=8, **options):
    """A model of x [B, 2, 3] with two units, and data: one element is missing, one point is far out."""
    em = SpikeAndSlabEM(RULES[kind], 2, None, shared=shared)
    model = SpikeAndSlabSparseCoding(SHAPE, 20, em, burn_in, **options)
    weight = torch.tensor([[3.0, 0.0], [2.0, 1.0], [0.0, 3.0], [0.5, 2.5], [-1.0, 0.5], [1.0, 1.0]])
    slab = (0.3, 1.0, 0.1) if shared else ([0.3, 0.4], [1.0, -0.8], [0.1, 0.2])
    model.take(parameters(weight, *slab, 0.25), 0)
    x = model.decode(model.sample_latent(5)) + 0.5 * torch.randn(5, *SHAPE)
    x[0, 1, 2], x[1] = math.nan, x[1] + 2
    return model, x.detach()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", RULES)
def test_program_is_the_joint_density(kind, shared):
    model, x = two_units(kind, shared)
    s = model.sample_latent(5)
    with torch.no_grad():
        trace = poutine.trace(poutine.condition(model.model, {"s": s})).get_trace(x)
        expected = model.log_likelihood(x, s)
    prior = SpikeAndSlab(model.loc, (0.5 * model.log_variance).exp(), model.logits).log_prob(s).sum(-1)
    assert_close(trace.log_prob_sum(), 4 * (expected + prior).sum().detach())
    error = (x - model.decode(s)).square().nansum((-2, -1))
    nats = -0.5 * (error / 0.25 + (~x.isnan()).sum((-2, -1)) * math.log(2 * math.pi * 0.25))
    assert_close(expected, nats.detach())
    names = {name for name, site in trace.nodes.items() if site["type"] == "param"}
    assert {n.split("$$$")[1] for n in names} == {"weight", "logits", "loc", "log_variance", "log_scale"}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", RULES)
def test_bound_is_below_the_likelihood(kind, shared):
    """The average over the guide's draws, and the importance-weighted one, which closes the gap."""
    model, x = two_units(kind, shared)
    exact = log_likelihood(x.flatten(1), model.given(), kind, 30)
    with torch.no_grad():
        many = x.repeat(40, 1, 1)
        losses = [TraceConjugate_ELBO().loss(model.model, model.guide, many) / 20 for _ in range(3)]
    bound = -torch.tensor(losses)
    assert bound.mean() < exact.mean() + 3 * bound.std() / math.sqrt(3)
    assert bound.mean() > exact.mean() - 3
    weights = model.log_weights(x, 1000)
    assert weights.shape == (1000, 5)
    estimate = weights.logsumexp(0) - math.log(1000)
    relative = (weights - estimate).exp().std(0) / math.sqrt(1000)
    assert ((estimate - exact).abs() < 4 * relative + 0.05).all()
    assert (relative < 0.2).all()


@pytest.mark.parametrize("kind", RULES)
def test_posterior_has_the_moments_of_the_exact_one(kind):
    model, x = two_units(kind, draws=150)
    states, log_weights = log_joint_grid(x.flatten(1), model.given(), kind, 30)
    share = log_weights.softmax(-1)
    on = share @ (states != 0).double()
    many = x.repeat(40, 1, 1)
    q = model.posterior(many)
    assert q.batch_shape == (200, 2)
    probs, loc, scale = (t.unflatten(0, (40, 5)).mean(0) for t in (q.probs, q.loc, q.scale))
    assert_close(probs, on, atol=0.02, rtol=0)
    mean, square = (share @ states.pow(k) / on for k in (1, 2))
    often = on > 0.1
    assert often.sum() > 3
    deviation = (square - mean.square()).sqrt()
    assert_close(loc[often], mean[often], atol=0.015, rtol=0)
    assert_close(scale[often], deviation[often], atol=0, rtol=0.09)
    picture = torch.einsum("bn,nd->bd", share, model.decode(states).flatten(1).detach())
    model.draws = 20
    found = model.reconstruct(many).flatten(1).unflatten(0, (40, 5)).mean(0)
    assert_close(found, picture, atol=0.1, rtol=0)


def test_mean_image_is_that_of_images_not_that_of_the_mean_cause():
    model, x = two_units("max")
    draws = 1.0 * torch.tensor([[1, 0], [0, 1], [1, 1]])[:, None].expand(3, 5, 2)
    model.gibbs = lambda x: draws
    images = model.decode(draws).detach()
    assert_close(model.reconstruct(x), (images[0] + images[1] + images[2]) / 3)
    assert (model.reconstruct(x) - model.decode(draws.mean(0))).abs().max() > 0.1


def test_a_unit_that_is_never_on_has_the_slab_of_the_prior():
    model, x = two_units("max", False)
    torch.nn.init.constant_(model.logits, -200.0)
    q = model.posterior(x)
    assert_close(q.probs, torch.full((5, 2), 0.001 / 30.002))
    assert_close(q.loc, model.loc.detach().expand(5, 2))
    assert_close(q.scale, (0.5 * model.log_variance.detach()).exp().expand(5, 2))
    assert all(t.isfinite().all() for t in (q.log_prob(model.gibbs(x, 2)[0]), q.logits))


def test_slabs_are_no_narrower_than_all_pixels_could_make_them():
    model, x = two_units("max", False)
    model.gibbs = lambda x: torch.full((30, len(x), 2), 0.7)
    p = model.given()
    precision = 1 / p.variance[0] + p.weight[0].square().sum(0) / p.noise_variance
    q = model.posterior(x)
    assert_close(q.scale, precision.rsqrt().expand(5, 2))
    assert_close(q.loc, torch.full((5, 2), 0.7))


def test_burn_in_cools_down(monkeypatch):
    model, x = two_units("max", burn_in=5)
    seen, sweeps = [], type(model.em.gibbs).__call__

    def watched(self, y, p, state, number=1, kept=1, temperature=1.0):
        seen.append((number, kept, temperature))
        return sweeps(self, y, p, state, number, kept, temperature)

    monkeypatch.setattr(type(model.em.gibbs), "__call__", watched)
    model.gibbs(x, 4)
    assert seen[-1] == (4, 4, 1.0)
    temperatures = torch.tensor([temperature for *_, temperature in seen[:-1]])
    assert_close(temperatures, torch.tensor([3.0, 7 / 3, 5 / 3, 1.0, 1.0]))


def test_draws():
    model, x = two_units("max")
    draws = model.gibbs(x, 7, 3)
    assert draws.shape == (7, 5, 2)
    assert model.gibbs(x).shape == (30, 5, 2)
    assert (draws == 0).any()
    assert not draws.requires_grad
    assert model.float().gibbs(x.float()).dtype == torch.float32
    assert model.posterior(x.float()).loc.dtype == torch.float32
    cold = model.gibbs(x, 1, 0)
    assert cold.shape == (1, 5, 2)


@pytest.mark.parametrize("kind", RULES)
def test_parameters_of_a_start_come_and_go(kind):
    model, x = two_units(kind, False)
    em = model.em
    p = em.start(x.flatten(1), 3)
    found = em.e_step(x.flatten(1), p, em.start_latents(p, 5))
    p = em.m_step(found.statistics, p).parameters
    model.take(p, 1)
    for mine, theirs in zip(model.given(), p, strict=True):
        assert_close(mine[0], theirs[1])
    assert_close(model.dictionary[1].flatten(), p.weight[1, :, 1])
    assert model.dictionary.shape == (2, *SHAPE)
    s = torch.randn(4, 5, 2)
    expected = s.unsqueeze(-2) * p.weight[1]
    expected = expected.amax(-1) if kind == "max" else expected.sum(-1)
    assert_close(model.decode(s), expected.unflatten(-1, SHAPE))
    again = SpikeAndSlabSparseCoding(SHAPE, 20, em)
    again.match(model.state_dict())
    again.load_state_dict(model.state_dict())
    assert_close(again.given(), model.given())
    model.start_at(x)
    assert_close(again.given(), model.given())


def test_draws_of_the_prior():
    model, _ = two_units("max", False)
    s = model.sample_latent(20000)
    assert s.shape == (20000, 2)
    assert_close((s != 0).double().mean(0), torch.tensor([0.3, 0.4]), atol=0.015, rtol=0)
    assert_close(s.mean(0), torch.tensor([0.3, -0.32]), atol=0.02, rtol=0)


@pytest.mark.parametrize("kind", RULES)
def test_gradients_reach_all_parameters(kind):
    model, x = two_units(kind, False)
    TraceConjugate_ELBO().loss_and_grads(model.model, model.guide, x)
    for parameter in model.parameters():
        assert parameter.grad.isfinite().all()
        assert (parameter.grad != 0).any()


def test_new_model_can_be_drawn_from():
    model = SpikeAndSlabSparseCoding(SHAPE, 20, SpikeAndSlabEM(MaxRule(), 8))
    assert (model.latent_dim, model.burn_in, model.draws) == (8, 20, 30)
    assert isinstance(model.posterior(torch.randn(3, *SHAPE)), SpikeAndSlab)
    guide = poutine.trace(model.guide).get_trace(torch.randn(3, *SHAPE))
    assert isinstance(guide.nodes["s"]["fn"], Independent)
    assert_close(model.given().probs, torch.tensor([[0.25]]))


@pytest.mark.parametrize("name", ["burn_in", "draws"])
def test_wrong_arguments(name):
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, got 0"):
        SpikeAndSlabSparseCoding(SHAPE, 20, SpikeAndSlabEM(MaxRule(), 8), **{name: 0})


def test_wrong_number_of_draws():
    model, x = two_units("max")
    with pytest.raises(ValueError, match="draws must be a positive integer, got 0"):
        model.gibbs(x, draws=0)
