import numpy as np
import pytest
import torch

from pyro_fmvae.figures import nearest_pictures
from tests.figures.generator import Generator, grid, overlaps, texts


@pytest.mark.parametrize("colour", [False, True])
def test_means_stand_beside_the_pictures_that_are_given(colour):
    generator = Generator(colour=colour)
    shape = (4, 2, 3, 3) if colour else (4, 2, 3)
    nearest = {component: torch.rand(shape) for component in (4, 1)}
    figure = nearest_pictures(generator.factors(names=["a", "b", "hair"]), 2, nearest)
    shown = grid(figure)
    assert shown.shape[:2] == (2, 1 + 4)
    for row, (component, pictures) in zip(shown, nearest.items(), strict=True):
        np.testing.assert_allclose(row[1:], pictures)
        np.testing.assert_allclose(row[0][0, 2], component / 5)
    np.testing.assert_allclose(shown[0, 0][:, :2], shown[1, 0][:, :2])
    assert {"hair", "nearest training pictures", "4: 33 %", "1: 13 %"} <= set(texts(figure))
    assert not overlaps(figure)


@pytest.mark.parametrize(
    ("nearest", "message"), [({}, "nearest: expected"), ({0: torch.rand(3)}, "nearest: expected images")]
)
def test_without_pictures(nearest, message):
    with pytest.raises(ValueError, match=message):
        nearest_pictures(Generator().factors(), 0, nearest)
