"""Draws that are held, moved and saved."""

import csv
import io
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from PIL import Image

from pyro_fmvae.app.explorer import generation
from tests.app.explorer.explored_runs import SIDE

pytestmark = pytest.mark.usefixtures("single_precision")


def test_draws_have_the_components_that_were_chosen_and_the_numbers_of_sample(explored):
    run = explored["pictures"]
    drawn = generation.draw(run, 5, (1, -1), seed=3)
    expected = run.trained.sample(5, codes=[1, -1], seed=3)
    assert (drawn.codes[:, 0] == 1).all() and drawn.x.shape == (5, SIDE, SIDE)
    np.testing.assert_array_equal(drawn.codes, expected["codes"])
    np.testing.assert_array_equal(drawn.z, expected["z"])
    assert generation.described(run, drawn.codes[0])["side"] == "right"


@pytest.mark.parametrize("kind", ["pictures", "table"])
def test_a_draw_lies_where_its_place_says(explored, kind):
    """Moved to where it is, it stays; moved along one direction, only that place changes."""
    run = explored[kind]
    drawn = generation.draw(run, 1, [-1] * len(run.run.recipe.factors), seed=1)
    (factor, *_) = generation.movable(run)
    at = generation.place(run, drawn, factor)
    same = generation.move(run, drawn, factor, {})
    np.testing.assert_allclose(same.z, drawn.z, rtol=1e-5, atol=1e-5)
    (strongest, *_) = generation.directions(run, drawn, factor)
    moved = generation.move(run, drawn, factor, {strongest: at[strongest] + 1.5})
    expected = [value + 1.5 * (k == strongest) for k, value in enumerate(at)]
    np.testing.assert_allclose(generation.place(run, moved, factor), expected, atol=1e-4)
    assert (moved.x - same.x).abs().max() > 1e-4


def test_the_strongest_direction_changes_most(explored):
    run = explored["pictures"]
    drawn = generation.draw(run, 1, (0, 1), seed=2)
    order = generation.directions(run, drawn, 0)
    at = generation.place(run, drawn, 0)
    mean = {k: 0.0 for k in range(len(at))}
    changes = [
        torch.dist(*(generation.move(run, drawn, 0, {**mean, k: s}).x for s in (-1.0, 1.0))) for k in order
    ]
    assert changes == sorted(changes, reverse=True)


def test_a_mixture_of_rows_moves_within_its_component_alone(explored):
    assert generation.movable(explored["table"]) == [0]
    assert generation.movable(explored["pictures"]) == [0, 1]
    assert generation.movable(explored["plain"]) == []


@pytest.mark.parametrize("kind", ["pictures", "table", "plain"])
def test_saved_draws_have_arrays_codes_and_pictures(explored, tmp_path, kind):
    run = explored[kind]
    drawn = generation.draw(run, 3, [-1] * len(run.run.recipe.factors), seed=4)
    with ZipFile(generation.save(run, drawn, tmp_path / "draws.zip")) as archive:
        with np.load(io.BytesIO(archive.read("draws.npz"))) as arrays:
            assert arrays["x"].shape == (3, *run.run.recipe.preprocessing.event_shape)
            np.testing.assert_array_equal(arrays["codes"], drawn.codes)
            np.testing.assert_array_equal(arrays["z"], drawn.z)
        header, *rows = csv.reader(io.StringIO(archive.read("draws.csv").decode()))
        if kind == "table":
            assert header == ["draw", "factor 0", "weight", "length", "colour"]
            assert {row[-1] for row in rows} <= {"green", "red"}
        else:
            with archive.open("2.png") as file:
                assert Image.open(file).size == (SIDE, SIDE)
        for number, row in enumerate(rows):
            names = list(generation.described(run, drawn.codes[number]).values())
            assert row[: len(names) + 1] == [str(number), *names]
