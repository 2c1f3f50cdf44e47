"""Predictive distributions by their names, against scipy."""

import pytest
import scipy.stats
import torch
from torch.testing import assert_close

from pyro_fmvae.distributions import (
    BETA,
    DIRICHLET,
    GAMMA,
    INVERSE_GAMMA,
    MULTIVARIATE_NORMAL,
    NORMAL,
    NORMAL_GAMMA,
    NORMAL_WISHART,
    WISHART,
)


def numbers(*values):
    return tuple(torch.tensor(value, dtype=torch.float64) for value in values)


A, B, M, S = 2.3, 0.7, 1.5, 0.4
COUNTS = torch.arange(7.0, dtype=torch.float64)
POSITIVE = torch.tensor([0.01, 0.5, 3.0, 40.0], dtype=torch.float64)
REAL = torch.tensor([-30.0, -0.2, 1.5, 4.0], dtype=torch.float64)
POINTS = torch.tensor([[0.3, -2.0], [1.0, 1.0], [20.0, 5.0]], dtype=torch.float64)
TRIL = torch.tensor([[1.2, 0.0], [-0.5, 0.8]], dtype=torch.float64)
RATE, COVARIANCE = TRIL @ TRIL.mT, torch.tensor([[0.5, 0.1], [0.1, 0.9]], dtype=torch.float64)
LOC, C = torch.tensor([0.5, -1.0], dtype=torch.float64), torch.tensor([0.5, 2.0, 1.5], dtype=torch.float64)
OUTCOMES = torch.tensor([[4.0, 0.0, 0.0], [1.0, 2.0, 1.0], [0.0, 3.0, 1.0]], dtype=torch.float64)
KNOWN = torch.float64

PREDICTIVES = {
    "Gamma, Poisson: negative binomial": (
        GAMMA.predictive_poisson(numbers(A, B), KNOWN, exposure=2.5),
        scipy.stats.nbinom(A, B / (B + 2.5)).logpmf,
        COUNTS,
    ),
    "Gamma, Normal: Student t": (
        GAMMA.predictive_normal(numbers(A, B), KNOWN, loc=M),
        scipy.stats.t(2 * A, M, (B / A) ** 0.5).logpdf,
        REAL,
    ),
    "Gamma, Exponential: Lomax": (
        GAMMA.predictive_exponential(numbers(A, B), KNOWN),
        scipy.stats.lomax(A, scale=B).logpdf,
        POSITIVE,
    ),
    "inverse Gamma, Normal: Student t": (
        INVERSE_GAMMA.predictive_normal(numbers(A, B), KNOWN, loc=M),
        scipy.stats.t(2 * A, M, (B / A) ** 0.5).logpdf,
        REAL,
    ),
    "inverse Gamma, Exponential: Lomax": (
        INVERSE_GAMMA.predictive_exponential(numbers(A, B), KNOWN),
        scipy.stats.lomax(A, scale=B).logpdf,
        POSITIVE,
    ),
    "Beta, Binomial: beta-binomial": (
        BETA.predictive_binomial(numbers(A, B), KNOWN, total_count=6),
        scipy.stats.betabinom(6, A, B).logpmf,
        COUNTS,
    ),
    "Dirichlet, Categorical": (
        DIRICHLET.predictive((C,), KNOWN),
        scipy.stats.rv_discrete(values=([0, 1, 2], (C / C.sum()).tolist())).logpmf,
        COUNTS[:3],
    ),
    "Dirichlet, Multinomial: Dirichlet-multinomial": (
        DIRICHLET.predictive_multinomial((C,), KNOWN, total_count=4),
        scipy.stats.dirichlet_multinomial(C.numpy(), 4).logpmf,
        OUTCOMES,
    ),
    "Normal, Normal": (
        NORMAL.predictive_normal(numbers(M, S), KNOWN, scale=0.7),
        scipy.stats.norm(M, (S**2 + 0.7**2) ** 0.5).logpdf,
        REAL,
    ),
    "multivariate Normal, multivariate Normal": (
        MULTIVARIATE_NORMAL.predictive_normal((LOC, TRIL), KNOWN, COVARIANCE),
        scipy.stats.multivariate_normal(LOC.numpy(), (RATE + COVARIANCE).numpy()).logpdf,
        POINTS,
    ),
    "multivariate Normal, regression: Normal": (
        MULTIVARIATE_NORMAL.predictive_linear((LOC, TRIL), KNOWN, POINTS[0], scale=0.7),
        scipy.stats.norm(
            (LOC @ POINTS[0]).item(), (POINTS[0] @ RATE @ POINTS[0] + 0.49).item() ** 0.5
        ).logpdf,
        REAL,
    ),
    "Wishart, multivariate Normal: multivariate t": (
        WISHART.predictive_normal((*numbers(A), TRIL), KNOWN, LOC),
        scipy.stats.multivariate_t(LOC.numpy(), (RATE / A).numpy(), df=2 * A).logpdf,
        POINTS,
    ),
    "Normal-Gamma: Student t": (
        NORMAL_GAMMA.predictive((LOC[:1], *numbers(S, A), numbers([B])[0]), KNOWN),
        scipy.stats.t(2 * A, LOC[0].item(), ((S + 1) / S * B / A) ** 0.5).logpdf,
        REAL,
    ),
    "Normal-Wishart: multivariate t": (
        NORMAL_WISHART.predictive((LOC, *numbers(S, A), TRIL), KNOWN),
        scipy.stats.multivariate_t(LOC.numpy(), ((S + 1) / S * RATE / A).numpy(), df=2 * A).logpdf,
        POINTS,
    ),
}


@pytest.mark.parametrize("name", PREDICTIVES)
def test_predictive_density_is_that_of_scipy(name):
    predictive, expected, x = PREDICTIVES[name]
    column = x.unsqueeze(-1) if len(predictive.event_shape) == 1 and x.dim() == 1 else x
    assert_close(
        predictive.log_prob(column), torch.as_tensor(expected(x.numpy())).double(), rtol=1e-10, atol=1e-10
    )
    assert predictive.sample().dtype == KNOWN or "Categorical" in name
