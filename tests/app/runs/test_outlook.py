"""What the log says of the time that training takes."""

import logging
import re

import pytest
import torch

from pyro_fmvae.app.recipes import RECIPES, configure
from pyro_fmvae.app.recipes.registry import options_of
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.app.runs.session import Outlook, announce, rehearse
from pyro_fmvae.app.runs.trainer import Trainer
from pyro_fmvae.data import load
from pyro_fmvae.learn.fitting import Record
from tests.small_runs import write_files

pytestmark = pytest.mark.usefixtures("single_precision")


def test_estimate_comes_once_and_then_every_minute_what_is_left(caplog):
    outlook = Outlook(torch.device("cpu"))
    steps = [(1, None, None), (10, 0.04, 240.0), (11, 0.04, 239.0), (1500, 0.04, 180.0), (1501, 0.04, 179.0)]
    with caplog.at_level(logging.INFO, "pyro_fmvae"):
        for step, pace, left in steps:
            outlook.update(Record("joint", step, step, 0.1, 1.0, 0.04 * step, pace, left))
            if step == 1500:
                outlook.update(Record("joint", step, step, 0.1, 1.0, 61.0, pace, left))
    first, *others = caplog.messages
    assert first.startswith("about 4 min: 6,010 steps of 40 ms; ") and first.endswith("of memory so far")
    assert others == ["joint step 1500: about 3 min left"]


def trainer_of(folder, model="fmvae", kind="binary", **options):
    data = str(write_files(folder)[kind])
    given = {name: value for name, value in {"hidden": (6,), **options}.items() if name in options_of(model)}
    config = configure(model, data, **given)
    sparse = RECIPES[model].reading(config, data)
    dataset = load(data, sparse=sparse)
    return Trainer(Run.new(folder / "run", config, dataset), dataset, torch.device("cpu"))


@pytest.mark.parametrize("options", [{"labels": 1.0}, {"pretrain_iterations": 0}, {"model": "vae"}])
def test_steps_are_rehearsed_without_a_trace(tmp_path, options):
    trainer = trainer_of(tmp_path, **options)
    state = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    random, batch = torch.get_rng_state(), trainer.batches.state_dict()
    assert 0 < rehearse(trainer) < 60
    assert torch.equal(torch.get_rng_state(), random) and trainer.batches.state_dict() == batch
    assert all(torch.equal(value, state[name]) for name, value in trainer.model.state_dict().items())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"joint_iterations": 7, "pretrain_iterations": 2},
            r"about .* or less: 211 steps of up to .* m?s, and",
        ),
        (
            {"max_minutes": 3.0},
            r"at most 3 min: steps of up to .* m?s, and then the report; about .* GiB of memory$",
        ),
        ({}, r"about .* or less: .* steps of up to .* m?s, cut short after 5 min, and then the report; "),
        pytest.param(
            {"model": "mixture", "kind": "table"},
            "at most 5 min, and then the report; ",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_time_and_memory_are_told_before_training(tmp_path, caplog, options, expected):
    trainer = trainer_of(tmp_path, **options)
    with caplog.at_level(logging.INFO, "pyro_fmvae"):
        announce(trainer)
    assert re.match(expected, caplog.messages[-1])
    assert trainer.progress.spare == -trainer.progress.total_seconds <= 0


def test_a_step_that_fails_is_left_to_the_training(tmp_path):
    trainer = trainer_of(tmp_path, kind="table")
    trainer.batches._x.fill_(float("inf"))
    assert rehearse(trainer) is None
