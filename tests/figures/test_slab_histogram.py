import numpy as np
import pytest
import torch
from scipy.stats import norm

from pyro_fmvae.figures import slab_histogram
from tests.figures.generator import overlaps, texts

_rng = np.random.default_rng(0)
DRAWS = (_rng.random((4000, 3)) < 0.3) * _rng.normal(2.0, 0.5, (4000, 3))


def bars(axes):
    return [(p.get_x(), p.get_width(), p.get_height()) for p in axes.patches]


def test_histogram_of_what_is_not_zero():
    axes = slab_histogram(torch.as_tensor(DRAWS), 0.3, 2.0, 0.5).axes[0]
    active = DRAWS[DRAWS != 0]
    low, high = axes.get_xlim()
    for left, width, height in bars(axes):
        share = ((active >= left) & (active < left + width)).mean()
        assert height == pytest.approx(share / width, abs=1e-9)
    assert sum(width * height for _, width, height in bars(axes)) == pytest.approx(1, abs=2e-3)
    assert low == pytest.approx(0.0, abs=0.3) and high == pytest.approx(4.0, abs=0.3)


def test_the_posterior_follows_a_prior_that_is_right():
    """Bars about the density, within the standard error of counts."""
    axes = slab_histogram(DRAWS, 0.3, 2.0, 0.5).axes[0]
    count = (DRAWS != 0).sum()
    for left, width, height in bars(axes):
        expected = norm.cdf(left + width, 2, 0.5) - norm.cdf(left, 2, 0.5)
        assert height * width == pytest.approx(expected, abs=4.5 * np.sqrt(expected / count) + 2 / count)


def test_the_slab_of_the_prior_is_a_mixture_over_latents():
    probs, loc, scale = np.array([0.1, 0.3, 0.0]), np.array([-1.0, 2.0, 50.0]), np.array([0.5, 0.2, 1.0])
    axes = slab_histogram(DRAWS, probs, torch.as_tensor(loc), scale).axes[0]
    (line,) = axes.lines
    x, y = line.get_data()
    expected = 0.25 * norm.pdf(x, -1, 0.5) + 0.75 * norm.pdf(x, 2, 0.2)
    np.testing.assert_allclose(y, expected, atol=1e-12)


def test_shares_of_zeros():
    draws = np.array([[0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0]])
    figure = slab_histogram(draws, 0.2, 1.0, 1.0)
    assert [height for *_, height in bars(figure.axes[1])] == pytest.approx([0.75, 0.8])
    assert {"75.0 %", "80.0 %", "posterior draws, 2 not 0"} <= set(texts(figure))
    latents = slab_histogram(draws[..., :2], np.array([0.2, 0.4]), 1.0, 1.0)
    assert {"50.0 %", "70.0 %"} <= set(texts(latents))


@pytest.mark.parametrize("probs", [0.0, 0.2])
def test_nothing_but_zeros(probs):
    figure = slab_histogram(np.zeros((5, 2)), probs, 1.0, 0.5)
    assert bars(figure.axes[0]) == []
    x, y = figure.axes[0].lines[0].get_data()
    np.testing.assert_allclose(y, norm.pdf(x, 1, 0.5))
    assert {"100.0 %", "posterior draws, 0 not 0"} <= set(texts(figure))


def test_draws_beyond_the_prior_are_in_sight():
    low, high = slab_histogram(np.array([[-20.0, 0.0, 30.0]]), 0.5, 0.0, 1.0).axes[0].get_xlim()
    assert low < -19 and high > 29
    assert slab_histogram(np.array([0.1]), 0.5, 0.0, 1.0).axes[0].get_xlim() == (-4, 4)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
def test_no_text_overlaps(scale):
    assert overlaps(slab_histogram(DRAWS * scale, 0.3, 2 * scale, 0.5 * scale)) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draws": DRAWS[:0]}, "draws: expected at least one, got none"),
        ({"draws": DRAWS * np.nan}, "draws: expected finite values"),
        ({"probs": 1.2}, r"probs: expected values in \[0, 1\], got 1.2 to 1.2"),
        ({"probs": -0.1}, r"probs: expected values in \[0, 1\]"),
        ({"scale": 0}, "scale: expected values > 0, got 0"),
        ({"loc": np.zeros(2)}, r"loc: expected a number or the draws' shape \[3\], got \[2\]"),
        ({"loc": np.zeros((1, 3))}, r"loc: expected a number or the draws' shape \[3\], got \[1, 3\]"),
    ],
)
def test_errors(changes, message):
    arguments = {"draws": DRAWS, "probs": 0.3, "loc": 2.0, "scale": 0.5}
    with pytest.raises(ValueError, match=message):
        slab_histogram(**(arguments | changes))
