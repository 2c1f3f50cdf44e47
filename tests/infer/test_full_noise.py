"""Regressions and linear dynamics whose noise has a full covariance matrix, jointly with the weights."""

import math
from itertools import pairwise

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import LinearDynamics, LinearGaussianChain, MatrixNormal, MatrixNormalWishart
from pyro_fmvae.infer import (
    AutoConjugate,
    ConjugateSVI,
    NaturalGradient,
    TraceConjugate_ELBO,
    posterior_as_prior,
)
from tests.infer.plain.oracles import step

DF, RATE = 5.0, 0.7  # of all Wisharts, whose precision_matrix is RATE times the identity
D, X, T = 2, 3, 6
WIDTH = 0.4  # prior precision of matrices, against that of the noise


@pytest.fixture(autouse=True)
def in_float64():
    torch.set_default_dtype(torch.float64)


def precision(name, dim):
    matrix = RATE * torch.eye(dim)
    return pyro.sample(name, dist.Wishart(torch.tensor(DF).to(matrix), precision_matrix=matrix))


def independent_rows(rows, dim, noise):
    """A prior in Pyro's own distributions, with the covariance of rows that it has."""
    wide = torch.linspace(0.5, 1.5, rows)
    prior = dist.MultivariateNormal(torch.ones(rows, dim), precision_matrix=wide[:, None, None] * noise)
    return prior.to_event(1), torch.diag(1 / wide)


def correlated_rows(rows, dim, noise):
    tril = torch.eye(rows) + 0.5 * torch.ones(rows, rows).tril(-1)
    return MatrixNormal(torch.ones(rows, dim), tril, noise), tril @ tril.mT


def regression(x, y, prior=independent_rows):
    noise = precision("noise", y.shape[-1])
    w = pyro.sample("w", prior(x.shape[-1], y.shape[-1], noise)[0])
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MultivariateNormal(x @ w, precision_matrix=noise), obs=y)


def points(rows, dim, count=9):
    source = torch.Generator().manual_seed(1)
    return torch.randn(count, rows, generator=source), torch.randn(count, dim, generator=source)


@pytest.mark.parametrize("prior", [independent_rows, correlated_rows])
@pytest.mark.parametrize(("rows", "dim"), [(3, 2), (1, 2), (2, 1)])
def test_one_step_is_the_exact_posterior_and_reaches_the_evidence(prior, rows, dim):
    """Bayes' theorem with the whole covariance matrix of all outcomes, given a precision matrix."""
    x, y = points(rows, dim)
    guide = AutoConjugate(regression, structured=True)
    step(regression, guide, x, y, prior, rate=1.0)
    spread = prior(rows, dim, torch.eye(dim))[1]
    covariance = torch.eye(len(y)) + x @ spread @ x.mT
    gap = y - x @ torch.ones(rows, dim)
    rate = RATE * torch.eye(dim) + gap.mT @ torch.linalg.solve(covariance, gap)
    exact = dist.Wishart(torch.tensor(DF + len(y)), precision_matrix=rate)
    noise = exact.mean
    outcomes = dist.MultivariateNormal(
        (x @ torch.ones(rows, dim)).flatten(), torch.kron(covariance, noise.inverse().contiguous())
    )
    wishart = dist.Wishart(torch.tensor(DF), precision_matrix=RATE * torch.eye(dim))
    evidence = outcomes.log_prob(y.flatten()) + wishart.log_prob(noise) - exact.log_prob(noise)
    loss = TraceConjugate_ELBO().loss(regression, guide, x, y, prior)
    assert -loss == pytest.approx(evidence.item(), rel=1e-10)
    assert_close(guide.marginal("noise").mean, noise)
    matrix = spread.inverse() + x.mT @ x
    best = torch.linalg.solve(matrix, spread.inverse() @ torch.ones(rows, dim) + x.mT @ y)
    marginal = guide.marginal("w")
    assert_close(marginal.mean, best)
    df = DF + len(y) - dim + 1
    expected = torch.einsum("kk,ii->ki", matrix.inverse(), rate) / (df - 2)
    assert_close(marginal.variance, expected)
    assert guide.quantiles([0.5], x, y, prior)["w"].shape == (1, rows, dim)


def test_two_batches_in_turn_equal_one():
    (x, y), guide = points(3, 2), AutoConjugate(regression, structured=True)
    step(regression, guide, x[:4], y[:4], rate=1.0)
    prior = posterior_as_prior(guide)
    whole = AutoConjugate(regression, structured=True)
    step(prior(regression), guide, x[4:], y[4:], rate=1.0)
    step(regression, whole, x, y, rate=1.0)
    assert_close(guide.posterior("w").natural, whole.posterior("w").natural, rtol=1e-12, atol=1e-12)


def affine(name, rows, dim, width=WIDTH):
    """A matrix with a mean of the noise in its last column, and the noise."""
    noise = precision(f"precision of {name}", dim)
    prior = dist.MultivariateNormal(torch.zeros(rows + 1, dim), precision_matrix=width * noise)
    w = pyro.sample(name, prior.to_event(1))
    return w[:-1].mT, dist.MultivariateNormal(w[-1], precision_matrix=noise)


def model(x, present, spans=None):
    a, moves = affine("a", D, D)
    c, noise = affine("c", D, X)
    first = dist.MultivariateNormal(torch.ones(D), 2 * torch.eye(D))
    fn = LinearGaussianChain(LinearDynamics(first, a, moves, x.shape[1]), c, noise.mask(present))
    with pyro.plate("sequences", 4, subsample=x):
        pyro.sample("x", fn if spans is None else fn.of_chunks(spans), obs=x)


def sequences(number=4):
    source = torch.Generator().manual_seed(3)
    x = torch.randn(number, T, X, generator=source).cumsum(1)
    return x, torch.rand(number, T, generator=source) < 0.7


def chain_at(x, present, a, c, moves, noise):
    """The chain at known weights [N, 1, K, D] and precision matrices [N, 1, D, D]."""
    first = dist.MultivariateNormal(torch.ones(D), 2 * torch.eye(D))
    steps, numbers = (
        dist.MultivariateNormal(w[..., -1, :].unsqueeze(1), precision_matrix=matrix.unsqueeze(1))
        for w, matrix in ((a, moves), (c, noise))
    )
    states = LinearDynamics(first, a[..., :-1, :].mT, steps, T)
    return LinearGaussianChain(states, c[..., :-1, :].mT, numbers.mask(present)).chain(x)


def draws(guide, name, count):
    """Weights and precision matrices from a joint posterior, as a dense matrix-Normal-Wishart has them."""
    posterior = guide.posterior(name)()
    value = MatrixNormalWishart(*posterior.standard).sample((count, 1))
    rows = posterior.standard[0].shape[-2]
    factor = value[..., rows:, :]
    return value[..., :rows, :], factor.mT @ factor


def test_weights_of_paths_are_expectations_over_draws():
    x, present = sequences()
    guide, count = AutoConjugate(model, structured=True), 4000
    guide(x, present)
    found = TraceConjugate_ELBO().chains(model, guide, x, present)["x"]
    torch.manual_seed(0)
    (a, moves), (c, noise) = (draws(guide, name, count) for name in ("a", "c"))
    drawn = chain_at(x, present, a, c, moves, noise)
    for name, table in vars(found).items():
        each = getattr(drawn, name)
        error = each.std(0) / math.sqrt(count)
        assert ((each.mean(0) - table).abs() <= 4 * error + 1e-12).all(), name


def regressed(features, outcomes, products, count, dim):
    """The posterior of weights and precision, by sums over steps of squares and products, in NumPy."""
    matrix = WIDTH * np.eye(len(features)) + features
    best = np.linalg.solve(matrix, products)
    rate = RATE * np.eye(dim) + outcomes - best.T @ matrix @ best
    return best, np.linalg.inv(matrix), DF + count, rate


def test_a_step_is_two_regressions_on_smoothed_states():
    """Beal (2003), Section 5.3, with moments of the states by a dense Gaussian of all of a sequence."""
    x, present = sequences()
    guide = AutoConjugate(model, structured=True)
    for _ in range(2):
        step(model, guide, x, present, rate=1.0)
    chain = TraceConjugate_ELBO().chains(model, guide, x, present)["x"]
    sums = {name: [0.0, 0.0, 0.0, 0] for name in ("a", "c")}
    for b in range(len(x)):
        size = T * D
        matrix = torch.block_diag(*chain.precision.expand(len(x), T, D, D)[b]).detach().numpy()
        for t, link in enumerate(chain.link.expand(len(x), T - 1, D, D)[b].detach().numpy()):
            here, after = slice(t * D, (t + 1) * D), slice((t + 1) * D, (t + 2) * D)
            matrix[after, here] -= link
            matrix[here, after] -= link.T
        covariance = np.linalg.inv(matrix)
        mean = covariance @ chain.linear.expand(len(x), T, D)[b].detach().numpy().reshape(size)
        second = np.block([[covariance + np.outer(mean, mean), mean[:, None]], [mean[None], np.ones((1, 1))]])
        for t in range(T):
            now = [*range(t * D, (t + 1) * D), size]
            if t + 1 < T:
                after = range((t + 1) * D, (t + 2) * D)
                parts = np.ix_(now, now), np.ix_(after, after), np.ix_(now, after)
                for i, part in enumerate(parts):
                    sums["a"][i] = sums["a"][i] + second[part]
                sums["a"][3] += 1
            if present[b, t]:
                value = x[b, t].numpy()
                products = np.outer([*mean[t * D : (t + 1) * D], 1.0], value)
                for i, part in enumerate((second[np.ix_(now, now)], np.outer(value, value), products)):
                    sums["c"][i] = sums["c"][i] + part
                sums["c"][3] += 1
    step(model, guide, x, present, rate=1.0)
    for (name, parts), dim in zip(sums.items(), (D, X), strict=True):
        m, tril, a, rate = (each.detach().numpy() for each in guide.posterior(name)().standard)
        found = m, tril @ tril.T, 2 * a + dim - 1, 2 * rate @ rate.T
        for one, other in zip(found, regressed(*parts, dim), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("structured", [False, True])
def test_steps_of_rate_1_never_lower_the_bound(structured):
    x, present = sequences()
    guide = AutoConjugate(model, structured=structured)
    svi = ConjugateSVI(model, guide, NaturalGradient(1.0), TraceConjugate_ELBO())
    losses = [svi.step(x, present) for _ in range(12)]
    assert all(after < before + 1e-9 for before, after in pairwise(losses))
    plan = TraceConjugate_ELBO().plan(model, guide, x, present)
    assert ("jointly with 'precision of a'" in str(plan)) == structured


def test_sharp_posteriors_leave_the_smoother_of_known_numbers():
    """Mean and covariances of the states given the observations, by the whole Gaussian of both."""
    x, present = sequences()
    guide = AutoConjugate(model, structured=True)
    guide(x, present)
    known = {
        "a": (torch.tensor([[0.9, -0.3], [0.3, 0.8], [0.1, 0.2]]), torch.tensor([[0.5, 0.3], [0.3, 0.4]])),
        "c": (
            torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0], [0.3, 0.0, 0.1]]),
            torch.tensor([[0.5, 0.3, 0.0], [0.3, 0.4, 0.1], [0.0, 0.1, 0.2]]),
        ),
    }
    sharp = 1e7
    for name, (w, covariance) in known.items():
        posterior, a = guide.posterior(name), torch.tensor(sharp)
        rate = torch.linalg.cholesky(covariance * (a + 0.5 * (len(covariance) - 1)))
        posterior.natural.data = posterior().family.natural(w, torch.eye(3) / sharp**0.5, a, rate)
    states = TraceConjugate_ELBO().chains(model, guide, x, present)["x"].posterior()
    (a, moves), (c, noise) = known.values()
    mean, covariance = [torch.ones(D)], [[2 * torch.eye(D)]]
    for _ in range(1, T):
        mean.append(mean[-1] @ a[:-1] + a[-1])
        before = [a[:-1].mT @ each for each in covariance[-1]]
        covariance.append([*before, before[-1] @ a[:-1] + moves])
    lower = [torch.cat([*row, torch.zeros(D, (T - len(row)) * D)], 1) for row in covariance]
    prior = torch.cat(lower).tril()
    prior = prior + prior.tril(-1).mT
    mean, seeing = torch.cat(mean), torch.block_diag(*[c[:-1].mT] * T)
    for b, there in enumerate(present):
        rows = there.repeat_interleave(X)
        matrix = seeing[rows]
        total = matrix @ prior @ matrix.mT + torch.block_diag(*[noise] * T)[rows][:, rows]
        gain = torch.linalg.solve(total, matrix @ prior).mT
        gap = x[b].flatten()[rows] - matrix @ mean - c[-1].repeat(T)[rows]
        assert_close(states.mean[b].flatten(), mean + gain @ gap, rtol=1e-4, atol=1e-4)
        left = prior - gain @ matrix @ prior
        own = torch.stack([left[t * D : (t + 1) * D, t * D : (t + 1) * D] for t in range(T)])
        assert_close(states.covariance_matrix[b], own, rtol=1e-4, atol=1e-4)


def test_correlated_noise_is_found():
    """Of a walk in two dimensions that is seen almost as it is."""
    torch.manual_seed(2)
    noise = torch.tensor([[0.5, 0.35], [0.35, 0.4]])
    turn = torch.tensor([[0.8, 0.3], [-0.3, 0.8]])
    first = dist.MultivariateNormal(torch.zeros(D), torch.eye(D))
    walk = LinearDynamics(first, turn, dist.MultivariateNormal(torch.tensor([0.5, 0.0]), noise), 60)
    seen = dist.Normal(torch.zeros(D), 0.1).to_event(1)
    x = LinearGaussianChain(walk, torch.eye(D), seen).expand([20]).sample()

    def moving(x):
        a, moves = affine("a", D, D, 0.01)
        states = LinearDynamics(first, a, moves, x.shape[1])
        with pyro.plate("sequences", len(x)):
            pyro.sample("x", LinearGaussianChain(states, torch.eye(D), seen), obs=x)

    guide = AutoConjugate(moving, structured=True)
    svi = ConjugateSVI(moving, guide, NaturalGradient(1.0), TraceConjugate_ELBO())
    for _ in range(8):
        svi.step(x)
    assert_close(guide.marginal("precision of a").mean.inverse(), noise, rtol=0, atol=0.05)
    assert_close(guide.marginal("a").mean[:-1].mT, turn, rtol=0, atol=0.05)
    assert_close(guide.marginal("a").mean[-1], torch.tensor([0.5, 0.0]), rtol=0, atol=0.1)


def test_states_behind_a_network_have_the_natural_gradients_of_the_integral():
    """Of a decoder that does nothing, and the encoder that is exact for it."""
    x = torch.randn(4, T, D, generator=torch.Generator().manual_seed(4))
    seen, first = (dist.Normal(torch.zeros(D), scale).to_event(1) for scale in (0.3, 1.0))

    def deep(x):
        a, moves = affine("a", D, D)
        with pyro.plate("sequences", 8, subsample=x):
            z = pyro.sample("z", LinearDynamics(first, a, moves, T))
            pyro.sample("x", dist.Normal(z, 0.3).to_event(2), obs=x)

    def integrated(x):
        a, moves = affine("a", D, D)
        with pyro.plate("sequences", 8, subsample=x):
            fn = LinearGaussianChain(LinearDynamics(first, a, moves, T), torch.eye(D), seen)
            pyro.sample("x", fn, obs=x)

    conjugate = AutoConjugate(deep, fallback=None, structured=True)

    def guide(x):
        values = conjugate(x)
        w, precision = values["a"], values["precision of a"]
        moves = dist.MultivariateNormal(w[-1], precision_matrix=precision)
        states = LinearDynamics(first, w[:-1].mT, moves, T)
        with pyro.plate("sequences", 8, subsample=x):
            pyro.sample("z", LinearGaussianChain(states, torch.eye(D), seen).states(x))

    conjugate(x)
    parameter, gradients = conjugate.posterior("a").natural, []
    for model, whole in ((deep, guide), (integrated, conjugate)):
        loss = TraceConjugate_ELBO().differentiable_loss(model, whole, x)
        gradients.append(torch.autograd.grad(loss, parameter)[0])
    assert_close(*gradients)


def test_captured_steps_on_minibatches_are_eager_ones():
    (x, present), naturals = sequences(), []
    for kind in (ConjugateSVI, CapturedSVI):
        pyro.set_rng_seed(0)
        guide = AutoConjugate(model, structured=True)
        svi = kind(model, guide, NaturalGradient(0.5), TraceConjugate_ELBO())
        for rows in (slice(0, 2), slice(2, 4), slice(1, 3)):
            svi.step(x[rows, :3], present[rows, :3])
        naturals.append(guide.posterior("a").natural.detach())
    assert_close(*naturals, rtol=1e-12, atol=1e-12)


def test_chunks_of_a_long_sequence_have_its_natural_gradients_on_average():
    x = torch.randn(1, 40, X, generator=torch.Generator().manual_seed(5)).cumsum(1)
    present = (torch.arange(40) % 7 > 0).view(1, 40, 1)
    guide = AutoConjugate(model, structured=True)
    guide(*sequences())
    naturals = [guide.posterior(name).natural for name in ("a", "c")]

    def parts(x, present, spans=None):
        loss = TraceConjugate_ELBO().loss_per_site(model, guide, x, present.squeeze(-1), spans)["x"]
        return [loss.detach(), *torch.autograd.grad(loss, naturals)]

    errors = []
    for buffer in (2, 20):
        values, spans = LinearGaussianChain.chunks(x, 10, buffer)
        there, _ = LinearGaussianChain.chunks(present, 10, buffer)
        batches = [parts(values[rows], there[rows], spans[rows]) for rows in torch.arange(4).split(2)]
        gaps = [sum(some) / 2 - one / 4 for one, *some in zip(parts(x, present), *batches, strict=True)]
        errors.append(max(float(gap.abs().max()) for gap in gaps))
    assert errors[1] < 1e-8 < errors[0]
