"""Structured VAEs: linear dynamics as the prior of an encoder's latents, in programs of model and guide."""

import math
from functools import partial

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import LinearDynamics, LinearGaussianChain
from pyro_fmvae.infer import AutoConjugate, ConjugateSVI, NaturalGradient, TraceConjugate_ELBO

N, T, D, NOISE = 6, 4, 2, 0.5


class Program:
    """A guide whose encoder sees each latent by itself.

    Args:
        decoder, encoder: networks from D numbers to D, and to their means and logarithmic scales.
        duration: of the sequences.
        present: steps that are seen, bool [N, T] or True.

    Attributes:
        smooths: whether the guide has smoothed states, and not independent ones.
        number: of sequences, or of all chunks that these are cut into.
        spans: of the chunks in a batch.
    """

    def __init__(self, decoder, encoder, duration=T, present=True):
        self.decoder, self.encoder, self.duration = decoder, encoder, duration
        self.lengths, self.present, self.smooths, self.number, self.spans = None, present, True, N, None
        given = poutine.condition(self.model, data={"z": torch.zeros(N, duration, D)})
        self.conjugate = AutoConjugate(given, fallback=None, structured=True)

    def dynamics(self, values):
        first = dist.Normal(torch.zeros(D), 1.0).to_event(1)
        noise = dist.Normal(0.0, values["moves"].rsqrt()).to_event(1)
        fn = LinearDynamics(first, values["a"], noise, self.duration, self.lengths)
        return fn if self.spans is None else fn.of_chunks(self.spans)

    def parameters(self):
        with pyro.plate("rows", D):
            moves = pyro.sample("moves", dist.Gamma(2.0, 1.0))
            precision = moves[:, None, None] * torch.eye(D)
            a = pyro.sample("a", dist.MultivariateNormal(torch.zeros(D), precision_matrix=precision))
        return {"moves": moves, "a": a}

    def model(self, x):
        pyro.module("decoder", self.decoder)
        dynamics = self.dynamics(self.parameters())
        counts = self.present if dynamics.present is None else dynamics.present
        with pyro.plate("sequences", self.number, subsample=x):
            z = pyro.sample("z", dynamics)
            pictures = dist.Normal(self.decoder(z), NOISE).to_event(1)
            pyro.sample("x", pictures.mask(counts).to_event(1), obs=x)

    def guide(self, x):
        pyro.module("encoder", self.encoder)
        dynamics = self.dynamics(self.conjugate(x))
        loc, scale = self.encoder(x).chunk(2, -1)
        noise = dist.Normal(0.0, scale.exp()).to_event(1).mask(self.present)
        states = LinearGaussianChain(dynamics, torch.eye(D), noise).states(loc)
        with pyro.plate("sequences", self.number, subsample=x):
            pyro.sample("z", states if self.smooths else dist.Normal(loc, scale.exp()).to_event(2))

    def integrated(self, x):
        """The same model with a decoder that does nothing, and its states integrated out."""
        dynamics = self.dynamics(self.parameters())
        noise = dist.Normal(torch.zeros(D), NOISE).to_event(1).mask(self.present)
        with pyro.plate("sequences", N, subsample=x):
            pyro.sample("x", LinearGaussianChain(dynamics, torch.eye(D), noise), obs=x)


class Exact(nn.Module):
    """What the encoder of a decoder that does nothing has to say."""

    def forward(self, x):
        return torch.cat([x, torch.full_like(x, NOISE).log()], -1)


def deep(duration=T):
    pyro.clear_param_store()  # or its networks would be those of another program
    pyro.set_rng_seed(0)
    return Program(nn.Sequential(nn.Tanh(), nn.Linear(D, D)), nn.Linear(D, 2 * D), duration)


def sequences(duration=T):
    return torch.randn(N, duration, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def per_site(program, x):
    return TraceConjugate_ELBO().loss_per_site(program.model, program.guide, x)


@pytest.fixture(params=["whole", "gaps"])
def exact(request):
    present = torch.arange(N * T).view(N, T) % 3 > 0  # none of the last sequence
    present[-1] = False
    program = Program(nn.Identity(), Exact(), present=present if request.param == "gaps" else True)
    program.conjugate(sequences())
    return program


def test_divergence_is_what_the_integral_leaves(exact):
    """log ∫ exp E[log p(x, z)] dz = E[log p(x | z)] - KL at the optimal q(z)."""
    x = sequences()
    guide, elbo = exact.conjugate, TraceConjugate_ELBO()
    evidence = -elbo.loss_per_site(exact.integrated, guide, x)["x"]
    states = elbo.chains(exact.integrated, guide, x)["x"].posterior()
    gaps = (x - states.mean).square() + states.variance
    each = dist.Normal(0.0, NOISE).log_prob(gaps.sqrt())
    likelihood = each.where(torch.as_tensor(exact.present).unsqueeze(-1), 0.0).sum()
    assert_close(per_site(exact, x)["z"], likelihood - evidence)


def test_natural_gradients_are_those_of_the_integral(exact):
    x, gradients = sequences(), []
    parameter = exact.conjugate.posterior("a").natural
    for model, guide in ((exact.model, exact.guide), (exact.integrated, exact.conjugate)):
        loss = TraceConjugate_ELBO().differentiable_loss(model, guide, x)
        gradients.append(torch.autograd.grad(loss, parameter)[0])
    assert_close(*gradients)


def test_gradients_of_networks_are_those_of_finite_differences():
    program, x, elbo = deep(), sequences(), TraceConjugate_ELBO()
    program.conjugate(x)

    def loss():
        pyro.set_rng_seed(3)
        return elbo.differentiable_loss(program.model, program.guide, x)

    loss()  # the first run finds out what kind of program it is
    for weight in (program.encoder.weight, program.encoder.bias, program.decoder[1].weight):
        (slope,) = torch.autograd.grad(loss(), weight)
        way = torch.randn_like(weight)
        with torch.no_grad():
            weight += 1e-5 * way
            above = loss()
            weight -= 2e-5 * way
            below = loss()
            weight += 1e-5 * way
        assert_close((above - below) / 2e-5, (slope * way).sum(), rtol=1e-6, atol=1e-6)


@pytest.fixture
def at_means(monkeypatch):
    """Draws of paths and of normal distributions are their means."""
    randn = torch.randn
    monkeypatch.setattr(
        torch, "randn", lambda *shape, **known: randn(*shape, **known) if known else torch.zeros(*shape)
    )
    monkeypatch.setattr(
        torch.distributions.normal, "_standard_normal", lambda shape, **options: torch.zeros(shape, **options)
    )


def leaves_of(program):
    return [program.conjugate.posterior("a").natural, program.encoder.weight, program.decoder[1].weight]


def gradients(program, x):
    loss = TraceConjugate_ELBO().differentiable_loss(program.model, program.guide, x)
    return [loss.detach(), *torch.autograd.grad(loss, leaves_of(program))]


@pytest.mark.parametrize("smooths", [True, False])
def test_padded_batch_is_the_sum_of_its_sequences(smooths, at_means):
    lengths, x, program, sums = torch.tensor([4, 1, 2, 3, 4, 1]), sequences(), deep(), []
    x[torch.arange(T) >= lengths.unsqueeze(-1)] = 5.0
    program.smooths = smooths
    program.conjugate(x)
    for rows in (slice(0, N), *(slice(i, i + 1) for i in range(N))):
        if len(x[rows]) == N:
            program.lengths = lengths
        else:  # stands for N sequences
            program.lengths, program.duration = None, int(lengths[rows])
        sums.append(gradients(program, x[rows, : program.duration]))
    for padded, *single in zip(*sums, strict=True):
        assert_close(padded, sum(single) / N, rtol=0, atol=1e-10)


def in_chunks(program, x, length, buffer, size):
    """The mean of the losses, and of the gradients, of all minibatches of chunks."""
    values, spans = LinearDynamics.chunks(x, length, buffer)
    program.number, program.duration, each = len(values), values.shape[1], []
    for rows in torch.arange(len(values)).split(size):
        program.spans = spans[rows]
        each.append(gradients(program, values[rows]))
    return [sum(parts) / len(each) for parts in zip(*each, strict=True)]


@pytest.mark.parametrize("smooths", [True, False])
def test_chunks_are_the_whole_on_average(smooths, at_means):
    x, program = sequences(9), deep(9)
    program.smooths = smooths
    program.conjugate(x)
    exact, errors = gradients(program, x), []
    for buffer in (0, 1, 3, 9):
        means = in_chunks(program, x, 2, buffer, 5)
        errors.append([(one - other).norm() for one, other in zip(means, exact, strict=True)])
    if smooths:
        for none, one, three, nine in zip(*errors, strict=True):
            assert none > one > 5 * three and nine < 1e-10
    else:  # the buffer has to have the step before
        assert errors[0][1] > 0.1 and max(errors[1]) < 1e-10


def test_chunks_have_to_be_those_of_model_and_guide():
    x, program = sequences(), deep()
    _, spans = LinearDynamics.chunks(x, T, 0)
    program.conjugate(x)

    def model(x):
        program.spans = spans
        program.model(x)

    def guide(x):
        program.spans = None
        program.guide(x)

    with pytest.raises(ValueError, match="site 'z': call of_chunks on the dynamics in both model and guide"):
        TraceConjugate_ELBO().loss(model, guide, x)


class Flipped(nn.Module):
    """A decoder that makes pictures of other steps."""

    def forward(self, z):
        return z.flip(-2)


@pytest.mark.parametrize(
    "known", [{"spans": torch.tensor([[0, 0, 2, 3]] * N)}, {"lengths": torch.full((N,), 2)}]
)
def test_pictures_may_not_depend_on_draws_that_do_not_count(known):
    x, program = sequences(3), Program(Flipped(), nn.Linear(D, 2 * D), 3)
    program.conjugate(x)
    vars(program).update(known)
    loss = TraceConjugate_ELBO().differentiable_loss(program.model, program.guide, x)
    with pytest.raises(ValueError, match="site 'z': the loss depends on its draws at steps that are missing"):
        loss.backward()


def test_minibatches_of_sequences_are_the_whole_on_average():
    program, x = deep(), sequences()
    program.conjugate(x)
    parts = []
    for rows in (slice(0, 6), slice(0, 3), slice(3, 6)):
        batch = x[rows]
        z = -per_site(program, batch)["z"]
        parts.append([z.detach(), *torch.autograd.grad(z, program.conjugate.posterior("a").natural)])
    for whole, *halves in zip(*parts, strict=True):
        assert_close(sum(halves) / 2, whole)


@pytest.mark.parametrize(("dtype", "is_cut"), [(torch.float32, True), (torch.float64, False)])
def test_captured_steps_are_eager_ones_and_learn(dtype, is_cut):
    torch.set_default_dtype(dtype)
    x, found, losses = sequences(2).to(dtype), [], []
    for kind in (ConjugateSVI, CapturedSVI):
        program = deep(duration=2)
        program.spans = torch.tensor([[0, 0, 1, 2], [0, 1, 2, 2]] * (N // 2)) if is_cut else None
        optim = NaturalGradient(0.2, others=partial(torch.optim.Adam, lr=0.1))
        svi = kind(program.model, program.guide, optim, TraceConjugate_ELBO())
        losses = [svi.step(x) for _ in range(6)]
        found.append((program.conjugate.posterior("a").natural.detach(), program.encoder.weight.detach()))
    for one, other in zip(*found, strict=True):
        assert_close(one, other, **({"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {}))
    assert losses[-1] < losses[0]


def test_terms_of_a_site_add_up():
    program, x, elbo = deep(), sequences(), TraceConjugate_ELBO()
    program.conjugate(x)
    elbo.loss(program.model, program.guide, x)
    pyro.set_rng_seed(0)
    terms = elbo.loss_per_site(program.model, program.guide, x)
    pyro.set_rng_seed(0)
    assert sum(terms.values()).item() == pytest.approx(elbo.loss(program.model, program.guide, x))


def test_the_plan_says_how_the_states_are_treated(exact):
    plan = str(TraceConjugate_ELBO().plan(exact.model, exact.guide, sequences()))
    assert "z      GaussianPath  drawn" in plan


def test_pyros_own_bound_takes_the_same_program():
    """There, the dynamics are drawn, and the states are those under the draw."""
    program, x = deep(), sequences()
    losses = [pyro.infer.Trace_ELBO().loss(program.model, program.guide, x) for _ in range(2)]
    assert losses[0] != losses[1] and all(map(math.isfinite, losses))
