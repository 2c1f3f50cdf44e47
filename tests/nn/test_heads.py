from functools import partial

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.nn import ConvEncoder, ExponentialLink, MLPEncoder, NormalHead, SideBySide, SpikeHead

ENCODERS = {
    "mlp": (lambda **kwargs: MLPEncoder((4, 3), 6, (5,), **kwargs), (4, 3)),
    "conv": (lambda **kwargs: ConvEncoder((28, 28), 6, 0.1, **kwargs), (28, 28)),
}


def test_outputs_are_thirds_of_one_layer():
    head, features = SpikeHead(5, 2), torch.randn(4, 5)
    loc, scale, logits = head(features)
    outputs = features @ head.linear.weight.T + head.linear.bias
    assert_close(torch.cat([loc, 2 * scale.log(), logits], -1), outputs)
    assert loc.shape == scale.shape == logits.shape == (4, 2)


def test_link_is_applied_to_the_last_third_alone():
    torch.manual_seed(0)
    plain = SpikeHead(5, 2)
    linked = SpikeHead(5, 2, ExponentialLink(0.01))
    linked.load_state_dict(plain.state_dict())
    features = 3 * torch.randn(40, 5)
    expected, actual = plain(features), linked(features)
    assert_close(actual[:2], expected[:2])
    assert_close(actual[2].sigmoid(), expected[2].exp().clamp(0.01, 0.99))


@pytest.mark.parametrize("link", [None, ExponentialLink()])
def test_no_latent_is_born_on_or_off(link):
    torch.manual_seed(0)
    _, _, logits = SpikeHead(100, 50, link)(torch.randn(400, 100))
    probs = logits.sigmoid()
    assert probs.mean().item() == pytest.approx(0.5, abs=0.05)
    assert ((probs > 0.1) & (probs < 0.99)).double().mean() > 0.97


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("epsilon", [1e-7, 1e-6, 1e-3, 0.1])
def test_exponential_link(epsilon, dtype):
    v = torch.tensor([-50.0, -6.0, -1.0, -1e-2, 0.0, 3.0], dtype=dtype, requires_grad=True)
    logits = ExponentialLink(epsilon)(v)
    expected = v.detach().double().exp().clamp(epsilon, 1 - epsilon)
    assert_close(logits.sigmoid().double(), expected, rtol=2e-6 if dtype == torch.float32 else 1e-9, atol=0)
    assert_close(torch.sigmoid(-logits).double(), 1 - expected, rtol=1e-5, atol=0)
    (grad,) = torch.autograd.grad(logits.sum(), v)
    inside = (v.exp() > epsilon) & (v.exp() < 1 - epsilon)
    assert_close(grad, torch.where(inside, 1 / -torch.expm1(v), 0.0).detach())  # d logit(e^v) / dv


@pytest.mark.parametrize("epsilon", [0.0, 1e-8, 0.5, float("nan")])
def test_exponential_link_refuses(epsilon):
    with pytest.raises(ValueError, match=r"^epsilon must be a number in \[1e-7, 0\.5\), got"):
        ExponentialLink(epsilon)


def test_refuses():
    with pytest.raises(ValueError, match="latent_dim must be a positive integer, got 0"):
        SpikeHead(3, 0)


@pytest.mark.parametrize("name", ENCODERS)
def test_any_encoder_takes_it(name):
    make, shape = ENCODERS[name]
    for head in (SpikeHead, partial(SpikeHead, link=ExponentialLink())):
        encoder = make(head=head)
        assert [t.shape for t in encoder(torch.rand(2, *shape))] == [(2, 6)] * 3
    x = torch.rand(2, *shape, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert {t.dtype for t in encoder.float()(x)} == {torch.float32}


@pytest.mark.parametrize("name", ENCODERS)
def test_without_it_encoders_are_what_they_were(name):
    """As many random numbers in the same order: the head comes last."""
    make, shape = ENCODERS[name]
    torch.manual_seed(3)
    encoder = make()
    after = torch.rand(1)
    torch.manual_seed(3)
    other = make(head=NormalHead)
    assert torch.equal(torch.rand(1), after)
    assert isinstance(encoder.head, NormalHead)
    x = torch.rand(2, *shape)
    for a, b in zip(encoder(x), other(x), strict=True):
        assert torch.equal(a, b)


def test_initial_signal_is_small():
    loc, scale, logits = SpikeHead(200, 50)(torch.randn(64, 200))
    for signal in (loc, 2 * scale.log(), logits):
        assert 0.25 < signal.square().mean().sqrt() < 0.4


def test_parts_are_those_of_each_encoder_alone():
    encoders = MLPEncoder((6,), 2, (5,)), MLPEncoder((6,), 3, (4,))
    x = torch.randn(7, 6)
    loc, scale = SideBySide(encoders)(x)
    assert loc.shape == scale.shape == (7, 5)
    for encoder, part in zip(encoders, (slice(0, 2), slice(2, 5)), strict=True):
        assert_close((loc[:, part], scale[:, part]), encoder(x))
    loc[:, :2].sum().backward()
    assert not any(parameter.grad.any() for parameter in encoders[1].parameters())
