"""Runs of the plain VAE's other E-steps and weights, and of sparse codes, through all commands."""

import json
import math

import numpy as np
import pytest

from pyro_fmvae.app.commands import evaluation
from pyro_fmvae.learn.phase import Phase
from tests.small_runs import (
    SIZE,
    command,
    kill_and_resume,
    metrics,
    state,
    succeed,
    train,
    train_all,
    write_files,
)

pytestmark = pytest.mark.usefixtures("single_precision")

VAE = {"model": "vae", "latent_dim": 5}
VSC = {"model": "vsc", "latent_dim": 5, "pseudo_inputs": 3}
KINDS = {
    "free": {**VAE, "posterior": "free", "free_steps": 2, "pretrain_iterations": 0},
    "hybrid": {**VAE, "posterior": "hybrid", "free_steps": 2},
    "point": {**VAE, "posterior": "point"},
    "weighted": {**VAE, "beta": 4, "total_correlation": 3},
    "mixture": {**VSC, "warm_up": "0.2,0.7", "slope": "20,30", "sharpness": 10, "spike_link": "exponential"},
    "select": {**VSC, "sparse_prior": "select", "spikes": "concrete"},
    "fixed": {"model": "vsc", "latent_dim": 5, "sparse_prior": "fixed", "spikes": "straight-through"},
    "table": {**VSC, "sparsity": 0.4},
}
GAUSSIANS = "free_steps: expected a model whose encoder gives Gaussian posteriors, but that of this run"
SPARSE = ("mixture", "select", "fixed", "table")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    paths = write_files(tmp_path_factory.mktemp("data"))
    return {kind: paths["table" if kind == "table" else "binary"] for kind in KINDS}


@pytest.fixture(scope="module")
def runs(files, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Phase, "record_every", 2)
        return train_all(tmp_path_factory.mktemp("runs"), files, KINDS, drawn=("mixture", "free"))


def arrays(path):
    with np.load(path) as archive:
        return dict(archive)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate(runs, files, kind):
    draws = [] if kind == "point" else ["--num-samples", 50]
    result = json.loads(succeed("evaluate", runs[kind], "--data", files[kind], *draws))
    assert (result["n"], result["kl_r"], result["used_components"]) == (SIZE, 0, [])
    if kind == "point":  # no bound on anything
        assert result["elbo"] is None
        assert result["kl_z"] is None
        assert "importance_weighted" not in result
        assert result["reconstruction"] < 0
        return
    assert result["elbo"] == pytest.approx(result["reconstruction"] - result["kl_z"])
    assert result["kl_z"] > 0
    assert result["importance_weighted"] > result["collapsed"] > result["elbo"] - 0.3
    assert ("active_latents" in result) == (kind in SPARSE)
    if kind in SPARSE:
        assert 0 <= result["active_latents"] <= 5
        assert 0 <= result["share_on"] <= 1


@pytest.mark.parametrize("kind", ["hybrid", "weighted"])
def test_amortisation_gap(runs, files, kind):
    result = json.loads(succeed("evaluate", runs[kind], "--data", files[kind], "--free-steps", 60))
    assert result["amortisation_gap"] == pytest.approx(result["elbo_free"] - result["elbo_amortised"])
    assert result["amortisation_gap"] > (0 if kind == "weighted" else -5 * result["standard_error"])
    assert 0 < result["standard_error"] < 1


@pytest.mark.parametrize("kind", KINDS)
def test_encode(runs, files, tmp_path, kind):
    succeed("encode", runs[kind], "--data", files[kind], "--out", tmp_path / "codes.npz")
    encoded = arrays(tmp_path / "codes.npz")
    names = ("mean", "probs", "loc", "scale") if kind in SPARSE else ("mean", "scale")
    assert {name: array.shape for name, array in encoded.items()} == dict.fromkeys(names, (SIZE, 5))
    if kind not in SPARSE:
        assert (encoded["scale"] == 0).all() == (kind == "point")
    if kind in SPARSE:
        assert encoded["mean"] == pytest.approx(encoded["probs"] * encoded["loc"], abs=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "point"])
def test_sample(runs, tmp_path, kind):
    succeed("sample", runs[kind], "--out", tmp_path / "a.npz", "--grid", "10x50")
    z = arrays(tmp_path / "a.npz")["z"]
    assert z.shape == (500, 5)
    assert ((z == 0).mean() > 0.1) == (kind in SPARSE)
    if kind == "weighted":  # from N(0, I)
        assert z.mean(0) == pytest.approx(np.zeros(5), abs=0.2)
        assert z.std(0) == pytest.approx(np.ones(5), abs=0.15)


@pytest.mark.parametrize("kind", KINDS)
def test_score(runs, files, tmp_path, kind):
    options = "--data", files[kind], "--num-samples", 4, "--out", tmp_path / "scores.npz"
    summary = json.loads(succeed("score", runs[kind], *options))
    scores = arrays(tmp_path / "scores.npz")
    assert summary["n"] == SIZE
    assert len(scores["reconstruction"]) == SIZE
    assert ("kl" in scores) == (kind != "point")
    if kind != "point":
        assert scores["elbo"] == pytest.approx(scores["reconstruction"] + scores["kl"], rel=1e-5)


@pytest.mark.parametrize(("kind", "count"), [("mixture", 8), ("free", 3)])
def test_figures(runs, kind, count):
    drawn = sorted(path.stem for path in (runs[kind] / "figures").iterdir())
    expected = ["reconstructions", "samples", "training"]
    if kind in SPARSE:
        expected += ["activity", "conditional-samples", "sweeps", "toggles"]
    assert set(drawn) <= set(expected)
    assert set(expected) - set(drawn) <= {"sweeps"}  # where no example has an active latent


@pytest.mark.parametrize(("kind", "numbers"), [("free", 3), ("hybrid", (1, 3, 5))])
def test_killed_run_is_resumed_exactly(files, runs, tmp_path, monkeypatch, kind, numbers):
    monkeypatch.setattr(Phase, "record_every", 2)
    kill_and_resume(tmp_path / "run", files[kind], numbers, math.inf, **KINDS[kind])
    assert state(tmp_path / "run") == state(runs[kind])
    assert metrics(tmp_path / "run") == metrics(runs[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mixture", "select", "free", "hybrid", "weighted"])
def test_captured_steps_are_the_eager_ones(files, runs, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(Phase, "record_every", 2)
    train_all(tmp_path, files, {kind: {**KINDS[kind], "eager": "false", "compile": "false"}})
    for ours, theirs in zip(metrics(tmp_path / kind), metrics(runs[kind]), strict=True):
        assert (ours["step"], ours["phase"]) == (theirs["step"], theirs["phase"])
        for name in ("elbo", "reconstruction", "kl_z"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--beta 2", "beta: an option of vae, not of fmvae"),
        ("--model vae --restart-every 5", "restart_every: an option of fmvae, not of vae"),
        (
            "--latent-dim 3",
            "latent_dim: an option of vae, vsc, bsc, max-sparse and linear-sparse, not of fmvae",
        ),
        ("--model vae --sparsity 0.1", "sparsity: an option of vsc, not of vae"),
        ("--model vsc --posterior free", "posterior: an option of vae, not of vsc"),
        ("--model vsc --sparsity 1.5", "sparsity: expected a share in (0, 1), got 1.5"),
        ("--model vsc --warm-up 0.5,0.2", "warm_up: expected two shares in ascending order, got (0.5, 0.2)"),
        ("--model vsc --slope 50", "slope: expected two numbers > 0, such as 50,200, got (50.0,)"),
        ("--model vsc --slope 50,0", "slope: expected two numbers > 0, such as 50,200, got (50.0, 0.0)"),
        (
            "--model vsc --slope steep",
            "--slope: expected numbers separated by commas, such as 50,200, "
            "got 'steep' (see pyro-fmvae train --help)",
        ),
        ("--model vsc --sharpness 0", "sharpness: expected a number > 0, got 0.0"),
        (
            "--model vae --free-steps 3",
            "free_steps: an option of --posterior free or hybrid, without effect here",
        ),
        ("--model vae --total-correlation 0.5", "total_correlation: expected a number >= 1, got 0.5"),
        ("--model vsc --kl-annealing 0.5", "kl_annealing: an option of fmvae and vae, not of vsc"),
        (
            "--model vae --posterior free --augmentation 1",
            "augmentation: expected 0 with free posteriors, which have no encoder",
        ),
        ("--model vsc --labels 0.1", "labels: an option of fmvae and mixture, not of vsc"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, arguments, message):
    status, _, err = command("train", "--out", tmp_path / "run", *arguments.split())
    assert (status, err) == (2, f"pyro-fmvae: error: {message}\n")
    assert not (tmp_path / "run").exists()


def test_an_auto_encoder_is_not_said_to_have_a_bound(files, tmp_path):
    for kind, bounded in (("point", False), ("weighted", True)):
        status, out, _ = train(tmp_path / kind, files[kind], **KINDS[kind])
        log = (tmp_path / kind / "train.log").read_text()
        assert status == 0
        assert ("ELBO" in out) == ("elbo" in log) == bounded
        assert "reconstruction -" in out


def test_a_decoder_is_enough_to_start_a_free_one(files, runs, tmp_path):
    options = {**KINDS["free"], "pretrained": runs["weighted"], "joint_iterations": 1}
    run = train_all(tmp_path, files, {"free": options})["free"]
    assert metrics(run)[0]["elbo"] > metrics(runs["free"])[0]["elbo"]


@pytest.mark.parametrize(
    ("kind", "arguments", "expected"),
    [
        *(
            (kind, "evaluate --free-steps 5", f"{GAUSSIANS} ({model}) does not")
            for kind, model in (("mixture", "vsc"), ("point", "vae"), ("free", "vae"))
        ),
        (
            "point",
            "evaluate --num-samples 5",
            "num_samples: expected a model with a bound, but an auto-encoder (--posterior point) has none",
        ),
        (
            "point",
            "sample --out never.npz",
            "run: an auto-encoder (--posterior point) has no density of z to draw from",
        ),
    ],
)
def test_what_a_posterior_does_not_have(runs, monkeypatch, kind, arguments, expected):
    """It is said before anything is computed."""
    monkeypatch.setattr(evaluation, "bound", lambda *_: pytest.fail("computed a bound first"))
    name, *options = arguments.split()
    assert command(name, runs[kind], *options)[::2] == (2, f"pyro-fmvae: error: {expected}\n")


@pytest.mark.parametrize("posterior", ["encoder", pytest.param("free", marks=pytest.mark.slow), "hybrid"])
def test_rows_beyond_all_numbers(tmp_path, posterior):
    """Their scores are inf, and ``evaluate`` says which they are."""
    table = write_files(tmp_path)["table"]
    options = {**VAE, "posterior": posterior, "pretrain_iterations": 0}
    run = train_all(tmp_path, {"table": table}, {"table": options})["table"]
    with np.load(table) as archive:
        x = np.tile(archive["x"], (10, 1))  # more than a batch
    x[[3, 7]] = 1e30
    np.savez(tmp_path / "far.npz", x=x)
    succeed(
        "score", run, "--data", tmp_path / "far.npz", "--out", tmp_path / "scores.npz", "--num-samples", 2
    )
    for values in (arrays(tmp_path / "scores.npz")[name] for name in ("elbo", "iwae")):
        assert np.flatnonzero(np.isinf(values)).tolist() == [3, 7]
    for draws in (0, 2):
        status, _, err = command("evaluate", run, "--data", tmp_path / "far.npz", "--num-samples", draws)
        assert status == 2
        assert err.startswith("pyro-fmvae: error: data: row 3 and 1 others are so far from what")


def test_sources_are_not_looked_for_where_rows_are_held_out(tmp_path):
    sizes = {"model": "vsc", "latent_dim": 3, "hidden": 4, "joint_iterations": 2, "hold_out": 0.25}
    run = train_all(tmp_path, {"smiley": "smiley"}, {"smiley": sizes})["smiley"]
    for split in ("valid", "unseen"):
        result = json.loads(succeed("evaluate", run, "--split", split, "--points", 50))
        assert result["n"] == 50
        assert "sources" not in result


def test_sources_of_smileys_are_looked_for(tmp_path):
    sizes = {"model": "vsc", "latent_dim": 5, "hidden": 8, "joint_iterations": 3}
    run = train_all(tmp_path, {"smiley": "smiley"}, {"smiley": sizes})["smiley"]
    result = json.loads(succeed("evaluate", run, "--split", "valid", "--points", 300))
    assert set(result["sources"]) == {"active", "eyes", "mouth", "hat", "bowtie", "block_concentration"}
    assert result["sources"]["active"] == sum(
        result["sources"][name] for name in ("eyes", "mouth", "hat", "bowtie")
    )


def test_free_steps_need_two_points(runs, files):
    arguments = "--data", files["weighted"], "--points", 1, "--free-steps", 5
    status, _, err = command("evaluate", runs["weighted"], *arguments)
    expected = "free_steps: expected two points at least, for a standard error, got 1"
    assert (status, err) == (2, f"pyro-fmvae: error: {expected}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("evaluate RUN --probes", "run: --probes"),
        ("draw RUN spread --factors 99", "run: draw"),
        ("edit RUN --image a.png --set 0=1 --out b.png", "run: edit"),
        ("sample RUN --out x.npz --codes 0,*", "codes: choosing them"),
    ],
)
def test_what_needs_factors_is_refused(runs, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = command(*arguments.replace("RUN", str(runs["weighted"])).split())
    assert (status, out) == (2, "")
    assert err == f"pyro-fmvae: error: {message} needs factors, but this run's model (vae) has none\n"
    assert not any(tmp_path.iterdir())
