"""Properties of every pair of encoder and decoder."""

import pytest
import torch
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_fmvae.nn import ConvDecoder, ConvEncoder, MLPDecoder, MLPEncoder


def perceptrons(shape, *hidden):
    return MLPEncoder(shape, 8, hidden), MLPDecoder(8, shape, hidden=hidden[::-1])


def convolutions(shape, width=1.0):
    return ConvEncoder(shape, 8, width), ConvDecoder(8, shape, width=width)


PAIRS = {
    "mlp": (perceptrons, (28, 28), 200),
    "mlp-deep": (perceptrons, (28, 28), 50, 40, 30),
    "mlp-linear": (perceptrons, (28, 28)),
    "conv28": (convolutions, (28, 28)),
    "conv28-narrow": (convolutions, (28, 28), 0.5),
    "conv32-padded": (convolutions, (20, 30, 3), 0.5),
    "conv64": (convolutions, (64, 64, 3), 0.125),
    "conv128-shrunk": (convolutions, (150, 140), 0.25),
}


@pytest.fixture(params=PAIRS)
def name(request):
    return request.param


@pytest.fixture
def shape(name):
    return PAIRS[name][1]


@pytest.fixture
def pair(name):
    make, *arguments = PAIRS[name]
    encoder, decoder = make(*arguments)
    return torch.nn.ModuleDict({"encoder": encoder, "decoder": decoder})


def reconstruct(pair, x):
    loc, scale = pair["encoder"](x)
    return pair["decoder"](loc + scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_reach_everything(pair, shape, dtype):
    pair = pair.to(dtype)
    x = torch.randn(64, *shape, dtype=dtype, requires_grad=True)
    loc, scale = pair["encoder"](x)
    features = pair["decoder"](loc + scale * torch.randn_like(scale))
    assert loc.dtype == scale.dtype == features.dtype == dtype
    features.square().sum().backward()
    assert x.grad.count_nonzero() == x.numel()
    for name, parameter in pair.named_parameters():
        assert parameter.grad.isfinite().all(), name
        # A few rectified units are off on the whole batch.
        assert parameter.grad.count_nonzero() > 0.75 * parameter.numel(), name


def test_float32_follows_float64(pair, shape):
    x = torch.rand(4, *shape)
    exact = reconstruct(pair, x)
    torch.testing.assert_close(reconstruct(pair.float(), x.float()).double(), exact, rtol=1e-4, atol=1e-4)


def test_autocast(pair, shape):
    x = torch.rand(4, *shape, dtype=torch.float32)
    exact = reconstruct(pair.float(), x)
    with torch.autocast("cpu", torch.bfloat16):
        features = reconstruct(pair, x)
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, exact, rtol=0.1, atol=0.1)


def test_traceable(pair, shape):
    """The step is captured as a plain tensor program."""

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.pair = pair

        def forward(self, x):
            return reconstruct(self.pair, x).square().sum()

    def loss_and_gradients(parameters, x):
        loss = functional_call(network, parameters, (x,))
        return loss, torch.autograd.grad(loss, list(parameters.values()))

    network = Loss()
    parameters = dict(network.named_parameters())
    traced = make_fx(loss_and_gradients)(parameters, torch.rand(4, *shape))
    x = torch.rand(4, *shape)
    torch.testing.assert_close(traced(parameters, x), loss_and_gradients(parameters, x))


def test_initial_signal_is_well_scaled(pair, shape):
    """Inputs of unit size give means, log variances and logits of about unit size."""
    loc, scale = pair["encoder"](torch.randn(64, *shape))
    features = pair["decoder"](torch.randn(64, 8))
    for signal in (loc, 2 * scale.log(), features):
        assert 0.2 < signal.square().mean().sqrt() < 3
