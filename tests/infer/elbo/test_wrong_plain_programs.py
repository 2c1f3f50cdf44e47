"""Plain programs that are refused, with their messages."""

from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fmvae.distributions import Label, NaturalDirichlet, NaturalGamma, NaturalNormal
from pyro_fmvae.infer import AutoConjugate, TraceConjugate_ELBO
from pyro_fmvae.infer.elbo.trace_conjugate_elbo import loss_per_point

K, N = 2, 4


def normal():
    return NaturalNormal(torch.tensor([0.5, -0.5]))


def gamma():
    return NaturalGamma(torch.tensor([1.0, -1.0]))


def guided_by(**posteriors):
    """A guide with posteriors outside of plates."""

    def guide(x):
        for name, make in posteriors.items():
            pyro.sample(name, make())

    return guide


def location(link):
    """A location by a function of a Normal."""

    def model(x):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("data", N):
            pyro.sample("x", dist.Normal(link(loc), 1.0), obs=x)

    return model


def identity(loc):
    return loc


def mixture(x, size=N, child=None, components=K):
    """A mixture of Normals, or what hangs on its assignments by ``child(locs, a, x)``."""
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", components):
        locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
    with pyro.plate("data", size):
        a = pyro.sample("a", dist.Categorical(weights))
        if child is None:
            pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x)
        else:
            child(locs, a, x)


def decoded(locs, a, x):
    z = pyro.sample("z", dist.Normal(locs[a], 1.0))
    pyro.sample("x", dist.Normal(z.tanh(), 1.0), obs=x)


def of_globals(x, size=K, component=normal):
    pyro.sample("weights", NaturalDirichlet(torch.ones(K)))
    with pyro.plate("components", size):
        pyro.sample("locs", component())


def of_mixture(x, a):
    """A guide with the assignments too."""
    of_globals(x)
    with pyro.plate("data", N):
        pyro.sample("a", a)


def with_probabilities_of_one(x):
    of_globals(x)
    pyro.sample("a", dist.Categorical(torch.ones(K)))


def with_its_own_draw(x):
    of_globals(x)
    with pyro.plate("data", N):
        a = pyro.sample("a", dist.Categorical(torch.ones(N, K)))
        pyro.sample("z", dist.Normal(a.double(), 1.0))


def poisson_latent(x):
    rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
    with pyro.plate("data", N):
        count = pyro.sample("count", dist.Poisson(rate))
        pyro.sample("x", dist.Normal(count, 1.0), obs=x)


def discrete_event(x):
    p = pyro.sample("p", dist.Beta(torch.ones(3), 1.0).to_event(1))
    a = pyro.sample("a", dist.Bernoulli(p).to_event(1))
    with pyro.plate("data", N):
        pyro.sample("x", dist.Normal(a.sum(-1), 1.0), obs=x)


def one_point(x):
    rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
    z = pyro.sample("z", dist.Normal(0.0, 1.0))
    pyro.sample("x", dist.Normal(z.tanh(), rate.rsqrt()), obs=x[0])


def labelled(x):
    def child(locs, a, x):
        pyro.sample("label", Label(a), obs=torch.tensor([0, 1, -1, -1]))
        pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x)

    mixture(x, child=child)


def two_levels(x):
    rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
    scale = pyro.sample("scale", dist.Gamma(2.0, rate))
    with pyro.plate("data", N):
        pyro.sample("x", dist.Normal(0.0, 1 + scale.tanh()), obs=x)


def named_twice(x):
    for _ in range(2):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    pyro.sample("x", dist.Normal(loc, 1.0), obs=x[0])


class GammaWithoutGradient(dist.Gamma):
    has_rsample = False


def subsampled_groups(x):
    with pyro.plate("groups", 2 * N, subsample_size=N):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(loc, 1.0), obs=x)


def with_a_fallback(x):
    """A guide that samples itself what the fallback of its conjugate part samples."""

    def model(x):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("data", N):
            z = pyro.sample("z", dist.Normal(loc, 1.0))
            pyro.sample("x", dist.Normal(z.tanh(), 1.0), obs=x)

    conjugate = AutoConjugate(model)

    def guide(x):
        conjugate(x)
        with pyro.plate("data", N):
            pyro.sample("z", dist.Normal(x, 1.0))

    loss(model, guide)(x)


def loss(model, guide, **options):
    def run(x):
        TraceConjugate_ELBO(**options).loss(model, guide, x)

    return run


def automatic(model, **options):
    return lambda x: loss(model, AutoConjugate(model, **options))(x)


def another_size(x):
    def model(x):
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("x", dist.Normal(z, 1.0), obs=x)

    guide, elbo = AutoConjugate(model), TraceConjugate_ELBO()
    elbo.loss(model, guide, x[:2])
    elbo.loss(model, guide, x)


def conjugate(**options):
    """The loss of a conjugate program, with an option."""
    return loss(location(identity), guided_by(loc=normal), max_plate_nesting=1, **options)


def crossed(x):
    rows, columns = pyro.plate("rows", 2, dim=-2), pyro.plate("columns", 2, dim=-1)
    locs = pyro.sample("locs", dist.Normal(torch.zeros(K), 5.0).to_event(1))
    with rows:
        z = pyro.sample("z", dist.Bernoulli(0.5))
    with columns:
        w = pyro.sample("w", dist.Bernoulli(0.5))
    with rows, columns:
        pyro.sample("x", dist.Normal(locs[z.long()] + w, 1.0), obs=x.reshape(2, 2))


def by_point(x):
    def model(x):
        kind = pyro.sample("kind", dist.Bernoulli(0.5))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(kind, 1.0), obs=x)

    loss_per_point(TraceConjugate_ELBO(), model, lambda x: None, x, plate="data")


CHOOSE = (
    "Let AutoConjugate(model) choose its distribution in the guide; or give it a natural posterior of a "
    "family that has this expectation, or any other distribution, which is then drawn"
)
OPTION = (
    "for a program of Pyro's own distributions; leave it out, or write the program with Assignment and "
    "Component, which have it"
)
WRONG = {
    "a natural posterior of a site that has no closed form": (
        loss(location(torch.tanh), guided_by(loc=normal)),
        "site 'loc': its value is needed (for 'tanh')",
        CHOOSE,
    ),
    "a branch on a natural site": (
        loss(location(lambda loc: loc if loc > 0 else -loc), guided_by(loc=normal)),
        "site 'loc': its value is needed (for a truth value)",
        CHOOSE,
    ),
    "a `NaturalGamma` for a Normal": (
        loss(mixture, partial(of_globals, component=gamma)),
        "site 'locs': its value is needed (for a product that its posterior has no expectation of)",
        CHOOSE,
    ),
    "a latent Poisson": (
        automatic(poisson_latent),
        "site 'count': Poisson has no finite support to sum over; write the density of what hangs on it with "
        "the site summed out (a GammaPoisson for a Poisson of a Gamma, say)",
    ),
    "a discrete site under `to_event`": (
        automatic(discrete_event),
        "site 'a': Bernoulli may not be wrapped by to_event where it is summed out; use a plate",
    ),
    "discrete sites of rows and of columns, with what depends on both": (
        automatic(crossed),
        "sites 'z' and 'w': they are summed out together, but lie in the plates 'rows' and 'columns', "
        "neither of which is inside of the other; sample both in the guide, or, if 'columns' is short, make "
        "it sequential, as for i in pyro.plate('columns', size)",
    ),
    "a guide that uses its own discrete draw": (
        loss(partial(mixture, child=decoded), with_its_own_draw),
        "site 'a': the guide uses its draw, but the site is summed out; compute from its probabilities "
        "instead, or leave it out of the guide",
    ),
    "probabilities of more values than the model's": (
        loss(mixture, partial(of_mixture, a=dist.Categorical(torch.ones(N, 3)))),
        "site 'a': expected probabilities of 2 values in the guide, as in the model, got Categorical of 3; "
        "give it a Categorical of 2, or leave it out of the guide",
    ),
    "a Poisson for a Categorical": (
        loss(mixture, partial(of_mixture, a=dist.Poisson(torch.ones(N)))),
        "site 'a': expected probabilities of 2 values in the guide, as in the model, got Poisson of no "
        "finite number; give it a Categorical of 2, or leave it out of the guide",
    ),
    "a discrete site of the guide outside of its plate": (
        loss(mixture, with_probabilities_of_one),
        "site 'a': batch and event shape are (4,) and () in the model but () and () in the guide; give it "
        "the same plates and the same to_event in both",
    ),
    "a plate of another size in the guide": (
        loss(mixture, partial(of_globals, size=3)),
        "site 'locs': plate 'components' is of size 2 in the model but 3 in the guide; give it the same size "
        "in both",
    ),
    "latents of single points, and data of another size": (
        another_size,
        "site 'z': plate 'data' is of size 4 in the model but 2 in the guide; give it the same size in both. "
        "A guide such as AutoConjugate has the sizes of its first call: make a new one for other data",
    ),
    "a plate of one component under several weights": (
        loss(partial(mixture, components=1), partial(of_globals, size=1)),
        "site 'locs': it is of size 1, but an index picks among 2, as an assignment with 2 values does; put "
        "it into a plate of size 2",
    ),
    "observed values in a list": (
        lambda x: automatic(location(identity))([0.0, 1.0]),
        "site 'x': expected a tensor as its value, got list; convert it by torch.as_tensor",
    ),
    "observed values in an array": (
        lambda x: loss(location(identity), guided_by(loc=normal))(x.numpy()),
        "site 'x': expected a tensor as its value, got ndarray; convert it by torch.as_tensor",
    ),
    "a plate of another size than plain data": (
        automatic(partial(mixture, size=3)),
        "site 'x': its value is of shape (4,), but Normal in plate 'data' of size 3 has the batch shape "
        "(2, 3) and the event shape (): for a batch write pyro.plate(name, N, subsample=batch), for all data "
        "a plate of their size",
    ),
    "data points of several numbers at a site of single ones": (
        lambda x: automatic(mixture)(torch.stack([x, x], -1)),
        "site 'x': its value is of shape (4, 2), but Normal in plate 'data' of size 4 has the batch shape "
        "(2, 4) and the event shape (): data points of shape (2,) are events: give the parameters these "
        "dimensions, and write .to_event(1) at their site and at this one",
    ),
    "a name that the model uses twice": (
        automatic(named_twice),
        "site or plate 'loc': the model has it twice. Name each site once; make a plate once, enter it twice",
    ),
    "a latent site that the guide leaves out": (
        loss(partial(mixture, child=decoded), of_globals),
        "site 'z': it is neither observed nor in the guide, and nothing integrates over it; sample it in the "
        "guide. (AutoConjugate(model) samples every site, unless it has fallback=None)",
    ),
    "a site in a plate that subsamples, under `fallback=None`": (
        automatic(subsampled_groups, fallback=None),
        "site 'loc': it is neither observed nor in the guide, and nothing integrates over it; sample it in "
        "the guide. (AutoConjugate(model) samples every site, unless it has fallback=None)",
    ),
    "a guide that samples what a fallback samples too": (
        with_a_fallback,
        "site or plate 'data': the guide has it twice. The fallback of an AutoConjugate samples every site "
        "without a natural posterior, in the model's plates: give it fallback=None where the rest of the "
        "guide does so",
    ),
    "a site that the model lacks": (
        loss(location(identity), guided_by(loc=normal, extra=normal)),
        "site 'extra': it is in the guide but not in the model; sample it in the model too, or mark it by "
        "infer={'is_auxiliary': True}",
    ),
    "a drawn site without gradients": (
        loss(two_levels, guided_by(rate=gamma, scale=lambda: GammaWithoutGradient(1.0, 1.0))),
        "site 'scale': GammaWithoutGradient in the guide has no reparameterised sampler; give it a "
        "distribution that has_rsample",
    ),
    "`kl_weight` of a drawn site, where the data share no plate": (
        loss(one_point, AutoConjugate(one_point), kl_weight=0.5),
        "kl_weight: expected 1 with 'z' drawn, since the observed sites share no plate that would tell "
        "latents of single data points from others; put the data into one plate, or weight sites by "
        "poutine.scale",
    ),
    "`label_weight` without a `Label`": (
        conjugate(label_weight=0.5),
        "label_weight: expected 0 in a program without a Label, which is all that it weights; write "
        'pyro.sample("label", Label(assignment), obs=labels), with -1 for labels that are unknown',
    ),
    "`label_weight` with natural posteriors of what has a label": (
        loss(labelled, of_globals, label_weight=0.5),
        "site 'weights': while label_weight > 0, the posterior of a labelled factor has no natural-gradient "
        "step; give the guide its distribution in standard parameters (to_standard), under a first-order "
        "optimiser",
    ),
    "`independence_weight` of a plain program": (
        conjugate(independence_weight=0.5),
        f"independence_weight: expected 0.0 {OPTION}",
    ),
    "losses by point where points are summed out together": (
        by_point,
        "plate: site 'kind' is outside of 'data' and summed out with all of its points together, so that "
        "none has a loss of its own; name a plate that the site is in",
    ),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("validate", [True, False])
def test_wrong_programs_are_refused(case, validate):
    run, *parts = WRONG[case]
    with pyro.validation_enabled(validate), pytest.raises(ValueError) as error:
        run(torch.tensor([0.0, 1.0, 5.0, 6.0]))
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_the_plan_tells_what_a_subsampled_plate_hides():
    def model(x):
        mixture(x)
        with pyro.plate("groups", 2 * N, subsample_size=N):
            group = pyro.sample("group", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(group, 1.0), obs=x)

    plan = TraceConjugate_ELBO().plan(model, AutoConjugate(model), torch.zeros(N))
    why = "plate 'groups' is subsampled, so no run shows its posterior whole; have it "
    why += "found for each batch by local=['groups'], or write it by hand"
    assert (plan["group"].treatment, plan["group"].why) == ("drawn", why)


def test_three_weights_of_two_components_are_refused():
    """Where torch itself finds the index out of range."""

    def model(x):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
        with pyro.plate("components", 2):
            locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
        with pyro.plate("data", N):
            pyro.sample("x", dist.Normal(locs[pyro.sample("a", dist.Categorical(weights))], 1.0), obs=x)

    def guide(x):
        pyro.sample("weights", NaturalDirichlet(torch.ones(3)))
        with pyro.plate("components", 2):
            pyro.sample("locs", normal())

    message = "site 'locs': it is of size 2, but an index picks among 3, as an assignment with 3 values does"
    with pytest.raises(ValueError, match=message):
        loss(model, guide)(torch.zeros(N))


def test_a_guide_that_was_refused_is_set_up_anew():
    model = location(identity)
    guide = AutoConjugate(model)
    with pytest.raises(ValueError, match="got list"):
        guide([0.0])
    assert guide(torch.zeros(N)).keys() == {"loc"}
