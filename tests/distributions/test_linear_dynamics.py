"""Linear dynamical systems, against normal distributions of all numbers of a sequence at once."""

import math

import pyro.distributions as dist
import pytest
import torch
from torch.distributions import kl_divergence
from torch.testing import assert_close

from pyro_fmvae.distributions import LinearDynamics, LinearGaussianChain

B, T, D, X = 3, 4, 2, 3
SOURCE = torch.Generator().manual_seed(0)


def normal(*shape):
    return torch.randn(shape, generator=SOURCE, dtype=torch.float64)


def tril(dim):
    return torch.eye(dim, dtype=torch.float64) + 0.3 * normal(dim, dim).tril()


INITIAL = dist.MultivariateNormal(normal(D), scale_tril=tril(D))
MATRIX, C = 0.6 * normal(D, D), normal(X, D)
NOISE = dist.MultivariateNormal(normal(D), scale_tril=tril(D))
NUMBERS = dist.Normal(normal(X), 0.5 + normal(X).square()).to_event(1)
VALUES, STATES, MEANS = normal(B, T, X), normal(B, T, D), normal(B, T - 1, D)


def dynamics(**changes):
    parts = {"initial": INITIAL, "matrix": MATRIX, "noise": NOISE, "duration": T, **changes}
    return LinearDynamics(**parts, validate_args=True)


def observed(matrix=C, noise=NUMBERS, **changes):
    return LinearGaussianChain(dynamics(**changes), matrix, noise, validate_args=True)


def by_hand(means=None, steps=T, matrix=MATRIX):
    """Mean and covariance of all states, from the sums of noises that they are."""
    means = NOISE.loc.expand(steps - 1, D) if means is None else means
    powers = [torch.linalg.matrix_power(matrix, k) for k in range(steps)]
    mixing = torch.zeros(steps * D, steps * D, dtype=torch.float64)
    for t in range(steps):
        for s in range(t + 1):
            mixing[t * D : (t + 1) * D, s * D : (s + 1) * D] = powers[t - s]
    noises = torch.block_diag(INITIAL.covariance_matrix, *[NOISE.covariance_matrix] * (steps - 1))
    return mixing @ torch.cat([INITIAL.loc, means.flatten()]), mixing @ noises @ mixing.mT


def observed_by_hand(steps=T, matrix=C):
    mean, covariance = by_hand(steps=steps)
    wide = torch.block_diag(*[matrix] * steps)
    noise = torch.diag_embed(NUMBERS.variance.repeat(steps))
    return wide @ mean + NUMBERS.mean.repeat(steps), wide @ covariance @ wide.mT + noise


def test_densities_are_those_of_one_normal_distribution():
    expected = dist.MultivariateNormal(*by_hand()).log_prob(STATES.flatten(-2))
    assert_close(dynamics().log_prob(STATES), expected)
    expected = dist.MultivariateNormal(*observed_by_hand()).log_prob(VALUES.flatten(-2))
    assert_close(observed().log_prob(VALUES), expected)
    assert observed().expand([B]).log_prob(VALUES).shape == (B,)
    assert observed().expand([B]).shape() == (B, T, X)


def test_states_given_observations_are_those_of_one_normal_distribution():
    mean, covariance = by_hand()
    wide = torch.block_diag(*[C] * T)
    about, spread = observed_by_hand()
    gain = covariance @ wide.mT @ torch.linalg.inv(spread)
    states = observed().states(VALUES)
    assert states.expand([2, B]).rsample().shape == (2, B, T, D)
    assert_close(states.mean.flatten(-2), mean + (VALUES.flatten(-2) - about) @ gain.mT)
    left = (covariance - gain @ wide @ covariance).unflatten(-1, (T, D)).unflatten(-3, (T, D))
    assert_close(states.covariance_matrix[0], torch.stack([left[t, :, t] for t in range(T)]))


def test_what_is_missing_does_not_count():
    there = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 1]]).bool()
    rows = there.flatten().nonzero().squeeze(-1)
    mean, covariance = observed_by_hand()
    kept = dist.MultivariateNormal(mean[rows], covariance[rows][:, rows])
    noise = dist.Normal(NUMBERS.base_dist.loc, NUMBERS.base_dist.scale).expand([T, X]).mask(there).to_event(1)
    assert_close(observed(noise=noise).log_prob(VALUES), kept.log_prob(VALUES.flatten(-2)[:, rows]))
    steps = torch.tensor([True, False, False, True])
    rows = steps.repeat_interleave(X).nonzero().squeeze(-1)
    kept = dist.MultivariateNormal(mean[rows], covariance[rows][:, rows])
    whole = dist.MultivariateNormal(NUMBERS.mean, torch.diag_embed(NUMBERS.variance))
    for noise in (NUMBERS.expand([T]).mask(steps), whole.expand([T]).mask(steps)):
        assert_close(observed(noise=noise).log_prob(VALUES), kept.log_prob(VALUES.flatten(-2)[:, rows]))
    nothing = observed(noise=NUMBERS.mask(False))
    assert_close(nothing.log_prob(VALUES), torch.zeros(B, dtype=torch.float64))
    assert_close(nothing.chain(VALUES).mean_path.expand(B, T, D)[0].flatten(), by_hand()[0])


def test_sequences_end_at_their_lengths():
    lengths = torch.tensor([4, 1, 3])
    fn = observed(lengths=lengths)
    for b, steps in enumerate(lengths.tolist()):
        whole = dist.MultivariateNormal(*observed_by_hand(steps))
        assert_close(fn.log_prob(VALUES)[b], whole.log_prob(VALUES[b, :steps].flatten()))
        after = dist.Normal(0.0, 1.0).log_prob(STATES[b, steps:]).sum()
        known = dist.MultivariateNormal(*by_hand(steps=steps)).log_prob(STATES[b, :steps].flatten())
        assert_close(dynamics(lengths=lengths).log_prob(STATES)[b], known + after)


def test_known_inputs_move_the_states():
    fn = dynamics(noise=dist.MultivariateNormal(MEANS, scale_tril=NOISE.scale_tril))
    assert fn.batch_shape == (B,)
    for b in range(B):
        known = dist.MultivariateNormal(*by_hand(MEANS[b])).log_prob(STATES[b].flatten())
        assert_close(fn.log_prob(STATES)[b], known)


def test_matrices_may_differ_by_sequence():
    matrices = torch.stack([C, 2 * C, -C])
    fn = observed(matrix=matrices)
    assert fn.batch_shape == (B,)
    for b in range(B):
        known = dist.MultivariateNormal(*observed_by_hand(matrix=matrices[b])).log_prob(VALUES[b].flatten())
        assert_close(fn.log_prob(VALUES)[b], known)


def test_divergence_from_dynamics_is_that_of_normal_distributions():
    states, other = observed().states(VALUES), dist.MultivariateNormal(*by_hand(matrix=-MATRIX))
    wide, noise = torch.block_diag(*[C] * T), torch.diag_embed(1 / NUMBERS.variance.repeat(T))
    precision = torch.linalg.inv(by_hand()[1]) + wide.mT @ noise @ wide
    whole = dist.MultivariateNormal(states.mean.flatten(-2), precision_matrix=precision)
    assert_close(kl_divergence(states, dynamics(matrix=-MATRIX)), kl_divergence(whole, other))


@pytest.mark.parametrize("fn", [dynamics, observed])
def test_draws_have_the_moments_of_the_sequence(fn):
    torch.manual_seed(0)
    count, (mean, covariance) = 20_000, by_hand() if fn is dynamics else observed_by_hand()
    draws = fn().expand([2]).sample((count // 2,))
    assert draws.shape == (count // 2, 2, T, D if fn is dynamics else X)
    gap = draws.flatten(0, 1).flatten(-2) - mean
    assert (gap.mean(0).abs() < 4 * (covariance.diagonal() / count).sqrt()).all()
    products = gap.unsqueeze(-1) * gap.unsqueeze(-2)
    assert ((products.mean(0) - covariance).abs() < 4 * products.std(0) / math.sqrt(count)).all()


@pytest.mark.parametrize("lengths", [None, torch.tensor([23, 5, 12])])
def test_chunks_with_enough_of_a_buffer_are_the_whole(lengths):
    """Densities, divergences, their gradients, and the states at steps that count."""
    leaves = [each.clone().requires_grad_() for each in (MATRIX, C)]

    def made(duration, lengths=None):
        moves = dynamics(matrix=leaves[0], duration=duration, lengths=lengths)
        return LinearGaussianChain(moves, leaves[1], NUMBERS)

    def parts(fn, x, z):
        states = fn.states(x)
        ratio = (fn.dynamics.log_prob(z) - states.log_prob(z)).sum()
        sums = fn.log_prob(x).sum(), ratio, kl_divergence(states, fn.dynamics).sum()
        return [
            *sums,
            *(slope for each in sums for slope in torch.autograd.grad(each, leaves, retain_graph=True)),
        ]

    x, z = normal(B, 23, X), normal(B, 23, D)
    whole = made(23, lengths)
    states = whole.chain(x).posterior()
    exact, errors = parts(whole, x, z), []
    for buffer in (0, 2, 5, 23):
        values, spans = LinearGaussianChain.chunks(x, 10, buffer, lengths)
        fn = made(values.shape[1]).of_chunks(spans)
        assert fn.batch_shape == (len(spans),)
        each = parts(fn, values, LinearGaussianChain.chunks(z, 10, buffer, lengths)[0])
        errors.append([(one - other).abs().max() for one, other in zip(each, exact, strict=True)])
    for falling in zip(*errors, strict=True):
        assert falling[0] > falling[1] > falling[2] and falling[3] < 1e-9
    path, rows = fn.chain(values).posterior(), torch.arange(23).expand(B, 23).unsqueeze(-1)
    rows, _ = LinearGaussianChain.chunks(rows, 10, 23, lengths)
    owners, _ = LinearGaussianChain.chunks(torch.arange(B).view(B, 1, 1).expand(B, 23, 1), 10, 23, lengths)
    for c, (_, first, last, _) in enumerate(spans.tolist()):
        steps = slice(first, last)
        where = owners[c, steps, 0], rows[c, steps, 0]
        assert_close(path.mean[c, steps], states.mean[where])
        assert_close(path.covariance_matrix[c, steps], states.covariance_matrix[where])


def test_a_chunk_of_which_nothing_is_seen_is_near_its_start():
    """Where nothing else is known, the first state has a thousand times the covariance of the initial one."""
    x, spans = LinearGaussianChain.chunks(VALUES[:1], 1, 1)
    unseen = observed(noise=NUMBERS.mask(torch.tensor(False)), duration=x.shape[1]).of_chunks(spans)
    path = unseen.chain(x).posterior()
    assert_close(path.mean[-1, 0], INITIAL.loc)
    assert_close(path.covariance_matrix[-1, 0], 1000 * INITIAL.covariance_matrix)
    assert_close(path.covariance_matrix[0, 0], INITIAL.covariance_matrix)
    for fn, spans in ((observed(), torch.zeros(3)), (observed(lengths=torch.tensor(2)), torch.zeros(4))):
        with pytest.raises(ValueError, match=r"spans: expected shape \[..., 4\], and no lengths beside them"):
            fn.of_chunks(spans)


def test_a_sequence_of_one_step_has_no_noise():
    fn = observed(duration=1)
    known = dist.MultivariateNormal(*observed_by_hand(1)).log_prob(VALUES[:, 0])
    assert_close(fn.log_prob(VALUES[:, :1]), known)
    assert fn.sample((2,)).shape == (2, 1, X)


def test_integers_are_numbers():
    first, moves = dist.Normal(torch.zeros(1), 1.0).to_event(1), dist.Normal(torch.zeros(1), 0.7).to_event(1)
    states = LinearDynamics(first, 0.9 * torch.eye(1), moves, 3)
    for fn in (states, LinearGaussianChain(states, torch.eye(1), moves)):
        values = torch.tensor([[1], [2], [0]])
        found, exact = fn.log_prob(values), fn.log_prob(values.to(torch.get_default_dtype()))
        assert_close(found, exact)


def test_single_precision_is_integrated_in_double():
    def single(fn):
        return dist.MultivariateNormal(fn.loc.float(), scale_tril=fn.scale_tril.float())

    noise = dist.Normal(NUMBERS.base_dist.loc.float(), NUMBERS.base_dist.scale.float()).to_event(1)
    fn = LinearGaussianChain(
        LinearDynamics(single(INITIAL), MATRIX.float(), single(NOISE), T), C.float(), noise
    )
    found = fn.log_prob(VALUES.float())
    assert found.dtype == torch.float32
    assert_close(found.double(), observed().log_prob(VALUES), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dynamics(matrix=C), r"matrix \[..., D, D\] and an event \[D\], got \[2\], \[3, 2\] and"),
        (lambda: dynamics(duration=0), "duration: expected 1 or more, got 0"),
        (
            lambda: dynamics(noise=dist.Laplace(torch.zeros(D), 1.0).to_event(1)),
            r"noise: expected a MultivariateNormal or Normal\(...\).to_event\(1\), masked or not, got Lap",
        ),
        (lambda: dynamics(noise=NOISE.expand([T])), "ends with 1 or the 3 steps, if it has one, got"),
        (lambda: dynamics(lengths=torch.tensor([0, 2])), "lengths: expected numbers from 1 to the duration"),
        (
            lambda: dynamics(initial=INITIAL.mask(False)),
            "initial: expected a density of every state, got a m",
        ),
        (lambda: dynamics(noise=NOISE.mask(True)), "noise: expected a density of every state, got a masked"),
        (lambda: observed(matrix=C.T), r"expected a matrix \[..., X, 2\] and an event \[X\], got \[2, 3\]"),
        (lambda: observed().states(VALUES[:, :3]), r"value: expected shape \[..., 4, 3\], got \[3, 3, 3\]"),
        (lambda: observed(noise=NUMBERS.expand([2])), "ends with 1 or the 4 steps, if it has one, got"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(ValueError, match=words):
        make()
