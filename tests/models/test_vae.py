import pytest
import torch

from pyro_fmvae import Role, TraceConjugate_ELBO
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
