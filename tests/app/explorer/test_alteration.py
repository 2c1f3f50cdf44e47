"""One point read and changed: the numbers of the commands, and what was kept."""

import numpy as np
import pytest
from PIL import Image

from pyro_fmvae.app.explorer import alteration
from pyro_fmvae.data import whole
from tests.app.explorer.explored_runs import SIDE

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture
def picture(explored, tmp_path):
    pixels = np.arange(SIDE * SIDE, dtype=np.uint8).reshape(SIDE, SIDE)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    return alteration.open_picture(explored["pictures"], tmp_path / "one.png"), pixels


def test_a_picture_has_the_code_of_encode(explored, picture):
    run, (point, pixels) = explored["pictures"], picture
    reading = alteration.read(run, point)
    expected = run.trained.encode(pixels[None])
    assert reading.codes == expected["codes"][0].tolist()
    for factor, told in enumerate(reading.probabilities):
        gamma = np.sort(expected[f"responsibilities_{factor}"][0])[::-1]
        np.testing.assert_allclose([p for _, p in told], gamma[: len(told)], rtol=1e-5)
    assert {name for name, _ in reading.probabilities[0]} == {"left", "right"}


def test_a_change_is_that_of_edit_and_lists_the_rest(explored, picture):
    run, (point, pixels) = explored["pictures"], picture
    other = 1 - alteration.read(run, point).codes[0]
    found = alteration.change(run, point, 0, other)
    pictures = run.run.recipe.preprocessing.undo(found.after)
    expected = run.trained.edit(pixels[None] / 255.0, {0: other})
    np.testing.assert_allclose(pictures.clamp(0, 1), expected, atol=1e-5)
    reread = run.trained.model.codes(found.after)[0, 1]
    before = run.trained.model.codes(whole(point)[0])[0, 1]
    assert found.kept == [("factor 1", str(int(before)), str(int(reread)))]


def test_a_row_is_read_as_it_is_shown(explored):
    run = explored["table"]
    point = run.points.select(np.array([7]))
    header, (cells,) = run.table(point.observations)
    assert header == ["weight", "length", "colour"]
    again = alteration.open_row(run, cells)
    np.testing.assert_allclose(again.observations, point.observations, atol=2e-2)
    assert alteration.read(run, again).codes == alteration.read(run, point).codes


def test_an_empty_cell_is_missing(explored):
    point = alteration.open_row(explored["table"], ["", "9", "red"])
    assert point.observations.isnan().tolist() == [[True, False, False]]
    assert len(alteration.read(explored["table"], point).codes) == 1


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["1", "2"], "row: expected 3 cells, got 2"),
        (["heavy", "2", "red"], "expected a number in column 'weight', got 'heavy'"),
        (["1", "2", "blue"], "expected one of green, red in column 'colour', got 'blue'"),
    ],
)
def test_bad_rows_are_one_line(explored, cells, said):
    with pytest.raises(ValueError, match=said):
        alteration.open_row(explored["table"], cells)


def test_bad_pictures_are_one_line(explored, tmp_path):
    (tmp_path / "none.png").write_text("no picture")
    with pytest.raises(ValueError, match=r"none\.png"):
        alteration.open_picture(explored["pictures"], tmp_path / "none.png")


def test_a_model_without_factors_has_no_code(explored, picture):
    with pytest.raises(ValueError, match="a code needs factors"):
        alteration.read(explored["plain"], picture[0])
