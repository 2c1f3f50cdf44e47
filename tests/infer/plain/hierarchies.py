"""Rates, proportions and means: one, or many that share a prior."""

import math

import pyro
import pyro.distributions as dist
import torch

from tests.infer.plain.moments import expected_paths, mean_log, mean_log1m, mean_square, normal
from tests.infer.plain.program import program


def effects():
    """Effects of 8 schools with their standard errors."""
    effects = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    return effects, torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def hits():
    """Hits of 5 players, of so many tries."""
    return torch.tensor([18.0, 17.0, 12.0, 14.0, 7.0]), torch.tensor([45.0, 45.0, 40.0, 45.0, 30.0])


def numbers():
    return torch.tensor([0.3, 1.7, -0.4, 0.9, 2.2])


def positive_numbers():
    return torch.tensor([0.3, 1.7, 0.4, 0.9, 2.2])


def counts():
    return torch.tensor([3.0, 0.0, 1.0, 5.0, 2.0])


@program(effects, exact="mu, theta", drawn="tau", observed="y")
def eight_schools_centred(y, sigma):
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("y", dist.Normal(theta, sigma), obs=y)


@eight_schools_centred.known_update
def _(q, y, sigma):
    mu, tau, theta = q["mu"].mean, q["tau"].mean, q["theta"].mean
    return {
        "mu": normal(theta.sum() / tau**2, 1 / 25 + 8 / tau**2),
        "theta": normal(mu / tau**2 + y / sigma**2, tau**-2 + sigma**-2),
    }


@program(effects, exact="mu, eta", drawn="tau", observed="y")
def eight_schools_not_centred(y, sigma):
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(y)):
        eta = pyro.sample("eta", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mu + tau * eta, sigma), obs=y)


@eight_schools_not_centred.known_update
def _(q, y, sigma):
    mu, tau, eta = q["mu"].mean, q["tau"].mean, q["eta"].mean
    return {
        "mu": normal(((y - tau * eta) / sigma**2).sum(), 1 / 25 + (sigma**-2).sum()),
        "eta": normal(tau * (y - mu) / sigma**2, 1 + tau**2 / sigma**2),
    }


@program(effects, exact="mu, precision, theta", observed="y")
def eight_schools_with_a_precision(y, sigma):
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    precision = pyro.sample("precision", dist.Gamma(1.0, 50.0))
    with pyro.plate("schools", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, precision.rsqrt()))
        pyro.sample("y", dist.Normal(theta, sigma), obs=y)


@eight_schools_with_a_precision.known_update
def _(q, y, sigma):
    mu, t, theta = q["mu"], q["precision"].mean, q["theta"]
    square = mean_square(theta) - 2 * theta.mean * mu.mean + mean_square(mu)
    return {
        "mu": normal(t * theta.mean.sum(), 1 / 25 + 8 * t),
        "theta": normal(t * mu.mean + y / sigma**2, t + sigma**-2),
        "precision": dist.Gamma(torch.tensor(5.0), 50 + square.sum() / 2),
    }


@program(effects, exact="mu, variance, theta", observed="y")
def eight_schools_with_a_variance(y, sigma):
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    variance = pyro.sample("variance", dist.InverseGamma(2.0, 50.0))
    with pyro.plate("schools", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, variance.sqrt()))
        pyro.sample("y", dist.Normal(theta, sigma), obs=y)


@program(hits, exact="p", observed="y")
def baseball_unpooled(y, tries):
    with pyro.plate("players", len(y)):
        p = pyro.sample("p", dist.Uniform(0.0, 1.0))
        pyro.sample("y", dist.Binomial(tries, p), obs=y)


@baseball_unpooled.known_evidence
def _(y, tries):
    return dist.BetaBinomial(1.0, 1.0, tries).log_prob(y).sum()


@program(hits, exact="p", observed="y")
def baseball_pooled(y, tries):
    p = pyro.sample("p", dist.Beta(2.0, 5.0))
    with pyro.plate("players", len(y)):
        pyro.sample("y", dist.Binomial(tries, p), obs=y)


@baseball_pooled.known_evidence
def _(y, tries):
    constants = torch.lgamma(tries + 1) - torch.lgamma(y + 1) - torch.lgamma(tries - y + 1)
    return constants.sum() + log_beta(2 + y.sum(), 5 + (tries - y).sum()) - log_beta(2.0, 5.0)


def log_beta(a, b):
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


@program(hits, exact="p", drawn="m, kappa", observed="y")
def baseball_partially_pooled(y, tries):
    m = pyro.sample("m", dist.Uniform(0.0, 1.0))
    kappa = pyro.sample("kappa", dist.Pareto(1.0, 1.5))
    with pyro.plate("players", len(y)):
        p = pyro.sample("p", dist.Beta(m * kappa, (1 - m) * kappa))
        pyro.sample("y", dist.Binomial(tries, p), obs=y)


@baseball_partially_pooled.known_update
def _(q, y, tries):
    m, kappa = q["m"].mean, q["kappa"].mean
    return {"p": dist.Beta(m * kappa + y, (1 - m) * kappa + tries - y)}


@program(hits, exact="loc", drawn="scale, alpha", observed="y")
def baseball_with_logits(y, tries):
    loc = pyro.sample("loc", dist.Normal(-1.0, 1.0))
    scale = pyro.sample("scale", dist.HalfCauchy(1.0))
    with pyro.plate("players", len(y)):
        alpha = pyro.sample("alpha", dist.Normal(loc, scale))
        pyro.sample("y", dist.Binomial(tries, logits=alpha), obs=y)


@program(numbers, exact="mu", observed="x")
def normal_of_known_scale(x):
    mu = pyro.sample("mu", dist.Normal(1.0, 3.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(mu, 2.0), obs=x)


@normal_of_known_scale.known_evidence
def _(x):
    return dist.MultivariateNormal(torch.ones(5), 9 * torch.ones(5, 5) + 4 * torch.eye(5)).log_prob(x)


@program(numbers, exact="precision", observed="x")
def normal_of_known_mean(x):
    precision = pyro.sample("precision", dist.Gamma(2.0, 3.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(0.5, precision.rsqrt()), obs=x)


@normal_of_known_mean.known_evidence
def _(x):
    scale = math.sqrt(3 / 2) * torch.eye(5)
    return dist.MultivariateStudentT(torch.tensor(4.0), torch.full((5,), 0.5), scale).log_prob(x)


@program(positive_numbers, exact="precision", observed="x")
def half_normal_precision(x):
    precision = pyro.sample("precision", dist.Gamma(2.0, 3.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.HalfNormal(precision.rsqrt()), obs=x)


@half_normal_precision.known_evidence
def _(x):
    constants = 2.5 * math.log(2 / math.pi) + 2 * math.log(3) - math.lgamma(2)
    return constants + math.lgamma(4.5) - 4.5 * (3 + x.square().sum() / 2).log()


@program(numbers, exact="variance", observed="x")
def normal_of_unknown_variance(x):
    variance = pyro.sample("variance", dist.InverseGamma(2.0, 3.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(0.5, variance.sqrt()), obs=x)


normal_of_unknown_variance.known_evidence(normal_of_known_mean.evidence)


@program(numbers, exact="mu, precision", observed="x")
def normal_of_unknown_mean_and_precision(x):
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    precision = pyro.sample("precision", dist.Gamma(1.0, 2.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(mu, precision.rsqrt()), obs=x)


@normal_of_unknown_mean_and_precision.known_update
def _(q, x):
    square = x**2 - 2 * x * q["mu"].mean + mean_square(q["mu"])
    t = q["precision"].mean
    return {
        "mu": normal(t * x.sum(), 0.01 + 5 * t),
        "precision": dist.Gamma(torch.tensor(3.5), 2 + square.sum() / 2),
    }


@program(numbers, exact="mu", observed="x")
def one_point_without_a_plate(x):
    mu = pyro.sample("mu", dist.Normal(1.0, 3.0))
    pyro.sample("x", dist.Normal(2 * mu - 1, 2.0), obs=x[0])


@one_point_without_a_plate.known_evidence
def _(x):
    return dist.Normal(1.0, math.sqrt(4 * 9 + 4)).log_prob(x[0])


@program(positive_numbers, exact="mu", observed="x")
def log_normal_of_known_scale(x):
    mu = pyro.sample("mu", dist.Normal(1.0, 3.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.LogNormal(mu, 2.0), obs=x)


@log_normal_of_known_scale.known_evidence
def _(x):
    covariance = 9 * torch.ones(5, 5) + 4 * torch.eye(5)
    return dist.MultivariateNormal(torch.ones(5), covariance).log_prob(x.log()) - x.log().sum()


@program(lambda: numbers().expand(3, 5).cumsum(0).mT, exact="mu", observed="x")
def vector_of_known_covariance(x):
    mu = pyro.sample("mu", dist.MultivariateNormal(torch.zeros(3), 4 * torch.eye(3)))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.MultivariateNormal(mu, torch.eye(3) + 0.5), obs=x)


@vector_of_known_covariance.known_evidence
def _(x):
    blocks = torch.kron(torch.ones(5, 5), 4 * torch.eye(3)) + torch.kron(torch.eye(5), torch.eye(3) + 0.5)
    return dist.MultivariateNormal(torch.zeros(15), blocks).log_prob(x.reshape(-1))


@program(lambda: numbers().expand(2, 5).cumsum(0).mT.sin(), exact="precision", observed="x")
def vector_of_known_mean(x):
    precision = pyro.sample("precision", dist.Wishart(torch.tensor(4.0), torch.eye(2)))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.MultivariateNormal(torch.zeros(2), precision_matrix=precision), obs=x)


@vector_of_known_mean.known_evidence
def _(x):
    before, after = torch.eye(2), torch.eye(2) + x.mT @ x  # inverse scale matrices
    normalisers = torch.mvlgamma(torch.tensor(9 / 2), 2) - torch.mvlgamma(torch.tensor(4 / 2), 2)
    return -5 * math.log(math.pi) + normalisers + 2 * before.logdet() - 4.5 * after.logdet()


@program(counts, exact="rate", observed="x")
def poisson_rate(x):
    rate = pyro.sample("rate", dist.Gamma(2.0, 0.5))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Poisson(rate), obs=x)


@poisson_rate.known_evidence
def _(x):
    predictive, total, a, b = 0.0, 0.0, 2.0, 0.5
    for n, value in enumerate(x):  # each point given those before
        predictive += dist.GammaPoisson(torch.tensor(a + total), torch.tensor(b + n)).log_prob(value)
        total += value.item()
    return predictive


@program(counts, exact="rate", observed="x")
def poisson_rate_under_an_exponential_prior(x):
    rate = pyro.sample("rate", dist.Exponential(0.5))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Poisson(rate), obs=x)


@poisson_rate_under_an_exponential_prior.known_evidence
def _(x):
    total = x.sum()
    return math.log(0.5) + torch.lgamma(1 + total) - (1 + total) * math.log(5.5) - torch.lgamma(x + 1).sum()


@program(lambda: (counts(), positive_numbers()), exact="rate", observed="x")
def poisson_rate_with_exposures(x, exposure):
    rate = pyro.sample("rate", dist.Gamma(2.0, 0.5))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Poisson((rate.log() + exposure.log()).exp()), obs=x)


@poisson_rate_with_exposures.known_evidence
def _(x, exposure):
    a, b = 2 + x.sum(), 0.5 + exposure.sum()
    fixed = (x * exposure.log() - torch.lgamma(x + 1)).sum() + 2 * math.log(0.5)
    return fixed + torch.lgamma(a) - a * b.log()


@program(positive_numbers, exact="rate", observed="x")
def exponential_rate(x):
    rate = pyro.sample("rate", dist.Gamma(2.0, 0.5))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Exponential(rate), obs=x)


@exponential_rate.known_evidence
def _(x):
    return math.lgamma(7) - math.lgamma(2) + 2 * math.log(0.5) - 7 * (0.5 + x.sum()).log()


@program(positive_numbers, exact="rate", observed="x")
def rate_of_gammas_of_known_shape(x):
    rate = pyro.sample("rate", dist.Gamma(2.0, 0.5))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Gamma(3.0, rate), obs=x)


@rate_of_gammas_of_known_shape.known_evidence
def _(x):
    constants = 2 * x.log().sum() - 5 * math.lgamma(3) + 2 * math.log(0.5) - math.lgamma(2)
    return constants + math.lgamma(17) - 17 * (0.5 + x.sum()).log()


@program(counts, exact="common, rates", observed="x")
def rates_of_a_common_scale(x):
    common = pyro.sample("common", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(x)):
        rates = pyro.sample("rates", dist.Gamma(3.0, common))
        pyro.sample("x", dist.Poisson(rates), obs=x)


@rates_of_a_common_scale.known_update
def _(q, x):
    return {
        "common": dist.Gamma(torch.tensor(2.0 + 3 * 5), 1 + q["rates"].mean.sum()),
        "rates": dist.Gamma(3 + x, (q["common"].mean + 1).expand(5)),
    }


@program(counts, exact="p", observed="x")
def beta_geometric(x):
    p = pyro.sample("p", dist.Beta(2.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Geometric(p), obs=x)


@beta_geometric.known_evidence
def _(x):
    return log_beta(2.0 + 5, 1 + x.sum()) - log_beta(2.0, 1.0)


@program(counts, exact="p", observed="x")
def beta_negative_binomial(x):
    p = pyro.sample("p", dist.Beta(2.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.NegativeBinomial(4.0, p), obs=x)


@beta_negative_binomial.known_evidence
def _(x):
    constants = torch.lgamma(4 + x) - torch.lgamma(1 + x) - math.lgamma(4)
    return constants.sum() + log_beta(2 + x.sum(), 1.0 + 4 * 5) - log_beta(2.0, 1.0)


@program(counts, exact="p", observed="x")
def multinomial_counts(x):
    p = pyro.sample("p", dist.Dirichlet(torch.tensor([1.0, 0.5, 2.0, 1.0, 1.0])))
    pyro.sample("x", dist.Multinomial(11, p), obs=x)


@multinomial_counts.known_evidence
def _(x):
    return dist.DirichletMultinomial(torch.tensor([1.0, 0.5, 2.0, 1.0, 1.0]), 11).log_prob(x)


def dirichlet_evidence(prior, counts):
    """log p of values with these counts, in an order."""
    parts = torch.lgamma(prior + counts).sum(-1) - torch.lgamma(prior).sum(-1)
    return parts + torch.lgamma(prior.sum(-1)) - torch.lgamma((prior + counts).sum(-1))


@program(lambda: torch.tensor([0, 2, -1, 1, 0, -1, 0]), exact="p", observed="x")
def categories_some_of_which_are_missing(x):
    p = pyro.sample("p", dist.Dirichlet(torch.tensor([1.0, 0.5, 2.0])))
    with pyro.plate("data", len(x)), pyro.poutine.mask(mask=x >= 0):
        pyro.sample("x", dist.Categorical(p), obs=x.clamp(min=0))


@categories_some_of_which_are_missing.known_evidence
def _(x):
    return dirichlet_evidence(torch.tensor([1.0, 0.5, 2.0]), torch.tensor([3.0, 1.0, 1.0]))


@program(lambda: torch.tensor([0, 2, 1, 0]), exact="p", observed="x")
def categories_by_logits(x):
    p = pyro.sample("p", dist.Dirichlet(torch.tensor([1.0, 0.5, 2.0])))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Categorical(logits=p.log()), obs=x)


@categories_by_logits.known_evidence
def _(x):
    return dirichlet_evidence(torch.tensor([1.0, 0.5, 2.0]), torch.tensor([2.0, 1.0, 1.0]))


@program(lambda: numbers().expand(3, 5), exact="mu, between, theta, within", observed="x")
def two_levels_with_precisions(x):
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    between, within = (pyro.sample(name, dist.Gamma(2.0, 1.0)) for name in ("between", "within"))
    with pyro.plate("groups", 5):
        theta = pyro.sample("theta", dist.Normal(mu, between.rsqrt()))
        with pyro.plate("repeats", 3):
            pyro.sample("x", dist.Normal(theta, within.rsqrt()), obs=x + torch.arange(3)[:, None])


@two_levels_with_precisions.known_update
def _(q, x):
    x = x + torch.arange(3)[:, None]
    mu, theta, between, within = q["mu"], q["theta"], q["between"].mean, q["within"].mean
    upper = mean_square(theta) - 2 * theta.mean * mu.mean + mean_square(mu)
    lower = x**2 - 2 * x * theta.mean + mean_square(theta)
    return {
        "mu": normal(between * theta.mean.sum(), 0.01 + 5 * between),
        "theta": normal(between * mu.mean + within * x.sum(0), (between + 3 * within).expand(5)),
        "between": dist.Gamma(torch.tensor(4.5), 1 + upper.sum() / 2),
        "within": dist.Gamma(torch.tensor(9.5), 1 + lower.sum() / 2),
    }


@program(
    lambda: torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]).double(),
    exact="alive, seen",
    summed_out="z_1, z_2, z_3",
    observed="y_1, y_2, y_3",
)
def capture_and_recapture(captures):
    alive = pyro.sample("alive", dist.Beta(1.0, 1.0))
    seen = pyro.sample("seen", dist.Beta(1.0, 2.0))
    with pyro.plate("animals", len(captures)):
        z = torch.ones(len(captures))  # all are marked at time 0
        for t in pyro.markov(range(1, captures.shape[1])):
            z = pyro.sample(f"z_{t}", dist.Bernoulli(alive * z))
            pyro.sample(f"y_{t}", dist.Bernoulli(seen * z), obs=captures[:, t])


@capture_and_recapture.known_update
def _(q, captures):
    start, rows = survival(q["alive"])
    alive, seen = torch.tensor([1.0, 1.0]), torch.tensor([1.0, 2.0])
    for animal in captures[:, 1:]:
        r, pairs = expected_paths(start, rows, sightings(q["seen"], animal))
        alive += (pairs.sum(0)[1] + r[0]).flip(0)
        seen += torch.stack([r[:, 1] @ animal, r[:, 1] @ (1 - animal)])
    return {"alive": dist.Beta(*alive), "seen": dist.Beta(*seen)}


def survival(q):
    """Log-probabilities of being dead or alive, for one that was alive before, and for either state."""
    living = torch.stack([mean_log1m(q), mean_log(q)])
    return living, torch.stack([torch.tensor([0.0, -math.inf]), living])


def sightings(q, animal):
    """Log-probabilities [T, 2] of what was seen of an animal that is dead, or alive."""
    living = animal * mean_log(q) + (1 - animal) * mean_log1m(q)
    return torch.stack([(1 - animal).log(), living], -1)


@program(
    lambda: torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0]]),
    exact="phi, rho",
    summed_out="z_0, z_1, z_2, z_3",
    observed="y_0, y_1, y_2, y_3",
)
def capture_and_recapture_with_masks(captures):
    phi = pyro.sample("phi", dist.Uniform(0.0, 1.0))
    rho = pyro.sample("rho", dist.Uniform(0.0, 1.0))
    with pyro.plate("animals", len(captures)):
        z, met = torch.ones(len(captures)), torch.zeros(len(captures), dtype=torch.bool)
        for t in pyro.markov(range(captures.shape[1])):
            with pyro.poutine.mask(mask=met):
                p_alive = met.double() * phi * z + (1 - met.double())
                z = pyro.sample(f"z_{t}", dist.Bernoulli(p_alive))
                pyro.sample(f"y_{t}", dist.Bernoulli(rho * z), obs=captures[:, t].double())
            met = met | captures[:, t].bool()


@capture_and_recapture_with_masks.known_update
def _(q, captures):
    """What is masked says nothing of either state."""
    _, rows = survival(q["phi"])
    phi, rho = torch.ones(2), torch.ones(2)
    for animal in captures.double():
        met = animal.cumsum(0).roll(1).clamp(max=1).index_fill(0, torch.tensor(0), 0)
        steps = torch.where(met[1:, None, None] == 1, rows, 0.0)
        emissions = torch.where(met[:, None] == 1, sightings(q["rho"], animal), 0.0)
        r, pairs = expected_paths(torch.zeros(2), steps, emissions)
        phi += torch.einsum("t,tj->j", met[1:], pairs[:, 1]).flip(0)
        rho += torch.stack([(met * r[:, 1]) @ animal, (met * r[:, 1]) @ (1 - animal)])
    return {"phi": dist.Beta(*phi), "rho": dist.Beta(*rho)}
