"""Linear dynamical systems in plain programs, against variational Bayes by hand."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import digamma

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import LinearDynamics, LinearGaussianChain
from pyro_fmvae.infer import AutoConjugate, ConjugateSVI, NaturalGradient, TraceConjugate_ELBO
from tests.infer.plain.oracles import step

N, T, D, X = 4, 5, 2, 3
LENGTHS = torch.tensor([5, 1, 3, 4])
NAMES = "a", "c"


def model(x, lengths, present):
    """Each row of both matrices has a joint prior with the precision of its noise."""
    with pyro.plate("states", D):
        moves = pyro.sample("moves", dist.Gamma(2.0, 1.0))
        prior = dist.MultivariateNormal(torch.zeros(D), precision_matrix=moves[:, None, None] * torch.eye(D))
        a = pyro.sample("a", prior)
    with pyro.plate("numbers", X):
        noise = pyro.sample("noise", dist.Gamma(3.0, 2.0))
        wide = 0.5 * torch.eye(D)
        c = pyro.sample(
            "c", dist.MultivariateNormal(torch.zeros(D), precision_matrix=noise[:, None, None] * wide)
        )
    first = dist.MultivariateNormal(torch.ones(D), 2 * torch.eye(D))
    states = LinearDynamics(first, a, dist.Normal(0.0, moves.rsqrt()).to_event(1), T, lengths)
    numbers = dist.Normal(0.0, noise.rsqrt()).mask(present).to_event(1)
    with pyro.plate("sequences", N, subsample=x):
        pyro.sample("x", LinearGaussianChain(states, c, numbers), obs=x)


def sequences():
    source = torch.Generator().manual_seed(3)
    x = torch.randn(N, T, X, generator=source, dtype=torch.float64)
    return x, LENGTHS, torch.rand(N, T, X, generator=source) < 0.7


@pytest.fixture
def guide():
    guide = AutoConjugate(model, structured=True)
    guide(*sequences())
    return guide


class Weights:
    """A Normal-Gamma posterior of each row of a matrix and its precision, in NumPy."""

    def __init__(self, posterior):
        self.m, tril, self.a, self.b = (part.detach().numpy() for part in posterior().standard)
        self.spread = tril @ tril.transpose(0, 2, 1)
        self.precision = self.a / self.b
        self.log_precision = digamma(self.a) - np.log(self.b)
        self.scaled = self.precision[:, None] * self.m  # E[τ w]
        self.squares = self.spread + self.scaled[:, :, None] * self.m[:, None, :]  # E[τ w wᵀ]

    @staticmethod
    def updated(prior, count, outcomes, products, squares):
        """The exact posterior: m, P, a and b of each row."""
        matrix0, a0, b0 = prior
        matrix = matrix0 + squares
        m = np.stack([np.linalg.solve(p, v) for p, v in zip(matrix, products, strict=True)])
        b = b0 + 0.5 * (outcomes - np.einsum("id,ide,ie->i", m, matrix, m))
        return m, np.linalg.inv(matrix), a0 + 0.5 * count, b


def smoothed(moving, seeing, x, there):
    """Mean and covariance of one sequence's states, and the log-integral, with the whole matrix at once."""
    steps = len(x)
    size = steps * D
    matrix, linear, constant = np.zeros((size, size)), np.zeros(size), -0.5 * D * math.log(2 * math.pi)
    matrix[:D, :D], linear[:D] = np.eye(D) / 2, np.ones(D) / 2
    constant -= 0.5 * (D * math.log(2) + D / 2)
    for t in range(steps):
        here = slice(t * D, (t + 1) * D)
        for j in np.flatnonzero(there[t]):
            matrix[here, here] += seeing.squares[j]
            linear[here] += seeing.scaled[j] * x[t, j]
            constant += 0.5 * (
                seeing.log_precision[j] - math.log(2 * math.pi) - seeing.precision[j] * x[t, j] ** 2
            )
        if t + 1 < steps:
            after = slice((t + 1) * D, (t + 2) * D)
            matrix[here, here] += moving.squares.sum(0)
            matrix[after, after] += np.diag(moving.precision)
            matrix[after, here] -= moving.scaled
            matrix[here, after] -= moving.scaled.T
            constant += 0.5 * (moving.log_precision - math.log(2 * math.pi)).sum()
    covariance = np.linalg.inv(matrix)
    mean = covariance @ linear
    _, log_determinant = np.linalg.slogdet(matrix)
    total = constant + 0.5 * (linear @ mean - log_determinant + size * math.log(2 * math.pi))
    return mean.reshape(steps, D), covariance.reshape(steps, D, steps, D), total


def by_hand(guide, x, lengths, present):
    """The updates of variational Bayes, and the terms of all sequences in the bound before it."""
    moving, seeing = (Weights(guide.posterior(name)) for name in NAMES)
    total, moves = 0.0, 0
    outcomes, products, squares = np.zeros(D), np.zeros((D, D)), np.zeros((D, D))
    seen = np.zeros(X), np.zeros(X), np.zeros((X, D)), np.zeros((X, D, D))
    for values, there, steps in zip(x.numpy(), present.numpy(), lengths.tolist(), strict=True):
        mean, covariance, evidence = smoothed(moving, seeing, values[:steps], there[:steps])
        total += evidence
        moves += steps - 1
        for t in range(steps):
            second = covariance[t, :, t] + np.outer(mean[t], mean[t])
            if t + 1 < steps:
                squares += second
                products += covariance[t + 1, :, t] + np.outer(mean[t + 1], mean[t])
            if t:
                outcomes += second.diagonal()
            for j in np.flatnonzero(there[t]):
                for table, part in zip(
                    seen, (1, values[t, j] ** 2, values[t, j] * mean[t], second), strict=True
                ):
                    table[j] += part
    a = Weights.updated((np.eye(D), 2.0, 1.0), moves, outcomes, products, np.stack([squares] * D))
    c = Weights.updated((0.5 * np.eye(D), 3.0, 2.0), *seen)
    return {"a": a, "c": c}, total


def test_step_and_bound_are_those_by_hand(guide):
    for _ in range(3):
        updates, total = by_hand(guide, *sequences())
        terms = TraceConjugate_ELBO().loss_per_site(model, guide, *sequences())
        assert -terms["x"].item() == pytest.approx(total, abs=1e-8)
        step(model, guide, *sequences(), rate=1.0)
        for name, (m, spread, a, b) in updates.items():
            found_m, tril, found_a, found_b = guide.posterior(name)().standard
            found = found_m, tril @ tril.mT, found_a, found_b
            for one, other in zip(found, (m, spread, a, b), strict=True):
                assert_allclose(one.detach(), np.broadcast_to(other, one.shape), rtol=1e-8, atol=1e-10)


def test_integers_are_numbers():
    def rooms(x):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        first = dist.Normal(torch.zeros(1), 1.0).to_event(1)
        states = LinearDynamics(first, 0.9 * torch.eye(1), dist.Normal(a.view(1), 1.0).to_event(1), 3)
        pyro.sample("x", LinearGaussianChain(states, torch.eye(1), first), obs=x)

    whole = torch.tensor([[1], [2], [0]])
    guide, x = AutoConjugate(rooms), whole.to(torch.get_default_dtype())
    guide(x)
    found, exact = (TraceConjugate_ELBO().loss(rooms, guide, each) for each in (whole, x))
    assert found == pytest.approx(exact, abs=1e-6)


def test_bound_of_two_numbers_by_quadrature():
    """E[log p] over a by Gauss-Hermite quadrature, over the precision by Gauss-Laguerre, states on a grid."""

    def numbers(x):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        moves = pyro.sample("moves", dist.Gamma(2.0, 1.0))
        states = LinearDynamics(
            dist.Normal(torch.zeros(1), 1.0).to_event(1),
            a.view(1, 1),
            dist.Normal(0.5, moves.rsqrt().view(1)).to_event(1),
            2,
        )
        pyro.sample(
            "x",
            LinearGaussianChain(states, torch.ones(1, 1), dist.Normal(torch.zeros(1), 0.5).to_event(1)),
            obs=x,
        )

    x = torch.tensor([[0.3], [1.1]])
    guide = AutoConjugate(numbers)
    guide(x)
    loss = TraceConjugate_ELBO().loss_per_site(numbers, guide, x)["x"]
    a, moves = (guide.posterior(name)() for name in ("a", "moves"))
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    slopes = a.loc.item() + a.scale.item() * nodes
    axis = np.linspace(-5, 5, 401)
    one, two = np.meshgrid(axis, axis, indexing="ij")
    gaps = (
        sum(w * (two - 0.5 - slope * one) ** 2 for w, slope in zip(weights, slopes, strict=True))
        / weights.sum()
    )
    rate, shape = moves.rate.item(), moves.concentration.item()
    log_step = 0.5 * (digamma(shape) - math.log(rate) - shape / rate * gaps)
    log_rest = -0.5 * one**2 - 2 * (0.3 - one) ** 2 - 2 * (1.1 - two) ** 2 - 2 * math.log(0.5)
    constant = -2 * math.log(2 * math.pi)
    grid = np.exp(log_step + log_rest + constant).sum() * (axis[1] - axis[0]) ** 2
    assert -loss.item() == pytest.approx(math.log(grid), abs=1e-8)


def full(x):
    """Full covariances, independent of the matrices, a mean in the noise, and a mean of the observations."""
    rows, wide = dist.MultivariateNormal(torch.zeros(D), torch.eye(D)), torch.eye(D)
    with pyro.plate("states", D):
        a = pyro.sample("a", rows)
    with pyro.plate("numbers", X):
        c = pyro.sample("c", rows)
    moves = pyro.sample("moves", dist.Wishart(torch.tensor(4.0), precision_matrix=wide))
    drift = pyro.sample("drift", dist.MultivariateNormal(torch.zeros(D), wide))
    noise = pyro.sample("noise", dist.Wishart(torch.tensor(5.0), precision_matrix=torch.eye(X)))
    centre = pyro.sample("centre", dist.MultivariateNormal(torch.zeros(X), torch.eye(X)))
    start = pyro.sample("start", dist.MultivariateNormal(torch.zeros(D), wide))
    first = dist.MultivariateNormal(start, precision_matrix=moves)
    states = LinearDynamics(first, a, dist.MultivariateNormal(drift, precision_matrix=moves), T)
    with pyro.plate("sequences", len(x)):
        fn = LinearGaussianChain(states, c, dist.MultivariateNormal(centre, precision_matrix=noise))
        pyro.sample("x", fn, obs=x)


def test_full_covariances_and_means_never_lower_the_bound():
    x, _, _ = sequences()
    guide, elbo = AutoConjugate(full), TraceConjugate_ELBO()
    svi = ConjugateSVI(full, guide, NaturalGradient(1.0), elbo)
    losses = np.array([svi.step(x) for _ in range(16)])
    assert guide.natural_sites == ["a", "c", "moves", "drift", "noise", "centre", "start"]
    assert (np.diff(losses) < 1e-9 * abs(losses[0])).all()
    assert losses[-1] < losses[0]


def test_weights_of_paths_are_expectations_over_draws():
    """All matrices, means and precisions at once, each with a posterior of its own."""
    x, _, _ = sequences()
    guide, elbo, count = AutoConjugate(full), TraceConjugate_ELBO(), 4000
    guide(x)
    found = elbo.chains(full, guide, x)["x"]
    torch.manual_seed(0)
    a, c, moves, drift, noise, centre, start = (
        guide.posterior(name)().sample((count, 1)) for name in guide.natural_sites
    )
    first = dist.MultivariateNormal(start, precision_matrix=moves)
    steps = dist.MultivariateNormal(drift.unsqueeze(1), precision_matrix=moves.unsqueeze(1))
    numbers = dist.MultivariateNormal(centre.unsqueeze(1), precision_matrix=noise.unsqueeze(1))
    drawn = LinearGaussianChain(LinearDynamics(first, a, steps, T), c, numbers).chain(x)
    for name, table in vars(found).items():
        draws = getattr(drawn, name)
        error = draws.std(0) / math.sqrt(count)
        assert ((draws.mean(0) - table).abs() <= 4 * error + 1e-12).all(), name


def test_minibatches_of_sequences_are_the_whole_on_average(guide):
    x, lengths, present = sequences()
    parts = []
    for rows in (slice(0, 4), slice(0, 2), slice(2, 4)):
        batch = x[rows], lengths[rows], present[rows]
        loss = TraceConjugate_ELBO().differentiable_loss(model, guide, *batch)
        parameters = [guide.posterior(name).natural for name in NAMES]
        parts.append([loss.detach(), *torch.autograd.grad(loss, parameters)])
    for whole, *halves in zip(*parts, strict=True):
        assert_allclose(sum(halves) / 2, whole, rtol=1e-9, atol=1e-9)


def test_captured_steps_in_float32_are_eager_ones():
    torch.set_default_dtype(torch.float32)
    (x, lengths, present), naturals = sequences(), []
    for kind in (ConjugateSVI, CapturedSVI):
        pyro.set_rng_seed(0)
        guide = AutoConjugate(model, structured=True)
        svi = kind(model, guide, NaturalGradient(0.5), TraceConjugate_ELBO())
        for rows in (slice(0, 2), slice(2, 4), slice(1, 3)):
            svi.step(x[rows].float(), lengths[rows], present[rows])
        naturals.append(guide.posterior("a").natural.detach())
    assert_allclose(*naturals, rtol=1e-12)


def test_states_are_those_under_the_posteriors(guide):
    x, lengths, present = sequences()
    chain = TraceConjugate_ELBO().chains(model, guide, x, lengths, present)["x"]
    moving, seeing = (Weights(guide.posterior(name)) for name in NAMES)
    states = chain.posterior()
    for b, steps in enumerate(lengths.tolist()):
        mean, covariance, _ = smoothed(moving, seeing, x[b, :steps].numpy(), present[b, :steps].numpy())
        assert_allclose(states.mean[b, :steps], mean)
        assert_allclose(states.covariance_matrix[b, steps - 1], covariance[-1, :, -1])
        assert_allclose(states.mean[b, steps:], 0)
