"""The matrix-Normal-Wishart family, and matrix-normal distributions, by other routes than their formulas."""

import math

import mpmath
import pytest
import scipy.stats
import torch
from torch.distributions import MultivariateNormal, Wishart, biject_to, kl_divergence
from torch.testing import assert_close

from pyro_fmvae.distributions import (
    MATRIX_NORMAL_WISHART,
    MULTIVARIATE_NORMAL_GAMMA,
    MatrixNormal,
    MatrixNormalWishart,
    MultivariateNormalGamma,
    NaturalMatrixNormalWishart,
    NaturalParameter,
    NormalWishart,
)
from tests.distributions.family_case import AlgebraCase, assert_mean, tensors
from tests.distributions.test_normal_wishart import factor_of

RATE = [[1.0, 0.0], [0.4, 0.8]]
FEATURES3 = [[2.0, 0.0, 0.0], [-1.0, 0.5, 0.0], [0.3, 0.2, 1.5]]
OTHER3 = [[1.0, 0.0, 0.0], [0.2, 1.5, 0.0], [0.0, -0.3, 0.7]]
M32, ZERO32 = [[0.2, 0.0], [1.0, -0.5], [0.3, 0.8]], [[0.0, 0.0]] * 3


def vectorised(m, tril, precision):
    """The normal distribution of the elements of W, row by row, with its whole covariance matrix."""
    covariance = torch.einsum("kl,...ij->...kilj", tril @ tril.mT, precision.inverse())
    covariance = covariance.flatten(-2).flatten(-3, -2)
    return MultivariateNormal(m.flatten(), covariance)


class TestMatrixNormalWishart(AlgebraCase):
    kind = NaturalMatrixNormalWishart
    shift = 1.0
    moderate = {  # noqa: RUF012
        "1, 1": (tensors([[1.0]], [[0.3]], 3.0, [[1.5]]), tensors([[0.0]], [[1.0]], 1.5, [[0.7]])),
        "3, 2": (tensors(M32, FEATURES3, 2.5, RATE), tensors(ZERO32, OTHER3, 1.5, [[1.0, 0.0], [-0.2, 1.2]])),
        "1, 3": (
            tensors([[0.0, 1.0, -1.0]], [[1.2]], 4.0, FEATURES3),
            tensors([[0.2, 0.8, -1.0]], [[0.9]], 3.0, OTHER3),
        ),
    }
    extreme = {  # noqa: RUF012
        "prior": tensors([[0.0, 0.0]] * 2, [[1.0, 0.0], [0.0, 1.0]], 0.01, [[0.1, 0.0], [0.0, 0.1]]),
        "sharp": tensors(M32, [[0.1, 0.0, 0.0], [0.02, 0.1, 0.0], [0.0, 0.01, 0.2]], 50.0, RATE),
        "far": tensors([[100.0, -100.0]], [[0.5]], 2.5, RATE),
    }
    near = {  # noqa: RUF012
        "scale": (
            tensors(M32, OTHER3, 1e5, RATE),
            tensors(M32, [[1.0 + 1e-6, 0.0, 0.0], *OTHER3[1:]], 1e5 + 1e-2, RATE),
        ),
    }
    outside = {  # noqa: RUF012
        name: torch.tensor(natural, dtype=torch.float64)
        for name, natural in {
            "a": [-0.6, -1.0, -0.5, 0.0],
            "B": [1.0, 0.5, -0.5, 1.0],
            "P": [1.0, -1.0, 0.5, 0.0],
            "P of 2 rows": [1.0, -1.0, -0.5, 2.0, -0.5, 0.0, 0.0, 0.0],
            "cancelled": [1.0, -0.5e12, -0.5, 1e6],
            "m": [1.0, -1.0, -0.5, math.inf],
        }.items()
    }
    misshapen = {str(size): torch.ones(size).double() for size in ((), (2,), (6,), (10,))}  # noqa: RUF012

    def assert_solves(self, natural, gradient, result, rtol=0.0):
        """Without the zeros at the end of λ, which do not move."""
        rows, size = self.rows_of(natural), natural.shape[-1]

        class Minimal:
            @staticmethod
            def mean_stats(kept):
                whole = torch.cat([kept, kept.new_zeros(rows - 1)])
                return MATRIX_NORMAL_WISHART.mean_stats(whole)[: size - rows + 1]

        class Case(AlgebraCase):
            family = Minimal

        kept = slice(size - rows + 1)
        Case().assert_solves(natural[kept], gradient[kept], result[kept], rtol)

    def rows_of(self, natural):
        total, dim = self.family.event_shape(natural.shape[-1])
        return total - dim

    def log_density(self, standard, value):
        """Of (W, T), by the whole covariance matrix of W and torch's Wishart, with the determinant of Λ."""
        m, tril, a, rate = standard
        rows, dim = m.shape
        factor = value[..., rows:, :]
        precision = factor.mT @ factor
        order = torch.arange(1, dim + 1)
        jacobian = dim * math.log(2) + (order * factor.diagonal(dim1=-2, dim2=-1).log()).sum(-1)
        wishart = Wishart(2 * a + dim - 1, precision_matrix=2 * rate @ rate.mT, validate_args=False)
        normal = vectorised(m, tril, precision).log_prob(value[..., :rows, :].flatten(-2))
        return normal + wishart.log_prob(precision) + jacobian

    def draw(self, standard, count):
        m, tril, a, rate = standard
        seed, dim = int(torch.randint(2**31, ())), m.shape[-1]
        scale = (2 * rate @ rate.mT).inverse().numpy()
        precision = scipy.stats.wishart((2 * a + dim - 1).item(), scale, seed).rvs(count)
        precision = torch.as_tensor(precision).view(count, dim, dim)
        noise = MultivariateNormal(m.new_zeros(dim), precision_matrix=precision).sample((len(m),))
        return torch.cat([m + torch.einsum("kl,lnd->nkd", tril, noise), factor_of(precision)], -2)

    def exact_kl(self, standard, prior):
        with mpmath.workdps(60):
            (m, tril, a, rate), (m0, tril0, a0, rate0) = standard, prior
            (rows, dim), half = (m.rows, m.cols), mpmath.mpf(1) / 2
            factor, gap = tril0**-1 * tril, tril0**-1 * (m - m0)
            n, n0 = (each + half * (dim - 1) for each in (a, a0))
            precision = n * (rate * rate.T) ** -1
            spread = sum(x**2 for x in factor) - rows - mpmath.log(mpmath.det(factor) ** 2)
            apart = sum((gap[k, :] * precision * gap[k, :].T)[0] for k in range(rows))
            shapes, shapes0 = ([each + half * d for d in range(dim)] for each in (a, a0))
            log_det = sum(map(mpmath.digamma, shapes)) - mpmath.log(mpmath.det(rate) ** 2)
            gammas = sum(map(mpmath.loggamma, shapes0)) - sum(map(mpmath.loggamma, shapes))
            rates = n * mpmath.log(mpmath.det(rate) ** 2) - n0 * mpmath.log(mpmath.det(rate0) ** 2)
            moved = precision * (rate0 * rate0.T - rate * rate.T)
            wishart = (a - a0) * log_det + gammas + rates + sum(moved[d, d] for d in range(dim))
            return (dim * spread + apart) / 2 + wishart


def random_standard(*batch, rows=3, dim=2):
    """Standard parameters of a batch."""

    def tril(size):
        below = 0.5 * torch.randn(*batch, size, size).tril(-1)
        return below + torch.diag_embed(0.5 + torch.rand(*batch, size))

    parts = torch.randn(*batch, rows, dim), tril(rows), 1 + 4 * torch.rand(batch), tril(dim)
    return tuple(part.double() for part in parts)


def test_one_row_is_normal_wishart_and_one_column_multivariate_normal_gamma():
    """The same divergences and densities; of one column, also the same log-normaliser."""
    one, other = random_standard(rows=1, dim=3), random_standard(rows=1, dim=3)
    wisharts = [(m[0], tril[0, 0] ** -2, a, rate) for m, tril, a, rate in (one, other)]
    expected = kl_divergence(*(NormalWishart(*each) for each in wisharts))
    assert_close(kl_divergence(*(MatrixNormalWishart(*each) for each in (one, other))), expected)
    value = MatrixNormalWishart(*one).sample((5,))
    assert_close(MatrixNormalWishart(*one).log_prob(value), NormalWishart(*wisharts[0]).log_prob(value))
    one, other = random_standard(rows=3, dim=1), random_standard(rows=3, dim=1)
    gammas = [(m[:, 0], tril, a, rate[0, 0] ** 2) for m, tril, a, rate in (one, other)]
    expected = kl_divergence(*(MultivariateNormalGamma(*each) for each in gammas))
    assert_close(kl_divergence(*(MatrixNormalWishart(*each) for each in (one, other))), expected)
    ours, theirs = (
        family.log_normalizer(family.natural(*each))
        for family, each in ((MATRIX_NORMAL_WISHART, one), (MULTIVARIATE_NORMAL_GAMMA, gammas[0]))
    )
    assert_close(ours, theirs)


def test_regression_is_bayes_theorem_and_least_squares():
    """Adding up statistics gives the posterior; its density is that of prior times data up to a constant."""
    x, y = torch.randn(12, 3).double(), torch.randn(12, 2).double()
    prior = random_standard()
    half = torch.full((12,), 0.5).double()

    def tril(left, right):
        rows, columns = torch.tril_indices(left.shape[-1], left.shape[-1])
        return left[:, rows] * right[:, columns] * torch.where(rows == columns, -0.5, -1.0)

    across = (x.unsqueeze(-1) * y.unsqueeze(-2)).flatten(1)
    added = torch.cat([half[:, None], tril(y, y), tril(x, x), across, torch.zeros(12, 2).double()], -1)
    posterior = MATRIX_NORMAL_WISHART.unpack(MATRIX_NORMAL_WISHART.natural(*prior) + added.sum(0))
    value = MatrixNormalWishart(*prior).sample((6,))
    weights, factor = value[:, :3], value[:, 3:]
    likelihood = MultivariateNormal(x @ weights, precision_matrix=(factor.mT @ factor).unsqueeze(1))
    joint = MatrixNormalWishart(*prior).log_prob(value) + likelihood.log_prob(y).sum(-1)
    evidence = joint - MatrixNormalWishart(*posterior).log_prob(value)
    assert_close(evidence, evidence[:1].expand(6))
    by_points, natural = 0.0, MATRIX_NORMAL_WISHART.natural(*prior)
    for features, outcome, stats in zip(x, y, added, strict=True):
        standard = MATRIX_NORMAL_WISHART.unpack(natural)
        predictive = MATRIX_NORMAL_WISHART.predictive_linear(standard, torch.float64, features)
        by_points += predictive.log_prob(outcome)
        natural = natural + stats
    assert_close(by_points, evidence[0])
    m, spread, a, rate = MATRIX_NORMAL_WISHART.unpack(added.sum(0))
    best = torch.linalg.lstsq(x, y).solution
    gap = y - x @ best
    assert_close(m, best)
    assert_close(spread @ spread.mT, torch.linalg.inv(x.mT @ x))
    assert_close(rate @ rate.mT, 0.5 * gap.mT @ gap)
    assert_close(a, torch.tensor(12 / 2 + 1 - 3 / 2).double())


def test_a_random_start_counts_observations_around_a_draw():
    prior = random_standard()
    natural = MATRIX_NORMAL_WISHART.natural(*prior).expand(20_000, -1)
    m, tril, a, _ = MATRIX_NORMAL_WISHART.unpack(MATRIX_NORMAL_WISHART.random_start(natural, 3.0, None))
    assert_close(a[0], prior[2] + 1.5)
    assert_close(tril[0], prior[1] / 2)
    assert_mean(m, prior[0])
    noise = prior[3] @ prior[3].mT / (prior[2] + 0.5)
    whole = vectorised(prior[0], prior[1], noise.inverse()).covariance_matrix
    gap = (m - prior[0]).flatten(1)
    assert_mean(gap.unsqueeze(-1) * gap.unsqueeze(-2), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_moments(dtype):
    standard = random_standard(4)
    natural = NaturalParameter(MATRIX_NORMAL_WISHART.natural(*standard))
    own = MatrixNormalWishart(*(t.to(dtype) for t in standard))
    for fn in (own, NaturalMatrixNormalWishart(natural, dtype)):
        assert (fn.batch_shape, fn.event_shape) == ((4,), (5, 2))
        draws = fn.rsample((20_000,))
        assert draws.shape == (20_000, 4, 5, 2) and draws.dtype == fn.mean.dtype == dtype
        assert fn.support.check(draws).all()
        assert_mean(draws.double(), fn.mean.double())
        assert_mean(
            MATRIX_NORMAL_WISHART.stats(draws.double()), MATRIX_NORMAL_WISHART.mean_stats(natural).detach()
        )
        wide = fn.expand(torch.Size((3, 4)))
        assert_close(wide.log_prob(draws[0]), own.log_prob(draws[0]).expand(3, 4), rtol=1e-4, atol=1e-4)
        value = fn.sample()
        free = biject_to(fn.support).inv(value)
        assert free.shape == (4, 9)
        assert_close(biject_to(fn.support)(free), value)
    prior = tuple(t[:1] for t in random_standard(4))
    q, p = (MatrixNormalWishart(*(t.to(dtype) for t in each)) for each in (standard, prior))
    draws = q.sample((20_000,))
    kl = kl_divergence(q, p)
    assert kl.dtype == dtype
    assert_mean((q.log_prob(draws) - p.log_prob(draws)).double(), kl.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matrix_normal_is_the_normal_of_its_elements(dtype):
    m, tril, _, rate = random_standard()
    precision = rate @ rate.mT
    whole = vectorised(m, tril, precision)
    fn = MatrixNormal(*(t.to(dtype) for t in (m, tril, precision)))
    draws = fn.rsample((50_000,))
    assert draws.dtype == dtype and draws.shape == (50_000, 3, 2)
    assert_mean(draws.double(), fn.mean.double())
    centred = (draws.double() - m).flatten(1)
    assert_mean(centred.unsqueeze(-1) * centred.unsqueeze(-2), whole.covariance_matrix)
    expected = whole.log_prob(draws[:4].double().flatten(1)).to(dtype)
    assert_close(fn.expand(torch.Size([4])).log_prob(draws[:4]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loc": torch.zeros(2)}, "loc: expected a tensor of shape"),
        ({"scale_tril": torch.eye(2)}, r"expected loc .*got \[3, 2\], \[2, 2\]"),
        ({"concentration": -1.0}, "concentration"),
        ({"rate_tril": torch.ones(2, 2)}, "rate_tril"),
    ],
)
def test_wrong_parameters(change, message):
    good = {"loc": torch.zeros(3, 2), "scale_tril": torch.eye(3), "concentration": 1.0}
    with pytest.raises(ValueError, match=message):
        MatrixNormalWishart(**{**good, "rate_tril": torch.eye(2), **change})
    with pytest.raises(ValueError, match=r"expected loc .*got \[3, 2\], \[3, 3\], \[3, 3\]"):
        MatrixNormal(torch.zeros(3, 2), torch.eye(3), torch.eye(3))
