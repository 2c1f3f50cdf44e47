"""Mixtures of continuous data."""

from functools import partial

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import config_enumerate
from pyro.ops.indexing import Vindex
from torch.nn.functional import pad

from tests.infer.plain.moments import mean_log, mean_square, multivariate_normal, normal, second_moment
from tests.infer.plain.program import program

K = 2


def numbers():
    return torch.tensor([0.2, -0.5, 1.1, 6.0, 7.1, 5.2])


def positive_numbers():
    return torch.tensor([0.2, 0.4, 0.1, 3.0, 5.1, 2.2])


def points():
    return torch.tensor([[0.2, -0.5], [1.1, 0.3], [0.4, 0.1], [6.0, 4.1], [5.2, 5.5]])


@program(numbers, exact="weights, locs", summed_out="a", observed="x")
def gaussian_mixture(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.full((K,), 0.7)))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(1.0, 10.0))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], 1.5), obs=x)


@gaussian_mixture.known_update
def _(q, x):
    square = x[:, None] ** 2 - 2 * x[:, None] * q["locs"].mean + mean_square(q["locs"])
    r = (mean_log(q["weights"]) - square / (2 * 1.5**2)).softmax(-1)
    first, second = 0.01 + (r.mT @ x) / 1.5**2, 0.01 + r.sum(0) / 1.5**2
    return {"weights": dist.Dirichlet(0.7 + r.sum(0)), "locs": normal(first, second)}


@program(numbers, exact="weights, locs", drawn="scale", summed_out="a", observed="x")
def mixture_of_unknown_common_scale(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.full((K,), 0.5)))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 2.0))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], scale), obs=x)


@program(points, exact="weights, locs, precisions", summed_out="a", observed="x")
def diagonal_mixture(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 5.0).to_event(1))
        precisions = pyro.sample("precisions", dist.Gamma(2.0 * torch.ones(2), 1.5).to_event(1))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], precisions[a].rsqrt()).to_event(1), obs=x)


@diagonal_mixture.known_update
def _(q, x):
    m, m2, t = q["locs"].mean, mean_square(q["locs"]), q["precisions"].mean
    square = x[:, None] ** 2 - 2 * x[:, None] * m + m2  # [N, K, 2]
    table = 0.5 * (mean_log(q["precisions"]) - t * square).sum(-1)
    r = (mean_log(q["weights"]) + table).softmax(-1)
    count = r.sum(0).unsqueeze(-1)
    return {
        "weights": dist.Dirichlet(1 + r.sum(0)),
        "locs": normal(t * (r.mT @ x), 0.04 + t * count),
        "precisions": dist.Gamma(2 + count / 2, 1.5 + 0.5 * torch.einsum("nk,nkd->kd", r, square)),
    }


def one_hot(product):
    """The diagonal mixture with a vector for an assignment, which is multiplied with the parameters."""

    def model(x):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("components", K):
            locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 5.0).to_event(1))
            precisions = pyro.sample("precisions", dist.Gamma(2.0 * torch.ones(2), 1.5).to_event(1))
        with pyro.plate("data", len(x)):
            a = pyro.sample("a", dist.OneHotCategorical(weights))
            pyro.sample("x", dist.Normal(product(a, locs), product(a, precisions).rsqrt()).to_event(1), obs=x)

    return model


ONE_HOT = {
    "one_hot_by_matmul": one_hot(lambda a, each: a @ each),
    "one_hot_by_sum": one_hot(lambda a, each: (a.unsqueeze(-1) * each).sum(-2)),
    "one_hot_by_einsum": one_hot(lambda a, each: torch.einsum("...k,kd->...d", a, each)),
}
for name, model in ONE_HOT.items():
    model.__name__ = name
    program(
        points, twin=diagonal_mixture.model, exact="weights, locs, precisions", summed_out="a", observed="x"
    )(model).known_update(diagonal_mixture.update)


@program(numbers, exact="weights, locs, precisions", summed_out="a", observed="x")
def mixture_with_one_over_a_root(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
        precisions = pyro.sample("precisions", dist.Gamma(2.0, 1.5))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], 1 / precisions[a].sqrt()), obs=x)


@program(numbers, exact="weights, locs, variances", summed_out="a", observed="x")
def mixture_of_unknown_variances(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
        variances = pyro.sample("variances", dist.InverseGamma(2.0, 1.5))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], variances[a].sqrt()), obs=x)


@program(numbers, exact="weights, locs, precisions", summed_out="a", observed="x")
def mixture_with_priors_that_share_a_precision(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        precisions = pyro.sample("precisions", dist.Gamma(2.0, 1.5))
        locs = pyro.sample("locs", dist.Normal(0.0, (0.1 * precisions).rsqrt()))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], precisions[a].rsqrt()), obs=x)


@program(points, exact="weights, locs, precisions", summed_out="a", observed="x")
def full_covariances(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.MultivariateNormal(torch.zeros(2), 25 * torch.eye(2)))
        precisions = pyro.sample("precisions", dist.Wishart(torch.tensor(4.0), torch.eye(2)))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.MultivariateNormal(locs[a], precision_matrix=precisions[a]), obs=x)


@full_covariances.known_update
def _(q, x):
    m, precision = q["locs"].mean, q["precisions"].mean
    gap = x[:, None] - m
    scatter = gap.unsqueeze(-1) * gap.unsqueeze(-2) + q["locs"].covariance_matrix
    table = 0.5 * mean_log(q["precisions"]) - 0.5 * (precision * scatter).sum((-2, -1))
    r = (mean_log(q["weights"]) + table).softmax(-1)
    first = torch.einsum("nk,kde,ne->kd", r, precision, x)
    second = torch.eye(2) / 25 + r.sum(0)[:, None, None] * precision
    inverse_scale = torch.eye(2) + torch.einsum("nk,nkde->kde", r, scatter)
    return {
        "weights": dist.Dirichlet(1 + r.sum(0)),
        "locs": multivariate_normal(first, second),
        "precisions": dist.Wishart(4 + r.sum(0), torch.linalg.inv(inverse_scale)),
    }


@program(points, exact="locs", drawn="tril, weights", summed_out="a", observed="x")
def correlation_and_logistic_weights_that_are_drawn(x):
    weights = pyro.sample("weights", dist.Normal(torch.zeros(K), 1.0).to_event(1))
    tril = pyro.sample("tril", dist.LKJCholesky(2, 1.0))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.MultivariateNormal(torch.zeros(2), 9 * torch.eye(2)))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(logits=weights))
        pyro.sample("x", dist.MultivariateNormal(locs[a], scale_tril=1.5 * tril), obs=x)


@correlation_and_logistic_weights_that_are_drawn.known_update
def _(q, x):
    precision = torch.cholesky_inverse(1.5 * q["tril"].mean)
    gap = x[:, None] - q["locs"].mean
    scatter = gap.unsqueeze(-1) * gap.unsqueeze(-2) + q["locs"].covariance_matrix
    r = (q["weights"].mean - 0.5 * (precision * scatter).sum((-2, -1))).softmax(-1)
    second = torch.eye(2) / 9 + r.sum(0)[:, None, None] * precision
    return {"locs": multivariate_normal(torch.einsum("nk,de,ne->kd", r, precision, x), second)}


@program(numbers, exact="weights, locs", summed_out="a", observed="x")
def mixture_by_gather(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs.gather(-1, a.reshape(-1)).reshape(a.shape), 1.0), obs=x)


@program(numbers, exact="weights, locs", summed_out="a", observed="x")
def mixture_by_index_select(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    locs = pyro.sample("locs", dist.Normal(torch.zeros(K), 5.0).to_event(1))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs.index_select(0, a.reshape(-1)).view(a.shape), 1.0), obs=x)


@program(numbers, exact="weights, locs", summed_out="a", observed="x")
@config_enumerate(default="sequential")
def mixture_marked_sequential(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(Vindex(locs)[a], 1.0), obs=x)


def the_same_by_assignments(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    locs = pyro.sample("locs", dist.Normal(torch.zeros(K), 5.0).to_event(1))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x)


@program(numbers, twin=the_same_by_assignments, exact="weights, locs", observed="x")
def mixture_same_family(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    locs = pyro.sample("locs", dist.Normal(torch.zeros(K), 5.0).to_event(1))
    with pyro.plate("data", len(x)):
        components = dist.Normal(locs, torch.ones(K))
        pyro.sample("x", dist.MixtureSameFamily(dist.Categorical(weights), components), obs=x)


@program(lambda: points()[:4].T, exact="weights, locs", summed_out="a", observed="x")
def one_mixture_per_row_by_vindex(x):
    with pyro.plate("rows", 2, dim=-2):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K))).squeeze(-2)
    with pyro.plate("components", K, dim=-1):
        locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 5.0).to_event(1))
    with pyro.plate("rows_of_data", 2, dim=-2), pyro.plate("data", x.shape[1], dim=-1):
        a = pyro.sample("a", dist.Categorical(weights.unsqueeze(-2)))
        pyro.sample("x", dist.Normal(Vindex(locs)[a, torch.arange(2)[:, None]], 1.0), obs=x)


@program(positive_numbers, exact="weights, rates", summed_out="a", observed="x")
def mixture_of_exponentials(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        rates = pyro.sample("rates", dist.Gamma(2.0, 1.5))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Exponential(rates[a]), obs=x)


@mixture_of_exponentials.known_update
def _(q, x):
    table = mean_log(q["rates"]) - x[:, None] * q["rates"].mean
    r = (mean_log(q["weights"]) + table).softmax(-1)
    return {"weights": dist.Dirichlet(1 + r.sum(0)), "rates": dist.Gamma(2 + r.sum(0), 1.5 + r.mT @ x)}


@program(positive_numbers, exact="weights, rates", summed_out="a", observed="x")
def mixture_of_gammas_of_known_shape(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        rates = pyro.sample("rates", dist.Gamma(2.0, 1.5))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Gamma(3.0, rates[a]), obs=x)


@program(positive_numbers, exact="weights, locs, precisions", summed_out="a", observed="x")
def mixture_of_log_normals(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(0.0, 2.0))
        precisions = pyro.sample("precisions", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.LogNormal(locs[a], precisions[a].rsqrt()), obs=x)


def sticks(fractions):
    """Weights [T] of a stick that is broken T - 1 times."""
    rest = (1 - fractions).cumprod(-1)
    return pad(fractions, (0, 1), value=1) * pad(rest, (1, 0), value=1)


@program(points, exact="fractions, locs", summed_out="a", observed="x")
def dirichlet_process_mixture(x):
    with pyro.plate("breaks", 2):
        fractions = pyro.sample("fractions", dist.Beta(1.0, 1.3))
    with pyro.plate("components", 3):
        locs = pyro.sample("locs", dist.MultivariateNormal(torch.zeros(2), 9 * torch.eye(2)))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(sticks(fractions)))
        pyro.sample("x", dist.MultivariateNormal(locs[a], torch.eye(2)), obs=x)


@dirichlet_process_mixture.known_update
def _(q, x):
    f, (m, second) = q["fractions"], (q["locs"].mean, second_moment(q["locs"]))
    log, log1m = mean_log(f), f.concentration0.digamma() - (f.concentration1 + f.concentration0).digamma()
    log_weights = torch.stack([log[0], log1m[0] + log[1], log1m[0] + log1m[1]])
    square = (x**2).sum(-1, keepdim=True) - 2 * x @ m.mT + second.diagonal(dim1=-2, dim2=-1).sum(-1)
    r = (log_weights - square / 2).softmax(-1)
    n = r.sum(0)
    return {
        "fractions": dist.Beta(1 + n[:2], 1.3 + torch.stack([n[1] + n[2], n[2]])),
        "locs": multivariate_normal(r.mT @ x, (1 / 9 + n)[:, None, None] * torch.eye(2)),
    }


@program(lambda: numbers()[1:5], exact="weights, fine_weights, left, right", summed_out="a, b", observed="x")
def sum_of_two_components(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    fine_weights = pyro.sample("fine_weights", dist.Dirichlet(2 * torch.ones(K)))
    with pyro.plate("components", K):
        left = pyro.sample("left", dist.Normal(0.0, 5.0))
        right = pyro.sample("right", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        b = pyro.sample("b", dist.Categorical(fine_weights))
        pyro.sample("x", dist.Normal(left[a] + right[b], 0.8), obs=x)


@sum_of_two_components.known_update
def _(q, x):
    left, right = q["left"].mean[:, None], q["right"].mean
    mean, x = left + right, x[:, None, None]
    square = mean_square(q["left"])[:, None] + mean_square(q["right"]) + 2 * left * right
    table = mean_log(q["weights"])[:, None] + mean_log(q["fine_weights"]) + (x * mean - square / 2) / 0.64
    r = table.flatten(1).softmax(-1).view_as(table)  # [N, K of a, K of b]
    return {
        "weights": dist.Dirichlet(1 + r.sum((0, 2))),
        "fine_weights": dist.Dirichlet(2 + r.sum((0, 1))),
        "left": normal((r * (x - right)).sum((0, 2)) / 0.64, 1 / 25 + r.sum((0, 2)) / 0.64),
        "right": normal((r * (x - left)).sum((0, 1)) / 0.64, 1 + r.sum((0, 1)) / 0.64),
    }


@program(lambda: numbers()[1:5], exact="weights, rows, locs", summed_out="a, b", observed="x")
def assignment_that_hangs_on_another(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("parents", K):
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(K)))
        locs = pyro.sample("locs", dist.Normal(torch.zeros(K), 5.0).to_event(1))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        b = pyro.sample("b", dist.Categorical(rows[a]))
        pyro.sample("x", dist.Normal(locs[a, b], 1.0), obs=x)


@assignment_that_hangs_on_another.known_update
def _(q, x):
    table = x[:, None, None] * q["locs"].mean - mean_square(q["locs"]) / 2
    table = table + mean_log(q["weights"])[:, None] + mean_log(q["rows"])
    r = table.flatten(1).softmax(-1).view_as(table)
    return {
        "weights": dist.Dirichlet(1 + r.sum((0, 2))),
        "rows": dist.Dirichlet(1 + r.sum(0)),
        "locs": normal(torch.einsum("nab,n->ab", r, x), 1 / 25 + r.sum(0)),
    }


@program(
    lambda: (numbers(), numbers().roll(2) > 1), exact="weights, locs, p", summed_out="a", observed="x, y"
)
def two_kinds_of_data_for_one_assignment(x, y):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
        p = pyro.sample("p", dist.Beta(1.0, 2.0))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x)
        pyro.sample("y", dist.Bernoulli(p[a]), obs=y.double())


@program(numbers, exact="p, locs", summed_out="a", observed="x")
def bernoulli_assignment(x):
    p = pyro.sample("p", dist.Beta(1.0, 2.0))
    locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 5.0).to_event(1))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Bernoulli(p))
        pyro.sample("x", dist.Normal(locs[a.long()], 1.0), obs=x)


@program(numbers, exact="weights, locs", summed_out="a", observed="x")
def assignment_by_arithmetic(x):
    weights = pyro.sample("weights", dist.Beta(1.0, 2.0))
    locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 5.0).to_event(1))
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Bernoulli(weights))
        pyro.sample("x", dist.Normal(a * locs[0] + (1 - a) * locs[1], 1.0), obs=x)


KNOWN = {
    "normal_location": (
        lambda a: dist.Normal(torch.tensor([0.0, 5.0])[a], 1.0),
        lambda u: dist.Normal(u, 1.0),
        [0.3, 1.2, 5.5],
    ),
    "gamma": (lambda a: dist.Gamma(torch.tensor([1.0, 3.0])[a], 1.0), dist.Poisson, [0.0, 2.0, 5.0]),
    "inverse_gamma": (
        lambda a: dist.InverseGamma(torch.tensor([2.0, 4.0])[a], 2.0),
        lambda u: dist.Normal(0.0, u.sqrt()),
        [0.3, 1.2, 5.5],
    ),
    "beta": (lambda a: dist.Beta(torch.tensor([1.0, 3.0])[a], 2.0), dist.Bernoulli, [0.0, 1.0, 1.0]),
    "dirichlet": (
        lambda a: dist.Dirichlet(torch.tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 1.0]])[a]),
        dist.Categorical,
        [0.0, 1.0, 2.0],
    ),
    "normal_event": (
        lambda a: dist.Normal(torch.tensor([[0.0, 1.0], [3.0, 3.0]])[a], 1.0).to_event(1),
        lambda u: dist.Normal(u, 1.0).to_event(1),
        [[0.3, -1.0], [2.0, 2.5], [0.1, 3.0]],
    ),
    "multivariate_normal": (
        lambda a: dist.MultivariateNormal(torch.tensor([[0.0, 1.0], [3.0, 3.0]])[a], torch.eye(2) + 0.5),
        lambda u: dist.MultivariateNormal(u, torch.eye(2)),
        [[0.3, -1.0], [2.0, 2.5], [0.1, 3.0]],
    ),
    "wishart": (
        lambda a: dist.Wishart(torch.tensor([3.0, 5.0])[a], torch.eye(2)),
        lambda u: dist.MultivariateNormal(torch.zeros(2), precision_matrix=u),
        [[0.3, -1.0], [2.0, 2.5], [0.1, 3.0]],
    ),
}
"""Priors that an assignment picks out of known numbers, what hangs on their draws, and data."""


def known_prior(prior, child):
    def model(x):
        with pyro.plate("data", len(x)):
            a = pyro.sample("a", dist.Categorical(torch.tensor([0.4, 0.6])))
            u = pyro.sample("u", prior(a))
            pyro.sample("x", child(u), obs=x)

    return model


for name, (prior, child, data) in KNOWN.items():
    model = known_prior(prior, child)
    model.__name__ = f"known_prior_{name}"
    program(partial(torch.tensor, data), exact="u", summed_out="a", observed="x")(model)


@program(numbers, exact="u", summed_out="a", observed="x")
def global_of_a_known_prior(x):
    a = pyro.sample("a", dist.Bernoulli(0.3))
    u = pyro.sample("u", dist.Normal(3.0 * a, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(u, 1.0), obs=x)


@program(numbers, exact="w", summed_out="s", observed="x")
def spike_and_slab_regression(x):
    design = torch.linspace(-1.0, 1.0, 3 * len(x)).view(-1, 3) ** torch.tensor([1.0, 2.0, 3.0])
    with pyro.plate("coefficients", 3):
        s = pyro.sample("s", dist.Bernoulli(0.3))
        w = pyro.sample("w", dist.Normal(0.0, torch.where(s == 1, 3.0, 0.1)))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(design @ w, 1.0), obs=x)


@program(numbers, exact="precision, w", summed_out="s", observed="x")
def slab_on_the_scale_of_the_noise(x):
    precision = pyro.sample("precision", dist.Gamma(2.0, 2.0))
    s = pyro.sample("s", dist.Bernoulli(0.3))
    w = pyro.sample("w", dist.Normal(0.0, torch.where(s == 1, 3.0, 0.1) * precision.rsqrt()))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(w, precision.rsqrt()), obs=x)
