"""Networks of counts: totals are shared out, and batches are told."""

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.nn import CountDecoder, CountEncoder, MLPEncoder

COLUMNS, LATENT = 5, 3


def decoder(batches=0, dispersed=False, total=70.0):
    return CountDecoder(LATENT, COLUMNS, batches, total, dispersed, (4,))


def rows(batches=0, number=6):
    x = torch.poisson(torch.full((number, COLUMNS), 4.0))
    return torch.cat([x, (torch.arange(number) % batches).unsqueeze(-1)], -1) if batches else x


def test_encoder_sees_logarithms_and_indicators():
    encoder, x = CountEncoder(COLUMNS, 2, LATENT, (4,)), rows(2)
    plain = MLPEncoder((COLUMNS + 2,), LATENT, (4,))
    plain.load_state_dict(encoder.state_dict())
    seen = torch.cat([(1 + x[:, :COLUMNS]).log(), torch.eye(2).repeat(3, 1)], -1)
    for found, expected in zip(encoder(x), plain(seen), strict=True):
        assert_close(found, expected)


def test_encoder_refuses_rows_without_their_batch():
    with pytest.raises(ValueError, match=r"x must have shape \[\.\.\., 6\], got \[6, 5\]"):
        CountEncoder(COLUMNS, 2, LATENT)(rows())


@pytest.mark.parametrize("batches", [0, 3])
def test_totals_are_shared_out(batches):
    network, x, z = decoder(batches), rows(batches), torch.randn(6, LATENT)
    total = x[:, :COLUMNS].sum(-1, keepdim=True)
    features = network(z, total, x[:, COLUMNS:])
    assert features.shape == (6, 1, COLUMNS)
    assert_close(features.exp().sum(-1), total)


def test_a_batch_changes_the_shares():
    network, z = decoder(2), torch.randn(1, LATENT)
    one, other = (network(z, torch.ones(1, 1), torch.tensor([[number]])) for number in (0.0, 1.0))
    assert (one - other).abs().max() > 1e-3


def test_without_a_batch_it_is_the_mean_over_batches():
    network, z, total = decoder(3, dispersed=True), torch.randn(2, 4, LATENT), torch.tensor([[70.0]])
    means = [network(z, total, torch.full((4, 1), number))[..., 0, :].exp() for number in (0.0, 1.0, 2.0)]
    features = network(z)
    assert features.shape == (2, 4, 2, COLUMNS)
    assert_close(features[..., 0, :].exp(), sum(means) / 3)


def test_several_draws_of_one_row():
    network, x, z = decoder(2), rows(2), torch.randn(7, 6, LATENT)
    features = network(z, torch.ones(6, 1), x[:, COLUMNS:])
    assert_close(features[3], network(z[3], torch.ones(6, 1), x[:, COLUMNS:]))


def test_start_is_that_of_the_features():
    network = decoder(2, dispersed=True)
    shares, concentration = torch.rand(COLUMNS), torch.rand(COLUMNS)
    network.start_at(torch.stack([shares.log(), concentration.log()]))
    network.linear.weight.data.zero_()
    mean, dispersion = network(torch.randn(2, LATENT)).exp().unbind(-2)
    assert_close(mean, (70 * shares / shares.sum()).expand(2, -1))
    assert_close(dispersion, concentration.expand(2, -1))


def test_dispersion_is_learnt():
    network, z = decoder(dispersed=True), torch.randn(2, LATENT)
    network(z).sum().backward()
    assert_close(network.log_concentration.grad, torch.full((COLUMNS,), 2.0))


def test_a_typical_total_is_positive():
    with pytest.raises(ValueError, match=r"typical_total: expected a number > 0, got 0"):
        decoder(total=0)
