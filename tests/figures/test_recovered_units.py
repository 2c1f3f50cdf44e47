import numpy as np
import pytest
import torch

from pyro_fmvae.evaluate import UnitMatch, match_units
from pyro_fmvae.figures import dictionary, recovered_units
from tests.figures.generator import corners, drawn, overlaps, texts

TRUE = np.random.default_rng(0).standard_normal((5, 4, 4))
ORDER = np.array([3, 0, 4, 1, 2])  # learnt unit → true one
LEARNT = TRUE[ORDER] * np.array([1, 3, 0.1, 2, 1])[:, None, None]


def shown(figure):
    return [np.asarray(image.get_array()) for image in drawn(figure)]


def test_matched_units_stand_below_the_true_ones():
    figure = recovered_units(torch.as_tensor(TRUE), LEARNT, match_units(LEARNT, TRUE))
    places, images = corners(figure), shown(figure)
    upper = [n for n in range(10) if places[n, 1] == places[:, 1].min()]
    lower = {places[n, 0]: n for n in range(10) if n not in upper}
    assert len(upper) == len(lower) == 5
    for number, n in enumerate(sorted(upper, key=lambda n: places[n, 0])):
        np.testing.assert_array_equal(images[n], shown(dictionary(TRUE))[number])
        np.testing.assert_allclose(images[lower[places[n, 0]]], images[n], atol=0.03)
    assert texts(figure).count("1.000") == 5
    assert "5 of 5 recovered: cosine above 0.95" in texts(figure)


def test_the_matched_unit_is_the_one_that_is_shown():
    match = UnitMatch(np.full(5, 0.5), np.array([4, 0, 2, 1, 3]))
    images = shown(recovered_units(TRUE, LEARNT, match))
    learnt = shown(dictionary(LEARNT))
    for number, unit in enumerate(match.unit_of):
        np.testing.assert_array_equal(images[2 * number + 1], learnt[unit])


def test_what_is_not_recovered_is_marked():
    match = UnitMatch(np.array([0.97, 0.95, -0.3, 0.0, 1.0]), np.array([0, 1, 2, -1, 3]))
    figure = recovered_units(TRUE, LEARNT, match)
    assert "2 of 5 recovered: cosine above 0.95" in texts(figure)
    colour = {text.get_text(): text.get_color() for text in figure.texts}
    assert colour["0.970"] == colour["1.000"] != colour["0.950"] == colour["−0.300"] == colour["none"]
    assert len(drawn(figure)) == 9


def test_one_colour_map_for_both():
    positive = np.abs(TRUE)
    grey = shown(recovered_units(positive, positive, match_units(positive, positive)))
    assert all((image[..., 0] == image[..., 2]).all() for image in grey)
    mixed = shown(recovered_units(positive, TRUE, match_units(TRUE, positive)))
    assert all((image[..., 0] != image[..., 2]).any() for image in mixed)


@pytest.mark.parametrize(("count", "size"), [(1, 3), (10, 5), (40, 12), (3, 200)])
def test_no_text_overlaps(count, size):
    units = np.random.default_rng(1).standard_normal((count, size, size))
    match = match_units(units[: max(1, count - 1)], units)
    assert overlaps(recovered_units(units, units, match)) == []


def test_lines_are_even():
    units = np.ones((32, 12, 12))
    places = corners(recovered_units(units, units, match_units(units, units)))
    counts = np.unique(places[:, 1], return_counts=True)[1]
    assert counts.max() - counts.min() <= 1 and len(counts) > 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"true": TRUE[0]}, "true: expected at least one unit"),
        ({"learnt": LEARNT[:, :3]}, r"learnt: expected units \[4, 4\], got \[3, 4\]"),
        ({"learnt": LEARNT[:4]}, r"match: expected units below 4 for each of 5 .* got \[5\], up to 4"),
        ({"true": TRUE[:4]}, r"match: expected units below 5 for each of 4 true ones, got \[5\]"),
    ],
)
def test_errors(changes, message):
    with pytest.raises(ValueError, match=message):
        recovered_units(**({"true": TRUE, "learnt": LEARNT, "match": match_units(LEARNT, TRUE)} | changes))
