import numpy as np
import pytest

from pyro_fmvae.figures import measure_curves
from tests.figures.generator import overlaps, texts

MEASURED = {
    "VSC": {40: [1.0, 2.0, 6.0], 10: [0.0, 1.0, 2.0]},
    "β-VAE": {10: [-3.0, -1.0], 20: [-5.0], 40: [-7.0, -4.0]},
}


def curves(figure):
    """Places, means, and lower and upper ends of error bars of every curve; NaN where there is none."""
    found = []
    for container in figure.axes[0].containers:
        line, _, (bars,) = container
        segments = [np.asarray(segment) for segment in bars.get_segments()]
        ends = [segment[:, 1] if len(segment) else np.full(2, np.nan) for segment in segments]
        found.append((line.get_xdata(), line.get_ydata(), np.array(ends)))
    return found


def test_means_and_standard_deviations():
    (x, mean, bars), (other_x, other_mean, other_bars) = curves(measure_curves(MEASURED, "J", "ELBO"))
    np.testing.assert_array_equal(x, [10, 40])
    np.testing.assert_allclose(mean, [1, 3])
    sd = np.array([1, np.std([1, 2, 6], ddof=1)])
    np.testing.assert_allclose(bars, np.stack([mean - sd, mean + sd], 1))
    np.testing.assert_array_equal(other_x, [10, 20, 40])
    np.testing.assert_allclose(other_mean, [-2, -5, -5.5])
    sd = np.array([np.sqrt(2), np.nan, 3 / np.sqrt(2)])  # one seed says nothing of the spread
    np.testing.assert_allclose(other_bars, np.stack([other_mean - sd, other_mean + sd], 1))


def test_number_of_seeds():
    found = texts(measure_curves(MEASURED | {"VAE": {10: [0.0]}}, "J", "ELBO"))
    assert {"VSC  (3 seeds)", "β-VAE  (1 to 2 seeds)", "VAE  (1 seed)", "J", "ELBO"} <= set(found)
    assert any(text.startswith("Error bars") for text in found)
    assert not any(text.startswith("Error bars") for text in texts(measure_curves({"a": {1: [2.0]}}, "", "")))


@pytest.mark.parametrize("log", [False, True])
def test_everything_lies_within_the_axes(log):
    figure = measure_curves(MEASURED, "J", "ELBO", log)
    (axes,) = figure.axes
    assert axes.get_xscale() == ("log" if log else "linear")
    low, high = axes.get_ylim()
    first, last = axes.get_xlim()
    for x, _, bars in curves(figure):
        assert first < x.min() and x.max() < last
        assert low < np.nanmin(bars) and np.nanmax(bars) < high


def test_models_stand_beside_each_other():
    figure = measure_curves({"a": {1: [0.0, 1.0]}, "b": {1: [0.0, 1.0]}}, "", "")
    left, right = (
        container[0].get_transform().transform((1.0, 0.5)) for container in figure.axes[0].containers
    )
    assert left[0] + 20 < right[0] and left[1] == right[1]


@pytest.mark.parametrize(
    ("places", "log", "expected"),
    [
        ([1, 2, 4, 8, 20, 50], False, ["1", "4", "8", "20", "50"]),
        ([1, 2, 4, 8, 20, 50], True, ["1", "2", "4", "8", "20", "50"]),
        ([-0.5, 0], False, ["−0.5", "0"]),
    ],
)
def test_ticks_are_at_measured_places_as_far_as_there_is_room(places, log, expected):
    figure = measure_curves({"a": {place: [0.0] for place in places}}, "", "", log)
    figure.canvas.draw()
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == expected
    assert len(figure.axes[0].get_xticks(minor=True)) == 0


@pytest.mark.parametrize("models", [1, 3, 12])
@pytest.mark.parametrize("name", ["VSC", "a model with a name that goes on and on and on and on"])
def test_no_text_overlaps(models, name):
    measured = {f"{name} {n}": {10 * k: [n * 1e4 + k, -k] for k in range(1, 9)} for n in range(models)}
    assert overlaps(measure_curves(measured, name * 3, name * 3)) == []


@pytest.mark.parametrize(
    ("measured", "log", "message"),
    [
        ({}, False, "measured: expected at least one model, got none"),
        ({"a": {}}, False, "measured: expected values of at least one seed everywhere, a lacks some"),
        ({"a": {1: [0.0], 2: []}}, False, "measured: expected values of at least one seed everywhere"),
        ({"a": {1: [np.nan]}}, False, "measured: expected finite numbers, got others for a"),
        ({"a": {np.inf: [1.0]}}, False, "measured: expected finite numbers, got others for a"),
        ({"a": {0: [1.0]}}, True, "log: expected numbers > 0, got 0"),
    ],
)
def test_errors(measured, log, message):
    with pytest.raises(ValueError, match=message):
        measure_curves(measured, "", "", log)
