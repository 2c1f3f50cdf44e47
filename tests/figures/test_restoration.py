import math

import numpy as np
import pytest
import torch

from pyro_fmvae.figures import restoration
from pyro_fmvae.figures.restoration import MISSING
from tests.figures.generator import corners, drawn, overlaps, texts

REFERENCE = np.random.default_rng(0).random((6, 8))
DAMAGED = np.where(np.random.default_rng(1).random((6, 8)) < 0.5, np.nan, REFERENCE)
IMAGES = {"reference": REFERENCE, "damaged": DAMAGED, "restored": torch.as_tensor(1.2 * REFERENCE)}


def test_images_side_by_side():
    figure = restoration(IMAGES, {"restored": 31.234})
    reference, damaged, restored = (np.asarray(image.get_array()) for image in drawn(figure))
    assert (reference == REFERENCE[..., None]).all()
    np.testing.assert_allclose(restored, (1.2 * REFERENCE).clip(max=1)[..., None].repeat(3, -1))
    known = ~np.isnan(DAMAGED)
    assert (damaged[known] == DAMAGED[known][:, None]).all()
    assert (damaged[~known] == MISSING).all() and (~known).any()
    places = corners(figure)
    assert len(set(places[:, 1])) == 1 and (np.diff(places[:, 0]) > 0).all()


def test_ratios_stand_with_their_names():
    figure = restoration(IMAGES, {"restored": 31.234, "damaged": math.inf})
    left = {text.get_text(): text.get_position()[0] for text in figure.texts}
    assert left["PSNR 31.23 dB"] == left["restored"]
    assert left["PSNR ∞"] == left["damaged"]
    assert sum(text.startswith("PSNR") for text in left) == 2
    assert "PSNR −3.00 dB" in texts(restoration({"a": REFERENCE}, {"a": -3.0}))


def test_missing_pixels_are_explained_where_there_are_some():
    note = "Orange pixels are missing."
    assert note in texts(restoration(IMAGES, {}))
    assert note not in texts(restoration({"a": REFERENCE}, {}))


@pytest.mark.parametrize(("count", "lines"), [(1, 1), (5, 1), (6, 2), (9, 2)])
def test_lines_are_even(count, lines):
    places = corners(restoration({str(n): REFERENCE for n in range(count)}, {}))
    counts = np.unique(places[:, 1], return_counts=True)[1]
    assert len(counts) == lines and counts.max() - counts.min() <= 1


@pytest.mark.parametrize("shape", [(6, 8), (32, 256), (700, 300), (4, 1)])
@pytest.mark.parametrize(
    "name", ["BSC", "spike-and-slab sparse coding, max rule, 512 units of 12 x 12 pixels"]
)
@pytest.mark.parametrize("count", [1, 7])
def test_no_text_overlaps(shape, name, count):
    images = {f"{n} {name}": np.full(shape, np.nan) for n in range(count)}
    assert overlaps(restoration(images, dict.fromkeys(images, 29.5))) == []


@pytest.mark.parametrize(
    ("images", "psnrs", "message"),
    [
        ({}, {}, r"images: expected at least one, all of one shape, got \[\]"),
        ({"a": REFERENCE, "b": REFERENCE.T}, {}, r"images: .* got \[\[6, 8\], \[8, 6\]\]"),
        ({"a": REFERENCE[None]}, {}, r"images: expected floats \[H, W\] for a, got float64 \[1, 6, 8\]"),
        ({"a": np.ones((2, 2), dtype=int)}, {}, "images: expected floats"),
        ({"a": np.full((2, 2), np.inf)}, {}, "a: expected finite values"),
        ({"a": np.zeros((0, 2))}, {}, "a: expected images"),
        ({"a": REFERENCE}, {"b": 1.0}, r"psnrs: expected numbers for names among \['a'\], got {'b': 1.0}"),
        ({"a": REFERENCE}, {"a": math.nan}, "psnrs: expected numbers"),
    ],
)
def test_errors(images, psnrs, message):
    with pytest.raises(ValueError, match=message):
        restoration(images, psnrs)
