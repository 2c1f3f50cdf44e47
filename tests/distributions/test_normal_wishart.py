import math

import numpy as np
import pyro
import pytest
import scipy.stats
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from torch.distributions import MultivariateNormal, Wishart, kl_divergence
from torch.testing import assert_close

from pyro_fmvae.distributions import (
    NORMAL_GAMMA,
    NORMAL_WISHART,
    NaturalNormalWishart,
    NaturalParameter,
    NormalWishart,
)
from tests.distributions.family_case import FamilyCase, assert_mean, tensors

TRIL = [[2.0, 0.0, 0.0], [-1.0, 0.5, 0.0], [0.3, 0.2, 1.5]]


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
            tensors([0.2, 0.0, 1.0], 0.3, 1.2, TRIL),
            tensors([0.0, 1.0, -1.0], 1.0, 3.0, [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        ),
    }
    extreme = {  # noqa: RUF012
        "prior": tensors([0.0, 0.0], 1.0, 0.01, [[0.1, 0.0], [0.0, 0.1]]),
        "many": tensors([0.3, -1.0], 2e5, 1e5, [[200.0, 0.0], [-300.0, 40.0]]),
        "sharp": tensors([1.0, 0.0, -1.0], 1e3, 500.0, TRIL),
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


def random_standard(*batch, dim=3):
    """Standard parameters of a batch."""
    tril = 0.5 * torch.randn(*batch, dim, dim).tril(-1) + torch.diag_embed(0.5 + torch.rand(*batch, dim))
    return torch.randn(*batch, dim), 0.5 + 3 * torch.rand(batch), 1 + 4 * torch.rand(batch), tril


def both(standard, dtype=torch.float64):
    """One distribution, by standard and by natural parameters."""
    natural = NaturalParameter(NORMAL_WISHART.natural(*standard))
    return NormalWishart(*(t.to(dtype) for t in standard)), NaturalNormalWishart(natural, dtype)


def test_one_dimension_is_the_normal_gamma_family():
    m, s, a, tril = random_standard(5, dim=1)
    _, s0, a0, tril0 = random_standard(5, dim=1)
    full, diag = (m, s, a, tril), (m, s, a, tril.square().squeeze(-1))
    natural = NORMAL_WISHART.natural(*full)
    prior = NORMAL_WISHART.natural(m + 1, s0, a0, tril0)
    assert_close(natural, NORMAL_GAMMA.natural(*diag))
    for name in ("log_normalizer", "mean_stats", "in_domain"):
        assert_close(getattr(NORMAL_WISHART, name)(natural), getattr(NORMAL_GAMMA, name)(natural))
    assert_close(NORMAL_WISHART.kl(natural, prior), NORMAL_GAMMA.kl(natural, prior))
    x, variance, weights = torch.randn(7, 1), torch.rand(7, 1), torch.rand(7, 5)
    for name, *data in (
        ("data_stats", x, variance),
        ("conjugate_update", prior, weights, x, variance, 2.5),
        ("expected_log_likelihood", x, variance, NORMAL_GAMMA.mean_stats(natural)),
    ):
        assert_close(getattr(NORMAL_WISHART, name)(*data), getattr(NORMAL_GAMMA, name)(*data))
    for dtype in (torch.float32, torch.float64):
        ours, theirs = (
            family.predictive(standard, dtype).log_prob(x.unsqueeze(1).to(dtype))
            for family, standard in ((NORMAL_WISHART, full), (NORMAL_GAMMA, diag))
        )
        assert ours.dtype == dtype
        assert_close(ours, theirs)


def test_each_dimension_by_itself_is_normal_gamma():
    """That is what hyperpriors are carried over by, from independent dimensions to full covariances."""
    m, s, a, tril = random_standard()
    draws = NormalWishart(m, s, a, tril).sample((50_000,))
    precision = 1 / precision_of(draws).inverse().diagonal(dim1=-2, dim2=-1)
    marginals = torch.stack([draws[:, 0], precision], -2).unsqueeze(-1)
    for d in range(3):
        alone = m[d : d + 1], s, a, (tril @ tril.T)[d, d].view(1)
        stats = NORMAL_GAMMA.stats(marginals[..., d, :])
        assert_mean(stats, NORMAL_GAMMA.stats_from_standard(*alone))


def test_conjugate_update_is_that_of_the_textbook():
    """Bishop (2006), equations 10.51-10.53 and 10.60-10.63."""
    standard = random_standard()
    m0, s0, dof0, inverse_scale0 = (t.numpy() for t in textbook(standard))
    gamma, x = torch.rand(9, 2), torch.randn(9, 3)
    prior = NORMAL_WISHART.natural(*standard).expand(2, -1)
    natural = NORMAL_WISHART.conjugate_update(prior, gamma, x, torch.zeros_like(x))
    for k, found in enumerate(
        zip(*map(np.asarray, textbook(NORMAL_WISHART.unpack(natural))[:3]), strict=True)
    ):
        weights = gamma[:, k].numpy()
        count = weights.sum()
        mean = weights @ x.numpy() / count
        scatter = sum(w * np.outer(p - mean, p - mean) for w, p in zip(weights, x.numpy(), strict=True))
        shrink = s0 * count / (s0 + count) * np.outer(mean - m0, mean - m0)
        expected = (s0 * m0 + count * mean) / (s0 + count), s0 + count, dof0 + count
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)
        ours = textbook([t[k] for t in NORMAL_WISHART.unpack(natural)])[3]
        np.testing.assert_allclose(ours, inverse_scale0 + scatter + shrink, rtol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("which", [0, 1])
def test_shapes_and_moments(which, dtype, device):
    standard = tuple(t.to(device) for t in random_standard(4, 2))
    fn = both(standard, dtype)[which]
    assert (fn.batch_shape, fn.event_shape) == ((4, 2), (4, 3))
    draws = fn.sample((20_000,))
    assert draws.shape == (20_000, 4, 2, 4, 3) and draws.dtype == fn.mean.dtype == dtype
    assert fn.support.check(draws).all()
    assert_mean(draws.double(), fn.mean.double())
    wide = fn.expand(torch.Size((3, 4, 2)))
    assert type(wide) is type(fn) and wide.mean.shape == (3, 4, 2, 4, 3)
    assert_close(wide.log_prob(draws[0]), fn.log_prob(draws[0]).expand(3, 4, 2))


def test_draws_and_gradients_at_a_vague_prior_are_finite_in_float32():
    leaves = [torch.zeros(4000, 3), torch.full((4000,), 1.0), torch.full((4000,), 0.01)]
    leaves = [t.float().requires_grad_() for t in (*leaves, 0.1 * torch.eye(3).expand(4000, 3, 3))]
    fn = NormalWishart(*leaves)
    draws = fn.rsample()
    assert draws.dtype == torch.float32 and fn.support.check(draws).all()
    log_prob = fn.log_prob(draws).sum()
    log_prob.backward()
    assert log_prob.isfinite() and all(leaf.grad.isfinite().all() for leaf in leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kl_of_two_in_standard_parameters(dtype):
    standard, prior = random_standard(2), random_standard()
    q, p = (NormalWishart(*(t.to(dtype) for t in each)) for each in (standard, prior))
    kl = kl_divergence(q, p)
    assert kl.dtype == dtype
    assert_close(kl.double(), kl_divergence(both(standard)[1], both(prior)[0]), rtol=1e-5, atol=1e-5)


GOOD = {"loc": torch.zeros(2, 3), "mean_concentration": 1.0, "concentration": 2.0, "rate_tril": 3.0}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("loc", torch.tensor([math.nan, 0.0, 0.0]), "loc"),
        ("mean_concentration", 0.0, "mean_concentration"),
        ("concentration", -1.0, "concentration"),
        ("rate_tril", -1.0, "rate_tril"),
        ("rate_tril", torch.ones(3, 3), "rate_tril"),
        ("loc", 0.0, "loc: expected a tensor"),
        ("rate_tril", torch.ones(3), r"expected loc .*got \[2, 3\], \[\], \[\], \[3\]"),
        ("concentration", torch.ones(3), r"expected loc .*\[3\]"),
    ],
)
def test_wrong_parameters(name, value, message):
    assert torch.equal(NormalWishart(**GOOD).rate_tril[1].double(), 3 * torch.eye(3))
    with pytest.raises(ValueError, match=message):
        NormalWishart(**{**GOOD, name: value})


def test_validation_of_values():
    fn = NormalWishart(**GOOD)
    value = fn.sample()
    value[1, 1, 2] = 1.0  # above the diagonal
    assert fn.support.check(value).tolist() == [True, False]
    with pytest.raises(ValueError, match="support"):
        fn.log_prob(value)


def test_determinant_of_the_precision_by_its_factor():
    """That of :func:`reference_log_prob`, by autograd."""
    factor = random_standard()[3]
    rows, columns = torch.tril_indices(3, 3)

    def precision(lower):
        whole = torch.zeros(3, 3).index_put((rows, columns), lower)
        return (whole.T @ whole)[rows, columns]

    determinant = torch.autograd.functional.jacobian(precision, factor[rows, columns]).det().abs()
    assert_close(determinant, 2**3 * (factor.diagonal() ** torch.arange(1, 4)).prod())


@pytest.mark.parametrize("autoguide", [AutoDelta, AutoNormal])
def test_autoguides(autoguide):
    def model():
        with pyro.plate("factors", 2, dim=-2), pyro.plate("components", 3, dim=-1):
            pyro.sample("loc_precision", NormalWishart(torch.ones(2), 5.0, 20.0, 3.0))

    guide = autoguide(model)
    particles = Trace_ELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=2)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), particles)
    for _ in range(150):
        svi.step()
    found = guide.median()["loc_precision"]
    assert found.shape == (2, 3, 3, 2)
    expected = NormalWishart(torch.ones(2), 5.0, 20.0, 3.0).mean
    assert_close(found, expected.expand(2, 3, 3, 2), rtol=0, atol=0.15)
