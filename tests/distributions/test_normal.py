import math

import mpmath
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import Normal

from pyro_fmvae.distributions import NaturalMultivariateNormal, NaturalNormal
from tests.distributions.family_case import AlgebraCase, Likelihood, tensors


class TestNormal(AlgebraCase):
    kind = NaturalNormal
    moderate = {  # noqa: RUF012
        "sharp": (tensors(1.0, 0.1), tensors(0.0, 2.0)),
        "wide": (tensors(-3.0, 4.0), tensors(0.5, 1.0)),
    }
    extreme = {"far": tensors(1e3, 1.0), "narrow": tensors(0.3, 1e-4)}  # noqa: RUF012
    near = {  # noqa: RUF012
        "scale": (tensors(1e4, 1.0), tensors(1e4, 1.0 + 1e-7)),
        "loc": (tensors(1.0, 1e-3), tensors(1.0 + 2.0**-30, 1e-3)),
    }
    outside = {  # noqa: RUF012
        "precision": tensors([1.0, 0.0])[0],
        "negative": tensors([1.0, 1.0])[0],
        "m": tensors([math.inf, -1.0])[0],
    }
    misshapen = {"scalar": tensors(1.0)[0], "three": tensors([1.0, -1.0, 1.0])[0]}  # noqa: RUF012
    likelihoods = {  # noqa: RUF012
        "Normal": Likelihood(
            lambda loc: dist.Normal(loc, 0.7),
            lambda x: torch.stack([x, torch.full_like(x, -0.5)], -1) / 0.49,
            lambda family, standard, dtype: family.predictive_normal(standard, dtype, scale=0.7),
        ),
    }

    def log_density(self, standard, value):
        return Normal(*standard).log_prob(value)

    def draw(self, standard, count):
        return Normal(*standard).sample((count,))

    def exact_kl(self, standard, prior):
        with mpmath.workdps(60):
            (m, scale), (m0, scale0) = standard, prior
            ratio = (scale / scale0) ** 2
            return (ratio - 1 - mpmath.log(ratio) + ((m - m0) / scale0) ** 2) / 2


@pytest.mark.parametrize("scale", [1e-3, 1e-8, 1e-12])
@pytest.mark.parametrize("kind", [NaturalNormal, NaturalMultivariateNormal])
def test_kl_of_sharp_posteriors_under_vague_priors(kind, scale):
    """Each tenfold scale of the prior costs log 10, also where the ratio of variances is below 1e-16."""
    shape = (1,) if kind is NaturalMultivariateNormal else ()
    loc, one = torch.zeros(shape, dtype=torch.float64), torch.ones(shape * 2, dtype=torch.float64)
    natural, prior = kind.family.natural(loc, scale * one), kind.family.natural(loc, 1e5 * one)
    assert kind.family.kl(natural, prior).item() == pytest.approx(math.log(1e5 / scale) - 0.5, rel=1e-12)
