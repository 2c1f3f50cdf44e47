import math

import pytest
import torch

from pyro_fmvae import VAE, GaussianObservation, Role, TraceConjugate_ELBO
from pyro_fmvae.nn import ConvDecoder64, ConvEncoder64
from tests.infer.programs import seeded
from tests.models.small import binary_data, small_model


@torch.no_grad()
def losses(vae, x, **kwargs):
    return seeded(TraceConjugate_ELBO().loss_per_role, vae.model, vae.guide, x, **kwargs)


def test_bound_is_brute_force_evaluation():
    vae, x = small_model((1, 1), num_data=30).pretraining(), binary_data(6)
    actual = losses(vae, x)
    loc, scale = vae.encoder(x)
    kl = 0.5 * (loc**2 + scale**2 - 1 - 2 * scale.log()).sum()
    assert actual[Role.KL_Z].item() == pytest.approx(5 * kl.item())
    _, trace = seeded(TraceConjugate_ELBO().trace, vae.model, vae.guide, x)
    logits = vae.decoder(trace.nodes["z"]["value"]).squeeze(1)
    bce = torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    assert actual[Role.RECONSTRUCTION].item() == pytest.approx(5 * bce.item())
    assert actual[Role.KL_R] == actual[Role.KL_GLOBAL] == actual[Role.LABEL] == 0


def test_weight_is_that_of_the_divergence_alone():
    vae, x = small_model((1,)).pretraining(), binary_data(6)
    full, annealed = losses(vae, x), losses(vae, x, kl_weight=0.25)
    assert annealed[Role.KL_Z].item() == pytest.approx(0.25 * full[Role.KL_Z].item())
    assert annealed[Role.RECONSTRUCTION] == full[Role.RECONSTRUCTION]


def test_networks_are_shared_with_the_mixture():
    model = small_model((2, 3))
    vae = model.pretraining()
    assert vae.encoder is model.encoder
    assert vae.decoder is model.decoder
    assert vae.latent_dim == 4


def test_pretraining_is_the_model_itself():
    vae = small_model((2,)).pretraining()
    assert vae.pretraining() is vae


def test_log_weights_average_to_the_bound():
    vae, x = small_model((1, 1), num_data=6).pretraining(), binary_data(6)
    weights = vae.log_weights(x, 4000)
    assert weights.shape == (4000, 6)
    with torch.no_grad():
        parts = TraceConjugate_ELBO(num_particles=500).loss_per_role(vae.model, vae.guide, x)
    bound = -(parts[Role.RECONSTRUCTION] + parts[Role.KL_Z]).item() / 6
    error = (weights.mean(1).std() / math.sqrt(4000)).item()
    assert weights.mean().item() == pytest.approx(bound, abs=5 * error)


@torch.no_grad()
def test_log_weights_tighten_towards_the_evidence():
    """In one dimension, the integral over z is a sum over a grid. A wide q makes weights that vary little."""
    vae, x = small_model((1,), dim=1).pretraining(), binary_data(3)
    vae.encoder.forward = lambda x: (torch.full((len(x), 1), 0.3), torch.full((len(x), 1), 1.3))
    z = torch.linspace(-9, 9, 20_001).unsqueeze(-1)
    log_prior = -0.5 * (z.squeeze(-1) ** 2 + math.log(2 * math.pi))
    log_likelihood = torch.stack([vae.observation(vae.decoder(z)).log_prob(row) for row in x], -1)
    evidence = (log_likelihood + log_prior.unsqueeze(-1)).logsumexp(0) + math.log(18 / 20_000)
    torch.manual_seed(0)
    estimate = vae.log_weights(x, 20_000).logsumexp(0) - math.log(20_000)
    assert estimate.tolist() == pytest.approx(evidence.tolist(), abs=0.02)


def test_samples_are_those_of_the_prior():
    z = small_model((1, 1)).pretraining().sample_latent(20_000)
    assert z.dtype == torch.float64
    assert z.mean(0).tolist() == pytest.approx([0] * 4, abs=0.04)
    assert torch.cov(z.T).flatten().tolist() == pytest.approx(torch.eye(4).flatten().tolist(), abs=0.05)


def test_decoder_starts_at_the_data():
    decoder = ConvDecoder64(4, width=0.02)
    vae = VAE(ConvEncoder64(4, 0.02), decoder, GaussianObservation(3, 0.01, 0.5), 4, 6)
    vae.start_at(0.1 * torch.randn(6, 64, 64, 3) + torch.tensor([0.3, -0.2, 0.7]))
    with torch.no_grad():
        features = decoder(torch.zeros(1, 4))
        mean, std = vae.observation.mean(features), vae.observation.std(features)
    assert mean.mean((0, 1, 2)).tolist() == pytest.approx([0.3, -0.2, 0.7], abs=0.03)
    assert std.mean().item() == pytest.approx(0.1, abs=0.03)


def test_networks_that_start_nowhere_in_particular_are_left_alone():
    vae = small_model((1,)).pretraining()
    before = [p.clone() for p in vae.parameters()]
    vae.start_at(binary_data())
    assert all(map(torch.equal, vae.parameters(), before))
