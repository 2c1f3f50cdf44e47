import pytest
import torch

from pyro_fmvae.nn import ConvDecoder28, ConvEncoder28


@pytest.mark.parametrize("batch_shape", [(), (5,), (0,), (2, 1, 3)])
def test_shapes(batch_shape):
    loc, scale = ConvEncoder28(6)(torch.rand(*batch_shape, 28, 28))
    assert loc.shape == scale.shape == (*batch_shape, 6)
    assert ConvDecoder28(6)(loc).shape == (*batch_shape, 1, 28, 28)
    assert ConvDecoder28(6, outputs=2)(loc).shape == (*batch_shape, 2, 28, 28)


def test_batch_dimensions_are_only_a_layout():
    x = torch.rand(2, 3, 28, 28)
    encoder, decoder = ConvEncoder28(6), ConvDecoder28(6, outputs=2)
    loc, scale = encoder(x)
    torch.testing.assert_close(loc[1, 2], encoder(x[1, 2])[0])
    torch.testing.assert_close(scale[1, 2], encoder(x[1, 2])[1])
    torch.testing.assert_close(decoder(loc)[1, 2], decoder(loc[1, 2]))


def test_strided_input():
    x = torch.rand(28, 28, 4).movedim(-1, 0)
    encoder = ConvEncoder28(6)
    torch.testing.assert_close(encoder(x)[0], encoder(x.contiguous())[0])


def test_images_are_stored_with_channels_last():
    encoder, decoder = ConvEncoder28(6), ConvDecoder28(6, outputs=2)
    inside = []
    for network in (encoder, decoder):
        network.convolutions.register_forward_hook(lambda module, args, output: inside.append(output))
    decoder(encoder(torch.rand(5, 28, 28))[0])
    assert [image.stride(1) for image in inside] == [1, 1]
    assert all(p.is_contiguous() for network in (encoder, decoder) for p in network.parameters())


def test_parameter_count():
    encoder = sum(p.numel() for p in ConvEncoder28(64).parameters())
    decoder = sum(p.numel() for p in ConvDecoder28(64).parameters())
    assert encoder == 185_024 + 131_200
    assert decoder == 66_560 + 184_961
    assert encoder + decoder == 567_745


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConvEncoder28(0), "latent_dim must be a positive integer, got 0"),
        (lambda: ConvDecoder28("64"), "latent_dim must be a positive integer, got '64'"),
        (lambda: ConvDecoder28(4, outputs=-1), "outputs must be a positive integer, got -1"),
        (
            lambda: ConvEncoder28(4)(torch.zeros(5, 784)),
            r"x must have shape \[\.\.\., 28, 28\], got \[5, 784\]",
        ),
        (lambda: ConvDecoder28(4)(torch.zeros(5, 3)), r"z must have shape \[\.\.\., 4\], got \[5, 3\]"),
    ],
)
def test_errors_name_the_argument(make, message):
    with pytest.raises(ValueError, match=message):
        make()
