import numpy as np
import pytest
from matplotlib.colors import same_color
from matplotlib.patches import Rectangle

from pyro_fmvae.figures import moved_pictures, spectrum
from tests.figures.generator import Generator, drawn, texts


def test_bars_are_bits_and_factors_are_dark():
    figure = spectrum([1.0, 0.5, 0.3], 2)
    first, second, last = bars = [bar for bar in figure.artists if isinstance(bar, Rectangle)]
    longest = first.get_width()
    assert [bar.get_width() / longest for bar in bars] == pytest.approx([1.0, 0.5, 0.3])
    assert same_color(first.get_facecolor(), second.get_facecolor())
    assert not same_color(first.get_facecolor(), last.get_facecolor())
    assert {"1.00", "0.50", "0.30"} <= set(texts(figure))
    with pytest.raises(ValueError, match=r"^bits: expected"):
        spectrum([], 0)


@pytest.mark.parametrize("colour", [True, False])
def test_each_direction_has_the_pictures_that_its_factor_moves(colour):
    factors = Generator(colour=colour).factors(names=("hat", "hair", "pose"))
    moved = moved_pictures(factors, 1)
    for group in moved:
        changed = np.ptp(group, axis=0) > 0
        assert np.argwhere(changed[..., 0] if colour else changed).tolist() == [[0, 1]]
        np.testing.assert_allclose(group[:, 0, 1].reshape(3, -1)[:, 0], np.arange(3) / 3)
    assert not all(np.array_equal(moved[0], group) for group in moved)  # draws differ
    figure = spectrum([1.0, 0.9, 0.3], 2, {0: "hat", 1: "hair"}, {1: moved})
    assert len(drawn(figure)) == 9
    assert {"hat", "hair"} <= set(texts(figure))
