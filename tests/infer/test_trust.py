"""Draws for ArviZ, k-hat, calibration and alignment, against closed forms and known answers."""

import itertools
import math
import warnings

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pyro_fmvae import align_labels, khat, to_arviz, vsbc

N, NOISE = 12, 1.0
X = torch.linspace(-1.0, 2.0, N, dtype=torch.float64)


@pytest.fixture
def arviz():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("arviz")


def program(x=None):
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    with pyro.plate("data", N):
        return pyro.sample("x", dist.Normal(mu, NOISE), obs=x)


class Posterior(nn.Module):
    """The exact posterior of the mean, with another scale and place if asked for."""

    def __init__(self, x, spread=1.0, shift=0.0):
        super().__init__()
        variance = 1 / (N / NOISE**2 + 1 / 4)
        self.loc = variance * x.sum() / NOISE**2 + shift * math.sqrt(variance)
        self.scale = spread * math.sqrt(variance)

    def forward(self, x=None):
        pyro.sample("mu", dist.Normal(self.loc, self.scale))


def leave_one_out():
    """The log-density of each point under the posterior of all others, summed."""
    total = 0.0
    for i in range(N):
        others = torch.cat([X[:i], X[i + 1 :]])
        variance = 1 / (len(others) / NOISE**2 + 1 / 4)
        total += dist.Normal(variance * others.sum(), math.sqrt(variance + NOISE**2)).log_prob(X[i])
    return float(total)


def test_leave_one_out_of_arviz_is_that_of_the_closed_form(arviz):
    found = to_arviz(Posterior(X), program, X, num_samples=1000, num_chains=2)
    assert found.posterior["mu"].shape == (2, 500)
    assert found.log_likelihood["x"].shape == (2, 500, N)
    result = arviz.loo(found)
    elpd = result.elpd_loo if hasattr(result, "elpd_loo") else result.elpd  # from ArviZ 1.0 on
    assert abs(elpd - leave_one_out()) < 0.1
    own = torch.as_tensor(found.posterior["mu"].values[1, 3])
    assert_close(torch.as_tensor(found.log_likelihood["x"].values[1, 3]), dist.Normal(own, NOISE).log_prob(X))


def test_arviz_diagnoses_and_compares(arviz):
    def no_mean(x):
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        with pyro.plate("data", N):
            pyro.sample("x", dist.Normal(0.0, 0.5 + scale), obs=x)

    def halves(x):
        pyro.sample("scale", dist.HalfNormal(0.1))

    right = to_arviz(Posterior(X), program, X, num_samples=1000, num_chains=2)
    wrong = to_arviz(halves, no_mean, X, num_samples=1000, num_chains=2)
    assert list(arviz.compare({"right": right, "wrong": wrong}).index) == ["right", "wrong"]
    assert abs(float(arviz.rhat(right)["mu"]) - 1) < 0.02
    assert float(arviz.ess(right)["mu"]) > 500
    if hasattr(arviz, "waic"):  # not from ArviZ 1.0 on
        assert abs(arviz.waic(right).elpd_waic - leave_one_out()) < 0.1


def test_points_of_a_mixture_have_the_density_without_their_assignment(arviz):
    def mixture(x):
        with pyro.plate("components", 2):
            mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        with pyro.plate("data", N):
            z = pyro.sample("z", dist.Categorical(torch.tensor([0.3, 0.7])))
            pyro.sample("x", dist.Normal(mu[z], 1.0), obs=x)

    draws = torch.tensor([[0.0, 1.0], [-1.0, 3.0], [2.0, 2.0]])
    found = to_arviz({"mu": draws}, mixture, X).log_likelihood["data"].values[0]
    weights = dist.Categorical(torch.tensor([0.3, 0.7]))
    for row, mu in zip(found, draws, strict=True):
        exact = dist.MixtureSameFamily(weights, dist.Normal(mu, 1.0)).log_prob(X)
        assert_close(torch.as_tensor(row), exact)


def test_masked_points_and_latent_sites_of_points_are_no_data(arviz):
    there = X > 0

    def with_gaps(x, discrete=False):
        mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        with pyro.plate("data", N):
            z = pyro.sample("z", dist.Categorical(torch.tensor([0.3, 0.7]))) if discrete else 0
            own = pyro.sample("own", dist.Normal(mu, torch.tensor([1.0, 2.0])[z]))
            with poutine.mask(mask=there):
                pyro.sample("x", dist.Normal(own, torch.tensor([0.5, 1.0])[z]), obs=x)

    own = torch.linspace(-1.0, 1.0, N)
    draws = {"mu": torch.zeros(1), "own": own.unsqueeze(0)}
    x = X.where(there, 100.0)
    found = to_arviz(draws, with_gaps, x).log_likelihood["x"].values[0, 0]
    assert_close(torch.as_tensor(found), dist.Normal(own, 0.5).log_prob(x).where(there, 0.0))
    found = to_arviz(draws, with_gaps, x, discrete=True).log_likelihood["data"].values[0, 0]
    given = dist.Normal(0.0, torch.tensor([1.0, 2.0])).log_prob(own.unsqueeze(-1))
    weights = (torch.tensor([0.3, 0.7]).log() + given).log_softmax(-1)
    of_x = dist.Normal(own.unsqueeze(-1), torch.tensor([0.5, 1.0])).log_prob(x.unsqueeze(-1))
    exact = (weights + of_x).logsumexp(-1).where(there, 0.0)
    assert_close(torch.as_tensor(found), exact.to(torch.as_tensor(found).dtype))


def test_latent_sites_of_points_without_draws_are_integrated_out(arviz):
    x = torch.stack([X, X + 1.5], 0)

    def local(x, there=True):
        mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        tau = pyro.sample("tau", dist.Gamma(2.0, 1.0))
        with pyro.plate("data", N):
            own = pyro.sample("own", dist.Normal(mu, tau.rsqrt()))
            with pyro.plate("twice", 2), poutine.mask(mask=there):
                pyro.sample("x", dist.Normal(own, 0.7), obs=x)
        pyro.sample("all", dist.Normal(mu, 1.0), obs=torch.tensor(0.4))

    draws = {"mu": torch.tensor([0.2, -1.0]), "tau": torch.tensor([1.0, 4.0])}
    there = torch.ones(2, N, dtype=torch.bool)
    there[1, :4] = False
    for masked in (False, True):
        args = (x, there) if masked else (x,)
        densities = to_arviz(draws, local, *args).log_likelihood
        assert set(densities) == {"data", "all"}
        of_all = dist.Normal(draws["mu"], 1.0).log_prob(torch.tensor(0.4)).double()
        assert_close(torch.as_tensor(densities["all"].values[0]).double(), of_all)
        found = densities["data"].values[0]
        for row, mu, tau in zip(found, draws["mu"], draws["tau"], strict=True):
            covariance = 1 / tau + 0.49 * torch.eye(2, dtype=torch.float64)
            both = dist.MultivariateNormal(mu.double().expand(2), covariance).log_prob(x.mT)
            one = dist.Normal(mu.double(), (1 / tau.double() + 0.49).sqrt()).log_prob(x[0])
            exact = both.where(there[1], one) if masked else both
            assert_close(torch.as_tensor(row), exact, rtol=1e-5, atol=1e-5)


def test_vectors_of_points_are_integrated_out(arviz):
    x = torch.stack([X, X + 1.5], -1)

    def local(x):
        mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        with pyro.plate("data", N):
            own = pyro.sample("own", dist.Normal(mu, 1.0).expand([2]).to_event(1))
            pyro.sample("x", dist.Normal(own, 0.7).to_event(1), obs=x)

    found = to_arviz({"mu": torch.tensor([0.2])}, local, x).log_likelihood["data"].values[0, 0]
    exact = dist.Normal(0.2, math.sqrt(1.49)).log_prob(x.double()).sum(-1)
    assert_close(torch.as_tensor(found), exact, rtol=1e-5, atol=1e-5)


def test_what_obs_mask_leaves_unobserved_has_no_density(arviz):
    there = X > 0

    def with_gaps(x):
        mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        with pyro.plate("data", N):
            pyro.sample("x", dist.Normal(mu, NOISE), obs=x, obs_mask=there)

    variance = 1 / (there.sum() / NOISE**2 + 1 / 4)
    loc = variance * X[there].sum() / NOISE**2
    assert khat(with_gaps, lambda x: pyro.sample("mu", dist.Normal(loc, variance.sqrt())), X) == -math.inf
    found = to_arviz({"mu": torch.tensor([0.3])}, with_gaps, X).log_likelihood["x_observed"].values[0, 0]
    exact = dist.Normal(0.3, NOISE).log_prob(X).where(there, 0.0)
    assert_close(torch.as_tensor(found), exact, rtol=1e-5, atol=1e-5)


def test_bad_draws_are_refused(arviz):
    with pytest.raises(ValueError, match=r"^posterior: expected the same number .* multiple of 2, got \[3\]"):
        to_arviz({"mu": torch.zeros(3)}, num_chains=2)
    with pytest.raises(ValueError, match=r"^posterior: expected values of site 'mu', too"):
        to_arviz({"nu": torch.zeros(3)}, program, X)


def test_khat_is_small_at_the_posterior_and_large_beside_it(arviz):
    assert khat(program, Posterior(X, spread=1.2), X, num_samples=400) < 0.5
    assert khat(program, Posterior(X, spread=0.3, shift=2.0), X, num_samples=400) > 0.7


@pytest.mark.parametrize("discrete", [False, True])
def test_khat_is_that_of_the_masked_and_scaled_density(arviz, discrete):
    there = X > 0

    def masked_and_scaled(x):
        mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        with pyro.plate("data", N), poutine.mask(mask=there), poutine.scale(scale=3.0):
            z = pyro.sample("z", dist.Bernoulli(0.5)) if discrete else 0.0
            pyro.sample("x", dist.Normal(mu + 0 * z, NOISE), obs=x)

    def exact(x):
        variance = 1 / (3 * there.sum() / NOISE**2 + 1 / 4)
        pyro.sample("mu", dist.Normal(variance * 3 * X[there].sum() / NOISE**2, variance.sqrt()))

    assert khat(masked_and_scaled, exact, X.where(there, 5.0), num_samples=200) < 0.4


def test_khat_counts_latent_sites_of_points_once(arviz):
    def local(x, discrete):
        with pyro.plate("data", N):
            z = pyro.sample("z", dist.Categorical(torch.tensor([0.3, 0.7]))) if discrete else 0
            own = pyro.sample("own", dist.Normal(0.0, 1.0))
            pyro.sample("x", dist.Normal(own, torch.ones(2)[z]), obs=x)

    def guide_of_same_draws():
        numbers = iter(torch.randn(401, N, generator=torch.Generator().manual_seed(0)))

        class Same(dist.Normal):
            def __call__(self, *shape):
                return self.loc + self.scale * next(numbers)

        def guide(x, discrete):
            with pyro.plate("data", N):
                pyro.sample("own", Same(x.float() / 2, 0.6))

        return guide

    apart, together = (
        khat(local, guide_of_same_draws(), X, discrete=discrete, num_samples=400)
        for discrete in (False, True)
    )
    assert abs(apart - together) < 1e-2


def test_khat_of_the_posterior_itself_is_small(arviz):
    def known(x):
        pyro.sample("mu", dist.Normal(0.0, 2.0))

    assert khat(known, known, X, num_samples=100) < 0.0


def test_khat_needs_a_guide_of_all_continuous_sites(arviz):
    with pytest.raises(ValueError, match=r"^posterior: expected values of site 'mu', too"):
        khat(program, lambda x: None, X, num_samples=1)


def test_calibration_finds_bias_and_narrow_posteriors():
    exact = vsbc(program, Posterior, "x", num_simulations=100, num_samples=100)["mu"]
    assert exact.probabilities.shape == (100,)
    assert exact.p_values > 0.01
    assert 0.6 < exact.spread < 1.5
    narrow = vsbc(program, lambda x: Posterior(x, spread=0.3), "x", num_simulations=100, num_samples=100)
    assert narrow["mu"].spread > 1.8
    biased = vsbc(program, lambda x: Posterior(x, shift=1.5), "x", num_simulations=100, num_samples=100)
    assert biased["mu"].p_values < 1e-4
    with pytest.raises(ValueError, match=r"^data: expected the name of a site, of .* got 'y'"):
        vsbc(program, Posterior, "y")


def test_labels_are_those_before_the_permutation():
    true = torch.softmax(3 * torch.randn(30, 4), -1)
    orders = torch.stack([torch.randperm(4) for _ in range(6)])
    noisy = torch.softmax(true.log() + 0.3 * torch.randn(6, 30, 4), -1)
    shuffled = noisy.gather(2, orders.unsqueeze(1).expand(6, 30, 4))
    found = align_labels(shuffled)
    together = shuffled.gather(2, found.unsqueeze(1).expand(6, 30, 4))
    expected = noisy.gather(2, orders[0].expand(6, 30, 4))
    assert_close(together, expected)
    to_true = align_labels(shuffled, true)
    assert torch.equal(orders.gather(1, to_true), torch.arange(4).expand(6, 4))
    cost = [
        float((shuffled[1][:, list(p)].clamp(min=1e-12) * (shuffled[1][:, list(p)] / true).log()).sum())
        for p in itertools.permutations(range(4))
    ]
    best = list(itertools.permutations(range(4)))[cost.index(min(cost))]
    assert tuple(to_true[1].tolist()) == best
    with pytest.raises(ValueError, match=r"^responsibilities: expected \[S, N, K\], got \[30, 4\]"):
        align_labels(true)
