"""Hidden Markov models in plain programs: against a forward-backward pass in NumPy, and hmmlearn."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from numpy.testing import assert_allclose
from pyro.infer import TraceEnum_ELBO
from scipy.special import digamma, gammaln, logsumexp
from torch.nn.functional import one_hot

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.distributions import (
    NORMAL_WISHART,
    Assignment,
    Component,
    HiddenMarkov,
    NormalGamma,
    NormalWishart,
)
from pyro_fmvae.distributions import chain as path_sums
from pyro_fmvae.infer import AutoConjugate, ConjugateSVI, NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.infer.seeding import kmeans
from tests.infer.plain.oracles import step

K, SYMBOLS, STEPS = 2, 3, 25
PRIORS = {
    "start": torch.tensor([1.0, 2.0]).double(),
    "rows": 0.5 + 3 * torch.eye(K).double(),
    "emissions": torch.tensor([[1.0, 0.5, 0.7], [0.4, 1.0, 2.0]]).double(),
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


def in_one_site(y):
    start = pyro.sample("start", dist.Dirichlet(PRIORS["start"]))
    rows = pyro.sample("rows", dist.Dirichlet(PRIORS["rows"]).to_event(1))
    emissions = pyro.sample("emissions", dist.Dirichlet(PRIORS["emissions"]).to_event(1))
    pyro.sample("y", HiddenMarkov(start, rows, dist.Categorical(emissions), len(y)), obs=y)


programs = pytest.mark.parametrize("model", [model, in_one_site])


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
def guide(model):
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    guide = AutoConjugate(model)
    guide(observed())
    return guide


@programs
def test_step_and_bound_are_those_of_forward_backward(model, guide):
    y = observed()
    for _ in range(3):
        update, bound = forward_backward(posteriors(guide), y.numpy())
        assert -TraceConjugate_ELBO().loss(model, guide, y) == pytest.approx(bound, abs=1e-6)
        step(model, guide, y, rate=1.0)
        for name, found in posteriors(guide).items():
            assert_allclose(found, update[name], rtol=1e-6)


@programs
def test_step_is_that_of_hmmlearn(model, guide):
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


D, LENGTHS = 2, torch.tensor([12, 1, 7, 9])


def gaussian(x, lengths):
    """Sequences [B, T, D] of Gaussians with full covariances, with the priors of hmmlearn."""
    start = pyro.sample("start", dist.Dirichlet(torch.full((K,), 0.5)))
    with pyro.plate("states", K):
        rows = pyro.sample("rows", dist.Dirichlet(torch.full((K,), 0.7)))
        precision = pyro.sample("precision", dist.Wishart(torch.tensor(3.0), precision_matrix=torch.eye(D)))
        loc = pyro.sample("loc", dist.MultivariateNormal(torch.zeros(D), precision_matrix=0.5 * precision))
    emissions = dist.MultivariateNormal(loc, precision_matrix=precision)
    with pyro.plate("sequences", len(LENGTHS), subsample=x):
        pyro.sample("x", HiddenMarkov(start, rows, emissions, x.shape[1], lengths), obs=x)


def sequences():
    source = torch.Generator().manual_seed(2)
    x = torch.randn(len(LENGTHS), int(LENGTHS.max()), D, generator=source, dtype=torch.float64)
    x[:, 4:] += torch.tensor([3.0, -2.0])
    return x


def of_hmmlearn(theirs):
    """The posteriors of hmmlearn's model as natural parameters."""
    tril = torch.linalg.cholesky(torch.from_numpy(theirs.scale_posterior_) / 2)
    dof = torch.from_numpy(np.asarray(theirs.dof_posterior_, dtype=float))
    m, s = torch.from_numpy(theirs.means_posterior_), torch.from_numpy(theirs.beta_posterior_ * 1.0)
    return {
        "start": torch.from_numpy(theirs.startprob_posterior_),
        "rows": torch.from_numpy(theirs.transmat_posterior_),
        "loc": NORMAL_WISHART.pack(NormalWishart(m, s, (dof - D + 1) / 2, tril)),
    }


@pytest.fixture
def gaussian_guide():
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    guide = AutoConjugate(gaussian, structured=True)
    guide(sequences(), LENGTHS)
    return guide


def test_bound_and_step_are_those_of_hmmlearn_at_its_own_solution(gaussian_guide):
    vhmm = pytest.importorskip("hmmlearn.vhmm")
    x = sequences()
    together = torch.cat([each[:length] for each, length in zip(x, LENGTHS, strict=True)]).numpy()
    theirs = vhmm.VariationalGaussianHMM(
        K, "full", 0.5, 0.7, np.zeros((K, D)), np.full(K, 0.5), np.full(K, 3.0), np.stack([np.eye(D)] * K),
        n_iter=30, tol=0.0, random_state=0,
    )  # fmt: skip
    theirs.fit(together, LENGTHS.tolist())
    for name, natural in of_hmmlearn(theirs).items():
        gaussian_guide.posterior(name).load_state_dict({"natural": natural})
    theirs.init_params, theirs.n_iter = "", 1
    theirs.fit(together, LENGTHS.tolist())
    bound = theirs.monitor_.history[-1] - 0.5 * len(together) * D * math.log(2 * math.pi)
    assert -TraceConjugate_ELBO().loss(gaussian, gaussian_guide, x, LENGTHS) == pytest.approx(bound, abs=1e-6)
    step(gaussian, gaussian_guide, x, LENGTHS, rate=1.0)
    for name, natural in of_hmmlearn(theirs).items():
        assert_allclose(gaussian_guide.posterior(name).natural_value(), natural, rtol=1e-6, atol=1e-9)


def test_states_are_those_under_the_expected_log_densities(gaussian_guide):
    x = sequences()
    chain = TraceConjugate_ELBO().chains(gaussian, gaussian_guide, x, LENGTHS)["x"]
    for name, table in (("start", chain.log_start), ("rows", chain.log_transitions)):
        c = gaussian_guide.posterior(name).natural_value()
        assert_allclose(table, c.digamma() - c.sum(-1, keepdim=True).digamma())
    assert chain.log_likelihood.shape == (len(LENGTHS), x.shape[1], K)
    assert_allclose(chain.posterior().sum(-1), torch.arange(x.shape[1]) < LENGTHS.unsqueeze(-1))


def test_states_of_a_model_without_posteriors():
    torch.set_default_dtype(torch.float64)
    rows, locs = torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0.0, 3.0])
    x = torch.tensor([0.1, 2.0, 3.0])

    def known(x):
        pyro.sample("x", HiddenMarkov(rows[0], rows, dist.Normal(locs, 1.0), len(x)), obs=x)

    chain = TraceConjugate_ELBO().chains(known, lambda x: None, x)["x"]
    assert_allclose(chain.log_evidence(), known_density(x, rows, locs))
    assert chain.best_path().tolist() == [0, 1, 1]


def known_density(x, rows, locs):
    """By products of matrices."""
    table = dist.Normal(locs, 1.0).log_prob(x.unsqueeze(-1)).exp()
    return (rows[0] * table[0] @ (rows * table[1]) @ (rows * table[2])).sum().log()


def test_inputs_are_those_of_pyros_enumeration():
    """Of a chain whose transitions an input chooses, state by state; the bound and its gradients."""
    torch.set_default_dtype(torch.float64)
    x, inputs = torch.tensor([0.1, 2.0, 3.0, 1.4]), torch.tensor([0, 1, 0, 1])
    tables = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.3, 0.7], [0.5, 0.5]]]).log().requires_grad_()
    start, locs = torch.tensor([0.6, 0.4]), torch.tensor([0.0, 3.0])

    def summed(x):
        fn = HiddenMarkov(start, tables.softmax(-1), dist.Normal(locs, 1.0), len(x), inputs=inputs)
        pyro.sample("x", fn, obs=x)

    def enumerated(x):
        z = None
        for t in pyro.markov(range(len(x))):
            probs = start if z is None else tables.softmax(-1)[inputs[t]][z]
            z = pyro.sample(f"z_{t}", dist.Categorical(probs), infer={"enumerate": "parallel"})
            pyro.sample(f"x_{t}", dist.Normal(locs[z], 1.0), obs=x[t])

    losses = [
        TraceConjugate_ELBO().differentiable_loss(summed, lambda x: None, x),
        TraceEnum_ELBO(max_plate_nesting=0).differentiable_loss(enumerated, lambda x: None, x),
    ]
    ours, theirs = ([loss.item(), *torch.autograd.grad(loss, tables)] for loss in losses)
    assert ours[0] == pytest.approx(theirs[0], abs=1e-12)
    assert_allclose(ours[1], theirs[1], atol=1e-12)


def test_captured_steps_with_inputs_are_eager_ones():
    torch.set_default_dtype(torch.float64)
    source = torch.Generator().manual_seed(0)
    x, inputs = torch.randn(6, 60, generator=source), torch.randint(3, (6, 60), generator=source)

    def driven(x, inputs):
        start = pyro.sample("start", dist.Dirichlet(torch.ones(2)))
        with pyro.plate("states", 2):
            with pyro.plate("inputs", 3, dim=-2):
                rows = pyro.sample("rows", dist.Dirichlet(torch.ones(2)))
            locs = pyro.sample("locs", dist.Normal(torch.tensor([-1.0, 1.0]), 1.0))
        with pyro.plate("sequences", 6, subsample=x):
            fn = HiddenMarkov(start, rows, dist.Normal(locs, 1.0), x.shape[1], inputs=inputs)
            pyro.sample("x", fn, obs=x)

    naturals = []
    for kind in (ConjugateSVI, CapturedSVI):
        pyro.set_rng_seed(0)
        guide = AutoConjugate(driven)
        svi = kind(driven, guide, NaturalGradient(0.5), TraceConjugate_ELBO())
        for rows in torch.randperm(6, generator=source.manual_seed(1)).repeat(3).split(2):
            svi.step(x[rows], inputs[rows])
        naturals.append(guide.posterior("rows").natural.detach())
    assert naturals[0].shape == (3, 2, 2)
    assert_allclose(*naturals, rtol=1e-10)


def test_vectorised_particles_are_refused():
    """They would be taken for steps, if there are as many."""
    torch.set_default_dtype(torch.float64)

    def model(x):
        with pyro.plate("states", 2):
            locs = pyro.sample("locs", dist.Laplace(0.0, 1.0))
        pyro.sample(
            "x", HiddenMarkov(torch.ones(2) / 2, torch.ones(2, 2) / 2, dist.Normal(locs, 1.0), 4), obs=x
        )

    def guide(x):
        with pyro.plate("states", 2):
            pyro.sample("locs", dist.Normal(0.0, 1.0))

    elbo = TraceConjugate_ELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=1)
    with pytest.raises(ValueError, match="site 'x': HiddenMarkov takes the particles' dimension for that"):
        elbo.loss(model, guide, torch.zeros(4))


def test_minibatches_of_sequences_are_the_whole_on_average(gaussian_guide):
    x = sequences()
    parts = []
    for rows in (slice(0, 4), slice(0, 2), slice(2, 4)):
        loss = TraceConjugate_ELBO().differentiable_loss(gaussian, gaussian_guide, x[rows], LENGTHS[rows])
        parameters = [p.natural for p in gaussian_guide.posteriors.values()]
        parts.append([loss.detach(), *torch.autograd.grad(loss, parameters)])
    for whole, *halves in zip(*parts, strict=True):
        assert_allclose(sum(halves) / 2, whole, rtol=1e-9, atol=1e-9)


def test_captured_steps_are_eager_ones():
    torch.set_default_dtype(torch.float64)
    x, naturals = sequences(), []
    for kind in (ConjugateSVI, CapturedSVI):
        pyro.set_rng_seed(0)
        guide = AutoConjugate(gaussian, structured=True)
        svi = kind(gaussian, guide, NaturalGradient(0.5), TraceConjugate_ELBO())
        for rows in (slice(0, 2), slice(2, 4), slice(1, 3)):
            svi.step(x[rows], LENGTHS[rows])
        naturals.append(guide.posterior("loc").natural.detach())
    assert_allclose(*naturals, rtol=1e-10)  # two ways to sum over paths


def test_captured_steps_on_a_long_sequence_are_those_of_the_sequence_step_by_step(monkeypatch):
    def long(x):
        start = pyro.sample("start", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("states", K):
            rows = pyro.sample("rows", dist.Dirichlet(torch.ones(K)))
            loc = pyro.sample("loc", dist.Normal(0.0, 10.0))
        pyro.sample("x", HiddenMarkov(start, rows, dist.Normal(loc, 1.0), len(x)), obs=x)

    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    x, found = torch.randn(400).cumsum(0) / 3, []
    for kind, short in ((CapturedSVI, path_sums._SHORT), (ConjugateSVI, len(x))):
        monkeypatch.setattr(path_sums, "_SHORT", short)
        assert (path_sums._most_blocks(len(x) - 1) > 1) == (kind is CapturedSVI)
        pyro.set_rng_seed(0)
        guide = AutoConjugate(long)
        svi = kind(long, guide, NaturalGradient(1.0), TraceConjugate_ELBO())
        losses = [svi.step(x) for _ in range(4)]
        found.append([losses, *(guide.posterior(name).natural_value() for name in ("loc", "rows"))])
    for mine, theirs in zip(*found, strict=True):
        assert_allclose(mine, theirs, rtol=1e-10)


def of_tosses(x, coverage):
    start = pyro.sample("start", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("states", K):
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(K)))
        share = pyro.sample("share", dist.Beta(1.0, 1.0))
    emissions = dist.Bernoulli(share) if coverage is None else dist.Binomial(coverage.unsqueeze(-1), share)
    with pyro.plate("sequences", len(x)):
        pyro.sample("x", HiddenMarkov(start, rows, emissions, x.shape[1]), obs=x)


def of_tosses_by_steps(x, coverage):
    start = pyro.sample("start", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("states", K):
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(K)))
        share = pyro.sample("share", dist.Beta(1.0, 1.0))
    with pyro.plate("sequences", len(x)):
        z = None
        for t in pyro.markov(range(x.shape[1])):
            z = pyro.sample(f"z_{t}", dist.Categorical(start if z is None else rows[z]))
            pyro.sample(f"x_{t}", dist.Binomial(coverage[:, t], share[z]), obs=x[:, t])


def test_numbers_of_tosses_may_differ_between_steps():
    """Positions without coverage are no evidence."""
    coverage = torch.poisson(torch.full((3, 5), 2.0), generator=torch.Generator().manual_seed(0))
    x = torch.distributions.Binomial(coverage, 0.4).sample()
    guide, elbo = AutoConjugate(of_tosses), TraceConjugate_ELBO()
    guide(x, coverage)
    same = AutoConjugate(of_tosses_by_steps)
    same(x, coverage)
    same.load_state_dict(guide.state_dict())
    expected = elbo.loss(of_tosses_by_steps, same, x, coverage)
    assert elbo.loss(of_tosses, guide, x, coverage) == pytest.approx(expected, rel=1e-5)
    x[1, 2] = coverage[1, 2] + 1
    with pytest.raises(ValueError, match=r"site 'x': 1 of its 3 .* support of HiddenMarkov, .*…") as refusal:
        AutoConjugate(of_tosses)(x, coverage)
    assert "\n" not in str(refusal.value).partition("Trace Shapes")[0].strip()


STATES = 3


def with_known_states(x, known):
    start = pyro.sample("start", dist.Dirichlet(torch.ones(STATES)))
    with pyro.plate("states", STATES):
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(STATES)))
        if x.dim() == 2:
            emissions = dist.Categorical(pyro.sample("p", dist.Dirichlet(torch.ones(STATES))))
        else:
            precision = pyro.sample("precision", dist.Gamma(torch.ones(2), 1.0).to_event(1))
            loc = pyro.sample("loc", dist.Normal(torch.zeros(2), torch.tensor([5.0, 5000.0])).to_event(1))
            emissions = dist.Normal(loc, precision.rsqrt()).to_event(1)
    with pyro.plate("sequences", len(x)):
        pyro.sample("x", HiddenMarkov(start, rows, emissions, x.shape[1]).given(known), obs=x)


def partly_known(kind, share=0.1):
    """Sequences, their states, and those that are known. A word alone tells the state 7 times of 10."""
    source = torch.Generator().manual_seed(0)
    states = [torch.randint(STATES, (8,), generator=source)]
    for _ in range(49):
        moves = torch.rand(8, generator=source) < 0.15
        states.append(torch.where(moves, torch.randint(STATES, (8,), generator=source), states[-1]))
    z = torch.stack(states, -1)
    if kind == "words":
        odds = 0.15 + 0.55 * torch.eye(STATES)
        x = torch.multinomial(odds[z].flatten(0, 1), 1, generator=source).view_as(z)
    else:
        locs = torch.tensor([[-2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
        x = (locs[z] + torch.randn(*z.shape, 2, generator=source)) * torch.tensor([1.0, 1000.0])
    return x, z, torch.where(torch.rand(z.shape, generator=source) < share, z, -1)


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize(("kind", "least"), [("numbers", 0.9), ("words", 0.75)])
def test_known_states_start_the_fit(kind, least, seeded):
    x, z, known = partly_known(kind)
    for seed in range(3):
        pyro.set_rng_seed(seed)
        guide, elbo = AutoConjugate(with_known_states), TraceConjugate_ELBO()
        guide.setup(x, known)
        if seeded:
            guide.seed_clusters("x", "x", x, known)
        svi = ConjugateSVI(with_known_states, guide, NaturalGradient(1.0), elbo)
        for _ in range(20):
            svi.step(x, known)
        found = elbo.chains(with_known_states, guide, x, known)["x"].best_path()
        assert (found == z)[known < 0].float().mean() > least


def test_posteriors_start_at_the_counts_of_known_states():
    """Where all states are known, this is the exact posterior; nothing else is at a later first call."""
    x, z, _ = partly_known("words")
    guide = AutoConjugate(with_known_states)
    guide(x, z)
    emitted = one_hot(z.flatten(), STATES).double().T @ one_hot(x.flatten(), STATES).double()
    moved = torch.zeros(STATES, STATES).double()
    moved.index_put_((z[:, :-1].flatten(), z[:, 1:].flatten()), torch.ones(8 * 49).double(), accumulate=True)
    for name, counts in (("p", emitted), ("rows", moved)):
        assert_allclose(guide.posterior(name).natural_value(), 1 + counts, rtol=1e-6)
    loaded = AutoConjugate(with_known_states)
    loaded.load_state_dict(guide.state_dict())
    loaded(x, partly_known("words")[2])
    assert_allclose(loaded.posterior("p").natural_value(), guide.posterior("p").natural_value())


def test_a_state_that_no_step_is_known_to_have_starts_elsewhere():
    x, _, known = partly_known("numbers")
    pyro.set_rng_seed(0)
    guide = AutoConjugate(with_known_states)
    guide(x, torch.where(known == 1, -1, known))
    means = guide.posterior("loc")().mean / torch.tensor([1.0, 1000.0])
    assert torch.cdist(means, means)[0, 1:].min() > 1.0 and torch.cdist(means, means)[1, 2] > 1.0


@pytest.mark.parametrize("shorthand", [False, True])
def test_booleans_are_0_and_1(shorthand):
    def with_shorthand(x, _):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("components", K, dim=-1):
            theta = pyro.sample("theta", NormalGamma(torch.zeros(2), 1.0, 1.0, 1.0))
        with pyro.plate("data", len(x), dim=-1):
            pyro.sample("z", Component(theta, pyro.sample("r", Assignment(weights))), obs=x.float())
            pyro.sample("x", dist.Bernoulli(torch.tensor(0.3)).expand([2]).to_event(1), obs=x)

    x, model = torch.rand(6, 2) < 0.5, with_shorthand if shorthand else of_tosses
    guide, elbo = AutoConjugate(model), TraceConjugate_ELBO()
    guide(x, None)
    expected = elbo.loss(model, guide, x.float(), None)
    assert elbo.loss(model, guide, x, None) == pytest.approx(expected, rel=1e-6)
    if not shorthand:
        found, expected = (elbo.chains(model, guide, each, None)["x"].posterior() for each in (x, x.float()))
        assert_allclose(found.detach(), expected.detach())


def test_steps_that_cannot_be_have_no_gradient():
    possible = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)

    def never_back(y):
        rows = (
            pyro.param("rows", torch.full((K, K), 0.5).double(), constraint=dist.constraints.simplex)
            * possible
        )
        rows = rows / rows.sum(-1, keepdim=True)
        emissions = pyro.sample("emissions", dist.Dirichlet(PRIORS["emissions"].double()).to_event(1))
        start = torch.tensor([1.0, 0.0], dtype=torch.float64)
        pyro.sample("y", HiddenMarkov(start, rows, dist.Categorical(emissions), len(y)), obs=y)

    guide, elbo, y = AutoConjugate(never_back), TraceConjugate_ELBO(), observed()
    elbo.loss(never_back, guide, y)
    rows = pyro.param("rows").unconstrained()
    (slope,) = torch.autograd.grad(elbo.differentiable_loss(never_back, guide, y), rows)
    slopes = []
    for entry in range(rows.numel()):
        losses = []
        for gap in (1e-5, -1e-5):
            with torch.no_grad():
                rows.view(-1)[entry] += gap
                losses.append(elbo.loss(never_back, guide, y))
                rows.view(-1)[entry] -= gap
        slopes.append((losses[0] - losses[1]) / 2e-5)
    assert_allclose(slope.flatten(), slopes, rtol=1e-5, atol=1e-6)


def test_seeds_are_posteriors_given_the_clusters_of_the_steps_that_there_are(gaussian_guide):
    x, source = sequences(), torch.Generator()
    there = torch.arange(x.shape[1]) < LENGTHS.unsqueeze(-1)
    gaussian_guide.seed_clusters("x", "x", x, LENGTHS, generator=source.manual_seed(0))
    states = torch.full(there.shape, -1)
    states[there] = kmeans(x[there], K, source.manual_seed(0))
    steps = one_hot(states.clamp(min=0), K) * there.unsqueeze(-1).double()
    counts = torch.einsum("nti,ntj->ij", steps[:, :-1], steps[:, 1:])
    assert_allclose(gaussian_guide.posterior("start").natural_value(), 0.5 + steps[:, 0].sum(0))
    assert_allclose(gaussian_guide.posterior("rows").natural_value(), 0.7 + counts)
    members = steps[there]
    mean = members.mT @ x[there] / (0.5 + members.sum(0)).unsqueeze(-1)
    assert_allclose(gaussian_guide.marginal("loc").mean.detach(), mean)


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (
            torch.zeros(4, 11, D),
            r"points: expected shape \[4, 12\] and that of a point, as 'x' has steps, got",
        ),
        (torch.full((4, 12, D), torch.nan), "points: expected finite numbers"),
    ],
)
def test_points_of_steps_that_are_refused(gaussian_guide, points, words):
    with pytest.raises(ValueError, match=words):
        gaussian_guide.seed_clusters("x", points, sequences(), LENGTHS)


def cut(values, spans):
    """The model of one long sequence, of which chunks are given."""
    start = pyro.sample("start", dist.Dirichlet(torch.full((K,), 0.5)))
    with pyro.plate("states", K):
        rows = pyro.sample("rows", dist.Dirichlet(torch.full((K,), 0.7)))
        locs = pyro.sample("locs", dist.Normal(0.0, 10.0))
    with pyro.plate("chunks", CHUNKS, subsample=values):
        fn = HiddenMarkov(start, rows, dist.Normal(locs, 1.0), values.shape[1]).of_chunks(spans)
        pyro.sample("x", fn, obs=values)


CHUNKS = 6


def test_steps_on_chunks_are_those_on_the_whole_sequence_on_average():
    """With a buffer as long as the sequence, all chunks are the sequence, and minibatches are on average."""
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    x = torch.randn(1, 58).cumsum(1)
    whole = HiddenMarkov.chunks(x, 58, 0)
    parts = HiddenMarkov.chunks(x, 10, 58)
    guide = AutoConjugate(cut)
    guide(*parts)
    batches = [whole, parts, *([t[rows] for t in parts] for rows in (slice(0, 2), slice(2, 4), slice(4, 6)))]
    found = []
    for n, (values, spans) in enumerate(batches):
        loss = TraceConjugate_ELBO().loss_per_site(cut, guide, values, spans)["x"]
        gradients = torch.autograd.grad(loss, [guide.posterior(name).natural for name in guide.posteriors])
        found.append([t.detach() / (CHUNKS if n == 0 else 1) for t in (loss, *gradients)])
    for one, all_, *some in zip(*found, strict=True):
        assert_allclose(all_, one, rtol=1e-9, atol=1e-9)
        assert_allclose(sum(some) / 3, one, rtol=1e-9, atol=1e-9)
