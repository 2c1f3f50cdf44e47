"""Tables without networks, through the command line and in Python."""

import csv
import json
import re

import numpy as np
import pytest
import torch

import pyro_fmvae
from pyro_fmvae import figures
from pyro_fmvae.app.commands import row_tables
from pyro_fmvae.app.recipes.registry import DEFAULT, choose_model
from pyro_fmvae.app.recipes.table_mixture import categories_of
from pyro_fmvae.app.runs import Run, by_batches
from pyro_fmvae.data import Batches, Kind, Preprocessing, Split
from pyro_fmvae.data.own.csv_file import read_csv
from pyro_fmvae.learn import Budget, fit
from pyro_fmvae.learn.coordinate_ascent import bound_of
from pyro_fmvae.learn.mixture import mixture_of_rows, seed_of
from pyro_fmvae.learn.mixture_ascent import MixtureAscent
from pyro_fmvae.models import ObservedMixture, TablePrior
from pyro_fmvae.sklearn import BayesianMixture
from tests.small_runs import command, succeed, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

SIZE = 90


def write(path, missing=True):
    """Three kinds in numbers and words, a constant column, and missing entries."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, SIZE)
    lines = ["length,colour,width,same,label:kind"]
    for row, kind in enumerate(kinds):
        numbers = [f"{rng.normal(4.0 * kind, 1.0):.4f}", f"{100 * rng.normal(kind == 1, 0.3):.4f}"]
        if missing and row % 10 == 0:
            numbers[row % 20 // 10] = ("NA", "", "?")[row % 3]
        colour = ("red", "green", "blue")[kind] if rng.random() < 0.9 else "red"
        lines.append(f"{numbers[0]},{colour},{numbers[1]},7.5,{('ant', 'bee', 'cat')[kind]}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write(folder / "a.csv")
    out = succeed("train", "--data", folder / "a.csv", "--labels", 5, "--out", folder / "run", figures=True)
    return folder, out


def test_a_small_table_is_learnt_without_networks(trained):
    folder, out = trained
    assert "learnt without networks, by --model mixture; for networks give --model fmvae" in out
    assert "columns left out: same" in out and "kind predicted by: mixture" in out
    config = json.loads((folder / "run" / "config.json").read_text())
    assert config["model"] == "mixture" and config["ignore"] == ["same"]
    assert config["factors"] == [3, 3] and config["covariance"] in ("full", "diagonal")
    assert (folder / "run" / "figures" / "columns.png").exists()
    assert "Shares of the categories in each component" in (folder / "run" / "report.html").read_text()


def test_grades_and_truth_values_are_categories():
    x = np.stack([np.tile([3.0, 7, 9, 3], 25), np.linspace(0, 1, 100)], 1)
    table = Preprocessing.standardizing(x, True, unskew=True)
    assert categories_of(table) == [("3", "7", "9"), ()]
    binary = Preprocessing(Kind.BINARY, (2,))
    assert categories_of(binary) == [("0", "1")] * 2
    worded = Preprocessing.standardizing(x[:, 1:], True, levels=(("blue", "red"),))
    assert categories_of(worded) == [("blue", "red")]


def test_probes_need_latents(trained):
    status, _, err = command("evaluate", trained[0] / "run", "--probes")
    assert (
        status and "run: --probes needs latents" in err and "but this run's model (mixture) has none" in err
    )


def test_a_folder_that_exists_is_refused_before_the_data_are_read(trained):
    status, _, err = command("train", "--data", "nowhere.csv", "--out", trained[0] / "run")
    assert status and "exists already, and runs are never overwritten" in err


def test_words_are_drawn_by_their_shares(trained, monkeypatch):
    """Those of each column add up to 1 in every component."""
    folder, _ = trained
    run = Run.open(folder / "run")
    seen = []
    monkeypatch.setattr(figures, "column_means", lambda *arguments: seen.append(arguments))
    monkeypatch.setattr(figures, "training_curves", lambda *_: None)
    model = run.load_model(torch.device("cpu"))
    run.recipe.draw_figures(model, run.load_data().test, "test", [])
    factors, words, unit = seen[-1]
    assert unit == "share" and set(words) == {"colour: blue", "colour: green", "colour: red"}
    shares = factors.decode(factors.means[0]).cpu().numpy()
    np.testing.assert_allclose(shares.sum(1), 1)
    codes = model.codes(run.load_data().train.observations)[:, -1].numpy()
    x = run.load_data().train.observations
    for component in range(len(shares)):
        of_component = x[codes == component, 1].int()
        assert shares[component].argmax() == of_component.bincount(minlength=3).argmax()


def test_labels_of_words_are_predicted(trained):
    folder, _ = trained
    result = json.loads(succeed("evaluate", folder / "run", "--data", folder / "a.csv", "--num-samples", 2))
    assert result["accuracy"]["kind"] > 0.9
    assert result["importance_weighted"] == pytest.approx(result["collapsed"])
    run = pyro_fmvae.load(folder / "run")
    rows = np.array([[4.0, np.nan, 100.0, 7.5], [8.0, np.nan, np.nan, 7.5]])
    assert run.predict(rows)["kind"].tolist() == ["bee", "cat"]


def test_all_commands_agree_on_the_prediction(trained):
    """The codes are those of the classifiers' weighted mean; the mixture by itself has others."""
    folder, _ = trained
    run = pyro_fmvae.load(folder / "run")
    rng = np.random.default_rng(1)
    rows = np.stack(
        [rng.uniform(-2, 10, 60), rng.integers(0, 3, 60), rng.uniform(-50, 150, 60), 0 * rng.random(60)], -1
    )
    predicted, encoded = run.predict(rows)["kind"], run.encode(rows)
    assert [("ant", "bee", "cat")[code] for code in encoded["codes"][:, 0]] == predicted.tolist()
    assert encoded["responsibilities_0"].argmax(-1).tolist() == encoded["codes"][:, 0].tolist()
    for value in ("ant", "bee", "cat"):
        chosen = predicted == value
        assert run.edit(rows, kind=value)[chosen] == pytest.approx(
            run.decode(encoded["mean"])[chosen], abs=1e-3
        )
    own = run.model.own_predictions(
        run.model.table(run.model.observations(run.rows(rows).observations)).softmax(-1)
    )
    assert (own[0].argmax(-1).numpy() != encoded["codes"][:, 0]).any()


def test_in_python_rows_are_rows(trained):
    folder, _ = trained
    run = pyro_fmvae.load(folder / "run")
    rows = np.array([[4.1, 1.0, np.nan, 7.5]])
    filled = run.decode(run.encode(rows)["mean"])
    assert filled[0, [0, 3]] == pytest.approx([4.1, 7.5], abs=1e-3) and 50 < filled[0, 2] < 150
    moved = run.edit(rows, kind="cat")
    assert moved[0, 0] > 6
    drawn = run.sample(200, {"kind": "ant"})
    assert set(drawn["words_1"]) <= {"red", "green", "blue"} and abs(np.median(drawn["x"][:, 0])) < 1
    far = run.score(np.array([[4.0, 1.0, 100.0, 7.5], [40.0, 1.0, 100.0, 7.5]]))["iwae"]
    assert far[1] > far[0] + 5


def test_draws_are_written_with_words_in_their_columns(trained, tmp_path):
    folder, _ = trained
    for ending in ("csv", "npz"):
        succeed("sample", folder / "run", "--grid", "2x3", "--out", tmp_path / f"drawn.{ending}")
    with (tmp_path / "drawn.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with np.load(tmp_path / "drawn.npz") as archive:
        assert [row["colour"] for row in rows] == archive["words_1"].tolist()
        assert [float(row["width"]) for row in rows] == archive["x"][:, 2].tolist()
    assert list(rows[0])[:6] == ["length", "colour", "width", "same", "kind code", "kind value"]
    assert not any(name.startswith(("words", "z")) for name in rows[0])


def test_a_run_with_a_time_limit_by_default_can_be_trained_by_the_clock(trained, tmp_path):
    folder, _ = trained
    config = folder / "run" / "config.json"
    assert json.loads(config.read_text())["time_limit"] > 0
    succeed("train", "--config", config, "--max-minutes", 0.01, "--out", tmp_path / "run")
    again = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (again["max_minutes"], again["time_limit"]) == (0.01, None)


def test_encoded_rows_are_filled_in_under_their_names(trained, tmp_path):
    """What was known comes back to the digit, in its units and words; nothing is missing."""
    folder, _ = trained
    succeed("encode", folder / "run", "--data", folder / "a.csv", "--out", tmp_path / "out.csv")
    given, found = (
        list(csv.DictReader(path.read_text().splitlines()))
        for path in (folder / "a.csv", tmp_path / "out.csv")
    )
    assert list(found[0])[-5:] == ["length", "colour", "width", "same", "label:kind"]
    for before, after in zip(given, found, strict=True):
        assert after["colour"] == before["colour"] and float(after["same"]) == 7.5
        for name in ("length", "width"):
            if before[name] in ("NA", "", "?"):
                assert -100 < float(after[name]) < 250
            else:
                assert after[name] == before[name]


def test_known_fields_are_copied_as_they_are_written(tmp_path):
    """Amounts, percentages, dates, codes, ids, texts and labels; only gaps are computed."""
    rng = np.random.default_rng(0)
    head = "id,price,share,day,depth,count,zip,note,label:group"
    rows = [
        [
            f"N{i:03d}",
            "" if i == 3 else f"${1100 + i:,}",
            f"{rng.uniform(20, 40):.1f}%",
            "NA" if i == 4 else f"{i % 28 + 1:02d}/{i % 12 + 1:02d}/{2015 + i % 5}",
            "-999" if i % 20 == 5 else f"{rng.normal(5):.2f}",
            "-" if i % 20 == 6 else "lost" if i == 11 else str(rng.poisson(30)),
            f"{10 * (i % 7):05d}",
            f"so and so, number {i}",
            "ab"[i % 2],
        ]
        for i in range(60)
    ]
    (tmp_path / "a.csv").write_text("\n".join([head, *(",".join(f'"{x}"' for x in row) for row in rows)]))
    succeed("train", "--data", tmp_path / "a.csv", "--out", tmp_path / "run", "--factors", 2, "--valid", 0)
    succeed("encode", tmp_path / "run", "--data", tmp_path / "a.csv", "--out", tmp_path / "out.csv")
    found = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert list(found[0])[-9:] == head.split(",")
    gaps = {(3, "price"), (4, "day")} | {(i, "depth") for i in range(5, 60, 20)}
    gaps |= {(i, "count") for i in range(6, 60, 20)}
    for number, (before, after) in enumerate(zip(rows, found, strict=True)):
        for name, field in zip(head.split(","), before, strict=True):
            if (number, name) not in gaps:
                assert after[name] == field, (number, name)
    sign, price = found[3]["price"][0], found[3]["price"][1:]
    assert sign == "$" and float(price) == pytest.approx(1130, abs=60)
    assert 0 < float(found[5]["depth"]) < 10
    assert re.fullmatch(r"\d\d/\d\d/20\d\d", found[4]["day"]) and 15 < float(found[6]["count"]) < 45
    parquet = pytest.importorskip("pyarrow.parquet")
    succeed("encode", tmp_path / "run", "--data", tmp_path / "a.csv", "--out", tmp_path / "out.parquet")
    typed = parquet.read_table(tmp_path / "out.parquet").to_pydict()
    assert typed["zip"][1] == "00010" and typed["depth"][0] == float(rows[0][4])
    assert typed["count"][11] == "lost" and typed["count"][0] == rows[0][5]


@pytest.mark.parametrize("trained_on", ["points", "commas"])
@pytest.mark.parametrize("model", ["mixture", "vae"])
def test_tables_with_decimal_commas_are_written_as_they_are_read(tmp_path, trained_on, model):
    """Whatever the training file had: known fields are copied, and all numbers read back equal."""
    rng = np.random.default_rng(0)
    x = rng.normal(20, 5, (80, 2)).round(3)
    fields = [[f"{a:.3f}", "-" if i % 9 == 4 else f"{b:.3f}", "ab"[i % 2]] for i, (a, b) in enumerate(x)]
    fields[7][0] = ""
    commas = [[field.replace(".", ",") for field in row] for row in fields]
    for name, separator, rows in (("points", ",", fields), ("commas", ";", commas)):
        lines = [separator.join(row) for row in (["u", "v", "group"], *rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    status, _, err = train(tmp_path / "run", tmp_path / f"{trained_on}.csv", model=model)
    assert status == 0, err
    for name in ("points", "commas"):
        for ending in ("csv", "npz"):
            out = tmp_path / f"{name}.out.{ending}"
            succeed("encode", tmp_path / "run", "--data", tmp_path / f"{name}.csv", "--out", out)
    found = {
        name: list(csv.DictReader((tmp_path / f"{name}.out.csv").read_text().splitlines(), delimiter=sign))
        for name, sign in (("points", ","), ("commas", ";"))
    }
    for point, comma, given in zip(found["points"], found["commas"], commas, strict=True):
        assert list(point) == list(comma)
        assert [field.replace(",", ".") for field in comma.values()] == [*point.values()]
        for name, field in zip(("u", "v"), given, strict=False):
            assert comma[name] == field or (field in ("", "-") and model == "mixture")
    read = read_csv(tmp_path / "commas.out.csv")
    again = dict(zip(read.column_names, read.x.T, strict=True))
    known = np.array([[field not in ("", "-") for field in row[:2]] for row in fields])
    for place, name in enumerate("uv"):
        np.testing.assert_array_equal(again[name][known[:, place]], x[known[:, place], place])
        assert model == "vae" or (abs(again[name] - 20) < 25).all()
    if model == "vae":
        with np.load(tmp_path / "commas.out.npz") as archive:
            np.testing.assert_array_equal(again["mean_0"].astype(np.float32), archive["mean"][:, 0])


def test_numbers_of_parquet_stay_what_they_are(tmp_path):
    """Whole numbers beyond float64, short floats with gaps, and truth values."""
    pd, parquet = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "big": 2**53 + 1 + 2 * rng.permutation(300) // 3 * 2,
            "gap": pd.array(2**60 + np.arange(300), "Int64"),
            "small": rng.integers(-90, 90, 300).astype(np.int8),
            "float": rng.normal(size=300).astype(np.float32),
            "true": rng.random(300) < 0.5,
            "word": np.array(["a", "b", "c"])[np.arange(300) % 3],
        }
    )
    frame.loc[290, ["float", "gap"]] = None  # of the last part alone
    frame.index = pd.Index([f"row {i}" for i in range(300)], name="word")
    frame.to_parquet(tmp_path / "a.parquet")
    succeed("train", "--data", tmp_path / "a.parquet", "--out", tmp_path / "run", "--factors", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_batches, "EVALUATION_BATCH", 50)
        patch.setattr(row_tables, "GROUP", 1)
        out = tmp_path / "out.parquet"
        succeed("encode", tmp_path / "run", "--data", tmp_path / "a.parquet", "--out", out)
    found = parquet.read_table(out).to_pandas()
    for name in frame:
        assert found[name].dtype == str(frame[name].dtype).lower(), name
        known = frame[name].notna().to_numpy()
        np.testing.assert_array_equal(found[name][known], frame[name][known])
    assert np.isfinite(found["float"]).all()
    assert [*found["index:word"]] == [*frame.index]


@pytest.mark.parametrize("split", [(), ("--split", "test")])
def test_whole_numbers_of_parquet_without_words_stay_what_they_are(tmp_path, split):
    """Such a file stays on disk, as float64, and has no plan; of a split, its rows are held in memory."""
    pd, parquet = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"big": 2**60 + np.arange(300) % 50, "x": rng.normal(size=300), "few": np.arange(300)}
    )
    frame.to_parquet(tmp_path / "a.parquet")
    succeed("train", "--data", tmp_path / "a.parquet", "--out", tmp_path / "run", "--factors", 2)
    out, given = tmp_path / "out.parquet", () if split else ("--data", tmp_path / "a.parquet")
    succeed("encode", tmp_path / "run", *given, *split, "--out", out)
    found = parquet.read_table(out).to_pandas()
    assert found["big"].dtype == np.int64 and len(found) == (30 if split else 300)
    assert (found["big"] == frame["big"][found["few"].astype(int)].to_numpy()).all()
    np.testing.assert_allclose(found["x"], frame["x"][found["few"].astype(int)])


def test_columns_that_are_called_as_codes_are_keep_their_values(tmp_path):
    """A table that was encoded before, and a column that is called as its index is."""
    rng = np.random.default_rng(0)
    lines = [f"{rng.normal():.3f},{rng.normal():.3f},{i % 3},n{i},{'ab'[i % 2]}" for i in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["mean_0,y,cluster,index:who,who", *lines]) + "\n")
    status, _, err = train(tmp_path / "run", tmp_path / "a.csv", model="vae")
    assert status == 0, err
    given = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    succeed("encode", tmp_path / "run", "--data", tmp_path / "a.csv", "--out", tmp_path / "b.csv")
    once = list(csv.DictReader((tmp_path / "b.csv").read_text().splitlines()))
    for before, after in zip(given, once, strict=True):
        assert after["mean_0 (data)"] == before["mean_0"] != after["mean_0"]
        assert all(after[name] == before[name] for name in before if name != "mean_0")
    status, _, err = train(tmp_path / "run2", tmp_path / "b.csv", model="vae")
    assert status == 0, err
    succeed("encode", tmp_path / "run2", "--data", tmp_path / "b.csv", "--out", tmp_path / "c.csv")
    twice = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
    for before, after in zip(once, twice, strict=True):
        assert {*before.values()} <= {*after.values()} and len(after) > len(before)
        assert after["mean_0 (data) (data)"] == before["mean_0"] != after["mean_0"]
        assert after["mean_0 (data)"] == before["mean_0 (data)"]
    (tmp_path / "d.csv").write_text(
        "\n".join(["mean_0,mean_0 (data)", *(f"{i % 7}.5,{i}.5" for i in range(60))])
    )
    status, _, err = train(tmp_path / "run3", tmp_path / "d.csv", model="vae")
    assert status == 0, err
    succeed("encode", tmp_path / "run3", "--data", tmp_path / "d.csv", "--out", tmp_path / "e.csv")
    last = list(csv.DictReader((tmp_path / "e.csv").read_text().splitlines()))[9]
    assert (last["mean_0 (data) (data)"], last["mean_0 (data)"]) == ("2.5", "9.5")


def test_the_index_of_a_frame_is_beside_its_codes_and_names_are_made_different(tmp_path):
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 2)).round(3), columns=["a", "a"])
    frame["word"] = np.array(["x", "y"])[np.arange(40) % 2]
    frame.index = pd.Index([f"row {i}" for i in range(40)], name="who")
    run = pyro_fmvae.train(frame, out=tmp_path / "run", factors=2)
    assert run.run.recipe.preprocessing.column_names == ("a", "a.1", "word")
    assert run.encode(frame)["codes"].shape == (40, 1)
    succeed("encode", tmp_path / "run", "--data", tmp_path / "run" / "data.csv", "--out", tmp_path / "o.csv")
    found = list(csv.DictReader((tmp_path / "o.csv").read_text().splitlines()))
    assert [row["who"] for row in found] == [*frame.index]
    assert [float(row["a.1"]) for row in found] == frame.iloc[:, 1].tolist()


def test_rare_words_are_copied_and_columns_are_read_as_a_file_says(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"house {number}" for number in [*range(60), *rng.integers(0, 45, 140)]]
    rows = [
        f"{name},{zip_},{rng.normal():.3f}" for name, zip_ in zip(names, [10115, 20095] * 100, strict=True)
    ]
    (tmp_path / "a.csv").write_text("publisher,zip,size\n" + "\n".join(rows) + "\n")
    (tmp_path / "kinds.yaml").write_text("zip: category\npublisher: category\n")
    asked = "--columns", tmp_path / "kinds.yaml"
    out = succeed("train", "--data", tmp_path / "a.csv", *asked, "--out", tmp_path / "run", "--factors", 2)
    assert "50 categories: the rarest 11 words" in out and re.search(r"zip +\| category", out)
    succeed("encode", tmp_path / "run", "--data", tmp_path / "a.csv", "--out", tmp_path / "out.csv")
    found = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["publisher"] for row in found] == names
    assert {row["zip"] for row in found} == {"10115", "20095"}
    succeed("encode", tmp_path / "run", "--split", "test", "--out", tmp_path / "test.csv")
    for row in csv.DictReader((tmp_path / "test.csv").read_text().splitlines()):
        assert row["publisher"] == names[int(row["row"])]


@pytest.mark.parametrize("ending", [".csv", ".npy"])
def test_known_numbers_are_copied_and_others_stay_near_what_was_seen(tmp_path, ending):
    """Tails that a power squeezes beyond float32, and gaps whose expectation lies beyond a power's range."""
    rng = np.random.default_rng(1)
    zeros = np.where(rng.random(300) < 0.7, 0, rng.lognormal(5, 1, 300))
    x = np.stack([zeros, 1 / (0.02 + rng.random(300))], 1)
    x = np.column_stack([x, -(x[:, 1] ** 2), np.exp(0.3 * rng.normal(size=300)) * x[:, 1]]).round(4)
    x[10, 0], x[20, 1] = 9e6, 1e5
    gaps = np.where(rng.random(x.shape) < 0.15, np.nan, x)
    gaps[[10, 20], [0, 1]] = 9e6, 1e5
    run = pyro_fmvae.train(gaps, out=tmp_path / "run", valid=0, test=0, max_minutes=0.1)
    low, high = np.nanmin(gaps, 0), np.nanmax(gaps, 0)
    margin = (high - low) / 2
    assert (low[:2] >= 0).all() and high[2] < 0

    def assert_near(found):
        assert (found >= low - margin).all() and (found <= high + margin).all()
        assert (found[:, [0, 1, 3]] >= low[[0, 1, 3]] / 2).all() and (found[:, 2] <= high[2] / 2).all()

    known, decoded = ~np.isnan(gaps), run.decode(run.encode(gaps)["mean"])
    assert_near(decoded)
    np.testing.assert_allclose(decoded[known], gaps[known], rtol=2e-4, atol=1e-3)
    assert_near(run.sample(20_000)["x"])
    assert_near(run.decode(np.full((2, 4), [[-1e3], [1e3]])))
    new = np.concatenate([gaps, [[1e12 + 0.125, 3, -7e9, np.nan]]])
    path = tmp_path / f"new{ending}"
    np.savetxt(path, new, "%.17g", ",") if ending == ".csv" else np.save(path, new)
    succeed("encode", tmp_path / "run", "--data", path, "--out", tmp_path / "out.csv")
    written = np.genfromtxt(tmp_path / "out.csv", delimiter=",", skip_header=1)[:, -4:]
    known = ~np.isnan(new)
    np.testing.assert_array_equal(written[known], new[known])
    assert_near(np.where(known, np.clip(new, low, high), written))


def test_values_that_training_did_not_have_count_as_missing(tmp_path, caplog):
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(9, 2, 80), "rooms": rng.integers(1, 6, 80)})
    frame["colour"] = np.where(frame["size"] > 9, "red", "blue")
    frame.to_csv(tmp_path / "a.csv", index=False)
    succeed("train", "--data", tmp_path / "a.csv", "--out", tmp_path / "run", "--factors", 2)
    odd = frame.astype(object)
    odd.loc[2:3, "colour"], odd.loc[4, "rooms"], odd.loc[5, "size"] = "green", 9, "large"
    gaps = odd.copy()
    gaps.loc[2:3, "colour"], gaps.loc[4, "rooms"], gaps.loc[5, "size"] = None, None, None
    said = [
        "1 field of column 'size' counts as missing: training had no 'large'",
        "1 field of column 'rooms' counts as missing: training had no '9'",
        "2 fields of column 'colour' count as missing: training had no 'green'",
    ]
    results = []
    for number, table in enumerate((odd, gaps)):
        path = tmp_path / f"new{number}.csv"
        table.to_csv(path, index=False)
        caplog.clear()
        result = json.loads(succeed("evaluate", tmp_path / "run", "--data", path))
        assert sorted(caplog.messages) == ([] if number else sorted(f"{path}: {line}" for line in said))
        for name in ("score", "encode"):
            succeed(name, tmp_path / "run", "--data", path, "--out", tmp_path / f"{name}{number}.csv")
        results.append(result)
    assert results[0] == results[1]
    first, second = (pd.read_csv(tmp_path / f"encode{number}.csv") for number in range(2))
    assert first["rooms"][4] == 9 and second["rooms"][4] in range(1, 6)  # what is known is copied
    assert first["colour"][2:4].tolist() == ["green", "green"] and first["size"][5] == "large"
    first["size"] = first["size"].where(first["size"] != "large", second["size"]).astype(float)
    pd.testing.assert_frame_equal(first.drop(index=[2, 3, 4]), second.drop(index=[2, 3, 4]))
    run = pyro_fmvae.load(tmp_path / "run")
    caplog.clear()
    found = [run.score(table) for table in (odd, gaps)]
    np.testing.assert_array_equal(*(each["kl"] for each in found))
    scores = [each["iwae"] for each in found]
    files = [pd.read_csv(tmp_path / f"score{number}.csv")["iwae"].to_numpy() for number in range(2)]
    np.testing.assert_allclose(files, scores)
    surprise = scores[0] - scores[1]
    assert (np.flatnonzero(surprise) == [2, 3, 4]).all()
    # one of two or five categories more, with d0 = 1/2, in a component of some of the 64 training rows
    assert (np.log(3) <= surprise[2:5]).all() and (surprise[2:5] <= np.log((64 + 6 / 2) / 0.5)).all()
    assert sorted(caplog.messages) == sorted(f"array: {line}" for line in said)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_batches, "EVALUATION_BATCH", 3)
        np.testing.assert_allclose(run.score(odd)["iwae"], scores[0])


def test_rows_that_decide_a_mean_are_named(trained, tmp_path):
    folder, _ = trained
    rows = [f"{4 + 0.01 * i:.2f},red,{100 + i % 9},7.5" for i in range(200)]
    rows[17], rows[150] = "1e7,red,100,7.5", "4,red,-1e8,7.5"
    path = tmp_path / "new.csv"
    path.write_text("\n".join(["length,colour,width,same", *rows]))
    status, out, err = command("evaluate", folder / "run", "--data", path)
    assert status == 0
    found = re.search(
        r"2 of 200 rows decide the mean: rows 17, 150 carry (\d+)% of the bound; .* -(\d+)", err
    )
    assert found, (out, err)
    assert int(found[1]) > 50 and int(found[2]) < 20 and json.loads(out)["elbo"] < -20
    path.write_text("\n".join(["length,colour,width,same", *rows[20:140]]))
    assert "decide the mean" not in command("evaluate", folder / "run", "--data", path)[2]


def test_clusters_are_found_without_labels(trained, tmp_path):
    folder, _ = trained
    out = succeed("train", "--data", folder / "a.csv", "--starts", 1, "--out", tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert run.recipe.factors[0] >= 3 and run.recipe.labels == 0 and "components in use" in out


def test_clusters_of_several_components_are_known_to_every_command(tmp_path):
    """Two squares, each of which takes two components."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 2, 400)
    rows = rng.uniform(-1, 1, (400, 2)) * [1, 4] + 4 * kinds[:, None]
    lines = [f"{x:.4f},{y:.4f},{kind}" for (x, y), kind in zip(rows, kinds, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y,label:kind", *lines]))
    folder, data = tmp_path / "run", tmp_path / "a.csv"
    out = succeed("train", "--data", data, "--factors", 4, "--seed", 0, "--out", folder, figures=True)
    assert "clusters that they make up: 2" in out.replace("\n  ", " ") and "their ARI" in out
    page = (folder / "report.html").read_text()
    assert "How components join into clusters" in page and "their ARI</th>" in page
    measures = json.loads(succeed("evaluate", folder, "--data", data))
    agreement = measures["clustering"]["kind"]
    assert measures["clusters"] == agreement["clusters"]["number"] == 2
    assert agreement["clusters"]["ari"] > 0.98 > 0.8 > agreement["ari"]
    succeed("encode", folder, "--data", data, "--out", tmp_path / "out.csv")
    table = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    cluster = np.array([int(row["cluster"]) for row in table])
    assert {int(row["factor 0 code"]) for row in table} == {0, 1, 2, 3}
    assert max((cluster == kinds).mean(), (cluster != kinds).mean()) > 0.99
    encoded = pyro_fmvae.load(folder).encode(rows)
    np.testing.assert_array_equal(encoded["cluster"], cluster)
    sums = [
        encoded["responsibilities_0"][
            :, [k for k in range(4) if (encoded["codes"][cluster == of] == k).any()]
        ]
        for of in (0, 1)
    ]
    expected = np.where(cluster == 0, *(part.sum(1) for part in sums))
    np.testing.assert_allclose(encoded["cluster_probability"], expected, atol=1e-6)


def test_ignored_columns_may_hold_names_and_dates(trained, tmp_path):
    folder, _ = trained
    header, *lines = (folder / "a.csv").read_text().splitlines()
    rows = [
        f"{line},person {row},2024-{row // 28 + 1:02d}-{row % 28 + 1:02d}" for row, line in enumerate(lines)
    ]
    table, new, run = tmp_path / "a.csv", tmp_path / "new.csv", tmp_path / "run"
    table.write_text("\n".join([f"{header},full name,day", *rows]))
    new.write_text(
        "\n".join([f"{header},full name,day", "4.1,red,90,7.5,bee,7,2025", "?,blue,1,7.5,,Ann,no"])
    )
    arguments = ("--data", table, "--labels", 5, "--factors", 3, "--covariance", "diagonal")
    out = succeed("train", *arguments, "--ignore", "day", "--joint-iterations", 20, "--out", run)
    assert "columns left out: day" in out
    kinds = [row["kind"] for row in json.loads((run / "report.json").read_text())["columns"]]
    assert kinds[3:] == ["constant", "id", "ignored"]
    assert Run.open(run).recipe.preprocessing.ignored == (4, 5)
    succeed("evaluate", run, "--num-samples", 2)
    succeed("score", run, "--data", new, "--num-samples", 2, "--out", tmp_path / "scores.npz")
    elbo = np.load(tmp_path / "scores.npz")["elbo"]
    assert elbo.shape == (2,) and np.isfinite(elbo).all()


def test_data_whose_columns_were_transformed_in_another_way_have_changed(tmp_path):
    table, run = tmp_path / "a.csv", tmp_path / "run"
    numbers = np.exp(np.random.default_rng(0).normal(size=(60, 2)))
    table.write_text("\n".join(["u,v", *(f"{u},{v}" for u, v in numbers)]))
    succeed("train", "--data", table, "--factors", 2, "--covariance", "diagonal", "--out", run)
    values = json.loads((run / "config.json").read_text())
    values["derived"]["preprocessing"]["powers"]["power"][0] += 1.234e-5
    (run / "config.json").write_text(json.dumps(values))
    status, _, err = command("evaluate", run)
    assert status == 2 and "has changed since this run was started" in err
    assert json.loads(succeed("evaluate", run, "--data", table))["n"] == 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--factors", "2,2,2"), "factors: expected one number of components, got"),
        (
            ("--ignore", "nothing"),
            "ignore: expected columns out of length, colour, width, same, got 'nothing'",
        ),
        (("--ignore", "length,colour,width,4"), "a.csv: expected a column to learn from, but all"),
        (("--latent-dim", "3"), "latent_dim: an option of"),
        (
            ("--factors", "2", "--weight-decay", "0.5"),
            "weight_decay: an option of training by gradients, without effect here",
        ),
    ],
)
def test_bad_options(trained, tmp_path, options, message):
    folder, _ = trained
    arguments = ("--data", folder / "a.csv", "--model", "mixture", "--out", tmp_path / "run", *options)
    status, _, err = command("train", *arguments)
    assert status == 2 and message in err and not (tmp_path / "run").exists()


def test_a_prior_that_is_given_is_kept(trained, tmp_path):
    folder, _ = trained
    common = ("--data", folder / "a.csv", "--factors", 3, "--covariance", "full")
    for options in (("--component-variance", 0.1), ()):
        out = tmp_path / str(len(options))
        succeed("train", *common, *options, "--out", out)
        config = json.loads((out / "config.json").read_text())
        assert config["component_variance"] == (0.1 if options else None)
        model = Run.open(out).load_model(torch.device("cpu"))
        assert (model.learnt is None) == bool(options)


def test_pictures_are_refused(tmp_path):
    files = write_files(tmp_path)
    status, _, err = command(
        "train", "--data", files["grey"], "--model", "mixture", "--out", tmp_path / "run"
    )
    assert status == 2 and "model: mixture learns tables; for pictures give --model fmvae" in err


@pytest.mark.parametrize("model", ["vae", "fmvae"])
def test_networks_take_gaps_and_words(trained, tmp_path, model):
    """What is missing is neither seen by the encoder nor in the bound, whatever stands in its place."""
    folder, _ = trained
    rows = folder / "a.csv"
    status, _, err = train(tmp_path / "run", rows, model=model, joint_iterations=20)
    assert status == 0, err
    result = json.loads(succeed("evaluate", tmp_path / "run", "--data", rows, "--num-samples", 2))
    assert all(np.isfinite(result[name]) for name in ("elbo", "importance_weighted"))
    succeed("encode", tmp_path / "run", "--data", rows, "--out", tmp_path / "out.csv")
    given, found = (
        list(csv.DictReader(path.read_text().splitlines())) for path in (rows, tmp_path / "out.csv")
    )
    assert [{name: row[name] for name in given[0]} for row in found] == given
    assert all(np.isfinite(float(row["mean_0"])) for row in found)
    succeed("sample", tmp_path / "run", "--grid", "2x3", "--out", tmp_path / "drawn.csv")
    drawn = list(csv.DictReader((tmp_path / "drawn.csv").read_text().splitlines()))
    assert {row["colour"] for row in drawn} <= {"red", "green", "blue"}
    run = pyro_fmvae.load(tmp_path / "run", device="cpu")
    some = np.array([[4.0, 1.0, np.nan, 7.5], [4.0, np.nan, 100.0, 7.5]])
    decoded = run.decode(run.encode(some)["mean"])
    assert np.isfinite(decoded).all() and set(decoded[:, 1]) <= {0, 1, 2}
    full = np.array([[4.0, 1.0, 100.0, 7.5]])
    together = run.encode(np.concatenate([full, some]))["mean"]
    for row, one in enumerate([full, some[:1], some[1:]]):
        np.testing.assert_allclose(together[row], run.encode(one)["mean"][0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", ["vae", "fmvae", "vsc"])
def test_networks_take_gaps_without_words(tmp_path, model):
    x = np.random.default_rng(0).normal(size=(60, 2)).round(3)
    rows = [f"{a},{'' if row % 4 == 0 else b}" for row, (a, b) in enumerate(x)]
    (tmp_path / "gaps.csv").write_text("\n".join(["x,y", *rows]))
    status, _, err = train(tmp_path / "run", tmp_path / "gaps.csv", model=model)
    assert status == 0, err
    run = pyro_fmvae.load(tmp_path / "run", device="cpu")
    assert np.isfinite(run.decode(run.encode(np.where(x > 2, np.nan, x))["mean"])).all()


@pytest.mark.parametrize(
    ("kind", "given", "factors", "expected"),
    [
        ("csv", (), None, "mixture"),
        ("table", (), None, "mixture"),
        ("table", ("labels", "seed"), (3,), "mixture"),
        ("table", (), (2, 2), DEFAULT),
        ("table", ("network",), None, DEFAULT),
        ("table", ("learning_rate",), None, DEFAULT),
        ("binary", (), None, DEFAULT),
        ("grey", (), None, DEFAULT),
    ],
)
def test_the_model_of_data(tmp_path, kind, given, factors, expected):
    options = dict.fromkeys(given) | {"factors": factors}
    assert choose_model(str(write_files(tmp_path)[kind]), options) == expected


def test_large_tables_and_named_data_get_networks(tmp_path):
    for name, shape in (("wide", (20, 101)), ("long", (20_001, 2))):
        np.savez(tmp_path / f"{name}.npz", x=np.random.default_rng(0).normal(size=shape))
        assert choose_model(str(tmp_path / f"{name}.npz")) == DEFAULT
    assert choose_model("smiley") == choose_model("mnist") == DEFAULT


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_every_door_gives_the_same_mixture(tmp_path, covariance):
    """The command line, its phase, the estimator and the starts: equal options, seeds and rows."""
    rng = np.random.default_rng(1)
    kinds = np.arange(SIZE) % 3
    rows = rng.normal(size=(SIZE, 2)) + 4 * np.stack([kinds == 1, kinds == 2], -1)
    rows[::15, 1] = np.nan
    file, out, full = tmp_path / "rows.csv", tmp_path / "run", covariance == "full"
    np.savetxt(file, rows, delimiter=",", header="a,b", comments="")
    options = ("--factors", 3, "--covariance", covariance, "--component-variance", 0.2, "--starts", 4)
    succeed("train", "--model", "mixture", "--data", file, *options, "--seed", 5, "--out", out)
    run = Run.open(out)
    trained, x = run.load_model(torch.device("cpu")), run.load_data().train.observations.double()

    def make(components, num_data):
        return ObservedMixture((0, 0), components, num_data, prior=TablePrior(b0=0.2), full=full)

    phased = make(3, len(x))
    phase = MixtureAscent(phased, make, Budget(iterations=100), seed_of(5), 4)
    list(fit([phase], Batches(Split(x.float(), None), len(x), indexed=True)))
    identity = 2 * 0.2 * (np.eye(2) if full else np.ones(2))
    estimated = BayesianMixture(
        3,
        covariance_type="full" if full else "diag",
        weight_concentration_prior=1.0,
        mean_prior=np.zeros(2),
        mean_precision_prior=0.1,
        degrees_of_freedom_prior=3.0 if full else 2.0,
        covariance_prior=identity,
        random_state=5,
    ).fit(x.numpy())
    begun = mixture_of_rows(make, x, seed_of(5), 3, 4)
    codes = begun.model.codes(x)[:, -1]
    assert len(codes.unique()) == 3
    for model in trained, phased:
        assert torch.equal(model.codes(x)[:, -1], codes)
        assert bound_of(model, model.table(model.packed(x))) == pytest.approx(begun.bound, abs=0.01)
    assert estimated.predict(x.numpy()).tolist() == codes.tolist()
    assert estimated.lower_bound_ == pytest.approx(begun.bound, abs=0.01)
