import math

import mpmath
import pyro.distributions as dist
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from pyro_fmvae.distributions import MULTIVARIATE_NORMAL, NORMAL, NaturalMultivariateNormal
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
