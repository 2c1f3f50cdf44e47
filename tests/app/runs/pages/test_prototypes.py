"""Training pictures that stand for components, found in an encoding that is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pyro_fmvae.app.runs.pages import prototypes as module
from pyro_fmvae.app.runs.pages.prototypes import prototypes
from pyro_fmvae.data import Kind, Preprocessing, Split
from tests.app.commands.labelled_run import RUN

BRIGHT = torch.arange(8, dtype=torch.uint8)  # each picture is of its row's number
RUN_OF_PICTURES = replace(RUN, recipe=replace(RUN.recipe, preprocessing=Preprocessing(Kind.IMAGE, (2, 2))))
GAMMA = np.array([0.9, 1.0, 0.9999, 1.0, 1.0, 0.2, 0.1, 0.1])  # of the first factor's component 1
MEANS = np.array([0.0, 9.0, 1.0, 2.0, 3.0, 0.0, 0.0, 5.0])
CODES = np.array([1, 1, 1, 1, 1, 0, 0, 0])


@pytest.fixture
def found(monkeypatch):
    encoded = {
        "codes": np.stack([CODES, np.full(8, 2), np.zeros(8, dtype=int)], 1),
        "mean": np.stack([MEANS, np.zeros(8), np.zeros(8)], 1),
        "responsibilities_0": np.stack([1 - GAMMA, GAMMA], 1),
        "responsibilities_1": np.eye(3)[np.full(8, 2)],
        "responsibilities_2": np.eye(5)[np.zeros(8, dtype=int)],
    }
    monkeypatch.setattr(module, "encode_rows", lambda *_: encoded)
    rows = Split(BRIGHT[:, None, None].expand(8, 2, 2).clone(), signed=True)
    return prototypes(RUN_OF_PICTURES, torch.nn.Linear(1, 1), rows)


def test_components_come_by_their_share_without_those_of_no_point(found):
    assert [[(one.name, one.share) for one, _ in factor] for factor in found] == [
        [("1", 5 / 8), ("0", 3 / 8)],
        [("7", 1.0)],
        [("0", 1.0)],
    ]


def test_sure_points_come_first_then_those_near_the_average(found):
    """The average of rows 0 to 4 is 3; row 0 is less sure, and row 2 as sure as can be told."""
    (_, pictures), *_ = found[0]
    assert (pictures.dtype, pictures.shape) == (np.uint8, (5, 2, 2))
    assert pictures[:, 0, 0].tolist() == [4, 3, 2, 1, 0]


def test_pictures_are_few(found):
    assert len(found[1][0][1]) == module.PICTURES
