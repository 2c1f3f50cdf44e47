"""Mixtures in plain programs against scikit-learn's BayesianGaussianMixture at the same posteriors."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.distributions import NORMAL_GAMMA, NORMAL_WISHART, RateWishart
from pyro_fmvae.infer import AutoConjugate, TraceConjugate_ELBO
from tests.infer.plain.oracles import step

mixture = pytest.importorskip("sklearn.mixture")
pytestmark = pytest.mark.filterwarnings("ignore:Best performing initialization did not converge")

K, N = 3, 60
C0, M0, S0, A0, B0 = 0.7, 0.5, 0.3, 1.5, 0.8  # a prior as the library has it: see NormalWishart


def points(dim):
    """Three clusters that overlap, float64 [N, D]."""
    noise = torch.randn(N, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return noise + 2 * (torch.arange(N) % K).unsqueeze(-1)


def full(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.full((K,), C0)))
    dim = x.shape[-1]
    with pyro.plate("components", K):
        precision = pyro.sample("precision", RateWishart(torch.tensor(A0), math.sqrt(B0) * torch.eye(dim)))
        loc = pyro.sample(
            "loc", dist.MultivariateNormal(torch.full((dim,), M0), precision_matrix=S0 * precision)
        )
    with pyro.plate("data", len(x)):
        r = pyro.sample("r", dist.Categorical(weights), infer={"enumerate": "parallel"})
        pyro.sample("x", dist.MultivariateNormal(loc[r], precision_matrix=precision[r]), obs=x)


def diag(x):
    weights = pyro.sample("weights", dist.Dirichlet(torch.full((K,), C0)))
    with pyro.plate("components", K):
        precision = pyro.sample("precision", dist.Gamma(A0 * torch.ones(x.shape[-1]), B0).to_event(1))
        loc = pyro.sample("loc", dist.Normal(M0, (S0 * precision) ** -0.5).to_event(1))
    with pyro.plate("data", len(x)):
        r = pyro.sample("r", dist.Categorical(weights), infer={"enumerate": "parallel"})
        pyro.sample("x", dist.Normal(loc[r], precision[r].rsqrt()).to_event(1), obs=x)


def theirs(kind, x):
    """Their mixture after a first step from random responsibilities; each further fit is one more step."""
    dim = x.shape[-1]
    degrees = 2 * A0 + dim - 1 if kind == "full" else 2 * A0
    prior = 2 * B0 * torch.eye(dim) if kind == "full" else torch.full((dim,), 2 * B0)
    return mixture.BayesianGaussianMixture(
        n_components=K,
        covariance_type=kind,
        reg_covar=0.0,
        max_iter=1,
        init_params="random",
        weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=C0,
        mean_precision_prior=S0,
        mean_prior=[M0] * dim,
        degrees_of_freedom_prior=degrees,
        covariance_prior=prior.double().numpy(),
        random_state=0,
        warm_start=True,
    ).fit(x.numpy())


def natural(kind, fitted):
    """Their posterior as our λ: of the weights, and of locations and precisions."""
    m, s, degrees, covariance = (
        torch.tensor(each)
        for each in (fitted.means_, fitted.mean_precision_, fitted.degrees_of_freedom_, fitted.covariances_)
    )
    dim = m.shape[-1]
    if kind == "full":
        tril = torch.linalg.cholesky(0.5 * degrees[:, None, None] * covariance)
        components = NORMAL_WISHART.natural(m, s, 0.5 * (degrees - dim + 1), tril)
    else:
        rate, by_number = 0.5 * degrees[:, None] * covariance, torch.ones(K, dim, dtype=torch.float64)
        s, a = s[:, None] * by_number, 0.5 * degrees[:, None] * by_number
        components = NORMAL_GAMMA.natural(m.unsqueeze(-1), s, a, rate.unsqueeze(-1))
    return torch.tensor(fitted.weight_concentration_), components


def constant(dim):
    """What their bound leaves out: normalisers of the priors, and of the points' densities."""
    degrees, shapes = 2 * A0 + dim - 1, [A0 + 0.5 * d for d in range(dim)]
    wishart = 0.5 * degrees * dim * math.log(2 * B0) - 0.5 * degrees * dim * math.log(2)
    wishart -= sum(math.lgamma(shape) for shape in shapes)
    weights = math.lgamma(K * C0) - K * math.lgamma(C0)
    return K * (wishart + 0.5 * dim * math.log(S0)) + weights - 0.5 * N * dim * math.log(2 * math.pi)


@pytest.mark.parametrize(("kind", "dim"), [("full", 1), ("full", 3), ("diag", 1), ("diag", 3)])
def test_responsibilities_update_and_bound(kind, dim):
    """With diagonal covariances, theirs take log-determinants of full ones: equal for one dimension."""
    torch.set_default_dtype(torch.float64)
    x, model = points(dim), {"full": full, "diag": diag}[kind]
    fitted = theirs(kind, x)
    guide = AutoConjugate(model, structured=True)
    guide(x)
    names = ("weights", "loc")

    def place():
        with torch.no_grad():
            for name, value in zip(names, natural(kind, fitted), strict=True):
                guide.posterior(name).natural.copy_(value)

    place()
    exact = kind == "full" or dim == 1
    gamma = torch.tensor(fitted.predict_proba(x.numpy()))

    def with_responsibilities(x):
        guide(x)
        with pyro.plate("data", N):
            pyro.sample("r", dist.Categorical(gamma))

    if exact:
        found = TraceConjugate_ELBO().responsibilities(model, guide, x)["r"]
        assert_close(found, gamma, rtol=1e-9, atol=1e-12)
    fitted.fit(x.numpy())
    loss = TraceConjugate_ELBO().differentiable_loss(model, with_responsibilities, x)
    grads = torch.autograd.grad(loss, [guide.posterior(name).natural for name in names])
    for name, grad, wanted in zip(names, grads, natural(kind, fitted), strict=True):
        assert_close(guide.posterior(name).natural_value() - grad, wanted, rtol=1e-9, atol=1e-9)
    place()
    if exact:
        ours = -TraceConjugate_ELBO().loss(model, with_responsibilities, x)
        assert ours == pytest.approx(fitted.lower_bound_ + constant(dim), abs=1e-6)


def test_ten_steps_lead_to_the_same_posteriors():
    torch.set_default_dtype(torch.float64)
    x, fitted = points(2), theirs("full", points(2))
    guide = AutoConjugate(full, structured=True)
    guide(x)
    with torch.no_grad():
        for name, value in zip(("weights", "loc"), natural("full", fitted), strict=True):
            guide.posterior(name).natural.copy_(value)
    for _ in range(10):
        fitted.fit(x.numpy())
        step(full, guide, x, rate=1.0)
    for name, value in zip(("weights", "loc"), natural("full", fitted), strict=True):
        assert_close(guide.posterior(name).natural_value(), value, rtol=1e-8, atol=1e-8)
