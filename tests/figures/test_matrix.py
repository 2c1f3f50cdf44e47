import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.image import AxesImage

from pyro_fmvae.figures import property_matrix
from tests.figures.generator import overlaps, texts

NAMES = ["body", "bottomwear", "topwear", "hair", "action", "direction", "accessories"]


def colours(figure):
    """Number in the figure → the colour of its text."""
    return {text.get_text(): text.get_color() for text in figure.texts}


def test_numbers_and_shades():
    values = torch.tensor([[0.0, 0.5, 1.0], [0.125, -0.25, 2.0]])
    figure = property_matrix(values, ["a", "b"], ["u", "v", "w"], "Leakage")
    (image,) = figure.findobj(AxesImage)
    np.testing.assert_array_equal(image.get_array(), values)
    assert image.get_clim() == (0, 1)
    assert {"0.00", "0.50", "1.00", "0.12", "−0.25", "2.00", "Leakage", "a", "b", "u", "v", "w"} <= set(
        texts(figure)
    )
    low, high = image.cmap(0.0), image.cmap(1.0)
    assert sum(low[:3]) > 2.9 and sum(high[:3]) < 1.0  # from white to dark
    inked = colours(figure)
    assert inked["2.00"] == inked["1.00"] == "white" != inked["0.00"]


def test_each_number_stands_in_its_cell():
    values = np.arange(6.0).reshape(2, 3)
    figure = property_matrix(values, ["a", "b"], ["u", "v", "w"], "")
    figure.canvas.draw()
    (axes,) = figure.axes
    for text in figure.texts:
        if text.get_text() in [f"{value:.2f}" for value in range(6)]:
            box = text.get_window_extent()
            column, row = axes.transData.inverted().transform(((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2))
            assert values[round(row), round(column)] == float(text.get_text())


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0.004, 9.99]], {"0.00", "9.99"}),
        ([[-0.004, 10.0]], {"0.0", "10.0"}),
        ([[123.4, -5.0]], {"123", "−5"}),
    ],
)
def test_as_many_digits_as_there_is_room_for(values, expected):
    assert expected <= set(texts(property_matrix(values, ["a"], ["u", "v"], "")))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 6), (10, 40), (2, 12)])
@pytest.mark.parametrize("length", [1, 5])
def test_no_text_overlaps(rows, columns, length):
    values = np.random.default_rng(0).uniform(-1000, 1000, (rows, columns))
    names = [" ".join(NAMES[n % 7 :] + NAMES[: n % 7])[: 8 * length**2] for n in range(40)]
    title = " ".join(NAMES * length)
    assert overlaps(property_matrix(values, names[:rows], names[:columns], title)) == []


def test_readable_on_every_shade():
    values = np.linspace(0, 1, 101)[None]
    figure = property_matrix(values, ["a"], [str(n) for n in range(101)], "")
    cells = [text for text in figure.texts if "." in text.get_text() and text.get_fontsize() == 7]
    assert len(cells) == 101
    for text in cells:
        shade = np.array(matplotlib.colormaps["Blues"](float(text.get_text()))[:3])
        ink = np.array(matplotlib.colors.to_rgb(text.get_color()))
        light, dark = sorted((luminance(shade), luminance(ink)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 3.9  # the most that is possible on middle shades


def luminance(colour):
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((2, 2)), r"values: expected shape \[1, 2\], of the names, got \[2, 2\]"),
        (np.zeros((1, 2), dtype=int), "values: expected floats or bools"),
        (np.full((1, 2), np.nan), "values: expected finite values"),
    ],
)
def test_errors(values, message):
    with pytest.raises(ValueError, match=message):
        property_matrix(values, ["a"], ["u", "v"], "")


def test_no_rows():
    with pytest.raises(ValueError, match="values: expected shape"):
        property_matrix(np.zeros((0, 1)), [], ["u"], "")
