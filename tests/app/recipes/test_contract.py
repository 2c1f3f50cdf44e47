"""The contract of recipes, on tiny runs of each: a new recipe joins by being registered."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pyro_fmvae.app.recipes import RECIPES
from pyro_fmvae.app.recipes.registry import options_of, read_config, recipe_of
from pyro_fmvae.app.runs import Run, Trainer
from pyro_fmvae.app.runs.by_batches import evaluating, finite_bound
from pyro_fmvae.app.runs.run import match, with_full_paths
from pyro_fmvae.learn.options import TrainConfig
from pyro_fmvae.learn.phase import Phase
from tests.small_runs import SIZE, kill_and_resume, metrics, state, succeed, train_all, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

STEPS = 10
TOGETHER = {"joint_iterations": STEPS, "batch_size": 16}
FEW = {"latent_dim": 5, "pretrain_iterations": 2, "prior_iterations": 2, "refine_iterations": 2, "sweeps": 3}


def options(model, device):
    """A few iterations of each phase, ten of the joint one; a small code; steps of a GPU are captured."""
    few = {name: value for name, value in FEW.items() if name in options_of(model)}
    known = {"factors": 2, "covariance": "diagonal"} if RECIPES[model].tables else {}  # a search takes long
    return {"model": model, **TOGETHER, **few, **known, "eager": device == "cpu"}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """The device that ``auto`` stands for."""
    return request.param


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Model → file of data: images, or a table."""
    paths = write_files(tmp_path_factory.mktemp("data"))
    return {model: paths["table" if recipe.tables else "binary"] for model, recipe in RECIPES.items()}


@pytest.fixture
def data(files, model):
    return files[model]


@pytest.fixture(scope="module")
def runs(files, device, tmp_path_factory):
    """Model → folder of a finished run, with figures."""
    every = {model: options(model, device) for model in RECIPES}
    return train_all(tmp_path_factory.mktemp("runs"), files, every, drawn=RECIPES)


@pytest.fixture(params=RECIPES)
def model(request):
    return request.param


def arrays(path):
    with np.load(path) as archive:
        return dict(archive)


def test_builds(runs, model):
    run = Run.open(runs[model])
    assert type(run.recipe) is RECIPES[model] and run.recipe.name == model
    built = run.recipe.build()
    assert isinstance(built, torch.nn.Module) and built.bounded
    phases = run.recipe.phases(built)
    assert all(isinstance(phase, Phase) for phase in phases)
    assert [phase.name for phase in phases] == list(run.config.iterations)
    stored = run.load_model(torch.device("cpu")).state_dict()
    match(built, stored)
    assert {name: value.shape for name, value in stored.items()} == {
        name: value.shape for name, value in built.state_dict().items()
    }


def test_options_are_read_as_they_are_written(runs, model):
    run = Run.open(runs[model])
    assert type(run.config) is recipe_of(run.config).options and isinstance(run.config, TrainConfig)
    written = json.loads((runs[model] / "config.json").read_text())
    assert set(written) - {"model", "derived"} == set(options_of(model))
    assert with_full_paths(read_config(written), run.folder) == run.config
    assert run.recipe.resolve(run.config, run.load_data()) == run.config


def test_trains(runs, model, device):
    """A few steps are better than none."""
    records = metrics(runs[model])
    assert sum(record["phase"] == "joint" for record in records) >= 2
    assert all(math.isfinite(record["elbo"]) for record in records)
    run = Run.open(runs[model])
    data = run.load_data()
    here, valid = torch.device(device), replace(data.valid, labels=None)  # draws of a GPU are others
    untrained = Trainer(run, data, here).model
    with evaluating(untrained):
        assert records[-1]["elbo"] > finite_bound(untrained, valid, here)[0]["elbo"]
    assert (runs[model] / "figures" / "training.png").exists()


def test_resumes_to_the_bit(runs, data, model, device, tmp_path):
    if (device, model) == ("cuda", "max-sparse"):
        pytest.skip("a GPU adds up its sums over draws in no fixed order")
    kill_and_resume(tmp_path / "run", data, (1, 7), 0.0, **options(model, device))
    assert state(tmp_path / "run") == state(runs[model])
    assert metrics(tmp_path / "run") == metrics(runs[model])


def test_evaluates(runs, data, model):
    result = json.loads(succeed("evaluate", runs[model], "--data", data, "--num-samples", 2))
    assert result["n"] == SIZE
    assert result["elbo"] == pytest.approx(result["reconstruction"] - result["kl_z"] - result["kl_r"])
    assert len(result["used_components"]) == len(Run.open(runs[model]).recipe.factors)


def test_compares_its_encoder_with_free_posteriors_or_says_why_not(runs, model):
    recipe = Run.open(runs[model]).recipe
    if recipe.indexed or not recipe.gaussian_codes:
        with pytest.raises(AssertionError, match="free_steps: expected a model whose encoder gives Gaussian"):
            succeed("evaluate", runs[model], "--free-steps", 2)
    else:
        assert "amortisation_gap" in json.loads(succeed("evaluate", runs[model], "--free-steps", 2))


def test_encodes(runs, data, model, tmp_path):
    succeed("encode", runs[model], "--data", data, "--out", tmp_path / "codes.npz")
    encoded = arrays(tmp_path / "codes.npz")
    assert all(len(array) == SIZE and np.isfinite(array).all() for array in encoded.values())
    run = Run.open(runs[model])
    trained = run.load_model(torch.device("cpu"))
    x = run.recipe.preprocessing(arrays(data)["x"]).float()
    with torch.no_grad():
        code = trained.code(x)
        assert code.shape == encoded["mean"].shape
        assert trained.decode(code).shape == trained.reconstruct(x).shape == x.shape


def test_samples(runs, model, tmp_path):
    succeed("sample", runs[model], "--out", tmp_path / "a.npz", "--grid", "2x3")
    drawn = arrays(tmp_path / "a.npz")
    assert len(drawn["x"]) == len(drawn["z"]) == 6
    assert ("codes" in drawn) == Run.open(runs[model]).recipe.factorial


def test_a_restored_trainer_is_the_run(runs, model, device):
    run = Run.open(runs[model])
    trainer = Trainer(run, run.load_data(), torch.device(device))
    trainer.restore()
    steps = "eager" if device == "cpu" else "captured"
    assert trainer.finished and trainer.stepping in (steps, "in closed form")
    assert (trainer.stepping == "in closed form") == run.recipe.closed_form
