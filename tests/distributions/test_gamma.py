import mpmath
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import Chi2, Gamma, kl_divergence
from torch.testing import assert_close

from pyro_fmvae.distributions import GAMMA, NaturalGamma
from pyro_fmvae.distributions.exponential_family import natural_class
from tests.distributions.family_case import AlgebraCase, Likelihood, tensors


def gamma_kl(standard, prior):
    """Of Gammas, and of the inverses of their variables."""
    with mpmath.workdps(60):
        (a, b), (a0, b0) = standard, prior
        shapes = (a - a0) * mpmath.digamma(a) - mpmath.loggamma(a) + mpmath.loggamma(a0)
        return shapes + a0 * mpmath.log(b / b0) + a * (b0 - b) / b


class TestGamma(AlgebraCase):
    kind = NaturalGamma
    moderate = {  # noqa: RUF012
        "many": (tensors(30.0, 12.0), tensors(2.0, 1.0)),
        "few": (tensors(0.7, 3.0), tensors(1.0, 0.5)),
    }
    extreme = {"sharp": tensors(1e5, 3e4), "vague": tensors(0.01, 0.01)}  # noqa: RUF012
    near = {  # noqa: RUF012
        "ridge": (tensors(1e6, 2e3), tensors(1e6 + 1, 2e3 + 2e-3)),
        "rate": (tensors(3e7, 1.0), tensors(3e7, 1.0 + 1e-9)),
        "few": (tensors(2.1, 1.3), tensors(2.1 + 1e-8, 1.3)),
    }
    outside = {"a": tensors([-0.1, -1.0])[0], "b": tensors([1.0, 0.0])[0]}  # noqa: RUF012
    misshapen = {"scalar": tensors(1.0)[0], "three": tensors([1.0, -1.0, 1.0])[0]}  # noqa: RUF012
    likelihoods = {  # noqa: RUF012
        "Poisson": Likelihood(
            lambda rate: dist.Poisson(2.5 * rate),
            lambda x: torch.stack([x, torch.full_like(x, -2.5)], -1),
            lambda family, standard, dtype: family.predictive_poisson(standard, dtype, exposure=2.5),
        ),
        "Exponential": Likelihood(
            dist.Exponential,
            lambda x: torch.stack([torch.ones_like(x), -x], -1),
        ),
        "Gamma": Likelihood(
            lambda rate: dist.Gamma(3.0, rate),
            lambda x: torch.stack([torch.full_like(x, 3.0), -x], -1),
        ),
        "LogNormal": Likelihood(
            lambda precision: dist.LogNormal(0.3, precision.rsqrt()),
            lambda x: torch.stack([torch.full_like(x, 0.5), -0.5 * (x.log() - 0.3).square()], -1),
        ),
        "Normal": Likelihood(
            lambda precision: dist.Normal(1.5, precision.rsqrt()),
            lambda x: torch.stack([torch.full_like(x, 0.5), -0.5 * (x - 1.5).square()], -1),
            lambda family, standard, dtype: family.predictive_normal(standard, dtype, loc=1.5),
        ),
    }

    def log_density(self, standard, value):
        return Gamma(*standard).log_prob(value)

    def draw(self, standard, count):
        return Gamma(*standard).sample((count,)).clamp(min=1e-10)

    def exact_kl(self, standard, prior):
        return gamma_kl(standard, prior)


@pytest.mark.parametrize(
    ("prior", "a", "b"),
    [(dist.Exponential(3.0), 1.0, 3.0), (dist.Chi2(5.0), 2.5, 0.5), (Chi2(5.0), 2.5, 0.5)],
)
def test_gammas_under_other_names(prior, a, b):
    assert natural_class(prior) is NaturalGamma
    assert_close(GAMMA.pack(prior), torch.tensor([a, -b]).double())
    q = NaturalGamma(torch.tensor([2.0, -1.0]).double())
    assert_close(kl_divergence(q, prior), kl_divergence(Gamma(*tensors(2.0, 1.0)), Gamma(*tensors(a, b))))
