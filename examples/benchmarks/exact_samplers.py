"""Effective draws per second of Gibbs sampling, beside JAGS and Pyro's NUTS on the same model and data.

    python examples/benchmarks/exact_samplers.py [--models hierarchy mixture spike hmm] [--points 100 10000]

JAGS runs if ``jags`` is on the path (Debian's package). For each sampler are printed the processor seconds
before the first draw (setup, compilation), the milliseconds a sweep of one chain takes, and the effective
draws per second of sampling: the smallest of all parameters, but for those that are the same in all draws.
All start at the means of the priors.
"""

import argparse
import json
import math
import re
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS
from pyro.infer.autoguide.initialization import init_to_mean
from pyro.ops.stats import effective_sample_size
from torch import Tensor

from pyro_fmvae import ConjugateGibbs
from pyro_fmvae.distributions import HiddenMarkov

Draws = dict[str, Tensor]
GROUP = 10  # points in a group of the hierarchy
STEPS = 100  # of a sequence


def hierarchy(y: Tensor) -> None:
    """Means of groups around a common one: y [groups, 10]."""
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    tau = pyro.sample("tau", dist.Gamma(2.0, 1.0))
    precision = pyro.sample("precision", dist.Gamma(1.0, 1.0))
    with pyro.plate("groups", len(y), dim=-2):
        theta = pyro.sample("theta", dist.Normal(mu, tau.rsqrt()))
        with pyro.plate("values", y.shape[-1], dim=-1):
            pyro.sample("y", dist.Normal(theta, precision.rsqrt()), obs=y)


def mixture(y: Tensor) -> None:
    """Two normal components: y [N]."""
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
    with pyro.plate("components", 2):
        mu = pyro.sample("mu", dist.Normal(torch.tensor([-1.0, 1.0]), 2.0))
        precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
    with pyro.plate("points", len(y)):
        z = pyro.sample("z", dist.Categorical(weights))
        pyro.sample("y", dist.Normal(mu[z], precision[z].rsqrt()), obs=y)


def spike(x: Tensor, y: Tensor) -> None:
    """Weights of a regression that are 0 or normal: x [N, 12], y [N]."""
    with pyro.plate("columns", x.shape[-1]):
        is_in = pyro.sample("is_in", dist.Bernoulli(0.3))
        weights = pyro.sample("weights", dist.Normal(0.0, 2.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(x @ (is_in * weights), 0.7), obs=y)


def hmm(y: Tensor) -> None:
    """Two states with normal observations: y [sequences, 100]."""
    with pyro.plate("states", 2):
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(2)))
        mu = pyro.sample("mu", dist.Normal(torch.tensor([-1.0, 1.0]), 2.0))
        precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
    start = torch.full((2,), 0.5)
    with pyro.plate("sequences", len(y)):
        states = HiddenMarkov(start, rows, dist.Normal(mu, precision.rsqrt()), y.shape[-1])
        pyro.sample("y", states, obs=y)


JAGS = {
    "hierarchy": """model {
  mu ~ dnorm(0, 0.01)  tau ~ dgamma(2, 1)  precision ~ dgamma(1, 1)
  for (g in 1:dim[1]) {
    theta[g] ~ dnorm(mu, tau)
    for (i in 1:dim[2]) { y[g, i] ~ dnorm(theta[g], precision) }
  }
}""",
    "mixture": """model {
  weights ~ ddirch(ones)
  for (k in 1:2) { mu[k] ~ dnorm(2 * k - 3, 0.25)  precision[k] ~ dgamma(2, 1) }
  for (i in 1:dim[1]) { z[i] ~ dcat(weights)  y[i] ~ dnorm(mu[z[i]], precision[z[i]]) }
}""",
    "spike": """model {
  for (k in 1:12) { is_in[k] ~ dbern(0.3)  w[k] ~ dnorm(0, 0.25)  coef[k] <- is_in[k] * w[k] }
  m <- x %*% coef
  for (i in 1:dim[1]) { y[i] ~ dnorm(m[i], 1 / 0.49) }
}""",
    "hmm": """model {
  for (k in 1:2) {
    rows[k, 1:2] ~ ddirch(ones)  mu[k] ~ dnorm(2 * k - 3, 0.25)  precision[k] ~ dgamma(2, 1)
  }
  for (s in 1:dim[1]) {
    z[s, 1] ~ dcat(ones)
    for (t in 2:dim[2]) { z[s, t] ~ dcat(rows[z[s, t - 1], ]) }
    for (t in 1:dim[2]) { y[s, t] ~ dnorm(mu[z[s, t]], precision[z[s, t]]) }
  }
}""",
}
MODELS: dict[str, tuple[Callable[..., None], list[str]]] = {
    "hierarchy": (hierarchy, ["mu", "tau", "precision"]),
    "mixture": (mixture, ["mu", "precision", "weights"]),
    "spike": (spike, ["coef"]),
    "hmm": (hmm, ["mu", "precision", "rows"]),
}


def data_of(model: str, points: int) -> tuple[Tensor, ...]:
    """Data of the model's own kind: the arguments of the program."""
    if model == "hierarchy":
        return (2 + torch.randn(points // GROUP, 1) + 2 * torch.randn(points // GROUP, GROUP),)
    if model == "spike":
        x = torch.randn(points, 12)
        x[:, 1] = x[:, 0] + 0.5 * torch.randn(points)
        return x, x[:, 0] - 1.5 * x[:, 2] + 0.3 * x[:, 5] + 0.7 * torch.randn(points)
    z = (torch.rand(points) < 0.4).double()
    if model == "hmm":
        z = ((torch.rand(points // STEPS, STEPS) < 0.1).cumsum(-1) % 2).double()
    return (torch.where(z == 1, -2.0, 2.0) + torch.randn(z.shape),)


def smallest(draws: Draws, names: list[str]) -> float:
    """The smallest effective sample size of the parameters, whose draws are [chains, draws, ...]."""
    if "is_in" in draws:
        draws = {**draws, "coef": draws["is_in"] * draws["weights"]}
    sizes = [effective_sample_size(draws[name].double(), chain_dim=0, sample_dim=1) for name in names]
    return min(float(size.nan_to_num(math.inf).min()) for size in sizes)  # NaN: they are all the same


def gibbs(
    name: str, data: tuple[Tensor, ...], draws: int, chains: int, compile: bool
) -> tuple[float, float, float]:
    """Seconds before the first draw, milliseconds per sweep and chain, effective draws per second."""
    model, names = MODELS[name]
    kernel, spent = ConjugateGibbs(model, init_strategy=init_to_mean, compile=compile), []
    for count in (1, 1, draws):  # the second call has what the third repeats before its first draw
        start = time.process_time()
        found = kernel.draw(*data, num_samples=count, warmup_steps=count // 4, num_chains=chains)
        spent.append(time.process_time() - start)
    before, again, whole = spent
    seconds = max(whole - again, 1e-9)
    return before, 1e3 * seconds / (1.25 * draws * chains), smallest(found, names) / seconds


def nuts(name: str, data: tuple[Tensor, ...], draws: int, chains: int) -> tuple[float, float, float]:
    """The same of Pyro's NUTS, with discrete sites summed out; a chain of a twentieth of the draws."""
    model, names = MODELS[name]
    kernel, start = NUTS(model, init_strategy=init_to_mean), time.process_time()
    mcmc = MCMC(kernel, num_samples=draws // 20, warmup_steps=draws // 40, disable_progbar=True)
    mcmc.run(*data)
    seconds = time.process_time() - start
    found = {site: value.unsqueeze(0) for site, value in mcmc.get_samples().items()}
    return 0.0, 1e3 * seconds / (draws // 20 + draws // 40), smallest(found, names) / seconds


def written(x: Tensor) -> str:
    """A tensor as R writes it."""
    flat = ", ".join(map(repr, np.asarray(x).flatten(order="F").tolist()))
    shape = ", ".join(map(str, x.shape))
    return f"structure(c({flat}), .Dim = c({shape}))" if x.dim() > 1 else f"c({flat})"


def jags(name: str, data: tuple[Tensor, ...], draws: int, chains: int) -> tuple[float, float, float]:
    """The same of JAGS: one chain of as many draws, in as many pieces."""
    draws *= chains
    names = MODELS[name][1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "model").write_text(JAGS[name])
        own = {"y": data[-1], "dim": torch.tensor(data[-1].shape), "ones": torch.ones(2), "x": data[0]}
        used = {key: value for key, value in own.items() if re.search(rf"\b{key}\b", JAGS[name])}
        (path / "data").write_text("\n".join(f'"{key}" <- {written(value)}' for key, value in used.items()))

        def seconds(count: int) -> float:
            monitors = "\n".join(f"monitor {each}" for each in names)
            (path / "script").write_text(
                'model in "model"\ndata in "data"\ncompile\ninitialize\n'
                f"update {max(count // 4, 1)}\n{monitors}\nupdate {max(count, 1)}\ncoda *\n"
            )
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            subprocess.run(["jags", "script"], cwd=path, check=True, capture_output=True)
            return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before

        start = seconds(0)
        rest = max(seconds(draws) - start, 1e-9)
        values = torch.from_numpy(np.loadtxt(path / "CODAchain1.txt")[:, 1]).view(-1, draws)
        size = smallest({"all": values.view(len(values), chains, -1).permute(1, 2, 0)}, ["all"])
        return start, 1e3 * rest / (1.25 * draws), size / rest


def main(argv: list[str] | None = None) -> None:
    """Run the samplers, one after another for each size, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--points", nargs="+", type=int, default=[100, 1000, 10000])
    parser.add_argument("--draws", type=int, default=2000, help="of each chain")
    parser.add_argument("--chains", type=int, default=4, help="of Gibbs sampling, all at once")
    parser.add_argument("--samplers", nargs="+", default=["jags", "gibbs", "compiled", "nuts"])
    parser.add_argument("--out", type=Path, help="file to write the rows to, as JSON")
    options = parser.parse_args(argv)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    samplers: dict[str, Callable[[str, tuple[Tensor, ...], int, int], tuple[float, float, float]]] = {
        "jags": jags,
        "gibbs": lambda *given: gibbs(*given, compile=False),
        "compiled": lambda *given: gibbs(*given, compile=True),
        "nuts": nuts,
    }
    rows = []
    print(f"{'model':10} {'points':>7} {'sampler':9} {'before, s':>9} {'ms':>8} {'ESS/s':>9}")
    for name in options.models:
        for points in options.points:
            pyro.set_rng_seed(0)
            data = data_of(name, points)
            for sampler in options.samplers:
                if sampler == "jags" and not shutil.which("jags"):
                    continue
                if (name, sampler) == ("spike", "nuts"):  # no enumeration of 2^12 subsets
                    continue
                before, sweep, rate = samplers[sampler](name, data, options.draws, options.chains)
                rows.append([name, points, sampler, before, sweep, rate if math.isfinite(rate) else None])
                print(f"{name:10} {points:7} {sampler:9} {before:9.2f} {sweep:8.3f} {rate:9.0f}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
