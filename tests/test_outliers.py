"""The examples about outliers: what the scores tell of digits, and the rows of the sweep."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pyro_fmvae.app.cli import build_parser
from pyro_fmvae.app.recipes.registry import DEFAULT, all_options, configure
from tests.scripts import imported

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture(scope="module")
def s():
    """The scripts, which import each other by their bare names."""
    with imported(EXAMPLES, ("sweep", "outlier_sweep", "outliers")) as modules:
        yield modules


# --- digits


@pytest.mark.slow
@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize("model", ["VAE", "factorial mixture VAE"])
def test_scores_tell_digits_from_what_is_none(s, model):
    """The ELBO tells all kinds of outliers; the KL divergence alone tells inverted digits, but not all."""
    areas = s.outliers.areas(s.outliers.MODELS[model], steps=2500, samples=16, seed=0)
    by_elbo = {kind: area for (kind, score), area in areas.items() if score == "elbo"}
    assert len(by_elbo) == 5
    assert min(by_elbo.values()) >= 0.98
    assert areas["inverted", "kl"] >= 0.95
    assert min(area for (_, score), area in areas.items() if score == "kl") < 0.8


@pytest.mark.usefixtures("single_precision")
def test_outliers_are_made_of_the_test_digits_or_of_nothing(s):
    train, test = s.outliers.digits(1)
    assert (train.shape, test.shape) == ((1400, 8, 8), (397, 8, 8))
    assert (train.min(), train.max()) == (test.min(), test.max()) == (0, 1)
    made = s.outliers.outliers(test, 1)
    assert list(made) == ["inverted", "rotated 90 degrees", "pixels permuted", "uniform noise", "bars"]
    for x in made.values():
        assert x.shape == test.shape and x.min() >= 0 and x.max() <= 1
    assert torch.equal(made["inverted"] + test, torch.ones(397, 8, 8))
    assert torch.equal(made["rotated 90 degrees"][:, 0, 0], test[:, 0, 7])
    permuted = made["pixels permuted"]
    assert torch.equal(permuted.flatten(1).sort().values, test.flatten(1).sort().values)
    assert not torch.equal(permuted, test)
    assert torch.equal((permuted != 0).any(0).sum(), (test != 0).any(0).sum())  # one permutation for all
    bars = made["bars"]
    full = (bars == 1).all(1, keepdim=True) | (bars == 1).all(2, keepdim=True)
    assert torch.equal(bars == 1, full) and set(bars.unique().tolist()) == {0.0, 1.0}


def test_one_scale_is_learnt_for_all_pixels(s):
    _, decoder, observation = s.outliers.networks()
    density = observation(decoder(torch.randn(5, 8)))
    assert density.event_shape == (8, 8) and density.batch_shape == (5,)
    assert observation.std(decoder(torch.randn(5, 8))).unique().numel() == 1
    density.log_prob(torch.rand(5, 8, 8)).sum().backward()
    assert decoder.logit.grad != 0


# --- digits against letters


def chosen(s, monkeypatch, *arguments):
    """Options as the command line gives them."""
    monkeypatch.setattr(sys, "argv", ["script", *arguments])
    return s.sweep.arguments("about", "out")


def test_rows_start_from_networks_of_the_same_seed_and_data(s, monkeypatch):
    rows = {row.name: row for row in s.outlier_sweep.rows(chosen(s, monkeypatch))}
    names = list(rows)
    assert len(rows) == len(s.outlier_sweep.SEEDS) * 2 * 3
    for name, row in rows.items():
        if row.pretrained is None:
            assert not row.evaluate and row.train["model"] == "vae"
            continue
        start = rows[row.pretrained]
        assert names.index(row.pretrained) < names.index(name)
        assert start.train["data"] == row.train["data"] == row.about["data"]
        assert start.train["seed"] == row.train["seed"]
        assert start.train["factor_dim"] == len(row.train.get("factors", (1,))) * row.train["factor_dim"]
        usual, unusual = row.evaluate["usual"], row.evaluate["unusual"]
        assert usual["data"] == row.train["data"] and unusual == {**usual, "data": row.about["other"]}
        assert usual["data"] != unusual["data"] and usual["split"] == "valid"
    assert {row.train["joint_iterations"] for row in rows.values() if row.pretrained} == {4000}


def test_the_program_takes_the_options_of_every_row(s, monkeypatch):
    options = ("--data-root", "there", "--device", "cpu", "--split", "test", "--scale", "0.01")
    given = chosen(s, monkeypatch, *options)
    parser, sweep = build_parser(), s.outlier_sweep.Scores([], Path("rows"))
    for row in list(s.outlier_sweep.rows(given))[:6]:  # the others differ in the seed
        parsed = parser.parse_args(["train", *s.sweep.options(row.train), "--out", "runs/x"]).train
        options = {name: getattr(parsed, name) for name in all_options()}
        config = configure(parsed.model or DEFAULT, **options)
        assert {name: getattr(config, name) for name in row.train} == dict(row.train)
        for name, command in sweep.evaluations(row, Path("runs/x")).items():
            asked = parser.parse_args(command).score
            assert {key: getattr(asked, key) for key in row.evaluate[name]} == dict(row.evaluate[name])
            assert (asked.run, asked.split, asked.data_root) == ("runs/x", "test", "there")
            assert asked.out == f"runs/x/scores-{name}.npz"


def test_a_row_holds_the_areas_of_its_scores(s, monkeypatch, tmp_path):
    calls = []

    def program(command, *rest):
        calls.append(command)
        if command == "train":
            given = dict(zip(rest[::2], rest[1::2], strict=True))
            folder = Path(given["--out"])
            folder.mkdir(parents=True)
            phases = dict.fromkeys(("pretrain_iterations", "joint_iterations", "refine_iterations"), 5)
            config = {"seed": 0, "factors": [2], "factor_dim": 1, "device": "cpu", **phases}
            (folder / "config.json").write_text(json.dumps(config | {"derived": {"versions": {}}}))
            (folder / "metrics.jsonl").write_text(json.dumps({"seconds": 90.0}) + "\n")
            return ""
        given = dict(zip(rest[1::2], rest[2::2], strict=True))
        high = given["--data"] == "omniglot"
        scores = {kind: np.array([1.0, 2.0, 3.0, 4.0]) + 2.5 * high for kind in s.outlier_sweep.KINDS}
        scores["kl"] = np.zeros(4) - high
        np.savez(given["--out"], **scores)
        return json.dumps({"n": 4})

    monkeypatch.setattr(s.sweep, "call", program)
    options = chosen(s, monkeypatch, "--data-root", "/secret/data", "--scale", "0.01")
    rows = [row for row in s.outlier_sweep.rows(options) if row.name.endswith("-seed0")][:3]
    sweep = s.outlier_sweep.Scores(rows, tmp_path / "rows")
    sweep.run(["mnist-mixture-seed0"])
    assert calls == ["train", "train", "score", "score"]
    text = (sweep.out / "mnist-mixture-seed0.json").read_text()
    assert "secret" not in text and str(tmp_path) not in text
    (record,) = sweep.results()
    pairs = np.subtract.outer(np.arange(1, 5) + 2.5, np.arange(1, 5))
    areas = {"kl": 0.0, **dict.fromkeys(("reconstruction", "elbo", "iwae"), (pairs > 0).mean())}
    assert record["result"] == {"usual": {"n": 4}, "unusual": {"n": 4}, "areas": pytest.approx(areas)}
    assert record["commands"][2:] == [
        f"pyro-fmvae score runs/mnist-mixture-seed0 --data {data} --data-root DIR --device auto "
        f"--split valid --points 2000 --out runs/mnist-mixture-seed0/scores-{name}.npz"
        for name, data in (("usual", "mnist"), ("unusual", "omniglot"))
    ]
    *_, line = s.outlier_sweep.report([record], None).splitlines()
    area = f"{areas['elbo']:.3f}"
    assert line == f"| mnist | omniglot | mixture | 0 | 0.000 | {area} | {area} | {area} |"
    calls.clear()
    sweep.run(["mnist-mixture-seed0"])
    assert calls == []
