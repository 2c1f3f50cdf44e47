"""Free factors beside labelled ones, on a person's own colour pictures."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score

from pyro_fmvae.app.recipes import configure
from pyro_fmvae.app.runs.by_batches import in_order
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.app.runs.trainer import Trainer
from pyro_fmvae.data import load
from pyro_fmvae.evaluate import bound

COLOURS = np.array([[0.9, 0.8, 0.3], [0.3, 0.5, 0.9], [0.4, 0.8, 0.4], [0.8, 0.3, 0.4]])


def pictures(number):
    """People before a wall, uint8 [n, 20, 20, 3]; colours of coat and wall, and whether there is a hat."""
    generator = np.random.default_rng(0)
    values = np.stack([generator.integers(0, size, number) for size in (4, 4, 2)], 1)
    light = 1 + 0.05 * generator.standard_normal((number, 2, 1))
    coat, wall = (COLOURS[values[:, column]] * light[:, column] for column in (0, 1))
    x = np.tile(wall[:, None, None], (1, 20, 20, 1))
    x[:, 11:, 4:16] = coat[:, None, None]
    x[:, 5:11, 7:13] = [0.9, 0.7, 0.6]
    x[values[:, 2] == 1, 3:6, 6:14] = 0.1
    x += 0.02 * generator.standard_normal(x.shape)
    return (255 * x.clip(0, 1)).astype(np.uint8), values


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize("factors", [(2, 8, 8), None])
def test_free_factors_stay_alive_beside_labelled_ones(factors, tmp_path):
    """No phase begins by losing what the one before has learnt, and a property without a label is found."""
    x, values = pictures(1500)
    hat = np.where(np.arange(len(x)) % 5 < 2, values[:, 2], -1)[:, None]
    np.savez(tmp_path / "people.npz", x=x, labels=hat, label_names=np.array(["hat"]))
    dataset = load(str(tmp_path / "people.npz"))
    iterations = {"pretrain_iterations": 400, "prior_iterations": 20, "joint_iterations": 150}
    options = {
        "labels": 1.0,
        "factors": factors,
        "factor_dim": 4 if factors else 6,
        "hidden": (50,),
        "batch_size": 100,
    }
    config = configure(data="people.npz", spread=0.0, eager=True, **options, **iterations)
    trainer = Trainer(Run.new(tmp_path / "run", config, dataset), dataset, torch.device("cpu"))
    rows = in_order(replace(dataset.train, labels=None), trainer.device)
    first: dict[str, list[float]] = {"pretrain": [], "prior": [], "joint": []}
    last = dict.fromkeys(first, 0.0)
    for record in trainer.records():
        ends = record.fraction == 1
        if ends or record.step % 25 == 0:
            found = bound(trainer.phases[trainer.progress.phase].program, rows)["elbo"]
            first[record.phase].append(found)
            last[record.phase] = found
    truth = {one.tobytes(): value for one, value in zip(x, values, strict=True)}
    for before, after in (("pretrain", "prior"), ("prior", "joint")):
        assert min(first[after]) > last[before] - max(1.0, 0.02 * abs(last[before])), (last, first)
    codes = torch.cat([trainer.model.eval().codes(x) for x, *_ in rows])
    assert min(trainer.model.used_components()[1:]) >= 4
    assert min(len(code.unique()) for code in codes.T[1:]) >= 4
    _, walls, hats = np.array([truth[one.numpy().tobytes()] for one in dataset.train.x]).T
    assert (codes[:, 0].numpy() == hats).mean() > 0.95
    assert max(adjusted_mutual_info_score(walls, code) for code in codes.T[1:]) > 0.5
