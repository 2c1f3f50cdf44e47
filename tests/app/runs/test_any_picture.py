"""Pictures of any size and kind are learnt with defaults: no loss is infinite or not a number."""

import math

import numpy as np
import pytest
import torch

from pyro_fmvae.app.recipes.registry import configure
from pyro_fmvae.app.runs.by_batches import in_order
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.app.runs.trainer import Trainer
from pyro_fmvae.data import load
from pyro_fmvae.evaluate import bound

pytestmark = pytest.mark.usefixtures("single_precision")

SHAPES = [(8, 8), (16, 24), (28, 28), (48, 48), (64, 64, 3), (96, 128, 3), (200, 256, 3)]
ITERATIONS = ("pretrain_iterations", "prior_iterations", "joint_iterations")


def noise(shape, n, rng):
    return rng.integers(0, 256, (n, *shape))


def constant(shape, n, rng):
    return np.full((n, *shape), 200)


def smooth(shape, n, rng):
    """Waves of a random direction and phase with a little noise, as photographs have; colours that differ."""
    y, x = np.meshgrid(*(np.linspace(0, 1, side) for side in shape[:2]), indexing="ij")
    down, across, phase = rng.normal(size=(3, n, 1, 1))
    grey = 128 + 60 * np.sin(3 * (down * y + across * x) + phase)
    pictures = np.stack([grey, grey[:, ::-1], 255 - grey], -1) if len(shape) == 3 else grey
    return (pictures + rng.normal(0, 4, pictures.shape)).clip(0, 255)


def losses(path, pictures, **options):
    """Losses of the training with defaults, and the bound of validation data at its end."""
    np.savez(path, x=pictures.astype(np.uint8))
    dataset = load(str(path))
    trainer = Trainer(
        Run.new(path.parent / "run", configure(data=str(path), **options), dataset),
        dataset,
        torch.device("cpu"),
    )
    found = [record.loss for record in trainer.records() if record.loss is not None]
    trainer.model.eval()
    return [*found, bound(trainer.model, in_order(dataset.valid, trainer.device))["elbo"]]


@pytest.mark.parametrize("pictures", [noise, constant, smooth])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_first_steps(tmp_path, shape, pictures):
    few = dict.fromkeys(ITERATIONS, 2)
    found = losses(tmp_path / "a.npz", pictures(shape, 20, np.random.default_rng(0)), eager=True, **few)
    assert len(found) == 7 and all(map(math.isfinite, found))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "pictures"), [((8, 8), noise), ((28, 28), smooth), ((48, 48), constant), ((64, 64, 3), noise)]
)
def test_hundreds_of_steps(tmp_path, shape, pictures):
    many = dict(zip(ITERATIONS, (150, 20, 150), strict=True))
    found = losses(tmp_path / "a.npz", pictures(shape, 60, np.random.default_rng(0)), **many)
    assert all(map(math.isfinite, found))
    assert np.mean(found[-11:-1]) < found[0]
