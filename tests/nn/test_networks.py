"""Properties of every pair of encoder and decoder."""

import pytest
import torch
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_fmvae.nn import ConvDecoder28, ConvDecoder64, ConvEncoder28, ConvEncoder64, MLPDecoder, MLPEncoder

PAIRS = {
    "mlp": lambda: (MLPEncoder((28, 28), 8), MLPDecoder(8, (28, 28))),
    "mlp-deep": lambda: (MLPEncoder((28, 28), 8, (50, 40, 30)), MLPDecoder(8, (28, 28), hidden=(30, 40, 50))),
    "mlp-linear": lambda: (MLPEncoder((28, 28), 8, ()), MLPDecoder(8, (28, 28), hidden=())),
    "conv28": lambda: (ConvEncoder28(8), ConvDecoder28(8)),
    "conv28-narrow": lambda: (ConvEncoder28(8, 0.5), ConvDecoder28(8, width=0.5)),
    "conv64": lambda: (ConvEncoder64(8, 0.125), ConvDecoder64(8, width=0.125)),
}


@pytest.fixture(params=PAIRS)
def pair(request):
    encoder, decoder = PAIRS[request.param]()
    return torch.nn.ModuleDict({"encoder": encoder, "decoder": decoder})


@pytest.fixture
def shape(pair):
    return (64, 64, 3) if isinstance(pair["encoder"], ConvEncoder64) else (28, 28)


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
