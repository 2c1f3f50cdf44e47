import numpy as np
import pytest
from matplotlib.image import AxesImage

from pyro_fmvae.figures.heat import heat_map, latent_order
from pyro_fmvae.figures.page import Page


def test_order_by_the_largest_row_then_by_size():
    values = np.array([[0.1, 0, 0.9, 0.2, 0, 0.3], [0.5, 0, 0.1, 0.7, 0, 0.3], [0.2, 0, 0, 0, 0.4, 0]])
    assert latent_order(values).tolist() == [2, 5, 3, 0, 4, 1]


def test_order_against_a_sort():
    rng = np.random.default_rng(0)
    values = rng.random((5, 40)) * (rng.random((5, 40)) < 0.1)

    def key(column):
        largest = max(values[:, column])
        return (values[:, column].tolist().index(largest) if largest else 5, -largest)

    assert latent_order(values).tolist() == sorted(range(40), key=key)


@pytest.mark.parametrize(("width", "numbered"), [(12, False), (13, True)])
def test_columns_are_in_order_and_numbered(width, numbered):
    page = Page(300, 200)
    values, order = np.arange(6.0).reshape(2, 3), np.array([2, 0, 1])
    axes = heat_map(page, values, order, (40, 60), (width, 20), 5.0)
    page.figure.canvas.draw()
    (image,) = axes.findobj(AxesImage)
    np.testing.assert_array_equal(image.get_array(), [[2, 0, 1], [5, 3, 4]])
    assert image.get_clim() == (0, 5)
    box = axes.get_window_extent()
    assert np.allclose([box.x0, 200 - box.y1, box.width, box.height], [40, 60, 3 * width, 40])
    found = {
        text.get_text(): text.get_window_extent(page.figure.canvas.get_renderer())
        for text in page.figure.texts
    }
    assert list(found) == (["2", "0", "1"] if numbered else [])
    for column, place in enumerate(found.values()):
        assert (place.x0 + place.x1) / 2 == pytest.approx(40 + (column + 0.5) * width, abs=1)
        assert 200 - place.y0 <= 60
