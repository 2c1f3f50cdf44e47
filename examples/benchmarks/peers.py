"""Bound and time of an iteration of plain Pyro programs, against BayesPy's variational message passing.

    pip install bayespy
    python examples/benchmarks/peers.py

Each model is written twice: as a Pyro program under ``TraceConjugate_ELBO`` with steps of rate 1 on all
data, captured, and as BayesPy's nodes. Both have the same data, prior, factorised posterior and start,
so they end at one optimum, and ``bound`` is the same number in nats. ``steps`` counts iterations until a
gain is below 1e-10 of the bound. ``ms`` is the median processor time of an iteration after that, with the
methods taking turns, and ``ratio`` the median over turns of BayesPy's time to the method's. BayesPy computes
the bound in a call of its own, which is not timed. Everything is in float64.
"""

import json
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from command_line import Parser, machine, natural_number
from torch import Tensor

from pyro_fmvae import AutoConjugate, NaturalGradient, TraceConjugate_ELBO
from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.infer import natural_prior

try:
    import bayespy
except ImportError:
    bayespy = None

K = 5  # components
TOLERANCE, LIMIT = 1e-10, 500


@dataclass(frozen=True)
class Problem:
    """One model, written twice.

    Attributes:
        name: what the table calls it.
        data: arguments of ``program``.
        program: the Pyro program.
        start: first posteriors of some sites; the others start at their prior.
        nodes: builds BayesPy's engine with the same start, and its nodes in the order of their updates.
    """

    name: str
    data: tuple[Tensor, ...]
    program: Callable[..., None]
    start: dict[str, dist.Distribution]
    nodes: Callable[[], tuple[Any, list[Any]]]


def gaussians(points: int, rng: np.random.Generator) -> Problem:
    """A mixture of Gaussians with full covariances, q(μ) q(Λ)."""
    dim = 4
    centres = 6 * rng.standard_normal((K, dim))
    shapes = np.eye(dim) + 0.3 * rng.standard_normal((K, dim, dim))
    kinds = rng.integers(K, size=points)
    x = centres[kinds] + np.einsum("nij,nj->ni", shapes[kinds], rng.standard_normal((points, dim)))
    first = centres + rng.standard_normal((K, dim))

    # torch's Wishart looks at numbers when it is made, which a captured step cannot do
    wishart = dist.Wishart(torch.tensor(dim + 1.0), precision_matrix=torch.eye(dim))

    def program(x: Tensor) -> None:
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("components", K):
            mean = torch.zeros(dim)
            loc = pyro.sample("loc", dist.MultivariateNormal(mean, precision_matrix=0.01 * torch.eye(dim)))
            precision = pyro.sample("precision", wishart)
        with pyro.plate("data", len(x)):
            r = pyro.sample("r", dist.Categorical(weights), infer={"enumerate": "parallel"})
            pyro.sample("x", dist.MultivariateNormal(loc[r], precision_matrix=precision[r]), obs=x)

    def nodes() -> tuple[Any, list[Any]]:
        from bayespy.nodes import Categorical, Dirichlet, Gaussian, Mixture, Wishart

        weights = Dirichlet(np.ones(K))
        r = Categorical(weights, plates=(points,))
        loc = Gaussian(np.zeros(dim), 0.01 * np.eye(dim), plates=(K,))
        precision = Wishart(dim + 1, np.eye(dim), plates=(K,))
        y = Mixture(r, Gaussian, loc, precision)
        loc.initialize_from_parameters(first, np.eye(dim))
        y.observe(x)
        order = [r, loc, precision, weights]
        return bayespy.inference.VB(y, *order), order

    at = dist.MultivariateNormal(torch.as_tensor(first), precision_matrix=torch.eye(dim))
    return Problem("mixture, full covariances", (torch.as_tensor(x),), program, {"loc": at}, nodes)


def regression(points: int, rng: np.random.Generator) -> Problem:
    """Linear regression with unknown noise, q(w) q(τ)."""
    dim = 10
    x = rng.standard_normal((points, dim))
    y = x @ rng.standard_normal(dim) + 0.5 * rng.standard_normal(points)

    def program(x: Tensor, y: Tensor) -> None:
        prior = dist.MultivariateNormal(torch.zeros(dim), precision_matrix=0.1 * torch.eye(dim))
        w = pyro.sample("w", prior)
        precision = pyro.sample("precision", dist.Gamma(1.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, precision.rsqrt()), obs=y)

    def nodes() -> tuple[Any, list[Any]]:
        from bayespy.nodes import Gamma, Gaussian, GaussianARD, SumMultiply

        w = Gaussian(np.zeros(dim), 0.1 * np.eye(dim))
        precision = Gamma(1.0, 1.0)
        seen = GaussianARD(SumMultiply("i,i", w, x), precision)
        seen.observe(y)
        return bayespy.inference.VB(seen, w, precision), [w, precision]

    return Problem("linear regression", (torch.as_tensor(x), torch.as_tensor(y)), program, {}, nodes)


def counts(points: int, rng: np.random.Generator) -> Problem:
    """A mixture of products of Poisson distributions."""
    dim = 8
    true = rng.gamma(2.0, 3.0, (K, dim))
    x = rng.poisson(true[rng.integers(K, size=points)])
    shape = 10 * true * rng.uniform(0.7, 1.4, true.shape)

    def program(x: Tensor) -> None:
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("components", K):
            rate = pyro.sample("rate", dist.Gamma(torch.ones(dim), 0.1).to_event(1))
        with pyro.plate("data", len(x)):
            r = pyro.sample("r", dist.Categorical(weights), infer={"enumerate": "parallel"})
            pyro.sample("x", dist.Poisson(rate[r]).to_event(1), obs=x)

    def nodes() -> tuple[Any, list[Any]]:
        from bayespy.nodes import Categorical, Dirichlet, Gamma, Mixture, Poisson

        weights = Dirichlet(np.ones(K))
        r = Categorical(weights, plates=(points, 1))
        rate = Gamma(1.0, 0.1, plates=(dim, K))
        rate.initialize_from_parameters(shape.T, 10.0)
        y = Mixture(r, Poisson, rate)
        y.observe(x)
        order = [r, rate, weights]
        return bayespy.inference.VB(y, *order), order

    start = {"rate": dist.Gamma(torch.as_tensor(shape), 10.0).to_event(1)}
    return Problem("mixture of Poissons", (torch.as_tensor(x, dtype=torch.float64),), program, start, nodes)


def sequences(points: int, rng: np.random.Generator) -> Problem:
    """Hidden Markov models of short sequences of symbols, whose states are summed out exactly."""
    length, symbols = 10, 6
    emissions = 0.7 * np.eye(K, symbols) + 0.3 * rng.dirichlet(np.ones(symbols), K)
    rows = 0.6 * np.eye(K) + 0.4 * rng.dirichlet(np.ones(K), K)
    y = np.empty((max(points // length, 1), length), int)
    z = rng.integers(K, size=len(y))
    for t in range(length):
        y[:, t] = (rng.random((len(y), 1)) > emissions[z].cumsum(-1)[:, :-1]).sum(-1)
        z = (rng.random((len(y), 1)) > rows[z].cumsum(-1)[:, :-1]).sum(-1)
    first = 20 * emissions + rng.uniform(0.5, 1.5, emissions.shape)

    def program(y: Tensor) -> None:
        start = pyro.sample("start", dist.Dirichlet(torch.ones(K)))
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(K, K)).to_event(1))
        emissions = pyro.sample("emissions", dist.Dirichlet(torch.ones(K, symbols)).to_event(1))
        with pyro.plate("sequences", len(y)):
            z = None
            for t in pyro.markov(range(length)):
                probs = start if z is None else rows[z]
                z = pyro.sample(f"z_{t}", dist.Categorical(probs), infer={"enumerate": "parallel"})
                pyro.sample(f"y_{t}", dist.Categorical(emissions[z]), obs=y[:, t])

    def nodes() -> tuple[Any, list[Any]]:
        from bayespy.nodes import Categorical, CategoricalMarkovChain, Dirichlet, Mixture

        start, rows = Dirichlet(np.ones(K)), Dirichlet(np.ones(K), plates=(K,))
        emissions = Dirichlet(np.ones(symbols), plates=(K,))
        emissions.initialize_from_parameters(first)
        z = CategoricalMarkovChain(start, rows, states=length, plates=(len(y),))
        seen = Mixture(z, Categorical, emissions)
        seen.observe(y)
        order = [z, rows, start, emissions]
        return bayespy.inference.VB(seen, *order), order

    at = {"emissions": dist.Dirichlet(torch.as_tensor(first)).to_event(1)}
    return Problem("hidden Markov model", (torch.as_tensor(y),), program, at, nodes)


def documents(points: int, rng: np.random.Generator) -> Problem:
    """Latent Dirichlet allocation of short documents: every word has a topic of its own."""
    length, vocabulary = 20, 30
    number = max(points // length, 1)
    true = rng.dirichlet(np.full(vocabulary, 0.2), K)
    shares = rng.dirichlet(np.full(K, 0.3), number)  # [documents, K]
    kinds = (rng.random((length, number, 1)) > shares.cumsum(-1)[:, :-1]).sum(-1)
    y = (rng.random((length, number, 1)) > true.cumsum(-1)[kinds][..., :-1]).sum(-1)  # [words, documents]
    first = 20 * true + rng.uniform(0.5, 1.5, true.shape)

    def program(y: Tensor) -> None:
        with pyro.plate("topics", K):
            topics = pyro.sample("topic_words", dist.Dirichlet(torch.full((vocabulary,), 0.5)))
        with pyro.plate("documents", number, dim=-1):
            shares = pyro.sample("shares", dist.Dirichlet(torch.full((K,), 0.3)))
            with pyro.plate("words", length, dim=-2):
                topic = pyro.sample("topic", dist.Categorical(shares), infer={"enumerate": "parallel"})
                pyro.sample("word", dist.Categorical(topics[topic]), obs=y)

    def nodes() -> tuple[Any, list[Any]]:
        from bayespy.nodes import Categorical, Dirichlet, Mixture

        topics = Dirichlet(np.full(vocabulary, 0.5), plates=(K,))
        topics.initialize_from_parameters(first)
        shares = Dirichlet(np.full(K, 0.3), plates=(number,))
        topic = Categorical(shares, plates=(length, number))
        word = Mixture(topic, Categorical, topics)
        word.observe(y)
        order = [topic, topics, shares]
        return bayespy.inference.VB(word, *order), order

    at = {"topic_words": dist.Dirichlet(torch.as_tensor(first))}
    return Problem("latent Dirichlet allocation", (torch.as_tensor(y),), program, at, nodes)


PROBLEMS = (gaussians, regression, counts, sequences, documents)


@dataclass
class Contestant:
    """A method at work on a problem: ``step`` iterates, ``bound`` reads the bound after what it returned."""

    name: str
    step: Callable[[], Any]
    bound: Callable[[Any], float]
    iterations: int = 0

    def converge(self) -> float:
        """Iterate until the bound gains next to nothing; return it."""
        before, now = -np.inf, self.bound(self.step())
        self.iterations = 1
        while abs(now - before) > TOLERANCE * abs(now) and self.iterations < LIMIT:
            before, now = now, self.bound(self.step())
            self.iterations += 1
        return now


def ours(problem: Problem) -> Contestant:
    """The program under coordinate ascent in steps of rate 1."""
    guide = AutoConjugate(problem.program)
    guide.setup(*problem.data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of a draw of a Wishart that is singular at first
        sites = pyro.poutine.trace(problem.program).get_trace(*problem.data).nodes
    for site in guide.posteriors:
        start = problem.start.get(site, sites[site]["fn"])
        natural = guide.posterior(site).get_parameter("natural")
        with torch.no_grad():
            natural.copy_(natural_prior(start).natural.reshape(natural.shape))
    svi = CapturedSVI(problem.program, guide, NaturalGradient(1.0), TraceConjugate_ELBO())
    step = partial(svi.step, *problem.data)
    return Contestant("CapturedSVI", step, lambda loss: -float(loss))


def theirs(problem: Problem) -> Contestant:
    """BayesPy: every node is updated once in an iteration."""
    engine, order = problem.nodes()

    def step() -> None:
        for node in order:
            node.update()

    return Contestant("BayesPy", step, lambda _: float(engine.compute_lowerbound()))


def measure(problem: Problem, turns: int) -> list[dict[str, Any]]:
    """One record for each method."""
    contestants = [theirs(problem), ours(problem)]
    bounds = [contestant.converge() for contestant in contestants]
    seconds: list[list[float]] = [[] for _ in contestants]
    for _ in range(turns):
        for contestant, found in zip(contestants, seconds, strict=True):
            begun = time.process_time()
            contestant.step()
            found.append(time.process_time() - begun)
    return [
        {
            "model": problem.name,
            "method": contestant.name,
            "bound": bound,
            "iterations": contestant.iterations,
            "ms": round(1e3 * statistics.median(found), 3),
            "ratio": round(statistics.median(a / b for a, b in zip(seconds[0], found, strict=True)), 2),
        }
        for contestant, bound, found in zip(contestants, bounds, seconds, strict=True)
    ]


def as_row(record: dict[str, Any]) -> str:
    """Format a record as a line of the table."""
    cells = f"{record['bound']:20.6f}{record['iterations']:8}{record['ms']:12}{record['ratio']:10}"
    return f"{record['model']:28}{record['method']:12}{cells}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, print."""
    parser = Parser(__doc__, devices=False, pictures=False)
    parser.add_argument("--points", type=natural_number, default=10_000, help="points (default: 10000)")
    parser.add_argument("--turns", type=natural_number, default=20, help="timed iterations (default: 20)")
    options = parser.parse_args(arguments)
    if bayespy is None:
        print("skipped: BayesPy is not installed (pip install bayespy)")
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.json:
        print(f"{machine(torch.device('cpu'))}, BayesPy {bayespy.__version__}, numpy {np.__version__}")
        print(f"{'model':28}{'method':12}{'bound':>20}{'steps':>8}{'ms':>12}{'ratio':>10}")
    torch.set_default_dtype(torch.float64)
    for make in PROBLEMS:
        pyro.clear_param_store()
        for record in measure(make(options.points, np.random.default_rng(options.seed)), options.turns):
            print(json.dumps(record) if options.json else as_row(record), flush=True)


if __name__ == "__main__":
    main()
