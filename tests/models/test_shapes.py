"""Errors of the models for arguments that are out of range or inconsistent."""

from functools import partial

import pytest
import torch

from pyro_fmvae import (
    BinarySparseCoding,
    FactorialMixtureVAE,
    GaussianObservation,
    SpikeAndSlabSparseCoding,
    VariationalSparseCoding,
)
from pyro_fmvae.distributions.relaxation import Concrete
from pyro_fmvae.models import VAE, FixedSparsePrior
from pyro_fmvae.nn import MLPDecoder, MLPEncoder, SpikeHead

NETWORKS = MLPEncoder((6,), 4, hidden=(5,)), MLPDecoder(4, (2, 6), hidden=(5,)), GaussianObservation(1)


@pytest.mark.parametrize("size", [0, -1, 2.5, "3", True])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("num_data", lambda n: FactorialMixtureVAE(*NETWORKS, [2, 3], 2, n)),
        ("dim", lambda n: FactorialMixtureVAE(*NETWORKS, [2, 3], n, 50)),
        ("num_data", lambda n: VAE(*NETWORKS, 4, n)),
        ("latent_dim", lambda n: VAE(*NETWORKS, n, 50)),
        ("num_data", lambda n: VariationalSparseCoding(*NETWORKS, 4, n, None, None)),
        ("latent_dim", lambda n: VariationalSparseCoding(*NETWORKS, n, 50, None, None)),
        ("num_data", lambda n: BinarySparseCoding((4,), n, None)),
        ("num_data", lambda n: SpikeAndSlabSparseCoding((4,), n, None)),
        ("draws", lambda n: SpikeAndSlabSparseCoding((4,), 50, None, draws=n)),
    ],
)
def test_sizes(name, make, size):
    with pytest.raises(ValueError, match=rf"^{name} must be a positive integer, got {size!r}$"):
        make(size)


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ((), "num_components must not be empty"),
        (2, "num_components must be a sequence of positive integers, got 2"),
        ((2, 0), r"num_components\[1\] must be a positive integer, got 0"),
        ((2.5,), r"num_components\[0\] must be a positive integer, got 2.5"),
    ],
)
def test_factors(factors, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        FactorialMixtureVAE(*NETWORKS, factors, 2, 50)


def networks():
    return MLPEncoder((6,), 4, hidden=(5,)), *NETWORKS[1:]


def spikes():
    return MLPEncoder((6,), 4, hidden=(5,), head=SpikeHead), *NETWORKS[1:]


@pytest.mark.parametrize(
    "model",
    [
        lambda: FactorialMixtureVAE(*networks(), [2, 3], 3, 50),
        lambda: VAE(*networks(), 6, 50),
        lambda: VariationalSparseCoding(*spikes(), 6, 50, FixedSparsePrior(6, 0.1), Concrete()),
    ],
)
def test_an_encoder_of_other_dimensions(model):
    with pytest.raises(ValueError, match=r"encoder: expected 6 latent dimensions, got shape \[10, 4\]"):
        model().guide(torch.randn(10, 6))


@pytest.mark.parametrize("kind", [lambda *a: FactorialMixtureVAE(*a[:3], [2, 3], 3, 50), VAE])
def test_a_posterior_of_other_dimensions(kind):
    model = kind(*networks(), 6, 50)
    with pytest.raises(ValueError, match=r"posterior: expected 6 latent dimensions, got shape \[10, 4\]"):
        model.guide(torch.randn(10, 6), posterior=(torch.zeros(10, 4), torch.ones(10, 4)))


def test_latents_of_other_dimensions():
    model, wrong, right = FactorialMixtureVAE(*NETWORKS, [2, 3], 3, 50), torch.ones(10, 4), torch.ones(10, 6)
    generator = torch.Generator()
    with pytest.raises(ValueError, match=r"^z: expected 6 latent dimensions"):
        model.log_prior(wrong)
    for place in (partial(model.seed, labels=None), model.restart):
        with pytest.raises(ValueError, match=r"^loc: expected 6 latent dimensions"):
            place(wrong, right, generator=generator)
        with pytest.raises(ValueError, match=r"^scale: expected 6 latent dimensions"):
            place(right, wrong, generator=generator)


def test_a_compiled_distortion():
    """Which has no truth value."""
    distortion = torch.compile(torch.nn.Identity(), backend="eager")
    assert FactorialMixtureVAE(*NETWORKS, [2], 4, 50, distortion=distortion).distortion is distortion
    assert VAE(*NETWORKS, 4, 50, distortion=distortion).distortion is distortion
