import math

import pytest

from pyro_fmvae.config import LARGEST, PHASES, TrainConfig

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
    *[("independence_weight", value) for value in (-1.0, math.nan, math.inf)],
    *[("free_from", value) for value in (-0.1, 1.1, math.nan)],
    *[("kl_annealing", value) for value in (-0.1, 1.1, math.nan)],
    *[("augment_until", value) for value in (-0.1, 1.1, math.nan)],
    *[
        (name, value)
        for name in ("weight_decay", "distortion", "augmentation")
        for value in (-1.0, math.nan, math.inf)
    ],
    *[("pretrain_kl_weight", value) for value in (0.0, math.nan, math.inf)],
    ("prior_restarts", 0),
    *[("hold_out", value) for value in (-0.1, 1.0, math.nan)],
    *[
        (name, value)
        for name in ("width", "min_scale", "max_scale")
        for value in (0.0, -1.0, math.nan, math.inf)
    ],
    ("label_names", ()),
    ("m0", math.nan),
    *[(name, value) for name in ("latent_dim", "starts", "sweeps") for value in (0, LARGEST + 1)],
    *[("group_size", value) for value in (0, 11)],
    *[
        (name, value)
        for name in ("restart_every", "reseed_every", "preselect")
        for value in (-1, LARGEST + 1)
    ],
    *[(name, value) for name in ("patch_size", "patches") for value in (1, LARGEST + 1)],
    *[("temperature", value) for value in (0.9, math.nan, math.inf)],
    *[("em_forgetting", value) for value in (0.5, 1.1, math.nan)],
]


@pytest.mark.parametrize(("name", "value"), NUMBERS)
def test_number_out_of_range(name, value):
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        TrainConfig(**{name: value})


def test_unknown_model():
    with pytest.raises(
        ValueError,
        match=r"^model: expected one of fmvae, vae, vsc, bsc, max-sparse, linear-sparse, got 'nonsense'$",
    ):
        TrainConfig.from_dict({"model": "nonsense"})


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


def test_step_sizes_of_statistics():
    rate = TrainConfig(em_forgetting=0.75, delay=10.0, forgetting=0.6, first_step=0.5).em_rate
    assert [rate(step) for step in (0, 1, 14)] == pytest.approx([2**-0.75, 3**-0.75, 1 / 8])
