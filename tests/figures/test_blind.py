import numpy as np
import pytest
import torch

from pyro_fmvae.figures import blind_sheet
from tests.figures.generator import corners, drawn, overlaps, texts


@pytest.mark.parametrize(("count", "columns"), [(54, 9), (7, 9), (10, 4)])
def test_numbers_below_images_and_nothing_else(count, columns):
    images = torch.rand(count, 8, 6, 3)
    figure = blind_sheet(images, columns)
    np.testing.assert_array_equal(
        np.stack([np.asarray(image.get_array()) for image in drawn(figure)]), images
    )
    assert texts(figure) == [str(n + 1) for n in range(count)]
    places = corners(figure)
    shown = min(columns, count)
    assert len(set(places[:, 0])) == shown and len(set(places[:, 1])) == -(-count // shown)
    assert (np.lexsort((places[:, 0], places[:, 1])) == np.arange(count)).all()  # as one reads
    for image, text in zip(drawn(figure), figure.texts, strict=True):
        box, below = image.get_window_extent(), text.get_window_extent()
        assert (box.x0 + box.x1) / 2 == pytest.approx((below.x0 + below.x1) / 2, abs=1)
        assert 0 < box.y0 - below.y1 < 12
    assert overlaps(figure) == []


def test_nine_columns_fit_on_paper():
    width, height = blind_sheet(torch.rand(54, 64, 64)).get_size_inches()
    assert 6 < width < 11 and height / width < 297 / 210


@pytest.mark.parametrize(
    ("images", "columns", "message"),
    [
        (torch.zeros(3, 8), 9, "images: expected images"),
        (torch.zeros(0, 8, 8), 9, "images: expected images"),
        (torch.zeros(3, 8, 8), 0, "columns: expected a number >= 1, got 0"),
    ],
)
def test_errors(images, columns, message):
    with pytest.raises(ValueError, match=message):
        blind_sheet(images, columns)
