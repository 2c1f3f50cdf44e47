"""Training from Python gives the run that the command line gives, of data that Python holds, too."""

import json
import shutil
import threading

import numpy as np
import pytest
import torch
import yaml

import pyro_fmvae
from pyro_fmvae.app.runs import report
from tests.small_runs import SIZE, TINY, metrics, succeed, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision", "no_figures")

TINY_OPTIONS = {flag.strip("-").replace("-", "_"): yaml.safe_load(str(value)) for flag, value in TINY.items()}
KINDS = np.array(["plain", "striped"])


@pytest.fixture
def no_figures(monkeypatch):
    monkeypatch.setattr(report, "draw", lambda *_: None)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def table(files):
    """Columns [60, 3], and a label 0 or 1 that shows in them."""
    with np.load(files["table"]) as archive:
        return archive["x"], archive["labels"]


class Series(np.ndarray):
    """A column with a name."""

    name = None


class Frame:
    """A data frame, as far as the library looks at one."""

    def __init__(self, **columns):
        self.contents = columns
        self.columns = list(columns)

    def __getitem__(self, name):
        return self.contents[name]


def test_data_on_disk_give_the_run_of_the_command_line(files, tmp_path):
    run = pyro_fmvae.train(
        files["binary"], 0.5, tmp_path / "here", factors=(2, 2, 3), **TINY_OPTIONS | {"eager": True}
    )
    assert train(tmp_path / "there", files["binary"], labels=0.5, factors="2,2,3")[0] == 0
    assert metrics(tmp_path / "here") == metrics(tmp_path / "there")
    assert run.run.config == pyro_fmvae.load(tmp_path / "there").run.config


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_pictures_in_memory_and_named_values(files, tmp_path, kind):
    with np.load(files["binary"]) as archive:
        x, side = archive["x"], archive["labels"][:, 0]
    labels = KINDS[side].astype(object)
    labels[:20] = None
    data = torch.from_numpy(x) if kind == "tensor" else x
    run = pyro_fmvae.train(data, labels, tmp_path / "run", **TINY_OPTIONS)
    assert run.run.recipe.value_names == (tuple(KINDS),)
    assert json.loads((tmp_path / "run" / "report.json").read_text())["labelled"]["used"] < 48
    assert set(run.predict(x)["label"]) <= set(KINDS)
    found = json.loads(succeed("evaluate", tmp_path / "run", "--data", tmp_path / "run" / "data.npz"))
    assert found["n"] == SIZE and set(found["accuracy"]) == {"label"}


def test_a_frame_names_its_columns_and_its_labels(table, tmp_path):
    x, side = table
    frame = Frame(u=x[:, 0], kind=KINDS[side], v=x[:, 1], day=np.where(side, np.arange(SIZE) % 2, np.nan))
    run = pyro_fmvae.train(frame, ["kind", "day"], tmp_path / "run", model="fmvae", **TINY_OPTIONS)
    assert run.run.recipe.preprocessing.column_names == ("u", "v")
    assert (run.run.recipe.label_names, run.run.recipe.value_names) == (("kind", "day"), (tuple(KINDS), ()))
    np.testing.assert_allclose(run.decode(run.encode(x[:, :2])["mean"]).mean(0), x[:, :2].mean(0), atol=4)
    turned = run.encode(FrameOfNumbers(x[:, 1::-1], ["v", "u"]))["mean"]
    np.testing.assert_array_equal(turned, run.encode(x[:, :2])["mean"])
    with pytest.raises(ValueError, match="array: expected the columns u, v, got no 'v'"):
        run.encode(FrameOfNumbers(x[:, 1::-1], ["w", "u"]))


def test_dates_truth_values_and_words_of_a_frame(table, tmp_path):
    x, side = table
    when = np.arange("2026-01-01", SIZE, dtype="datetime64[D]")
    when[3] = "NaT"
    frame = Frame(u=x[:, 0], when=when, wet=side > 0, kind=KINDS[side].astype(object), id=np.arange(SIZE) + 1)
    few = {"factors": (2,), "covariance": "diagonal", "starts": 1}  # a search takes long
    run = pyro_fmvae.train(frame, label="kind", kind={"id": "ignored"}, out=tmp_path / "run", **few)
    plan = {
        row["name"]: row["kind"]
        for row in json.loads((tmp_path / "run" / "report.json").read_text())["columns"]
    }
    assert plan == {"u": "number", "when": "date", "wet": "boolean", "id": "ignored"}
    rows = np.empty((3, 4), object)
    rows[:] = [[1.0, "2026-01-02", True, 1], [2.0, None, False, "x"], ["?", "2026-02-01 00:00", None, None]]
    found = run.predict(rows)["kind"]
    assert set(found) <= set(KINDS)
    whole = np.array([[1.0, 20455.0, 4.0, 1.0, np.nan], [2.0, np.nan, np.nan, 0.0, np.nan]])
    shares = [run.encode(given)["responsibilities_0"][:2] for given in (rows, whole)]
    np.testing.assert_array_equal(*shares)
    assert json.loads(succeed("evaluate", tmp_path / "run"))["n"] > 0


class FrameOfNumbers(Frame):
    def __init__(self, values, columns):
        self.values, self.columns = values, columns

    def __array__(self, dtype=None, copy=None):
        return self.values


@pytest.mark.slow
def test_words_and_gaps_among_the_features_go_into_a_csv_file(table, tmp_path):
    x, side = table
    words, numbers = np.where(side, "sand", "clay").astype(object), x[:, 0].astype(object)
    words[3], numbers[5] = None, np.nan
    frame = Frame(u=numbers, soil=words, wet=side.astype(bool), v=x[:, 1])
    run = pyro_fmvae.train(frame, KINDS[side], tmp_path / "run", joint_iterations=3, starts=2)
    assert run.run.config.data == str(tmp_path / "run" / "data.csv")
    assert run.run.recipe.preprocessing.column_names == ("u", "soil", "wet", "v")
    assert run.run.recipe.value_names == (tuple(KINDS),)
    lines = (tmp_path / "run" / "data.csv").read_text().splitlines()
    assert lines[0] == "u,soil,wet,v,label:label"
    assert lines[4].split(",")[1] == "" and lines[6].startswith(",")
    assert float(lines[1].split(",")[3]) == x[0, 1]

    rows = np.array([*frame.contents.values()], dtype=object).T
    names, codes = [*frame.columns], rows.copy()
    codes[:, 1] = [{"clay": 0, "sand": 1, None: np.nan}[word] for word in words]
    expected = run.encode(codes.astype(float))
    found = run.encode(FrameOfNumbers(rows, names))
    assert all((found[name] == expected[name]).all() for name in expected)
    assert set(run.predict(FrameOfNumbers(rows, names))["label"]) <= set(KINDS)
    assert run.score([[1.0, "", 1, 2.0]])["iwae"] == run.score(np.array([[1.0, np.nan, 1, 2.0]]))["iwae"]
    run.run.load_data()  # the file is what was trained on
    with pytest.raises(ValueError, match="array: expected the columns u, soil, wet, v, got also 'kind'"):
        run.encode(FrameOfNumbers(rows, [*names, "kind"]))
    with pytest.raises(ValueError, match="got no 'v'"):
        run.encode(FrameOfNumbers(rows, names[:-1]))


def test_a_series_names_its_label(table, tmp_path):
    x, side = table
    series = side.view(Series)
    series.name = "side"
    run = pyro_fmvae.train(Frame(u=x[:, 0]), series, tmp_path / "run", **TINY_OPTIONS)
    assert run.run.recipe.label_names == ("side",)


def test_labels_of_a_model_without_factors_are_only_kept(table, tmp_path):
    options = {"model": "vae", **TINY_OPTIONS}
    for name in ("prior_iterations", "refine_iterations"):
        del options[name]
    run = pyro_fmvae.train(table[0], table[1], tmp_path / "run", **options)
    assert run.run.recipe.label_names == ("label",) and run.run.recipe.labelled == ()


def test_a_run_keeps_its_data_and_may_be_moved(table, tmp_path):
    run = pyro_fmvae.train(*table, tmp_path / "run", **TINY_OPTIONS)
    assert run.run.config.data == str(tmp_path / "run" / "data.npz")
    moved = shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    assert json.loads(succeed("evaluate", moved))["n"] == 6
    assert "finished already" in succeed("train", "--resume", moved)


def test_resuming(table, tmp_path, capsys):
    folder = tmp_path / "run"
    pyro_fmvae.train(*table, folder, **TINY_OPTIONS)
    capsys.readouterr()
    run = pyro_fmvae.train(resume=folder)
    assert run.run.folder == folder and "finished already" in capsys.readouterr().out


def test_stopping(table, tmp_path, monkeypatch):
    monkeypatch.setattr("pyro_fmvae.app.runs.training._loop", lambda *_: True)
    with pytest.raises(KeyboardInterrupt, match=r"continue with resume='.*run'"):
        pyro_fmvae.train(*table, tmp_path / "run", **TINY_OPTIONS)


def test_training_in_another_thread(table, tmp_path):
    found = []

    def work():
        torch.set_default_dtype(torch.float32)
        found.append(pyro_fmvae.train(*table, tmp_path / "run", **TINY_OPTIONS))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(found) == 1


FRAME = Frame(u=np.arange(9.0), word=np.array(["a"] * 9, dtype=object))
BAD = [
    ({"seed": "x"}, "seed: expected an integer, got 'x'"),
    ({"nonsense": 3}, "nonsense: there is no such option"),
    ({"model": "nope"}, "model: expected one of fmvae"),
    ({"factors": (2, "x")}, "factors: expected sizes separated by commas"),
    ({"resume": "runs/a", "seed": 1}, "resume: continues a run as it was started; leave out seed"),
    ({"model": "vae", "c0": 2.0}, "c0: an option of fmvae, not of vae"),
    ({"data": "nowhere"}, "data: expected one of smiley"),
    ({"data": np.full((9, 2), np.nan), "model": "fmvae"}, "data: 'x' must be finite"),
    ({"data": np.zeros((2, 3))}, "data: expected at least 3 rows"),
    ({"data": np.array(["a"] * 9)}, "data: 'x' must hold numbers"),
    ({"data": 3}, "data: 'x' must have shape"),
    ({"data": [{"u": 1}] * 9}, "data: expected an array of numbers, or a data frame, got dtype object"),
    ({"data": [np.zeros(3), np.zeros(2)]}, "data: expected rows of one shape, got several shapes"),
    ({"data": FRAME, "labels": "side"}, "labels: expected some of the columns u, word, got 'side'"),
    ({"data": FRAME, "labels": ["u", "word"]}, "data: expected a column that is no label"),
    ({"data": np.zeros((9, 2)), "labels": [0, 1]}, "labels: expected 9 values, one per row of data, got 2"),
    ({"data": np.zeros((9, 2)), "labels": np.zeros((9, 1, 1))}, r"labels: expected values \[n\] or \[n, L\]"),
    ({"data": np.zeros((9, 2)), "labels": np.arange(9) / 2}, "labels: 'label': expected words or integers"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[message for _, message in BAD])
def test_complaints(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=f"^{message}"):
        pyro_fmvae.train(**({} if "resume" in arguments else {"out": tmp_path / "run"}), **arguments)
    assert not (tmp_path / "run").exists()
