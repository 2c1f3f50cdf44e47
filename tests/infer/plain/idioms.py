"""Usual ways to write conjugate programs: cases that a site picks, changes in place, other classes."""

import pyro
import pyro.distributions as dist
import torch
from torch.nn import functional as F

from tests.infer.plain.program import program
from tests.infer.plain.regressions import gaussian_evidence, table


def numbers():
    return torch.tensor([0.2, -0.5, 1.1, 6.0, -7.1, 5.2])


def positive_numbers():
    return torch.tensor([0.2, 0.4, 0.1, 3.0, 5.1, 2.2])


def shares():
    return torch.tensor([0.2, 0.4, 0.1, 0.7])


def points():
    return torch.tensor([[0.2, -0.5, 3.0], [1.1, 0.3, -4.0], [0.4, 0.1, 2.5]])


def annotations():
    return torch.tensor([[0, 2], [1, 1]])


@program(numbers, exact="w, p, q", summed_out="z", observed="x")
def outliers_by_cases(x):
    w = pyro.sample("w", dist.Beta(1.0, 2.0))
    p = pyro.sample("p", dist.Gamma(2.0, 1.0))
    q = pyro.sample("q", dist.Gamma(2.0, 9.0))
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Bernoulli(w))
        pyro.sample("x", dist.Normal(0.5, torch.where(z == 1, p.rsqrt(), q.rsqrt())), obs=x)


@program(numbers, exact="w, p", summed_out="z", observed="x")
def outliers_of_known_scale(x):
    w = pyro.sample("w", dist.Beta(1.0, 2.0))
    p = pyro.sample("p", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Bernoulli(w))
        pyro.sample("x", dist.Normal(0.5, torch.where(z == 1, 6.0, p.rsqrt())), obs=x)


@program(numbers, exact="w, p, q", summed_out="z", observed="x")
def outliers_by_an_index_into_a_stack(x):
    w = pyro.sample("w", dist.Beta(1.0, 2.0))
    p = pyro.sample("p", dist.Gamma(2.0, 1.0))
    q = pyro.sample("q", dist.Gamma(2.0, 9.0))
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Bernoulli(w))
        pyro.sample("x", dist.Normal(0.5, torch.stack([q, p])[z.long()].rsqrt()), obs=x)


@program(annotations, exact="eps, theta", summed_out="c, s", observed="y")
def annotators_who_may_guess(y):
    """MACE: Hovy, Berg-Kirkpatrick, Vaswani and Hovy (2013), Learning whom to trust with MACE."""
    items, annotators = y.shape
    with pyro.plate("annotators", annotators):
        eps = pyro.sample("eps", dist.Dirichlet(2.0 * torch.ones(3)))
        theta = pyro.sample("theta", dist.Beta(2.0, 3.0))
    with pyro.plate("items", items, dim=-2):
        c = pyro.sample("c", dist.Categorical(torch.tensor([0.5, 0.3, 0.2])))
        with pyro.plate("positions", annotators):
            s = pyro.sample("s", dist.Bernoulli(1 - theta))
            honest = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])[c]
            pyro.sample("y", dist.Categorical(torch.where(s[..., None] == 0, honest, eps)), obs=y)


@program(numbers, exact="m", observed="x")
def residuals(x):
    """A linear change of variable whose Jacobian is 1: x is Normal around m."""
    m = pyro.sample("m", dist.Normal(1.0, 2.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(0.0, 1.5), obs=x - m)


@residuals.known_evidence
def residuals_evidence(x):
    return gaussian_evidence(x, 1.0, 2.25 * torch.eye(len(x)) + 4.0)


@program(numbers, exact="w, tau", observed="x")
def masked_residuals_of_a_regression(x):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 2.0).to_event(1))
    tau = pyro.sample("tau", dist.Gamma(2.0, 1.0))
    present = torch.arange(len(x)) != 2
    with pyro.plate("data", len(x)), pyro.poutine.mask(mask=present):
        fitted = w[0] + w[1] * torch.linspace(-1, 1, len(x))
        pyro.sample("x", dist.Normal(0.0, tau.rsqrt()), obs=fitted - x)


@program(shares, exact="alpha, v", observed="x")
def sticks_of_unknown_concentration(x):
    alpha = pyro.sample("alpha", dist.Gamma(2.0, 1.0))
    v = pyro.sample("v", dist.Beta(torch.ones(2), alpha).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Bernoulli(v[torch.arange(len(x)) % 2]), obs=(x > 0.3).to(x))


@program(shares, exact="alpha", observed="x")
def power_functions(x):
    alpha = pyro.sample("alpha", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Beta(alpha, 1.0), obs=x)


@power_functions.known_evidence
def _(x):
    a, b, count = torch.tensor(2.0), torch.tensor(1.0), len(x)
    logs = a * b.log() - a.lgamma() + (a + count).lgamma() - (a + count) * (b - x.log().sum()).log()
    return logs - x.log().sum()


@program(positive_numbers, exact="rate", observed="x")
def weibull_of_known_shape(x):
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Weibull(rate ** (-1 / 1.5), 1.5), obs=x)


@weibull_of_known_shape.known_evidence
def _(x):
    a, b, count = torch.tensor(2.0), torch.tensor(1.0), len(x)
    powers = (x**1.5).sum()
    logs = a * b.log() - a.lgamma() + (a + count).lgamma() - (a + count) * (b + powers).log()
    return logs + count * torch.tensor(1.5).log() + 0.5 * x.log().sum()


@program(positive_numbers, exact="scale", observed="x")
def weibull_of_shape_one(x):
    scale = pyro.sample("scale", dist.InverseGamma(3.0, 2.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Weibull(scale, 1.0), obs=x)


@program(numbers, exact="loc, precision", observed="x")
def affine_function_of_a_normal(x):
    loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
    precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(x)):
        standard = dist.Normal(0.0, 1.5)
        affine = dist.transforms.AffineTransform(loc, precision.rsqrt())
        pyro.sample("x", dist.TransformedDistribution(standard, [affine]), obs=x)


@program(points, exact="w, alpha", observed="x")
def precisions_on_a_diagonal(x):
    alpha = pyro.sample("alpha", dist.Gamma(2.0 * torch.ones(3), 1.0).to_event(1))
    w = pyro.sample("w", dist.MultivariateNormal(torch.zeros(3), precision_matrix=alpha.diag_embed()))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(w, 1.0).to_event(1), obs=x)


@program(table, exact="w", observed="y")
def regression_in_place(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    loc = x[:, 0] * w[0]
    for column in range(1, 3):
        loc += x[:, column] * w[column]
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(loc, 0.7), obs=y)


@regression_in_place.known_evidence
def _(x, y):
    return gaussian_evidence(y, 0.0, 4 * x @ x.mT + 0.49 * torch.eye(8))


@program(table, exact="effects", observed="y")
def effects_against_a_reference(x, y):
    level = torch.arange(len(y)) % 3
    effects = pyro.sample("effects", dist.Normal(torch.zeros(2), 2.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(F.pad(effects, (1, 0)).diff(prepend=torch.ones(1))[level], 0.7), obs=y)


@effects_against_a_reference.known_evidence
def _(x, y):
    mean = torch.tensor([-1.0, 0.0, 0.0])
    design = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 1.0]])
    rows = torch.arange(len(y)) % 3
    return gaussian_evidence(y, mean[rows], 4 * (design @ design.mT)[rows][:, rows] + 0.49 * torch.eye(8))


@program(table, exact="coefficients", observed="y")
def smoothing_by_a_kernel(x, y):
    coefficients = pyro.sample("coefficients", dist.Normal(torch.zeros(10), 2.0).to_event(1))
    smooth = F.conv1d(coefficients[None, None], torch.tensor([[[0.25, 0.5, 0.25]]]))[0, 0]
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(smooth, 0.7), obs=y)


@smoothing_by_a_kernel.known_evidence
def _(x, y):
    rows = torch.stack([F.pad(torch.tensor([0.25, 0.5, 0.25]), (i, 7 - i)) for i in range(8)])
    return gaussian_evidence(y, 0.0, 4 * rows @ rows.mT + 0.49 * torch.eye(8))


def wide_table():
    source = torch.Generator().manual_seed(5)
    x = torch.randn(9, 12, generator=source, dtype=torch.float64)
    return x, x.sum(1) + torch.randn(9, generator=source, dtype=torch.float64)


@program(wide_table, exact=", ".join(["precision", *(f"w{i}" for i in range(11)), "v"]), observed="y")
def regression_on_separate_coefficients(x, y):
    precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
    w = [pyro.sample(f"w{i}", dist.Normal(0.0, 1.0)) for i in range(11)]
    v = pyro.sample("v", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    loc = sum(w[i] * x[:, i] for i in range(11)) + x[:, -2:] @ v + 0.5
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(loc, precision.rsqrt()), obs=y)
