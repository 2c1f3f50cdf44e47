"""Models with networks under likelihoods of counts: bounds by scipy, and steps that are captured."""

import shutil

import numpy as np
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from scipy import stats
from torch.testing import assert_close

from pyro_fmvae import (
    VAE,
    FactorialMixtureVAE,
    NegativeBinomialObservation,
    PoissonObservation,
    Role,
    TraceConjugate_ELBO,
)
from pyro_fmvae.distributions import Concrete
from pyro_fmvae.evaluate import Neighbours
from pyro_fmvae.models import FixedSparsePrior, VariationalSparseCoding
from pyro_fmvae.nn import CountDecoder, CountEncoder
from tests.capture.captured import CLOSE, assert_twins, batches_of
from tests.infer.programs import seeded

N, COLUMNS, BATCHES = 24, 5, 2
KINDS = {"poisson": PoissonObservation, "negative-binomial": NegativeBinomialObservation}


def counts(batches=BATCHES):
    x = torch.poisson(torch.linspace(0.5, 8.0, COLUMNS).expand(N, -1))
    x[:, 0] += 1
    return torch.cat([x, (torch.arange(N) % batches).unsqueeze(-1)], -1) if batches else x


def parts(kind, batches=BATCHES, latent=4):
    observation = KINDS[kind](COLUMNS)
    decoder = CountDecoder(latent, COLUMNS, batches, 30.0, observation.outputs > 1, (6,))
    return CountEncoder(COLUMNS, batches, latent, (6,)), decoder, observation


def mixture(kind, batches=BATCHES):
    return FactorialMixtureVAE(*parts(kind, batches), (3, 2), 2, N).to(torch.get_default_dtype())


def vae(kind, batches=BATCHES):
    return VAE(*parts(kind, batches), 4, N).to(torch.get_default_dtype())


def by_scipy(model, x, z):
    """log p(counts | z) of each row, with the row's own total and batch."""
    explained, batch = x[:, :COLUMNS], x[:, COLUMNS:]
    joined = torch.cat([z, torch.eye(BATCHES)[batch[:, 0].long()]], -1)
    logits = model.decoder.linear(model.decoder.hidden(joined))
    mean = (explained.sum(-1, keepdim=True) * logits.softmax(-1)).numpy()
    if isinstance(model.observation, PoissonObservation):
        return stats.poisson(mean).logpmf(explained.numpy()).sum(-1)
    size = model.decoder.log_concentration.exp().numpy()
    return stats.nbinom(size, size / (size + mean)).logpmf(explained.numpy()).sum(-1)


@pytest.mark.parametrize("make", [mixture, vae])
@pytest.mark.parametrize("kind", KINDS)
def test_reconstruction_is_scipys(kind, make):
    model, x = make(kind), counts()
    model.start_at(x)
    with torch.no_grad():
        found = seeded(TraceConjugate_ELBO().loss_per_role, model.model, model.guide, x)
        _, trace = seeded(TraceConjugate_ELBO().trace, model.model, model.guide, x)
        z = trace.nodes["z"]["value"] if make is vae else joined_z(model, trace)
        assert found[Role.RECONSTRUCTION].item() == pytest.approx(-by_scipy(model, x, z).sum())


def joined_z(model, trace):
    groups = model.factor_groups()
    return model.layout.join([trace.nodes[f"z{group.suffix}"]["value"] for group in groups])


@pytest.mark.parametrize("kind", KINDS)
def test_bound_is_pyros_own(kind):
    model, x = vae(kind), counts()
    ours, theirs = (
        seeded(elbo.loss, model.model, model.guide, x)
        for elbo in (TraceConjugate_ELBO(), TraceMeanField_ELBO())
    )
    assert ours == pytest.approx(theirs)


def test_log_weights_have_the_same_likelihood():
    model, x = mixture("negative-binomial"), counts()
    with torch.no_grad():
        z = torch.randn(N, 4)
        found = model.pretraining().log_likelihood(x, z)
        assert_close(found, torch.from_numpy(by_scipy(model, x, z)))
        assert model.log_weights(x, 3).shape == (3, N)


@pytest.mark.parametrize(
    ("kind", "make", "batches"),  # every pair of them
    [
        ("poisson", mixture, 0),
        ("poisson", vae, BATCHES),
        ("negative-binomial", mixture, BATCHES),
        ("negative-binomial", vae, 0),
    ],
)
def test_captured_steps_are_eager_ones(kind, make, batches):
    assert_twins(lambda: make(kind, batches), batches_of((counts(batches),), 8, 7))


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")),
    reason="torch.compile needs a C++ compiler on a CPU",
)
def test_compiled_steps_are_eager_ones():
    batches = batches_of((counts(),), 8, 7)
    assert_twins(lambda: vae("negative-binomial"), batches, CLOSE, compile=True)


def test_start_has_the_means_of_the_columns():
    model, x = vae("negative-binomial"), counts()
    model.start_at(x)
    with torch.no_grad():
        model.decoder.linear.weight.zero_()
        density = model.observation.density(model.decoder, torch.zeros(N, 4), x)
    totals = x[:, :COLUMNS].sum(-1, keepdim=True)
    shares = x[:, :COLUMNS].mean(0) / x[:, :COLUMNS].mean(0).sum()
    assert_close(density.mean, totals * shares)


def test_outlier_distances_see_what_the_reconstruction_lacks():
    model, x = vae("poisson"), counts()
    mean, _, residual = Neighbours(model, [(x,)])._features((x,))
    with torch.no_grad():
        expected = model.observation.density(model.decoder, torch.from_numpy(mean), x).mean
    np.testing.assert_allclose(residual, (x[:, :COLUMNS] - expected).numpy())


class Sparse(torch.nn.Module):
    """A spike and a slab in each dimension, by the encoder of counts."""

    def __init__(self):
        super().__init__()
        self.dense = CountEncoder(COLUMNS, BATCHES, 4, (6,))

    def forward(self, x):
        loc, scale = self.dense(x)
        return loc, scale, loc


@pytest.mark.parametrize("kind", KINDS)
def test_sparse_codes_of_counts_have_the_same_likelihood(kind):
    _, decoder, observation = parts(kind)
    prior = FixedSparsePrior(4, 0.3)
    model = VariationalSparseCoding(Sparse(), decoder, observation, 4, N, prior, Concrete())
    model, x = model.to(torch.get_default_dtype()).eval(), counts()
    with torch.no_grad():
        found = seeded(TraceConjugate_ELBO().loss_per_role, model.model, model.guide, x)
        _, trace = seeded(TraceConjugate_ELBO().trace, model.model, model.guide, x)
        expected = by_scipy(model, x, trace.nodes["z"]["value"])
        assert found[Role.RECONSTRUCTION].item() == pytest.approx(-expected.sum())
        assert_close(model.log_likelihood(x, trace.nodes["z"]["value"]), torch.from_numpy(expected))
