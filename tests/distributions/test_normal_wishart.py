import math

import pytest
import scipy.stats
import torch
from torch.distributions import Gamma, MultivariateNormal, Wishart, kl_divergence
from torch.testing import assert_close

from pyro_fmvae.distributions import (
    NORMAL_GAMMA,
    NORMAL_WISHART,
    NaturalNormalWishart,
    NaturalParameter,
    NormalWishart,
)
from tests.distributions.family_case import FamilyCase, assert_mean, tensors

EXTREME_B = [[2.0, 0.0, 0.0], [-1.0, 0.5, 0.0], [0.3, 0.2, 1.5]]


def precision_of(value):
    """Λ of (μ, T)."""
    factor = value[..., 1:, :]
    return factor.mT @ factor


def factor_of(precision):
    """The lower triangular T with Λ = TᵀT: a Cholesky factor from the last dimension to the first."""
    return torch.linalg.cholesky(precision.flip(-1, -2)).flip(-1, -2).mT


def textbook(standard):
    """m, s, ν and the inverse of W, as Bishop (2006) and Murphy (2007) have them."""
    m, s, a, tril = standard
    return m, s, 2 * a + m.shape[-1] - 1, 2 * tril @ tril.mT


def reference_log_prob(standard, value):
    """Of (μ, Λ) by torch, with the determinant of Λ by T, which is 2^D Π T_dd^d."""
    m, s, dof, inverse_scale = textbook(standard)
    loc, precision = value[..., 0, :], precision_of(value)
    dim = m.shape[-1]
    wishart = Wishart(dof, precision_matrix=inverse_scale, validate_args=False).log_prob(precision)
    normal = MultivariateNormal(m, precision_matrix=s[..., None, None] * precision, validate_args=False)
    order = torch.arange(1, dim + 1).to(m)
    jacobian = dim * math.log(2) + (order * value[..., 1:, :].diagonal(dim1=-2, dim2=-1).log()).sum(-1)
    return normal.log_prob(loc) + wishart + jacobian


class TestNormalWishart(FamilyCase):
    kind = NaturalNormalWishart
    moderate = {  # noqa: RUF012
        "1": (tensors([1.0], 50.0, 30.0, [[3.5]]), tensors([0.0], 1.0, 0.5, [[0.3]])),
        "2": (
            tensors([1.0, -1.0], 4.0, 2.5, [[1.0, 0.0], [0.4, 0.8]]),
            tensors([0.5, 0.0], 2.0, 1.5, [[1.0, 0.0], [-0.2, 1.2]]),
        ),
        "3": (
            tensors([0.2, 0.0, 1.0], 0.3, 1.2, EXTREME_B),
            tensors([0.0, 1.0, -1.0], 1.0, 3.0, [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        ),
    }
    extreme = {  # noqa: RUF012
        "prior": tensors([0.0, 0.0], 1.0, 0.01, [[0.1, 0.0], [0.0, 0.1]]),
        "many": tensors([0.3, -1.0], 2e5, 1e5, [[200.0, 0.0], [-300.0, 40.0]]),
        "sharp": tensors([1.0, 0.0, -1.0], 1e3, 500.0, EXTREME_B),
    }
    outside = {  # noqa: RUF012
        name: torch.tensor(natural, dtype=torch.float64)
        for name, natural in {
            "m": [2.5, -1.0, -math.inf, math.inf],
            "s": [1.0, 0.5, -1.0, 0.0],
            "a": [-0.6, -0.5, -1.0, 0.0],
            "B": [1.0, -0.5, -1.0, 2.0, -1.0, 0.0, 0.0],  # eigenvalues 3 and -1
            "B far from 0": [1.0, -0.5, -1.0, 0.0, -1.0, 2.0, 0.0],  # B_11 = 1 - 2²/2
        }.items()
    }
    misshapen = {str(size): torch.ones(size).double() for size in ((), (2,), (5,), (8,))}  # noqa: RUF012

    def log_density(self, standard, value):
        return reference_log_prob(standard, value)

    def draw(self, standard, count):
        m, s, dof, inverse_scale = textbook(standard)
        seed, dim = int(torch.randint(2**31, ())), m.shape[-1]
        precision = scipy.stats.wishart(dof.item(), inverse_scale.inverse().numpy(), seed).rvs(count)
        precision = torch.as_tensor(precision).view(count, dim, dim)
        loc = MultivariateNormal(m, precision_matrix=s * precision).sample()
        return torch.cat([loc.unsqueeze(-2), factor_of(precision)], -2)

    def observe(self, value, count):
        return MultivariateNormal(value[0], precision_matrix=precision_of(value)).sample((count,))

    def log_likelihood(self, value, x):
        return MultivariateNormal(value[..., 0, :], precision_matrix=precision_of(value)).log_prob(x)
