"""Small programs in Pyro's own distributions, one of each kind that is conjugate, wholly or in part.

``PROGRAMS`` maps a title to a :class:`PlainCase`. Data are drawn anew, with the same seed, for each case.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
import torch.nn.functional as F
from pyro.ops.indexing import Vindex

K = 3


@dataclass(frozen=True)
class PlainCase:
    """A model and its data.

    Attributes:
        model: a Pyro model.
        data: makes its arguments.
        families: conjugate site → the name of its family's standard distribution.
        drawn: sites without a closed form, with a distribution to draw them from.
        independent: True if each discrete site is a sample statement that depends on no other discrete one,
            so that its own probabilities are all of its posterior.
    """

    model: Callable[..., Any]
    data: Callable[[], tuple[Any, ...]]
    families: dict[str, str]
    drawn: dict[str, Callable[[], Any]] = field(default_factory=dict)
    independent: bool = True

    def arguments(self):
        """The arguments of the model, the same in each call."""
        torch.manual_seed(11)
        return self.data()


PROGRAMS: dict[str, PlainCase] = {}


def case(title, data, drawn=None, independent=True, **families):
    """Add a program to the table."""

    def decorate(model):
        PROGRAMS[title] = PlainCase(model, data, families, drawn or {}, independent)
        return model

    return decorate


def clusters():
    return (torch.cat([torch.randn(8), 6 + torch.randn(7), -7 + 2 * torch.randn(6)]),)


def counts():
    return (torch.poisson(torch.tensor([1.0, 6.0, 20.0])[torch.arange(21) % 3]),)


def bits():
    return (torch.bernoulli(torch.rand(3, 4)[torch.arange(15) % 3]),)


def points():
    return (
        torch.randn(20, 2) + 6 * torch.tensor([[0.0, 0.0], [1.0, 1.0], [-1.0, 1.0]])[torch.arange(20) % 3],
    )


def linear():
    features = torch.randn(20, 3)
    return features, features @ torch.tensor([1.0, -2.0, 0.5]) + 0.7 * torch.randn(20)


def weights():
    return pyro.sample("weights", dist.Dirichlet(torch.tensor([1.0, 2.0, 0.5])))


@case(
    "Gaussian mixture, means and precisions", clusters, weights="Dirichlet", locs="Normal", precisions="Gamma"
)
def gaussian_mixture(x):
    pi = weights()
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(0.0, 10.0))
        precisions = pyro.sample("precisions", dist.Gamma(2.0, 1.5))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(pi))
        pyro.sample("x", dist.Normal(locs[a], precisions[a].rsqrt()), obs=x)


@case(
    "Gaussian mixture with a shared scale that is drawn",
    clusters,
    drawn={"scale": lambda: dist.LogNormal(0.2, 0.2)},
    weights="Dirichlet",
    locs="Normal",
)
def shared_scale(x):
    pi = weights()
    scale = pyro.sample("scale", dist.LogNormal(0.0, 2.0))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(pi), infer={"enumerate": "parallel"})
        pyro.sample("x", dist.Normal(locs[a], scale), obs=x)


@case(
    "Gaussian mixture with variances", clusters, weights="Dirichlet", locs="Normal", variances="InverseGamma"
)
def variances(x):
    pi = weights()
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(0.0, 10.0))
        variances = pyro.sample("variances", dist.InverseGamma(3.0, 2.0))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(pi))
        pyro.sample("x", dist.Normal(locs[a], variances[a].sqrt()), obs=x)


@case("Poisson mixture", counts, weights="Dirichlet", rates="Gamma")
def poisson_mixture(x):
    pi = weights()
    with pyro.plate("components", K):
        rates = pyro.sample("rates", dist.Exponential(0.5))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(pi))
        pyro.sample("x", dist.Poisson(rates[a]), obs=x)


@case("Bernoulli mixture", bits, weights="Dirichlet", probs="Beta")
def bernoulli_mixture(x):
    pi = weights()
    with pyro.plate("components", K):
        probs = pyro.sample("probs", dist.Beta(1.5 * torch.ones(4), 0.7 * torch.ones(4)).to_event(1))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(pi))
        pyro.sample("x", dist.Bernoulli(probs[a]).to_event(1), obs=x)


@case(
    "Multinomial mixture",
    lambda: (torch.poisson(4 * torch.rand(9, 5)),),
    weights="Dirichlet",
    topics="Dirichlet",
)
def multinomial_mixture(x):
    pi = weights()
    with pyro.plate("components", K):
        topics = pyro.sample("topics", dist.Dirichlet(0.5 * torch.ones(5)))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(pi))
        pyro.sample("x", dist.Multinomial(probs=topics[a], validate_args=False), obs=x)


@case("topics of documents", lambda: (torch.randint(5, (6, 4)),), shares="Dirichlet", topics="Dirichlet")
def latent_allocation(words):
    with pyro.plate("components", K):
        topics = pyro.sample("topics", dist.Dirichlet(0.5 * torch.ones(5)))
    with pyro.plate("documents", words.shape[1], dim=-1):
        shares = pyro.sample("shares", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("words", words.shape[0], dim=-2):
            topic = pyro.sample("topic", dist.Categorical(shares))
            pyro.sample("word", dist.Categorical(topics[topic]), obs=words)


@case(
    "Gaussian mixture with full covariances",
    points,
    weights="Dirichlet",
    locs="MultivariateNormal",
    precisions="Wishart",
)
def full_covariances(x):
    pi = weights()
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.MultivariateNormal(torch.zeros(2), 25 * torch.eye(2)))
        precisions = pyro.sample(
            "precisions", dist.Wishart(torch.tensor(4.0), covariance_matrix=torch.eye(2))
        )
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(pi))
        pyro.sample("x", dist.MultivariateNormal(locs[a], precision_matrix=precisions[a]), obs=x)


@case("stick-breaking weights", points, sticks="Beta", locs="MultivariateNormal")
def stick_breaking(x):
    with pyro.plate("sticks_plate", K - 1):
        sticks = pyro.sample("sticks", dist.Beta(1.0, 1.3))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.MultivariateNormal(torch.zeros(2), 5 * torch.eye(2)))
    pi = F.pad(sticks, (0, 1), value=1) * F.pad((1 - sticks).cumprod(-1), (1, 0), value=1)
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(pi))
        pyro.sample("x", dist.MultivariateNormal(locs[a], torch.eye(2)), obs=x)


@case("linear regression", linear, w="MultivariateNormal", precision="Gamma")
def regression(features, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    precision = pyro.sample("precision", dist.Gamma(1.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(features @ w, precision.rsqrt()), obs=y)


@case("hierarchy of means", lambda: (torch.randn(5, 4),), loc="Normal", precision="Gamma", means="Normal")
def hierarchy(x):
    loc = pyro.sample("loc", dist.Normal(0.0, 10.0))
    precision = pyro.sample("precision", dist.Gamma(1.0, 1.0))
    with pyro.plate("groups", 4, dim=-1):
        means = pyro.sample("means", dist.Normal(loc, precision.rsqrt()))
        with pyro.plate("rows", 5, dim=-2):
            pyro.sample("x", dist.Normal(means, 0.5), obs=x)


@case(
    "principal components",
    lambda: (torch.randn(9, 2) @ torch.randn(2, 4),),
    w="MultivariateNormal",
    z="MultivariateNormal",
    precision="Gamma",
)
def principal_components(x):
    w = pyro.sample("w", dist.Normal(torch.zeros(4, 2), 1.0).to_event(2))
    precision = pyro.sample("precision", dist.Gamma(1.0, 1.0))
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(z @ w.T, precision.rsqrt()).to_event(1), obs=x)


@case(
    "hidden Markov model",
    lambda: (torch.tensor([0.0, 0.3, 5.0, 4.0]),),
    independent=False,
    rows="Dirichlet",
    locs="Normal",
)
def hidden_markov(x):
    with pyro.plate("states", 2):
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(2)))
        locs = pyro.sample("locs", dist.Normal(0.0, 10.0))
    state = 0
    for t in pyro.markov(range(len(x))):
        state = pyro.sample(f"state{t}", dist.Categorical(rows[state]))
        pyro.sample(f"x{t}", dist.Normal(locs[state], 1.0), obs=x[t])


@case(
    "two assignments of one mean",
    clusters,
    first="Dirichlet",
    second="Dirichlet",
    locs="Normal",
    independent=False,
)
def two_assignments(x):
    first = pyro.sample("first", dist.Dirichlet(torch.ones(2)))
    second = pyro.sample("second", dist.Dirichlet(torch.ones(3)))
    locs = pyro.sample("locs", dist.Normal(torch.zeros(2, 3), 5.0).to_event(2))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(first))
        b = pyro.sample("b", dist.Categorical(second))
        pyro.sample("x", dist.Normal(locs[a, b], 1.0), obs=x)


@case("two factors by Vindex", lambda: (torch.randn(2, 8),), weights="Dirichlet", locs="Normal")
def vindexed(x):
    with pyro.plate("factors", 2, dim=-2):
        pi = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 5.0).to_event(1))
    with pyro.plate("data", 8, dim=-1), pyro.plate("rows", 2, dim=-2):
        a = pyro.sample("a", dist.Categorical(pi))
        pyro.sample("x", dist.Normal(Vindex(locs)[a, torch.arange(2).view(2, 1)], 1.0), obs=x)


@case("scaled, masked, subsampled", clusters, weights="Dirichlet", locs="Normal")
def scaled_and_masked(x):
    pi = weights()
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
    rows = torch.arange(0, 21, 2)
    kept = rows % 3 > 0
    with pyro.plate("data", 21, subsample=rows), poutine.scale(scale=0.5):
        a = pyro.sample("a", dist.Categorical(pi))
        with poutine.mask(mask=kept):
            pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x[rows].where(kept, torch.zeros(())))


@case("mixture distribution", clusters, independent=False, weights="Dirichlet", locs="Normal")
def mixture_distribution(x):
    pi = weights()
    locs = pyro.sample("locs", dist.Normal(torch.zeros(K), 5.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.MixtureSameFamily(dist.Categorical(pi), dist.Normal(locs, 1.0)), obs=x)


@case(
    "binomial, geometric and negative binomial",
    lambda: (torch.randint(8, (6,)).double(),),
    p="Beta",
    q="Beta",
    r="Beta",
)
def count_probabilities(x):
    p, q, r = (pyro.sample(name, dist.Beta(2.0, 1.5)) for name in "pqr")
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Binomial(9, p), obs=x)
        pyro.sample("y", dist.Geometric(q), obs=x)
        pyro.sample("z", dist.NegativeBinomial(2.5, r), obs=x)
