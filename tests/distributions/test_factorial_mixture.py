import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.distributions import Categorical, Independent, Normal

from pyro_fmvae.capture.recording import record
from pyro_fmvae.distributions import (
    NORMAL_GAMMA,
    FactorialMixture,
    NaturalDirichlet,
    NaturalNormalGamma,
    NormalGamma,
)

I, K, D = 2, 3, 2  # noqa: E741


def gaussian_mixture(*batch, factors=I, dim=D):
    weights = dist.Dirichlet(torch.ones(*batch, factors, K)).sample()
    shape = (*batch, factors, K, dim)
    return FactorialMixture(weights, Independent(Normal(3 * torch.randn(shape), 0.5 + torch.rand(shape)), 1))


def student_mixture(**kwargs):
    return FactorialMixture.predictive(*posteriors(**kwargs))


def posteriors(factors=I, dim=D, spread=True):
    m = torch.randn(factors, K, dim)
    a = torch.linspace(3, 5, factors * K).view(factors, K) if spread else torch.full((factors, K), 3.0)
    q = NormalGamma(m, 0.3 + torch.rand(factors, K), a, 1 + torch.rand(factors, K, dim))
    return dist.Dirichlet(1 + 4 * torch.rand(factors, 1, K)), q


def test_log_prob_is_the_sum_over_all_codes():
    """p(z) = Σ_{k_1, k_2} Π_i π_{i k_i} p(z_i | k_i), over all K² codes."""
    mixture = gaussian_mixture()
    z = torch.randn(I, D)
    normal = mixture.components.base_dist
    total = torch.zeros(())
    for k1 in range(K):
        for k2 in range(K):
            loc = torch.stack([normal.loc[0, k1], normal.loc[1, k2]])
            scale = torch.stack([normal.scale[0, k1], normal.scale[1, k2]])
            total += (
                mixture.weights[0, k1] * mixture.weights[1, k2] * Normal(loc, scale).log_prob(z).sum().exp()
            )
    torch.testing.assert_close(mixture.log_prob(z), total.log())


@pytest.mark.parametrize("make", [gaussian_mixture, student_mixture])
def test_integrates_to_one(make):
    mixture = make(factors=1, dim=1)
    u = torch.linspace(-1, 1, 200_001)[1:-1]
    z = u / (1 - u**2)  # the whole line; integrated by the trapezoid rule
    density = mixture.log_prob(z.view(-1, 1, 1)).exp() * (1 + u**2) / (1 - u**2) ** 2
    torch.testing.assert_close(torch.trapezoid(density, u), torch.tensor(1.0), rtol=0, atol=1e-7)


def test_batches():
    mixture = gaussian_mixture(4)
    assert (mixture.batch_shape, mixture.event_shape) == ((4,), (I, D))
    z = mixture.sample((5,))
    assert z.shape == (5, 4, I, D)
    log_prob = mixture.log_prob(z)
    assert log_prob.shape == (5, 4)
    normal = mixture.components.base_dist
    one = FactorialMixture(mixture.weights[2], Independent(Normal(normal.loc[2], normal.scale[2]), 1))
    torch.testing.assert_close(log_prob[:, 2], one.log_prob(z[:, 2]))
    torch.testing.assert_close(mixture.component_logits(z).logsumexp(-1).sum(-1), log_prob)


@pytest.mark.parametrize("make", [gaussian_mixture, student_mixture])
def test_expand(make):
    mixture = make()
    wide = mixture.expand(torch.Size((6, 4)))
    assert (wide.batch_shape, wide.event_shape) == ((6, 4), (I, D))
    z = wide.sample()
    assert z.shape == (6, 4, I, D)
    torch.testing.assert_close(wide.log_prob(z), mixture.log_prob(z))
    assert wide.log_prob(z[0, 0]).shape == (6, 4)


def test_sample_moments(assert_mean, device):
    mixture = gaussian_mixture()
    normal = mixture.components.base_dist
    weights, loc, scale = (t.to(device) for t in (mixture.weights, normal.loc, normal.scale))
    mixture = FactorialMixture(weights, Independent(Normal(loc, scale), 1))
    z = mixture.sample((50_000,))
    assert_mean(z, (weights.unsqueeze(-1) * loc).sum(-2))
    assert_mean(z**2, (weights.unsqueeze(-1) * (loc**2 + scale**2)).sum(-2))


def test_samples_follow_the_density(assert_mean):
    """E[f(z)] over draws equals the integral of f against exp(log_prob), with bounded f."""
    mixture = student_mixture(factors=1, dim=1)
    grid = torch.linspace(-60, 60, 120_001)
    density = mixture.log_prob(grid.view(-1, 1, 1)).exp()
    z = mixture.sample((50_000,)).flatten()
    for threshold in (-1.0, 0.0, 1.0):
        expected = torch.trapezoid(density * (grid / 2 - threshold).tanh(), grid)
        assert_mean((z / 2 - threshold).tanh(), expected)


def test_sample_given(assert_mean):
    mixture = gaussian_mixture()
    codes = torch.tensor([2, 0])
    z = mixture.sample_given(codes.expand(20_000, I))
    normal = mixture.components.base_dist
    loc, scale = (torch.stack([t[0, 2], t[1, 0]]) for t in (normal.loc, normal.scale))
    assert_mean(z, loc)
    assert_mean((z - loc) ** 2, scale**2)
    assert mixture.sample_given(codes).shape == (I, D)
    assert mixture.expand(torch.Size((5,))).sample_given(codes.expand(7, 5, I)).shape == (7, 5, I, D)


@pytest.mark.parametrize("code", [-1, K, 1.0])
def test_components_out_of_range_are_refused(code):
    codes = torch.tensor([[0, code]])
    with pytest.raises(ValueError, match=r"codes: expected integers from 0 to 2, got \["):
        gaussian_mixture().sample_given(codes)


def test_sampling_asks_no_tensor_for_its_value():
    mixture = gaussian_mixture()
    recording = record(lambda shift: (mixture.sample() + shift,), [torch.zeros(())])
    torch.manual_seed(3)
    (replayed,) = recording.function()(torch.zeros(()), *recording.state)
    torch.manual_seed(3)
    assert torch.equal(replayed, mixture.sample())


def test_predictive_weights(assert_mean):
    q_weights, q = posteriors()
    mixture = FactorialMixture.predictive(q_weights, q)
    c = q_weights.concentration.squeeze(1)
    torch.testing.assert_close(mixture.weights, c / c.sum(-1, keepdim=True))
    assert_mean(q_weights.sample((50_000,)).squeeze(-2), mixture.weights)


def test_predictive_components(assert_mean):
    """p(z | k) = E[N(z; μ, 1/α)] over (μ, α), at several z, far in the tail too."""
    _, q = posteriors()
    mixture = FactorialMixture.predictive(*posteriors()[:1], q)
    loc, precision = q.sample((100_000,)).unbind(-2)
    for z in (torch.zeros(D), torch.full((D,), 1.5), torch.tensor([-3.0, 2.0])):
        densities = Normal(loc, precision.rsqrt()).log_prob(z).sum(-1).exp()
        assert_mean(densities, mixture.components.log_prob(z).exp())


def test_predictive_student_is_equation_10():
    m, s, a, b = 0.7, 2.0, 3.0, 5.0
    q = NormalGamma(torch.full((1, 1, 1), m), s, a, b)
    mixture = FactorialMixture.predictive(dist.Dirichlet(torch.ones(1, 1)), q)
    z, squared_scale, df = 2.2, (s + 1) / s * b / a, 2 * a
    expected = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(math.pi * df * squared_scale)
    expected -= (df + 1) / 2 * math.log1p((z - m) ** 2 / (df * squared_scale))
    torch.testing.assert_close(mixture.log_prob(torch.full((1, 1), z)), torch.tensor(expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_predictive_of_natural_posteriors(dtype):
    q_weights, q = posteriors()
    natural = NaturalNormalGamma(NORMAL_GAMMA.natural(*q.standard), dtype=torch.float32)
    reference = FactorialMixture.predictive(q_weights, q)
    for shape in ((I, 1), (I,)):
        c = NaturalDirichlet(q_weights.concentration.view(*shape, K))
        mixture = FactorialMixture.predictive(c, natural, dtype=dtype)
        z = mixture.sample()
        assert z.dtype == mixture.log_prob(z).dtype == dtype
        rtol = 1e-5 if dtype == torch.float32 else 1e-10
        expected = reference.log_prob(z.double())
        torch.testing.assert_close(mixture.log_prob(z).double(), expected, rtol=rtol, atol=rtol)


def test_predictive_with_leading_dimensions():
    q_weights, q = posteriors()
    wide = FactorialMixture.predictive(
        q_weights.expand(torch.Size((4, I, 1))), q.expand(torch.Size((4, I, K)))
    )
    assert wide.batch_shape == (4,)
    z = wide.sample()
    torch.testing.assert_close(wide.log_prob(z), FactorialMixture.predictive(q_weights, q).log_prob(z))


def test_draws_from_the_prior_are_finite_in_float32():
    q = NormalGamma(torch.zeros(I, K, D, dtype=torch.float32), 1.0, 0.01, 0.01)
    mixture = FactorialMixture.predictive(dist.Dirichlet(torch.ones(I, K)), q, dtype=torch.float32)
    z = mixture.sample((2000,))
    assert z.isfinite().all()


NORMAL = Normal(torch.zeros(I, K, D), 1.0)
UNIFORM = torch.full((I, K), 1 / K)


@pytest.mark.parametrize(
    ("weights", "components", "message"),
    [
        (UNIFORM, NORMAL, "components: expected batch shape"),
        (UNIFORM[:1], Independent(NORMAL, 1), r"expected batch shape \[1, 3\]"),
        (UNIFORM[0], Independent(NORMAL, 1), "expected batch shape"),
        (UNIFORM, Independent(NORMAL, 2), "expected batch shape"),
        (2 * UNIFORM, Independent(NORMAL, 1), "parameter weights"),
    ],
)
def test_errors(weights, components, message):
    with pytest.raises(ValueError, match=message):
        FactorialMixture(weights, components)


def test_predictive_refuses_transposed_weights():
    _, q = posteriors()
    with pytest.raises(ValueError, match="components: expected batch shape"):
        FactorialMixture.predictive(dist.Dirichlet(torch.ones(K, 1, I)), q)


def test_values_are_validated():
    mixture = gaussian_mixture()
    for bad in (torch.zeros(I, D + 1), torch.full((I, D), torch.nan)):
        with pytest.raises(ValueError):
            mixture.log_prob(bad)


def test_in_a_program():
    mixture = gaussian_mixture()

    def model():
        with pyro.plate("data", 4):
            return pyro.sample("z", mixture)

    trace = poutine.trace(model).get_trace()
    trace.compute_log_prob()
    site = trace.nodes["z"]
    assert site["value"].shape == (4, I, D)
    torch.testing.assert_close(site["log_prob"], mixture.log_prob(site["value"]))


def test_frequencies_of_components(assert_mean):
    weights = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    loc = torch.tensor([0.0, 100.0, 200.0]).view(1, K, 1).expand(I, K, 1)
    z = FactorialMixture(weights, Independent(Normal(loc, 1.0), 1)).sample((20_000,))
    codes = (z.squeeze(-1) / 100).round().long()
    assert_mean(torch.nn.functional.one_hot(codes, K).double(), Categorical(weights).probs)
