"""Encoders side by side."""

import torch
from torch.testing import assert_close

from pyro_fmvae.nn import MLPEncoder, SideBySide


def test_parts_are_those_of_each_encoder_alone():
    encoders = MLPEncoder((6,), 2, (5,)), MLPEncoder((6,), 3, (4,))
    x = torch.randn(7, 6)
    loc, scale = SideBySide(encoders)(x)
    assert loc.shape == scale.shape == (7, 5)
    for encoder, part in zip(encoders, (slice(0, 2), slice(2, 5)), strict=True):
        assert_close((loc[:, part], scale[:, part]), encoder(x))
    loc[:, :2].sum().backward()
    assert not any(parameter.grad.any() for parameter in encoders[1].parameters())
