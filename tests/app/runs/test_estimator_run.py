"""Runs of estimators on the command line: states of sequences and topics of texts."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

from pyro_fmvae.app.recipes.registry import configure
from pyro_fmvae.app.recipes.settings import splitting_of
from pyro_fmvae.app.runs.closing_table import REPORT
from pyro_fmvae.app.runs.estimator_run import STATE, TimedRows
from pyro_fmvae.app.runs.from_python import train
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data.splitting import Splitting
from pyro_fmvae.files import checkpoint
from pyro_fmvae.sklearn import HiddenMarkovModel
from tests.small_runs import command, succeed

ANIMALS = ["cat", "dog", "horse", "cow", "sheep", "goat"]
SKY = ["star", "moon", "sun", "planet", "comet", "orbit"]


def refused(message, *arguments):
    status, _, error = command(*arguments)
    assert status == 2 and error.count("\n") == 1 and re.search(message, error), error


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Visits of two shops by day, of three kinds of columns, in any order; and the hidden states."""
    rng, parts = np.random.default_rng(0), []
    for shop in ("north", "south"):
        state = np.repeat([0, 1, 0, 1], 20)
        columns = {
            "day": np.datetime64("2024-01-01") + np.arange(80),
            "shop": shop,
            "visitors": rng.poisson(3 + 9 * state),
            "spending": np.where(rng.random(80) < 0.1, np.nan, rng.normal(100 + 30 * state, 8).round(2)),
            "weather": np.where(rng.random(80) < 0.2 + 0.6 * state, "wet", "dry"),
            "note": [f"note {shop} {row}" for row in range(80)],
            "state": state,
        }
        parts.append(pd.DataFrame(columns))
    frame = pd.concat(parts).sample(frac=1, random_state=1).reset_index(drop=True)
    path = tmp_path_factory.mktemp("table") / "sales.csv"
    frame.drop(columns="state").to_csv(path, index=False)
    return path, frame


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder of 40 texts on animals or on the sky, with words that all or hardly any of them have."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("texts") / "notes"
    (folder / "sky").mkdir(parents=True)
    (folder / ".hidden.json").write_text("{}")
    for number in range(40):
        words = [*rng.choice(SKY if number % 2 else ANIMALS, 30), "the", f"only{number}x"]
        name = f"sky/{number:02d}.txt" if number % 2 else f"{number:02d}.TXT"
        (folder / name).write_text(" ".join(words))
    return folder


@pytest.fixture(scope="module")
def sales(table, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "sales"
    said = succeed(
        "train", "--data", table[0], "--time", "day", "--series", "shop", "--factors", "2", "--out", run
    )
    assert "visitors (count), spending (number), weather (category)" in said and "note" not in said
    return run


@pytest.fixture(scope="module")
def notes(texts, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "notes"
    succeed("train", "--data", texts, "--factors", "2", "--out", run)
    return run


def test_states_of_a_table_are_those_of_the_estimator(sales, table, tmp_path):
    path, frame = table
    succeed("encode", sales, "--out", tmp_path / "codes.csv")
    codes = pd.read_csv(tmp_path / "codes.csv")
    assert list(codes) == ["day", "shop", "state", "probability 0", "probability 1"]
    assert (codes["shop"] == frame["shop"]).all() and (codes["day"] == frame["day"].astype(str)).all()
    assert adjusted_rand_score(frame["state"], codes["state"]) > 0.9
    ordered = frame.sort_values(["shop", "day"])
    x = np.column_stack([ordered["visitors"], ordered["spending"], ordered["weather"] == "wet"]).astype(float)
    first = np.arange(len(x)) % 80 < 72
    model = HiddenMarkovModel(2, count_features=[0], categorical_features=[2], random_state=0)
    model.fit(x[first], lengths=[72, 72])
    expected = model.predict_proba(x, lengths=[80, 80])
    found = codes.loc[ordered.index, ["probability 0", "probability 1"]].to_numpy()
    np.testing.assert_allclose(found, expected, atol=1e-9)
    measured = json.loads(succeed("evaluate", sales))
    ahead = model.score(x, lengths=[80, 80]) - model.score(x[first], lengths=[72, 72])
    assert measured["n"] == 16 and measured["states"] == 2
    assert measured["log_likelihood"] == pytest.approx(ahead / 16, abs=1e-9)
    whole = json.loads(succeed("evaluate", sales, "--data", path))
    assert whole["n"] == 160
    assert whole["log_likelihood"] == pytest.approx(model.score(x, lengths=[80, 80]) / 160, abs=1e-9)


def test_new_series_are_encoded(sales, table, tmp_path):
    frame = table[1].drop(columns="state").replace({"shop": {"north": "east"}, "weather": {"dry": "snow"}})
    frame.to_csv(tmp_path / "new.csv", index=False)
    succeed("encode", sales, "--data", tmp_path / "new.csv", "--out", tmp_path / "new.npz")
    with np.load(tmp_path / "new.npz") as found:
        assert set(found["shop"]) == {"east", "south"}
        np.testing.assert_allclose(found["probability"].sum(1), 1)


def test_page_shows_states_in_the_words_of_the_table(sales, tmp_path):
    succeed("report", sales, "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page == (sales / "report.html").read_text()
    for text in ("visitors", "wet (", "dry (", "Probabilities of the next state", "data:image/png"):
        assert text in page


def test_topics_of_a_folder(notes, texts, tmp_path):
    succeed("encode", notes, "--out", tmp_path / "shares.csv")
    shares = pd.read_csv(tmp_path / "shares.csv")
    assert len(shares) == 40 and list(shares) == ["text", "topic", "share 0", "share 1"]
    assert adjusted_rand_score(shares["text"].str.startswith("sky"), shares["topic"]) == 1
    np.testing.assert_allclose(shares[["share 0", "share 1"]].sum(1), 1)
    measured = json.loads(succeed("evaluate", notes))
    assert measured["n"] == 4 and measured["words"] == 4 * 30  # without "the" and words of a single text
    assert 6 < measured["perplexity"] < 7  # each text has six words, about equally often
    assert json.loads(succeed("evaluate", notes, "--data", texts))["n"] == 40
    page = (notes / "report.html").read_text()
    assert all(word in page for word in (*ANIMALS, *SKY)) and "only" not in page


def test_what_has_changed_is_refused(texts, tmp_path):
    folder = tmp_path / "some"
    folder.mkdir()
    for number, words in enumerate(("cat dog", "dog cat", "moon star")):
        (folder / f"{number}.txt").write_text(words)
    succeed("train", "--data", folder, "--factors", "2", "--out", tmp_path / "run")
    (folder / "3.txt").write_text("star moon")
    refused("error: data: .* has changed since this run was started", "evaluate", tmp_path / "run")
    succeed("evaluate", tmp_path / "run", "--data", folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--time", "hour"), "time: expected a column out of .*day.*, got 'hour'"),
        (("--time", "weather"), "expected a number or a date in 'weather'"),
        (("--series", "town"), "series: expected a column of .*, got 'town'"),
        (("--time", "day", "--batch-size", "3"), "batch_size: an option of fmvae.* not of hidden-markov"),
        (("--time", "day", "--factors", "2,3"), "factors: expected one number"),
        (("--time", "day", "--model", "mixture"), "time: an option of hidden-markov, not of mixture"),
        (("--model", "topics"), "data: expected a folder of .txt files alone"),
    ],
)
def test_bad_options(table, tmp_path, arguments, message):
    refused(message, "train", "--data", table[0], "--out", tmp_path / "run", *arguments)
    assert not (tmp_path / "run").exists()


def test_other_commands_say_which_there_are(sales):
    with pytest.raises(ValueError, match="hidden-markov, for which there are the commands train, evaluate"):
        Run.open(sales)
    refused("error: num_samples: ", "evaluate", sales, "--num-samples", 3)


def test_a_damaged_run_is_an_error(sales, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.json", "report.json"):
        (folder / name).write_bytes((sales / name).read_bytes())
    content = bytearray((sales / "estimator.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "estimator.safetensors").write_bytes(content)
    refused("error: run: .* is damaged", "evaluate", folder)


@pytest.mark.parametrize(
    "changes", [{"bounds": [10**400]}, {"components": 1}, {"ahead": None}, None], ids=str
)
def test_a_state_of_another_form_is_an_error(sales, tmp_path, changes):
    folder = shutil.copytree(sales, tmp_path / "run")
    state, _ = checkpoint.load_file(folder / STATE)
    checkpoint.save_file(folder / STATE, None if changes is None else state | changes)
    refused(rf"error: run: {folder} is damaged \(", "evaluate", folder)
    (folder / STATE).unlink()
    refused(f"error: {folder / STATE}: no such file", "evaluate", folder)


@pytest.mark.parametrize("measures", [5, {"states": []}, {"states": {"a": 1}}], ids=str)
def test_a_report_of_another_form_is_an_error(sales, tmp_path, measures):
    folder = shutil.copytree(sales, tmp_path / "run")
    report = json.loads((folder / REPORT).read_text()) | {"measures": measures}
    (folder / REPORT).write_text(json.dumps(report))
    refused(rf"error: run: {folder} is damaged \(", "report", folder)


def test_names_that_encode_writes_are_refused(table, tmp_path):
    table[1].drop(columns="state").rename(columns={"shop": "state"}).to_csv(tmp_path / "t.csv", index=False)
    data = ("train", "--data", tmp_path / "t.csv", "--time", "day", "--series", "state")
    refused("series: expected a name other than 'state'", *data, "--out", tmp_path / "run")


def test_whole_times_are_written_as_they_are_and_equal_ones_are_noted(table, tmp_path):
    frame = table[1].drop(columns=["state", "shop"])
    frame["day"] = 20240000 + frame["day"].dt.dayofyear
    frame.to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "run"
    status, _, error = command(
        "train", "--data", tmp_path / "t.csv", "--time", "day", "--factors", "2", "--out", out
    )
    assert status == 0 and "time: 80 rows have the time of another row" in error
    succeed("encode", out, "--out", tmp_path / "codes.csv")
    assert pd.read_csv(tmp_path / "codes.csv", dtype=str)["day"].tolist() == frame["day"].astype(str).tolist()


def test_a_time_that_is_the_same_in_all_rows_is_refused(table, tmp_path):
    table[1].assign(day="2024-01-01").to_csv(tmp_path / "t.csv", index=False)
    refused(
        "time: expected a column that orders the rows", "train", "--data", tmp_path / "t.csv", "--time", "day"
    )


def test_texts_without_a_known_word_have_no_perplexity(tmp_path):
    (tmp_path / "notes").mkdir()
    for number in range(10):
        (tmp_path / "notes" / f"{number}.txt").write_text(f"w{number} w{number}")
    said = succeed("train", "--data", tmp_path / "notes", "--factors", "2", "--out", tmp_path / "run")
    assert "part kept for testing" in said and "perplexity none" in said


def test_measures_of_the_training_data_are_said_to_be_so(tmp_path):
    (tmp_path / "notes").mkdir()
    for number, words in enumerate(("cat dog", "dog cat", "moon star")):
        (tmp_path / "notes" / f"{number}.txt").write_text(words)
    data = ("train", "--data", tmp_path / "notes", "--factors", "2", "--out", tmp_path / "run")
    status, said, error = command(*data)
    assert status == 0 and "part all" in said and "no data are held out" in error


def test_device_is_that_of_the_command(sales, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(sales, copied)
    config = json.loads((copied / "config.json").read_text())
    config["data"] = str((sales / config["data"]).resolve())
    (copied / "config.json").write_text(json.dumps(config | {"device": "cuda"}))
    assert json.loads(succeed("evaluate", copied, "--device", "cpu")) == json.loads(
        succeed("evaluate", sales)
    )


def test_each_sequence_has_a_step_to_learn_from():
    rows = TimedRows(np.zeros((5, 1)), np.array([1, 4]), np.array(["a", "b"]), np.arange(5), None)
    assert rows.before(0.9).lengths.tolist() == [1, 1]


def test_nothing_is_kept_for_validation():
    """The shares of test and validation rows need not fit together."""
    for model in ("hidden-markov", "topics"):
        config = configure(model, test=0.95)
        assert splitting_of(config) == Splitting(0.0, 0.95)
        with pytest.raises(ValueError, match=r"^test: expected a share in \[0, 1\), got 1.0"):
            configure(model, test=1.0)


@pytest.mark.parametrize(
    ("model", "name"), [("hidden-markov", "HiddenMarkovModel"), ("topics", "TopicModel")]
)
def test_python_has_the_estimator(table, model, name):
    with pytest.raises(ValueError, match=f"in Python take pyro_fmvae.sklearn.{name}$"):
        train(str(table), model=model)
