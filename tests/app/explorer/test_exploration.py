"""A run and its training points as the page shows them; clusters and outliers among them."""

import html
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pyro_fmvae.app.explorer import serve
from pyro_fmvae.app.explorer.exploration import ENLARGED, Exploration, rank, scores_of
from pyro_fmvae.app.explorer.factor_views import DRAWN, clusters, draws_of, example, factor_view, notes_of
from pyro_fmvae.app.explorer.generation import movable
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.app.runs.trained import load
from pyro_fmvae.files.checkpoint import alone
from tests.app.explorer.explored_runs import PICTURES, POISON, SIDE

pytestmark = pytest.mark.usefixtures("single_precision")


def test_points_have_the_names_of_their_files(explored):
    """The label of each file is that of the row that has its name."""
    run = explored["pictures"]
    for name, (label,) in zip(run.row_names.values, run.points.labels.tolist(), strict=True):
        number = int(name.removesuffix(".png"))
        assert label == (-1 if number % 3 == 0 else (1, 0)[number % 2])
    assert len(set(run.row_names.values)) == len(run.points) < PICTURES


def test_rows_of_a_table_have_their_places_in_the_file(explored):
    run = explored["table"]
    lines = Path(run.run.config.data).read_text().splitlines()[1:]
    _, cells = run.table(run.points.observations)
    for name, (weight, length, colour) in zip(run.row_names.values, cells, strict=True):
        expected = lines[int(name)].split(",")
        assert (float(weight), float(length)) == pytest.approx([float(one) for one in expected[:2]], rel=1e-3)
        assert colour == expected[2]


def test_small_pictures_are_enlarged_without_blur(explored):
    run = explored["pictures"]
    (picture,) = run.pictures(run.points.observations[:1])
    times = ENLARGED // SIDE
    assert picture.shape == (SIDE * times, SIDE * times) and picture.dtype == np.uint8
    assert (picture[:times, :times] == picture[0, 0]).all()


def test_without_its_data_a_run_says_so(folders, tmp_path):
    folder = Path(shutil.copytree(folders["pictures"], tmp_path / "run"))
    config = json.loads((folder / "config.json").read_text()) | {"data": str(tmp_path / "gone")}
    (folder / "config.json").write_text(json.dumps(config))
    explored = Exploration(load(folder, "cpu"))
    with pytest.raises(ValueError, match=r"no training points here: data: .*gone does not exist"):
        _ = explored.points


def test_clusters_come_by_share_with_members_of_theirs(explored):
    run = explored["pictures"]
    found = clusters(run, 1)
    assert [one.share for one in found] == sorted((one.share for one in found), reverse=True)
    assert sum(one.share for one in found) == pytest.approx(1)
    for one in found:
        assert (run.encoded["codes"][one.rows, 1] == one.component).all()
        assert len(draws_of(run, 1, one.component)) == DRAWN


def test_components_of_a_table_are_shown_with_the_clusters_that_they_make_up(explored):
    table, pictures = explored["table"], explored["pictures"]
    last = len(table.run.recipe.factors) - 1
    found = clusters(table, last)
    for one, note in zip(found, notes_of(table, last, found), strict=True):
        sure = one.rows[table.encoded["cluster_probability"][one.rows] > 0.99]
        assert {note} >= {
            f"{one.name}: {100 * one.share:.1f} %, cluster {k}" for k in table.encoded["cluster"][sure]
        }
    assert not any("cluster" in note for note in notes_of(pictures, 1, clusters(pictures, 1)))


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("kind", ["pictures", "table"])
def test_views_of_a_factor_differ_in_its_component_alone(explored, kind, seed):
    run = explored[kind]
    point = example(run, seed)
    for factor in movable(run):
        view = factor_view(run, point, factor)
        assert view.components == sorted(one.component for one in clusters(run, factor))
        assert len(view.x) == len(view.notes) == len(view.components)
        for component, x, note in zip(view.components, view.x, view.notes, strict=True):
            name = dict((k, text) for text, k in run.choices(factor))[component]
            assert note.startswith(f"{run.run.recipe.factor_names[factor]}: {name} (") and note.endswith("%)")
            if kind == "pictures":
                model, size = run.trained.model, run.trained.model.dim
                z = torch.from_numpy(point.z).clone()
                group = next(group for group in model.factor_groups() if factor in group.factors)
                mean = group.locations()[group.factors.index(factor)][component]
                z[0, factor * size : (factor + 1) * size] = mean
                torch.testing.assert_close(x, model.decode(z)[0])


def test_a_factor_and_its_components_are_named_together(folders, tmp_path):
    explored = Exploration(load(shutil.copytree(folders["pictures"], tmp_path / "run"), "cpu"))
    explored.name_factor(1, "stripes", [0, 1, 2], "none, 1, many")
    assert explored.run.recipe.factor_names == ("side", "stripes")
    assert explored.choices(1) == [("none", 0), ("1", 1), ("many", 2)]
    assert factor_view(explored, example(explored), 1).notes[0].startswith("stripes: ")
    assert Run.open(explored.run.folder).recipe.factor_names == ("side", "stripes")
    assert explored.trained.sample(2, codes={"stripes": "many"})["codes"][:, 1].tolist() == [2, 2]
    explored.name_factor(1, "stripes", [0, 1, 2], "many, none")  # they change places
    assert explored.choices(1) == [("many", 0), ("none", 1), ("2", 2)]
    kept = (explored.run.folder / "names.json").read_text()
    for own, values, message in (
        ("side", "", "name: another factor is called 'side' already"),
        ("stripes", "a, a", "name: another component of the factor is called 'a' already"),
        ("stripes", "a, b, c, d", "values: expected at most 3 names, got 4"),
    ):
        with pytest.raises(ValueError, match=message):
            explored.name_factor(1, own, [0, 1, 2], values)
    with pytest.raises(ValueError, match="name: factor 0 has that of its label, 'side'"):
        explored.name_factor(0, "half", [0, 1], "")
    assert (explored.run.folder / "names.json").read_text() == kept
    explored.name_factor(1, "", [0, 1, 2], "")
    assert explored.run.recipe.factor_names == ("side", "factor 1")
    assert json.loads((explored.run.folder / "names.json").read_text()) == {}


def test_a_new_name_is_everywhere_and_kept(folders, tmp_path):
    explored = Exploration(load(shutil.copytree(folders["pictures"], tmp_path / "run"), "cpu"))
    explored.rename(1, 2, "striped")
    assert ("striped", 2) in explored.choices(1)
    assert Run.open(explored.run.folder).recipe.given_names == {1: {2: "striped"}}
    assert explored.trained.sample(2, codes={1: "striped"})["codes"][:, 1].tolist() == [2, 2]
    shutil.rmtree(explored.run.folder)
    with pytest.raises(ValueError, match="no longer exists"):
        explored.rename(1, 1, "dotted")


@pytest.mark.parametrize(
    ("kind", "first"), [("pictures", "nearest"), ("table", "iwae"), ("plain", "nearest")]
)
def test_outliers_have_the_scores_of_the_training_points(explored, kind, first):
    found = scores_of(explored[kind])
    assert next(iter(found)) == first
    assert {len(values) for values in found.values()} == {len(explored[kind].points)}
    ranked = rank(found[first], 5)
    assert [one.score for one in ranked] == sorted(found[first].tolist(), reverse=True)[:5]
    assert [found[first][one.row] for one in ranked] == [one.score for one in ranked]


def test_one_server_at_a_time_keeps_labels_of_a_run(explored):
    pytest.importorskip("gradio")
    one = explored["pictures"]
    message = r"config\.json: another process is exploring this run"
    with alone(one.run.folder / "config.json", "exploring"), pytest.raises(ValueError, match=message):
        serve(one, port=0)


TEXTS = """
import json, sys
from pyro_fmvae.app.explorer.exploration import Exploration
from pyro_fmvae.app.runs.trained import load
from pyro_fmvae.app.explorer.layout import layout

parts = layout(Exploration(load(sys.argv[1], "cpu"))).config["components"]
print(json.dumps([str(one["props"].get("value")) for one in parts if one["type"] in ("markdown", "html")]))
"""


def test_no_text_of_a_run_or_its_data_is_markdown(folders, tmp_path):
    """In a process of its own: gradio leaves an event loop open."""
    pytest.importorskip("gradio")
    folder = Path(shutil.copytree(folders["poisoned"], tmp_path / POISON.replace("/", "\\")))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"data": str(tmp_path / POISON)}))
    done = subprocess.run([sys.executable, "-c", TEXTS, folder], capture_output=True, text=True, check=True)
    texts = json.loads(done.stdout)
    shown = [html.unescape(text) for text in texts]
    assert any(folder.name in text for text in shown)
    assert any(POISON.rpartition("/")[2] in text for text in shown)
    assert not any(mark in text for text in texts for mark in ("![", "](", "<img", "$"))
