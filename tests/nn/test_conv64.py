import pytest
import torch

from pyro_fmvae.nn import ConvDecoder28, ConvDecoder64, ConvEncoder28, ConvEncoder64

NARROW = 1 / 64


def count(network):
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("batch_shape", [(), (3,), (0,), (2, 1, 2)])
def test_shapes(batch_shape):
    loc, scale = ConvEncoder64(6, NARROW)(torch.rand(*batch_shape, 64, 64, 3))
    assert loc.shape == scale.shape == (*batch_shape, 6)
    assert ConvDecoder64(6, width=NARROW)(loc).shape == (*batch_shape, 2, 64, 64, 3)
    assert ConvDecoder64(6, 1, NARROW)(loc).shape == (*batch_shape, 1, 64, 64, 3)


def test_batch_dimensions_are_only_a_layout():
    x = torch.rand(2, 3, 64, 64, 3)
    encoder, decoder = ConvEncoder64(6, NARROW), ConvDecoder64(6, width=NARROW)
    loc, scale = encoder(x)
    torch.testing.assert_close(loc[1, 2], encoder(x[1, 2])[0])
    torch.testing.assert_close(scale[1, 2], encoder(x[1, 2])[1])
    torch.testing.assert_close(decoder(loc)[1, 2], decoder(loc[1, 2]))


def test_colours_and_outputs_are_told_apart():
    """Each bias of the last layer moves one output of one colour, at every pixel."""
    decoder = ConvDecoder64(4, 2, NARROW)
    z = torch.randn(4)
    before = decoder(z)
    with torch.no_grad():
        decoder.convolutions[-1].bias += torch.arange(6.0)
    shift = (decoder(z) - before).mean((1, 2))
    torch.testing.assert_close(shift, torch.arange(6.0).reshape(2, 3))


def test_start_at_features():
    decoder, features = ConvDecoder64(4, 2, 0.25), torch.randn(2, 3)
    z = torch.randn(20, 4)
    before = decoder(z)
    decoder.start_at(features)
    after = decoder(z)
    torch.testing.assert_close((after - features[:, None, None]), 0.05 * before)


def test_images_are_upright():
    """A translation of the features on the smallest grid moves the picture, and does not turn or mix it."""
    decoder = ConvDecoder64(4, 1, NARROW)
    features = torch.zeros(1, 4, 4, decoder.neck[2])
    features[0, 0, 3] = 1.0  # top right
    with torch.no_grad():
        decoder.linear.weight.zero_()
        decoder.linear.bias.copy_(features.flatten())
        for p in decoder.convolutions.parameters():
            p.fill_(0.1) if p.dim() == 4 else p.zero_()
    image = decoder(torch.zeros(4))[0].mean(-1)
    assert image.sum() > 0
    torch.testing.assert_close(image[:32, 32:].sum(), image.sum())


def test_parameter_counts_of_the_paper():
    """Two models of the paper, I = 2, D = 128 and I = 5, D = 64, as counted from its text."""
    for latent, total in ((256, 24_999_302), (320, 28_145_158)):
        encoder, decoder = ConvEncoder64(latent), ConvDecoder64(latent)
        assert count(encoder) == 6_198_528 + 32_770 * latent
        assert count(decoder) == 16_384 * latent + 16_384 + 6_200_966
        assert count(encoder) + count(decoder) == total


@pytest.mark.parametrize("network", [ConvEncoder28, ConvDecoder28, ConvEncoder64, ConvDecoder64])
def test_a_quarter_of_the_width_is_a_sixteenth_of_the_convolutions(network):
    wide, narrow = (count(network(8, width=width).convolutions[2:-2]) for width in (1.0, 0.25))
    assert wide / narrow == pytest.approx(16, rel=0.05)
    assert min(p.shape[0] for p in network(8, width=1e-6).convolutions.parameters()) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConvEncoder64(0), "latent_dim must be a positive integer, got 0"),
        (lambda: ConvDecoder64(4, outputs=0), "outputs must be a positive integer, got 0"),
        (lambda: ConvEncoder64(4, width=0), "width must be a number > 0, got 0"),
        (lambda: ConvDecoder28(4, width=float("nan")), "width must be a number > 0, got nan"),
        (
            lambda: ConvEncoder64(4, NARROW)(torch.zeros(5, 3, 64, 64)),
            r"x must have shape \[\.\.\., 64, 64, 3\], got \[5, 3, 64, 64\]",
        ),
        (lambda: ConvDecoder64(4, 2, NARROW)(torch.zeros(5, 3)), r"z must have shape \[\.\.\., 4\]"),
    ],
)
def test_errors_name_the_argument(make, message):
    with pytest.raises(ValueError, match=message):
        make()
