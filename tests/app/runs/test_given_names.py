"""Names of components: kept in the run's folder, and used by what reads and writes codes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import pyro_fmvae
from pyro_fmvae.app.runs.factor_names import NAMES, component_number, factor_number, rename_all, values_of
from pyro_fmvae.app.runs.run import Run
from tests.small_runs import command, succeed, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "pictures"
    status, _, err = train(folder, files["binary"], labels=0.5, factors="2,2,3")
    assert status == 0, err
    return folder


def rename(run, factor, component, name):
    return rename_all(run, factor, None, {component: name})


@pytest.fixture
def run(trained, tmp_path):
    return Run.open(Path(shutil.copytree(trained, tmp_path / "pictures")))


def test_a_name_is_kept_and_a_number_stays_valid(run):
    renamed = rename(run, 2, 1, " striped ")
    assert Run.open(run.folder).recipe.given_names == {2: {1: "striped"}} == renamed.recipe.given_names
    assert renamed.recipe.component_names(2) == ("0", "striped")
    assert [component_number("codes", 2, text, renamed) for text in ("striped", "1", "2")] == [1, 1, 2]
    assert values_of(2, np.arange(3), renamed).tolist() == ["0", "striped", "2"]


def test_an_empty_name_takes_it_away(run):
    renamed = rename(rename(run, 2, 1, "striped"), 2, 1, "")
    assert renamed.recipe.component_names(2) == () and Run.open(run.folder).recipe.given_names == {}


def test_a_named_factor_is_known_by_its_name_and_by_its_number(run):
    renamed = rename_all(run, 2, " texture ", {0: "plain", 2: "striped"})
    assert renamed.recipe.factor_names[2] == Run.open(run.folder).recipe.factor_names[2] == "texture"
    assert json.loads((run.folder / NAMES).read_text()) == {
        "2": {"0": "plain", "2": "striped"},
        "factors": {"2": "texture"},
    }
    assert [factor_number("factors", text, renamed) for text in ("texture", "2")] == [2, 2]
    assert rename_all(renamed, 2, None, {}).recipe.factor_names[2] == "texture"
    with pytest.raises(ValueError, match=r"expected a factor, 0..2 or one of .*, texture, got 'hair'"):
        factor_number("factors", "hair", renamed)
    with pytest.raises(ValueError, match=r"factor: expected 0..2, got 3"):
        rename_all(renamed, 3, "x", {})
    (run.folder / NAMES).write_text('{"factors": {"7": "x"}}')
    with pytest.raises(ValueError, match=r"factor: expected 0..2, got 7"):
        Run.open(run.folder)


def test_a_second_explorer_does_not_lose_the_first_ones_names(run):
    rename(run, 2, 1, "striped")
    assert rename(run, 2, 0, "plain").recipe.given_names == {2: {1: "striped", 0: "plain"}}


@pytest.mark.parametrize(
    ("factor", "component", "name", "said"),
    [
        (3, 0, "x", "factor: expected 0..2, got 3"),
        (2, 3, "x", "component: expected 0..2 of factor 2, got 3"),
        (2, 0, "a,b", "without , = \\*"),
        (2, 0, "*", "without"),
        (2, 0, "x" * 61, "1 to 60 characters"),
        (2, 0, "1", "no number, which would be another component's"),
        (2, 0, "a\x1bb", "printable"),
        (2, 0, "taken", "another component of the factor is called 'taken' already"),
    ],
)
def test_bad_names_are_refused_and_nothing_changes(run, factor, component, name, said):
    before = rename(run, 2, 2, "taken")
    with pytest.raises(ValueError, match=said):
        rename(before, factor, component, name)
    assert Run.open(run.folder).recipe.given_names == {2: {2: "taken"}}


@pytest.mark.parametrize("content", ["[]", '{"2": {"1": 3}}', '{"9": {"0": "x"}}', '{"a": {}}', "{"])
def test_a_damaged_file_is_one_line(run, content):
    (run.folder / NAMES).write_text(content)
    with pytest.raises(ValueError, match=f"{NAMES} is damaged"):
        Run.open(run.folder)


def test_commands_take_and_give_the_names(run, files, tmp_path):
    rename(rename(run, 2, 1, "striped"), 0, 1, "bright")
    succeed("sample", run.folder, "--out", tmp_path / "x.npz", "--codes", "bright,*,striped")
    succeed("encode", run.folder, "--data", files["binary"], "--out", tmp_path / "codes.csv")
    header, *rows = (tmp_path / "codes.csv").read_text().splitlines()
    column = header.split(",").index("factor 2 value")
    assert {row.split(",")[column] for row in rows} <= {"0", "striped", "2"}
    found = json.loads(succeed("evaluate", run.folder))
    assert found["classification"]["side"]["values"] == ["0", "bright"]
    succeed("report", run.folder)
    assert "bright: " in (run.folder / "report.html").read_text()
    status, _, err = command("sample", run.folder, "--out", tmp_path / "x.npz", "--codes", "*,*,dotted")
    assert status == 2 and "or one of 0, striped for factor 2, got 'dotted'" in err


def test_predictions_have_the_names(run, files):
    rename(run, 0, 1, "bright")
    with np.load(files["binary"]) as archive:
        found = pyro_fmvae.load(run.folder, "cpu").predict(archive["x"])
    assert set(found["side"]) <= {"0", "bright"}
