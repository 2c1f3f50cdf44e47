"""Hidden Markov models, and Markov chains that are observed."""

import pyro
import pyro.distributions as dist
import torch
from pyro.ops.indexing import Vindex

from pyro_fmvae.distributions import HiddenMarkov
from tests.infer.plain.hierarchies import dirichlet_evidence
from tests.infer.plain.moments import expected_paths, mean_log, mean_log1m, mean_square, normal, row_counts
from tests.infer.plain.program import program


@program(
    lambda: torch.tensor([0.0, 0.3, 5.0, 4.0]),
    exact="rows, locs, precisions",
    summed_out="z_0, z_1, z_2, z_3",
    observed="y_0, y_1, y_2, y_3",
)
def gaussian_hidden_markov_model(y):
    with pyro.plate("states", 3):
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(3)))
        locs = pyro.sample("locs", dist.Normal(0.0, 10.0))
        precisions = pyro.sample("precisions", dist.Gamma(2.0, 1.0))
    z = 0
    for t in pyro.markov(range(len(y))):
        z = pyro.sample(f"z_{t}", dist.Categorical(rows[z]))
        pyro.sample(f"y_{t}", dist.Normal(locs[z], precisions[z].rsqrt()), obs=y[t])


@program(
    lambda: torch.tensor([0.0, 1.0, 7.0, 9.0, 0.0]),
    exact="start, rows, rates",
    summed_out="z_0, z_1, z_2, z_3, z_4",
    observed="y_0, y_1, y_2, y_3, y_4",
)
def poisson_hidden_markov_model(y):
    start = pyro.sample("start", dist.Dirichlet(torch.ones(2)))
    rows = pyro.sample("rows", dist.Dirichlet(torch.ones(2, 2)).to_event(1))
    rates = pyro.sample("rates", dist.Gamma(torch.ones(2), 0.5).to_event(1))
    z = None
    for t in pyro.markov(range(len(y))):
        z = pyro.sample(f"z_{t}", dist.Categorical(start if z is None else rows[z]))
        pyro.sample(f"y_{t}", dist.Poisson(rates[z]), obs=y[t])


@program(
    lambda: torch.tensor([0.0, 1.0, 7.0, 9.0, 0.0]),
    twin=poisson_hidden_markov_model.model,
    exact="start, rows, rates",
    summed_out="z_0, z_1, z_2, z_3, z_4",
    observed="y_0, y_1, y_2, y_3, y_4",
)
def one_hot_hidden_markov_model(y):
    start = pyro.sample("start", dist.Dirichlet(torch.ones(2)))
    rows = pyro.sample("rows", dist.Dirichlet(torch.ones(2, 2)).to_event(1))
    rates = pyro.sample("rates", dist.Gamma(torch.ones(2), 0.5).to_event(1))
    z = None
    for t in pyro.markov(range(len(y))):
        z = pyro.sample(f"z_{t}", dist.OneHotCategorical(start if z is None else z @ rows))
        pyro.sample(f"y_{t}", dist.Poisson(z @ rates), obs=y[t])


@poisson_hidden_markov_model.known_update
@one_hot_hidden_markov_model.known_update
def _(q, y):
    emissions = y[:, None] * mean_log(q["rates"]) - q["rates"].mean
    r, pairs = expected_paths(mean_log(q["start"]), mean_log(q["rows"]), emissions)
    return {
        "start": dist.Dirichlet(1 + r[0]),
        "rows": dist.Dirichlet(1 + pairs.sum(0)),
        "rates": dist.Gamma(1 + r.mT @ y, 0.5 + r.sum(0)),
    }


@program(
    lambda: torch.tensor([[0, 1, 1, 2], [2, 2, 0, 1]]),
    exact="rows, emissions",
    summed_out="z_0, z_1, z_2, z_3",
    observed="y_0, y_1, y_2, y_3",
)
def categorical_hidden_markov_model_of_two_sequences(y):
    rows = pyro.sample("rows", dist.Dirichlet(torch.ones(2, 2)).to_event(1))
    emissions = pyro.sample("emissions", dist.Dirichlet(torch.ones(2, 3)).to_event(1))
    with pyro.plate("sequences", len(y), dim=-1):
        z = 0
        for t in pyro.markov(range(y.shape[1])):
            z = pyro.sample(f"z_{t}", dist.Categorical(rows[z]))
            pyro.sample(f"y_{t}", dist.Categorical(emissions[z]), obs=y[:, t])


@program(
    lambda: (torch.tensor([[1, 1, 0], [0, 1, 1]]).double(), torch.tensor([3, 2])),
    exact="rows, p",
    summed_out="z_0, z_1, z_2",
    observed="y_0, y_1, y_2",
)
def bernoulli_hidden_markov_model_of_ragged_sequences(y, lengths):
    rows = pyro.sample("rows", dist.Dirichlet(0.5 + torch.eye(2)).to_event(1))
    p = pyro.sample("p", dist.Beta(torch.ones(2), 2.0).to_event(1))
    with pyro.plate("sequences", len(y), dim=-1):
        z = 0
        for t in pyro.markov(range(y.shape[1])):
            with pyro.poutine.mask(mask=t < lengths):
                z = pyro.sample(f"z_{t}", dist.Categorical(rows[z]))
                pyro.sample(f"y_{t}", dist.Bernoulli(p[z]), obs=y[:, t])


@program(
    lambda: (torch.tensor([[1, 1, 0], [0, 1, 1]]).double(), torch.tensor([3, 2])),
    twin=bernoulli_hidden_markov_model_of_ragged_sequences.model,
    exact="rows, p",
    observed="y",
)
def bernoulli_sequences_in_one_site(y, lengths):
    rows = pyro.sample("rows", dist.Dirichlet(0.5 + torch.eye(2)).to_event(1))
    p = pyro.sample("p", dist.Beta(torch.ones(2), 2.0).to_event(1))
    with pyro.plate("sequences", len(y), dim=-1):
        sequence = HiddenMarkov(rows[0], rows, dist.Bernoulli(p), y.shape[1], lengths)
        pyro.sample("y", sequence, obs=y)


@bernoulli_hidden_markov_model_of_ragged_sequences.known_update
@bernoulli_sequences_in_one_site.known_update
def _(q, y, lengths):
    rows = mean_log(q["rows"])
    counts, ones, zeros = 0.5 + torch.eye(2), torch.ones(2), torch.full((2,), 2.0)
    for sequence, length in zip(y, lengths, strict=True):
        seen = sequence[:length]
        emissions = seen[:, None] * mean_log(q["p"]) + (1 - seen[:, None]) * mean_log1m(q["p"])
        r, pairs = expected_paths(rows[0], rows, emissions)
        counts, ones, zeros = counts + row_counts(r, pairs), ones + r.mT @ seen, zeros + r.mT @ (1 - seen)
    return {"rows": dist.Dirichlet(counts), "p": dist.Beta(ones, zeros)}


@program(
    lambda: torch.tensor([[0, 1, 1, 2], [2, 2, 0, 1]]),
    twin=categorical_hidden_markov_model_of_two_sequences.model,
    exact="rows, emissions",
    observed="y",
)
def categorical_sequences_in_one_site(y):
    rows = pyro.sample("rows", dist.Dirichlet(torch.ones(2, 2)).to_event(1))
    emissions = pyro.sample("emissions", dist.Dirichlet(torch.ones(2, 3)).to_event(1))
    with pyro.plate("sequences", len(y), dim=-1):
        pyro.sample("y", HiddenMarkov(rows[0], rows, dist.Categorical(emissions), y.shape[1]), obs=y)


@categorical_hidden_markov_model_of_two_sequences.known_update
@categorical_sequences_in_one_site.known_update
def _(q, y):
    rows, emissions = mean_log(q["rows"]), mean_log(q["emissions"])
    counts, words = torch.ones(2, 2), torch.ones(2, 3)
    for sequence in y:
        r, pairs = expected_paths(rows[0], rows, emissions.mT[sequence])
        counts += row_counts(r, pairs)
        words += r.mT @ torch.nn.functional.one_hot(sequence, 3).double()
    return {"rows": dist.Dirichlet(counts), "emissions": dist.Dirichlet(words)}


@program(
    lambda: torch.tensor([0.0, 0.3, 5.0, 4.0]),
    twin=gaussian_hidden_markov_model.model,
    exact="rows, locs, precisions",
    observed="y",
)
def gaussian_sequence_in_one_site(y):
    with pyro.plate("states", 3):
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(3)))
        locs = pyro.sample("locs", dist.Normal(0.0, 10.0))
        precisions = pyro.sample("precisions", dist.Gamma(2.0, 1.0))
    pyro.sample("y", HiddenMarkov(rows[0], rows, dist.Normal(locs, precisions.rsqrt()), len(y)), obs=y)


@gaussian_hidden_markov_model.known_update
@gaussian_sequence_in_one_site.known_update
def _(q, y):
    mean, precision = q["locs"].mean, q["precisions"].mean
    square = y[:, None] ** 2 - 2 * y[:, None] * mean + mean_square(q["locs"])
    rows = mean_log(q["rows"])
    r, pairs = expected_paths(rows[0], rows, 0.5 * (mean_log(q["precisions"]) - precision * square))
    return {
        "rows": dist.Dirichlet(1 + row_counts(r, pairs)),
        "locs": normal(precision * (r.mT @ y), 0.01 + precision * r.sum(0)),
        "precisions": dist.Gamma(2 + r.sum(0) / 2, 1 + (r * square).sum(0) / 2),
    }


@program(
    lambda: torch.tensor([[0.0, 0.3], [5.0, 4.0], [0.5, 3.0]]),
    exact="rows, p",
    summed_out="z_0, z_1, z_2",
    observed="y_0, y_1, y_2",
)
def hidden_markov_model_of_vectors(y):
    rows = pyro.sample("rows", dist.Dirichlet(torch.ones(2, 2)).to_event(1))
    p = pyro.sample("p", dist.Gamma(torch.ones(2, 2), 0.5).to_event(2))
    tones = pyro.plate("tones", 2, dim=-1)
    z = 0
    for t in pyro.markov(range(len(y))):
        z = pyro.sample(f"z_{t}", dist.Categorical(rows[z]))
        with tones as tone:
            pyro.sample(
                f"y_{t}",
                dist.Exponential(p[z.squeeze(-1).unsqueeze(-1), tone] if z.dim() else p[z]),
                obs=y[t],
            )


@hidden_markov_model_of_vectors.known_update
def _(q, y):
    rows = mean_log(q["rows"])
    r, pairs = expected_paths(rows[0], rows, mean_log(q["p"]).sum(-1) - y @ q["p"].mean.mT)
    return {
        "rows": dist.Dirichlet(1 + row_counts(r, pairs)),
        "p": dist.Gamma(1 + r.sum(0).unsqueeze(-1), 0.5 + r.mT @ y),
    }


@program(
    lambda: torch.tensor([0.0, 5.3, 6.0]),
    exact="left, right, locs",
    summed_out="z_0, z_1, z_2, w_0, w_1, w_2",
    observed="y_0, y_1, y_2",
)
def factorial_hidden_markov_model(y):
    left = pyro.sample("left", dist.Dirichlet(torch.ones(2, 2)).to_event(1))
    right = pyro.sample("right", dist.Dirichlet(torch.ones(2, 2)).to_event(1))
    locs = pyro.sample("locs", dist.Normal(torch.zeros(2, 2), 5.0).to_event(2))
    z, w = 0, 0
    for t in pyro.markov(range(len(y))):
        z = pyro.sample(f"z_{t}", dist.Categorical(left[z]))
        w = pyro.sample(f"w_{t}", dist.Categorical(right[w]))
        pyro.sample(f"y_{t}", dist.Normal(Vindex(locs)[z, w], 1.0), obs=y[t])


@factorial_hidden_markov_model.known_update
def _(q, y):
    """A state is a pair (z, w)."""
    left, right = mean_log(q["left"]), mean_log(q["right"])
    rows = (left[:, None, :, None] + right[None, :, None, :]).reshape(4, 4)
    emissions = y[:, None] * q["locs"].mean.flatten() - 0.5 * mean_square(q["locs"]).flatten()
    r, pairs = expected_paths(rows[0], rows, emissions)
    counts = row_counts(r, pairs).view(2, 2, 2, 2)
    return {
        "left": dist.Dirichlet(1 + counts.sum((1, 3))),
        "right": dist.Dirichlet(1 + counts.sum((0, 2))),
        "locs": normal((r.mT @ y).view(2, 2), 1 / 25 + r.sum(0).view(2, 2)),
    }


@program(
    lambda: torch.tensor([0.0, 0.8, 5.0, 4.0]),
    exact="rows, slopes",
    summed_out="z_1, z_2, z_3",
    observed="y_1, y_2, y_3",
)
def switching_autoregression(y):
    rows = pyro.sample("rows", dist.Dirichlet(torch.ones(2, 2)).to_event(1))
    slopes = pyro.sample("slopes", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    z = 0
    for t in pyro.markov(range(1, len(y))):
        z = pyro.sample(f"z_{t}", dist.Categorical(rows[z]))
        pyro.sample(f"y_{t}", dist.Normal(slopes[z] * y[t - 1], 1.0), obs=y[t])


@switching_autoregression.known_update
def _(q, y):
    before, after, rows = y[:-1], y[1:], mean_log(q["rows"])
    emissions = (before * after)[:, None] * q["slopes"].mean
    emissions = emissions - 0.5 * before[:, None] ** 2 * mean_square(q["slopes"])
    r, pairs = expected_paths(rows[0], rows, emissions)
    return {
        "rows": dist.Dirichlet(1 + row_counts(r, pairs)),
        "slopes": normal(r.mT @ (before * after), 1 + r.mT @ before**2),
    }


@program(lambda: torch.tensor([0, 1, 2, 2, 0, 1, 1]), exact="rows", observed="y")
def observed_markov_chain(y):
    with pyro.plate("states", 3):
        rows = pyro.sample("rows", dist.Dirichlet(torch.tensor([1.0, 0.5, 2.0])))
    with pyro.plate("time", len(y) - 1):
        pyro.sample("y", dist.Categorical(rows[y[:-1]]), obs=y[1:])


@observed_markov_chain.known_evidence
def _(y):
    counts = torch.zeros(3, 3).index_put_((y[:-1], y[1:]), torch.ones(6), accumulate=True)
    return dirichlet_evidence(torch.tensor([1.0, 0.5, 2.0]), counts).sum()


@program(lambda: torch.tensor([0, 1, 2, 0]), exact="rows", observed="y_1, y_2, y_3")
def observed_markov_chain_in_a_loop(y):
    rows = pyro.sample("rows", dist.Dirichlet(torch.ones(3, 3)).to_event(1))
    for t in pyro.markov(range(1, len(y))):
        pyro.sample(f"y_{t}", dist.Categorical(rows[y[t - 1]]), obs=y[t])


@observed_markov_chain_in_a_loop.known_evidence
def _(y):
    counts = torch.zeros(3, 3).index_put_((y[:-1], y[1:]), torch.ones(3), accumulate=True)
    return dirichlet_evidence(torch.ones(3), counts).sum()
