import pytest
import torch

from pyro_fmvae.nn import MLPDecoder, MLPEncoder

SHAPES = [(), (5,), (0,), (3, 1, 5)]


@pytest.mark.parametrize("batch_shape", SHAPES)
@pytest.mark.parametrize("event_shape", [(7,), (4, 3), (4, 3, 2)])
@pytest.mark.parametrize("hidden", [(), (6,), (6, 5)])
def test_shapes(batch_shape, event_shape, hidden):
    loc, scale = MLPEncoder(event_shape, 2, hidden)(torch.randn(*batch_shape, *event_shape))
    assert loc.shape == scale.shape == (*batch_shape, 2)
    features = MLPDecoder(2, event_shape, outputs=3, hidden=hidden)(loc)
    assert features.shape == (*batch_shape, 3, *event_shape)


def test_default_sizes():
    count = sum(p.numel() for p in MLPEncoder((28, 28), 64).parameters())
    assert count == (784 * 200 + 200) + (200 * 128 + 128)
    count = sum(p.numel() for p in MLPDecoder(64, (28, 28)).parameters())
    assert count == (64 * 200 + 200) + (200 * 784 + 784)


def test_linear_when_nothing_is_hidden():
    decoder = MLPDecoder(3, (4,), hidden=())
    z = torch.randn(2, 3)
    torch.testing.assert_close(decoder(z[0] + z[1]), decoder(z[0]) + decoder(z[1]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLPEncoder((0,), 2), r"event_shape\[0\] must be a positive integer, got 0"),
        (lambda: MLPEncoder((), 2), "event_shape must not be empty"),
        (lambda: MLPEncoder(28, 2), "event_shape must be a sequence of positive integers, got 28"),
        (lambda: MLPEncoder((4,), 0), "latent_dim must be a positive integer, got 0"),
        (lambda: MLPEncoder((4,), 2, hidden=(5, -1)), r"hidden\[1\] must be a positive integer, got -1"),
        (lambda: MLPEncoder((4,), 2, hidden=200), "hidden must be a sequence of positive integers, got 200"),
        (lambda: MLPDecoder(2.0, (4,)), r"latent_dim must be a positive integer, got 2\.0"),
        (lambda: MLPDecoder(2, (4, True)), r"event_shape\[1\] must be a positive integer, got True"),
        (lambda: MLPDecoder(2, ()), "event_shape must not be empty"),
        (lambda: MLPDecoder(2, (4,), outputs=0), "outputs must be a positive integer, got 0"),
        (lambda: MLPDecoder(2, (4,), hidden="200"), "hidden must be a sequence of positive integers"),
        (
            lambda: MLPEncoder((4, 3), 2)(torch.zeros(5, 12)),
            r"x must have shape \[\.\.\., 4, 3\], got \[5, 12\]",
        ),
        (lambda: MLPEncoder((4, 3), 2)(torch.zeros(3)), r"x must have shape \[\.\.\., 4, 3\], got \[3\]"),
        (lambda: MLPDecoder(2, (4,))(torch.zeros(5, 3)), r"z must have shape \[\.\.\., 2\], got \[5, 3\]"),
        (lambda: MLPDecoder(2, (4,))(torch.tensor(1.0)), r"z must have shape \[\.\.\., 2\], got \[\]"),
    ],
)
def test_errors_name_the_argument(make, message):
    with pytest.raises(ValueError, match=message):
        make()
