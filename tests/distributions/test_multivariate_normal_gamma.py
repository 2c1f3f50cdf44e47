import math

import mpmath
import torch
from torch.distributions import Gamma, MultivariateNormal
from torch.testing import assert_close

from pyro_fmvae.distributions import MULTIVARIATE_NORMAL_GAMMA, NaturalMultivariateNormalGamma
from tests.distributions.family_case import AlgebraCase, tensors
from tests.distributions.test_multivariate_normal import OTHER, TRIL


class TestMultivariateNormalGamma(AlgebraCase):
    kind = NaturalMultivariateNormalGamma
    moderate = {  # noqa: RUF012
        "wide": (tensors([0.2, 0.0, 1.0], TRIL, 3.0, 2.0), tensors([0.0, 1.0, -1.0], OTHER, 4.0, 1.5)),
        "narrow": (tensors([0.0, 1.0, -1.0], OTHER, 4.0, 1.5), tensors([0.2, 0.0, 1.0], TRIL, 3.0, 2.0)),
    }
    extreme = {  # noqa: RUF012
        "1": tensors([1.0], [[0.5]], 2.0, 3.0),
        "ill": tensors([1.0, 2.0], [[10.0, 0.0], [9.9, 0.1]], 50.0, 2.0),
        "far": tensors([1e2, -1e2], [[1.0, 0.0], [0.4, 0.8]], 2.5, 1.0),
    }
    near = {  # noqa: RUF012
        "scale": (
            tensors([1.0, 1.0], [[1.0, 0.0], [0.5, 0.75]], 1e5, 1e5),
            tensors([1.0, 1.0], [[1.0 + 1e-6, 0.0], [0.5, 0.75 - 1e-6]], 1e5, 1e5 + 1e-2),
        ),
    }
    outside = {  # noqa: RUF012
        "a": tensors([-0.5, -1.0, -0.5, 0.0])[0],
        "b": tensors([1.0, 0.0, -0.5, 1.0])[0],
        "indefinite": tensors([1.0, -5.0, -0.5, 2.0, -0.5, 0.0, 0.0])[0],
        "cancelled": tensors([1.0, -0.5e12, -0.5, 1e6])[0],
        "m": tensors([1.0, -1.0, -0.5, math.inf])[0],
    }
    misshapen = {str(size): torch.ones(size).double() for size in ((), (3,), (6,))}  # noqa: RUF012

    def log_density(self, standard, value):
        m, tril, a, b = standard
        weights, precision = value[..., :-1], value[..., -1]
        scale_tril = tril * precision.rsqrt()[..., None, None]
        normal = MultivariateNormal(m, scale_tril=scale_tril, validate_args=False)
        return normal.log_prob(weights) + Gamma(a, b).log_prob(precision)

    def draw(self, standard, count):
        m, tril, a, b = standard
        precision = Gamma(a, b).sample((count,))
        weights = MultivariateNormal(m, scale_tril=tril * precision.rsqrt()[:, None, None]).sample()
        return torch.cat([weights, precision.unsqueeze(-1)], -1)

    def exact_kl(self, standard, prior):
        with mpmath.workdps(60):
            (m, tril, a, b), (m0, tril0, a0, b0) = standard, prior
            factor, gap = tril0**-1 * tril, tril0**-1 * (m - m0)
            trace = sum(x**2 for x in factor) + a / b * sum(x**2 for x in gap)
            normal = (trace - len(m) - mpmath.log(mpmath.det(factor) ** 2)) / 2
            gamma = (a - a0) * mpmath.digamma(a) - mpmath.loggamma(a) + mpmath.loggamma(a0)
            return normal + gamma + a0 * mpmath.log(b / b0) + a * (b0 - b) / b


def test_regression_is_that_of_the_textbook():
    """Bernardo and Smith (1994), page 442, with an improper prior: least squares."""
    x, y = torch.randn(20, 3).double(), torch.randn(20).double()
    rows, columns = torch.tril_indices(3, 3)
    squares = x[:, rows] * x[:, columns] * torch.where(rows == columns, -0.5, -1.0)
    half, stats = torch.full((20, 1), 0.5).double(), y.unsqueeze(-1)
    added = torch.cat([half, -0.5 * stats.square(), squares, x * stats], -1).sum(0)
    m, tril, a, b = MULTIVARIATE_NORMAL_GAMMA.unpack(added)
    best = torch.linalg.lstsq(x, stats).solution.squeeze(-1)
    assert_close(m, best)
    assert_close(tril @ tril.mT, torch.linalg.inv(x.mT @ x))
    assert_close(
        torch.stack([a, b]), torch.stack([torch.tensor(9.5).double(), (y - x @ best).square().sum() / 2])
    )
