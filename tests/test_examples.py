"""Every example runs, small; an example that is not listed here fails."""

import json
import os
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pyro_fmvae.data.sets.mnist import VALID_SIZE

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

# Example: arguments that make it small, and words that its output must contain.
RUNS = {
    "own_model.py": (["--steps", "20", "--seed-at", "10"], ["matching accuracy", "components in use"]),
    "own_family.py": (["--steps", "20"], ["have a scale of 10.0: found"]),
    "from_pyro.py": (
        ["--steps=3", "--natural-steps=3", "--picture=pictures/from-pyro.png"],
        [
            "locs        NaturalNormal     exact",
            "TraceEnum_ELBO, AutoNormal: ELBO",
            "TraceConjugate_ELBO: ELBO",
        ],
    ),
    "estimators.py": (
        ["--rows=300", "--picture=pictures/mixture-ellipses.png"],
        ["components: 4", "of the 12 rows from elsewhere"],
    ),
    "sequences.py": (
        ["--days=200", "--ahead=7", "--picture=pictures/sequences.png"],
        ["states: 3", "days ahead within their intervals"],
    ),
    "regression.py": (
        ["--picture=pictures/regression.png"],
        ["weights     NaturalMultivariateNormal  exact", "standard deviations: 0.15 (true: 0.15)"],
    ),
    "counts.py": (
        ["--steps=3", "--starts=2", "--picture=pictures/counts.png"],
        ["topics       NaturalDirichlet  exact", "start 1: ELBO", "of 8 topics"],
    ),
    "full_covariances.py": (
        ["--steps=25", "--picture=pictures/full-covariances.png"],
        ["precisions  NaturalWishart             exact", "matching accuracy with the true components 9"],
    ),
    "topics.py": (
        ["--documents=400", "--passes=4", "--picture=pictures/topics.png"],
        ["pass 4: perplexity of new documents 1"],
    ),
    "factors.py": (
        ["--steps=4", "--picture=pictures/half-digits.png"],
        ["probabilistic PCA, 100 % of the pixels", "factor analysis, 50 % of the pixels: log-density"],
    ),
    "cells.py": (
        ["--cells=80", "--pretrain=2", "--iterations=2", "--out=cells", "--picture=pictures/cells.png"],
        ["scanpy: ", "counts: ", "ARI with the 8 kinds"],
    ),
    "spike_and_slab.py": (
        ["--rows=40", "--columns=6", "--draws=20", "--picture=pictures/spike-and-slab.png"],
        ["one by one, as they depend on each other, with 'weights' integrated out", "P(column 0 or its twin"],
    ),
    "annotators.py": (
        ["--items=30", "--draws=20", "--picture=pictures/annotators.png"],
        ["confusion  Dirichlet    Gibbs", "items found: ", "inside 90 % intervals"],
    ),
    "switching.py": (
        ["--steps=5", "--draws=10", "--picture=pictures/switching.png"],
        ["room_0 … room_4", "heating found: ", "variance of the thermometer"],
    ),
    "semi_markov.py": (
        ["--steps=20", "--stages=2", "--draws=4", "--picture=pictures/semi-markov.png"],
        ["ahead      Beta       Gibbs", "2 stages: phase found at ", "true times on average: "],
    ),
    "hidden_states.py": (
        ["--recordings=4", "--steps=3", "--starts=1", "--picture=pictures/hidden-states.png"],
        ["rates: ", "states by the best path: "],
    ),
    "pendulum.py": (
        ["--sequences=30", "--steps=2", "--picture=pictures/pendulum.png"],
        ["structured VAE (", "LSTM (", "the mean picture: "],
    ),
    "walking_sprites.py": (
        ["--people=30", "--steps=3", "--shortest=4", "--picture=pictures/walking.png"],
        ["the forecast: error ", "the true chain: error ", "poses found: "],
    ),
    "sensors.py": (
        ["--sequences=3", "--steps=2", "--shared=0.8", "--picture=pictures/sensors.png"],
        ["independent noises: ELBO", "full covariance: ELBO", "error in gaps, true numbers: "],
    ),
    "benchmarks/others/cells.py": (
        ["protocols", "--seeds=1", "--genes=20"],
        ["0 steps: accuracy", "300 steps: "],
    ),
    "benchmarks/others/sequences.py": (
        ["--seeds=1"],
        ['"HiddenMarkovModel", "log-likelihood": -3.188', '"hmmlearn"' if find_spec("hmmlearn") else "{"],
    ),
    "benchmarks/others/time_series.py": (
        ["--seeds=1"],
        ["LinearDynamicalSystem" if find_spec("statsmodels") else "skipped: statsmodels is not installed"],
    ),
    "benchmarks/others/topics.py": (["--seeds=1", "--topics=5"], ['"method": "TopicModel", "perplexity"']),
    "benchmarks/topics.py": (
        ["--documents=200", "--topics=4", "--passes=1", "--steps=2"],
        ['"method": "ours"', '"method": "scikit-learn"'],
    ),
    "benchmarks/hidden_markov.py": (
        ["--sequences=3", "--length=6", "--states=2", "--rounds=1", "--fit=2"],
        ["{" if find_spec("hmmlearn") else "skipped: hmmlearn is not installed"],
    ),
    "benchmarks/chunks.py": (
        ["--length=200", "--chunk=20", "--batch=2", "--seconds=0.1"],
        ['"method": "whole"', '"buffer": 50', '"method": "chunks"'],
    ),
    "benchmarks/linear_chunks.py": (
        ["--length=60", "--chunk=20", "--steps=1"],
        ['"method": "chunks"', '"method": "whole"', '"buffer": 20'],
    ),
    "benchmarks/structured_chunks.py": (
        ["--length=60", "--chunk=20", "--batch=2", "--steps=1"],
        ['"method": "minibatches of chunks"', '"method": "whole"', '"buffer": 50'],
    ),
    "benchmarks/disentanglement.py": (
        ["--seeds=0", "--methods=tc", "--latents=2", "--steps=5"],
        ["β-TCVAE"],
    ),
    "benchmarks/judge.py": (["run", "--samples=9", "--edits=9", "--iterations=3"], ['{"judge": {"label0": ']),
    "streams.py": (
        ["--batches=3", "--picture=pictures/streams.png"],
        ["nothing fades: log-density", "power 0.5: log-density"],
    ),
    "search_options.py": (["--trials=2", "--iterations=4", "--out=search"], ["    0  ", "factor_dim 16"]),
    "compare_traceenum.py": (["--steps", "20", "--samples", "30"], ["the first two differ by"]),
    "label_next.py": (
        [
            *("--data-root=.", "--sets=MNIST", "--seeds=0", "--labels", "10", "20", "--points=60"),
            *("--iterations=3", "--refine=2", "--out=pictures/label-next"),
        ],
        ["MNIST 0 chosen ", "MNIST 0 random "],
    ),
    "smiley.py": (
        ["--points", "300", "--iterations", "4", "--out", "pictures"],
        ["bowtie", "pictures in pictures"],
    ),
    "mnist.py": (
        ["--data-root", ".", "--components", "3", "--dim", "2", "--iterations", "3", "--out", "pictures"],
        ["bound of equation 11", "importance-weighted", "of 3"],
    ),
    "mnist_sweep.py": (
        ["--data-root=.", "--out=rows", "--rows=K2-seed0", "--scale=0.00003", "--float32"],
        ["| mixture | 2 | 0 | 1 + 1 |"],
    ),
    "omniglot_sweep.py": (["--list"], ["K256-seed0\nK32-seed0\nnormal-seed0"]),
    "mnist_clusters.py": (
        ["--data-root", ".", "--out", "rows", "--rows", "K10-views-seed0", "--scale", "0.00003"],
        ["| K10-views | 1 | accuracy |"],
    ),
    "mnist_dynamic.py": (["--list"], ["mlp-K512-seed0\nmlp-normal-seed0\n"]),
    "omniglot_clusters.py": (["--list"], ["warps-seed0\nviews-seed0\n"]),
    "mixture_starts.py": (
        ["run", "--starts", "1", "--splits", "1"],
        ["factor 1, 200 points", "k-means 1", "λ, 100% split"],
    ),
    "generalisation.py": (
        ["--data-root=.", "--out=rows", "--rows=both-seed0", "--scale=0.00003"],
        ["| both | 0 | 1e-05 | 0.05 | 0.33 |"],
    ),
    "variations.py": (
        ["averages", "run", "--iterations=3"],
        ["| the last ones | -", "| averages, 0.9995 | -"],
    ),
    "vsc_sweep.py": (
        [
            "--out",
            "rows",
            "--rows",
            "smiley-vsc-J20-seed0",
            "--scale",
            "0.0005",
            "--figure",
            "pictures/codes.png",
        ],
        ["| smiley | VSC | 20 | 1 |"],
    ),
    "vsc_toy.py": (["--steps", "4", "--seeds", "1"], ["seed 0, sparse coding", "seed 0, VAE"]),
    "bars.py": (
        ["--data-sets=1", "--iterations=2", "--out=pictures"],
        ["linear-on-max", "pictures in pictures"],
    ),
    "restoration.py": (
        ["--epochs=1", "--patches=1500", "--stride=8", "--models=bsc,max-sparse", "--out=pictures"],
        ["max-sparse", "dB"],
    ),
    "structured_bound.py": (["--points=20", "--iterations=2"], ["random", "patches"]),
    "variational_em.py": (["--steps", "3"], ["hybrid", "auto-encoder, s = 0"]),
    "outliers.py": (["--seeds", "1", "--steps", "3", "--samples", "2"], ["| factorial mixture VAE | bars |"]),
    "outlier_sweep.py": (["--list"], ["mnist-VAE-seed1"]),
    "celeba.py": (
        ["--generate=20", "--width=0.02", "--factors=2,2,2,3", "--iterations=4", "--out=pictures"],
        ["ms each", "162,770 training images", "300,000 iterations", "Eyeglasses", "pictures/figures"],
    ),
    "benchmarks/own_data.py": (
        [
            "--rows",
            "rows.jsonl",
            "--only",
            "iris",
            "--tasks",
            "clusters",
            "--methods",
            "baselines",
            "--seeds",
            "0",
        ],
        ["iris, clusters, k-means"],
    ),
    "benchmarks/step.py": (
        ["--methods=-compiled", "--steps", "2", "--net", "mlp", "--setting", "1,4,4,8"],
        ["ratio", "captured", "TraceEnum"],
    ),
    "benchmarks/estimators.py": (
        ["--points=300", "--pretrain=2", "--draws=2", "--steps=2", "--seconds=0", "--methods=-compiled"],
        ["relative 1", "collapsed_at_steps"],
    ),
    "benchmarks/scaling.py": (
        ["--components", "2,4", "--factors", "1,2", "--steps", "1", "--methods", "captured"],
        ["MB"],
    ),
    "benchmarks/peers.py": (["--points=50", "--turns=2", "--threads=1"], ["BayesPy"]),
    "benchmarks/ranks.py": (
        ["--net=mlp", "--ways=captured", "--setting=1,4,3,8", "--steps=1", "--rounds=1"],
        ["mlp   captured       1     8", "mlp   captured       2     8"],
    ),
    "benchmarks/beyond_memory.py": (
        ["--parts=speed", "--limit=4000", "--times=0.001", "--batch-size=512", "--rounds=1"],
        ["speed_cpu"],
    ),
    "benchmarks/number_of_components.py": (
        ["--true=3", "--seeds=0", "--dim=2", "--points=150", "--n-init=1"],
        ["found"],
    ),
    "benchmarks/adbench.py": (["--seeds=0"], ["| wine | 129 | 13 |", "| mean |"]),
    "benchmarks/gpu_runs.py": (["machine"], ['"torch": "']),
    "benchmarks/freed_memory.py": (["--nets=mlp", "--steps=2", "--threads=1"], ["mlp   kept"]),
    "benchmarks/search.py": (["--points=10000", "--queries=2", "--libraries=numpy"], ['"kind": "codes"']),
    "benchmarks/spot_checks.py": (["--nets=mlp", "--steps=2"], ["checked at every step"]),
    "benchmarks/siblings.py": (
        ["--latents", "3", "--steps", "1", "--methods", "by hand;captured;SVI, eager"],
        ["captured                  vsc"],
    ),
    "benchmarks/sparse_coding.py": (
        ["--units=3,4", "--points=600,700", "--steps=2", "--models=bsc,linear-sparse"],
        ["linear-sparse"],
    ),
    "benchmarks/ragged.py": (
        ["--factors", "2,2,5", "--dim", "2", "--batch-size", "8", "--steps", "2"],
        ["all largest", "3x5", "plain VAE"],
    ),
    "benchmarks/posteriordb.py": (
        ["reference", "--names=kidiq-kidscore_momiq", "--draws=100"],
        ["kidiq-kidscore_momiq", "gibbs"],
    ),
    "benchmarks/exact_samplers.py": (
        ["--models", "spike", "hmm", "--points=100", "--draws=40", "--chains=2", "--samplers=gibbs"],
        ["spike          100 gibbs", "hmm            100 gibbs"],
    ),
    "benchmarks/gaussian_mixture.py": (
        ["--points=500", "--dim=2", "--components=3", "--batch-size=100", "--max-seconds=2", "--step=eager"],
        ["to_0.01"],
    ),
}
PICTURES = {
    "label_next.py": ["label-next.png"],
    "from_pyro.py": ["from-pyro.png"],
    "estimators.py": ["mixture-ellipses.png"],
    "sequences.py": ["sequences.png"],
    "regression.py": ["regression.png"],
    "counts.py": ["counts.png"],
    "full_covariances.py": ["full-covariances.png"],
    "topics.py": ["topics.png"],
    "factors.py": ["half-digits.png"],
    "cells.py": ["cells.png"],
    "hidden_states.py": ["hidden-states.png"],
    "spike_and_slab.py": ["spike-and-slab.png"],
    "annotators.py": ["annotators.png"],
    "switching.py": ["switching.png"],
    "semi_markov.py": ["semi-markov.png"],
    "pendulum.py": ["pendulum.png"],
    "sensors.py": ["sensors.png"],
    "walking_sprites.py": ["walking.png"],
    "streams.py": ["streams.png"],
    "vsc_sweep.py": ["codes-smiley-J20.png", "codes-smiley-latents.png"],
    "bars.py": [
        *("binary.png", "linear-on-max.png", "linear.png"),
        *("max-causes.png", "max.png"),
    ],
    "restoration.py": ["denoising.png", "inpainting.png"],
    "smiley.py": ["properties.png", "reconstructions.png"],
    "mnist.py": ["components.png", "reconstructions.png", "samples.png"],
    "celeba.py": [
        *(
            "attributes.png",
            "components.png",
            "confusion.png",
            "factors.png",
            "reconstructions.png",
            "samples.png",
        ),
        *("spread.png", "training.png"),
    ],
}
ROWS = {
    "mnist_sweep.py": ["K2-seed0"],
    "mnist_clusters.py": ["K10-views-seed0"],
    "generalisation.py": ["both-seed0"],
    "vsc_sweep.py": ["smiley-vsc-J20-seed0"],
}


def write_mnist_static(folder, train, valid, test):
    rng = np.random.default_rng(0)
    sizes = {"x_train": train, "x_valid": valid, "x_test": test}
    arrays = {key: rng.integers(0, 2, (n, 28, 28), dtype=np.uint8) for key, n in sizes.items()}
    np.savez(folder / "mnist_static.npz", **arrays)


def write_reference(folder):
    """A regression in the layout of posteriordb, and its posterior's summary."""
    (folder / "reference" / "data").mkdir(parents=True)
    rng = np.random.default_rng(0)
    iq = rng.normal(100, 15, 50)
    data = {"kid_score": list(iq + rng.normal(0, 18, 50)), "mom_hs": [1] * 50, "mom_iq": list(iq)}
    (folder / "reference" / "data" / "kidiq.json").write_text(json.dumps(data))
    parameters = {name: {"mean": 0.0, "sd": 1.0} for name in ("beta[1]", "beta[2]", "sigma")}
    reference = {"kidiq-kidscore_momiq": {"parameters": parameters}}
    (folder / "reference" / "reference.json").write_text(json.dumps(reference))


def write_protocols(folder):
    """Counts of cells of two lines by two protocols, one of which counts half as many."""
    (folder / "protocols").mkdir()
    rng = np.random.default_rng(0)
    for name, share in (("celseq2", 1.0), ("dropseq", 0.5)):
        lines = np.arange(60) % 2
        rates = share * np.where(np.arange(30) % 2 == lines[:, None], 20, 5)
        cells = [f"cell{number}" for number in range(60)]
        counts = pd.DataFrame(rng.poisson(rates), cells, [f"gene{number}" for number in range(30)])
        counts.T.to_csv(folder / "protocols" / f"sc_{name}.count.csv.gz")
        metadata = pd.DataFrame({"cell_line_demuxlet": np.array(["H1975", "HCC827"])[lines]}, cells)
        metadata.to_csv(folder / "protocols" / f"sc_{name}.metadata.csv.gz")


def write_mnist(folder, train, test):
    """Nearly black images, each with one white pixel that tells its digit."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, n in (("train", VALID_SIZE + train), ("t10k", test)):
        digits = (np.arange(n) % 10).astype(np.uint8)
        images = np.zeros((n, 28, 28), np.uint8)
        images[np.arange(n), digits, 0] = 255
        for name, array in (("images-idx3", images), ("labels-idx1", digits)):
            header = struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape)
            (raw / f"{part}-{name}-ubyte").write_bytes(header + array.tobytes())


def write_run(folder, options="--factors 2,5 --labels 1"):
    """A trained mixture of smileys; without options, one labelled factor and one without labels."""
    train = f"train --data smiley.npz {options} --factor-dim 2 --hidden 5 --eager"
    phases = ("pretrain", "prior", "joint", "refine")
    train += " ".join(["", *(f"--{name}-iterations 2" for name in phases), "--out run"])
    x = np.random.default_rng(0).integers(0, 2, (250, 28, 28), dtype=np.uint8)
    np.savez(folder / "smiley.npz", x=x, labels=x[:, 0, :1])
    subprocess.run([sys.executable, "-m", "pyro_fmvae", *train.split()], cwd=folder, check=True)


# Packages of extras, without which an example is skipped.
PACKAGES = {"search_options.py": "optuna", "cells.py": "scanpy"}

# Example: writes the data that it reads.
DATA = {
    "mnist.py": lambda folder: write_mnist_static(folder, 70, 20, 20),
    "mnist_sweep.py": lambda folder: write_mnist_static(folder, 64, 3, 3),
    "benchmarks/judge.py": write_run,
    "benchmarks/others/cells.py": write_protocols,
    "benchmarks/posteriordb.py": write_reference,
    "mixture_starts.py": write_run,
    "variations.py": lambda folder: write_run(folder, "--factors 5 --labels 0"),
    "generalisation.py": lambda folder: write_mnist_static(folder, 64, 3, 3),
    "mnist_clusters.py": lambda folder: write_mnist(folder, 500, 10),
    "label_next.py": lambda folder: write_mnist(folder, 100, 10),
}


def is_script(path):
    return '__name__ == "__main__"' in path.read_text(encoding="utf-8")


def test_every_example_is_listed():
    scripts = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py") if is_script(path)}
    assert sorted(scripts - set(RUNS)) == [], "missing: give RUNS a line with arguments that make it small"
    assert sorted(set(RUNS) - scripts) == [], "listed in RUNS, but gone"


def test_every_example_says_how_to_run_it():
    for name in RUNS:
        docstring = (EXAMPLES / name).read_text(encoding="utf-8").split('"""')[1]
        assert f"python examples/{name}" in docstring


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_example_runs(name, tmp_path):
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name])
    if name in DATA:
        DATA[name](tmp_path)
    arguments, expected = RUNS[name]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for words in expected:
        assert words in done.stdout
    assert "Warning" not in done.stderr
    assert sorted(path.name for path in tmp_path.glob("pictures/**/*.png")) == PICTURES.get(name, [])
    rows = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("rows/*.json")}
    assert sorted(rows) == ROWS.get(name, [])
    for row in rows.values():
        assert row["result"] and row["commands"][0].startswith("pyro-fmvae train --")
