import ast
import inspect
import math
import sys
from dataclasses import fields

import pytest

from pyro_fmvae.app.recipes.coders import em_rate_of
from pyro_fmvae.app.recipes.registry import configure, models_with
from pyro_fmvae.app.recipes.settings import budgets_of
from pyro_fmvae.data.splitting import SHARE
from pyro_fmvae.learn import options
from pyro_fmvae.learn.options import LARGEST, PHASES, BSCOptions, FMVAEOptions, VAEOptions, VSCOptions
from pyro_fmvae.models.em.binary_mean_field import LARGEST_GROUP

NUMBERS = [
    *[
        (name, value)
        for name in ("factor_dim", "batch_size", "free_steps", "pseudo_inputs")
        for value in (0, -1, LARGEST + 1)
    ],
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
    *[("time_limit", value) for value in (-1.0, math.nan, math.inf)],
    *[("delay", value) for value in (-1.0, math.nan, math.inf)],
    *[("forgetting", value) for value in (0.5, 1.1, math.nan)],
    *[("first_step", value) for value in (0.0, 1.1, math.nan)],
    *[("label_weight", value) for value in (-1.0, math.nan, math.inf)],
    *[("kl_weight", value) for value in (0.0, math.nan)],
    *[("label_distance", value) for value in (-1.0, math.nan, math.inf)],
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
        configure(models_with(name)[0], **{name: value})


def test_unknown_model():
    with pytest.raises(
        ValueError,
        match=r"^model: expected one of fmvae, vae, vsc, bsc, max-sparse, linear-sparse, mixture, "
        r"hidden-markov, topics, got 'no'$",
    ):
        configure("no")


@pytest.mark.parametrize("compile", [None, False, True])
@pytest.mark.parametrize("eager", [False, True])
def test_eager_steps_cannot_be_compiled(eager, compile):
    if eager and compile:
        with pytest.raises(ValueError, match=r"^compile: eager steps cannot be compiled$"):
            configure(eager=eager, compile=compile)
    else:
        assert configure(eager=eager, compile=compile).eager is eager


def test_budgets_in_iterations():
    config = configure(pretrain_iterations=1, prior_iterations=2, joint_iterations=3, refine_iterations=0)
    assert [budget.iterations for budget in budgets_of(config).values()] == [1, 2, 3, 0]


def test_step_sizes_of_statistics():
    rate = em_rate_of(configure("bsc", em_forgetting=0.75))
    assert [rate(step) for step in (0, 1, 14)] == pytest.approx([2**-0.75, 3**-0.75, 1 / 8])


@pytest.mark.parametrize("kind", [FMVAEOptions, VAEOptions, VSCOptions, BSCOptions])
def test_options_that_data_choose_are_unset_for_a_command_alone(kind):
    """From Python they have values, as phases need them."""
    here, there = kind(), configure(kind().model)
    for one in fields(kind):
        assert getattr(there, one.name) == (None if one.metadata["by_data"] else getattr(here, one.name))
    for name in ("weight_decay", "kl_weight", "free_from", "label_weight", "augment_until"):
        assert getattr(here, name, 0.0) is not None


def test_options_are_data():
    """Their module imports the standard library alone; what it repeats of others is the same."""
    tree = ast.parse(inspect.getsource(options))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
    assert (options.SHARE, options.LARGEST_GROUP) == (SHARE, LARGEST_GROUP)
