"""Hidden Markov models: seconds for an iteration, beside hmmlearn's variational Bayes.

    python examples/benchmarks/hidden_markov.py [--sequences 1000] [--length 500] [--states 5] [--rounds 5]

Gaussian emissions in two dimensions with full covariances, and the same priors. hmmlearn learns first. Its
posteriors are then the start of all methods, whose bounds are compared there (hmmlearn's leaves out the
constant D/2 log 2π of each observation), and which take turns to do one iteration each on all sequences.
``seconds`` are medians of process time in one thread, ``ratio`` is that to hmmlearn with its default, sums in
logarithms.
"""

import argparse
import json
import math
import statistics
import time

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

D, OURS, CAPTURED, LOGARITHMS, SCALED = 2, "ours", "ours, captured", "hmmlearn", "hmmlearn, scaling"


def model(x, states):
    """Sequences [B, T, D], with the default priors of hmmlearn but for the means'."""
    share = torch.full((states,), 1 / states)
    start = pyro.sample("start", dist.Dirichlet(share))
    with pyro.plate("states", states):
        rows = pyro.sample("rows", dist.Dirichlet(share))
        precision = pyro.sample("precision", dist.Wishart(torch.tensor(3.0), precision_matrix=torch.eye(D)))
        loc = pyro.sample("loc", dist.MultivariateNormal(torch.zeros(D), precision_matrix=1.0 * precision))
    emissions = dist.MultivariateNormal(loc, precision_matrix=precision)
    with pyro.plate("sequences", len(x)):
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


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for name, default in (("sequences", 1000), ("length", 500), ("states", 5), ("rounds", 5), ("fit", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args(arguments)
    if VariationalGaussianHMM is None:
        print("skipped: hmmlearn is not installed")
        return
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
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
