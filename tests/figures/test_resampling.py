import numpy as np
import pytest
import torch

from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.evaluate.slabs import resample_active, slabs_of
from pyro_fmvae.figures import conditional_samples
from tests.figures.generator import grid, overlaps, texts
from tests.figures.sparse import Codes, codes, latents_of


def test_rows():
    data, x = codes(100), torch.rand(4, 1, 6)
    z = data[:4]
    shown = grid(conditional_samples(Codes().decode, x, z, data, draws=5, seed=3))
    assert shown.shape == (4, 2 + 5, 1, 6)
    np.testing.assert_allclose(shown[:, 0], x)
    found = latents_of(shown)
    np.testing.assert_allclose(found[:, 1], z, atol=1e-12)
    with seeded(3):
        expected = resample_active(z, slabs_of(data), 5)
    np.testing.assert_allclose(found[:, 2:], expected.transpose(0, 1), atol=1e-12)


def test_only_values_are_new():
    data = codes(100)
    decoder = Codes()
    conditional_samples(decoder.decode, torch.rand(4, 1, 6), data[:4], data, draws=7)
    drawn = decoder.decoded[-1].unflatten(0, (7, 4))
    assert ((drawn != 0) == (data[:4] != 0)).all()
    assert (drawn.var(0)[data[:4] != 0] > 0).all()


def test_labels():
    z = torch.tensor([[1.0, 0, 0], [0, 0, 0], [1, -2, 3]])
    figure = conditional_samples(Codes().decode, torch.rand(3, 1, 3), z, z, draws=2)
    assert [text for text in texts(figure) if "active" in text][-3:] == [
        "1 of 3 active",
        "0 of 3 active",
        "3 of 3 active",
    ]


def test_headings_are_whole_above_narrow_images():
    z = torch.ones(1, 1)
    figure = conditional_samples(Codes().decode, torch.rand(1, 1, 1), z, z)
    assert {"example", "reconstruction"} <= set(texts(figure))


def test_random_numbers():
    data, before = codes(50), torch.get_rng_state()
    first, again, other = (
        grid(conditional_samples(Codes().decode, torch.ones(2, 1, 6), data[:2], data, seed=seed))
        for seed in (0, 0, 1)
    )
    assert (first == again).all() and (first != other).any()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize(("rows", "draws", "latents"), [(1, 1, 2), (3, 8, 30), (2, 2, 300)])
def test_no_text_overlaps(rows, draws, latents, colour):
    data = codes(40, latents)
    x = torch.rand(rows, 1, latents, *([3] if colour else []))
    figure = conditional_samples(Codes(colour=colour).decode, x, data[:rows], data, draws)
    assert overlaps(figure) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.rand(3, 1, 6)}, r"x: expected shape \[2, 1, 6\], got \[3, 1, 6\]"),
        (
            {"z": torch.zeros(2, 5)},
            r"z, latents: expected \[n, J\] and \[N, J\].*, got \[2, 5\] and \[50, 6\]",
        ),
        ({"z": torch.zeros(0, 6)}, r"z, latents: .* n at least 1, got \[0, 6\]"),
        ({"z": torch.zeros(6)}, r"z, latents: .* got \[6\]"),
        ({"draws": 0}, "draws: .* a number >= 1"),
        ({"decode": lambda z: z}, "decode: expected images"),
        ({"decode": lambda z: Codes().decode(z)[:1]}, "decode: expected 2 images, got 1"),
    ],
)
def test_errors(changes, message):
    data = codes(50)
    arguments = {"decode": Codes().decode, "x": torch.rand(2, 1, 6), "z": data[:2], "latents": data}
    with pytest.raises(ValueError, match=message):
        conditional_samples(**arguments | changes)
