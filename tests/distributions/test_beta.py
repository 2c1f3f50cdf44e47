import mpmath
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import Beta, Uniform, kl_divergence
from torch.testing import assert_close

from pyro_fmvae.distributions import NaturalBeta
from pyro_fmvae.distributions.exponential_family import natural_class
from pyro_fmvae.infer import natural_prior
from tests.distributions.family_case import AlgebraCase, Likelihood, tensors


class TestBeta(AlgebraCase):
    kind = NaturalBeta
    moderate = {  # noqa: RUF012
        "many": (tensors(30.0, 12.0), tensors(2.0, 1.0)),
        "few": (tensors(0.9, 3.0), tensors(1.0, 0.8)),
    }
    extreme = {"sharp": tensors(1e5, 3e4), "vague": tensors(0.1, 0.1)}  # noqa: RUF012
    near = {  # noqa: RUF012
        "same mean": (tensors(1e6, 2e6), tensors(1e6 + 1, 2e6 + 2)),
        "other mean": (tensors(1e6, 2e6), tensors(1e6 + 0.01, 2e6)),
    }
    outside = {"0": tensors([0.0, 1.0])[0], "negative": tensors([1.0, -1.0])[0]}  # noqa: RUF012
    misshapen = {"scalar": tensors(1.0)[0], "three": tensors([1.0, 1.0, 1.0])[0]}  # noqa: RUF012
    likelihoods = {  # noqa: RUF012
        "Bernoulli": Likelihood(
            dist.Bernoulli,
            lambda x: torch.stack([x, 1 - x], -1),
        ),
        "NegativeBinomial": Likelihood(
            lambda p: dist.NegativeBinomial(4, p),
            lambda x: torch.stack([x, torch.full_like(x, 4.0)], -1),
        ),
        "Binomial": Likelihood(
            lambda p: dist.Binomial(6, p),
            lambda x: torch.stack([x, 6 - x], -1),
            lambda family, standard, dtype: family.predictive_binomial(standard, dtype, total_count=6),
        ),
        "Geometric": Likelihood(
            dist.Geometric,
            lambda x: torch.stack([torch.ones_like(x), x], -1),
        ),
    }

    def log_density(self, standard, value):
        return Beta(*standard).log_prob(value)

    def draw(self, standard, count):
        return Beta(*standard).sample((count,)).clamp(1e-10, 1 - 1e-10)

    def exact_kl(self, standard, prior):
        def normalizer(a, b):
            return mpmath.loggamma(a) + mpmath.loggamma(b) - mpmath.loggamma(a + b)

        with mpmath.workdps(60):
            means = [mpmath.digamma(c) - mpmath.digamma(sum(standard)) for c in standard]
            gap = sum((c - c0) * mean for c, c0, mean in zip(standard, prior, means, strict=True))
            return gap - normalizer(*standard) + normalizer(*prior)


def test_a_uniform_between_0_and_1_is_a_beta():
    q = NaturalBeta(torch.tensor([2.0, 3.0]).double())
    expected = kl_divergence(Beta(*tensors(2.0, 3.0)), Beta(*tensors(1.0, 1.0)))
    for prior in (Uniform(0.0, 1.0), dist.Uniform(torch.zeros(4), torch.ones(4))):
        assert natural_class(prior) is NaturalBeta
        assert_close(kl_divergence(q, prior), expected.expand(prior.batch_shape))
    for other in (Uniform(0.0, 2.0), dist.Uniform(torch.tensor([0.0, -1.0]), torch.ones(2))):
        with pytest.raises(ValueError, match="the domain of BetaFamily"):
            natural_prior(other)
