from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

from pyro_fmvae.distributions import BernoulliObservation, GaussianObservation
from pyro_fmvae.nn import ConvDecoder, ConvEncoder

NARROW = 1 / 64
DIGITS, COLOUR = (28, 28), (64, 64, 3)  # the paper's
SHAPES = [  # of each square: images as they are, padded, and shrunk
    *(DIGITS, (32, 32, 3), COLOUR, (128, 128, 4)),
    *((8, 8), (20, 27, 1), (29, 9, 4), (48, 48), (96, 128, 3)),
    *((256, 256, 3), (200, 130), (4, 1000, 3)),
]


def pair(shape, latent=6, outputs=2, width=NARROW):
    return ConvEncoder(shape, latent, width), ConvDecoder(latent, shape, outputs, width)


def count(network):
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch_shape", [(), (0,), (2, 1, 3)])
def test_shapes(shape, batch_shape):
    encoder, decoder = pair(shape)
    loc, scale = encoder(torch.rand(*batch_shape, *shape))
    assert loc.shape == scale.shape == (*batch_shape, 6)
    assert decoder(loc).shape == (*batch_shape, 2, *shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("width", [NARROW, 0.1])
def test_likelihood_and_its_gradients_are_finite_at_the_start(shape, width):
    x = torch.rand(3, *shape)
    for observation in (BernoulliObservation(len(shape)), GaussianObservation(len(shape))):
        encoder, decoder = pair(shape, 4, observation.outputs, width)
        loc, scale = encoder(2 * x - 1)  # pixels of one sign can silence all of so few channels
        log_prob = observation(decoder(loc + scale)).log_prob(x.round())
        assert log_prob.shape == (3,) and log_prob.isfinite().all()
        log_prob.sum().backward()
        for parameter in (*encoder.parameters(), *decoder.parameters()):
            assert parameter.grad.isfinite().all()
            assert parameter.grad.any()


@pytest.mark.parametrize("shape", SHAPES)
def test_batch_dimensions_are_only_a_layout(shape):
    x = torch.rand(2, 3, *shape)
    encoder, decoder = pair(shape)
    loc, scale = encoder(x)
    torch.testing.assert_close(loc[1, 2], encoder(x[1, 2])[0])
    torch.testing.assert_close(scale[1, 2], encoder(x[1, 2])[1])
    torch.testing.assert_close(decoder(loc)[1, 2], decoder(loc[1, 2]))


def test_strided_input():
    x = torch.rand(28, 28, 4).movedim(-1, 0)
    encoder = ConvEncoder(DIGITS, 6)
    torch.testing.assert_close(encoder(x)[0], encoder(x.contiguous())[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_images_are_stored_with_channels_last(shape):
    encoder, decoder = pair(shape, width=0.1)
    inside = []
    for network in (encoder, decoder):
        network.convolutions.register_forward_hook(lambda module, args, output: inside.append(output))
    decoder(encoder(torch.rand(5, *shape))[0])
    assert [image.stride(1) for image in inside] == [1, 1]
    assert all(p.is_contiguous() for network in (encoder, decoder) for p in network.parameters())


def test_colours_and_outputs_are_told_apart():
    """Each bias of the last layer moves one output of one colour, at every pixel."""
    decoder = ConvDecoder(4, (40, 50, 3), 2, NARROW)
    z = torch.randn(4)
    before = decoder(z)
    with torch.no_grad():
        decoder.convolutions[-1].bias += torch.arange(6.0)
    shift = (decoder(z) - before).mean((1, 2))
    torch.testing.assert_close(shift, torch.arange(6.0).reshape(2, 3))


def test_start_at_features():
    decoder, features = ConvDecoder(4, COLOUR, 2, 0.25), torch.randn(2, 3)
    z = torch.randn(20, 4)
    before = decoder(z)
    decoder.start_at(features)
    after = decoder(z)
    torch.testing.assert_close((after - features[:, None, None]), 0.05 * before)


@pytest.mark.parametrize("shape", [COLOUR, (60, 60), (200, 200, 3)])
def test_images_are_upright(shape):
    """A translation of the features on the smallest grid moves the picture, and does not turn or mix it."""
    decoder = ConvDecoder(4, shape, 1, NARROW)
    features = torch.zeros(1, 4, 4, decoder.neck[2])
    features[0, 0, 3] = 1.0  # top right
    with torch.no_grad():
        decoder.linear.weight.zero_()
        decoder.linear.bias.copy_(features.flatten())
        for p in decoder.convolutions.parameters():
            p.fill_(0.1) if p.dim() == 4 else p.zero_()
    image = decoder(torch.zeros(4))[0]
    assert image.sum() > 0
    torch.testing.assert_close(image[: shape[0] // 2, shape[1] // 2 :].sum(), image.sum())


def drawn(layer, variance):
    """The layer, its weights drawn anew with this variance, and no bias."""
    nn.init.normal_(layer.weight, std=variance**0.5)
    nn.init.zeros_(layer.bias)
    return layer


def appendix_e(latent, outputs):
    """The layers of the paper's pair for digits, in the order in which their weights are drawn."""
    encoder, decoder = [], []
    channels = (1, 32, 32, 32, 64, 64, 64, 64, 64)
    for (m, n), stride in zip(pairwise(channels), (1, 2, 1, 2, 1, 2, 1, 1), strict=True):
        encoder.append(drawn(nn.Conv2d(m, n, 3, stride, 1), 2 / (9 * m)))
    encoder.append(drawn(nn.Linear(1024, 2 * latent), 1 / 1024))
    decoder.append(drawn(nn.Linear(latent, 1024), 2 / latent))
    channels = (64, 64, 64, 64, 64, 32, 32, 32, outputs)
    more = (0, 0, 0, 0, 1, 0, 1, 0)
    for (m, n), stride, extra in zip(pairwise(channels), (1, 1, 2, 1, 2, 1, 2, 1), more, strict=True):
        decoder.append(drawn(nn.ConvTranspose2d(m, n, 3, stride, 1, extra), 2 / (9 * m / stride**2)))
    drawn(decoder[-1], 1 / (9 * 32))
    return encoder, decoder


def section_4(latent, outputs):
    """The same of the pair for colour images."""
    encoder = [drawn(nn.Conv2d(m, n, 3, 2, 1), 2 / (9 * m)) for m, n in pairwise((3, 128, 256, 512, 1024))]
    encoder.append(drawn(nn.Linear(16_384, 2 * latent), 1 / 16_384))
    decoder = [drawn(nn.Linear(latent, 16_384), 2 / latent)]
    for m, n in pairwise((1024, 512, 256, 128, 3 * outputs)):
        decoder.append(drawn(nn.ConvTranspose2d(m, n, 3, 2, 1, 1), 2 / (9 * m / 4)))
    drawn(decoder[-1], 1 / (9 * 128 / 4))
    return encoder, decoder


@pytest.mark.parametrize(("shape", "paper"), [(DIGITS, appendix_e), (COLOUR, section_4)])
def test_the_papers_pairs_to_the_bit(shape, paper):
    """Names, order and values of the weights, and what is computed of them: old runs open and train alike."""
    torch.manual_seed(3)
    encoder, decoder = pair(shape, 5, 2, 1.0)
    torch.manual_seed(3)
    encoding, decoding = paper(5, 2)
    convolutions = len(encoding) - 1
    names = [f"convolutions.{2 * i}" for i in range(convolutions)] + ["head.linear"]
    expected = {
        f"{name}.{k}": v
        for name, layer in zip(names, encoding, strict=True)
        for k, v in layer.state_dict().items()
    }
    assert list(encoder.state_dict()) == list(expected)
    assert all(torch.equal(value, expected[name]) for name, value in encoder.state_dict().items())
    names = ["linear"] + [f"convolutions.{2 * i + 1}" for i in range(convolutions)]
    expected = {
        f"{name}.{k}": v
        for name, layer in zip(names, decoding, strict=True)
        for k, v in layer.state_dict().items()
    }
    assert list(decoder.state_dict()) == list(expected)
    assert all(torch.equal(value, expected[name]) for name, value in decoder.state_dict().items())

    x = torch.rand(2, *shape)
    images = x.reshape(2, *shape[:2], -1).movedim(-1, 1)
    for layer in encoding[:-1]:
        images = layer(images).relu()
    loc, log_variance = encoding[-1](images.movedim(1, -1).flatten(1)).chunk(2, -1)
    torch.testing.assert_close(encoder(x), (loc, (log_variance / 2).exp()))
    images = decoding[0](loc).reshape(2, 4, 4, -1).movedim(-1, 1)
    for layer in decoding[1:]:
        images = layer(images.relu())
    torch.testing.assert_close(
        decoder(loc), images.unflatten(1, (2, -1)).movedim(2, -1).reshape(2, 2, *shape)
    )


def test_parameter_counts_of_the_paper():
    """One for digits; two for colour images, I = 2, D = 128 and I = 5, D = 64, as counted from the text."""
    encoder, decoder = pair(DIGITS, 64, 1, 1.0)
    assert count(encoder) == 185_024 + 131_200
    assert count(decoder) == 66_560 + 184_961
    assert count(encoder) + count(decoder) == 567_745
    for latent, total in ((256, 24_999_302), (320, 28_145_158)):
        encoder, decoder = pair(COLOUR, latent, 2, 1.0)
        assert count(encoder) == 6_198_528 + 32_770 * latent
        assert count(decoder) == 16_384 * latent + 16_384 + 6_200_966
        assert count(encoder) + count(decoder) == total


@pytest.mark.parametrize("shape", [DIGITS, (32, 32), COLOUR, (128, 128, 3)])
def test_a_quarter_of_the_width_is_a_sixteenth_of_the_convolutions(shape):
    wide, narrow, least = (pair(shape, 8, width=width) for width in (1.0, 0.25, 1e-6))
    for network in range(2):
        inner = [count(networks[network].convolutions[2:-2]) for networks in (wide, narrow)]
        assert inner[0] / inner[1] == pytest.approx(16, rel=0.05)
    assert {p.shape[0] for p in least[0].convolutions.parameters()} == {1}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConvEncoder(COLOUR, 0), "latent_dim must be a positive integer, got 0"),
        (lambda: ConvDecoder("64", DIGITS), "latent_dim must be a positive integer, got '64'"),
        (lambda: ConvDecoder(4, DIGITS, outputs=-1), "outputs must be a positive integer, got -1"),
        (lambda: ConvEncoder(COLOUR, 4, width=0), "width must be a number > 0, got 0"),
        (lambda: ConvDecoder(4, DIGITS, width=float("nan")), "width must be a number > 0, got nan"),
        (lambda: ConvEncoder((28,), 4), r"event_shape must be \(H, W\) or \(H, W, C\) with 1, 3 or 4"),
        (lambda: ConvDecoder(4, (3, 64, 64)), r"event_shape must be .* channels, got \(3, 64, 64\)"),
        (lambda: ConvEncoder((28, 0), 4), r"event_shape\[1\] must be a positive integer, got 0"),
        (
            lambda: ConvEncoder(DIGITS, 4)(torch.zeros(5, 784)),
            r"x must have shape \[\.\.\., 28, 28\], got \[5, 784\]",
        ),
        (
            lambda: ConvEncoder(COLOUR, 4, NARROW)(torch.zeros(5, 3, 64, 64)),
            r"x must have shape \[\.\.\., 64, 64, 3\], got \[5, 3, 64, 64\]",
        ),
        (lambda: ConvDecoder(4, DIGITS)(torch.zeros(5, 3)), r"z must have shape \[\.\.\., 4\], got \[5, 3\]"),
    ],
)
def test_errors_name_the_argument(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("shape", [DIGITS, COLOUR])
def test_gradients_are_those_of_plain_transposed_convolutions(shape):
    _, decoder = pair(shape)
    z, weights = torch.randn(3, 6), torch.randn(3, 2, *shape)
    found = torch.autograd.grad((decoder(z) * weights).sum(), list(decoder.parameters()))
    for layer in decoder.convolutions:
        if isinstance(layer, nn.ConvTranspose2d):
            layer.forward = partial(nn.ConvTranspose2d.forward, layer)
    expected = torch.autograd.grad((decoder(z) * weights).sum(), list(decoder.parameters()))
    torch.testing.assert_close(found, expected)


def test_transposed_convolutions_have_derivatives_of_any_order():
    layer = pair(COLOUR)[1].convolutions[1]

    def images(x, weight, bias):
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, x)

    inputs = torch.randn(2, layer.in_channels, 2, 2), *layer.parameters()
    inputs = [x.detach().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(images, inputs, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(images, inputs, fast_mode=True)
