"""Natural-gradient steps with rate 1 are variational Bayes: against numpy, an own loop, and scikit-learn."""

from functools import partial
from itertools import pairwise

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI
from scipy.special import digamma, gammaln
from sklearn.mixture import BayesianGaussianMixture
from torch.testing import assert_close

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import Assignment, Component, NormalGamma
from pyro_fmvae.infer import AutoConjugate, ConjugateSVI, NaturalGradient, TraceConjugate_ELBO
from tests.infer.programs import A0, B0, C0, M0, S0, Toy, bound

frozen = partial(torch.optim.SGD, lr=0.0)


@pytest.mark.parametrize("size", [20, 5])
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_one_step_moves_to_equation_13(size, rate):
    toy = Toy()
    x = toy.data(size)
    optima = bound(toy, TraceConjugate_ELBO(), x).optimum(x, toy)
    parameters = [toy.weights.natural, toy.loc_precision.natural]
    expected = [(1 - rate) * p.detach() + rate * best for p, best in zip(parameters, optima, strict=True)]
    SVI(toy.model, toy.guide, NaturalGradient(rate, frozen), TraceConjugate_ELBO()).step(x)
    for parameter, value in zip(parameters, expected, strict=True):
        assert_close(parameter.detach(), value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("local", [False, True])
def test_full_batch_sweeps_never_lower_the_bound(local):
    toy, elbo = Toy(factors=2, components=5, num_data=40), TraceConjugate_ELBO()
    x = toy.data(40)

    def latent():
        return sum(v.item() for n, v in elbo.loss_per_site(toy.model, toy.guide, x).items() if n != "x")

    with pyro.settings.context(module_local_params=local):
        svi = SVI(toy.model, toy.guide, NaturalGradient(1.0, frozen), elbo)
        losses = [latent()]
        for _ in range(30):
            svi.step(x)
            losses.append(latent())
    assert all(after <= before + 1e-9 for before, after in pairwise(losses))
    assert losses[-1] < losses[0] - 10


def clusters(count=60, dim=2):
    centres = 3 * torch.randn(3, dim)
    return centres[torch.arange(count) % 3] + torch.randn(count, dim)


def mixture(z, components=4):
    """A mixture without a decoder: z is observed, and there is no plate of factors."""
    with pyro.plate("components", components, dim=-1):
        loc_precision = pyro.sample("loc_precision", NormalGamma(torch.full(z.shape[-1:], M0), S0, A0, B0))
    weights = pyro.sample("weights", dist.Dirichlet(torch.full((components,), C0)))
    with pyro.plate("data", len(z), dim=-1):
        assignment = pyro.sample("assignment", Assignment(weights))
        pyro.sample("z", Component(loc_precision, assignment), obs=z)


@pytest.mark.parametrize("size, spread", [(1000, 0.03), (20_000, 0.1)])
def test_a_step_in_float32_keeps_the_spread_of_tight_clusters(size, spread):
    """Float32 rounds γ, each by eps at most, so that weighted mean squares change by 2 eps; λ is float64."""
    z = spread * torch.randn(size, 2) + 10 * torch.tensor([1.0, -1.0]).repeat(size // 2).unsqueeze(-1)
    z = z.float()
    rates = []
    for data in (z, z.double()):
        guide = AutoConjugate(partial(mixture, components=2))
        guide.setup(data)
        guide.seed("z", data, torch.full_like(data, 1e-6), torch.Generator().manual_seed(0))
        SVI(guide._model[0], guide, NaturalGradient(1.0, frozen), TraceConjugate_ELBO()).step(data)
        rates.append(guide.posterior("loc_precision")().standard[-1].detach())
    assert_close(*rates, rtol=2 * torch.finfo(torch.float32).eps, atol=0)


class VariationalBayes:
    """Bishop (2006), Section 10.2, for independent dimensions, written down anew."""

    def __init__(self, z, c, m, s, a, b):
        self.z, self.c, self.m, self.s, self.a, self.b = z, c, m, s, a, b

    def e_step(self):
        log_weights = digamma(self.c) - digamma(self.c.sum())
        logits = np.empty((len(self.z), len(self.c)))
        for n, point in enumerate(self.z):
            for k in range(len(self.c)):
                log_precision = digamma(self.a[k]) - np.log(self.b[k])
                square = self.a[k] / self.b[k] * (point - self.m[k]) ** 2 + 1 / self.s[k]
                logits[n, k] = log_weights[k] + 0.5 * (log_precision - np.log(2 * np.pi) - square).sum()
        top = logits.max(1, keepdims=True)
        log_evidence = top[:, 0] + np.log(np.exp(logits - top).sum(1))
        return np.exp(logits - log_evidence[:, None]), log_evidence.sum()

    def m_step(self, gamma):
        count = gamma.sum(0)
        mean = gamma.T @ self.z / count[:, None]
        self.c, self.s, self.a = C0 + count, S0 + count, A0 + count / 2
        self.m = (S0 * M0 + count[:, None] * mean) / self.s[:, None]
        for k in range(len(count)):
            spread = (gamma[:, k, None] * (self.z - mean[k]) ** 2).sum(0)
            shrink = S0 * count[k] / self.s[k] * (mean[k] - M0) ** 2
            self.b[k] = B0 + 0.5 * (spread + shrink)

    def loss(self):
        c, total = self.c, self.c.sum()
        kl = gammaln(total) - gammaln(c).sum() - gammaln(C0 * len(c)) + len(c) * gammaln(C0)
        kl += ((c - C0) * (digamma(c) - digamma(total))).sum()
        for a, b, s, m in zip(self.a, self.b, self.s, self.m, strict=True):
            kl += (
                A0 * np.log(b / B0) - gammaln(a) + gammaln(A0) + (a - A0) * digamma(a) - (b - B0) * a / b
            ).sum()
            kl += 0.5 * (S0 * a / b * (m - M0) ** 2 + S0 / s - np.log(S0 / s) - 1).sum()
        return kl - self.e_step()[1]


def test_observed_z_follows_variational_bayes_to_convergence():
    z = clusters()
    guide, elbo = AutoConjugate(mixture), TraceConjugate_ELBO()
    guide(z)
    c, (m, s, a, b) = guide.posterior("weights")().concentration, guide.posterior("loc_precision")().standard
    reference = VariationalBayes(z.numpy(), *(t.detach().numpy().copy() for t in (c, m, s, a, b)))
    svi = SVI(mixture, guide, NaturalGradient(1.0, frozen), elbo)
    losses = []
    for _ in range(60):
        losses.append(svi.step(z))
        assert losses[-1] == pytest.approx(reference.loss(), rel=1e-11)
        reference.m_step(reference.e_step()[0])
    q = guide.posterior("loc_precision")()
    for ours, theirs in zip(q.standard, (reference.m, reference.s, reference.a, reference.b), strict=True):
        assert_close(ours.detach(), torch.as_tensor(theirs), rtol=1e-9, atol=1e-9)
    assert_close(
        guide.posterior("weights")().concentration.detach(), torch.as_tensor(reference.c), rtol=1e-9, atol=0
    )
    assert all(after <= before + 1e-9 for before, after in pairwise(losses))
    assert losses[-2] - losses[-1] < 1e-6 < losses[0] - losses[-1]


def test_observed_z_agrees_with_scikit_learn():
    """In one dimension their Wishart is our Gamma: a0 = degrees of freedom / 2, b0 = covariance / 2."""
    z = clusters(count=90, dim=1)
    theirs = BayesianGaussianMixture(
        n_components=3,
        covariance_type="diag",
        weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=C0,
        mean_prior=[M0],
        mean_precision_prior=S0,
        degrees_of_freedom_prior=2 * A0,
        covariance_prior=[2 * B0],
        reg_covar=0.0,
        tol=1e-13,
        max_iter=2000,
        random_state=0,
    ).fit(z.numpy())
    model = partial(mixture, components=3)
    guide, elbo = AutoConjugate(model), TraceConjugate_ELBO()
    guide.setup(z)
    labels = torch.as_tensor(theirs.predict(z.numpy()))
    svi = SVI(poutine.condition(model, {"assignment": labels}), guide, NaturalGradient(1.0, frozen), elbo)
    svi.step(z)  # start from hard assignments
    svi = SVI(model, guide, NaturalGradient(1.0, frozen), elbo)
    losses = [svi.step(z) for _ in range(250)]
    assert losses[0] > losses[-1] + 1e-3
    m, s, a, b = (t.detach().numpy() for t in guide.posterior("loc_precision")().standard)
    np.testing.assert_allclose(m, theirs.means_, rtol=1e-6)
    np.testing.assert_allclose(s, theirs.mean_precision_, rtol=1e-6)
    np.testing.assert_allclose(2 * a, theirs.degrees_of_freedom_, rtol=1e-6)
    np.testing.assert_allclose(b / a[:, None], theirs.covariances_, rtol=1e-6)
    c = guide.posterior("weights")().concentration.detach().numpy()
    np.testing.assert_allclose(c, theirs.weight_concentration_, rtol=1e-6)
    gamma = elbo.responsibilities(model, guide, z)["assignment"]
    np.testing.assert_allclose(gamma, theirs.predict_proba(z.numpy()), atol=1e-6)


def student(x):
    loc = pyro.sample("loc", dist.Normal(0.0, 10.0))
    precision = pyro.sample("precision", dist.Gamma(1.0, 1.0))
    with pyro.plate("data", len(x)):
        factor = pyro.sample("factor", dist.Gamma(2.0, 2.0))
        pyro.sample("x", dist.Normal(loc, (precision * factor).rsqrt()), obs=x)


def regression(features, x):
    with pyro.plate("features", features.shape[1]):
        weights = pyro.sample("weights", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(features @ weights, 1.0), obs=x)


def random_walk(x):
    position = pyro.sample("position_0", dist.Normal(0.0, 10.0))
    for step in range(1, len(x)):
        position = pyro.sample(f"position_{step}", dist.Normal(position, 0.1))
        pyro.sample(f"x_{step}", dist.Normal(position, 1.0), obs=x[step])


def sides():
    return torch.cat([torch.linspace(-3.0, -1.0, 20), torch.linspace(1.0, 3.0, 20)])


def correlated_features():
    shared, own = torch.randn(40, 1), torch.randn(40, 3)
    return 3 * shared + own, shared.squeeze(-1) + torch.randn(40)


COUPLED = {
    "precisions of points and of all": (student, lambda: (sides(),), 3),
    "weights in a plate": (regression, correlated_features, 3),
    "a chain": (random_walk, lambda: (torch.randn(8),), 2),
}


@pytest.mark.parametrize("kind", [SVI, ConjugateSVI, CapturedSVI])
@pytest.mark.parametrize("model, data, turns", COUPLED.values(), ids=COUPLED)
def test_sites_that_could_undo_each_others_steps_take_turns(model, data, turns, kind):
    """All at once, the loss of each of these rises for ever or goes back and forth."""
    args = data()
    guide, elbo = AutoConjugate(model), TraceConjugate_ELBO()
    svi = kind(model, guide, NaturalGradient(1.0), elbo)
    losses, moved = [svi.step(*args)], set()
    for _ in range(11):
        before = {p: p.detach().clone() for p in guide.parameters()}
        losses.append(svi.step(*args))
        moved.add(frozenset(p for p, value in before.items() if not torch.equal(p, value)))
    assert all(after <= before + 1e-10 * abs(before) for before, after in pairwise(losses))
    assert {len(p.moves) for p in guide.parameters()} == {turns + 1}
    assert len(moved) == (1 if model is regression else turns)  # whose plate is one parameter


def test_sites_in_no_common_product_move_at_once_and_small_steps_move_all():
    data = 3 * torch.randn(30)
    for rate, still in ((1.0, ["precisions"]), (0.5, [])):

        def model(x):
            weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
            with pyro.plate("components", 2):
                locs = pyro.sample("locs", dist.Normal(0.0, 5.0))
                precisions = pyro.sample("precisions", dist.Gamma(1.0, 1.0))
            with pyro.plate("data", len(x)):
                a = pyro.sample("a", dist.Categorical(weights))
                pyro.sample("x", dist.Normal(locs[a], precisions[a].rsqrt()), obs=x)

        guide = AutoConjugate(model)
        guide(data)
        before = {name: guide.posterior(name).natural_value().clone() for name in guide.posteriors}
        SVI(model, guide, NaturalGradient(rate), TraceConjugate_ELBO()).step(data)
        same = [name for name in before if torch.equal(before[name], guide.posterior(name).natural_value())]
        assert same == still
