"""Tables of counts on the command line and from Python: all that a run can do, and what is refused."""

import json
import re

import numpy as np
import pytest
from scipy import sparse

import pyro_fmvae
from tests.small_runs import TINY, command, kill_and_resume, state, succeed, train, train_all

pd = pytest.importorskip("pandas")
pytestmark = pytest.mark.usefixtures("single_precision")

N, GENES = 60, [f"g{number}" for number in range(4)]
OPTIONS = {"likelihood": "negative-binomial", "batch_column": "donor", "factors": "3"}


def cells():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.poisson(4.0, (N, len(GENES))) + 1, columns=GENES)
    frame.insert(2, "donor", np.where(rng.random(N) < 0.5, "ann", "bob"))
    return frame


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counts")
    cells().to_csv(folder / "cells.csv", index=False)
    return train_all(folder, {"run": folder / "cells.csv"}, {"run": OPTIONS}, drawn=["run"])["run"]


def test_commands(run, tmp_path):
    data = run.parent / "cells.csv"
    assert json.loads(succeed("evaluate", run, "--data", data))["n"] == N
    succeed("encode", run, "--data", data, "--out", tmp_path / "codes.npz")
    succeed("score", run, "--data", data, "--out", tmp_path / "scores.npz")
    succeed("sample", run, "--out", tmp_path / "draws.csv", "--grid", "1x5")
    with np.load(tmp_path / "codes.npz") as codes, np.load(tmp_path / "scores.npz") as scores:
        assert codes["codes"].shape == (N, 1)
        assert np.isfinite(scores["elbo"]).all()
    draws = pd.read_csv(tmp_path / "draws.csv")
    assert list(draws.columns[:4]) == GENES  # the batch is not decoded
    total = pyro_fmvae.load(run).run.recipe.preprocessing.counts.total
    np.testing.assert_allclose(draws[GENES].sum(1), total, rtol=1e-5)
    assert abs(total - cells()[GENES].sum(1).median()) <= 2  # that of the training rows alone
    assert (run / "figures" / "columns.png").exists()


def test_python(run):
    loaded, frame = pyro_fmvae.load(run), cells()
    codes = loaded.encode(frame)["codes"]
    coded = np.column_stack([frame[GENES[:2]], frame["donor"] == "bob", frame[GENES[2:]]])
    np.testing.assert_array_equal(loaded.encode(coded)["codes"], codes)
    edited = loaded.edit(frame, {0: 1})
    np.testing.assert_array_equal(edited[:, 2], coded[:, 2])
    np.testing.assert_allclose(edited.sum(1), coded.sum(1), rtol=1e-5)  # each row keeps its own total


def test_cells_of_a_new_batch_and_differences(run):
    loaded, frame = pyro_fmvae.load(run), cells()
    new = frame[GENES].to_numpy()[:40]
    mapped = loaded.map_query(new, iterations=3)
    assert {name: len(array) for name, array in mapped.items()} == dict.fromkeys(loaded.encode(frame), 40)
    assert not np.array_equal(mapped["mean"], loaded.map_query(new, iterations=0)["mean"])
    found = loaded.differential_expression(frame[:30], frame[30:], num_samples=200)
    back = loaded.differential_expression(frame[30:], frame[:30], num_samples=200)
    assert {name: array.shape for name, array in found.items()} == dict.fromkeys(
        ("lfc", "lfc_std", "probability"), (len(GENES),)
    )
    np.testing.assert_allclose(found["lfc"], -back["lfc"], atol=6 * found["lfc_std"].max() / 200**0.5)


def test_new_cells_in_any_form_have_the_same_codes(run, tmp_path):
    loaded, frame = pyro_fmvae.load(run), cells()
    new = frame[GENES]
    expected = loaded.map_query(new.to_numpy(), iterations=2)["mean"]
    new.to_csv(tmp_path / "new.csv", index=False)
    others = {
        "columns in another order": new[GENES[::-1]],
        "with the batch": frame.assign(donor="eve"),
        "nullable": new.astype("Int64"),
        "objects": new.to_numpy(dtype=object),
        "bytes": new.to_numpy(np.uint8),
        "sparse": sparse.csr_matrix(new.to_numpy()),
        "file": tmp_path / "new.csv",
    }
    for name, counts in others.items():
        found = loaded.map_query(counts, iterations=2)["mean"]
        np.testing.assert_array_equal(found, expected, err_msg=name)
    with pytest.raises(ValueError, match="counts: expected the columns g0, g1, g2, g3, got no 'g0'"):
        loaded.map_query(new.rename(columns={"g0": "other"}))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run, new, _: run.map_query(np.ones((60, 5))), r"counts: expected .* shape \[4\], got \[5\]"),
        (lambda run, new, _: run.map_query(new + 0.5), "counts: expected counts, whole numbers"),
        (lambda run, new, _: run.map_query(new[:0]), "counts: expected at least one observation"),
        (
            lambda run, new, _: run.map_query(new, iterations=1.5),
            "iterations: expected an integer in .*, got 1.5",
        ),
        (lambda run, new, all: run.differential_expression(new, all), r"first: expected .* shape \[5\]"),
        (lambda run, new, all: run.differential_expression(all, all[:0]), "second: expected at least one"),
        (lambda run, new, all: run.differential_expression(all, all, delta=-1), "delta: .* >= 0, got -1"),
        (lambda run, new, all: run.differential_expression(all, all, delta="x"), "delta: .* >= 0, got x"),
        (lambda run, new, all: run.differential_expression(all, all, delta=None), "delta: .* >= 0, got None"),
        (
            lambda run, new, all: run.differential_expression(all, all, offset=np.inf),
            "offset: .* >= 0, got inf",
        ),
    ],
)
def test_errors_name_the_argument(run, call, message):
    with pytest.raises(ValueError, match="^" + message):
        call(pyro_fmvae.load(run), cells()[GENES].to_numpy(), cells())


def train_vae(frame, out, **options):
    tiny = {name[2:].replace("-", "_"): json.loads(value) for name, value in TINY.items()}
    tiny = {name: tiny[name] for name in ("pretrain_iterations", "joint_iterations", "hidden", "eager")}
    options = {"model": "vae", "likelihood": "poisson", "batch_column": "donor"} | tiny | options
    return pyro_fmvae.train(frame, out=out, **options)


def test_free_posteriors_take_no_new_batch(tmp_path):
    trained = train_vae(cells(), tmp_path / "run", posterior="free", pretrain_iterations=0)
    with pytest.raises(
        ValueError, match=r"^run: map_query needs an encoder, posterior 'free' of .* has none$"
    ):
        trained.map_query(cells()[GENES])


def test_numbers_of_batches_and_another_model(tmp_path):
    frame = cells().assign(donor=np.arange(N) % 3 + 300)
    trained = train_vae(frame, tmp_path / "run")
    new = frame[GENES].to_numpy()
    found = (trained.map_query(counts, iterations=1)["mean"] for counts in (new, new.astype(np.uint8)))
    np.testing.assert_array_equal(*found)
    assert trained.run.recipe.preprocessing.counts.batches == (300, 301, 302)
    assert trained.encode(frame)["mean"].shape[0] == N
    with pytest.raises(
        ValueError, match=r"array: expected one of the training's batches, 300, 301, 302, .*, got 6"
    ):
        trained.encode(frame.assign(donor=6))


def test_resumed_runs_are_those_that_went_through(run, tmp_path):
    kill_and_resume(tmp_path / "run", run.parent / "cells.csv", 2, 0, **OPTIONS)
    assert state(tmp_path / "run") == state(run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"donor": "eve"}, "expected one of ann, bob.*got 'eve'"),
        ({"g1": -1}, "expected counts, whole numbers .* got -1 in column 'g1' of row 0"),
        ({"g1": 0.5}, "got 0.5 in column 'g1' of row 0; normalised values are no counts"),
        (dict.fromkeys(GENES, 0), "expected a count in every row, but row 0 has none"),
    ],
)
def test_other_rows_are_refused(run, tmp_path, changes, message):
    cells().assign(**changes).to_csv(tmp_path / "other.csv", index=False)
    status, _, errors = command("encode", run, "--data", tmp_path / "other.csv", "--out", tmp_path / "c.npz")
    assert status == 2
    assert_one_line(errors, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_column": "site"}, "batch_column: expected a column of .*cells.csv, but there is no 'site'"),
        ({"layer": "raw"}, "layer: expected a .h5ad file, got .*cells.csv"),
        ({"min_scale": 0.1}, "min_scale: an option of Gaussian observations, without effect here"),
        ({"batch_column": "g0"}, "expected counts in column 'donor', got 'ann'"),
        ({"model": "vsc"}, "likelihood: an option of fmvae and vae, not of vsc"),
    ],
)
def test_options_that_do_not_fit(run, tmp_path, options, message):
    status, _, errors = train(tmp_path / "run", run.parent / "cells.csv", **(OPTIONS | options))
    assert status == 2
    assert_one_line(errors, message)
    assert not (tmp_path / "run").exists()


def test_what_is_no_table_of_counts(tmp_path):
    for data in ("smiley", tmp_path):
        _, _, errors = train(tmp_path / "run", data, likelihood="poisson")
        assert_one_line(errors, "likelihood: expected a table of counts in a file, got")
    _, _, errors = train(tmp_path / "run", "smiley", batch_column="donor")
    assert_one_line(errors, "batch_column: an option of --likelihood, without effect here")


def assert_one_line(errors, message):
    line = errors.strip().splitlines()[-1]
    assert line.startswith("pyro-fmvae: error: ")
    assert re.search(message, line), line
