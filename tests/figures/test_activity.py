import numpy as np
import pytest
import torch
from matplotlib.image import AxesImage

from pyro_fmvae.figures import class_activity
from tests.figures.generator import overlaps, texts

NAMES = ("Trouser", "Sandal", "Bag")


def shares(latents=10, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.random((3, latents)) * (rng.random((3, latents)) < 0.5)
    values[:, 0] = 0
    return values


def test_matrix():
    values = shares()
    figure = class_activity(torch.from_numpy(values), NAMES)
    (image,) = figure.findobj(AxesImage)
    shown = np.asarray(image.get_array())
    assert sorted(map(tuple, shown.T)) == sorted(map(tuple, values.T))
    classes = [column.argmax() if column.any() else 3 for column in shown.T]
    assert classes == sorted(classes) and classes[-1] == 3
    assert image.get_clim() == (0, values.max())
    idle = (values == 0).all(0).sum()
    note = " ".join(texts(figure))
    assert f"the darkest blue {values.max():.3g}." in note and f"{idle} of 10 are never active." in note


def test_numbers_stand_above_their_columns():
    values = shares()
    figure = class_activity(values, NAMES)
    figure.canvas.draw()
    (axes,) = figure.axes
    (image,) = axes.findobj(AxesImage)
    found = [text for text in figure.texts if text.get_text().isdigit()]
    assert len(found) == 10
    for text in found:
        box = text.get_window_extent()
        column, _ = axes.transData.inverted().transform(((box.x0 + box.x1) / 2, 0))
        shown = np.asarray(image.get_array())[:, round(column)]
        np.testing.assert_array_equal(shown, values[:, int(text.get_text())])


def test_the_scale_can_be_given():
    (image,) = class_activity(shares(), NAMES, high=2.5).findobj(AxesImage)
    assert image.get_clim() == (0, 2.5)
    (image,) = class_activity(np.zeros((3, 2)), NAMES).findobj(AxesImage)
    assert image.get_clim() == (0, 1)


@pytest.mark.parametrize("latents", [1, 10, 60, 75, 300])
@pytest.mark.parametrize("name", ["", "Bag", "a class with a name that goes on and on and on and on"])
def test_no_text_overlaps(latents, name):
    assert overlaps(class_activity(shares(latents), (name, "Bag", "Coat"), f"Activity {name}")) == []


@pytest.mark.parametrize(
    ("values", "high", "message"),
    [
        (shares()[:2], None, r"values: expected numbers >= 0 of shape \[3, J\], got \[2, 10\]"),
        (shares()[:, :0], None, r"values: expected numbers >= 0 of shape \[3, J\], got \[3, 0\]"),
        (shares()[0], None, r"values: expected numbers >= 0 of shape \[3, J\], got \[10\]"),
        (shares() - 1, None, "values: expected numbers >= 0"),
        (shares() * np.nan, None, "values: expected finite values"),
        (shares(), 0.0, "high: expected a number > 0, got 0"),
        (shares(), np.inf, "high: expected a number > 0, got inf"),
    ],
)
def test_errors(values, high, message):
    with pytest.raises(ValueError, match=message):
        class_activity(values, NAMES, high=high)
