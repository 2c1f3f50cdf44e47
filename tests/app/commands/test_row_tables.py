"""Codes and draws as tables hold the very numbers of the .npz files."""

import csv
import re
import shutil

import numpy as np
import pytest

import pyro_fmvae
from pyro_fmvae.app.commands import output_files, row_tables
from pyro_fmvae.app.runs import by_batches
from tests.app.runs.test_trained import EYES, N, write_photos
from tests.small_runs import command, succeed, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """So that tables are written in several parts, and Parquet files in several groups."""
    monkeypatch.setattr(by_batches, "EVALUATION_BATCH", 25)
    monkeypatch.setattr(row_tables, "GROUP", 1)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return write_files(folder) | {"photos": write_photos(folder / "photos")}


@pytest.fixture(scope="module")
def runs(files, tmp_path_factory):
    kinds = {
        "photos": {"labels": 1, "factors": "3,4", "image_size": 8},
        "csv": {"labels": 1, "factors": "2,2"},
        "table": {"model": "vae"},
    }
    folder = tmp_path_factory.mktemp("runs")
    for kind, options in kinds.items():
        status, _, err = train(folder / kind, files[kind], **options)
        assert status == 0, err
    return folder


def read(path):
    """Columns of a table as text, by name."""
    with path.open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    return dict(zip(head, map(list, zip(*rows, strict=True)), strict=True))


def written(tmp_path, *arguments):
    """What a command writes as .csv, and as .npz."""
    succeed(*arguments, "--out", tmp_path / "out.csv")
    succeed(*arguments, "--out", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as archive:
        return read(tmp_path / "out.csv"), dict(archive)


def test_codes_of_pictures_have_the_names_of_files_and_values(runs, files, tmp_path):
    table, arrays = written(tmp_path, "encode", runs / "photos", "--data", files["photos"])
    eyes = ["eyes code", "eyes value", "eyes predicted", "eyes probability"]
    assert list(table)[:8] == ["file", *eyes, "factor 1 code", "factor 1 probability", "mean_0"]
    assert table["file"] == sorted(f"{number}.png" for number in range(N))
    assert table["file"] == arrays["file"].tolist()
    codes = arrays["codes"]
    assert table["eyes value"] == np.array(EYES)[codes[:, 0]].tolist()
    run = pyro_fmvae.load(runs / "photos", device="cpu")  # whose network has not learnt the eyes
    assert table["eyes predicted"] == run.predict(files["photos"])["eyes"].tolist() != table["eyes value"]
    assert table["factor 1 code"] == list(map(str, codes[:, 1]))
    best = arrays["responsibilities_1"].max(1)
    np.testing.assert_array_equal(np.array(table["factor 1 probability"], dtype=np.float32), best)
    mean = np.stack([np.array(table[f"mean_{i}"], dtype=np.float32) for i in range(4)], 1)
    np.testing.assert_array_equal(mean, arrays["mean"])


def test_rows_of_other_data_have_their_numbers_in_the_file(runs, files, tmp_path):
    table, arrays = written(tmp_path, "encode", runs / "table")
    whole, _ = written(tmp_path, "encode", runs / "table", "--data", files["table"])
    assert table["mean_0"] == [whole["mean_0"][int(row)] for row in table["row"]]
    assert len(table["row"]) == 6 and whole["row"] == list(map(str, range(len(whole["mean_0"]))))
    assert list(table)[1:] == [
        f"{name}_{i}" for name in ("mean", "scale") for i in range(arrays["mean"].shape[1])
    ]


def test_draws_of_a_table_have_the_columns_of_the_data(runs, tmp_path):
    table, arrays = written(tmp_path, "sample", runs / "csv", "--grid", "2x3")
    assert list(table)[:5] == ["u", "v", "w", "side code", "factor 1 code"]
    x = np.stack([np.array(table[name], dtype=float) for name in "uvw"], 1)
    np.testing.assert_array_equal(x, arrays["x"])
    assert table["side code"] == list(map(str, arrays["codes"][:, 0]))


def test_parquet(runs, files, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    succeed("encode", runs / "photos", "--data", files["photos"], "--out", tmp_path / "out.parquet")
    found = parquet.read_table(tmp_path / "out.parquet").to_pydict()
    succeed("encode", runs / "photos", "--data", files["photos"], "--out", tmp_path / "out.csv")
    table = read(tmp_path / "out.csv")
    assert list(found) == list(table) and found["file"] == table["file"]
    np.testing.assert_array_equal(found["mean_0"], np.array(table["mean_0"], dtype=np.float32))


def test_without_pyarrow_nothing_is_computed(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(output_files, "find_spec", lambda name: None)
    run = shutil.copytree(runs / "csv", tmp_path / "run")
    shutil.rmtree(run / "checkpoint")
    status, _, err = command("encode", run, "--out", tmp_path / "out.parquet")
    assert status == 2 and r"pip install 'pyro_fmvae[parquet]'" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("encode", "csv", "--out", "out.txt"), "out: expected a name that ends in .npz or .csv or .parquet"),
        (("sample", "photos", "--out", "out.csv"), "out: expected a name that ends in .npz or .png, got"),
    ],
)
def test_complaints(runs, arguments, message):
    name, run, *others = arguments
    status, _, err = command(name, runs / run, *others)
    assert status == 2 and message in err


def test_masked_whole_numbers_are_written_as_they_are(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    big = np.ma.array(2**60 + np.arange(4), mask=[False, True, False, False])
    parts = [{"big": big[:2], "x": np.array([0.5, 1.5])}, {"big": big[2:], "x": np.array([2.5, np.nan])}]
    for name in ("a.csv", "a.parquet"):
        row_tables.save_table(tmp_path / name, parts)
    assert parquet.read_table(tmp_path / "a.parquet").to_pydict()["big"] == big.tolist()
    lines = (tmp_path / "a.csv").read_text().split()
    assert lines[1:] == [f"{2**60},0.5", "nan,1.5", f"{2**60 + 2},2.5", f"{2**60 + 3},nan"]
    assert by_batches.joined(parts)["big"].tolist() == big.tolist()


def test_gaps_are_filled_as_the_rest_of_their_column_is_written(tmp_path):
    """Also where a part of the table has gaps alone; never with the word that stands for all rare ones."""
    head, rng = "price,day,when,maker", np.random.default_rng(0)
    rows = [
        [
            f"{rng.uniform(20, 40):.2f} EUR",
            f"2024-0{i % 9 + 1}-01T0{i % 10}:30",
            f"{1990 + i % 20}-Q{i % 4 + 1}",
            "often" if i % 15 == 0 else f"rare{i % 75}",
        ]
        for i in range(150)
    ]
    for row in rows[25:75]:
        row[:] = [""] * 4
    (tmp_path / "a.csv").write_text("\n".join([head, *map(",".join, rows)]))
    options = {"model": "mixture", "factors": 1, "kind": "maker=category"}
    status, _, err = train(tmp_path / "run", tmp_path / "a.csv", **options)
    assert status == 0, err
    succeed("encode", tmp_path / "run", "--data", tmp_path / "a.csv", "--out", tmp_path / "out.csv")
    found = read(tmp_path / "out.csv")
    forms = (r"\d\d(\.\d+)? EUR", r"2024-\d\d-\d\dT\d\d:\d\d", r"\d{4}-Q[1-4]", "often")
    for name, form in zip(head.split(","), forms, strict=True):
        assert all(re.fullmatch(form, text) for text in found[name][25:75]), (name, found[name][25:75])
