"""Expected log-densities of single sites: where they have no draws, and how exact they are."""

from contextlib import nullcontext

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from pyro_fmvae.distributions import NaturalNormal
from pyro_fmvae.infer import AutoConjugate, NaturalPosterior, TraceConjugate_ELBO
from pyro_fmvae.infer.elbo import expansion
from tests.infer.plain.oracles import step
from tests.infer.plain.structure import mixture_behind_a_decoder


def test_a_latent_under_a_decoder_counts_in_closed_form():
    """The assignments see the moments of q(z), not its draw."""
    args, guide = mixture_behind_a_decoder.setup()
    step(mixture_behind_a_decoder.model, guide, *args, rate=0.6)
    elbo, model = TraceConjugate_ELBO(), mixture_behind_a_decoder.model
    per_site = [elbo.loss_per_site(model, guide, *args) for _ in range(2)]
    assert per_site[0]["a"] == per_site[1]["a"] and per_site[0]["x"] != per_site[1]["x"]
    guide.zero_grad()
    elbo.differentiable_loss(model, guide, *args).backward()
    assert guide.loc.grad.isfinite().all() and guide.loc.grad.all()


def test_float32_far_from_zero():
    """5,000 standard deviations away, where squares of data have lost all digits behind the point."""
    x = torch.cat([torch.randn(30), 8 + 2 * torch.randn(30), -9 + 0.5 * torch.randn(20)]) + 5000.0
    x = x.float().double()
    posterior = NaturalPosterior(
        NaturalNormal, torch.stack([4 * torch.tensor([4991.0, 5000.0, 5008.0]), torch.full((3,), -2.0)], -1)
    )

    def model(x):
        with pyro.plate("components", 3):
            locs = pyro.sample("locs", dist.Normal(0.0, 1e4))
        with pyro.plate("data", len(x)):
            a = pyro.sample("a", dist.Categorical(torch.ones(3)))
            pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x)

    def guide(x):
        with pyro.plate("components", 3):
            pyro.sample("locs", posterior())

    losses, grads = [], []
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        loss = TraceConjugate_ELBO().differentiable_loss(model, guide, x.to(dtype))
        loss.backward()
        losses.append(loss.item())
        grads.append(posterior.natural.grad.clone())
        posterior.zero_grad()
    assert abs(losses[0] - losses[1]) < 0.02
    assert_close(grads[1], grads[0], rtol=1e-5, atol=0)


@pytest.mark.parametrize("structured", [False, True], ids=["apart", "one joint with the precision"])
def test_squares_of_sums_with_many_sites_are_those_spelt_out(structured, monkeypatch):
    x = torch.randn(9, 12)

    def model():
        precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
        first = pyro.sample("w0", dist.Normal(0.0, precision.rsqrt()))
        w = [first, *(pyro.sample(f"w{i}", dist.Normal(0.0, 1.0)) for i in range(1, 12))]
        loc = sum(w[i] * x[:, i] for i in range(12)) + 0.5
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(loc, precision.rsqrt()), obs=x.sum(1))

    found = []
    for most in (expansion._MOST_SITES, 12):
        monkeypatch.setattr(expansion, "_MOST_SITES", most)
        pyro.set_rng_seed(0)
        guide = AutoConjugate(model, structured=structured)
        guide()
        assert (guide.posterior("w0") is guide.posterior("precision")) == structured
        loss = TraceConjugate_ELBO().differentiable_loss(model, guide)
        slopes = torch.autograd.grad(loss, list(guide.parameters()))
        moves = [p.moves for p in guide.parameters()]
        found.append((loss, slopes, moves))
    assert_close(found[0], found[1], rtol=1e-11, atol=1e-11)


N, D = 500, 16


def regression(prior):
    source = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=source)
    y = x.sum(-1) + torch.randn(N, generator=source)

    def model(x, y, mask=None):
        w = pyro.sample("w", prior())
        p = pyro.sample("p", dist.Gamma(2.0, 2.0))
        with pyro.plate("n", N), nullcontext() if mask is None else poutine.mask(mask=mask):
            pyro.sample("y", dist.Normal(x @ w, p.rsqrt()), obs=y)

    return model, x, y


def independent():
    return dist.Normal(torch.zeros(D), 3.0).to_event(1)


def correlated():
    return dist.MultivariateNormal(torch.zeros(D), 9 * torch.eye(D))


def loss_and_gradients(model, guide, *args):
    loss = TraceConjugate_ELBO().differentiable_loss(model, guide, *args)
    return loss, torch.autograd.grad(loss, list(guide.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("prior", [independent, correlated])
def test_sum_is_that_of_the_points(prior, dtype):
    """A mask that leaves nothing out makes the densities of all points."""
    torch.set_default_dtype(dtype)
    model, x, y = regression(prior)
    guide = AutoConjugate(model)
    guide(x, y)
    summed = loss_and_gradients(model, guide, x, y)
    by_point = loss_and_gradients(model, guide, x, y, torch.ones(N, dtype=torch.bool))
    assert_close(summed, by_point, rtol=1e-6, atol=1e-3, check_dtype=False)


@pytest.mark.parametrize("prior", [independent, correlated])
def test_data_are_added_up_once(prior):
    """One product of matrices [D, N] and [N, D], for the loss and its gradient together."""
    model, x, y = regression(prior)
    guide = AutoConjugate(model)
    guide(x, y)
    loss_and_gradients(model, guide, x, y)
    with FlopCounterMode(display=False) as counter:
        loss_and_gradients(model, guide, x, y)
    assert 2 * N * D**2 <= counter.get_total_flops() < 3 * N * D**2
