"""A hidden Markov model in a plain program: against a forward-backward pass in NumPy, and hmmlearn."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import digamma, gammaln, logsumexp

from pyro_fmvae.infer import AutoConjugate, TraceConjugate_ELBO
from tests.infer.plain.oracles import step

K, SYMBOLS, STEPS = 2, 3, 25
PRIORS = {
    "start": torch.tensor([1.0, 2.0]),
    "rows": 0.5 + 3 * torch.eye(K),
    "emissions": torch.tensor([[1.0, 0.5, 0.7], [0.4, 1.0, 2.0]]),
}


def observed():
    source = torch.Generator().manual_seed(0)
    return torch.cat(
        [torch.randint(0, 2, (10,), generator=source), torch.randint(1, 3, (15,), generator=source)]
    )


def model(y):
    start = pyro.sample("start", dist.Dirichlet(PRIORS["start"]))
    rows = pyro.sample("rows", dist.Dirichlet(PRIORS["rows"]).to_event(1))
    emissions = pyro.sample("emissions", dist.Dirichlet(PRIORS["emissions"]).to_event(1))
    z = None
    for t in pyro.markov(range(len(y))):
        z = pyro.sample(f"z_{t}", dist.Categorical(start if z is None else rows[z]))
        pyro.sample(f"y_{t}", dist.Categorical(emissions[z]), obs=y[t])


def posteriors(guide):
    return {name: guide.posterior(name).natural_value().numpy().copy() for name in PRIORS}


def forward_backward(q, y):
    """The update of variational Bayes, and the bound before it, in logarithms of unnormalised messages."""
    log = {name: digamma(c) - digamma(c.sum(-1, keepdims=True)) for name, c in q.items()}
    likelihood = log["emissions"][:, y].T  # [T, K]
    forward, backward = np.empty((STEPS, K)), np.zeros((STEPS, K))
    forward[0] = log["start"] + likelihood[0]
    for t in range(1, STEPS):
        forward[t] = logsumexp(forward[t - 1][:, None] + log["rows"], axis=0) + likelihood[t]
    for t in range(STEPS - 2, -1, -1):
        backward[t] = logsumexp(log["rows"] + likelihood[t + 1] + backward[t + 1], axis=1)
    total = logsumexp(forward[-1])
    state = np.exp(forward + backward - total)
    pairs = np.exp(forward[:-1, :, None] + log["rows"] + (likelihood + backward)[1:, None, :] - total).sum(0)
    counts = {"start": state[0], "rows": pairs, "emissions": state.T @ np.eye(SYMBOLS)[y]}
    divergence = 0.0
    for name, c in q.items():
        c0 = PRIORS[name].double().numpy()
        divergence += ((c - c0) * log[name]).sum()
        for each, sign in ((c, 1), (c0, -1)):
            divergence += sign * (gammaln(each.sum(-1)).sum() - gammaln(each).sum())
    return {name: PRIORS[name].double().numpy() + counts[name] for name in q}, total - divergence


@pytest.fixture
def guide():
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    guide = AutoConjugate(model)
    guide(observed())
    return guide


def test_step_and_bound_are_those_of_forward_backward(guide):
    y = observed()
    for _ in range(3):
        update, bound = forward_backward(posteriors(guide), y.numpy())
        assert -TraceConjugate_ELBO().loss(model, guide, y) == pytest.approx(bound, abs=1e-6)
        step(model, guide, y, rate=1.0)
        for name, found in posteriors(guide).items():
            assert_allclose(found, update[name], rtol=1e-6)


def test_step_is_that_of_hmmlearn(guide):
    vhmm = pytest.importorskip("hmmlearn.vhmm")
    y, q = observed(), posteriors(guide)
    theirs = vhmm.VariationalCategoricalHMM(K, n_iter=1, init_params="", tol=0.0)
    theirs.n_features = SYMBOLS
    for site, name in (("start", "startprob"), ("rows", "transmat"), ("emissions", "emissionprob")):
        setattr(theirs, f"{name}_prior_", PRIORS[site].double().numpy())
        setattr(theirs, f"{name}_posterior_", q[site])
    theirs.fit(y.numpy()[:, None])
    step(model, guide, y, rate=1.0)
    found = posteriors(guide)
    assert_allclose(found["start"], theirs.startprob_posterior_, rtol=1e-6)
    assert_allclose(found["rows"], theirs.transmat_posterior_, rtol=1e-6)
    assert_allclose(found["emissions"], theirs.emissionprob_posterior_, rtol=1e-6)
