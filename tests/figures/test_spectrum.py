import pytest
from matplotlib.colors import same_color

from pyro_fmvae.figures import spectrum
from tests.figures.generator import texts


def test_bars_are_bits_and_factors_are_dark():
    figure = spectrum([1.0, 0.97, 0.3], 2)
    first, second, last = figure.axes[0].patches
    assert [bar.get_height() for bar in (first, second, last)] == [1.0, 0.97, 0.3]
    assert same_color(first.get_facecolor(), second.get_facecolor())
    assert not same_color(first.get_facecolor(), last.get_facecolor())
    assert any("2 with clusters" in text for text in texts(figure))
    with pytest.raises(ValueError, match=r"^bits: expected"):
        spectrum([], 0)
