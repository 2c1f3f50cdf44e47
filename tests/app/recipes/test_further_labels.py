"""Labels that come after the training: how a factor for them starts, and what it learns from."""

from itertools import islice

import pytest
import torch

from pyro_fmvae.app.recipes import further_labels
from pyro_fmvae.app.recipes.further_labels import HALF, further, refine
from pyro_fmvae.app.recipes.registry import configure, resolved
from pyro_fmvae.data import Dataset, Kind, Preprocessing, Split
from pyro_fmvae.learn import Budget
from pyro_fmvae.models.label_predictor import LabelPredictor

pytestmark = pytest.mark.usefixtures("single_precision")
POINTS, SIDE, KNOWN = 120, 8, 20
SIDES = torch.arange(POINTS) % 2  # 1: the right half is bright


def halves():
    """Pictures with a bright left or right half."""
    x = 0.1 * torch.rand(POINTS, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    x[SIDES == 0, :, : SIDE // 2] += 0.8
    x[SIDES == 1, :, SIDE // 2 :] += 0.8
    return x


@pytest.fixture
def start(monkeypatch):
    """Starts a factor for the bright side: the model before it learns, and batches to learn from."""

    def start(known):
        batches = []

        def fit(phases, stream):
            assert phases[0].options.label_distance == 0  # what the factor is started from stays
            batches.extend(islice(stream, 3))
            return iter(())

        monkeypatch.setattr(further_labels, "fit", fit)
        torch.manual_seed(0)
        split = Split(halves(), torch.cat([known, torch.full((POINTS - len(known),), -1)])[:, None])
        config = configure(
            "fmvae", data="mine.npz", factors=(3,), network="mlp", hidden=(16,), label_distance=9.0
        )
        preprocessing = Preprocessing(Kind.REAL, (SIDE, SIDE))
        trained = resolved(config, Dataset("mine", Split(split.x), Split(split.x), None, preprocessing))
        grown, model = further(trained, trained.build(), ["bright"], [("left", "right")])
        model.predictors["0"] = LabelPredictor(SIDE * SIDE, 2, 1, 1)  # of an earlier training
        refine(grown, model, split, Budget(iterations=3), [0])
        return model, batches

    return start


def test_its_values_are_told_apart_before_any_step(start):
    model, _ = start(SIDES[:KNOWN])
    told = model.responsibilities(halves())[0].argmax(-1)
    assert (told == SIDES).float().mean() > 0.95
    assert not model.predictors


def test_neighbours_are_labelled(start):
    _, batches = start(SIDES[:KNOWN])
    x, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    right = x[:, :, SIDE // 2 :].mean((1, 2)) > x[:, :, : SIDE // 2].mean((1, 2))
    assert (labels[:, 0] == right).float().mean() > 0.95


def test_half_of_each_batch_is_labelled_where_neighbours_tell_nothing(start):
    _, batches = start(torch.arange(KNOWN) // 2 % 2)
    assert len(batches) == 3
    for _, labels in batches:
        assert (labels[:-HALF] >= 0).all() and (labels[-HALF:] < 0).any()
