"""Mixtures of counts and of words."""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import config_enumerate
from pyro.ops.indexing import Vindex

from tests.infer.plain.moments import mean_log, mean_log1m
from tests.infer.plain.program import program

K = 2


def counts():
    return torch.tensor([0.0, 2.0, 1.0, 7.0, 9.0, 6.0])


def bits():
    return torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1], [0, 0, 1]]).double()


@program(counts, exact="weights, rates", summed_out="a", observed="x")
def poisson_mixture(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        rates = pyro.sample("rates", dist.Gamma(2.0, 0.5))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Poisson(rates[a]), obs=x)


@poisson_mixture.known_update
def _(q, x):
    table = x[:, None] * mean_log(q["rates"]) - q["rates"].mean
    r = (mean_log(q["weights"]) + table).softmax(-1)
    return {"weights": dist.Dirichlet(1 + r.sum(0)), "rates": dist.Gamma(2 + r.mT @ x, 0.5 + r.sum(0))}


@program(bits, exact="weights, p", summed_out="a", observed="x")
def bernoulli_mixture(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        p = pyro.sample("p", dist.Beta(1.5 * torch.ones(3), 0.7).to_event(1))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Bernoulli(p[a]).to_event(1), obs=x)


@bernoulli_mixture.known_update
def _(q, x):
    table = x @ mean_log(q["p"]).mT + (1 - x) @ mean_log1m(q["p"]).mT
    r = (mean_log(q["weights"]) + table).softmax(-1)
    return {"weights": dist.Dirichlet(1 + r.sum(0)), "p": dist.Beta(1.5 + r.mT @ x, 0.7 + r.mT @ (1 - x))}


@program(counts, exact="weights, p", summed_out="a", observed="x")
def binomial_mixture(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        p = pyro.sample("p", dist.Beta(2.0, 1.0))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Binomial(9, p[a]), obs=x)


@binomial_mixture.known_update
def _(q, x):
    table = x[:, None] * mean_log(q["p"]) + (9 - x[:, None]) * mean_log1m(q["p"])
    r = (mean_log(q["weights"]) + table).softmax(-1)
    return {"weights": dist.Dirichlet(1 + r.sum(0)), "p": dist.Beta(2 + r.mT @ x, 1 + r.mT @ (9 - x))}


@program(counts, exact="weights, p", summed_out="a", observed="x")
def geometric_mixture(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        p = pyro.sample("p", dist.Beta(2.0, 1.0))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Geometric(p[a]), obs=x)


@program(counts, exact="weights, p", summed_out="a", observed="x")
def negative_binomial_mixture(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        p = pyro.sample("p", dist.Beta(2.0, 1.0))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.NegativeBinomial(4.0, p[a]), obs=x)


@program(counts, exact="gate, rate", summed_out="is_zero", observed="x")
def zero_inflated_poisson(x):
    gate = pyro.sample("gate", dist.Beta(1.0, 2.0))
    rate = pyro.sample("rate", dist.Gamma(2.0, 0.5))
    with pyro.plate("data", len(x)):
        is_zero = pyro.sample("is_zero", dist.Bernoulli(gate))
        pyro.sample("x", dist.Poisson(rate * (1 - is_zero)), obs=x)


@zero_inflated_poisson.known_update
def _(q, x):
    is_zero = mean_log(q["gate"]) + (x == 0).double().log()
    other = mean_log1m(q["gate"]) + x * mean_log(q["rate"]) - q["rate"].mean
    zero, one = torch.stack([is_zero, other]).softmax(0)
    return {
        "gate": dist.Beta(1 + zero.sum(), 2 + one.sum()),
        "rate": dist.Gamma(2 + one @ x, 0.5 + one.sum()),
    }


@program(
    lambda: torch.tensor([[3.0, 1.0, 0.0], [4.0, 0.0, 0.0], [0.0, 1.0, 3.0], [0.0, 0.0, 4.0]]),
    exact="weights, theta",
    summed_out="a",
    observed="x",
)
def multinomial_mixture(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        theta = pyro.sample("theta", dist.Dirichlet(0.5 * torch.ones(3)))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Multinomial(4, theta[a]), obs=x)


@multinomial_mixture.known_update
def _(q, x):
    r = (mean_log(q["weights"]) + x @ mean_log(q["theta"]).mT).softmax(-1)
    return {"weights": dist.Dirichlet(1 + r.sum(0)), "theta": dist.Dirichlet(0.5 + r.mT @ x)}


def answers():
    """Answers of 5 people to 3 questions, each 0, 1 or 2."""
    return torch.tensor([[0, 1, 0], [0, 1, 1], [2, 2, 0], [2, 2, 0], [2, 0, 0]])


@program(answers, exact="weights, theta", summed_out="a", observed="x")
def latent_classes(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K), pyro.plate("questions", 3, dim=-2):
        theta = pyro.sample("theta", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("people", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        with pyro.plate("answers", 3, dim=-2):
            picked = Vindex(theta)[torch.arange(3).unsqueeze(-1), a]
            pyro.sample("x", dist.Categorical(picked), obs=x.T)


@latent_classes.known_update
def _(q, x):
    bits = torch.nn.functional.one_hot(x, 3).double()  # [person, question, answer]
    r = (mean_log(q["weights"]) + torch.einsum("njv,jkv->nk", bits, mean_log(q["theta"]))).softmax(-1)
    return {
        "weights": dist.Dirichlet(1 + r.sum(0)),
        "theta": dist.Dirichlet(1 + torch.einsum("njv,nk->jkv", bits, r)),
    }


@program(lambda: answers()[:4].T, exact="weights, theta", summed_out="a", observed="x")
def mixture_of_unigrams(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("topics", K):
        theta = pyro.sample("theta", dist.Dirichlet(0.5 * torch.ones(3)))
    with pyro.plate("documents", x.shape[1], dim=-1):
        a = pyro.sample("a", dist.Categorical(weights))
        with pyro.plate("words", len(x), dim=-2):
            pyro.sample("x", dist.Categorical(theta[a]), obs=x)


@program(lambda: answers()[:2].T, exact="theta, phi", summed_out="z", observed="x")
def topic_model(x):
    with pyro.plate("topics", K):
        phi = pyro.sample("phi", dist.Dirichlet(0.5 * torch.ones(3)))
    with pyro.plate("documents", x.shape[1], dim=-1):
        theta = pyro.sample("theta", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("words", len(x), dim=-2):
            z = pyro.sample("z", dist.Categorical(theta))
            pyro.sample("x", dist.Categorical(phi[z]), obs=x)


@topic_model.known_update
def _(q, x):
    r = (mean_log(q["theta"]) + mean_log(q["phi"]).mT[x]).softmax(-1)  # [word, document, topic]
    bits = torch.nn.functional.one_hot(x, 3).double()
    phi = torch.einsum("wdk,wdv->kv", r, bits)
    return {"theta": dist.Dirichlet(1 + r.sum(0)), "phi": dist.Dirichlet(0.5 + phi)}


@program(lambda: answers()[:2].T, exact="theta, phi", drawn="alpha", summed_out="z", observed="x")
@config_enumerate
def topic_model_of_unknown_concentration(x):
    with pyro.plate("topics", K):
        alpha = pyro.sample("alpha", dist.Gamma(2.0, 1.0))
        phi = pyro.sample("phi", dist.Dirichlet(0.5 * torch.ones(3)))
    with pyro.plate("documents", x.shape[1], dim=-1):
        theta = pyro.sample("theta", dist.Dirichlet(alpha))
        with pyro.plate("words", len(x), dim=-2):
            z = pyro.sample("z", dist.Categorical(theta), infer={"enumerate": "parallel"})
            pyro.sample("x", dist.Categorical(Vindex(phi)[z]), obs=x)


@program(
    lambda: torch.nn.functional.one_hot(answers()[:, 0], 3).double(),
    exact="weights, theta",
    summed_out="a",
    observed="x",
)
def one_hot_mixture(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        theta = pyro.sample("theta", dist.Dirichlet(0.5 * torch.ones(3)))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.OneHotCategorical(theta[a]), obs=x)
