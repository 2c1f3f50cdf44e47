"""Programs that are refused, with their messages."""

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch

from pyro_fmvae.distributions import Assignment, Component, Label, LinearNormal, NormalGamma
from pyro_fmvae.infer import AutoConjugate, TraceConjugate_ELBO
from tests.infer.programs import Toy, globals_of

K, D, N = 3, 2, 7


class Replaced(poutine.messenger.Messenger):
    """Puts another distribution at a site."""

    def __init__(self, name, change):
        super().__init__()
        self.name, self.change = name, change

    def _pyro_sample(self, msg):
        if msg["name"] == self.name:
            msg["fn"] = self.change(msg["fn"])


def component(loc_precision=lambda x: x, assignment=lambda x: x):
    def change(fn):
        return Component(loc_precision(fn.loc_precision), assignment(fn.assignment))

    return Replaced("z", change)


class Skip(poutine.messenger.Messenger):
    """Leaves a guide's site out."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def __call__(self, program):
        return poutine.block(program, hide=[self.name])


def extra_site(program, fn, **options):
    def run(*args):
        program(*args)
        pyro.sample("extra", fn, **options)

    return run


def assigned(fn):
    """The guide has the assignment too, with the given distribution."""

    def programs(toy):
        toy.assigned = lambda: fn
        return toy.model, toy.guide

    return programs


def labelled(labels):
    return lambda toy: (lambda x: toy.model(x, labels), toy.guide)


def branching(toy):
    def model(x):
        assignments = poutine.trace(toy.model).get_trace(x).nodes["weights"]["value"]
        if assignments.max() > 0.5:
            pyro.sample("never", dist.Normal(0.0, 1.0), obs=torch.tensor(0.0))

    return model


def using(name, make, obs):
    """The program with one more observed site, whose distribution is made from the value of another."""

    def programs(toy):
        def model(x):
            value = poutine.trace(toy.model).get_trace(x).nodes[name]["value"]
            pyro.sample("u", make(value), obs=obs)

        return model, toy.guide

    return programs


def partly_observed(x):
    weights, loc_precision = globals_of()
    with pyro.plate("data", N, dim=-1):
        seen = torch.arange(N) < 3
        r = pyro.sample(
            "assignment", Assignment(weights), obs=torch.zeros(N, dtype=torch.int64), obs_mask=seen
        )
        pyro.sample("z", Component(loc_precision, r), obs=torch.randn(N, D))


def components_in_the_data_plate(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("data", K, dim=-1):
        loc_precision = pyro.sample("loc_precision", NormalGamma(torch.zeros(D), 1.0, 1.0, 1.0))
        r = pyro.sample("assignment", Assignment(weights))
        pyro.sample("z", Component(loc_precision, r), obs=torch.randn(K, D))


def z_outside_factors(x):
    with pyro.plate("factors", 2, dim=-2):
        weights, loc_precision = globals_of()
        data = pyro.plate("data", N, dim=-1)
        with data:
            r = pyro.sample("assignment", Assignment(weights))
    with data:
        pyro.sample("z", Component(loc_precision, r[0]), obs=torch.randn(N, D))


def components_of_other_factors(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("factors", 2, dim=-2), pyro.plate("components", K, dim=-1):
        loc_precision = pyro.sample("loc_precision", NormalGamma(torch.zeros(D), 1.0, 1.0, 1.0))
    with pyro.plate("data", N, dim=-1):
        r = pyro.sample("assignment", Assignment(weights))
        pyro.sample("z", Component(loc_precision, r), obs=torch.randn(N, D))


def too_few_components(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", 2, dim=-1):
        loc_precision = pyro.sample("loc_precision", NormalGamma(torch.zeros(D), 1.0, 1.0, 1.0))
    with pyro.plate("data", N, dim=-1):
        r = pyro.sample("assignment", Assignment(weights))
        pyro.sample("z", Component(loc_precision, r), obs=torch.randn(N, D))


def in_event_dimensions(x):
    prior = dist.Dirichlet(torch.ones(2, K)).to_event(1)
    weights = pyro.sample("weights", prior, obs=torch.full((2, K), 1 / K))
    pyro.sample("assignment", Assignment(weights).to_event(1))


def label_of_the_weights(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("data", N, dim=-1):
        pyro.sample("assignment", Assignment(weights))
    pyro.sample("label", Label(weights).to_event(0), obs=torch.zeros(K, dtype=torch.int64))


def superposed_constants(x):
    with pyro.plate("data", N, dim=-1):
        pyro.sample(
            "x", LinearNormal(torch.ones(N, K), torch.ones(D, K), torch.tensor(1.0)), obs=torch.zeros(N, D)
        )


def latent_superposition(x):
    with pyro.plate("data", N, dim=-1):
        causes = pyro.sample("causes", dist.Normal(torch.zeros(K), 1.0).to_event(1))
        pyro.sample("x", LinearNormal(causes, torch.ones(D, K), torch.tensor(1.0)))


def same_without_observations(x):
    with pyro.plate("data", N, dim=-1):
        pyro.sample("causes", dist.Normal(torch.zeros(K), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(torch.zeros(D), 1.0).to_event(1))


def mixture(points, weights=None, theta=None, size=N):
    """A mixture of given points, whose priors may be of another kind."""

    def model(x):
        pi = pyro.sample("weights", dist.Dirichlet(torch.ones(K)) if weights is None else weights)
        with pyro.plate("components", K, dim=-1):
            prior = NormalGamma(torch.zeros(D), 1.0, 1.0, 1.0) if theta is None else theta
            loc_precision = pyro.sample("loc_precision", prior)
        with pyro.plate("data", size, dim=-1):
            pyro.sample("z", Component(loc_precision, pyro.sample("r", Assignment(pi))), obs=points)

    return model


def stacked(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K, dim=-1):
        loc = pyro.sample("loc", dist.Normal(torch.zeros(D), 1.0).to_event(1))
        precision = pyro.sample("precision", dist.Gamma(torch.ones(D), 1.0).to_event(1))
    with pyro.plate("data", N, dim=-1):
        r = pyro.sample("r", Assignment(weights))
        pyro.sample("z", Component(torch.stack([loc, precision], -2), r), obs=torch.zeros(N, D))


def betas():
    return dist.Beta(torch.ones(K), 1.0).to_event(1)


def guided_by(**sites):
    """A guide with other distributions of the globals of a mixture."""

    def guide(x):
        pyro.sample("weights", sites.get("weights", dist.Dirichlet(torch.ones(K))))
        with pyro.plate("components", K, dim=-1):
            prior = NormalGamma(torch.zeros(D), 1.0, 1.0, 1.0)
            pyro.sample("loc_precision", sites.get("loc_precision", prior))

    return guide


def auto(model):
    return model, AutoConjugate(model)


def changed(*handlers, guide=None):
    def make(toy):
        model = toy.model
        for handler in handlers:
            model = handler(model)
        return model, toy.guide if guide is None else guide(toy.guide)

    return make


def other_shape(fn):
    return dist.Normal(torch.zeros(2, 1, 2), 1.0).to_event(1)


def lognormal(fn):
    return dist.LogNormal(fn.base_dist.loc, fn.base_dist.scale).to_event(1)


WRONG = {
    "a derived parent": (
        changed(component(loc_precision=lambda x: 2 * x)),
        "site 'z': argument 'loc_precision' of Component is not the value of a sample site but a tensor "
        "derived from that of 'loc_precision'; give it the very tensor that pyro.sample returned",
    ),
    "a constant parent of a LinearNormal": (
        lambda toy: (superposed_constants, lambda x: None),
        "site 'x': argument 'causes' of LinearNormal is not the value of a sample site but a tensor derived "
        "from one (or a constant); give it the very tensor that pyro.sample returned",
    ),
    "a site that is missing in the guide": (
        changed(guide=Skip("z")),
        "site 'z': it is neither observed nor in the guide, and nothing integrates over it; sample it in the "
        "guide. (AutoConjugate samples a site if an Assignment or a component is given its very value: the "
        "mean and the precision of a Component are one site of a NormalGamma)",
    ),
    "a site that is missing in the model": (
        changed(guide=lambda guide: extra_site(guide, dist.Normal(0.0, 1.0))),
        "site 'extra': it is in the guide but not in the model; sample it in the model too, or mark it by "
        "infer={'is_auxiliary': True}",
    ),
    "a plate of another size than the data, `subsample=` forgotten": (
        lambda toy: auto(mixture(torch.zeros(5, D))),
        "site 'z': its value is of shape (5, 2), but Component in plate 'data' of size 7 has the batch shape "
        "(7,) and the event shape (2,): for a batch write pyro.plate(name, N, subsample=batch), for all data "
        "a plate of their size",
    ),
    "points of another size than the components": (
        lambda toy: auto(mixture(torch.zeros(N, D + 1))),
        "site 'z': its value is of shape (7, 3), but Component in plate 'data' of size 7 has the batch shape "
        "(7,) and the event shape (2,): give events of shape (2,), or parameters of another size",
    ),
    "single numbers as points": (
        lambda toy: auto(mixture(torch.zeros(N), theta=NormalGamma(torch.zeros(1), 1.0, 1.0, 1.0))),
        "site 'z': its value is of shape (7,), but Component in plate 'data' of size 7 has the batch shape "
        "(7,) and the event shape (1,): single numbers become events by value.unsqueeze(-1)",
    ),
    "a Beta for a Dirichlet": (
        lambda toy: (mixture(torch.zeros(N, D), weights=betas()), guided_by(weights=betas())),
        "site 'weights': it has the probabilities of the 3 components of 'r', which have to add up to 1; its "
        "prior should be a Dirichlet, not Beta",
    ),
    "a mean and a precision of their own, stacked, under AutoConjugate": (
        lambda toy: auto(stacked),
        "site 'loc': it is neither observed nor in the guide, and nothing integrates over it; sample it in "
        "the guide. (AutoConjugate samples a site if an Assignment or a component is given its very value: "
        "the mean and the precision of a Component are one site of a NormalGamma)",
    ),
    "a prior without a conjugate family, under AutoConjugate": (
        lambda toy: auto(mixture(torch.zeros(N, D), theta=dist.Laplace(torch.zeros(2, D), 1.0).to_event(2))),
        "site 'loc_precision': no conjugate posterior is known for Laplace; take a prior of a family that "
        "has one (",
    ),
    "weights of another kind in the guide": (
        lambda toy: (
            mixture(torch.zeros(N, D)),
            guided_by(weights=dist.LogisticNormal(torch.zeros(K - 1), 1.0)),
        ),
        "weights: no closed form of E[log π] under LogisticNormal; give the guide a Dirichlet, a "
        "NaturalDirichlet or a Delta",
    ),
    "components of another kind in the guide": (
        lambda toy: (
            mixture(torch.zeros(N, D)),
            guided_by(loc_precision=dist.LogNormal(torch.zeros(2, D), 1.0).to_event(2)),
        ),
        "loc_precision: no closed form of E[log p] under LogNormal; give the guide a NormalGamma, in natural "
        "parameters or not, or a Delta",
    ),
    "a superposition that is not observed": (
        lambda toy: (latent_superposition, same_without_observations),
        "site 'x': LinearNormal has to be observed, by obs=",
    ),
    "components in the plate of the data": (
        lambda toy: auto(components_in_the_data_plate),
        "site 'loc_precision': components may not lie in plate 'data', which holds 'z' too; put them into a "
        "plate of their own, outside of it",
    ),
    "a child outside its assignment's plates": (
        lambda toy: auto(z_outside_factors),
        "site 'z': argument 'assignment' of Component is not the value of a sample site but a tensor derived",
    ),
    "components in a plate that the data are not in": (
        lambda toy: auto(components_of_other_factors),
        "site 'z': its batch shape (2, 7) is not that of its assignment 'assignment', (7,); put both into "
        "the same plates",
    ),
    "too few components": (
        lambda toy: auto(too_few_components),
        "site 'loc_precision': expected 3 components (as many as 'assignment' has) in its last batch "
        "dimension, got batch shape (2,); it is argument 'loc_precision' of site 'z'",
    ),
    "a mask of other dimensions than the plates": (
        changed(lambda model: poutine.mask(model, mask=torch.ones(6, 1, 1) > 0)),
        "site 'weights': its mask is of shape (6, 1, 1), but its plates of (2, 1); mask only sites in the "
        "plate that the mask is of; for parts of an event, "
        "such as steps of a sequence, mask the distribution before to_event, or the emissions of a chain",
    ),
    "shapes that differ between model and guide": (
        changed(guide=lambda guide: Replaced("z", other_shape)(guide)),
        "site 'z': batch and event shape are (2, 6) and (2,) in the model but (2, 1) and (2,) in the guide; "
        "give it the same plates and the same to_event in both",
    ),
    "to_event around an assignment": (
        lambda toy: (in_event_dimensions, lambda x: None),
        "site 'assignment': Assignment may not be wrapped by to_event; use a plate",
    ),
    "to_event around a component": (
        changed(Replaced("z", lambda fn: fn.to_event(1))),
        "site 'z': Component may not be wrapped by to_event; use a plate",
    ),
    "mask around an assignment": (
        changed(Replaced("assignment", lambda fn: fn.mask(True))),
        "site 'assignment': Assignment may not be wrapped by mask; use poutine.mask",
    ),
    "labels of another length": (
        labelled(torch.zeros(2, 5, dtype=torch.int64)),
        "site 'label': its value is of shape (2, 5), but Label in plate 'data' of size 6, 'factors' of size "
        "2 has the batch shape (2, 6) and the event shape (): for a batch write pyro.plate(name, N, "
        "subsample=batch), for all data a plate of their size",
    ),
    "labels that are no integers": (
        labelled(torch.zeros(2, 6, dtype=torch.float32)),
        "site 'label': expected integers as labels (-1: unknown), got torch.float32; convert them by .long()",
    ),
    "a label of something else": (
        lambda toy: auto(label_of_the_weights),
        "site 'label': argument 'assignment' is the value of 'weights', which is no Assignment; give it that "
        "of a pyro.sample(name, Assignment(weights))",
    ),
    "a q without a closed form": (
        changed(guide=lambda guide: Replaced("z", lognormal)(guide)),
        "site 'z': no closed form of E_q[log p] is registered for q = LogNormal and p = Component; add one "
        "with register_expected_log_prob",
    ),
    "a branch on a value that is not drawn, or writing it into a tensor": (
        lambda toy: (branching(toy), toy.guide),
        "site 'weights': its value is needed, but TraceConjugate_ELBO integrates over it in closed form "
        "and never draws it: a program may not branch on it, write it into a tensor, nor build a "
        "distribution from it, except of a class that register_expected_log_prob knows. A posterior in "
        "standard parameters (to_standard) is drawn",
    ),
    "another distribution of an assignment's value": (
        using("assignment", lambda r: dist.Normal(1.0 * r, 1.0).to_event(2), torch.zeros(2, 6)),
        "site 'assignment': its value is needed, but TraceConjugate_ELBO integrates over it",
    ),
    "another distribution of a global's value": (
        using("weights", lambda w: dist.Categorical(w).to_event(2), torch.zeros(2, 1)),
        "site 'weights': its value is needed, but TraceConjugate_ELBO integrates over it",
    ),
    "obs_mask= at an assignment": (
        lambda toy: auto(partly_observed),
        "site 'z': argument 'assignment' of Component is not the value of a sample site but a tensor derived",
    ),
    "a latent site that cannot be reparameterised": (
        lambda toy: [extra_site(run, dist.Poisson(3.0)) for run in (toy.model, toy.guide)],
        "site 'extra': Poisson in the guide has no reparameterised sampler, and no registered class sums "
        "it out; give the guide a distribution that has_rsample, or the program to pyro.infer.TraceEnum_ELBO",
    ),
    "an auxiliary site that cannot be reparameterised": (
        lambda toy: (toy.model, extra_site(toy.guide, dist.Poisson(3.0), infer={"is_auxiliary": True})),
        "site 'extra': Poisson in the guide has no reparameterised sampler; give it a distribution that "
        "has_rsample",
    ),
    "an assignment with another number of components in the guide": (
        assigned(dist.Categorical(torch.ones(2, 6, 2))),
        "site 'assignment': expected probabilities of 3 components in the guide, as in the model, got 2",
    ),
    "an assignment of another class in the guide": (
        assigned(dist.Poisson(torch.ones(2, 6))),
        "site 'assignment': expected a Categorical in the guide, or no site, got Poisson",
    ),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("validate", [True, False])
def test_wrong_programs_are_refused(case, validate):
    toy = Toy()
    x = toy.data(6)
    make, message = WRONG[case]
    with pyro.validation_enabled(validate), pytest.raises((ValueError, NotImplementedError)) as error:
        TraceConjugate_ELBO().loss(*make(toy), x)
    assert message in str(error.value)
