"""Hidden Markov models: seconds for an iteration, beside hmmlearn's variational Bayes.

    python examples/benchmarks/hidden_markov.py [--sequences 1000] [--length 500] [--states 5] [--rounds 5]
    python examples/benchmarks/hidden_markov.py --dynamax [--sequences 1000] [--length 500] [--states 5]

Gaussian emissions in two dimensions with full covariances, and the same priors. hmmlearn learns first. Its
posteriors are then the start of all methods, whose bounds are compared there (hmmlearn's leaves out the
constant D/2 log 2π of each observation), and which take turns to do one iteration each on all sequences.
``seconds`` are medians of process time in one thread, ``ratio`` is that to hmmlearn with its default, sums in
logarithms.

With ``--dynamax``: seconds until new sequences have the greatest log-density of any method, less 0.001 nats
per step; none where a method does not come there. All begin where k-means clusters are. dynamax's expectation
maximisation takes all sequences at each iteration (dynamax 1.0.3 has no stochastic one); ours does too, or
takes a tenth of them. The first iteration, in which a step is compiled or captured, is left out, and so is
the time of the log-densities.
"""

import argparse
import itertools
import json
import math
import statistics
import time
from copy import deepcopy

import numpy as np
import pyro
import pyro.distributions as dist
import torch

from pyro_fmvae import (
    AutoConjugate,
    CapturedSVI,
    ConjugateSVI,
    HiddenMarkov,
    NaturalGradient,
    TraceConjugate_ELBO,
)
from pyro_fmvae.distributions import NORMAL_WISHART, NormalWishart

try:
    from hmmlearn.vhmm import VariationalGaussianHMM
except ImportError:  # it is no requirement of this library
    VariationalGaussianHMM = None
try:
    import jax
    from dynamax.hidden_markov_model import GaussianHMM
except ImportError:  # nor is dynamax
    GaussianHMM = None

D, OURS, CAPTURED, LOGARITHMS, SCALED = 2, "ours", "ours, captured", "hmmlearn", "hmmlearn, scaling"


def model(x, states, number=None):
    """Sequences [B, T, D] of a number of them, with the default priors of hmmlearn but for the means'."""
    share = torch.full((states,), 1 / states)
    start = pyro.sample("start", dist.Dirichlet(share))
    with pyro.plate("states", states):
        rows = pyro.sample("rows", dist.Dirichlet(share))
        precision = pyro.sample("precision", dist.Wishart(torch.tensor(3.0), precision_matrix=torch.eye(D)))
        loc = pyro.sample("loc", dist.MultivariateNormal(torch.zeros(D), precision_matrix=1.0 * precision))
    emissions = dist.MultivariateNormal(loc, precision_matrix=precision)
    with pyro.plate("sequences", number or len(x), subsample=x):
        pyro.sample("x", HiddenMarkov(start, rows, emissions, x.shape[1]), obs=x)


def sequences(number, length, states, rng):
    """Sequences of a chain that stays in a state 9 times of 10, [number, length, D]."""
    moves = rng.random((number, length)) < 0.1
    drawn = rng.integers(0, states, (number, length))
    last = np.maximum.accumulate(np.where(moves, np.arange(length), 0), axis=1)
    state = np.take_along_axis(drawn, last, axis=1)
    return 3 * rng.normal(size=(states, D))[state] + rng.normal(size=(number, length, D))


def hmmlearn(states, iterations, **options):
    """hmmlearn's model, with the same priors."""
    return VariationalGaussianHMM(
        states,
        "full",
        n_iter=iterations,
        tol=-math.inf,
        random_state=0,
        means_prior=np.zeros((states, D)),
        beta_prior=np.ones(states),
        dof_prior=np.full(states, 3.0),
        scale_prior=np.stack([np.eye(D)] * states),
        **options,
    )


def started(theirs, **options):
    """A copy of hmmlearn's model that goes on from its posteriors, by one iteration for each fit."""
    copy = hmmlearn(theirs.n_components, 1, init_params="", **options)
    for name in ("startprob", "transmat", "means", "beta", "dof", "scale"):
        for kind in ("prior", "posterior"):
            setattr(copy, f"{name}_{kind}_", np.copy(getattr(theirs, f"{name}_{kind}_")))
    return copy


def guide_of(theirs, x):
    """A guide with hmmlearn's posteriors."""
    guide = AutoConjugate(model, structured=True)
    guide.setup(x, theirs.n_components)
    dof, s = (
        torch.as_tensor(t, dtype=torch.float64) for t in (theirs.dof_posterior_, theirs.beta_posterior_)
    )
    tril = torch.linalg.cholesky(torch.as_tensor(theirs.scale_posterior_) / 2)
    both = NormalWishart(torch.as_tensor(theirs.means_posterior_), s, (dof - D + 1) / 2, tril)
    natural = {"start": theirs.startprob_posterior_, "rows": theirs.transmat_posterior_}
    natural |= {"loc": NORMAL_WISHART.pack(both)}
    for name, value in natural.items():
        guide.posterior(name).load_state_dict({"natural": torch.as_tensor(value)})
    return guide


@torch.no_grad()
def means_of(guide):
    """Start, transitions, locations and covariances at the posterior means."""
    start, rows, loc, precision = (
        guide.marginal(name).mean for name in ("start", "rows", "loc", "precision")
    )
    return start, rows, loc, precision.inverse()


def log_density(start, rows, loc, covariance, new):
    """Nats per step of new sequences."""
    fn = HiddenMarkov(start, rows, dist.MultivariateNormal(loc, covariance), new.shape[1])
    return fn.log_prob(new).sum().item() / new[..., 0].numel()


def dynamax_steps(start, x):
    """Iterations of dynamax's expectation maximisation, as ``fit_em`` does them; yields parameters."""
    hmm = GaussianHMM(len(start[0]), D, initial_probs_concentration=1.0, transition_matrix_concentration=1.0)
    names = ("initial_probs", "transition_matrix", "emission_means", "emission_covariances")
    given = {name: jax.numpy.asarray(t.numpy()) for name, t in zip(names, start, strict=True)}
    params, props = hmm.initialize(**given)

    @jax.jit
    def step(params, state, x):
        stats, _ = jax.vmap(lambda each: hmm.e_step(params, each))(x)
        return hmm.m_step(params, props, stats, state)

    x, state = jax.numpy.asarray(x.numpy()), hmm.initialize_m_step_state(params, props)
    jax.block_until_ready(step(params, state, x))  # is compiled
    while True:
        begun = time.process_time()
        params, state = jax.block_until_ready(step(params, state, x))
        seconds = time.process_time() - begun
        found = (params.initial.probs, params.transitions.transition_matrix, params.emissions.means)
        yield seconds, [torch.from_numpy(np.array(t)) for t in (*found, params.emissions.covs)]


def our_steps(guide, x, states, batch, rate):
    """Captured steps on minibatches; yields the posterior means."""
    svi = CapturedSVI(model, deepcopy(guide), NaturalGradient(rate), TraceConjugate_ELBO())
    while True:
        for rows in torch.randperm(len(x)).split(batch):
            begun = time.process_time()
            svi.step(x[rows], states, len(x))
            yield time.process_time() - begun, means_of(svi.guide)


def against_dynamax(chosen):
    """Print how long each method takes to the same log-density of new sequences."""
    data = sequences(chosen.sequences + 200, chosen.length, chosen.states, np.random.default_rng(0))
    new, x = torch.from_numpy(data[:200]), torch.from_numpy(data[200:])
    guide = AutoConjugate(model, structured=True)
    guide.seed_clusters("x", x, x, chosen.states)
    start, batch = means_of(guide), max(len(x) // 10, 1)
    methods = {
        "ours, all sequences": our_steps(guide, x, chosen.states, len(x), 1.0),
        "ours, a tenth": our_steps(guide, x, chosen.states, batch, 0.3),
        "dynamax, all sequences": dynamax_steps(start, x),
    }
    curves = {}
    for name, steps in methods.items():
        next(steps)
        curves[name], spent = [], 0.0
        for seconds, found in itertools.islice(steps, chosen.fit):
            spent += seconds
            curves[name].append((spent, log_density(*found, new)))
    target = max(density for curve in curves.values() for _, density in curve) - 1e-3
    for name, curve in curves.items():
        steps, seconds = next(
            ((n, round(spent, 3)) for n, (spent, density) in enumerate(curve, 1) if density >= target),
            (None, None),
        )
        record = {"method": name, "log-density": round(curve[-1][1], 5), "steps": steps, "seconds": seconds}
        print(json.dumps({**record, "all steps": len(curve), "all seconds": round(curve[-1][0], 3)}))


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for name, default in (("sequences", 1000), ("length", 500), ("states", 5), ("rounds", 5), ("fit", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dynamax", action="store_true")
    chosen = parser.parse_args(arguments)
    if (GaussianHMM if chosen.dynamax else VariationalGaussianHMM) is None:
        print(f"skipped: {'dynamax' if chosen.dynamax else 'hmmlearn'} is not installed")
        return
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    if chosen.dynamax:
        jax.config.update("jax_enable_x64", True)
        against_dynamax(chosen)
        return
    data = sequences(chosen.sequences, chosen.length, chosen.states, np.random.default_rng(0))
    flat, lengths, x = data.reshape(-1, D), [chosen.length] * chosen.sequences, torch.from_numpy(data)
    theirs = hmmlearn(chosen.states, chosen.fit, implementation="scaling").fit(flat, lengths)
    methods = {}
    for name, svi in ((OURS, ConjugateSVI), (CAPTURED, CapturedSVI)):
        step = svi(model, guide_of(theirs, x), NaturalGradient(1.0), TraceConjugate_ELBO()).step
        methods[name] = lambda step=step: -step(x, chosen.states)
    constant = 0.5 * flat.size * math.log(2 * math.pi)
    for name, implementation in ((LOGARITHMS, "log"), (SCALED, "scaling")):
        own = started(theirs, implementation=implementation)
        methods[name] = lambda own=own: own.fit(flat, lengths).monitor_.history[-1] - constant
    bounds = {name: method() for name, method in methods.items()}
    seconds = {name: [] for name in methods}
    for _ in range(chosen.rounds):
        for name, method in methods.items():
            begun = time.process_time()
            method()
            seconds[name].append(time.process_time() - begun)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name in methods:
        record = {
            "method": name,
            "bound": bounds[name],
            "seconds": round(medians[name], 4),
            "ratio": round(medians[LOGARITHMS] / medians[name], 2),
        }
        print(json.dumps(record))


if __name__ == "__main__":
    main()
