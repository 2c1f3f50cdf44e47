"""Models without networks, from the command line."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from pyro_fmvae import figures
from pyro_fmvae.app.commands.data_rows import rows_of
from pyro_fmvae.app.recipes import slab_sparse_coding
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data import SparseOptions, load
from pyro_fmvae.data.sets.bars import bars
from pyro_fmvae.models import SpikeAndSlabSparseCoding
from tests.small_runs import command, kill_and_resume, metrics, state, succeed, train, train_all

pytestmark = pytest.mark.usefixtures("single_precision")

SIZE = 40
COMMON = {"pretrain_iterations": 0, "joint_iterations": 5, "refine_iterations": 0, "latent_dim": 5}
KINDS = {
    "bsc": {**COMMON, "model": "bsc", "starts": 2, "reseed_every": 2},
    "groups": {**COMMON, "model": "bsc", "group_size": 3, "nonnegative": "true", "batch_size": 16},
    "gradient": {**COMMON, "model": "bsc", "m_step": "gradient", "learning_rate": 0.01},
    "max-sparse": {**COMMON, "model": "max-sparse", "preselect": 3, "refine_iterations": 2},
    "linear-sparse": {**COMMON, "model": "linear-sparse", "shared": "false", "batch_size": 16},
    "patches": {
        **COMMON,
        **{"model": "linear-sparse", "patch_size": 4, "patches": 80, "whiten": "false", "batch_size": 20},
    },
    "binary-patches": {**COMMON, "model": "bsc", "patch_size": 4, "patches": 80, "whiten": "false"},
}
SLABS = ("max-sparse", "linear-sparse", "patches")


@pytest.fixture(scope="module", autouse=True)
def short_chains():
    """Posteriors of spikes and slabs from a few Gibbs sweeps instead of fifty."""
    with pytest.MonkeyPatch.context() as patch:
        short = partial(SpikeAndSlabSparseCoding, burn_in=3, draws=5)
        patch.setattr(slab_sparse_coding, "SpikeAndSlabSparseCoding", short)
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Bars of which some pixels are missing, and photographs."""
    folder = tmp_path_factory.mktemp("data")
    x = bars("max", num_data=SIZE).x.numpy()
    x[np.random.default_rng(0).random(x.shape) < 0.1] = np.nan
    np.savez(folder / "holes.npz", x=x)
    photographs = folder / "photographs"
    photographs.mkdir()
    for number in range(2):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(photographs / f"{number}.png")
    return {kind: photographs if "patches" in kind else folder / "holes.npz" for kind in KINDS}


@pytest.fixture(scope="module")
def runs(files, tmp_path_factory):
    return train_all(tmp_path_factory.mktemp("runs"), files, KINDS, drawn=("max-sparse", "patches", "bsc"))


def arrays(path):
    with np.load(path) as archive:
        return dict(archive)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate(runs, files, kind):
    result = json.loads(succeed("evaluate", runs[kind], "--num-samples", 5))
    assert (result["kl_r"], result["used_components"], result["units"]) == (0, [], 5)
    assert result["elbo"] == pytest.approx(result["reconstruction"] - result["kl_z"])
    assert result["importance_weighted"] >= result["collapsed"]
    assert 0 <= result["active_latents"] <= 5
    assert result["noise"] > 0
    assert "recovered" not in result


@pytest.mark.parametrize("kind", KINDS)
def test_encode(runs, files, tmp_path, kind):
    succeed("encode", runs[kind], "--split", "valid", "--out", tmp_path / "codes.npz")
    encoded = arrays(tmp_path / "codes.npz")
    names = {"mean", "probs", "loc", "scale"} if kind in SLABS else {"mean"}
    assert set(encoded) == names
    assert {array.shape[1:] for array in encoded.values()} == {(5,)}
    if kind not in SLABS:
        assert ((encoded["mean"] >= 0) & (encoded["mean"] <= 1)).all()


@pytest.mark.parametrize("kind", ["bsc", "max-sparse", "patches"])
def test_sample_and_score(runs, tmp_path, kind):
    succeed("sample", runs[kind], "--grid", "4x5", "--out", tmp_path / "drawn.npz")
    drawn = arrays(tmp_path / "drawn.npz")
    assert drawn["x"].shape == (20, 4, 4)
    assert drawn["z"].shape == (20, 5)
    assert np.isfinite(drawn["x"]).all()
    summary = json.loads(
        succeed("score", runs[kind], "--num-samples", 4, "--out", tmp_path / "scores.npz", "--split", "valid")
    )
    scores = arrays(tmp_path / "scores.npz")
    assert summary["n"] == len(scores["elbo"])
    assert np.isfinite(scores["iwae"]).all()


def test_new_data_may_have_holes_too(runs, files, tmp_path):
    result = json.loads(succeed("evaluate", runs["bsc"], "--data", files["bsc"]))
    assert result["n"] == SIZE
    assert math.isfinite(result["elbo"])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("bsc", {"dictionary", "reconstructions", "samples", "starts", "training"}),
        ("max-sparse", {"causes", "dictionary", "reconstructions", "samples", "starts", "training"}),
        ("patches", {"causes", "dictionary", "reconstructions", "samples", "starts", "training"}),
    ],
)
def test_figures(runs, kind, expected):
    assert {path.stem for path in (runs[kind] / "figures").iterdir()} == expected


@pytest.mark.parametrize("kind", ["groups", "gradient", "linear-sparse"])  # others: the contract's test
@pytest.mark.parametrize("number", [1, 4])
def test_killed_run_is_resumed_exactly(files, runs, tmp_path, kind, number):
    kill_and_resume(tmp_path / "run", files[kind], number, math.inf, **KINDS[kind])
    assert state(tmp_path / "run") == state(runs[kind])
    assert metrics(tmp_path / "run") == metrics(runs[kind])


def test_a_runs_configuration_trains_it_again(runs, tmp_path):
    for kind in ("bsc", "max-sparse"):
        succeed("train", "--config", runs[kind] / "config.json", "--out", tmp_path / kind)
        assert state(tmp_path / kind) == state(runs[kind])


def test_starts_are_recorded(runs):
    records = metrics(runs["bsc"])
    assert "objective" not in records[0]
    for record in records[1:]:
        assert len(record["objective"]) == len(record["noise"]) == 2
        assert record["objective"][record["start"]] == max(record["objective"])


def test_bars_are_recovered(tmp_path):
    out = succeed("train", "--model", "bsc", "--data", "bars", "--out", tmp_path / "run", figures=True)
    assert "recovered units: 8" in out
    result = json.loads(succeed("evaluate", tmp_path / "run"))
    assert (result["units"], result["recovered"]) == (8, 8)
    assert result["noise"] == pytest.approx(0.1, rel=0.05)
    assert json.loads(succeed("evaluate", tmp_path / "run", "--data", "bars")) == result
    assert (tmp_path / "run" / "figures" / "recovered.png").exists()


def test_patches_of_a_known_data_set_are_treated_as_those_in_training(runs):
    """Not as what fits the data set at hand: photographs vary less than noise does."""
    run = Run.open(runs["patches"])
    ours = run.recipe.preprocessing.patches
    rows, _ = rows_of(run, "scenes", None, "test")
    options = SparseOptions(patch_size=4, patches=80, whiten=False)
    theirs = load("scenes", sparse=options)
    assert theirs.preprocessing.patches.scale < 0.8 * ours.scale
    torch.testing.assert_close(rows.x * ours.scale, theirs.test.x * theirs.preprocessing.patches.scale)


def test_real_numbers_are_drawn_from_the_least_to_the_greatest(runs, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "sample_grid", lambda images, *_: drawn.append(images))
    monkeypatch.setattr(figures, "save", lambda *_: None)
    succeed("sample", runs["bsc"], "--out", tmp_path / "drawn.png")
    succeed("sample", runs["bsc"], "--out", tmp_path / "drawn.npz")
    x = arrays(tmp_path / "drawn.npz")["x"]
    np.testing.assert_allclose(drawn[0], (x - x.min()) / (x.max() - x.min()), atol=1e-6)
    assert x.max() > 1.5


@pytest.mark.parametrize(("kind", "data"), [("patches", "bars"), ("bsc", "scenes")])
def test_data_of_another_shape(runs, kind, data):
    status, _, err = command("evaluate", runs[kind], "--data", data)
    assert status == 2
    assert "data: the run was trained on" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--starts 3", "starts: an option of bsc, max-sparse, linear-sparse and mixture, not of fmvae"),
        ("--model bsc --preselect 3", "preselect: an option of max-sparse and linear-sparse, not of bsc"),
        ("--model max-sparse --group-size 2", "group_size: an option of bsc, not of max-sparse"),
        ("--model bsc --data bars --group-size 11", "group_size: expected at most 10, got 11"),
        ("--model bsc --data bars --temperature 0.5", "temperature: expected a number >= 1, got 0.5"),
        (
            "--model bsc --data bars --em-forgetting 0.4",
            "em_forgetting: expected a number in (1/2, 1], got 0.4",
        ),
        ("--model bsc --data bars --labels 0.5", "labels: an option of fmvae and mixture, not of bsc"),
        ("--model bsc --data bars --distortion 1", "distortion: an option of fmvae, vae and vsc, not of bsc"),
        (
            "--model bsc --data bars --m-step gradient --starts 2",
            "starts: an option of closed M-steps, not of --m-step gradient",
        ),
        ("--model max-sparse --data bars --latent-dim 1", "latent_dim: expected 2 units at least, got 1"),
        (
            "--model vae --data bars",
            "data: 'bars' is generated by the model; of vae it is one of bars-binary, bars-max, bars-linear",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, arguments, message):
    status, _, err = command("train", "--out", tmp_path / "run", *arguments.split())
    assert (status, err) == (2, f"pyro-fmvae: error: {message}\n")
    assert not (tmp_path / "run").exists()


def test_other_models_keep_refusing_holes(files, tmp_path):
    for model in ("vae", "fmvae"):
        status, _, err = train(tmp_path / "run", files["bsc"], model=model)
        assert status == 2
        assert "'x' must be finite" in err
