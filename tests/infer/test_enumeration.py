"""Programs under Pyro's own TraceEnum_ELBO, and with Pyro's other tools."""

from functools import partial

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import MCMC, NUTS, JitTraceEnum_ELBO, Predictive, TraceEnum_ELBO, infer_discrete
from pyro.infer.autoguide import init_to_value
from pyro.infer.inspect import get_model_relations
from pyro.ops.stats import effective_sample_size
from torch.testing import assert_close

from pyro_fmvae.distributions import Assignment, Component, NormalGamma
from pyro_fmvae.infer import NaturalGradient, TraceConjugate_ELBO, with_assignments
from tests.infer.programs import Adjust, Toy, assert_equal_in_expectation, bound, estimate, gradients, nodes

PARTICLES = 100
LABELS = torch.tensor([[0, -1, 2, -1, 1, 0], [-1, -1, 1, 0, 2, -1]])
# Pyro cannot know that x does not depend on the assignments, once these are enumerated in the guide.
pytestmark = pytest.mark.filterwarnings(r"ignore:(?s)\s*at model site \"x\", possibly invalid:RuntimeWarning")


def enumerating(**options):
    settings = {"num_particles": PARTICLES, "vectorize_particles": True, "max_plate_nesting": 2, **options}
    return TraceEnum_ELBO(**settings)


def ours(**options):
    settings = {"num_particles": PARTICLES, "vectorize_particles": True, "max_plate_nesting": 2, **options}
    return TraceConjugate_ELBO(**settings)


@pytest.mark.parametrize("labels", [(), (LABELS,)], ids=["unlabelled", "labelled"])
@pytest.mark.parametrize("size", [{"factors": 2}, {"factors": 1}, {"components": 1}], ids=str)
def test_value_equals_trace_enum_with_the_assignment_in_the_guide(size, labels):
    toy = Toy(**size)
    labels = tuple(x[: toy.factors].clamp(max=toy.components - 1) for x in labels)
    x = toy.data(6)
    guide = with_assignments(toy.model, toy.guide)
    theirs = estimate(lambda: enumerating().loss(toy.model, guide, x, *labels))
    conjugate = estimate(lambda: ours().loss(toy.model, toy.guide, x, *labels))
    assert_equal_in_expectation(theirs, conjugate)
    assert theirs[1] < 0.01 * conjugate[0].abs()


def picked(locs, a):
    return locs[a.long()]


def weighted(locs, a):
    return a @ locs


@pytest.mark.parametrize(
    "prior, mean",
    [
        (lambda p: dist.Categorical(torch.stack([1 - p, p])), picked),
        (dist.Bernoulli, picked),
        (lambda p: dist.OneHotCategorical(torch.stack([1 - p, p])), weighted),
    ],
    ids=["Categorical", "Bernoulli", "OneHotCategorical"],
)
@pytest.mark.parametrize("plates", [1, 3])
def test_discrete_sites_of_plain_programs(prior, mean, plates):
    """With constant parameters no bound is noisy. Pyro may be told of more plates than there are."""

    def model():
        with pyro.plate("data", 3):
            a = pyro.sample("a", prior(torch.tensor(0.3)), infer={"enumerate": "parallel"})
            pyro.sample("x", dist.Normal(mean(torch.tensor([-1.0, 2.0]), a), 1.0), obs=torch.arange(3.0))

    def guide():
        pass

    theirs = TraceEnum_ELBO(max_plate_nesting=plates).loss(model, with_assignments(model, guide))
    mixture = (
        torch.tensor([0.7, 0.3])
        * dist.Normal(torch.tensor([-1.0, 2.0]), 1.0).log_prob(torch.arange(3.0)[:, None]).exp()
    )
    assert theirs == pytest.approx(-mixture.sum(-1).log().sum().item(), abs=1e-5)


def test_value_equals_trace_enum_with_masked_points():
    toy = Toy()
    x = toy.data(6)
    keep = torch.tensor([True, False, True, True, False, True])
    adjust = Adjust(["x", "z", "assignment"], mask=keep)
    model, guide = adjust(toy.model), adjust(toy.guide)
    theirs = estimate(lambda: enumerating().loss(model, with_assignments(model, guide), x))
    assert_equal_in_expectation(theirs, estimate(lambda: ours().loss(model, guide, x)))


def test_the_bound_of_subsampling_plates():
    toy = Toy(num_data=12)
    x = toy.data(12)
    whole = bound(toy, TraceConjugate_ELBO(), x)
    toy.batch_size = 4
    guide, elbo = with_assignments(toy.model, toy.guide), TraceConjugate_ELBO()
    theirs = estimate(lambda: enumerating(num_particles=1).loss(toy.model, guide, x), 150)
    assert_equal_in_expectation(theirs, estimate(lambda: elbo.loss(toy.model, toy.guide, x), 150))
    names = ("weights.natural", "loc_precision.natural")

    def evaluate():
        sites = elbo.loss_per_site(toy.model, toy.guide, x)
        latent = sum(value for name, value in sites.items() if name != "x")
        grads = gradients(latent, toy)
        return torch.cat([latent.detach().reshape(1), *(grads[name].flatten() for name in names)])

    steps = [
        toy.get_parameter(n).detach() - best for n, best in zip(names, whole.optimum(x, toy), strict=True)
    ]
    latent = (whole.total - whole.reconstruction).detach()
    expected = torch.cat([latent.reshape(1), *(step.flatten() for step in steps)])
    assert_equal_in_expectation(estimate(evaluate, 150), (expected, torch.zeros(())))


def test_the_added_assignments_belong_to_the_same_minibatch():
    toy = Toy(num_data=12)
    toy.batch_size, x = 4, toy.data(12)
    trace = nodes(with_assignments(toy.model, toy.guide), x)
    index, q = trace["data"]["value"], trace["assignment"]["fn"]
    toy.batch_size = None
    toy.num_data = 4
    expected = TraceConjugate_ELBO().responsibilities(toy.model, toy.guide, x[index])["assignment"]
    assert_close(q.probs, expected)
    assert trace["assignment"]["scale"] == 3


def test_gradients_equal_those_of_trace_enum():
    toy = Toy()
    x = toy.data(6)
    guide = with_assignments(toy.model, toy.guide)
    names = [name for name, _ in toy.named_parameters()]

    def gradient(elbo, guide):
        grads = gradients(elbo.differentiable_loss(toy.model, guide, x), toy)
        return torch.cat([grads[name].flatten() for name in names])

    theirs = estimate(lambda: gradient(enumerating(), guide))
    conjugate = estimate(lambda: gradient(ours(), toy.guide))
    assert_equal_in_expectation(theirs, conjugate)
    # The comparison has power: errors are small against the gradients themselves, natural ones included.
    sizes = [parameter.numel() for parameter in toy.parameters()]
    for error, mean in zip(theirs[1].split(sizes), conjugate[0].split(sizes), strict=True):
        assert error.norm() < 0.2 * mean.norm()


def test_enumeration_in_the_model_is_the_tighter_bound():
    toy = Toy()
    x = toy.data(6)
    theirs, error = estimate(lambda: enumerating().loss(toy.model, toy.guide, x))
    conjugate, other = estimate(lambda: ours().loss(toy.model, toy.guide, x))
    assert theirs + 4.5 * (error**2 + other**2).sqrt() < conjugate


def test_svi_with_trace_enum_trains_the_same_program():
    toy = Toy()
    x = toy.data()
    optim = NaturalGradient(0.1, partial(torch.optim.Adam, lr=1e-2))
    svi = pyro.infer.SVI(toy.model, toy.guide, optim, enumerating(num_particles=1))
    before = toy.encoder.weight.detach().clone()
    svi.step(x)
    assert not torch.equal(before, toy.encoder.weight)


def test_infer_discrete_finds_the_likely_components():
    toy = Toy(components=3, dim=2)
    x = toy.data(6)
    posterior = nodes(toy.guide, x)
    drawn = {name: posterior[name]["value"] for name in ("weights", "loc_precision", "z")}
    conditioned = poutine.condition(toy.model, data=drawn)
    decoded = nodes(infer_discrete(conditioned, first_available_dim=-3, temperature=0), x)
    loc, precision = drawn["loc_precision"].unsqueeze(1).unbind(-2)
    normal = torch.distributions.Normal(loc, precision.rsqrt())
    logits = drawn["weights"].log() + normal.log_prob(drawn["z"].unsqueeze(-2)).sum(-1)
    assert_close(decoded["assignment"]["value"], logits.argmax(-1))


def test_predictive_draws_from_model_and_guide():
    toy = Toy()
    x = toy.data(6)
    sites = ["weights", "loc_precision", "assignment", "z", "x"]
    prior = Predictive(toy.model, num_samples=3, return_sites=sites)(x)
    assert prior["assignment"].shape == (3, 2, 6)
    assert prior["z"].shape == (3, 2, 6, 2)
    posterior = Predictive(toy.model, guide=toy.guide, num_samples=3, return_sites=sites)(x)
    assert posterior["weights"].shape == (3, 2, 1, 3)
    conditioned = poutine.condition(toy.model, data={"assignment": torch.ones(2, 6, dtype=torch.int64)})
    assert (Predictive(conditioned, num_samples=3, return_sites=sites)(x)["assignment"] == 1).all()


def test_model_relations():
    toy = Toy()
    relations = get_model_relations(toy.model, (toy.data(6), torch.zeros(2, 6, dtype=torch.int64)))
    assert set(relations["sample_sample"]["z"]) >= {"loc_precision", "assignment"}
    assert set(relations["sample_sample"]["label"]) >= {"assignment"}
    assert set(relations["sample_sample"]["assignment"]) >= {"weights"}
    assert relations["plate_sample"]["data"] == ["assignment", "label", "z"]
    assert relations["observed"] == ["label", "x"]
    assert relations["sample_dist"]["z"] == "Component"


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_traced_estimators_do_not_find_the_parameters():
    toy = Toy()
    traced = JitTraceEnum_ELBO(max_plate_nesting=2, ignore_jit_warnings=True)
    with pytest.raises(KeyError, match=r"\$\$\$"):
        traced.loss_and_grads(toy.model, toy.guide, toy.data())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_nuts_samples_the_posterior_of_a_mixture():
    """Assignments summed out by Pyro, the rest by Hamiltonian dynamics; by all 2⁶ assignments on a grid."""
    x, noise = torch.tensor([-2.4, -1.4, -1.0, -0.2, 2.0, 3.1]), 1.0
    prior, c0 = NormalGamma(torch.tensor([[-1.0], [1.0]]), 0.5, 3.0, 2.0), 2.0

    def model():
        weights = pyro.sample("weights", dist.Dirichlet(torch.full((2,), c0)))
        with pyro.plate("components", 2):
            loc_precision = pyro.sample("loc_precision", prior)
        with pyro.plate("data", len(x)):
            assignment = pyro.sample("assignment", Assignment(weights), infer={"enumerate": "parallel"})
            z = pyro.sample("z", Component(loc_precision, assignment))
            pyro.sample("x", dist.Normal(z, noise).to_event(1), obs=x[:, None])

    mu, log_alpha = torch.linspace(-8, 8, 161), torch.linspace(-4, 3, 141)
    grid = torch.cartesian_prod(mu, log_alpha.exp())  # [G, 2]
    log_prior = prior.log_prob(grid[:, None, :, None]) + grid[:, 1:].log()  # over log α, [G, 2]
    scale = (1 / grid[:, 1:] + noise**2).sqrt()
    log_likelihood = torch.distributions.Normal(grid[:, :1], scale).log_prob(x)  # [G, N]
    belongs = torch.cartesian_prod(*[torch.arange(2.0)] * len(x))  # [A, N]
    belongs = torch.stack([1 - belongs, belongs], -1)  # [A, N, 2]
    joint = log_prior[:, None] + torch.einsum("gn,ank->gak", log_likelihood, belongs)
    counts = belongs.sum(1) + c0
    given = torch.einsum("gak,gs->ask", joint.softmax(0), grid)  # E[μ] and E[α] for each assignment
    means = torch.cat([(counts / counts.sum(-1, keepdim=True)).unsqueeze(1), given], 1)
    log_evidence = (joint.logsumexp(0) + counts.lgamma()).sum(-1)
    exact = torch.einsum("a,ask->sk", log_evidence.softmax(0), means)

    start = init_to_value(values={"z": x[:, None].clone()})
    kernel = NUTS(model, init_strategy=start, jit_compile=True, ignore_jit_warnings=True)
    mcmc = MCMC(kernel, num_samples=600, warmup_steps=100, disable_progbar=True)
    mcmc.run()
    drawn = mcmc.get_samples()
    assert drawn["z"].shape == (600, len(x), 1)
    samples = torch.cat([drawn["weights"].unsqueeze(1), drawn["loc_precision"].squeeze(-1).mT], 1)
    error = samples.std(0) / effective_sample_size(samples.unsqueeze(0)).clamp(max=600).sqrt()
    assert (error < torch.tensor([[0.02], [0.2], [0.1]])).all()
    assert ((samples.mean(0) - exact).abs() < 4.5 * error).all()
