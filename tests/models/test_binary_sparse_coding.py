import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI
from torch.testing import assert_close

from pyro_fmvae.distributions.grouped_bernoulli import GroupedBernoulli
from pyro_fmvae.infer import TraceConjugate_ELBO
from pyro_fmvae.models.binary_sparse_coding import BinarySparseCoding
from pyro_fmvae.models.em.binary_em import BinaryEM, BinaryParameters, enumerate_states
from pyro_fmvae.models.em.binary_mean_field import bound
from tests.models.binary import bars, cosines

SHAPE, UNITS, ROWS, TOTAL = (2, 3, 1), 4, 5, 20


def small(dtype=torch.float64, **options):
    model = BinarySparseCoding(SHAPE, TOTAL, BinaryEM(UNITS, **options)).to(dtype)
    weight, logits = torch.randn(1, 6, UNITS, dtype=dtype), torch.randn(1, UNITS, dtype=dtype)
    model.take(BinaryParameters(weight, logits, torch.tensor([2.0], dtype=dtype)), 0)
    return model


def data(missing=True, dtype=torch.float64):
    x = torch.randn(ROWS, *SHAPE, dtype=dtype)
    if missing:
        x[0, 0, 1], x[2] = torch.nan, torch.nan
    return x


OPTIONS = [{}, {"group_size": 3}, {"exact": True}]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_loss_is_minus_the_bound(options, missing, dtype):
    model, x = small(dtype, **options), data(missing, dtype)
    loss = TraceConjugate_ELBO().loss(model.model, model.guide, x)
    q = model.em.search(x.flatten(1), model.given())
    expected = -bound(q, x.flatten(1), *model.given()).sum() * TOTAL / ROWS
    assert loss == pytest.approx(expected.item(), rel=1e-5 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_are_those_of_the_bound(options):
    model, x = small(**options), data()
    TraceConjugate_ELBO().loss_and_grads(model.model, model.guide, x)
    found = [p.grad for p in model.parameters()]
    q = model.em.posterior(x.flatten(1), model.given())
    total = -bound(q, x.flatten(1), *model.given()).sum() * TOTAL / ROWS
    for gradient, expected in zip(found, torch.autograd.grad(total, list(model.parameters())), strict=True):
        assert_close(gradient, expected)


def test_gradients_at_the_exact_posterior_are_those_of_the_likelihood():
    model, x = small(exact=True), data()
    TraceConjugate_ELBO().loss_and_grads(model.model, model.guide, x)
    total = -enumerate_states(x.flatten(1), *model.given())[0].sum() * TOTAL / ROWS
    for p, expected in zip(
        model.parameters(), torch.autograd.grad(total, list(model.parameters())), strict=True
    ):
        assert_close(p.grad, expected)


def test_gradient_steps_learn_bars():
    weight, x = bars(side=3, size=200)
    model = BinarySparseCoding((9,), 200, BinaryEM(6, nonnegative=True)).double()
    model.take(model.em.start(x, 1)._replace(weight=weight[None] + 0.3 * torch.rand(1, 9, 6)), 0)
    svi = SVI(model.model, model.guide, pyro.optim.Adam({"lr": 0.03}), TraceConjugate_ELBO())
    latents = torch.full((200, 6), 1 / 3)
    losses = []
    for _ in range(120):
        q = model.posterior(x, latents)
        latents = q.mean
        losses.append(svi.step(x, posterior=q))
        model.project()
        assert (model.weight >= 0).all()
    assert losses[-1] < losses[0] - 200
    assert cosines(weight, model.weight.detach()).min() > 0.98
    assert model.log_scale.exp().item() < 0.2


def test_guide_starts_where_it_is_told():
    model, x = small(), data()
    fixed = model.posterior(x)
    other = GroupedBernoulli(fixed.probs.flip(-1))
    for options, expected in (({}, fixed), ({"latents": fixed.mean}, fixed), ({"posterior": other}, other)):
        q = poutine.trace(model.guide).get_trace(x, **options).nodes["h"]["fn"]
        assert_close(q.probs, expected.probs, rtol=1e-4, atol=1e-5)
    assert (fixed.batch_shape, fixed.event_shape) == ((ROWS,), (UNITS,))
    assert not fixed.probs.requires_grad
    assert fixed.probs.equal(model.posterior(x).probs)  # whatever the random numbers
    calls = []
    model.em.posterior = lambda x, parameters, latents: (
        calls.append(latents) or GroupedBernoulli(fixed.probs[None])
    )
    model.posterior(x, 0.25 * torch.ones(ROWS, UNITS))
    assert_close(calls[0], 0.25 * torch.ones(1, ROWS, UNITS))


@pytest.mark.parametrize("options", OPTIONS)
def test_data_may_be_more_precise_than_weights(options):
    model, x, latents = small(torch.float32, **options), data(), torch.rand(ROWS, UNITS)
    for double, single in (((x,), (x.float(),)), ((x, latents), (x.float(), latents.float()))):
        found = model.posterior(*double)
        assert found.probs.dtype == torch.float32
        assert found.probs.equal(model.posterior(*single).probs)
    assert model.log_weights(x, 2).isfinite().all()


def test_draws_and_decoding():
    model = small()
    z = model.sample_latent(20_000)
    assert_close(z.mean(0), model.logits.sigmoid().detach(), rtol=0, atol=0.02)
    assert ((z == 0) | (z == 1)).all()
    assert model.dictionary.shape == (UNITS, *SHAPE)
    assert_close(model.decode(torch.eye(UNITS)), model.dictionary)
    assert model.decode(torch.zeros(2, 3, UNITS)).shape == (2, 3, *SHAPE)


def test_the_program_is_the_joint_density():
    model, x = small(), data()
    h = model.sample_latent(ROWS)
    trace = poutine.trace(poutine.condition(model.model, {"h": h})).get_trace(x)
    expected = model.log_likelihood(x, h) + torch.distributions.Bernoulli(logits=model.logits).log_prob(
        h
    ).sum(-1)
    assert_close(trace.log_prob_sum(), expected.sum() * TOTAL / ROWS)
    assert_close(model.log_likelihood(x, h)[2], torch.tensor(0.0))


def test_importance_weights_of_the_exact_posterior_are_the_likelihood():
    model, x = small(exact=True), data()
    evidence = enumerate_states(x.flatten(1), *model.given())[0][0]
    assert_close(model.log_weights(x, 3), evidence.detach().expand(3, -1))


def test_parameters_come_and_go():
    model = small(nonnegative=True)
    given = model.given()
    other = BinarySparseCoding(SHAPE, TOTAL, model.em).double()
    other.take(BinaryParameters(*(torch.cat([t + 1, t]) for t in given)), 1)
    for found, expected in zip(other.given(), given, strict=True):
        assert_close(found, expected)
    assert given.weight.min() < 0
    model.project()
    assert_close(model.weight.detach(), given.weight[0].detach().clamp_min(0))
    other = small()
    before = other.weight.detach().clone()
    other.project()
    assert other.weight.equal(before)


def test_nothing_to_start_or_match():
    model = small()
    before = [p.clone() for p in model.parameters()]
    model.start_at(data())
    model.match(model.state_dict())
    assert all(p.equal(q) for p, q in zip(model.parameters(), before, strict=True))
