"""Plain Pyro programs, each held against the definition of the bound and what is known of it in closed form."""

import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from torch.distributions import Independent
from torch.testing import assert_close

from pyro_fmvae.distributions import NaturalParameter
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer import TraceConjugate_ELBO
from tests.infer.plain import counts, hierarchies, mixtures, regressions, sequences, structure
from tests.infer.plain.program import PROGRAMS, brute_force, posteriors

TABLE = [counts, hierarchies, mixtures, regressions, sequences, structure]  # importing these fills the table

every = pytest.mark.parametrize("entry", PROGRAMS.values(), ids=PROGRAMS.keys())


def naturals(guide):
    return {name: p for name, p in guide.named_parameters() if isinstance(p, NaturalParameter)}


def step(entry, guide, args, rate):
    """Move every natural posterior; returns the loss before."""
    for p in guide.parameters():
        p.grad = None
    loss = TraceConjugate_ELBO().differentiable_loss(entry.model, guide, *args)
    loss.backward()
    with torch.no_grad():
        for p in naturals(guide).values():
            p -= rate * p.grad
    return loss.item()


@every
def test_bound_is_that_of_its_definition(entry):
    args, guide = entry.setup()
    step(entry, guide, args, 0.6)
    bound, error = brute_force(entry.twin, guide, *args)
    loss = TraceConjugate_ELBO().loss(entry.model, guide, *args)
    assert abs(loss + bound) < 4 * error + 1e-9 * abs(bound)
    assert error < max(0.2, 0.01 * abs(bound))  # so that the comparison has power


@every
def test_gradient_is_that_of_the_bound(entry):
    """Along one random direction: (∂E[t]/∂λ)·gradient is the ordinary gradient, which differences give."""
    args, guide = entry.setup()
    step(entry, guide, args, 0.6)
    step(entry, guide, args, 0.0)
    parameters, width = naturals(guide), 3e-5
    start = {name: p.detach().clone() for name, p in parameters.items()}
    along = {name: width * p.detach().abs() * torch.randn_like(p) for name, p in parameters.items()}
    families = {name: guide.get_submodule(name.rpartition(".")[0]).kind.family for name in parameters}
    losses, predicted = [], 0.0
    for sign in (1, -1):
        for name, p in parameters.items():
            p.data.copy_(start[name] + sign * along[name])
            predicted += sign * (families[name].mean_stats(p.detach()) * p.grad).sum().item()
        losses.append(TraceConjugate_ELBO().loss(entry.model, guide, *args))
    assert losses[0] - losses[1] == pytest.approx(predicted, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("name", [name for name, entry in PROGRAMS.items() if entry.update])
def test_step_is_the_update_derived_by_hand(name):
    entry = PROGRAMS[name]
    args, guide = entry.setup()
    expected = entry.update(posteriors(guide, *args), *args)
    step(entry, guide, args, 1.0)
    found = posteriors(guide, *args)
    assert expected.keys() <= found.keys()
    for site, wanted in expected.items():
        family = guide.posterior(site).kind.family
        assert_close(guide.posterior(site).natural_value(), family.pack(wanted), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", [name for name, entry in PROGRAMS.items() if entry.evidence])
def test_one_step_reaches_the_evidence(name):
    entry = PROGRAMS[name]
    args, guide = entry.setup()
    step(entry, guide, args, 1.0)
    loss = TraceConjugate_ELBO().loss(entry.model, guide, *args)
    assert -loss == pytest.approx(float(entry.evidence(*args)), rel=1e-8)
