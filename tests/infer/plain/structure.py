"""Plates, scales, masks, and sites of which a part is known."""

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from torch import nn

from pyro_fmvae.infer import AutoConjugate
from tests.infer.plain.moments import mean_log, mean_square, normal
from tests.infer.plain.program import program

K = 2


def numbers():
    return torch.tensor([0.2, -0.5, 1.1, 6.0, 7.1, 5.2])


def globals_of_a_mixture():
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("components", K):
        return weights, pyro.sample("locs", dist.Normal(0.0, 5.0))


def update_of_a_mixture(q, x, scale=1.0):
    square = x[:, None] ** 2 - 2 * x[:, None] * q["locs"].mean + mean_square(q["locs"])
    r = scale * (mean_log(q["weights"]) - square / 2).softmax(-1)
    return {"weights": dist.Dirichlet(1 + r.sum(0)), "locs": normal(r.mT @ x, 0.04 + r.sum(0))}


@program(numbers, exact="weights, locs", summed_out="a", observed="x")
def subsample(x):
    weights, locs = globals_of_a_mixture()
    with pyro.plate("data", 6, subsample=torch.tensor([0, 3, 5])) as i:
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x[i])


@subsample.known_update
def _(q, x):
    return update_of_a_mixture(q, x[[0, 3, 5]], 2.0)


@program(numbers, exact="weights, locs", summed_out="a", observed="x")
def tempered_data(x):
    weights, locs = globals_of_a_mixture()
    with pyro.plate("data", len(x)), poutine.scale(scale=0.25):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x)


@tempered_data.known_update
def _(q, x):
    return update_of_a_mixture(q, x, 0.25)


@program(numbers, exact="weights, locs", summed_out="a", observed="x")
def masked_points(x):
    x = x.clone()
    x[2] = torch.nan
    weights, locs = globals_of_a_mixture()
    with pyro.plate("data", len(x)), poutine.mask(mask=~x.isnan()):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x)


@masked_points.known_update
def _(q, x):
    return update_of_a_mixture(q, x[[0, 1, 3, 4, 5]])


@program(numbers, exact="weights, locs", summed_out="a", observed="x")
def masked_observations(x):
    weights, locs = globals_of_a_mixture()
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], 1.0).mask(torch.arange(len(x)) % 2 == 0), obs=x)


@program(numbers, exact="weights, locs", summed_out="a", observed="x_observed", left_out="x_unobserved")
def numbers_that_are_missing_by_obs_mask(x):
    weights, locs = globals_of_a_mixture()
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x, obs_mask=torch.arange(len(x)) % 2 == 0)


@program(numbers, exact="weights, locs", summed_out="a_unobserved", observed="a_observed, x")
def labels_of_some_points_by_obs_mask(x):
    weights, locs = globals_of_a_mixture()
    labels, known = torch.tensor([0, 0, 0, 1, 0, 0]), torch.tensor([1, 0, 0, 1, 0, 0]).bool()
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights), obs=labels, obs_mask=known)
        pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x)


@program(numbers, exact="weights, locs", summed_out="b", observed="a, x, y")
def points_with_labels_and_points_without(x):
    weights, locs = globals_of_a_mixture()
    with pyro.plate("labelled", 2):
        a = pyro.sample("a", dist.Categorical(weights), obs=torch.tensor([0, 1]))
        pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x[2:4])
    with pyro.plate("unlabelled", 4):
        b = pyro.sample("b", dist.Categorical(weights))
        pyro.sample("y", dist.Normal(locs[b], 1.0), obs=x[[0, 1, 4, 5]])


@points_with_labels_and_points_without.known_update
def _(q, x):
    free = update_of_a_mixture(q, x[[0, 1, 4, 5]])
    locs = free["locs"]
    precision = locs.variance.reciprocal()
    return {
        "weights": dist.Dirichlet(free["weights"].concentration + 1),
        "locs": normal(locs.mean * precision + x[2:4], precision + 1),
    }


@program(lambda: numbers().view(2, 3), exact="weights, locs", summed_out="a", observed="x")
def one_assignment_per_group(x):
    weights, locs = globals_of_a_mixture()
    with pyro.plate("groups", 3, dim=-1):
        a = pyro.sample("a", dist.Categorical(weights))
        with pyro.plate("members", 2, dim=-2):
            pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x)


@program(
    lambda: numbers()[[0, 1, 3, 4]].view(2, 2),
    exact="weights, own, locs",
    summed_out="a",
    observed="x, prior",
)
def weights_of_each_group(x):
    weights, locs = globals_of_a_mixture()
    with pyro.plate("groups", 2, dim=-1):
        own = pyro.sample("own", dist.Dirichlet(torch.tensor([1.0, 2.0])))
        with pyro.plate("members", 2, dim=-2):
            a = pyro.sample("a", dist.Categorical(own))
            pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x)
    pyro.sample("prior", dist.Multinomial(3, weights), obs=torch.tensor([1.0, 2.0]))


@program(lambda: numbers()[[0, 1, 3, 4]], exact="weights, locs", summed_out="a, b", observed="x, y")
def plate_that_is_entered_twice(x):
    weights, locs = globals_of_a_mixture()
    data = pyro.plate("data", len(x))
    with data:
        a = pyro.sample("a", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(locs[a], 1.0), obs=x)
    with data:
        b = pyro.sample("b", dist.Categorical(weights))
        pyro.sample("y", dist.Normal(locs[b] + locs[a], 1.0), obs=x.flip(0))


@plate_that_is_entered_twice.known_update
def _(q, x):
    y, m, m2 = x.flip(0)[:, None, None], q["locs"].mean, mean_square(q["locs"])
    first = mean_log(q["weights"]) + x[:, None] * m - m2 / 2
    both = m[:, None] + m  # E[l_a + l_b], and that of its square
    square = m2[:, None] + m2 + 2 * torch.where(torch.eye(K) == 1, m2, m[:, None] * m)
    table = first[:, :, None] + mean_log(q["weights"]) + y * both - square / 2
    r = table.flatten(1).softmax(-1).view_as(table)  # [N, K of a, K of b]
    a, b, same = r.sum(2), r.sum(1), r.diagonal(dim1=1, dim2=2)
    other = r * (1 - torch.eye(K))
    gap = (other * (y - m)).sum((0, 2)) + (other * (y - m[:, None])).sum((0, 1))
    linear = a.mT @ x + gap + 2 * same.mT @ x.flip(0)
    quadratic = a.sum(0) + other.sum((0, 2)) + other.sum((0, 1)) + 4 * same.sum(0)
    return {"weights": dist.Dirichlet(1 + (a + b).sum(0)), "locs": normal(linear, 1 / 25 + quadratic)}


@program(
    lambda: numbers()[:4],
    exact="weights, locs",
    summed_out="a_0, a_1, a_2, a_3",
    observed="x_0, x_1, x_2, x_3",
)
def sequential_plate(x):
    weights, locs = globals_of_a_mixture()
    for n in pyro.plate("data", len(x)):
        a = pyro.sample(f"a_{n}", dist.Categorical(weights))
        pyro.sample(f"x_{n}", dist.Normal(locs[a], 1.0), obs=x[n])


@sequential_plate.known_update
def _(q, x):
    return update_of_a_mixture(q, x)


@program(numbers, exact="rows_, columns_", observed="x")
def crossed_effects(x):
    with pyro.plate("rows", 2, dim=-2):
        rows = pyro.sample("rows_", dist.Normal(0.0, 1.0))
    with pyro.plate("columns", 3, dim=-1):
        columns = pyro.sample("columns_", dist.Normal(0.0, 2.0))
    with pyro.plate("rows_of_data", 2, dim=-2), pyro.plate("columns_of_data", 3, dim=-1):
        pyro.sample("x", dist.Normal(rows + columns, 0.5), obs=x.view(2, 3))


@program(lambda: numbers()[:5], exact="mu", observed="x")
def data_outside_of_a_plate(x):
    mu = pyro.sample("mu", dist.Normal(torch.zeros(1), 2.0).to_event(1))
    pyro.sample("x", dist.Normal(mu, 1.0).expand([5]).to_event(1), obs=x)


@data_outside_of_a_plate.known_evidence
def _(x):
    return dist.MultivariateNormal(torch.zeros(5), 4 * torch.ones(5, 5) + torch.eye(5)).log_prob(x)


@program(lambda: torch.tensor([0, 1, 1]), drawn="rows", observed="x")
def weights_on_a_diagonal(x):
    """The weights are not normalised by themselves, so the sum over them has no closed form."""
    rows = pyro.sample("rows", dist.Dirichlet(torch.ones(2, 2)).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Categorical(rows[torch.arange(2), torch.arange(2)]), obs=x)


class MixtureGuide(nn.Module):
    """A guide by hand: natural posteriors for the globals, and a Normal for the points of a decoder."""

    def __init__(self, model):
        super().__init__()
        self.conjugate = AutoConjugate(model, fallback=None)
        self.loc = nn.Parameter(torch.tensor([0.3, 4.0, 5.0]))

    def forward(self, x):
        self.conjugate(x)
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(self.loc, 0.3))

    def posterior(self, name):
        return self.conjugate.posterior(name)


@program(
    lambda: numbers()[[0, 3, 4]], MixtureGuide, exact="weights, locs", drawn="z", summed_out="a", observed="x"
)
def mixture_behind_a_decoder(x):
    weights, locs = globals_of_a_mixture()
    with pyro.plate("data", len(x)):
        a = pyro.sample("a", dist.Categorical(weights))
        z = pyro.sample("z", dist.Normal(locs[a], 1.0))
        pyro.sample("x", dist.Normal(z + z.tanh(), 0.5), obs=x)


@mixture_behind_a_decoder.known_update
def _(q, x):
    gap = q["z"].mean[:, None] - q["locs"].mean
    square = gap**2 + q["z"].variance[:, None] + q["locs"].variance
    r = (mean_log(q["weights"]) - square / 2).softmax(-1)
    return {
        "weights": dist.Dirichlet(1 + r.sum(0)),
        "locs": normal(r.mT @ q["z"].mean, 0.04 + r.sum(0)),
    }
