"""A model of one recipe: this file and its registration are all that the command line needs of it."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from pyro_fmvae.app.recipes import RECIPES
from pyro_fmvae.app.recipes.networks import NetworkRecipe, networks
from pyro_fmvae.app.recipes.settings import budgets_of
from pyro_fmvae.learn import VAEJoint
from pyro_fmvae.learn.options import VAEOptions, option, share_between
from pyro_fmvae.models import VAE
from tests.small_runs import SIZE, command, kill_and_resume, state, succeed, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")


class Shrunk(torch.nn.Module):
    """A decoder that sees a share of z."""

    def __init__(self, decoder, part):
        super().__init__()
        self.decoder, self.part = decoder, part

    def forward(self, z):
        return self.decoder(self.part * z)


@dataclass(frozen=True)
class ShrunkOptions(VAEOptions):
    part: float = option(0.5, "share of z that is seen", share_between)


class ShrunkVAE(NetworkRecipe[ShrunkOptions]):
    """A VAE whose decoder sees a share of z."""

    name, title, options = "shrunk", "a VAE that sees less of z", ShrunkOptions
    gaussian_codes = True

    @classmethod
    def defaults_for(cls, config, dataset):
        return super().defaults_for(config, dataset) | {"kl_weight": 1.0}

    def build(self):
        made = networks(self.config, self.preprocessing, self.config.size)
        decoder = Shrunk(made.decoder, self.config.part)
        return VAE(made.encoder, decoder, made.observation, self.config.size, self.num_data)

    def phases(self, model):
        return [VAEJoint(model, self.config, budgets_of(self.config)["joint"])]

    def measures(self, model, batches, split):
        return {"part": self.config.part}

    def summary(self, model):
        return [f"{self.config.part:.0%} of z is seen"]


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(RECIPES, ShrunkVAE.name, ShrunkVAE)


@pytest.mark.usefixtures("registered")
def test_every_command_knows_it(tmp_path):
    data, run = write_files(tmp_path)["binary"], tmp_path / "run"
    options = {"model": "shrunk", "latent_dim": 3, "part": 0.25, "joint_iterations": 4}
    status, out, err = train(run, data, figures=True, **options)
    assert status == 0, err
    assert "25% of z is seen\n" in out
    assert (run / "figures" / "training.png").exists()
    result = json.loads(succeed("evaluate", run, "--data", data, "--num-samples", 2, "--free-steps", 2))
    assert (result["n"], result["part"]) == (SIZE, 0.25)
    for name, added in (("encode", ()), ("sample", ("--grid", "2x2"))):
        succeed(name, run, "--out", tmp_path / f"{name}.npz", *added)
    with np.load(tmp_path / "sample.npz") as drawn:
        assert drawn["z"].shape == (4, 3)
    kill_and_resume(tmp_path / "killed", data, 2, 0.0, **options)
    assert state(tmp_path / "killed") == state(run)


@pytest.mark.usefixtures("registered")
def test_its_options_are_its_own(tmp_path):
    for arguments, message in (
        ("--model vae --part 0.2", "part: an option of shrunk, not of vae"),
        ("--model shrunk --sparsity 0.2", "sparsity: an option of vsc, not of shrunk"),
        ("--model shrunk --part 2", "part: expected a share in (0, 1), got 2.0"),
    ):
        _, _, err = command("train", "--out", tmp_path / "run", *arguments.split())
        assert err == f"pyro-fmvae: error: {message}\n"
