import matplotlib
import numpy as np
import pytest
import torch

from pyro_fmvae.figures import dictionary
from tests.figures.generator import corners, drawn, overlaps, texts

_rng = np.random.default_rng(0)
UNITS = _rng.standard_normal((6, 4, 5)) * np.array([1e-3, 1, 5, 2, 1e4, 1])[:, None, None]
USE = np.array([0.3, 0.01, 0.123, 0.0, 0.2, 0.123])


def shown(figure):
    return np.stack([np.asarray(image.get_array()) for image in drawn(figure)])


def coloured(values):
    return matplotlib.colormaps["RdBu_r"]((values + 1) / 2)[..., :3]


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
def test_each_unit_has_its_own_scale(convert):
    scaled = np.stack([unit / abs(unit).max() for unit in UNITS])
    np.testing.assert_allclose(shown(dictionary(convert(UNITS))), coloured(scaled), atol=0.01)


def test_zero_is_white_and_signs_differ():
    units = np.array([[[0.0, 2.0, -2.0, 1.0]]])
    zero, most, least, half = shown(dictionary(units))[0, 0]
    assert zero.min() > 0.95
    assert most[0] > most[2] and least[2] > least[0]  # red and blue
    assert zero.sum() > half.sum() > most.sum()


def test_units_without_negative_values_are_grey():
    units = np.abs(UNITS)
    expected = units / units.max((1, 2), keepdims=True)
    found = shown(dictionary(units))
    np.testing.assert_allclose(found, np.repeat(expected[..., None], 3, -1))
    assert any("black is 0" in text for text in texts(dictionary(units)))
    assert any("red is positive" in text for text in texts(dictionary(UNITS)))


@pytest.mark.parametrize(("sign", "expected"), [(1, 0.0), (-1, 0.96)])
def test_units_of_zeros(sign, expected):
    units = np.zeros((2, 3, 3))
    units[1] = sign
    assert shown(dictionary(units))[0].mean() == pytest.approx(expected, abs=0.02)


def test_sorted_by_use_with_the_use_above():
    figure = dictionary(UNITS, order=USE)
    order = [0, 4, 2, 5, 1, 3]  # equals stay in order
    np.testing.assert_array_equal(shown(figure), shown(dictionary(UNITS))[order])
    assert texts(figure)[:6] == ["0.300", "0.200", "0.123", "0.123", "0.010", "0.000"]
    assert any("most used" in text for text in texts(figure))
    assert corners(figure)[0, 1] >= corners(dictionary(UNITS))[0, 1] + 15  # room for what is written


@pytest.mark.parametrize(
    ("use", "expected"),
    [([123.4, 5.0], ["123", "5"]), ([1.0, 0.25], ["1.00", "0.25"]), ([0, 0], ["0.00"] * 2)],
)
def test_digits(use, expected):
    assert texts(dictionary(UNITS[:2], order=np.array(use, dtype=float)))[:2] == expected


@pytest.mark.parametrize(("count", "written"), [(64, True), (65, False)])
def test_use_is_written_of_few_units_only(count, written):
    figure = dictionary(np.ones((count, 2, 2)), order=np.linspace(0, 1, count))
    assert ("1.00" in texts(figure)) == written
    assert ("stands above" in " ".join(texts(figure))) == written


def test_use_is_written_in_full_above_narrow_tiles():
    figure = dictionary(np.ones((60, 9, 2)), order=np.linspace(0.5, 1, 60))
    assert texts(figure)[0] == "1.00" and texts(figure)[59] == "0.50"
    assert overlaps(figure) == []


@pytest.mark.parametrize(("count", "expected"), [(8, 4), (64, 8), (512, 32), (13, 7), (1, 1)])
def test_columns(count, expected):
    places = corners(dictionary(np.ones((count, 3, 3))))
    assert len(set(places[:, 0])) == expected
    assert len(set(places[:, 1])) == -(-count // expected)
    assert (np.lexsort((places[:, 0], places[:, 1])) == np.arange(count)).all()


@pytest.mark.parametrize(
    ("count", "size"), [(1, (5, 5)), (8, (200, 200)), (13, (3, 9)), (64, (16, 12)), (512, (12, 12))]
)
def test_no_text_overlaps(count, size):
    units = np.zeros((count, *size))
    assert overlaps(dictionary(units, order=np.linspace(0, 1, count))) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"units": UNITS[0]}, r"units: expected at least one unit \[H, h, w\], got shape \[4, 5\]"),
        ({"units": UNITS[:0]}, r"units: expected at least one unit .* got shape \[0, 4, 5\]"),
        ({"units": UNITS * np.nan}, "units: expected finite values"),
        ({"order": USE[:5]}, r"order: expected shape \[6\], got \[5\]"),
        ({"order": USE + np.inf}, "order: expected finite values"),
    ],
)
def test_errors(changes, message):
    with pytest.raises(ValueError, match=message):
        dictionary(**({"units": UNITS} | changes))
