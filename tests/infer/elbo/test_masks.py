"""Masks of sites and of distributions, and their shapes."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.distributions import HiddenMarkov
from pyro_fmvae.infer import AutoConjugate, TraceConjugate_ELBO

B, T = 3, 3
X = torch.tensor([[0.1, 2.0, -1.0], [1.5, 0.2, 0.4], [-2.0, 0.3, 1.0]], dtype=torch.float64)
KEPT = torch.tensor([True, False, True])
ROWS = torch.tensor([[0.8, 0.2], [0.3, 0.7]], dtype=torch.float64)
POINTS = dist.Normal(0.0, 1.0).expand([T]).to_event(1)


def around(fn, mask, inside):
    """A distribution masked by itself, or the context that masks its site."""
    return (fn.mask(mask), True) if inside else (fn, mask)


def latent(mask, inside):
    """Latents whose KL divergence has a closed form, with nothing else in the program."""
    fn, outside = around(POINTS, mask, inside)
    with pyro.plate("points", B), poutine.mask(mask=outside):
        pyro.sample("z", fn)


def of_latent(mask, inside):
    with pyro.plate("points", B):
        pyro.sample("z", dist.Normal(X, 0.5).to_event(1))


def conjugate(mask, inside):
    fn, outside = around(dist.Normal(1.0, 2.0), mask, inside)
    with pyro.plate("points", B):
        with poutine.mask(mask=outside):
            loc = pyro.sample("loc", fn)
        pyro.sample("x", dist.Normal(loc, 1.0), obs=X[0])


def enumerated(mask, inside):
    with pyro.plate("values", 2):
        loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
    fn, outside = around(dist.Categorical(ROWS[0]), mask, inside)
    with pyro.plate("points", B):
        with poutine.mask(mask=outside):
            z = pyro.sample("z", fn)
        pyro.sample("x", dist.Normal(loc[z], 1.0), obs=X[0])


def chain(mask, inside, present=True, scale=1.0, x=X):
    with pyro.plate("states", 2):
        loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
    emissions = dist.Normal(loc, 1.0).mask(present)
    fn, outside = around(HiddenMarkov(ROWS[0], ROWS, emissions, x.shape[1]), mask, inside)
    with pyro.plate("points", B), poutine.mask(mask=outside), poutine.scale(scale=scale):
        pyro.sample("x", fn, obs=x)


def guide_of(model, *args):
    pyro.set_rng_seed(0)
    guide = of_latent if model is latent else AutoConjugate(model)
    guide(*args)
    return guide


@pytest.mark.parametrize("model", [latent, conjugate, enumerated, chain])
def test_masked_distributions_are_as_masked_sites(model):
    guide = guide_of(model, KEPT, False)
    inside, outside, everything = (
        TraceConjugate_ELBO().loss(model, guide, mask, mode)
        for mask, mode in ((KEPT, True), (KEPT, False), (torch.tensor(True), False))
    )
    assert inside == pytest.approx(outside, abs=1e-12)
    assert outside != pytest.approx(everything)


@pytest.mark.parametrize("model", [latent, conjugate, enumerated, chain])
def test_masks_that_are_not_of_the_shape_of_plates_are_refused(model):
    """They would broadcast to more terms than there are."""
    guide = guide_of(model, True, False)
    with pytest.raises(ValueError, match=r"its mask is of shape \(3, 3\), but its plates of \(3,\)"):
        TraceConjugate_ELBO().loss(model, guide, torch.ones(B, T) > 0, False)


def test_parts_of_a_latent_may_not_be_masked_in_the_model_alone():
    def model(mask, inside):
        with pyro.plate("points", B):
            pyro.sample("z", dist.Normal(torch.zeros(T), 1.0).mask(KEPT).to_event(1))

    with pytest.raises(ValueError, match="site 'z': parts of its event are masked in the model, but not in"):
        TraceConjugate_ELBO().loss(model, of_latent, True, False)

    def alike(mask, inside):
        with pyro.plate("points", B):
            pyro.sample("z", dist.Normal(X, 0.5).mask(KEPT).to_event(1))

    expected = torch.distributions.kl_divergence(dist.Normal(X, 0.5), dist.Normal(0.0, 1.0))[:, KEPT].sum()
    assert_close(torch.tensor(TraceConjugate_ELBO().loss(model, alike, True, False)), expected)


SOME = torch.tensor([[True, False, True], [True, True, False], [False, False, False]])


@pytest.mark.parametrize("present", [SOME, torch.zeros(B, T) > 0, SOME[:, :1]])
@pytest.mark.parametrize("counts", [1.0, torch.tensor([1.0, 2.0, 0.5])])
def test_bound_of_sequences_with_missing_steps_is_the_sum_over_all_paths(present, counts):
    guide, duration = guide_of(chain, True, False), present.shape[1]
    loc, square = guide.posterior("loc")().expected_stats().unbind(-1)
    x = X[:, :duration]
    gaps = x[..., None] ** 2 - 2 * x[..., None] * loc + square
    steps = torch.where(present.unsqueeze(-1), -0.5 * gaps - 0.5 * math.log(2 * math.pi), 0.0)
    paths = torch.tensor(list(itertools.product(range(2), repeat=duration)))
    weights = ROWS[0][paths[:, 0]].log() + ROWS[paths[:, :-1], paths[:, 1:]].log().sum(-1)
    expected = (weights + steps[:, torch.arange(duration), paths].sum(-1)).logsumexp(-1)
    found = TraceConjugate_ELBO().loss_per_site(chain, guide, True, False, present.unsqueeze(-1), counts, x)
    assert_close(found["x"], -(counts * expected).sum())
