import math

import mpmath
import pytest
import torch

from pyro_fmvae.distributions.bregman import log_gamma_gap, log_gap, stirling_gap, x_log_x_gap

AT = (1e-3, 0.3, 1.0, 5.0, 31.9, 32.0, 33.0, 1e3, 1e6, 1e12)
APART = (1e-9, -1e-6, 9.9e-5, -1.01e-4, 1e-3, -0.1, 0.3, -0.7, 4.0, 100.0)


def x_log_x(x):
    return x * mpmath.log(x)


def remainder(x):
    return mpmath.loggamma(x) - x_log_x(x) + x


@pytest.mark.parametrize(
    ("gap", "function", "derivative"),
    [
        (x_log_x_gap, x_log_x, lambda x: mpmath.log(x) + 1),
        (log_gamma_gap, mpmath.loggamma, mpmath.digamma),
        (stirling_gap, remainder, lambda x: mpmath.digamma(x) - mpmath.log(x)),
    ],
)
def test_divergence_is_that_of_many_digits(gap, function, derivative):
    """Nearly all digits of small divergences; of others, the rounding of their terms."""
    at = torch.tensor(AT, dtype=torch.float64).unsqueeze(-1)
    to = at * (1 + torch.tensor(APART, dtype=torch.float64))
    at, found = at.expand_as(to).flatten().tolist(), gap(to, at).flatten().tolist()
    with mpmath.workdps(60):
        for x, x0, value in zip(
            map(mpmath.mpf, at), map(mpmath.mpf, to.flatten().tolist()), found, strict=True
        ):
            terms = [function(x0), -function(x), -(x0 - x) * derivative(x), x0, x_log_x(x0)]
            rounding = 0 if abs(x0 - x) < 1e-4 * x else 1e-15 * max(map(abs, terms))
            digits = 2e-9 if x < 1e7 else 1e-3
            assert value == pytest.approx(float(sum(terms[:3])), rel=digits, abs=float(rounding))


def test_gap_of_the_logarithm():
    x = torch.tensor(
        [
            -0.999,
            -0.501,
            -0.499,
            -0.3,
            -0.101,
            -0.0999,
            -1e-8,
            1e-12,
            -9.99e-4,
            1.001e-3,
            -0.0201,
            -0.0199,
            0.0199,
            0.0201,
            0.05,
            0.0999,
            0.101,
            3.0,
            1e9,
        ]
    ).double()
    with mpmath.workdps(60):
        exact = [float(y - mpmath.log1p(y)) for y in map(mpmath.mpf, x.tolist())]
    torch.testing.assert_close(log_gap(1 + x, x), torch.tensor(exact).double(), rtol=1e-10, atol=0)
    one, zero = torch.ones(()), torch.zeros(())
    assert log_gap(one, zero) == 0 and log_gap(zero, -one) == torch.inf


def test_gap_of_the_logarithm_in_single_precision():
    """The excess has all of its digits; so does the gap of it, wherever it is."""
    x = torch.tensor([-0.5, -0.31, -0.29, -0.1, -0.021, -0.019, -1e-4, 1e-5, 0.019, 0.021, 0.1, 0.29, 0.31])
    exact = x.double() - x.double().log1p()
    found = log_gap((1 + x.double()).float(), x).double()
    torch.testing.assert_close(found, exact, rtol=2e-6, atol=0)


@pytest.mark.parametrize("ratio", [1e-7, 1e-14, 1e-30])
def test_gap_of_the_logarithm_near_zero(ratio):
    r = torch.tensor(ratio, dtype=torch.float64, requires_grad=True)
    gap = log_gap(r, r - 1)
    assert gap.item() == pytest.approx(ratio - 1 - math.log(ratio), rel=1e-15)
    assert torch.autograd.grad(gap, r)[0].item() == pytest.approx(1 - 1 / ratio, rel=1e-12)
