"""Mixtures with full covariances by natural gradients: against scikit-learn and the exact evidence."""

from functools import partial
from itertools import pairwise, product

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, Predictive
from scipy.special import gammaln, logsumexp
from scipy.stats import multivariate_t
from sklearn.mixture import BayesianGaussianMixture
from torch.testing import assert_close

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import NORMAL_WISHART, Assignment, FullComponent, NormalWishart
from pyro_fmvae.infer import AutoConjugate, NaturalGradient, TraceConjugate_ELBO, natural_prior
from pyro_fmvae.infer.seeding import kmeans_mixture, responsibilities

M0, S0, A0, C0 = 0.3, 0.6, 1.2, 0.7
TRIL = torch.tensor([[0.9, 0.0], [0.4, 0.7]], dtype=torch.float64)
frozen = partial(torch.optim.SGD, lr=0.0)


def prior():
    return NormalWishart(torch.full((2,), M0), S0, A0, TRIL)


def mixture(x, components=3):
    weights = pyro.sample("weights", dist.Dirichlet(torch.full((components,), C0)))
    with pyro.plate("components", components, dim=-1):
        loc_precision = pyro.sample("loc_precision", prior())
    with pyro.plate("data", len(x), dim=-1):
        assignment = pyro.sample("assignment", Assignment(weights))
        pyro.sample("x", FullComponent(loc_precision, assignment), obs=x)


def elongated(count=90):
    """Three clusters along one another, that no independent dimensions can tell apart."""
    index = torch.arange(count) % 3
    along = 2 * torch.randn(count, 1) * torch.tensor([1.0, 1.0])
    return along + 3 * (index - 1).unsqueeze(-1) * torch.tensor([0.5, -0.5]) + 0.3 * torch.randn(count, 2)


def learnt(x, components, steps, labels=None):
    """A guide after coordinate ascent in steps of rate 1, from given assignments if there are any."""
    model, elbo = partial(mixture, components=components), TraceConjugate_ELBO()
    guide = AutoConjugate(model)
    guide.setup(x)
    if labels is not None:
        given = poutine.condition(model, {"assignment": labels})
        SVI(given, guide, NaturalGradient(1.0, frozen), elbo).step(x)
    svi = SVI(model, guide, NaturalGradient(1.0, frozen), elbo)
    losses = [svi.step(x) for _ in range(steps)]
    assert all(after <= before + 1e-9 for before, after in pairwise(losses))
    return model, guide, elbo


def test_scikit_learn_has_the_same_posterior_and_bound():
    """Their bound lacks what does not depend on q: the constants of the priors and of the densities."""
    x, dof, dim, count = elongated(), 2 * A0 + 1, 2, 3
    theirs = BayesianGaussianMixture(
        n_components=count,
        covariance_type="full",
        weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=C0,
        mean_prior=[M0] * dim,
        mean_precision_prior=S0,
        degrees_of_freedom_prior=dof,
        covariance_prior=2 * (TRIL @ TRIL.T).numpy(),
        reg_covar=0.0,
        tol=1e-13,
        max_iter=5000,
        random_state=0,
    ).fit(x.numpy())
    labels = torch.as_tensor(theirs.predict(x.numpy()))
    model, guide, elbo = learnt(x, count, 300, labels)
    m, s, a, tril = (t.detach() for t in guide.posterior("loc_precision")().standard)
    covariance = tril @ tril.mT / (a + 0.5)[:, None, None]  # 2B / ν
    c = guide.posterior("weights")().concentration.detach()
    for ours, name in (
        (m, "means_"),
        (s, "mean_precision_"),
        (2 * a + 1, "degrees_of_freedom_"),
        (covariance, "covariances_"),
        (c, "weight_concentration_"),
    ):
        np.testing.assert_allclose(ours, getattr(theirs, name), rtol=1e-6, atol=1e-8)
    gamma = elbo.responsibilities(model, guide, x)["assignment"]
    np.testing.assert_allclose(gamma, theirs.predict_proba(x.numpy()), atol=1e-6)
    log_rate = 2 * TRIL.diagonal().log().sum().item()
    each = 0.5 * dof * log_rate - sum(gammaln(0.5 * (dof - d)) for d in range(dim)) + 0.5 * dim * np.log(S0)
    constants = count * each + gammaln(count * C0) - count * gammaln(C0)
    constants -= 0.5 * len(x) * dim * np.log(2 * np.pi)
    assert -elbo.loss(model, guide, x) == pytest.approx(theirs.lower_bound_ + constants, rel=1e-9)


def log_evidence(x):
    """Log p(x_1, ..., x_n) under one component, by Murphy's predictive densities, one after another."""
    total, dim = 0.0, x.shape[-1]
    s, dof, mean = S0, 2 * A0 + dim - 1, np.full(dim, M0)
    inverse_scale = 2 * (TRIL @ TRIL.T).numpy()
    for point in x.numpy():
        shape = inverse_scale * (s + 1) / (s * (dof - dim + 1))
        total += multivariate_t(mean, shape, dof - dim + 1).logpdf(point)
        inverse_scale = inverse_scale + s / (s + 1) * np.outer(point - mean, point - mean)
        s, dof, mean = s + 1, dof + 1, (s * mean + point) / (s + 1)
    return total


def test_the_bound_of_one_component_is_the_evidence():
    x = elongated(20)
    model, guide, elbo = learnt(x, 1, 1)
    assert -elbo.loss(model, guide, x) == pytest.approx(log_evidence(x), rel=1e-11)
    found = NORMAL_WISHART.log_normalizer(guide.posterior("loc_precision").natural_value())
    start = NORMAL_WISHART.log_normalizer(natural_prior(prior()).natural)
    gain = (found - start).item() - 0.5 * x.numel() * np.log(2 * np.pi)
    assert gain == pytest.approx(log_evidence(x), rel=1e-11)


def test_the_bound_of_two_is_below_the_evidence_of_all_assignments():
    """Of clusters far apart, little more than log 2 is missing: the bound has one order of the components."""
    r = torch.tensor([0, 0, 0, 1, 1, 1, 0])
    x = torch.randn(7, 2) + 30 * r.unsqueeze(-1)
    joint = []
    for assignment in product((0, 1), repeat=len(x)):
        index = torch.tensor(assignment)
        counts = np.array([(index == k).sum().item() for k in (0, 1)])
        weights = (gammaln(C0 + counts) - gammaln(C0)).sum() + gammaln(2 * C0) - gammaln(2 * C0 + len(x))
        joint.append(weights + sum(log_evidence(x[index == k]) for k in (0, 1)))
    model, guide, elbo = learnt(x, 2, 200, r)
    gap = logsumexp(joint) + elbo.loss(model, guide, x)
    assert np.log(2) < gap < np.log(2) + 0.3


@pytest.mark.parametrize("svi", [SVI, CapturedSVI])
def test_factors_and_several_shapes(svi):
    """The usual program with plates of factors and of components, with a prior for each factor."""
    factors, count, dim = 2, 3, 3

    def model(x):
        components = pyro.plate("components", count, dim=-1)
        with pyro.plate("factors", factors, dim=-2):
            weights = pyro.sample("weights", dist.Dirichlet(torch.ones(count)))
            with components:
                scale = torch.tensor([0.5, 2.0]).view(factors, 1, 1, 1) * torch.eye(dim)
                loc_precision = pyro.sample("loc_precision", NormalWishart(torch.zeros(dim), 1.0, 2.0, scale))
            with pyro.plate("data", x.shape[1], dim=-1):
                assignment = pyro.sample("assignment", Assignment(weights))
                pyro.sample("x", FullComponent(loc_precision, assignment), obs=x)

    x = torch.randn(factors, 12, dim)
    guide, elbo = AutoConjugate(model), TraceConjugate_ELBO()
    guide.setup(x)
    guide.seed("x", x, torch.zeros_like(x), torch.Generator().manual_seed(0))
    gamma = elbo.responsibilities(model, guide, x)["assignment"]
    svi(model, guide, NaturalGradient(1.0, frozen), elbo).step(x)
    found = guide.posterior("loc_precision").natural_value()
    for i, scale in enumerate((0.5, 2.0)):
        start = natural_prior(NormalWishart(torch.zeros(dim), 1.0, 2.0, scale)).natural
        expected = NORMAL_WISHART.conjugate_update(start.expand(count, -1), gamma[i], x[i], 0 * x[i])
        assert_close(found[i], expected, rtol=1e-11, atol=1e-11)
    draws = Predictive(model, guide=guide, num_samples=4)(x)
    assert draws["loc_precision"].shape == (4, factors, count, dim + 1, dim)


def test_clusters_that_differ_by_their_correlation_are_found():
    x = elongated(120)
    priors = [natural_prior(dist.Dirichlet(torch.full((3,), C0))), natural_prior(prior().expand([3]))]
    best = kmeans_mixture(*priors, x, torch.zeros_like(x), torch.Generator().manual_seed(0), restarts=10)
    gamma = responsibilities(best.weights, best.components, x, torch.zeros_like(x))
    found, truth = gamma.argmax(-1), torch.arange(120) % 3
    one_to_one = {(k, t) for k, t in zip(found.tolist(), truth.tolist(), strict=True)}
    assert len(one_to_one) == 3
