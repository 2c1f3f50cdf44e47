"""Latent sites outside mixtures."""

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from torch.testing import assert_close

from pyro_fmvae.infer import Role, TraceConjugate_ELBO
from tests.infer.programs import BruteForce, Toy, bound, draw_z, seeded

EXACT = {"rtol": 1e-11, "atol": 1e-11}
X = torch.tensor([0.3, -1.2, 0.8])
PYROS = Trace_ELBO(num_particles=20, max_plate_nesting=1, vectorize_particles=True)


def model():
    scale = pyro.sample("scale", dist.LogNormal(0.1, 0.4))
    mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
    with pyro.plate("data", 6, subsample=torch.arange(3), dim=-1):
        local = pyro.sample("local", dist.Normal(mean, 1.0))
        pyro.sample("x", dist.Normal(local, scale), obs=X)
        pyro.factor("factor", -0.5 * local**2)


def globals_of_guide():
    pyro.sample("scale", dist.LogNormal(-0.2, 0.3))
    pyro.sample("mean", dist.Normal(0.5, 0.7))


def locals_of_guide():
    with pyro.plate("data", 6, subsample=torch.arange(3), dim=-1):
        pyro.sample("local", dist.Normal(torch.tensor([0.1, 0.2, 0.3]), 0.5))


def in_order():
    globals_of_guide()
    locals_of_guide()


def out_of_order():
    locals_of_guide()
    globals_of_guide()


def losses(guide, elbo, runs=600):
    values = torch.tensor([elbo.loss(model, guide) for _ in range(runs)])
    return values.mean(), values.std() / runs**0.5


@pytest.mark.parametrize("guide", [in_order, out_of_order])
def test_expectation_is_that_of_pyro(guide):
    (ours, error), (theirs, other) = losses(guide, TraceConjugate_ELBO()), losses(guide, PYROS, 30)
    assert abs(ours - theirs) < 4 * (error**2 + other**2) ** 0.5
    assert error < 0.05 * abs(ours)


def values(trace):
    return {name: site["value"] for name, site in trace.nodes.items() if site["type"] == "sample"}


def kl(q, p):
    return torch.distributions.kl_divergence(q, p)


def test_divergences_are_analytic_in_order():
    sites = TraceConjugate_ELBO().loss_per_site(model, in_order)
    lognormals = dist.LogNormal(-0.2, 0.3), dist.LogNormal(0.1, 0.4)
    assert_close(sites["scale"], kl(*lognormals), **EXACT)
    assert_close(sites["mean"], kl(dist.Normal(0.5, 0.7), dist.Normal(0.0, 2.0)), **EXACT)


def test_divergences_are_sampled_where_the_prior_may_depend_on_a_later_draw():
    """The guide draws mean after local, so log p(local | mean) - log q(local) is taken at the draws."""
    elbo = TraceConjugate_ELBO()
    with torch.no_grad():
        sites = seeded(elbo.loss_per_site, model, out_of_order)
        drawn = values(seeded(elbo.trace, model, out_of_order)[1])
    q, p = dist.Normal(torch.tensor([0.1, 0.2, 0.3]), 0.5), dist.Normal(drawn["mean"], 1.0)
    log_ratio = q.log_prob(drawn["local"]) - p.log_prob(drawn["local"])
    assert_close(sites["local"], 2 * log_ratio.sum(), **EXACT)
    assert_close(sites["mean"], kl(dist.Normal(0.5, 0.7), dist.Normal(0.0, 2.0)), **EXACT)


def test_pairs_without_a_closed_form_are_sampled():
    def p():
        pyro.sample("u", dist.StudentT(3.0))

    def q():
        pyro.sample("u", dist.Normal(0.3, 0.8))

    elbo = TraceConjugate_ELBO()
    value = seeded(elbo.loss_per_site, p, q)["u"]
    u = seeded(elbo.trace, p, q)[1].nodes["u"]["value"]
    assert_close(value, dist.Normal(0.3, 0.8).log_prob(u) - dist.StudentT(3.0).log_prob(u), **EXACT)


@pytest.mark.parametrize("auto", [AutoNormal, AutoDelta])
def test_autoguides_give_the_value_of_pyro(auto):
    guide = auto(model)
    guide()
    ours, theirs = (seeded(elbo().loss, model, guide) for elbo in (TraceConjugate_ELBO, Trace_ELBO))
    assert ours == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("auto", [AutoNormal, AutoDelta])
def test_autoguides_of_the_globals_of_a_mixture(auto):
    """At a drawn (or point) value of the globals, the mixture's part is that of a point mass."""
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x = toy.data()
    globals_guide = auto(poutine.block(toy.model, expose=["weights", "loc_precision"]))

    def guide(x):
        globals_guide(x)
        toy.sample_globals = lambda *_: None
        with poutine.block(hide=["factors", "components"]):
            toy.guide(x)

    guide(x)
    drawn = values(seeded(elbo.trace, toy.model, guide, x)[1])
    sites = seeded(elbo.loss_per_site, toy.model, guide, x)
    loc, scale = toy.encode(x)
    mean, precision = drawn["loc_precision"].unsqueeze(1).unbind(-2)
    gap = (loc.unsqueeze(2) - mean).square() + scale.square().unsqueeze(2)
    expected = 0.5 * (precision.log() - torch.tensor(2 * torch.pi).log() - precision * gap).sum(-1)
    entropy = dist.Normal(loc, scale).entropy().sum(-1)
    collapsed = -((expected + drawn["weights"].log()).logsumexp(-1) + entropy).sum()
    assert_close(sites["z"] + sites["assignment"], collapsed, **EXACT)
    roles = {term.name: term.role for term in elbo.terms(toy.model, guide, x)}
    assert roles["weights"] == roles["loc_precision"] == Role.KL_GLOBAL


def test_a_point_mass_for_z():
    toy, elbo = Toy(), TraceConjugate_ELBO()
    x, points = toy.data(), torch.randn(2, 20, 2)
    toy.encode = lambda x: (points, torch.full_like(points, 1e-9))
    narrow = bound(toy, elbo, x)

    def guide(x):
        x, data, factors, components = toy.plates(x)
        toy.sample_globals(factors, components)
        with data, factors:
            pyro.sample("z", dist.Delta(points, event_dim=1))

    sites = elbo.loss_per_site(toy.model, guide, x)
    exact = BruteForce(toy, x, points)
    assert_close(sites["x"], exact.reconstruction, **EXACT)
    assert_close(sites["z"] + narrow.scale * narrow.entropy.sum(), narrow.kl_z + 2 * narrow.entropy.sum())
    assert draw_z(elbo, toy.model, guide, x) is points or torch.equal(
        draw_z(elbo, toy.model, guide, x), points
    )


def test_an_auxiliary_site_of_the_guide():
    def guide():
        u = pyro.sample("u", dist.Normal(0.0, 1.0), infer={"is_auxiliary": True})
        pyro.sample("mean", dist.Delta(u.exp(), log_density=-u))
        pyro.sample("scale", dist.LogNormal(-0.2, 0.3))
        locals_of_guide()

    (ours, error), (theirs, other) = losses(guide, TraceConjugate_ELBO()), losses(guide, PYROS, 30)
    assert abs(ours - theirs) < 4 * (error**2 + other**2) ** 0.5


def test_factors_have_a_role_of_their_own_on_either_side():
    x = torch.tensor([0.3, -1.2, 0.8])
    gain = torch.tensor([0.5, 1.0, 2.0])

    def model():
        with pyro.plate("data", 6, subsample=torch.arange(3), dim=-1):
            pyro.factor("reward", gain)
            pyro.sample("x", dist.Normal(0.0, 1.0), obs=x)

    def guide():
        with pyro.plate("data", 6, subsample=torch.arange(3), dim=-1):
            pyro.factor("price", 3 * gain, has_rsample=True)

    elbo = TraceConjugate_ELBO()
    roles = elbo.loss_per_role(model, guide)
    assert_close(roles[Role.FACTOR], 2 * (3 * gain - gain).sum())
    assert_close(roles[Role.RECONSTRUCTION], -2 * dist.Normal(0.0, 1.0).log_prob(x).sum())
    assert roles[Role.KL_Z] == 0
    assert elbo.loss(model, guide) == pytest.approx(Trace_ELBO().loss(model, guide))


@pytest.mark.parametrize("guide", [in_order, out_of_order])
def test_latents_count_as_in_the_model(guide):
    """Whether by a divergence in closed form or by a draw; the guide's own scale is not looked at."""
    elbo = TraceConjugate_ELBO()
    scaled = poutine.scale(model, 3.0)
    plain = seeded(elbo.differentiable_loss, model, guide)
    assert_close(seeded(elbo.differentiable_loss, scaled, guide), 3 * plain, **EXACT)
    assert_close(seeded(elbo.differentiable_loss, model, poutine.scale(guide, 3.0)), plain, **EXACT)
