"""A hidden Markov model as the prior of an encoder's latents: a mixture whose assignments are a chain."""

import gc
import itertools
import math
import weakref

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot
from torch.testing import assert_close

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import HiddenMarkov
from pyro_fmvae.distributions.gaussian_chain import GaussianChain
from pyro_fmvae.infer import AutoConjugate, ConjugateSVI, NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.infer.seeding import kmeans

N, T, D, K = 3, 4, 2, 3


class Program:
    """Latents [N, T, D] behind a decoder, with conjugate components and transitions.

    Args:
        steps: whether each step has sites of its own, whose sum over paths is Pyro's.
        lengths, present: of the sequences, and the steps that are not masked out, if not all are there.

    Attributes:
        number: of sequences, or of all chunks that these are cut into.
        spans: of the chunks in a batch.
    """

    def __init__(self, steps=False, lengths=None, present=None):
        self.lengths, self.present, self.number, self.spans = lengths, present, N, None
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
        emissions, there = dist.Normal(locs, precisions.rsqrt()).to_event(1), self.there(x.shape[1])
        if self.present is not None:
            emissions = emissions.mask(self.present.unsqueeze(-1))
        states = HiddenMarkov(start, rows, emissions, x.shape[1], self.lengths)
        if self.spans is not None:
            states = states.of_chunks(self.spans)
            there = states.present
        with pyro.plate("sequences", self.number, subsample=x):
            z = pyro.sample("z", states)
            pictures = dist.Normal(self.decoder(z), 0.5).to_event(1)
            pyro.sample("x", pictures.mask(there).to_event(1), obs=x)

    def there(self, duration):
        """The steps that are neither masked out nor after the end, [N, T] or a single truth value."""
        before = True if self.lengths is None else torch.arange(duration) < self.lengths.unsqueeze(-1)
        return torch.as_tensor(before) & (True if self.present is None else self.present)

    def of_whole(self, x):
        pyro.module("encoder", self.encoder)
        self.conjugate(x)
        loc, scale = self.encode(x)
        with pyro.plate("sequences", self.number, subsample=x):
            pyro.sample("z", dist.Normal(loc, scale).to_event(2))

    def by_step(self, x):
        pyro.module("decoder", self.decoder)
        start, rows, locs, precisions = self.parameters()
        with pyro.plate("sequences", N, subsample=x):
            state = None
            there = self.there(x.shape[1]).expand(N, x.shape[1])
            for t in pyro.markov(range(x.shape[1])):
                with poutine.mask(mask=torch.ones(N) > 0 if self.lengths is None else t < self.lengths):
                    step = dist.Categorical(start if state is None else rows[state])
                    state = pyro.sample(f"state_{t}", step)
                component = dist.Normal(locs[state], precisions[state].rsqrt()).to_event(1)
                with poutine.mask(mask=there[:, t]):
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


SIZES = (N, T - 1, D, D), (N, T, D), (N,)  # of links, linear terms and constants
GAPS = torch.tensor([[True, False, True, True], [False, False, False, False], [True, True, False, False]])
LENGTHS = torch.tensor([4, 1, 3])


@pytest.fixture
def at_means(monkeypatch):
    """Draws of normal distributions are their means."""
    monkeypatch.setattr(
        torch.distributions.normal,
        "_standard_normal",
        lambda shape, dtype, device: torch.zeros(shape, dtype=dtype, device=device),
    )


def over_paths(start, rows, steps):
    """The weights of all paths in logarithms, and the paths: [N, K^T], [K^T, T]."""
    paths = torch.tensor(list(itertools.product(range(K), repeat=steps.shape[1])))
    weights = start[paths[:, 0]] + rows[paths[:, :-1], paths[:, 1:]].sum(-1)
    return weights + steps[:, torch.arange(steps.shape[1]), paths].sum(-1), paths


@pytest.mark.parametrize("present", [torch.ones(N, T) > 0, GAPS], ids=["whole", "gaps"])
def test_bound_is_the_sum_over_all_paths(present):
    x, program = sequences(), Program(present=present)
    program.conjugate(x)
    start, rows, steps = tables(program, x)
    weights, _ = over_paths(start, rows, torch.where(present.unsqueeze(-1), steps, 0.0))
    entropy = dist.Normal(*program.encode(x)).entropy()[present].sum()
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


@pytest.mark.parametrize(
    "options",
    [{}, {"present": GAPS}, {"lengths": LENGTHS}, {"lengths": LENGTHS, "present": GAPS}],
    ids=["whole", "gaps", "ragged", "ragged with gaps"],
)
def test_bound_and_gradients_are_those_of_sites_for_each_step(options, at_means):
    x, found = sequences(), []
    program, other = Program(**options), Program(steps=True, **options)
    for each in (program, other):
        each.conjugate(x)
        each.conjugate.load_state_dict(program.conjugate.state_dict())
        loss = TraceConjugate_ELBO().differentiable_loss(each.model, each.guide, x)
        naturals = [posterior.natural for posterior in each.conjugate.posteriors.values()]
        networks = [each.encoder.weight, each.decoder[1].weight]
        found.append([loss, *torch.autograd.grad(loss, [*naturals, *networks])])
    for one, another in zip(*found, strict=True):
        assert_close(one, another)


def test_padded_batch_is_the_sum_of_its_sequences(at_means):
    x, program = sequences(), Program(lengths=LENGTHS)
    x[torch.arange(T) >= LENGTHS.unsqueeze(-1)] = 5.0
    program.conjugate(x)
    leaves = [program.conjugate.posterior(name).natural for name in ("start", "rows", "locs")]
    leaves += [program.encoder.weight, program.decoder[1].weight]
    sums = []
    for rows in (slice(0, N), *(slice(i, i + 1) for i in range(N))):
        program.lengths = LENGTHS if rows.stop - rows.start == N else None
        loss = TraceConjugate_ELBO().differentiable_loss(
            program.model, program.guide, x[rows, : LENGTHS[rows].max()]
        )  # a sequence by itself stands for N
        sums.append([loss.detach(), *torch.autograd.grad(loss, leaves)])
    for padded, *single in zip(*sums, strict=True):
        assert_close(padded, sum(single) / N, rtol=0, atol=1e-10)


def test_states_after_the_end_have_no_probability():
    x, program = sequences(), Program(lengths=LENGTHS)
    program.conjugate(x)
    chain = TraceConjugate_ELBO().chains(program.model, program.guide, x)["z"]
    assert_close(chain.posterior().sum(-1), (torch.arange(T) < LENGTHS.unsqueeze(-1)).double())


UNITS = dist.Normal(torch.arange(K).unsqueeze(-1).expand(K, D).double(), 1.0)
IN_GAPS = UNITS.to_event(1).mask(GAPS.unsqueeze(-1))


def fixed(q, emissions=IN_GAPS, decoder=lambda z: z):
    """A model without posteriors, in which the density of z counts at its draw, and a guide."""
    fn = HiddenMarkov(torch.ones(K) / K, torch.ones(K, K) / K, emissions, T)

    def model(x):
        with pyro.plate("sequences", N):
            z = pyro.sample("z", fn)
            pyro.sample("x", dist.Normal(decoder(z), 1.0).to_event(1).mask(GAPS).to_event(1), obs=x)

    def guide(x):
        with pyro.plate("sequences", N):
            pyro.sample("z", q)

    return model, guide


def test_missing_steps_do_not_count_at_draws():
    x = sequences()
    q = dist.Normal(x, 0.5)
    pyro.set_rng_seed(0)
    z = q.to_event(2).rsample()
    pyro.set_rng_seed(0)
    terms = TraceConjugate_ELBO().loss_per_site(*fixed(q.to_event(2)), x)
    density = UNITS.to_event(1).log_prob(z.unsqueeze(-2)).logsumexp(-1) - math.log(K)
    assert_close(terms["z"], (q.log_prob(z).sum(-1) - density)[GAPS].sum())


@pytest.mark.parametrize(
    ("emissions", "q", "words"),
    [
        (
            UNITS.mask(GAPS[..., None, None]).to_event(1),
            dist.Normal(torch.zeros(N, T, D), 1.0).to_event(2),
            r"emissions: expected a mask of whole steps, as in .to_event\(1\).mask",
        ),
        (
            IN_GAPS,
            GaussianChain(torch.eye(D).expand(N, T, D, D), *map(torch.zeros, SIZES)).posterior(),
            "steps are missing, but GaussianPath in the guide is a distribution of all steps together",
        ),
    ],
    ids=["numbers", "path"],
)
def test_masks_that_are_refused(emissions, q, words):
    with pytest.raises(ValueError, match=f"site 'z': {words}"):
        TraceConjugate_ELBO().loss(*fixed(q, emissions), sequences())


def test_draws_of_missing_steps_may_not_be_used():
    x, loc, elbo = sequences(), torch.zeros(N, T, D, requires_grad=True), TraceConjugate_ELBO()
    q = dist.Normal(loc, 0.5).to_event(2)
    elbo.differentiable_loss(*fixed(q), x).backward()
    assert loc.grad[~GAPS].abs().max() == 0 < loc.grad[GAPS].abs().min()
    with pytest.raises(ValueError, match="site 'z': the loss depends on its draws at steps that are missing"):
        elbo.differentiable_loss(*fixed(q, decoder=lambda z: z.flip(1)), x).backward()


def test_draws_are_freed_after_a_step():
    loc = torch.zeros(N, T, D, requires_grad=True)
    run = TraceConjugate_ELBO().trace(*fixed(dist.Normal(loc, 0.5).to_event(2)), sequences())
    draws = weakref.ref(run[0].model.nodes["z"]["value"])
    del run
    gc.collect()
    assert draws() is None


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
        program = Program(lengths=torch.tensor([1, 2, 2]), present=torch.tensor([True, False]))
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


def test_chunks_are_the_whole_on_average(at_means):
    x, program, errors = sequences(duration=9), Program(), []
    program.conjugate(x)
    leaves = [program.conjugate.posterior(name).natural for name in ("start", "rows", "locs")]
    leaves += [program.encoder.weight, program.decoder[1].weight]

    def gradients(x):
        loss = TraceConjugate_ELBO().differentiable_loss(program.model, program.guide, x)
        return [loss.detach(), *torch.autograd.grad(loss, leaves)]

    exact = gradients(x)
    for buffer in (0, 2, 9):
        values, spans = HiddenMarkov.chunks(x, 2, buffer)
        program.number, each = len(values), []
        for rows in torch.arange(len(values)).split(3):
            program.spans = spans[rows]
            each.append(gradients(values[rows]))
        means = (sum(parts) / len(each) for parts in zip(*each, strict=True))
        errors.append([(one - other).abs().max() for one, other in zip(means, exact, strict=True)])
    for falling in zip(*errors, strict=True):
        assert falling[0] >= falling[1] and falling[2] < 1e-10


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
