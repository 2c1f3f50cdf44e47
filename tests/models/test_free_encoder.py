"""A search for each point's own Gaussian, in an encoder's place."""

import copy
import io

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae import VAE
from pyro_fmvae.capture import CapturedFreeGaussian, CaptureError
from pyro_fmvae.evaluate import bound
from pyro_fmvae.infer.free_gaussian import FreeGaussian, near_prior
from pyro_fmvae.models.free_encoder import FreeEncoder
from pyro_fmvae.models.vae import PointPosterior
from tests.capture.captured import svi_for
from tests.models.small import binary_data, small_model


def free_vae(steps=20, family=None, **settings):
    vae = small_model((1, 1)).pretraining()
    encoder = FreeEncoder(vae.decoder, vae.observation, 4, steps, family=family, **settings)
    return VAE(encoder, vae.decoder, vae.observation, 4, 20, family=family)


@pytest.mark.parametrize("search", [FreeGaussian, CapturedFreeGaussian])
def test_it_searches_from_the_prior_with_draws_of_its_own(search):
    vae, x = free_vae(steps=5, learning_rate=0.2, seed=7, search=search), binary_data(6)
    state = torch.get_rng_state()
    with torch.no_grad():
        first = vae.encoder(x)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert all(map(torch.equal, vae.encoder(x), first))
    torch.manual_seed(7)
    expected = FreeGaussian(vae, 5, 0.2)(x, *near_prior(6, 4))
    for one, other in zip(first, expected, strict=True):
        assert_close(one, other, rtol=0, atol=1e-5)  # N is another one, and with it Adam's ε


def test_only_the_decoder_belongs_to_the_model():
    vae = free_vae()
    assert list(vae.encoder.parameters()) == []
    assert {name.split(".")[0] for name in vae.state_dict()} == {"decoder"}
    assert list(vae.parameters()) == list(vae.decoder.parameters())


def test_no_encoder_has_a_higher_bound():
    free, x = free_vae(steps=200), binary_data(200)
    amortised = VAE(small_model((1, 1)).encoder, free.decoder, free.observation, 4, 20)
    assert bound(free, [(x,)], num_samples=5)["elbo"] > bound(amortised, [(x,)], num_samples=5)["elbo"] + 0.1


def test_the_model_can_do_what_others_can():
    vae, x = free_vae(), binary_data(6)
    assert vae.posterior(x).mean.shape == (6, 4)
    assert vae.sample_latent(3).shape == (3, 4)
    assert vae.log_weights(x, 2).shape == (2, 6)


def test_copies_search_for_the_posterior_of_their_own_decoder():
    vae, x = free_vae(), binary_data(6)
    before = vae.encoder(x)[0]
    other = copy.deepcopy(vae)
    assert_close(other.encoder(x)[0], before)
    with torch.no_grad():
        other.decoder.linear.weight.mul_(-2)
    assert not torch.allclose(other.encoder(x)[0], before)
    assert_close(vae.encoder(x)[0], before)


def test_a_model_that_was_used_can_be_saved_whole():
    vae = free_vae()
    vae.encoder(binary_data(6))
    torch.save(vae, io.BytesIO())


@pytest.mark.parametrize("search", [FreeGaussian, CapturedFreeGaussian])
def test_works_in_inference_mode(search):
    vae, x = free_vae(search=search), binary_data(6)
    with torch.inference_mode():
        first = vae.posterior(x.clone()).mean
    assert torch.equal(vae.posterior(x).mean, first)


def test_at_scale_zero_it_fits_the_reconstruction_alone():
    vae, x = free_vae(steps=200, family=PointPosterior()), binary_data(6)
    loc, scale = vae.encoder(x)
    assert_close(scale, torch.ones(6, 4))
    start = torch.zeros(6, 4) + 0.1
    slopes = []
    for z in (start.requires_grad_(), loc.requires_grad_()):
        slopes += torch.autograd.grad(vae.log_likelihood(x, z).sum(), z)
    assert slopes[1].norm() < 0.1 * slopes[0].norm()


def test_the_last_result_is_kept_until_something_changes():
    vae, x = free_vae(), binary_data(6)
    searches, search = [], vae.encoder._search
    vae.encoder._search = lambda x, *start: searches.append(len(x)) or search(x, *start)
    vae.encoder._search.program = search.program
    first = vae.encoder(x)[0].clone()
    vae.encoder(x.clone())[0].zero_()  # nobody else's
    assert torch.equal(vae.encoder(x)[0], first)
    bound(vae, [(x,)], num_samples=3)
    assert searches == [6]
    vae.encoder(x[:5])
    vae.encoder(1 - x[:5])
    with torch.no_grad():
        vae.decoder.linear.bias.add_(1)
    vae.encoder(1 - x[:5])
    vae.eval().encoder(1 - x[:5])
    vae.float().encoder(1 - x[:5].float())
    vae.encoder.seed = 1
    vae.encoder(1 - x[:5].float())
    vae.encoder(1 - x[:5].float())
    assert searches == [6, 5, 5, 5, 5, 5, 5]


def test_it_is_no_part_of_a_captured_step():
    vae, x = free_vae(), binary_data(6)
    with pytest.raises(CaptureError, match=r"the step cannot be captured: .* pass eager=True"):
        svi_for(vae).step(x)
    before = vae.decoder.linear.weight.clone()
    svi_for(vae, eager=True).step(x)
    assert not torch.equal(vae.decoder.linear.weight, before)


def test_refuses():
    with pytest.raises(ValueError, match=r"^steps: expected a number >= 1, got 0"):
        free_vae(steps=0)
