"""Regressions, time series of observed numbers, and factor models."""

import pyro
import pyro.distributions as dist
import torch
from torch import nn

from tests.infer.plain.moments import mean_square, multivariate_normal, normal, second_moment
from tests.infer.plain.program import program


def table():
    """Inputs [8, 3] and outputs [8] of a line."""
    source = torch.Generator().manual_seed(3)
    x = torch.randn(8, 3, generator=source, dtype=torch.float64)
    return x, x @ torch.tensor([1.0, -2.0, 0.5]) + 0.7 * torch.randn(8, generator=source, dtype=torch.float64)


def gaussian_evidence(y, mean, covariance):
    return dist.MultivariateNormal(torch.as_tensor(mean).expand(y.shape), covariance).log_prob(y)


@program(table, exact="w", observed="y")
def linear_regression(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.7), obs=y)


@linear_regression.known_evidence
def _(x, y):
    return gaussian_evidence(y, 0.0, 4 * x @ x.mT + 0.49 * torch.eye(8))


@program(table, exact="w, b", observed="y")
def regression_with_an_intercept(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    b = pyro.sample("b", dist.Normal(1.0, 3.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(b + (x * w).sum(-1), 0.7), obs=y)


@regression_with_an_intercept.known_update
def _(q, x, y):
    w = multivariate_normal((y - q["b"].mean) @ x / 0.49, x.mT @ x / 0.49 + torch.eye(3) / 4)
    return {"w": w, "b": normal(1 / 9 + (y - x @ q["w"].mean).sum() / 0.49, torch.tensor(1 / 9 + 8 / 0.49))}


@program(table, exact="w, precision", observed="y")
def regression_of_unknown_noise(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    precision = pyro.sample("precision", dist.Gamma(1.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x.matmul(w), precision.rsqrt()), obs=y)


@regression_of_unknown_noise.known_update
def _(q, x, y):
    t, w = q["precision"].mean, q["w"]
    square = (y - x @ w.mean).square() + ((x @ w.covariance_matrix) * x).sum(-1)
    return {
        "w": multivariate_normal(t * (y @ x), t * x.mT @ x + torch.eye(3) / 4),
        "precision": dist.Gamma(1 + 8 / 2, 1 + square.sum() / 2),
    }


@program(table, exact="relevance, w, precision", observed="y")
def regression_with_relevance(x, y):
    relevance = pyro.sample("relevance", dist.Gamma(torch.ones(3), 1.0).to_event(1))
    precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
    w = pyro.sample("w", dist.Normal(torch.zeros(3), relevance.rsqrt()).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, precision.rsqrt()), obs=y)


@regression_with_relevance.known_update
def _(q, x, y):
    t, w = q["precision"].mean, q["w"]
    square = w.mean.square() + w.variance
    return {
        "w": multivariate_normal(t * (y @ x), t * x.mT @ x + q["relevance"].mean.diag()),
        "relevance": dist.Gamma(1.5, 1 + square / 2),
    }


@program(table, exact="w", observed="y_0, y_1, y_2, y_3, y_4, y_5, y_6, y_7")
def regression_point_by_point(x, y):
    w = pyro.sample("w", dist.MultivariateNormal(torch.ones(3), 4 * torch.eye(3)))
    for n in range(len(x)):
        pyro.sample(f"y_{n}", dist.Normal(torch.dot(x[n], w), 0.7), obs=y[n])


@regression_point_by_point.known_evidence
def _(x, y):
    return gaussian_evidence(y, x.sum(-1), 4 * x @ x.mT + 0.49 * torch.eye(8))


@program(table, exact="w", observed="y")
def polynomial_regression(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), torch.tensor([3.0, 2.0, 1.0])).to_event(1))
    t = x[:, 0]
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w[0] + w[1] * t + w[2] * t**2, 0.7), obs=y)


@polynomial_regression.known_evidence
def _(x, y):
    basis = torch.stack([x[:, 0] ** i for i in range(3)], -1)
    return gaussian_evidence(
        y, 0.0, basis @ torch.tensor([9.0, 4.0, 1.0]).diag() @ basis.mT + 0.49 * torch.eye(8)
    )


@program(lambda: (nn.Sequential(nn.Linear(3, 4), nn.Tanh()), *table()), exact="w", observed="y")
def regression_on_features_of_a_network(network, x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(4, 1), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((network(x) @ w).squeeze(-1), 0.7), obs=y)


@program(lambda: table()[1], exact="w, c", observed="y")
def autoregression(y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    c = pyro.sample("c", dist.Normal(0.0, 1.0))
    with pyro.plate("time", len(y) - 2):
        pyro.sample("y", dist.Normal(c + w[0] * y[1:-1] + w[1] * y[:-2], 0.5), obs=y[2:])


@program(lambda: table()[1][:4], exact="w, precision", observed="y_1, y_2, y_3")
def autoregression_in_a_loop(y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
    for t in range(1, len(y)):
        pyro.sample(f"y_{t}", dist.Normal(w * y[t - 1], precision.rsqrt()), obs=y[t])


@autoregression_in_a_loop.known_update
def _(q, y):
    t, before, now = q["precision"].mean, y[:-1], y[1:]
    square = now**2 - 2 * now * before * q["w"].mean + before**2 * mean_square(q["w"])
    return {
        "w": normal(t * (before * now).sum(), 1 + t * (before**2).sum()),
        "precision": dist.Gamma(torch.tensor(2 + 3 / 2), 1 + square.sum() / 2),
    }


@program(lambda: table()[1][:4], exact="z_0, z_1, z_2, z_3", observed="y_0, y_1, y_2, y_3")
def random_walk(y):
    z = torch.tensor(0.0)
    for t in pyro.markov(range(len(y))):
        z = pyro.sample(f"z_{t}", dist.Normal(z, 0.5))
        pyro.sample(f"y_{t}", dist.Normal(z, 0.7), obs=y[t])


@random_walk.known_update
def _(q, y):
    means = [torch.tensor(0.0), *(q[f"z_{t}"].mean for t in range(4))]
    inner = {
        f"z_{t}": normal(4 * (means[t] + means[t + 2]) + y[t] / 0.49, torch.tensor(8 + 1 / 0.49))
        for t in range(3)
    }
    return {**inner, "z_3": normal(4 * means[3] + y[3] / 0.49, torch.tensor(4 + 1 / 0.49))}


@program(lambda: table()[1], exact="z", observed="y")
def random_walk_as_one_site(y):
    steps = torch.ones(len(y), len(y)).tril()
    z = pyro.sample("z", dist.MultivariateNormal(torch.zeros(len(y)), 0.25 * steps @ steps.mT))
    pyro.sample("y", dist.Normal(z, 0.7).to_event(1), obs=y)


@random_walk_as_one_site.known_evidence
def _(y):
    steps = torch.ones(8, 8).tril()
    return gaussian_evidence(y, 0.0, 0.25 * steps @ steps.mT + 0.49 * torch.eye(8))


@program(lambda: table()[1], exact="steps", observed="y")
def random_walk_by_cumulative_sums(y):
    steps = pyro.sample("steps", dist.Normal(torch.zeros(len(y)), 0.5).to_event(1))
    pyro.sample("y", dist.Normal(steps.cumsum(-1), 0.7).to_event(1), obs=y)


random_walk_by_cumulative_sums.known_evidence(random_walk_as_one_site.evidence)


@program(table, exact="weights, w", summed_out="a", observed="y")
def mixture_of_regressions(x, y):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
    with pyro.plate("components", 2):
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("y", dist.Normal((w[a] * x).sum(-1), 0.7), obs=y)


@program(lambda: (*table(), torch.arange(8) % 3), exact="common, own", observed="y")
def hierarchical_regression(x, y, group):
    common = pyro.sample("common", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    with pyro.plate("groups", 3):
        own = pyro.sample("own", dist.Normal(common, 0.5).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((own[group] * x).sum(-1), 0.7), obs=y)


@hierarchical_regression.known_update
def _(q, x, y, group):
    belongs = (group == torch.arange(3)[:, None]).double()
    first = 4 * q["common"].mean + belongs @ (x * y[:, None]) / 0.49
    second = 4 * torch.eye(3) + torch.einsum("gn,nd,ne->gde", belongs, x, x) / 0.49
    common = normal(4 * q["own"].mean.sum(0), torch.full((3,), 1 / 4 + 3 * 4))
    return {"own": multivariate_normal(first, second), "common": common}


@program(lambda: table()[0], exact="loadings, precision, z", observed="x")
def probabilistic_pca(x):
    loadings = pyro.sample("loadings", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
    precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(z @ loadings.mT, precision.rsqrt()).to_event(1), obs=x)


@probabilistic_pca.known_update
def _(q, x):
    t = q["precision"].mean
    w, z = q["loadings"].base_dist, q["z"]
    of_w, of_z = second_moment(w), second_moment(z)
    square = x.square().sum() - 2 * (x * (z.mean @ w.mean.mT)).sum() + torch.einsum("def,nef->", of_w, of_z)
    return {
        "loadings": multivariate_normal(t * x.mT @ z.mean, torch.eye(2) + t * of_z.sum(0).expand(3, 2, 2)),
        "z": multivariate_normal(t * x @ w.mean, torch.eye(2) + t * of_w.sum(0).expand(8, 2, 2)),
        "precision": dist.Gamma(torch.tensor(2 + x.numel() / 2), 1 + square / 2),
    }


@program(lambda: table()[0], exact="loadings, mean, z", observed="x")
def factor_analysis_by_linear(x):
    loadings = pyro.sample("loadings", dist.Normal(torch.zeros(3, 1), 1.0).to_event(2))
    mean = pyro.sample("mean", dist.Normal(torch.zeros(3), 3.0).to_event(1))
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(torch.zeros(1), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(nn.functional.linear(z, loadings, mean), 0.5).to_event(1), obs=x)


@program(lambda: table()[0][:, :2], exact="rows, columns", observed="x")
def matrix_factorisation(x):
    rows = pyro.sample("rows", dist.Normal(torch.zeros(8, 2), 1.0).to_event(2))
    columns = pyro.sample("columns", dist.Normal(torch.zeros(2, 2), 1.0).to_event(2))
    pyro.sample("x", dist.Normal(torch.einsum("nk,dk->nd", rows, columns), 0.5).to_event(2), obs=x)


# Partly conjugate, or not at all


@program(table, drawn="w", observed="y")
def logistic_regression(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=(y > 0).double())


@program(table, exact="out, precision", drawn="hidden", observed="y")
def bayesian_network_of_two_layers(x, y):
    hidden = pyro.sample("hidden", dist.Normal(torch.zeros(3, 4), 1.0).to_event(2))
    out = pyro.sample("out", dist.Normal(torch.zeros(4), 1.0).to_event(1))
    precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((x @ hidden).tanh() @ out, precision.rsqrt()), obs=y)


@bayesian_network_of_two_layers.known_update
def _(q, x, y):
    phi, t = (x @ q["hidden"].mean).tanh(), q["precision"].mean
    return {"out": multivariate_normal(t * (y @ phi), torch.eye(4) + t * phi.mT @ phi)}


@program(table, drawn="w", exact="b", observed="y")
def poisson_regression_with_a_linear_part(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    b = pyro.sample("b", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson(b * (x @ w).exp()), obs=y.abs().round())


@poisson_regression_with_a_linear_part.known_update
def _(q, x, y):
    return {"b": dist.Gamma(2 + y.abs().round().sum(), 1 + (x @ q["w"].mean).exp().sum())}


@program(lambda: table()[1], drawn="loc", exact="precision", observed="y, z")
def location_of_a_heavy_tail(y):
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.StudentT(3.0, loc, 1.0), obs=y)
        pyro.sample("z", dist.Normal(loc, precision.rsqrt()), obs=y + 0.1)


@program(lambda: table()[1], drawn="loc", exact="precision", observed="y")
def branch_on_a_value(y):
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(torch.where(loc > 0, loc, 2 * loc), precision.rsqrt()), obs=y)


@program(lambda: table()[1], drawn="angle", exact="precision", observed="y")
def sine_of_an_angle(y):
    angle = pyro.sample("angle", dist.VonMises(0.0, 2.0))
    precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(angle.sin(), precision.rsqrt()), obs=y)


@sine_of_an_angle.known_update
def _(q, y):
    square = (y - q["angle"].mean.sin()).square().sum()
    return {"precision": dist.Gamma(torch.tensor(2 + len(y) / 2), 1 + square / 2)}
