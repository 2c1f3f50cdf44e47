import numpy as np
import pytest
from matplotlib.image import AxesImage

from pyro_fmvae.figures import confusion
from tests.figures.generator import overlaps, texts


def measures(counts, values):
    counts = np.asarray(counts)
    return {
        "n": int(counts.sum()),
        "accuracy": counts.trace() / counts.sum(),
        "values": values,
        "confusion": counts.tolist(),
    }


def test_counts_shares_and_names():
    eyes = measures([[6, 2, 0], [0, 0, 0], [1, 0, 1]], ["closed", "open", "sunglasses"])
    figure = confusion({"eyes": eyes, "hat": measures([[3]], ["none"])})
    first, second = figure.findobj(AxesImage)
    np.testing.assert_allclose(first.get_array(), [[0.75, 0.25, 0], [0, 0, 0], [0.5, 0, 0.5]])
    np.testing.assert_allclose(second.get_array(), [[1.0]])
    shown = texts(figure)
    assert shown.count("sunglasses") == shown.count("none") == 2
    assert {"eyes: 7 of 10 points are right", "hat: 3 of 3 points are right"} <= set(shown)
    assert sorted(text for text in shown if text.isdigit()) == ["1", "1", "2", "3", "6"]
    assert not overlaps(figure)


def test_clusters_are_columns_by_the_value_that_they_are_named_after():
    found = {
        "n": 12,
        "accuracy": 8 / 12,  # of the one-to-one matching, which leaves the second component over
        "values": ["four", "nine"],
        "named_after": ["four", "four", "nine"],
        "confusion": [[4, 3, 0], [0, 1, 4]],
    }
    figure = confusion({"digit": found})
    (image,) = figure.findobj(AxesImage)
    np.testing.assert_allclose(image.get_array(), [[4 / 7, 3 / 7, 0], [0, 0.2, 0.8]])
    shown = texts(figure)
    assert (shown.count("four"), shown.count("nine")) == (3, 2)
    assert "digit: 8 of 12 points match" in shown
    assert "Columns: components, each by the value that it is named after." in " ".join(shown)
    assert not overlaps(figure)


def test_many_values_have_no_room_for_names():
    counts = np.eye(300, dtype=int)
    figure = confusion({"character": measures(counts, [str(value) for value in range(300)])})
    (image,) = figure.findobj(AxesImage)
    np.testing.assert_array_equal(image.get_array(), counts)
    assert "299" not in texts(figure)


def test_few_values_are_named_beside_many_components():
    found = {"n": 80, "accuracy": 1 / 80, "values": ["four", "nine"], "named_after": ["four"] * 80}
    figure = confusion({"digit": found | {"confusion": [[1] * 80, [0] * 80]}})
    assert texts(figure)[:3] == ["digit: 1 of 80 points match", "four", "nine"]
    assert "1" not in texts(figure)
    box = figure.axes[0].get_window_extent()
    assert box.width > 10 * box.height > 100


@pytest.mark.parametrize(
    ("classified", "message"),
    [
        ({}, "classified: expected at least one label, got none"),
        ({"a": measures([[1, 0], [0, 1]], ["x"])}, r"counts \[1, 1\] of 'a', got \[2, 2\]"),
        (
            {"a": measures([[1, 0], [0, 1]], ["x", "y"]) | {"named_after": ["x"]}},
            r"counts \[2, 1\] of 'a', got \[2, 2\]",
        ),
    ],
)
def test_nothing_to_show(classified, message):
    with pytest.raises(ValueError, match=message):
        confusion(classified)
