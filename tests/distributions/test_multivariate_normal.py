import math

import mpmath
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from pyro_fmvae.distributions import MULTIVARIATE_NORMAL, NORMAL, NaturalMultivariateNormal
from pyro_fmvae.distributions.multivariate_normal import SparseNormalFamily, sparse_kind
from tests.distributions.family_case import AlgebraCase, Likelihood, tensors

TRIL = [[2.0, 0.0, 0.0], [-1.0, 0.5, 0.0], [0.3, 0.2, 1.5]]
OTHER = [[1.0, 0.0, 0.0], [0.0, 0.7, 0.0], [0.5, 0.0, 1.0]]
FEATURES, SCALE = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64), 0.7


def line(weights):
    """Of an observation of a regression."""
    return dist.Normal(weights @ FEATURES, SCALE)


def regression(y, features):
    """T(y) of log N(y; xᵀθ, σ²), [N, P] of y [N] and x [N, D]."""
    rows, columns = torch.tril_indices(features.shape[-1], features.shape[-1])
    squares = features[..., rows] * features[..., columns] * torch.where(rows == columns, -0.5, -1.0)
    return torch.cat([features * y.unsqueeze(-1), squares], -1) / SCALE**2


class TestMultivariateNormal(AlgebraCase):
    kind = NaturalMultivariateNormal
    moderate = {  # noqa: RUF012
        "wide": (tensors([0.2, 0.0, 1.0], TRIL), tensors([0.0, 1.0, -1.0], OTHER)),
        "narrow": (tensors([0.0, 1.0, -1.0], OTHER), tensors([0.2, 0.0, 1.0], TRIL)),
    }
    extreme = {  # noqa: RUF012
        "1": tensors([1.0], [[0.5]]),
        "ill": tensors([1.0, 2.0], [[10.0, 0.0], [9.9, 0.1]]),
        "far": tensors([1e3, -1e3], [[1.0, 0.0], [0.4, 0.8]]),
    }
    near = {  # noqa: RUF012
        "scale": (
            tensors([1e3, 1e3], [[1.0, 0.0], [0.5, 0.75]]),
            tensors([1e3, 1e3], [[1.0 + 1e-6, 0.0], [0.5, 0.75 - 1e-6]]),
        ),
    }
    outside = {  # noqa: RUF012
        "negative": tensors([0.0, 1.0])[0],
        "indefinite": tensors([0.0, 0.0, -0.5, 2.0, -0.5])[0],
        "m": tensors([math.inf, -1.0])[0],
    }
    misshapen = {str(size): torch.ones(size).double() for size in ((), (3,), (6,))}  # noqa: RUF012
    likelihoods = {  # noqa: RUF012
        "regression": Likelihood(
            line,
            lambda y: regression(y, FEATURES.expand(len(y), 3)),
            lambda family, standard, dtype: family.predictive_linear(standard, dtype, FEATURES, SCALE),
        ),
    }

    def log_density(self, standard, value):
        m, tril = standard
        return MultivariateNormal(m, scale_tril=tril).log_prob(value)

    def draw(self, standard, count):
        m, tril = standard
        return MultivariateNormal(m, scale_tril=tril).sample((count,))

    def exact_kl(self, standard, prior):
        with mpmath.workdps(60):
            (m, tril), (m0, tril0) = standard, prior
            factor, gap = tril0**-1 * tril, tril0**-1 * (m - m0)
            trace = sum(x**2 for x in factor) + sum(x**2 for x in gap)
            return (trace - len(m) - mpmath.log(mpmath.det(factor) ** 2)) / 2


def test_regression_is_that_of_the_textbook():
    """Bishop (2006), equations 3.50, 3.51 and 3.58."""
    m0, tril0 = TestMultivariateNormal.moderate["wide"][0]
    x, y = torch.randn(20, 3), torch.randn(20)
    m, tril = MULTIVARIATE_NORMAL.unpack(MULTIVARIATE_NORMAL.natural(m0, tril0) + regression(y, x).sum(0))
    precision0 = torch.linalg.inv(tril0 @ tril0.T)
    covariance = torch.linalg.inv(precision0 + x.T @ x / SCALE**2)
    assert_close(tril @ tril.T, covariance)
    assert_close(m, covariance @ (precision0 @ m0 + x.T @ y / SCALE**2))
    predictive = MULTIVARIATE_NORMAL.predictive_linear((m, tril), torch.float64, x, SCALE)
    assert_close(predictive.loc, x @ m)
    assert_close(predictive.variance, ((x @ covariance) * x).sum(-1) + SCALE**2)


def test_with_independent_dimensions_it_is_the_normal():
    standard, prior = (
        (torch.randn(5, 3).double(), torch.rand(5, 3).double() + 0.1),
        tensors([0.5] * 3, [2.0] * 3),
    )
    ours = [MULTIVARIATE_NORMAL.natural(m, torch.diag_embed(scale)) for m, scale in (standard, prior)]
    theirs = [NORMAL.natural(*each) for each in (standard, prior)]
    assert_close(MULTIVARIATE_NORMAL.kl(*ours), NORMAL.kl(*theirs).sum(-1))
    assert_close(MULTIVARIATE_NORMAL.log_normalizer(ours[0]), NORMAL.log_normalizer(theirs[0]).sum(-1))


# Normal vectors with sparse precision matrices, against dense ones.


def line_of(first, last):
    """Pairs of neighbours in a chain."""
    steps = torch.arange(first, last)
    return torch.stack([steps, steps + 1])


def hub(centre, numbers):
    """Pairs of one number with each of others."""
    return torch.stack([torch.full_like(numbers, centre), numbers])


GROUPS = torch.arange(1, 31)
SPARSE = {
    "arrowhead": ((1, 30), hub(0, GROUPS), 1),
    "two parents": ((2, 30), torch.cat([hub(0, GROUPS + 1), hub(1, GROUPS + 1), hub(0, GROUPS[:1])], 1), 1),
    "tree": (
        (1, 4, 28),
        torch.cat([hub(0, GROUPS[:4]), torch.stack([1 + (GROUPS - 1) % 4, GROUPS + 4])[:, :28]], 1),
        2,
    ),
    "uneven": ((3, 30), torch.cat([torch.stack([GROUPS % 3, GROUPS + 2]), hub(0, GROUPS[:9] + 2)], 1), 2),
    "slopes": ((1, 30, 30), torch.cat([hub(0, GROUPS), torch.stack([GROUPS, GROUPS + 30])], 1), 2),
    "chain": ((21,), line_of(0, 20), 4),
    "chain with a level": ((1, 20), torch.cat([line_of(1, 20), hub(0, GROUPS[:20])], 1), 4),
    "apart": ((2, 10), torch.zeros(2, 0, dtype=torch.int64), 1),
}


def sparse_member(name, seed=0):
    """A family, λ, and the mean and covariance matrix of a dense member that is the same."""
    sizes, pairs, most = SPARSE[name]
    family = SparseNormalFamily(sizes, pairs, most)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(pairs.shape[1], generator=generator, dtype=torch.float64) - 0.5
    precision = torch.zeros(family.dim, family.dim, dtype=torch.float64)
    precision[pairs[0], pairs[1]] = precision[pairs[1], pairs[0]] = weights
    precision += (precision.abs().sum(-1) + 0.5).diag()
    mean = torch.randn(family.dim, generator=generator, dtype=torch.float64)
    second = -precision[family.rows, family.columns] * (1 - 0.5 * (family.rows == family.columns).double())
    return family, torch.cat([precision @ mean, second]), mean, torch.linalg.inv(precision)


@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_vector_is_a_dense_one(name):
    family, natural, mean, covariance = sparse_member(name)
    dense = MULTIVARIATE_NORMAL.natural(mean, torch.linalg.cholesky(covariance))
    found = family.unpack(natural)
    assert_close(found, (mean, covariance[family.rows, family.columns]))
    assert_close(family.natural(*found), natural)
    assert_close(family.log_normalizer(natural), MULTIVARIATE_NORMAL.log_normalizer(dense))
    assert_close(family.entropy(natural), MultivariateNormal(mean, covariance).entropy())
    assert_close(family.deviations(found), covariance.diagonal().sqrt())
    leaf = natural.clone().requires_grad_()
    (slope,) = torch.autograd.grad(family.log_normalizer(leaf), leaf)
    assert_close(family.mean_stats(natural), slope)
    assert family.in_domain(natural)
    negative = natural.clone()
    negative[-1] = 1.0
    assert not family.in_domain(negative)
    _, other, mean0, covariance0 = sparse_member(name, 1)
    both = MultivariateNormal(mean, covariance), MultivariateNormal(mean0, covariance0)
    assert_close(family.relative_entropy(natural, other), torch.distributions.kl_divergence(*both))


@pytest.mark.parametrize("name", SPARSE)
def test_draws_and_densities_of_sparse_vectors(name):
    family, natural, mean, covariance = sparse_member(name)
    sizes, pairs, most = SPARSE[name]
    q, dense = sparse_kind(sizes, pairs, most)(natural, torch.float64), MultivariateNormal(mean, covariance)
    draws = q.sample((20_000,))
    spread = covariance.diagonal().sqrt()
    assert ((draws.mean(0) - mean).abs() < 5 * spread / 20_000**0.5).all()
    correlation = torch.cov(draws.T) / spread / spread[:, None]
    assert_close(correlation, covariance / spread / spread[:, None], rtol=0.0, atol=0.05)
    assert_close(q.log_prob(draws[:5]), dense.log_prob(draws[:5]))
    standard, density = family.unpack(natural), 0.0
    before = torch.zeros(7, 0, dtype=torch.float64)
    for size in sizes:  # part by part
        noise = torch.randn(7, size, dtype=torch.float64)
        part = family.draw(standard, before, noise)
        back, deviations = family.noise(standard, before, part)
        assert_close(back, noise)
        density = density + (dist.Normal(0.0, 1.0).log_prob(noise) - deviations.log()).sum(-1)
        before = torch.cat([before, part], -1)
    assert_close(density, dense.log_prob(before))


@pytest.mark.parametrize("name", ["tree", "uneven", "chain with a level"])
def test_draws_of_sparse_vectors_have_natural_gradients(name):
    family, natural, *_ = sparse_member(name)
    wanted = torch.randn(family.dim + len(family.keys), dtype=torch.float64)
    fisher = torch.autograd.functional.hessian(family.log_normalizer, natural)
    jacobian = torch.autograd.functional.jacobian(lambda t: torch.cat(family.unpack(t)), natural)
    leaf = natural.clone().requires_grad_()
    (torch.cat(family.standard(leaf)) * wanted).sum().backward()
    assert_close(fisher @ leaf.grad, jacobian.T @ wanted)


def test_vectors_without_structure_are_not_sparse():
    pairs = torch.tril_indices(300, 300, -1)
    with pytest.raises(ValueError, match="depend on too many others"):
        SparseNormalFamily((300,), pairs)
