"""What the models say of arguments that are out of range, or do not go together."""

from functools import partial

import pytest
import torch

from pyro_fmvae import (
    BinarySparseCoding,
    FactorialMixtureVAE,
    GaussianObservation,
    SpikeAndSlabSparseCoding,
    TraceConjugate_ELBO,
    VariationalSparseCoding,
)
from pyro_fmvae.models import VAE
from pyro_fmvae.nn import MLPDecoder, MLPEncoder

NETWORKS = MLPEncoder((6,), 4, hidden=(5,)), MLPDecoder(4, (2, 6), hidden=(5,)), GaussianObservation(1)


@pytest.mark.parametrize("size", [0, -1, 2.5, "3"])
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
    with pytest.raises(ValueError, match=rf"^{name}: expected an integer >= 1, got {size!r}$"):
        make(size)


def test_an_encoder_of_other_dimensions():
    encoder = MLPEncoder((6,), 4, hidden=(5,))
    model = FactorialMixtureVAE(encoder, *NETWORKS[1:], [2, 3], 3, 50)
    elbo = partial(TraceConjugate_ELBO().loss, model.model, model.guide)
    with pytest.raises(ValueError, match=r"encoder: expected I·D = 6 dimensions, got 4"):
        elbo(torch.randn(10, 6))


def test_a_compiled_distortion():
    """Which has no truth value."""
    distortion = torch.compile(torch.nn.Identity(), backend="eager")
    assert FactorialMixtureVAE(*NETWORKS, [2], 4, 50, distortion=distortion).distortion is distortion
    assert VAE(*NETWORKS, 4, 50, distortion=distortion).distortion is distortion
