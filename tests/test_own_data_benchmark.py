"""examples/benchmarks/own_data.py hides what it should, measures what it says, and resumes."""

import csv
import json
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.scripts import imported
from tests.small_runs import TINY, command

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "examples" / "benchmarks"
SCRIPTS = ["own_data", "own_data_baselines", "own_data_runs", "own_data_sets", "own_data_tables"]

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def b():
    with imported(BENCHMARKS, SCRIPTS) as modules:
        yield modules


@pytest.fixture
def table(b):
    """A table of 90 rows: three classes far apart in the first two columns, then noise."""
    rng = np.random.default_rng(0)
    kind = np.repeat([0, 1, 2], 30)
    x = rng.normal(size=(90, 3))
    x[:, 0] += 8 * kind
    x[:, 1] -= 8 * (kind == 1)
    return b.own_data_sets.Data(x, kind[:, None], ("kind",), (("a", "b", "c"),), ("u", "v", "w"))


@pytest.fixture
def pictures(b):
    """16×16 greys of six people: light or dark, and a bar or none."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (60, 2))
    x = rng.integers(0, 60, (60, 16, 16)) + 150 * labels[:, :1, None]
    x[labels[:, 1] == 1, 4:8] += 40
    names, values = ("light", "bar"), (("dark", "light"), ("none", "bar"))
    return b.own_data_sets.Data(x.astype(np.uint8), labels, names, values, groups=np.arange(60) % 6)


@pytest.fixture
def tiny_trainings(b, monkeypatch):
    """Trainings of the benchmark in this process and of a few steps; the commands that it gives."""
    given = []

    def run(arguments, **_):
        given.append(arguments[3:])
        by_steps = arguments[3 : arguments.index("--max-minutes")]
        tiny = [text for pair in TINY.items() for text in pair]
        status, _, err = command(*by_steps, *tiny)
        if status:
            raise subprocess.CalledProcessError(status, arguments, stderr=err)

    only_here = SimpleNamespace(run=run)  # scikit-learn starts processes, too
    monkeypatch.setattr(b.own_data_runs, "subprocess", only_here)
    judge = partial(b.own_data_runs.train_judge, iterations=200)
    monkeypatch.setattr(b.own_data_runs, "train_judge", judge)
    return given


@pytest.fixture
def small_sets(b, monkeypatch, table, pictures):
    """Two sets in the place of all others, and one whose source is missing."""

    def missing(_):
        raise FileNotFoundError("needs a file")

    own = b.own_data_sets.OwnSet
    sets = (
        own("flowers", lambda _: table, b.own_data_sets.TASKS, choosing=True),
        own("people", lambda _: pictures, ("labels",), choosing=False),
        own("lost", missing, ("labels",), choosing=False),
    )
    monkeypatch.setattr(b.own_data, "SETS", sets)
    monkeypatch.setitem(b.own_data.SETTINGS, "labels", ("20",))
    return sets


def test_a_table_is_written_with_words_and_gaps(b, table, tmp_path):
    table.x[0] = np.nan, 2.5, 1
    data = b.own_data_sets.replace(table, words={2: ("no", "yes")}, labels=table.labels - 1)
    data.x[1:, 2] = 0
    file = b.own_data_sets.write(data, tmp_path / "data", labelled=True, folder=False)
    with file.open(newline="") as lines:
        header, first, second, *_ = csv.reader(lines)
    assert header == ["u", "v", "w", "label:kind"]
    assert first == ["", "2.5", "yes", "-1"]
    assert [float(field) for field in second[:2]] == data.x[1, :2].tolist() and second[2:] == ["no", "-1"]


def test_a_folder_has_words_and_hides_unknown_labels(b, pictures, tmp_path):
    pictures.labels[0, 1] = -1
    b.own_data_sets.write(pictures, tmp_path / "data", labelled=True, folder=True)
    with (tmp_path / "data" / "labels.csv").open(newline="") as lines:
        header, first, second, *_ = csv.reader(lines)
    assert header == ["file", "light", "bar"]
    assert first[1:] == [("dark", "light")[pictures.labels[0, 0]], ""]
    assert np.array_equal(np.asarray(Image.open(tmp_path / "data" / second[0])), pictures.x[1])


def test_no_person_is_both_trained_on_and_tested(b, pictures):
    train, test = pictures.split(np.random.default_rng(0))
    assert len(train) == 50 and len(test) == 10
    assert not set(train.groups) & set(test.groups)


def test_as_many_labels_are_left_of_each_value(b, pictures):
    known = b.own_data.with_few(pictures, 7, np.random.default_rng(0)).labels
    for column, truth in zip(known.T, pictures.labels.T, strict=True):
        assert np.bincount(column[column >= 0]).tolist() == [7, 7]
        assert np.array_equal(column[column >= 0], truth[column >= 0])


@pytest.mark.parametrize(
    ("method", "count"),
    [
        *((method, 3) for method in ("logistic regression", "SVC", "random forest", "label spreading")),
        ("gradient boosting", 10),
    ],
)
def test_classifiers_learn_from_the_known_labels(b, table, method, count):
    known = b.own_data.with_few(table, count, np.random.default_rng(0))
    found = b.own_data_baselines.predictions(method, known, table, 0)
    assert (found == table.labels).mean() > 0.9


def test_missing_entries_and_words_become_numbers(b, table):
    table.x[:, 2] = np.arange(90) % 2
    table.x[0, 0] = np.nan
    data = b.own_data_sets.replace(table, words={2: ("no", "yes")})
    x = b.own_data_baselines.features(data)(data)
    assert x.shape == (90, 4) and np.isfinite(x).all()
    assert x[0, 0] == pytest.approx(0) and x[:2, 2:].tolist() == [[1, 0], [0, 1]]


def test_rows_are_run_once_and_make_the_tables(b, small_sets, tiny_trainings, tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    arguments = ["--rows", str(file), "--seeds", "1", "--minutes", "5"]
    b.own_data.main(arguments)
    assert "lost is left out: needs a file" in capsys.readouterr().out
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(records) == (5 + 2) + (6 + 1) + (3 + 1) + (5 + 1)  # boosting learns no pictures
    by_key = {(r["set"], r["task"], r["method"]): r for r in records}
    assert by_key["flowers", "clusters", "k-means"]["figures"]["ari"] > 0.9
    assert by_key["flowers", "outliers", "LOF"]["figures"]["auroc"] > 0.9
    ours = by_key["people", "labels", "pyro_fmvae"]
    assert {"judge", "flipped", "kept"} == set(ours["edits"]["bar"])
    assert ours["edits"]["light"]["judge"] > 0.9
    assert ours["tested"] == 10 and set(ours["bound"]) == {"best", "kept"}
    assert [r["minutes"] for r in records if r["method"].startswith("pyro_fmvae")] == [5.0] * 5
    for given, labelled in zip(tiny_trainings, [False, False, True, False, True], strict=True):
        options = [part for part in given if part.startswith("--")]
        wanted = ["--data", "--out", "--seed", *(["--labels"] if labelled else []), "--max-minutes"]
        assert [option for option in options if option != "--factors"] == wanted
    b.own_data.main(arguments)
    assert len(file.read_text().splitlines()) == len(records)
    capsys.readouterr()
    b.own_data.main([*arguments, "--table"])
    printed = capsys.readouterr().out
    shown = next(line for line in printed.splitlines() if line.startswith("| people, light, 20 |"))
    light = ours["figures"]["light"]
    assert shown.endswith(f"|  | {light['accuracy']:.3f} ({light['balanced']:.3f}) | 1 |")
    alone, vote = (by_key["flowers", "labels", "pyro_fmvae"][name]["kind"] for name in ("alone", "figures"))
    shown = next(line for line in printed.splitlines() if line.startswith("| flowers, kind, 20 |"))
    cells = [f"{one['accuracy']:.3f} ({one['balanced']:.3f})" for one in (alone, vote)]
    assert shown.endswith(f"| {' | '.join(cells)} | 1 |")


def test_a_failed_training_is_a_row_that_misses_the_aims(
    b, small_sets, tiny_trainings, table, tmp_path, capsys
):
    table.x[3, 1] = np.inf
    own, row = small_sets[0], b.own_data.Row("flowers", "clusters", "pyro_fmvae", "", 0, 5.0)
    failed = b.own_data.measure(own, row, table)
    assert (
        failed["figures"] is None and "data.csv, row 4: expected a finite number in column" in failed["error"]
    )
    assert str(tmp_path.parent) not in failed["error"]
    good = failed | {"method": "k-means", "figures": {"ari": 0.5, "nmi": 0.5}}
    printed = b.own_data_tables.tables([failed, good])
    assert "| failed |" in printed
    assert "| clusters: at least the ARI of k-means, on 9 of 10 sets | 0 of 1 | 0 of 1 |  |" in printed


def test_the_mixture_alone_predicts_without_its_regression_and_forest(b, table):
    predictors = {"label_0": "a vote"}
    described = SimpleNamespace(preprocessing=SimpleNamespace(event_shape=(3,)))
    trained = object.__new__(b.own_data_runs.Trained)
    trained.run = SimpleNamespace(
        model=SimpleNamespace(predictors=predictors),
        run=SimpleNamespace(recipe=described),
        predict=lambda x: {"kind": np.full(len(x), len(predictors))},
    )
    assert (trained.predictions(table) == 1).all() and (trained.predictions_alone(table) == 0).all()


def test_aims_are_counted_by_sets_and_halves(b):
    def record(own, task, method, figures, choosing, setting="", **more):
        common = {"set": own, "task": task, "method": method, "setting": setting, "choosing": choosing}
        return common | {"seed": 0, "properties": ["kind"], "figures": figures, **more}

    ours = "pyro_fmvae"
    records = [
        record("a", "clusters", "k-means", {"ari": 0.5}, True),
        record("a", "clusters", "Gaussian mixture, full", {"ari": 0.8}, True),
        record("a", "clusters", ours, {"ari": 0.6}, True, bound={"best": -10.0, "kept": -10.04}),
        record("b", "clusters", "k-means", {"ari": 0.5}, False),
        record("b", "clusters", ours, {"ari": 0.4}, False, bound={"best": -1000.0, "kept": -1000.6}),
        record("a", "outliers", "LOF", {"auroc": 0.9}, True),
        record("a", "outliers", "LOF", {"auroc": 0.1}, True, seed=1),  # a seed that ours lack
        record("a", "outliers", ours, {"nearest": 0.85, "elbo": 0.95}, True),
    ]
    for method, accuracy in (("majority", 0.3), ("SVC", 0.9), (ours, 0.89)):
        measured = {"kind": {"accuracy": accuracy, "balanced": accuracy}}
        alone = {"alone": {"kind": {"accuracy": 0.7, "balanced": 0.6}}} if method == ours else {}
        records.append(record("a", "labels", method, measured, True, setting="20", **alone))
    for one in records:
        if one["task"] == "clusters":
            one["figures"]["nmi"] = 0.0
    printed = b.own_data_tables.tables(records)
    assert "| a, kind, 20 | 0.300 (0.300) |" in printed
    assert "| 0.700 (0.600) | 0.890 (0.890) | 1 |" in printed
    found = printed.splitlines()[-7:]
    columns = [line.split(" | ")[1:] for line in found]
    assert [column[0] for column in columns] == [
        "1 of 2", "0 of 2", "1 of 1", "1 of 1", "0 of 1", "0.050 on 1", "1 of 2",
    ]  # fmt: skip
    assert columns[0][1:] == ["1 of 1", "0 of 1 |"]


def test_the_page_shows_what_the_rows_say(b):
    lines = (ROOT / "docs" / "rows" / "own-data" / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    page = (ROOT / "docs" / "notes" / "2026-11-28-own-data.md").read_text(encoding="utf-8")
    assert b.own_data_tables.tables([json.loads(line) for line in lines]) in page
    names = {own.name for own in b.own_data_sets.SETS}
    sets = page[page.index("## Sets") : page.index("## Results")]
    assert all(name in sets for name in names)
