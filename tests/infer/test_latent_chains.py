"""A hidden Markov model as the prior of an encoder's latents: a mixture whose assignments are a chain."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot
from torch.testing import assert_close

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import HiddenMarkov
from pyro_fmvae.infer import AutoConjugate, ConjugateSVI, TraceConjugate_ELBO
from pyro_fmvae.infer.seeding import kmeans
from pyro_fmvae.optim import NaturalGradient

N, T, D, K = 3, 4, 2, 3


class Program:
    """Latents [N, T, D] behind a decoder, with conjugate components and transitions.

    Args:
        steps: whether each step has sites of its own, whose sum over paths is Pyro's.
    """

    def __init__(self, steps=False):
        pyro.clear_param_store()
        pyro.set_rng_seed(1)
        self.encoder, self.decoder = nn.Linear(D, 2 * D), nn.Sequential(nn.Tanh(), nn.Linear(D, D))
        self.model, self.guide = (self.by_step, self.guide_by_step) if steps else (self.whole, self.of_whole)
        self.conjugate = AutoConjugate(self.model, fallback=None, structured=True)

    def parameters(self):
        start = pyro.sample("start", dist.Dirichlet(torch.full((K,), 0.8)))
        with pyro.plate("states", K):
            rows = pyro.sample("rows", dist.Dirichlet(torch.ones(K)))
            precisions = pyro.sample("precisions", dist.Gamma(2.0 * torch.ones(D), 1.0).to_event(1))
            locs = pyro.sample("locs", dist.Normal(0.0, (0.2 * precisions).rsqrt()).to_event(1))
        return start, rows, locs, precisions

    def whole(self, x):
        pyro.module("decoder", self.decoder)
        start, rows, locs, precisions = self.parameters()
        emissions = dist.Normal(locs, precisions.rsqrt()).to_event(1)
        with pyro.plate("sequences", N, subsample=x):
            z = pyro.sample("z", HiddenMarkov(start, rows, emissions, x.shape[1]))
            pyro.sample("x", dist.Normal(self.decoder(z), 0.5).to_event(2), obs=x)

    def of_whole(self, x):
        pyro.module("encoder", self.encoder)
        self.conjugate(x)
        loc, scale = self.encode(x)
        with pyro.plate("sequences", N, subsample=x):
            pyro.sample("z", dist.Normal(loc, scale).to_event(2))

    def by_step(self, x):
        pyro.module("decoder", self.decoder)
        start, rows, locs, precisions = self.parameters()
        with pyro.plate("sequences", N, subsample=x):
            state = None
            for t in pyro.markov(range(x.shape[1])):
                state = pyro.sample(f"state_{t}", dist.Categorical(start if state is None else rows[state]))
                component = dist.Normal(locs[state], precisions[state].rsqrt()).to_event(1)
                z = pyro.sample(f"z_{t}", component)
                pyro.sample(f"x_{t}", dist.Normal(self.decoder(z), 0.5).to_event(1), obs=x[:, t])

    def guide_by_step(self, x):
        pyro.module("encoder", self.encoder)
        self.conjugate(x)
        loc, scale = self.encode(x)
        with pyro.plate("sequences", N, subsample=x):
            for t in range(x.shape[1]):
                pyro.sample(f"z_{t}", dist.Normal(loc[:, t], scale[:, t]).to_event(1))

    def encode(self, x):
        loc, scale = self.encoder(x).chunk(2, -1)
        return loc, scale.exp()

    def without_likelihood(self, x):
        """The terms of the bound that are not estimated at draws."""
        terms = TraceConjugate_ELBO().loss_per_site(self.model, self.guide, x)
        return sum(value for name, value in terms.items() if not name.startswith("x"))


def sequences(rows=N, duration=T):
    return 2 * torch.randn(rows, duration, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def program():
    program = Program()
    program.conjugate(sequences())
    return program


def tables(program, x):
    """E[log p] of starts, transitions and latents, by hand: [K], [K, K], [N, T, K]."""
    logs = [
        c.digamma() - c.sum(-1, keepdim=True).digamma()
        for c in (program.conjugate.posterior(name).natural_value() for name in ("start", "rows"))
    ]
    gamma, mean = (program.conjugate.marginal(name) for name in ("precisions", "locs"))
    a, b = gamma.concentration, gamma.rate
    count = b / ((a - 1) * mean.variance)  # of a normal-gamma posterior
    loc, scale = program.encode(x)
    gaps = (loc.unsqueeze(-2) - mean.mean).square() + scale.square().unsqueeze(-2)
    each = a.digamma() - b.log() - math.log(2 * math.pi) - a / b * gaps - 1 / count
    return *logs, 0.5 * each.sum(-1)


def over_paths(start, rows, steps):
    """The weights of all paths in logarithms, and the paths: [N, K^T], [K^T, T]."""
    paths = torch.tensor(list(itertools.product(range(K), repeat=steps.shape[1])))
    weights = start[paths[:, 0]] + rows[paths[:, :-1], paths[:, 1:]].sum(-1)
    return weights + steps[:, torch.arange(steps.shape[1]), paths].sum(-1), paths


def test_bound_is_the_sum_over_all_paths(program):
    x = sequences()
    weights, _ = over_paths(*tables(program, x))
    entropy = dist.Normal(*program.encode(x)).entropy().sum()
    terms = TraceConjugate_ELBO().loss_per_site(program.model, program.guide, x)
    assert_close(terms["z"], -weights.logsumexp(-1).sum() - entropy)


def test_states_are_those_under_the_encoders_distribution(program):
    x = sequences()
    weights, paths = over_paths(*tables(program, x))
    chain = TraceConjugate_ELBO().chains(program.model, program.guide, x)["z"]
    assert_close(
        chain.posterior(), torch.einsum("np,ptk->ntk", weights.softmax(-1), one_hot(paths, K).double())
    )
    assert torch.equal(chain.best_path(), paths[weights.argmax(-1)])


def test_bound_and_gradients_are_those_of_sites_for_each_step(program):
    x, found = sequences(), []
    other = Program(steps=True)
    other.conjugate(x)
    other.conjugate.load_state_dict(program.conjugate.state_dict())
    for each in (program, other):
        terms = each.without_likelihood(x)
        naturals = [posterior.natural for posterior in each.conjugate.posteriors.values()]
        found.append([terms, *torch.autograd.grad(terms, [*naturals, each.encoder.weight])])
    for one, another in zip(*found, strict=True):
        assert_close(one, another)


def test_minibatches_of_sequences_are_the_whole_on_average():
    x, program = sequences(4), Program()
    program.conjugate(x[:N])
    found = []
    for rows in (slice(0, 3), slice(0, 1), slice(1, 2), slice(2, 3)):
        loss = TraceConjugate_ELBO().loss_per_site(program.model, program.guide, x[rows])["z"]
        naturals = [program.conjugate.posterior(name).natural for name in ("rows", "locs")]
        found.append([loss, *torch.autograd.grad(loss, naturals)])
    for whole, *parts in zip(*found, strict=True):
        assert_close(sum(parts) / 3, whole)


def test_captured_steps_are_eager_ones_and_learn():
    x, found = sequences(duration=2), []
    for kind in (ConjugateSVI, CapturedSVI):
        program = Program()
        optim = NaturalGradient(0.2, others=lambda parameters: torch.optim.Adam(parameters, lr=0.05))
        svi = kind(program.model, program.guide, optim, TraceConjugate_ELBO())
        losses = [svi.step(x) for _ in range(4)]
        assert losses[-1] < losses[0]
        found.append((program.conjugate.posterior("rows").natural.detach(), program.encoder.weight.detach()))
    for one, other in zip(*found, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_weight_of_the_divergence_leaves_natural_gradients_as_they_are(program, weight):
    x, found = sequences(), []
    program.without_likelihood(x)
    for kl_weight in (1.0, weight):
        terms = TraceConjugate_ELBO(kl_weight=kl_weight).loss_per_site(program.model, program.guide, x)
        natural = program.conjugate.posterior("rows").natural
        found.append((terms["z"] / kl_weight, *torch.autograd.grad(terms["z"], natural)))
    assert_close(*found)


def test_chain_of_one_step_is_a_mixture():
    x, program = sequences(duration=1), Program()
    program.conjugate(x)
    start, _, steps = tables(program, x)
    chain = TraceConjugate_ELBO().chains(program.model, program.guide, x)["z"]
    assert_close(chain.posterior(), (start + steps).softmax(-1))


@pytest.mark.parametrize(
    "part",
    [lambda fn: fn.of_chunks(torch.tensor([0, 0, 2, 3])), lambda fn: ragged(fn)],
    ids=["chunk", "ragged"],
)
def test_latents_without_a_density_are_refused(program, part):
    def model(x):
        fn = HiddenMarkov(
            torch.ones(K) / K, torch.ones(K, K) / K, dist.Normal(torch.zeros(K, D), 1.0).to_event(1), T
        )
        with pyro.plate("sequences", N, subsample=x):
            pyro.sample("z", part(fn))

    with pytest.raises(
        ValueError, match="site 'z': a latent HiddenMarkov has no density of steps after the end"
    ):
        TraceConjugate_ELBO().loss(model, program.guide, sequences())


def ragged(fn):
    return HiddenMarkov(fn.start, fn.transitions, fn.emissions, T, torch.tensor([4, 2, 3]))


def test_seeds_are_posteriors_given_the_clusters_of_encodings(program):
    x = sequences()
    points = program.encode(x)[0].detach()
    source = torch.Generator().manual_seed(0)
    program.conjugate.seed_clusters("z", points, x, guide=program.guide, generator=source)
    states = kmeans(points.flatten(0, 1), K, torch.Generator().manual_seed(0)).view(N, T)
    steps = one_hot(states, K).double()
    counts = torch.einsum("nti,ntj->ij", steps[:, :-1], steps[:, 1:])
    assert_close(program.conjugate.posterior("start").natural_value(), 0.8 + steps[:, 0].sum(0))
    assert_close(program.conjugate.posterior("rows").natural_value(), 1.0 + counts)
    members = steps.flatten(0, 1)
    mean = members.mT @ points.flatten(0, 1) / (0.2 + members.sum(0)).unsqueeze(-1)
    assert_close(program.conjugate.marginal("locs").mean, mean)
