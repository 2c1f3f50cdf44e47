import math

import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import nn

from pyro_fmvae import VAE, GaussianObservation, Role, TraceConjugate_ELBO
from pyro_fmvae.evaluate import bound
from pyro_fmvae.infer.importance import total_correlation
from pyro_fmvae.models.vae import PointPosterior
from pyro_fmvae.nn import ConvDecoder, ConvEncoder
from tests.capture.captured import assert_twins, batches_of
from tests.infer.programs import gradients, seeded
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
@pytest.mark.slow
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
    shape = (64, 64, 3)
    decoder = ConvDecoder(4, shape, 2, 0.02)
    vae = VAE(ConvEncoder(shape, 4, 0.02), decoder, GaussianObservation(3, 0.01, 0.5), 4, 6)
    vae.start_at(0.1 * torch.randn(6, *shape) + torch.tensor([0.3, -0.2, 0.7]))
    with torch.no_grad():
        features = decoder(torch.zeros(1, 4))
        mean, std = vae.observation.mean(features), vae.observation.std(features)
    assert mean.mean((0, 1, 2)).tolist() == pytest.approx([0.3, -0.2, 0.7], abs=0.03)
    assert std.mean().item() == pytest.approx(0.1, abs=0.03)


def test_networks_that_start_nowhere_in_particular_are_left_alone():
    """Perceptrons, and convolutions for images without colours."""
    grey = VAE(ConvEncoder((8, 8), 2, 0.1), ConvDecoder(2, (8, 8), 2, 0.1), GaussianObservation(2), 2, 6)
    for vae, x in ((small_model((1,)).pretraining(), binary_data()), (grey, torch.ones(6, 8, 8))):
        before = [p.clone() for p in vae.parameters()]
        vae.start_at(x)
        assert all(map(torch.equal, vae.parameters(), before))


@torch.no_grad()
def test_divergence_is_that_of_draws():
    vae, x = small_model((1, 1), num_data=6).pretraining(), binary_data(6)
    q = vae.posterior(x)
    z = q.sample((20_000,))
    ratios = (q.log_prob(z) - vae.log_prior(z)).sum(-1)
    error = ratios.std().item() / math.sqrt(20_000)
    assert losses(vae, x)[Role.KL_Z].item() == pytest.approx(ratios.mean().item(), abs=4 * error)


@torch.no_grad()
def test_posterior_is_the_encoders():
    vae, x = small_model((1, 1)).pretraining(), binary_data(6)
    q, (loc, scale) = vae.posterior(x), vae.encoder(x)
    assert (q.batch_shape, q.event_shape) == ((6,), (4,))
    assert torch.equal(q.mean, loc)
    torch.testing.assert_close(q.stddev, scale)
    distorted = VAE(vae.encoder, vae.decoder, vae.observation, 4, 20, distortion=nn.Flatten(0))
    assert torch.equal(distorted.train().posterior(x).mean, loc)


def test_a_given_posterior_takes_the_place_of_the_encoders():
    vae, x = small_model((1, 1), num_data=30).pretraining(), binary_data(6)
    loc, scale = torch.randn(6, 4), 0.2 + torch.rand(6, 4)
    parts = losses(vae, x, posterior=(loc, scale))
    assert parts[Role.KL_Z].item() == pytest.approx(
        5 * 0.5 * (loc**2 + scale**2 - 1 - 2 * scale.log()).sum().item()
    )
    with torch.no_grad():
        encoded = losses(vae, x, posterior=vae.encoder(x))
    assert encoded == losses(vae, x)
    loss = TraceConjugate_ELBO().differentiable_loss(vae.model, vae.guide, x, posterior=(loc, scale))
    slopes = gradients(loss, vae)
    assert all((grad is None) == name.startswith("encoder") for name, grad in slopes.items())


def autoencoder():
    vae = small_model((1, 1), num_data=30).pretraining()
    return VAE(vae.encoder, vae.decoder, vae.observation, 4, 30, family=PointPosterior())


def test_at_scale_zero_it_is_an_auto_encoder():
    """Value and gradients are those of the decoder at the encoder's mean, and of nothing else."""
    vae, x = autoencoder(), binary_data(6)
    logits = vae.decoder(vae.encoder(x)[0]).squeeze(1)
    expected = 5 * torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    slopes = gradients(expected, vae)
    for weight in (1.0, 7.0):
        arguments = {"kl_weight": weight, "tc_weight": weight}
        loss = TraceConjugate_ELBO().differentiable_loss(vae.model, vae.guide, x, **arguments)
        torch.testing.assert_close(loss, expected)
        for name, grad in gradients(loss, vae).items():
            torch.testing.assert_close(grad, slopes[name])
        assert Trace_ELBO().loss(vae.model, vae.guide, x, **arguments) == pytest.approx(expected.item())


def test_an_auto_encoder_has_no_bound():
    vae, x = autoencoder(), binary_data(6)
    assert not vae.bounded and small_model().bounded and small_model().pretraining().bounded
    measures = bound(vae, [(x,)])
    assert measures["kl_z"] == 0
    assert measures["elbo"] == measures["reconstruction"] < 0
    assert torch.equal(vae.posterior(x).mean, vae.encoder(x)[0])
    assert not vae.posterior(x).stddev.any()
    with pytest.raises(ValueError, match=r"^log_weights: expected a posterior with a density, got a"):
        vae.log_weights(x, 2)


@pytest.mark.parametrize("weight", [1.0, 3.0, torch.tensor(3.0)])
def test_total_correlation_is_added_at_its_weight_less_one(weight):
    vae, x = small_model((1, 1), num_data=30).pretraining(), binary_data(6)
    plain, parts = losses(vae, x), losses(vae, x, tc_weight=weight)
    _, trace = seeded(TraceConjugate_ELBO().trace, vae.model, vae.guide, x)
    with torch.no_grad():
        values = total_correlation(trace.nodes["z"]["value"], *vae.encoder(x), 30)
    assert parts.pop(Role.FACTOR).item() == pytest.approx((weight - 1) * 5 * values.sum().item())
    assert plain.pop(Role.FACTOR) == 0
    assert parts == plain


def test_weights_of_a_beta_tcvae_under_pyros_own_bound():
    """Its divergences are in closed form, too, so that the same draws give the same loss."""
    vae, x = small_model((1, 1), num_data=30).pretraining(), binary_data(6)
    weights = {"kl_weight": 0.6, "tc_weight": 4.0}
    ours, theirs = (
        seeded(elbo.loss, vae.model, vae.guide, x, **weights)
        for elbo in (TraceConjugate_ELBO(), TraceMeanField_ELBO())
    )
    assert ours == pytest.approx(theirs)
    assert abs(ours - losses(vae, x)[Role.RECONSTRUCTION]) > 1


class Weighted(nn.Module):
    """A VAE at weights that are tensors."""

    def __init__(self, vae):
        super().__init__()
        self.vae = vae
        self.register_buffer("weights", torch.tensor([2.0, 5.0]))

    def model(self, x):
        self.vae.model(x, None, *self.weights)

    def guide(self, x):
        self.vae.guide(x, None, *self.weights)


@pytest.mark.parametrize(
    "make",
    [autoencoder, lambda: Weighted(small_model((1, 1), num_data=30).pretraining())],
    ids=["auto-encoder", "weights"],
)
def test_captured_steps_are_eager_ones(make):
    assert_twins(make, batches_of((binary_data(20),), 8, 7))


def test_captured_steps_at_given_posteriors_are_eager_ones():
    posterior = torch.randn(20, 4), 0.2 + torch.rand(20, 4)

    class Given(Weighted):
        def model(self, x, *posterior):
            self.vae.model(x, posterior=posterior)

        def guide(self, x, *posterior):
            self.vae.guide(x, posterior=posterior)

    batches = batches_of((binary_data(20), *posterior), 8, 7)
    svi = assert_twins(lambda: Given(small_model((1, 1)).pretraining()), batches)
    moved = [p for group in svi.optim.others.param_groups for p in group["params"]]
    assert len(moved) == len(list(svi.model.__self__.vae.decoder.parameters()))
