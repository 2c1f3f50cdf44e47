import mpmath
import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from torch.distributions import Wishart, kl_divergence
from torch.testing import assert_close

from pyro_fmvae.distributions import GAMMA, WISHART, NaturalWishart, RateWishart
from pyro_fmvae.distributions.exponential_family import natural_class
from tests.distributions.family_case import AlgebraCase, Likelihood, tensors

TRIL = [[2.0, 0.0, 0.0], [-1.0, 0.5, 0.0], [0.3, 0.2, 1.5]]


def torchs(standard):
    """The distribution as torch has it."""
    a, tril = standard
    dim = tril.shape[-1]
    return Wishart(2 * a + dim - 1, precision_matrix=2 * tril @ tril.mT, validate_args=False)


def squares(x):
    """λ2 of an observation around 0.3."""
    gap = x - 0.3
    rows, columns = torch.tril_indices(x.shape[-1], x.shape[-1])
    return gap[..., rows] * gap[..., columns] * torch.where(rows == columns, -0.5, -1.0)


def around(precision):
    return dist.MultivariateNormal(torch.full(precision.shape[-1:], 0.3).double(), precision_matrix=precision)


class TestWishart(AlgebraCase):
    kind = NaturalWishart
    moderate = {  # noqa: RUF012
        "1": (tensors(30.0, [[3.5]]), tensors(1.5, [[0.8]])),
        "2": (tensors(4.5, [[1.0, 0.0], [0.4, 0.8]]), tensors(1.5, [[1.0, 0.0], [-0.2, 1.2]])),
        "3": (tensors(2.2, TRIL), tensors(3.0, [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])),
    }
    extreme = {  # noqa: RUF012
        "prior": tensors(0.01, [[0.1, 0.0], [0.0, 0.1]]),
        "many": tensors(1e5, [[200.0, 0.0], [-300.0, 40.0]]),
    }
    near = {  # noqa: RUF012
        "ridge": (
            tensors(1e6, [[2.0, 0.0], [-1.0, 0.5]]),
            tensors(1e6 + 1, [[2.0 * (1 + 5e-7), 0.0], [-1.0, 0.5 * (1 - 3e-7)]]),
        ),
    }
    outside = {  # noqa: RUF012
        "a": tensors([0.0, -1.0])[0],
        "B": tensors([1.0, -1.0, 4.0, -1.0])[0],
    }
    misshapen = {str(size): torch.ones(size).double() for size in ((), (1,), (3,), (6,))}  # noqa: RUF012
    likelihoods = {  # noqa: RUF012
        "MultivariateNormal": Likelihood(
            around,
            lambda x: torch.cat([torch.full_like(x[..., :1], 0.5), squares(x)], -1),
            lambda family, standard, dtype: family.predictive_normal(
                standard, dtype, torch.full(standard[1].shape[-1:], 0.3)
            ),
        ),
    }

    def log_density(self, standard, value):
        return torchs(standard).log_prob(value)

    def draw(self, standard, count):
        a, tril = standard
        dim, seed = tril.shape[-1], int(torch.randint(2**31, ()))
        scale = torch.linalg.inv(2 * tril @ tril.mT).numpy()
        draws = scipy.stats.wishart(2 * a.item() + dim - 1, scale, seed).rvs(count)
        return torch.as_tensor(draws).reshape(count, dim, dim)

    def exact_kl(self, standard, prior):
        with mpmath.workdps(60):
            (a, tril), (a0, tril0) = standard, prior
            dim = len(tril)
            shapes, shapes0 = ([x + mpmath.mpf(d) / 2 for d in range(dim)] for x in (a, a0))
            factor = tril**-1 * tril0
            trace, log_det = sum(x**2 for x in factor), 2 * mpmath.log(mpmath.det(factor))
            total = sum(
                mpmath.loggamma(n0) - mpmath.loggamma(n) - (n0 - n) * mpmath.digamma(n)
                for n, n0 in zip(shapes, shapes0, strict=True)
            )
            return total - shapes0[-1] * log_det + shapes[-1] * (trace - dim)


def test_priors_are_torchs():
    standard, prior = TestWishart.moderate["3"]
    q, a = NaturalWishart(WISHART.natural(*standard)), prior[0]
    for each in (torchs(prior), dist.Wishart(2 * a + 2, scale_tril=torchs(prior).scale_tril)):
        assert natural_class(each) is NaturalWishart
        assert_close(kl_divergence(q, each), WISHART.kl(q.natural, WISHART.natural(*prior)))
    assert_close(RateWishart(*standard).mean, torchs(standard).mean)


def test_one_dimension_is_the_gamma():
    (a, tril), (a0, tril0) = TestWishart.moderate["1"]
    ours = [WISHART.natural(*each) for each in ((a, tril), (a0, tril0))]
    theirs = [GAMMA.natural(x, y.square().squeeze()) for x, y in ((a, tril), (a0, tril0))]
    assert_close(ours[0], theirs[0])
    assert_close(WISHART.kl(*ours), GAMMA.kl(*theirs))
    assert_close(WISHART.mean_stats(ours[0]), GAMMA.mean_stats(theirs[0]))


def test_wrong_parameters():
    fn = RateWishart(torch.ones(4), torch.eye(2))
    assert fn.expand(torch.Size((3, 4))).rate_tril.shape == (3, 4, 2, 2)
    with pytest.raises(ValueError, match="parameter concentration"):
        RateWishart(torch.zeros(()), torch.eye(2), validate_args=True)
    with pytest.raises(ValueError, match=r"rate_tril: expected shape \[..., D, D\], got \[2, 3\]"):
        RateWishart(torch.ones(()), torch.ones(2, 3))
    with pytest.raises(ValueError, match="support"):
        fn.log_prob(-torch.eye(2).expand(4, 2, 2))
