"""The table of a plan: every treatment, and the reasons."""

import pyro
import pyro.distributions as dist
import torch
from torch.nn.functional import softplus

from pyro_fmvae.distributions import NaturalNormal
from pyro_fmvae.infer import AutoConjugate, NaturalPosterior, TraceConjugate_ELBO
from tests.infer.programs import Toy

X = torch.linspace(-1.0, 1.0, 6)


def partly(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with pyro.plate("components", 2):
        locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
        free = pyro.sample("free", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        kept = torch.arange(len(x)) > 0
        pyro.sample("x", dist.Normal(locs[a], scale * softplus(free[a])), obs=x, obs_mask=kept)


def rows(plan):
    return {row.site: (row.posterior, row.treatment, row.why) for row in plan}


def test_every_treatment():
    plan = TraceConjugate_ELBO().plan(partly, AutoConjugate(partly), X)
    assert rows(plan) == {
        "weights": ("NaturalDirichlet", "exact", ""),
        "scale": ("Delta", "drawn", "no family on its support has the statistics 1/x·1/x, log, log·log"),
        "locs": ("NaturalNormal", "exact", ""),
        "free": ("Delta", "drawn", "its value is needed for 'softplus'"),
        "a": ("optimal", "summed out", ""),
        "x_observed": ("", "observed", ""),
        "x_unobserved": ("", "left out", "nothing depends on it"),
    }
    header, *lines = str(plan).splitlines()
    assert header.split() == ["site", "posterior", "treatment", "why"] and len(lines) == 7
    assert all(row.why in line for line, row in zip(lines, plan, strict=True))


def test_a_guide_without_a_natural_posterior_where_there_is_one():
    def guide(x):
        pyro.sample("loc", dist.Normal(0.0, 1.0))

    def model(x):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            a = pyro.sample("a", dist.Categorical(torch.ones(2)))
            pyro.sample("x", dist.Normal(loc + a, 1.0), obs=x)

    row = TraceConjugate_ELBO().plan(model, guide, X)["loc"]
    assert (row.treatment, row.why) == ("drawn", "the guide has no natural posterior; NaturalNormal is one")


def test_what_a_step_refuses_is_in_the_table():
    posterior = NaturalPosterior(NaturalNormal, torch.tensor([0.0, -0.5]))

    def model(x):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(loc.exp(), 1.0), obs=x)

    plan = TraceConjugate_ELBO().plan(model, lambda x: pyro.sample("loc", posterior()), X)
    assert rows(plan)["loc"] == ("NaturalNormal", "refused", "its value is needed for 'exp'")


def test_a_program_of_shorthands():
    toy = Toy()
    treatments = {
        row.site: row.treatment for row in TraceConjugate_ELBO().plan(toy.model, toy.guide, toy.data())
    }
    assert treatments == {
        "weights": "exact",
        "loc_precision": "exact",
        "assignment": "summed out",
        "z": "drawn",
        "x": "observed",
    }
