"""Starts of an autoguide's posteriors from clusters, held against posteriors given the clusters by hand."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI
from torch import nn
from torch.nn.functional import one_hot
from torch.testing import assert_close

from pyro_fmvae.distributions import Assignment, Component, NormalGamma
from pyro_fmvae.infer import AutoConjugate, NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.infer.posteriors import to_standard
from pyro_fmvae.infer.seeding import kmeans

K, N = 3, 40


def generator():
    return torch.Generator().manual_seed(0)


def assigned(size=N, **plate):
    """Sample weights, and an assignment of each data point inside the plate that stays open."""
    weights = pyro.sample("weights", dist.Dirichlet(torch.full((K,), 0.7)))
    data = pyro.plate("data", size, **plate)
    return weights, data


def normal(x):
    weights, data = assigned(len(x))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(1.0, 10.0))
    with data:
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], 1.5), obs=x)


def normal_posterior(x, members):
    precision = 0.01 + members.sum(0) / 1.5**2
    return {"locs": dist.Normal((0.01 + members.mT @ x / 1.5**2) / precision, precision.rsqrt())}


def poisson(x):
    weights, data = assigned(len(x))
    with pyro.plate("components", K):
        rates = pyro.sample("rates", dist.Gamma(2.0, 0.5))
    with data:
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Poisson(rates[a]), obs=x)


def poisson_posterior(x, members):
    return {"rates": dist.Gamma(2.0 + members.mT @ x, 0.5 + members.sum(0))}


def multinomial(x):
    weights, data = assigned(len(x))
    with pyro.plate("components", K):
        rows = pyro.sample("rows", dist.Dirichlet(torch.full((4,), 0.3)))
    with data:
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Multinomial(20, rows[a]), obs=x)


def multinomial_posterior(x, members):
    return {"rows": dist.Dirichlet(0.3 + members.mT @ x)}


def diagonal(x):
    weights, data = assigned(len(x))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 5.0).to_event(1))
        precisions = pyro.sample("precisions", dist.Gamma(2.0 * torch.ones(2), 1.5).to_event(1))
    with data:
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], precisions[a].rsqrt()).to_event(1), obs=x)


def diagonal_posterior(x, members):
    """The fixed point of the two updates, which depend on each other."""
    count, total, square = members.sum(0)[:, None], members.mT @ x, members.mT @ x.square()
    tau = torch.ones(K, 2)
    for _ in range(100):
        precision = 0.04 + tau * count
        mean = tau * total / precision
        rate = 1.5 + 0.5 * (square - 2 * mean * total + count * (mean.square() + 1 / precision))
        tau = (2 + count / 2) / rate
    return {"locs": dist.Normal(mean, precision.rsqrt()), "precisions": dist.Gamma(2 + count / 2, rate)}


def groups(*shape):
    """Points in K groups: [N, *shape]."""
    return 6.0 * torch.randn(K, *shape)[torch.arange(N) % K] + torch.randn(N, *shape)


def counts():
    rates = torch.tensor([1.0, 9.0, 30.0])[torch.arange(N) % K]
    return torch.poisson(rates)


def words():
    rows = dist.Dirichlet(torch.full((4,), 0.3)).sample((K,))[torch.arange(N) % K]
    return dist.Multinomial(20, rows).sample()


def check(guide, members, posterior, scale=1.0):
    """Compare the first two moments of all posteriors with those expected by hand."""
    counts = guide.posterior("weights")()
    assert_close(counts.mean, dist.Dirichlet(0.7 + scale * members.sum(0)).mean)
    for name, expected in posterior.items():
        found = guide.posterior(name)()
        assert_close(found.mean, expected.mean, rtol=1e-9, atol=1e-9)
        assert_close(found.variance, expected.variance, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("model", "by_hand", "data"),
    [
        (normal, normal_posterior, groups),
        (poisson, poisson_posterior, counts),
        (multinomial, multinomial_posterior, words),
        (diagonal, diagonal_posterior, lambda: groups(2).repeat(50, 1)),  # so that ten passes will do
    ],
)
def test_posteriors_are_those_given_the_clusters(model, by_hand, data):
    x, guide = data(), AutoConjugate(model)
    guide.seed_clusters("a", x, x, generator=generator())
    members = one_hot(kmeans(x, K, generator()), K).double()
    assert members.sum(0).min() > 0
    check(guide, members, by_hand(x, members))


def test_joint_posteriors_are_those_given_the_clusters():
    def model(x):
        weights, data = assigned(N)
        with pyro.plate("components", K):
            precisions = pyro.sample("precisions", dist.Gamma(2.0, 1.5))
            locs = pyro.sample("locs", dist.Normal(1.0, (0.04 * precisions).rsqrt()))
        with data:
            a = pyro.sample("a", dist.Categorical(weights))
            pyro.sample("x", dist.Normal(locs[a], precisions[a].rsqrt()), obs=x)

    x, guide = groups(), AutoConjugate(model, structured=True)
    guide.seed_clusters("a", "x", x, generator=generator())
    members = one_hot(kmeans(x, K, generator()), K).double()
    count, total = 0.04 + members.sum(0), 0.04 + members.mT @ x
    rate = 1.5 + 0.5 * (0.04 + members.mT @ x.square() - total.square() / count)
    assert_close(guide.marginal("locs").mean, total / count)
    assert_close(guide.marginal("precisions").mean, (2 + members.sum(0) / 2) / rate)


def test_the_start_is_that_of_shorthands():
    def model(z):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("components", K):
            components = pyro.sample("components_", NormalGamma(torch.zeros(2), 0.1, 1.0, 1.0))
        with pyro.plate("data", N):
            pyro.sample("z", Component(components, pyro.sample("a", Assignment(weights))), obs=z)

    z, (one, other) = groups(2), (AutoConjugate(model), AutoConjugate(model))
    one.setup(z)
    one.seed("z", z, torch.zeros_like(z), generator())
    other.seed_clusters("a", "z", z, generator=generator())
    for name in ("weights", "components_"):
        assert_close(other.posterior(name).natural, one.posterior(name).natural)


@pytest.mark.parametrize("by", ["index", "size"])
def test_a_minibatch_stands_for_all_data(by):
    x = groups().float()
    seen = []

    def model(x, index=None):
        weights, data = assigned(N, subsample=index, subsample_size=10)
        with pyro.plate("components", K):
            locs = pyro.sample("locs", dist.Normal(1.0, 10.0))
        with data as rows:
            seen.append(rows)
            a = pyro.sample("a", dist.Categorical(weights))
            pyro.sample("x", dist.Normal(locs[a], 1.5), obs=x[rows])

    guide, index = AutoConjugate(model), torch.arange(5, 15)
    if by == "index":
        guide.seed_clusters("a", x[index], x, index, generator=generator())
    else:  # the plate draws the rows, so the site tells the points
        guide.seed_clusters("a", "x", x, generator=generator())
        index = seen[-1]
    members = one_hot(kmeans(x[index], K, generator()), K).double()
    check(guide, members, normal_posterior(x[index].double().repeat(4), members.repeat(4, 1)), N / 10)


def test_a_mixture_behind_a_decoder_starts_from_encodings():
    decoder, x = nn.Linear(2, 5), torch.randn(N, 5)

    def model(x):
        pyro.module("decoder", decoder)
        weights, data = assigned()
        with pyro.plate("components", K):
            locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 10.0).to_event(1))
        with data:
            a = pyro.sample("a", dist.Categorical(weights))
            z = pyro.sample("z", dist.Normal(locs[a], 1.5).to_event(1))
            pyro.sample("x", dist.Normal(decoder(z.tanh()), 1.0).to_event(1), obs=x)

    class Guide(nn.Module):
        def __init__(self):
            super().__init__()
            self.conjugate = AutoConjugate(model, fallback=None)
            self.encoder = nn.Linear(5, 2)

        def forward(self, x):
            self.conjugate(x)
            with pyro.plate("data", N):
                pyro.sample("z", dist.Normal(self.encoder(x), 0.3).to_event(1))

    guide = Guide()
    encodings = guide.encoder(x)
    guide.conjugate.seed_clusters("a", encodings, x, generator=generator(), guide=guide)
    encodings = encodings.detach()
    members = one_hot(kmeans(encodings, K, generator()), K).double()
    precision = 0.01 + members.sum(0)[:, None] / 1.5**2
    locs = dist.Normal(members.mT @ encodings / 1.5**2 / precision, precision.rsqrt())
    check(guide.conjugate, members, {"locs": locs})
    assert all(p.grad is None for p in [*guide.parameters(), *decoder.parameters()])
    with pytest.raises(ValueError, match="site 'z': it is neither observed nor in the guide"):
        guide.conjugate.seed_clusters("a", encodings, x)
    with pytest.raises(ValueError, match="guide: expected one that calls this AutoConjugate"):
        guide.conjugate.seed_clusters("a", encodings, x, guide=Guide())


@pytest.mark.parametrize("kind", ["Bernoulli", "OneHotCategorical"])
def test_other_classes_of_assignments(kind):
    def model(x):
        with pyro.plate("components", 2):
            locs = pyro.sample("locs", dist.Normal(1.0, 10.0))
        with pyro.plate("data", N):
            if kind == "Bernoulli":
                a = pyro.sample("a", dist.Bernoulli(0.5))
                loc = locs[a.long()]
            else:
                a = pyro.sample("a", dist.OneHotCategorical(torch.ones(2) / 2))
                loc = a @ locs
            pyro.sample("x", dist.Normal(loc, 1.5), obs=x)

    x, guide = groups(), AutoConjugate(model)
    guide.seed_clusters("a", x, x, generator=generator())
    members = one_hot(kmeans(x, 2, generator()), 2).double()
    assert_close(guide.posterior("locs")().mean, normal_posterior(x, members)["locs"].mean)


def test_seeded_mixtures_reach_a_bound_that_random_starts_may_miss():
    kinds = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 500, replacement=True)
    x = torch.tensor([-3.0, 0.0, 5.0])[kinds] + torch.tensor([0.5, 1.0, 1.5])[kinds] * torch.randn(500)

    def model(x):
        weights, data = assigned(500)
        with pyro.plate("components", K):
            locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
            precisions = pyro.sample("precisions", dist.Gamma(1.0, 1.0))
        with data:
            a = pyro.sample("a", dist.Categorical(weights))
            pyro.sample("x", dist.Normal(locs[a], precisions[a].rsqrt()), obs=x)

    def bounds(is_seeded, steps):
        for seed in range(8):
            pyro.set_rng_seed(seed)
            guide = AutoConjugate(model)
            if is_seeded:
                guide.seed_clusters("a", x, x)
            svi = SVI(model, guide, NaturalGradient(1.0), TraceConjugate_ELBO())
            yield -[svi.step(x) for _ in range(steps)][-1]

    by_chance, seeded = list(bounds(False, 40)), list(bounds(True, 10))
    assert max(by_chance) - min(by_chance) > 5
    assert min(seeded) > max(by_chance) - 0.5


def hidden_markov(x):
    with pyro.plate("states", K):
        moves = pyro.sample("moves", dist.Dirichlet(torch.ones(K)))
        locs = pyro.sample("locs", dist.Normal(1.0, 10.0))
    state = 0
    for t in pyro.markov(range(len(x))):
        state = pyro.sample(f"state_{t}", dist.Categorical(moves[state]))
        pyro.sample(f"x_{t}", dist.Normal(locs[state], 1.0), obs=x[t])


def grouped(x):
    with pyro.plate("groups", 2):
        shares = pyro.sample("shares", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(1.0, 10.0))
    with pyro.plate("data", len(x)):
        group = pyro.sample("group", dist.Categorical(torch.ones(2) / 2))
        a = pyro.sample("a", dist.Categorical(shares[group]))
        pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x)


@pytest.mark.parametrize(
    ("model", "site", "points", "message"),
    [
        (
            normal,
            "locs",
            "x",
            r"an unobserved discrete site, one of \['a'\], or the site of a HiddenMarkov, got 'locs'",
        ),
        (normal, "a", "z", r"points: expected a tensor or an observed site, one of \['x'\], got 'z'"),
        (
            normal,
            "a",
            torch.zeros(N + 1),
            r"points: expected shape \[40\] and that of a point, .* got \[41\]",
        ),
        (normal, "a", torch.tensor(0.0), r"points: expected shape \[40\] and that of a point, .* got \[\]"),
        (normal, "a", torch.full((N,), torch.nan), "points: expected finite numbers"),
        (hidden_markov, "state_0", "x_0", "assignment: 'state_0' belongs to a chain or tree"),
        (hidden_markov, "state_2", "x_2", "assignment: 'state_2' belongs to a chain or tree"),
        (grouped, "a", "x", "assignment: 'a' belongs to a chain or tree"),
    ],
)
def test_refusals_leave_posteriors_alone(model, site, points, message):
    x = groups()[: 4 if model is hidden_markov else N]
    guide = AutoConjugate(model)
    guide.setup(x)
    before = {name: value.clone() for name, value in guide.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        guide.seed_clusters(site, points, x)
    assert all(torch.equal(value, before[name]) for name, value in guide.state_dict().items())


def test_posteriors_of_another_kind_are_refused():
    x, guide = groups(), AutoConjugate(normal)
    guide.setup(x)
    guide.posteriors["locs"] = to_standard(guide.posterior("locs"))
    with pytest.raises(ValueError, match="seed_clusters: the posterior of 'locs' was replaced"):
        guide.seed_clusters("a", x, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vague_priors_start_where_the_data_are(dtype):
    """As many steps as with a prior of the data's width; clusters are told apart as well."""
    torch.set_default_dtype(dtype)
    source = torch.Generator().manual_seed(0)
    y = 5 + torch.randn(8, generator=source) + torch.randn(20, 8, generator=source)
    x = torch.cat([c + torch.randn(60, generator=source) for c in (-6.0, 0.0, 6.0)])

    def effects(scale):
        mu = pyro.sample("mu", dist.Normal(0.0, scale))
        between = pyro.sample("between", dist.Gamma(0.01, 0.01))
        within = pyro.sample("within", dist.Gamma(0.01, 0.01))
        with pyro.plate("groups", 8, dim=-1):
            theta = pyro.sample("theta", dist.Normal(mu, between.rsqrt()))
            with pyro.plate("rows", 20, dim=-2):
                pyro.sample("y", dist.Normal(theta, within.rsqrt()), obs=y)

    def mixture(scale):
        with pyro.plate("components", 3):
            locs = pyro.sample("locs", dist.Normal(0.0, scale))
        with pyro.plate("data", len(x)):
            a = pyro.sample("a", dist.Categorical(torch.ones(3) / 3), infer={"enumerate": "parallel"})
            pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x)

    for model in (effects, mixture):
        pyro.set_rng_seed(0)
        guide = AutoConjugate(model)
        svi = SVI(model, guide, NaturalGradient(1.0), TraceConjugate_ELBO())
        losses = [svi.step(1e5) for _ in range(60)]
        assert losses[30] - losses[-1] < 1e-4 * losses[-1]
        if model is mixture:
            assert_close(
                guide.median(1e5)["locs"].sort()[0].to(y), torch.tensor([-6.0, 0, 6]).to(y), rtol=0, atol=0.5
            )


def test_starts_take_no_values_that_are_computed_from_latents():
    """Pyro's factor is an observed site whose value is one of them. The bound is log p(y) by its integral."""
    torch.set_default_dtype(torch.float64)
    y = torch.tensor([0.3, -1.0, 2.0])

    def model(y):
        loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
        with pyro.plate("data", len(y)):
            pyro.factor("noise", -0.5 * (y - loc).square() - 0.5 * torch.log(torch.tensor(2 * torch.pi)))

    elbo, guide = TraceConjugate_ELBO(), AutoConjugate(model)
    SVI(model, guide, NaturalGradient(1.0), elbo).step(y)
    joint = torch.distributions.MultivariateNormal(torch.zeros(3), torch.eye(3) + 4)
    assert_close(torch.tensor(-elbo.loss(model, guide, y)), joint.log_prob(y))
