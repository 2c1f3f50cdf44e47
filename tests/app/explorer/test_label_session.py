"""Labels by click: kept, learnt from, counted honestly, and taken back."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from pyro_fmvae.app.explorer.exploration import Exploration
from pyro_fmvae.app.explorer.label_session import LabelSession, Tally
from pyro_fmvae.app.runs.trained import load
from pyro_fmvae.learn import Budget
from tests.small_runs import make_smaller, train_all

pytestmark = pytest.mark.usefixtures("single_precision")
SHORT = Budget(iterations=3)


@pytest.fixture
def explore(folders, tmp_path, monkeypatch):
    """A copy of a run that is explored."""
    make_smaller(monkeypatch)

    def start(kind):
        return Exploration(load(shutil.copytree(folders[kind], tmp_path / kind, dirs_exist_ok=True), "cpu"))

    return start


def side_of(explored, row):
    """0 for a bright right half, as far as the picture shows it."""
    x = explored.points.select(np.array([row])).observations[0]
    return int(x[:, :4].mean() > x[:, 4:].mean())


def label(session, name, rows, value_of):
    for row in rows:
        session.give(name, int(row), value_of(session.explored, int(row)))


def test_a_further_property_is_learnt_from_a_few_labels(explore):
    """Pictures with a bright half on either side are told apart after eight labels."""
    session = LabelSession(explore("pictures"))
    session.begin("bright", ["right half", "left half"])
    assert session.probabilities("bright") is None
    label(session, "bright", session.next("bright", 8), side_of)
    session.refine(Budget(iterations=20))
    explored = session.explored
    truth = [side_of(explored, row) for row in range(len(explored.points))]
    assert (session.probabilities("bright").argmax(1) == truth).mean() > 0.9
    assert session.probabilities("side").shape == (len(truth), 2)


def test_the_runs_own_model_and_folder_stay(explore, folders):
    explored = explore("pictures")
    before = {name: value.clone() for name, value in explored.trained.model.state_dict().items()}
    session = LabelSession(explored)
    session.begin("bright", ["no", "yes"])
    label(session, "bright", session.next("bright", 6), side_of)
    session.refine(SHORT)
    after = explored.trained.model.state_dict()
    assert all((after[name] == value).all() for name, value in before.items())
    kept = {path.name for path in explored.run.folder.iterdir()}
    assert kept == {path.name for path in folders["pictures"].iterdir()} | {"labels.csv"}


def test_guesses_count_if_they_were_made_before_the_label_was_used(explore):
    session = LabelSession(explore("pictures"))
    session.begin("bright", ["no", "yes"])
    first, second = session.next("bright", 8), 4
    label(session, "bright", first, side_of)
    assert session.properties["bright"].tally == Tally(0, 0)
    session.refine(Budget(iterations=20))
    rows = session.next("bright", second)
    guessed = session.probabilities("bright")[rows].argmax(1)
    label(session, "bright", rows, side_of)
    right = sum(
        int(guess == side_of(session.explored, row)) for guess, row in zip(guessed, rows, strict=True)
    )
    assert session.properties["bright"].tally == Tally(right, second)
    assert session.properties["bright"].learnt == len(first)
    assert session.take_back("bright") == rows[-1]
    assert session.properties["bright"].tally.of == second - 1


def test_labels_are_kept_and_read_again(explore):
    session = LabelSession(explore("pictures"))
    session.begin("bright", ["no", "yes"])
    rows = session.next("bright", 3)
    label(session, "bright", rows, lambda *_: 1)
    text = (session.explored.run.folder / "labels.csv").read_text()
    names = session.explored.row_names.values
    assert text.splitlines()[0] == "file,bright"
    assert sorted(text.splitlines()[1:]) == sorted(f"{names[row]},yes" for row in rows)
    again = LabelSession(explore("pictures"))
    assert again.properties["bright"].given == dict.fromkeys(rows, 0)
    assert again.properties["bright"].values == ["yes"]
    again.begin("bright", ["no"])
    assert again.properties["bright"].values == ["yes", "no"]


def test_a_folder_of_pictures_takes_the_file(explore, folders, tmp_path):
    """What was labelled by click trains a run on these pictures."""
    session = LabelSession(explore("pictures"))
    session.begin("bright", ["no", "yes"])
    label(session, "bright", range(6), side_of)
    photos = Path(shutil.copytree(session.explored.run.config.data, tmp_path / "photos"))
    shutil.copy(session.explored.run.folder / "labels.csv", photos)
    options = {"labels": 1, "factors": 2, "network": "mlp"}
    trained = train_all(tmp_path / "runs", {"photos": photos}, {"photos": options})["photos"]
    assert Exploration(load(trained, "cpu")).run.recipe.label_names == ("bright",)


def test_a_trained_property_goes_on_from_its_own_labels(explore):
    explored = explore("pictures")
    session = LabelSession(explored)
    assert list(session.properties) == ["side"] and session.properties["side"].values == ["left", "right"]
    unlabelled = [row for row in session.next("side", 40) if explored.points.labels[row, 0] < 0]
    assert len(unlabelled) > 5 and not set(session.next("side", 5)) & {
        row for row in range(len(explored.points)) if explored.points.labels[row, 0] >= 0
    }
    session.give("side", unlabelled[0], 1)
    session.refine(SHORT)
    assert session.properties["side"].tally.of == 1


def test_a_table_is_labelled_by_its_rows(explore):
    explored = explore("table")
    session = LabelSession(explored)
    session.begin("fruit", ["lime", "apple"])
    numbers = explored.points.observations[:, 0]
    label(session, "fruit", session.next("fruit", 6), lambda _, row: int(numbers[row] > 0))
    session.refine(Budget(iterations=20))
    truth = (numbers > 0).long().numpy()
    assert (session.probabilities("fruit").argmax(1) == truth).mean() > 0.95
    header, *rows = (explored.run.folder / "labels.csv").read_text().splitlines()
    assert header == "row,fruit" and len(rows) == 6


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("", ["a", "b"], "expected names of 1 to 60 characters"),
        ("hat", ["yes"], "two names or more"),
        ("hat", ["yes", "yes"], "two names or more"),
        ("hat", ["yes", "-1"], "got '-1'"),
        ("side", ["up"], "'side' was trained on, its values are left, right"),
        ("h\x1bat", ["a", "b"], "printable"),
    ],
)
def test_properties_that_cannot_be_begun(explore, name, values, said):
    session = LabelSession(explore("pictures"))
    with pytest.raises(ValueError, match=said):
        session.begin(name, values)
    assert list(session.properties) == ["side"]


def test_refining_needs_labels_of_two_values(explore):
    session = LabelSession(explore("pictures"))
    with pytest.raises(ValueError, match="expected a label, none was given yet"):
        session.refine(SHORT)
    session.begin("bright", ["no", "yes"])
    session.give("bright", 0, 1)
    with pytest.raises(ValueError, match="two different values of 'bright'"):
        session.refine(SHORT)


def test_a_folder_that_is_gone_is_one_line(explore):
    session = LabelSession(explore("pictures"))
    session.begin("bright", ["no", "yes"])
    shutil.rmtree(session.explored.run.folder)
    with pytest.raises(ValueError, match="no longer exists, so nothing can be saved in it"):
        session.give("bright", 0, 1)
    assert session.properties["bright"].given == {}


def test_a_model_without_factors_says_so(explore):
    with pytest.raises(ValueError, match="labelling needs factors"):
        LabelSession(explore("plain"))


def test_a_damaged_file_of_labels_is_one_line(explore):
    explored = explore("pictures")
    (explored.run.folder / "labels.csv").write_text("file,bright\nabsent.png,yes\n")
    with pytest.raises(ValueError, match=r"no image 'absent\.png' in the folder"):
        LabelSession(explored)
