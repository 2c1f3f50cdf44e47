"""The table of a plan: every treatment, and the reasons."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal
from torch.nn.functional import softplus

from pyro_fmvae.distributions import NaturalNormal
from pyro_fmvae.infer import AutoConjugate, NaturalPosterior, TraceConjugate_ELBO
from tests.infer.programs import Toy

pytestmark = pytest.mark.usefixtures("own_families")

X = torch.linspace(-1.0, 1.0, 6)
PRECISION = "give the precision a Gamma prior, and write precision.rsqrt() as the scale"
PROBABILITY = "without regressors, give probs= a Beta prior, or a Dirichlet prior for several values"
MATRIX = "give the precision matrix a Wishart prior, and pass it as precision_matrix="
GUARD = "leave it out, as expectations of logarithms are finite without it"
AUXILIARY = "write a Normal, with a Gamma(df / 2, df / 2) site in its plate as a factor of the precision"


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
        "scale": (
            "transformed Normal",
            "drawn",
            f"no closed form as scale of Normal at 'x_observed'; {PRECISION}",
        ),
        "locs": ("NaturalNormal", "exact", ""),
        "free": (
            "Normal",
            "drawn",
            f"no closed form as scale of Normal at 'x_observed', because of 'softplus'; {PRECISION}",
        ),
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
    assert rows(plan)["loc"] == (
        "NaturalNormal",
        "refused",
        "no closed form as loc of Normal at 'x', because of 'exp'",
    )


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


def one_site(prior, likelihood, value=X):
    """A model of one latent site ``s``, and data given its value."""

    def model():
        s = pyro.sample("s", prior)
        with pyro.plate("data", len(value)):
            pyro.sample("x", likelihood(s), obs=value)

    return model


def branching(s):
    return dist.Normal(s if s > 0 else -s, 1.0)


def padded(s):
    result = torch.zeros(3)
    result[1:] = s
    return result


REGRESSORS = torch.randn(6, 2)
COEFFICIENTS = dist.Normal(torch.zeros(2), 1.0).to_event(1)
COUNTS = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
REASONS = {
    "a half-Cauchy scale": (
        one_site(dist.HalfCauchy(5.0), lambda s: dist.Normal(0.0, s)),
        f"no closed form as scale of Normal at 'x'; {PRECISION}",
    ),
    "a uniform scale, whose support no family has": (
        one_site(dist.Uniform(0.0, 9.0), lambda s: dist.Normal(0.0, s)),
        f"no closed form as scale of Normal at 'x'; {PRECISION}",
    ),
    "a Gamma variance": (
        one_site(dist.Gamma(1.0, 1.0), lambda s: dist.Normal(0.0, s.sqrt())),
        "its Gamma prior is not conjugate to scale of Normal at 'x'; write an InverseGamma prior",
    ),
    "a log-normal rate": (
        one_site(dist.LogNormal(0.0, 1.0), dist.Poisson, COUNTS),
        "its LogNormal prior is not conjugate to rate of Poisson at 'x'; write a Gamma prior",
    ),
    "a Cauchy location": (
        one_site(dist.Cauchy(0.0, 1.0), lambda s: dist.Normal(s, 1.0)),
        "its Cauchy prior is not conjugate to loc of Normal at 'x'; write a Normal prior",
    ),
    "a positive coefficient": (
        one_site(dist.HalfNormal(1.0), lambda s: dist.Normal(s * REGRESSORS[:, 0], 1.0)),
        "no closed form as loc of Normal at 'x'; a Normal prior, on all real numbers, has one",
    ),
    "logistic regression": (
        one_site(COEFFICIENTS, lambda s: dist.Bernoulli(logits=REGRESSORS.to(s) @ s), COUNTS),
        f"no closed form as logits of Bernoulli at 'x'; {PROBABILITY}",
    ),
    "a rate by an exponential": (
        one_site(COEFFICIENTS, lambda s: dist.Poisson((REGRESSORS.to(s) @ s).exp()), COUNTS),
        "no closed form as rate of Poisson at 'x', because of 'exp'; without regressors, give the rate "
        "a Gamma prior",
    ),
    "a sum of rates": (
        one_site(dist.Gamma(1.0, 1.0), lambda s: dist.Poisson(s + 1.0), COUNTS),
        "no closed form as rate of Poisson at 'x'; its Gamma prior has one where rate is the value itself",
    ),
    "a precision plus another": (
        one_site(dist.Gamma(1.0, 1.0), lambda s: dist.Normal(0.0, (s + 1.0).rsqrt())),
        "no closed form as scale of Normal at 'x', because of the power -0.5 of a sum; a sum has none, so "
        "pick one value by an index, such as precision[z], where that is meant",
    ),
    "zeros among counts": (
        one_site(dist.Gamma(1.0, 1.0), lambda s: dist.ZeroInflatedPoisson(s, gate=torch.tensor(0.5)), COUNTS),
        "no closed form as rate of ZeroInflatedPoisson at 'x'; write a Bernoulli site z in its plate, with a "
        "Beta prior, and a Poisson of torch.where(z == 1, rate, 0.0)",
    ),
    "a Student-t likelihood": (
        one_site(dist.Normal(0.0, 1.0), lambda s: dist.StudentT(4.0, s, 1.0)),
        f"no closed form as loc of StudentT at 'x'; {AUXILIARY}",
    ),
    "a Cholesky factor of correlations": (
        one_site(
            dist.LKJCholesky(2, 1.0),
            lambda s: dist.MultivariateNormal(torch.zeros(2), scale_tril=s),
            REGRESSORS,
        ),
        f"no closed form as scale_tril of MultivariateNormal at 'x'; {MATRIX}",
    ),
    "a location that is a precision too": (
        one_site(dist.Gamma(1.0, 1.0), lambda s: dist.Normal(s * REGRESSORS[:, 0], s.rsqrt())),
        "no closed form as loc and scale of Normal at 'x'",
    ),
    "a guard of a rate": (
        one_site(dist.Gamma(1.0, 1.0), lambda s: dist.Poisson(s + 1e-8), COUNTS),
        f"no closed form as rate of Poisson at 'x', because of + 1e-08; {GUARD}",
    ),
    "a guard in a tensor": (
        one_site(dist.Gamma(1.0, 1.0), lambda s: dist.Poisson(torch.maximum(s, torch.tensor(1e-6))), COUNTS),
        f"no closed form as rate of Poisson at 'x', because of maximum with 1e-06; {GUARD}",
    ),
    "a value that is assigned to an element": (
        one_site(COEFFICIENTS, lambda s: dist.Normal(padded(s)[1], 1.0)),
        "the model writes it into a tensor by an assignment; write torch.cat, torch.stack or F.pad",
    ),
    "a guard of a precision": (
        one_site(dist.Gamma(1.0, 1.0), lambda s: dist.Normal(0.0, (1e-6 + s).rsqrt())),
        f"no closed form as scale of Normal at 'x', because of + 1e-06; {GUARD}",
    ),
    "a guard of probabilities": (
        one_site(dist.Dirichlet(torch.ones(2)), lambda s: dist.Categorical(s + 1e-8), COUNTS),
        f"no closed form as probs of Categorical at 'x', because of + 1e-08; {GUARD}",
    ),
    "a clamp of a probability": (
        one_site(dist.Beta(1.0, 1.0), lambda s: dist.Bernoulli(s.clip(1e-3, 1 - 1e-3)), COUNTS),
        f"no closed form as probs of Bernoulli at 'x', because of clamp(min=0.001, max=0.999); {GUARD}",
    ),
    "a guard that is not what it lacks": (
        one_site(dist.HalfCauchy(1.0), lambda s: dist.Normal(0.0, s + 1e-6)),
        f"no closed form as scale of Normal at 'x'; {PRECISION}",
    ),
    "a rate of rates": (
        one_site(dist.Gamma(1.0, 1.0), lambda s: dist.GammaPoisson(2.0, s), COUNTS),
        "no closed form as rate of GammaPoisson at 'x'; write a Gamma of concentration and rate in its "
        "plate, and a Poisson of that",
    ),
    "survival": (
        one_site(dist.Gamma(1.0, 1.0), lambda s: dist.Bernoulli((-2 * s).exp()), COUNTS),
        "no closed form as probs of Bernoulli at 'x', because of 'exp'; a Bernoulli of exp(-x) that is 1 has "
        "the density of a Poisson of x that is 0: write that, if no 0 is observed",
    ),
    "a branch": (
        one_site(dist.Normal(0.0, 1.0), branching),
        "the model branches on its value",
    ),
    "a number taken out": (
        one_site(dist.Normal(0.0, 1.0), lambda s: dist.Normal(float(s), 1.0)),
        "the model takes its value out of the tensor, or writes into it, by 'float'; compute with the "
        "tensor; 'float' passes no gradient on, so nothing that depends on it moves it",
    ),
    "a density of no family": (
        lambda: pyro.sample("s", dist.HalfCauchy(1.0)),
        "no family has the density of its HalfCauchy prior",
    ),
}


@pytest.mark.filterwarnings("ignore:site 's'.*'float' passes no gradient on")
@pytest.mark.parametrize("case", REASONS)
def test_why_a_site_is_drawn(case):
    """Without an exact site too, where the guide is Pyro's alone."""
    model, why = REASONS[case]
    row = TraceConjugate_ELBO().plan(model, AutoConjugate(model))["s"]
    assert (row.treatment, row.why) == ("drawn", why)


def test_a_clamp_that_is_left_out_is_in_the_table():
    model = one_site(dist.Beta(1.0, 1.0), lambda s: dist.Bernoulli(s.clamp(1e-6, 1 - 1e-6)), COUNTS)
    row = TraceConjugate_ELBO().plan(model, AutoConjugate(model))["s"]
    assert (row.treatment, row.why) == ("exact", "clamp(min=1e-06, max=0.999999) is left out")


def test_a_reason_names_the_use_that_has_no_closed_form():
    def model(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = pyro.sample("tau", dist.HalfCauchy(5.0))
        with pyro.plate("schools", len(y)):
            theta = pyro.sample("theta", dist.Normal(mu, tau))
            pyro.sample("y", dist.Normal(theta, 10.0), obs=y)

    plan = TraceConjugate_ELBO().plan(model, AutoConjugate(model), X)
    why = f"no closed form as scale of Normal at 'theta'; {PRECISION}"
    assert plan["tau"].why == why and plan["theta"].treatment == "exact"


@pytest.mark.parametrize(
    "fallback, posterior",
    [
        (AutoNormal, "transformed Normal"),
        (AutoMultivariateNormal, "joint MultivariateNormal"),
        (AutoDelta, "Delta"),
    ],
)
def test_the_posterior_of_pyros_guides_is_what_they_draw(fallback, posterior):
    model = one_site(dist.HalfCauchy(5.0), lambda s: dist.Normal(0.0, s))
    assert (
        TraceConjugate_ELBO().plan(model, AutoConjugate(model, fallback=fallback))["s"].posterior == posterior
    )


def chain(x):
    position = pyro.sample("position_0", dist.LogNormal(0.0, 1.0))
    for step in range(1, 13):
        position = pyro.sample(f"position_{step}", dist.Normal(position.square(), 1.0))
    pyro.sample("x", dist.Normal(position, 1.0), obs=x)


def test_sites_that_differ_in_a_number_share_a_line():
    plan = TraceConjugate_ELBO().plan(chain, AutoConjugate(chain), X[0])
    lines = [line.split("  ") for line in str(plan).splitlines()]
    assert len(plan.rows) == 14
    assert [line[0] for line in lines] == [
        "site",
        "position_0",
        "position_1 … position_11 (11 sites)",
        "position_12",
        "x",
    ]


def test_a_beta_for_a_dirichlet():
    def model(x):
        with pyro.plate("values", 2):
            weights = pyro.sample("weights", dist.Beta(1.0, 1.0))
        with pyro.plate("data", len(x)):
            a = pyro.sample("a", dist.Categorical(weights))
            pyro.sample("x", dist.Normal(a, 1.0), obs=x)

    assert TraceConjugate_ELBO().plan(model, AutoConjugate(model), X)["weights"].why == (
        "no closed form as probs of Categorical at 'a'; its probabilities add up to 1, so give all of them "
        "one Dirichlet prior"
    )


def test_a_site_that_is_not_there():
    plan = TraceConjugate_ELBO().plan(chain, AutoConjugate(chain), X[0])
    assert plan["position_3"].site == "position_3"
    with pytest.raises(KeyError, match="position_99"):
        plan["position_99"]
