import pyro.distributions as dist
import torch
from torch.distributions import InverseGamma, kl_divergence
from torch.testing import assert_close

from pyro_fmvae.distributions import NaturalGamma, NaturalInverseGamma
from pyro_fmvae.distributions.exponential_family import natural_class
from tests.distributions.family_case import AlgebraCase, Likelihood, tensors
from tests.distributions.test_gamma import gamma_kl


class TestInverseGamma(AlgebraCase):
    kind = NaturalInverseGamma
    moderate = {  # noqa: RUF012
        "many": (tensors(30.0, 12.0), tensors(2.0, 1.0)),
        "few": (tensors(0.7, 3.0), tensors(1.0, 0.5)),
    }
    extreme = {"sharp": tensors(1e5, 3e4), "vague": tensors(0.01, 0.01)}  # noqa: RUF012
    near = {"ridge": (tensors(1e6, 2e3), tensors(1e6 + 1, 2e3 + 2e-3))}  # noqa: RUF012
    outside = {"a": tensors([0.1, -1.0])[0], "b": tensors([-1.0, 0.0])[0]}  # noqa: RUF012
    misshapen = {"scalar": tensors(1.0)[0], "three": tensors([1.0, -1.0, 1.0])[0]}  # noqa: RUF012
    likelihoods = {  # noqa: RUF012
        "Exponential": Likelihood(
            lambda mean: dist.Exponential(1 / mean),
            lambda x: torch.stack([-torch.ones_like(x), -x], -1),
        ),
        "Normal": Likelihood(
            lambda variance: dist.Normal(1.5, variance.sqrt()),
            lambda x: torch.stack([torch.full_like(x, -0.5), -0.5 * (x - 1.5).square()], -1),
            lambda family, standard, dtype: family.predictive_normal(standard, dtype, loc=1.5),
        ),
    }

    def log_density(self, standard, value):
        return InverseGamma(*standard).log_prob(value)

    def draw(self, standard, count):
        return InverseGamma(*standard).sample((count,)).clamp(max=1e10)

    def exact_kl(self, standard, prior):
        return gamma_kl(standard, prior)


def test_priors_are_torchs_or_pyros():
    q = NaturalInverseGamma(torch.tensor([-2.0, -1.0]).double())
    inverse = NaturalGamma(torch.tensor([2.0, -1.0]).double())
    for prior in (InverseGamma(*tensors(3.0, 0.5)), dist.InverseGamma(*tensors(3.0, 0.5))):
        assert natural_class(prior) is NaturalInverseGamma
        assert_close(kl_divergence(q, prior), kl_divergence(inverse, dist.Gamma(*tensors(3.0, 0.5))))
