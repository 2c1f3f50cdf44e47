"""Plain Pyro programs, each against the definition of the bound and what is known of it in closed form."""

from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import pyro
import pytest
import torch
from pyro.infer import SVI
from torch.testing import assert_close
from torch.utils._pytree import tree_map

from pyro_fmvae.infer import NaturalGradient, TraceConjugate_ELBO
from tests.infer.plain import counts, hierarchies, idioms, mixtures, regressions, sequences, structure
from tests.infer.plain.oracles import assert_bound, assert_gradient, assert_trace_enum, posteriors, step
from tests.infer.plain.program import PROGRAMS, autoguide

frozen = partial(torch.optim.SGD, lr=0.0)
FILES = [
    counts,
    hierarchies,
    idioms,
    mixtures,
    regressions,
    sequences,
    structure,
]  # importing these fills the table


def entries(has=lambda entry: True, quick=None):
    """The programs that have a property; those not named by ``quick`` are slow, if it is given."""
    slow = {name for name in PROGRAMS if quick is not None and name not in quick}
    found = [
        pytest.param(entry, id=name, marks=[pytest.mark.slow] if name in slow else [])
        for name, entry in PROGRAMS.items()
        if has(entry)
    ]
    return pytest.mark.parametrize("entry", found)


@entries()
def test_plan(entry):
    args, guide = entry.setup()
    plan = TraceConjugate_ELBO().plan(entry.model, guide, *args)
    assert {row.site: row.treatment for row in plan} == entry.plan


@entries()
def test_bound_and_gradient(entry):
    args, guide = entry.setup()
    step(entry.model, guide, *args, rate=0.6)
    assert assert_bound(entry.model, guide, *args, twin=entry.twin) < 1
    assert_gradient(entry.model, guide, *args)


def is_comparable(entry):
    """Probabilities of single points are the whole posterior, none is 0, and the loss has no draws in it.

    Pyro's replay of a Markov chain of continuous sites does not find the observed ones in the guide.
    """
    treatments = list(entry.plan.values())
    exceptions = ("zero_inflated_poisson", "mixture_behind_a_decoder", "random_walk")
    return treatments.count("summed out") <= 1 and entry.name not in exceptions


ONE_OF_EACH = (
    "diagonal_mixture",
    "bernoulli_mixture",
    "topic_model",
    "dirichlet_process_mixture",
    "one_mixture_per_row_by_vindex",
    "probabilistic_pca",
    "masked_observations",
    "subsample",
)


@pytest.mark.filterwarnings("ignore:Singular sample detected")
@entries(is_comparable, quick=ONE_OF_EACH)
def test_bound_is_that_of_trace_enum(entry):
    args, guide = entry.setup()
    step(entry.model, guide, *args, rate=0.6)
    assert_trace_enum(entry.model, guide, *args, twin=entry.twin)


@entries(lambda entry: entry.update)
def test_step_is_the_update_derived_by_hand(entry):
    args, guide = entry.setup()
    expected = entry.update(posteriors(guide, *args), *args)
    step(entry.model, guide, *args, rate=1.0)
    for site, wanted in expected.items():
        posterior = guide.posterior(site)
        assert_close(posterior.natural_value(), posterior.kind.family.pack(wanted), rtol=1e-8, atol=1e-8)


@entries(lambda entry: entry.evidence)
def test_one_step_reaches_the_evidence(entry):
    args, guide = entry.setup()
    step(entry.model, guide, *args, rate=1.0)
    loss = TraceConjugate_ELBO().loss(entry.model, guide, *args)
    assert -loss == pytest.approx(float(entry.evidence(*args)), rel=1e-8)


@entries(lambda entry: "exact" in entry.plan.values() and entry.name != "mixture_behind_a_decoder")
def test_steps_of_rate_1_never_raise_the_loss(entry):
    """The program that is left out draws in each step."""
    args, guide = entry.setup()
    svi = SVI(entry.model, guide, NaturalGradient(1.0, frozen), TraceConjugate_ELBO())
    losses = [svi.step(*args) for _ in range(4)]
    assert all(after <= before + 1e-10 * abs(before) for before, after in pairwise(losses))


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def loss_after_a_step(entry, default, inside):
    """The loss where the model has its tensors in the type ``inside``, and everything else a default."""
    args, start = entry.setup()
    args = tree_map(lambda x: x.to(inside) if torch.is_tensor(x) and x.is_floating_point() else x, args)

    def model(*args):
        with default_dtype(inside):
            entry.model(*args)

    with default_dtype(default):
        guide = entry.make_guide(model)
        guide.load_state_dict(start.state_dict())
        step(model, guide, *args, rate=0.6)
        pyro.set_rng_seed(0)
        return TraceConjugate_ELBO().loss(model, guide, *args)


@entries(lambda entry: entry.make_guide is autoguide)
def test_programs_in_either_type_whatever_the_default_dtype(entry):
    wanted = loss_after_a_step(entry, torch.float64, torch.float64)
    assert loss_after_a_step(entry, torch.float32, torch.float64) == pytest.approx(wanted, rel=1e-9)
    if entry.name != "regression_on_features_of_a_network":  # which is in float64
        single = loss_after_a_step(entry, torch.float32, torch.float32)
        assert single == pytest.approx(wanted, rel=1e-3, abs=1e-3)
