import math
from dataclasses import fields, replace

import pytest
import torch

from pyro_fmvae.config import LARGEST, PHASES, TrainConfig, resolve
from pyro_fmvae.data import Dataset, Kind, Preprocessing, Split
from pyro_fmvae.infer.phase import Budget


def dataset(shape=(4, 4), kind=Kind.BINARY, label_sizes=(), name="mine"):
    split = Split(torch.zeros(3, *shape, dtype=torch.bool))
    names = tuple(f"label{i}" for i in range(len(label_sizes)))
    return Dataset(name, split, split, split, Preprocessing(kind, shape), names, label_sizes)


NUMBERS = [
    *[(name, value) for name in ("factor_dim", "batch_size") for value in (0, -1, LARGEST + 1)],
    *[(f"{phase}_iterations", value) for phase in PHASES for value in (-1, LARGEST + 1)],
    *[("seed", value) for value in (-1, LARGEST + 1)],
    *[("labels", value) for value in (-0.1, 1.1, math.nan)],
    *[(name, value) for name in ("factors", "hidden") for value in ((), (0,), (2, -1), (LARGEST + 1,))],
    *[
        (name, value)
        for name in ("c0", "s0", "a0", "b0", "learning_rate")
        for value in (0.0, math.nan, math.inf)
    ],
    *[("max_minutes", value) for value in (0.0, -1.0, math.nan, math.inf)],
    *[("delay", value) for value in (-1.0, math.nan, math.inf)],
    *[("forgetting", value) for value in (0.5, 1.1, math.nan)],
    *[("first_step", value) for value in (0.0, 1.1, math.nan)],
    *[("label_weight", value) for value in (-1.0, math.nan, math.inf)],
    *[("kl_weight", value) for value in (0.0, math.nan)],
    *[("kl_annealing", value) for value in (-0.1, 1.1, math.nan)],
    ("m0", math.nan),
]


@pytest.mark.parametrize(("name", "value"), NUMBERS)
def test_number_out_of_range(name, value):
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        TrainConfig(**{name: value})


@pytest.mark.parametrize(
    "data", [dataset(), dataset((28, 28)), dataset((6,), Kind.TABLE), dataset((4, 4, 3), Kind.IMAGE, (2, 3))]
)
def test_resolved_options_are_complete_and_stay(data):
    config = resolve(TrainConfig(data="mine.npz"), data)
    optional = {"data_root", "max_minutes", "final_learning_rate", "compile"}
    for option in fields(config):
        assert getattr(config, option.name) is not None or option.name in optional, option.name
    assert resolve(config, data) == config
    assert TrainConfig.from_dict(config.to_dict()) == config


def test_given_options_are_kept():
    given = TrainConfig(
        data="mine.npz", factors=(2, 2), factor_dim=3, hidden=(7,), batch_size=9, joint_iterations=0
    )
    config = resolve(given, dataset())
    for name in ("factors", "factor_dim", "hidden", "batch_size", "joint_iterations"):
        assert getattr(config, name) == getattr(given, name)


def test_smiley_is_the_name_of_the_data_not_of_a_file():
    faces = dataset((32, 32), label_sizes=(2, 2, 2, 2), name="smiley")
    assert resolve(TrainConfig(), faces).factors == (2, 2, 2, 2)
    assert resolve(TrainConfig(data="/home/me/smiley.npz"), faces).labels == 0


def test_refining_is_for_labels():
    data = dataset(label_sizes=(2,))
    assert resolve(TrainConfig(labels=0.5), data).refine_iterations > 0
    for config in (TrainConfig(labels=0.0), TrainConfig(labels=0.5, label_weight=0.0)):
        assert resolve(config, data).refine_iterations == 0


@pytest.mark.parametrize(
    ("changes", "data", "message"),
    [
        ({"labels": 0.5}, dataset(), "^labels: the data set 'mine' has no labels"),
        (
            {"labels": 0.5, "factors": (2,)},
            dataset(label_sizes=(2, 2)),
            "^factors: expected at least one for each",
        ),
        (
            {"labels": 0.5, "factors": (2, 9)},
            dataset(label_sizes=(3, 2)),
            "^factors: label 'label0' has values up to 2",
        ),
        ({"network": "conv28"}, dataset(), "^network: conv28 takes 28x28 images"),
        (
            dict.fromkeys((f"{name}_iterations" for name in PHASES), 0),
            dataset(),
            "^iterations: expected at least one",
        ),
    ],
)
def test_options_that_do_not_fit_the_data(changes, data, message):
    with pytest.raises(ValueError, match=message):
        resolve(TrainConfig(data="mine.npz", **changes), data)


@pytest.mark.parametrize("compile", [None, False, True])
@pytest.mark.parametrize("eager", [False, True])
def test_eager_steps_cannot_be_compiled(eager, compile):
    if eager and compile:
        with pytest.raises(ValueError, match=r"^compile: eager steps cannot be compiled$"):
            TrainConfig(eager=eager, compile=compile)
    else:
        assert TrainConfig(eager=eager, compile=compile).eager is eager


def test_budgets_in_iterations():
    config = TrainConfig(pretrain_iterations=1, prior_iterations=2, joint_iterations=3, refine_iterations=0)
    assert [budget.iterations for budget in config.budgets()] == [1, 2, 3, 0]


@pytest.mark.parametrize(
    "left_out", [(), ("refine",), ("pretrain", "prior"), ("pretrain", "prior", "refine")]
)
def test_minutes_are_shared_out_among_the_phases_that_there_are(left_out):
    config = resolve(TrainConfig(data="mine.npz", labels=1.0, max_minutes=7.0), dataset(label_sizes=(2,)))
    config = replace(config, **{f"{name}_iterations": 0 for name in left_out})
    budgets = dict(zip(PHASES, config.budgets(), strict=True))
    assert sum(budget.minutes for budget in budgets.values()) == pytest.approx(7)
    assert {name for name, budget in budgets.items() if budget.empty} == set(left_out)
    assert all(isinstance(budget, Budget) and budget.iterations is None for budget in budgets.values())
