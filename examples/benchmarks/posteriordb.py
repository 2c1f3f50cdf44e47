"""Posteriors of posteriordb (Magnusson et al.) in four ways, beside the reference draws of Stan.

    python examples/benchmarks/posteriordb.py FOLDER [--names arK-arK ...] [--draws 2000] [--out FILE.json]

FOLDER has ``reference.json`` (mean and standard deviation of each parameter, by posterior) and ``data/``.
Each program is written from the model's description. Printed are, for each posterior, the largest error of
a mean in posterior standard deviations, the largest error of a standard deviation in per cent, the smallest
effective sample size, the k-hat of variational posteriors, and the seconds. ``gibbs`` is ``ConjugateGibbs``;
``nuts`` is NUTS with all sites integrated out that can be, or none if there is no such site; ``mean-field``
and ``joint`` are those of ``AutoConjugate``. A half-Cauchy scale is written as two inverse Gammas (Wand et
al., 2011), a flat one by a factor of the precision.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, Predictive
from pyro.infer.autoguide.initialization import init_to_mean, init_to_uniform, init_to_value
from pyro.ops.stats import effective_sample_size
from torch import Tensor

from pyro_fmvae import (
    AutoConjugate,
    CapturedNUTS,
    CapturedSVI,
    ConjugateGibbs,
    HiddenMarkov,
    NaturalGradient,
    TraceConjugate_ELBO,
    collapse,
    khat,
)

WIDE = 1e8  # standard deviation in the place of a flat prior's


class Posterior(NamedTuple):
    """A program.

    Args:
        model, args: the program and its data.
        parameters: those of the reference, by name, from draws by site, each [S, ...].
        first: gives first values. The reference has components in order, so chains begin in that order.
    """

    model: Callable[..., Any]
    args: tuple[Any, ...]
    parameters: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    first: Callable[..., Any] = init_to_uniform


def flat_scale() -> Tensor:
    """A standard deviation with a flat prior: the precision's density is τ^(-3/2)."""
    precision = pyro.sample("precision", dist.Gamma(1.0, 1e-12))
    pyro.factor("flat", -1.5 * precision.log())
    return precision.rsqrt()


def half_cauchy(scale: float, name: str = "variance") -> Tensor:
    """A standard deviation with a half-Cauchy prior: its square is inverse Gamma given an inverse Gamma."""
    mixing = pyro.sample(f"{name}_mixing", dist.InverseGamma(0.5, 1 / scale**2))
    return pyro.sample(name, dist.InverseGamma(0.5, 1 / mixing)).sqrt()


def half_normal(scale: float) -> Tensor:
    """A standard deviation with a half-normal prior, which no family of posteriors goes with."""
    return pyro.sample("sigma", dist.HalfNormal(scale))


def sigma_of(draws: dict[str, Tensor]) -> Tensor:
    """Draws of the standard deviation of a regression, however it was written."""
    if "sigma" in draws:
        return draws["sigma"]
    return draws["variance"].sqrt() if "variance" in draws else draws["precision"].rsqrt()


def columns(values: Tensor, name: str) -> dict[str, Tensor]:
    """Draws [S, K] by the names of the reference, which count from 1."""
    return {f"{name}[{k + 1}]": column for k, column in enumerate(values.unbind(-1))}


def linear(
    x: list[Tensor],
    y: Tensor,
    scale: Callable[[], Tensor] = flat_scale,
    loc: Tensor | float = 0.0,
    spread: Tensor | float = WIDE,
    names: tuple[str, ...] = (),
) -> Posterior:
    """A linear regression on columns.

    Args:
        x: K columns [N].
        y: [N].
        scale: samples the standard deviation of the noise.
        loc, spread: of the weights, numbers or [K].
        names: of the weights in the reference, if they are not ``beta[1]`` and so on.
    """
    design = torch.stack(x, -1)

    def model(design: Tensor, y: Tensor) -> None:
        width = design.shape[-1]
        prior = dist.Normal(torch.as_tensor(loc).expand(width), torch.as_tensor(spread).expand(width))
        beta = pyro.sample("beta", prior.to_event(1))
        sigma = scale()
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(design @ beta, sigma), obs=y)

    def parameters(draws: dict[str, Tensor]) -> dict[str, Tensor]:
        weights = columns(draws["beta"], "beta")
        if names:
            weights = dict(zip(names, weights.values(), strict=True))
        return {**weights, "sigma": sigma_of(draws)}

    return Posterior(model, (design, y), parameters)


Data = dict[str, Any]


def one(x: Tensor) -> Tensor:
    return torch.ones_like(x)


def standardised(x: Tensor, by: float = 1.0) -> Tensor:
    return (x - x.mean()) / (by * x.std())


def kidscore(kind: str) -> Callable[[Data], Posterior]:
    def make(d: Data) -> Posterior:
        y, hs, iq = d["kid_score"], d["mom_hs"], d["mom_iq"]
        if kind == "mom_work":
            return linear([one(y), *((d["mom_work"] == k).double() for k in (2, 3, 4))], y)
        if kind.startswith("interaction_"):
            if kind[-1] == "c":
                hs, iq = hs - hs.mean(), iq - iq.mean()
            else:
                hs, iq = standardised(hs, 2.0), standardised(iq, 2.0)
            return linear([one(y), hs, iq, hs * iq], y)
        chosen = {"momhs": [hs], "momiq": [iq], "momhsiq": [hs, iq], "interaction": [hs, iq, hs * iq]}[kind]
        return linear([one(y), *chosen], y, lambda: half_cauchy(2.5))

    return make


def earnings(kind: str) -> Callable[[Data], Posterior]:
    def make(d: Data) -> Posterior:
        earn, height, male = d["earn"], d["height"], d["male"]
        y = {"earn": earn, "log10": earn.log10()}.get(kind.split("_")[0], earn.log())
        if kind.endswith("_z"):
            height = standardised(height)
        x = [one(y), height]
        if "male" in kind or "interaction" in kind:
            x.append(male)
        if "interaction" in kind:
            x.append(height * male)
        return linear(x, y)

    return make


def mesquite(kind: str) -> Callable[[Data], Posterior]:
    def make(d: Data) -> Posterior:
        y, one_, two, height = d["weight"].log(), d["diam1"], d["diam2"], d["canopy_height"]
        volume, area, shape = (one_ * two * height).log(), (one_ * two).log(), (one_ / two).log()
        total = d["total_height"].log()
        x = {
            "": [one_.log(), two.log(), height.log(), total, d["density"].log(), d["group"]],
            "logva": [volume, area, d["group"]],
            "logvash": [volume, area, shape, total, d["group"]],
            "logvolume": [volume],
        }[kind]
        return linear([one(y), *x], y)

    return make


def nes(d: Data) -> Posterior:
    ages = [(d["age_discrete"] == k).double() for k in (2, 3, 4)]
    others = d["educ1"], d["gender"], d["income"]
    return linear([one(d["income"]), d["real_ideo"], d["race_adj"], *ages, *others], d["partyid7"])


def blr(d: Data) -> Posterior:
    return linear(list(d["X"].unbind(-1)), d["y"], lambda: half_normal(10.0), spread=10.0)


def kilpisjarvi(d: Data) -> Posterior:
    loc = torch.stack([d["pmualpha"], d["pmubeta"]])
    spread = torch.stack([d["psalpha"], d["psbeta"]])
    return linear([one(d["x"]), d["x"]], d["y"], loc=loc, spread=spread, names=("alpha", "beta"))


def ar(d: Data) -> Posterior:
    lags, y = int(d["K"]), d["y"]
    x = [one(y[lags:]), *(y[lags - k - 1 : len(y) - k - 1] for k in range(lags))]
    names = "alpha", *(f"beta[{k + 1}]" for k in range(lags))
    return linear(x, y[lags:], lambda: half_cauchy(2.5), spread=10.0, names=names)


def arma(d: Data) -> Posterior:
    y = d["y"]
    shift = torch.diag(torch.ones(len(y) - 1), -1)

    def model(y: Tensor) -> None:
        mu, phi = pyro.sample("mu", dist.Normal(0.0, 10.0)), pyro.sample("phi", dist.Normal(0.0, 2.0))
        theta, sigma = pyro.sample("theta", dist.Normal(0.0, 2.0)), half_cauchy(2.5)
        before = torch.cat([mu.reshape(1), y[:-1]])
        ahead = (y - mu - phi * before).unsqueeze(-1)
        error = torch.linalg.solve_triangular(torch.eye(len(y)) + theta * shift, ahead, upper=False)
        with pyro.plate("steps", len(y)):
            pyro.sample("error", dist.Normal(error.squeeze(-1), sigma), obs=torch.zeros(len(y)))

    def parameters(s: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**{name: s[name] for name in ("mu", "phi", "theta")}, "sigma": sigma_of(s)}

    zeros = {name: torch.zeros(()) for name in ("mu", "phi", "theta")}  # from a large theta, errors explode
    return Posterior(model, (y,), parameters, init_to_value(values=zeros, fallback=init_to_uniform))


def eight_schools(d: Data) -> Posterior:
    def model(y: Tensor, known: Tensor) -> None:
        mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = half_cauchy(5.0)
        with pyro.plate("schools", len(y)):
            theta = pyro.sample("theta", dist.Normal(mu, tau))
            pyro.sample("y", dist.Normal(theta, known), obs=y)

    def parameters(s: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**columns(s["theta"], "theta"), "mu": s["mu"], "tau": s["variance"].sqrt()}

    return Posterior(model, (d["y"], d["sigma"]), parameters)


def two_normals(d: Data) -> Posterior:
    def model(y: Tensor) -> None:
        share = pyro.sample("share", dist.Beta(5.0, 5.0))
        with pyro.plate("components", 2):
            mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
            sigma = pyro.sample("sigma", dist.HalfNormal(2.0))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Bernoulli(share)).long()  # 0: the second component
            pyro.sample("y", dist.Normal(mu[1 - z], sigma[1 - z]), obs=y)

    def parameters(s: dict[str, Tensor]) -> dict[str, Tensor]:
        order = s["mu"].argsort(-1)
        share = torch.where(order[:, 0] == 0, s["share"], 1 - s["share"])
        found = {name: s[name].gather(-1, order) for name in ("mu", "sigma")}
        return {**columns(found["mu"], "mu"), **columns(found["sigma"], "sigma"), "theta": share}

    return Posterior(model, (d["y"],), parameters)


def hmm_example(d: Data) -> Posterior:
    def model(y: Tensor) -> None:
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(2, 2)).to_event(1))
        mu = pyro.sample("mu", dist.Normal(torch.tensor([3.0, 10.0]), 1.0).to_event(1))
        fn = HiddenMarkov(torch.full((2,), 0.5), rows, dist.Normal(mu, 1.0), len(y))
        pyro.sample("y", fn, obs=y)

    def parameters(s: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = {f"theta{k + 1}": s["rows"][:, k] for k in range(2)}
        return {n: v for name, row in rows.items() for n, v in columns(row, name).items()} | columns(
            s["mu"], "mu"
        )

    return Posterior(model, (d["y"],), parameters, init_to_mean)


def hmm_drive(d: Data) -> Posterior:
    prior = dist.Normal(torch.tensor([0.0, 3.0]), 1.0)

    def ordered(name: str) -> Tensor:
        first = pyro.sample(f"{name}_first", dist.HalfNormal(1.0))
        step = pyro.sample(f"{name}_step", dist.HalfNormal(3.0))
        values = torch.stack([first, first + step])
        density = prior.log_prob(values).sum()
        own = dist.HalfNormal(1.0).log_prob(first) + dist.HalfNormal(3.0).log_prob(step)
        pyro.factor(f"{name}_prior", density - own)
        return values

    def model(data: Tensor, alpha: Tensor) -> None:
        rows = pyro.sample("rows", dist.Dirichlet(alpha).to_event(1))
        rates = torch.stack([ordered("phi"), ordered("lambda")], -1)
        fn = HiddenMarkov(torch.full((2,), 0.5), rows, dist.Exponential(rates).to_event(1), len(data))
        pyro.sample("data", fn, obs=data)

    def parameters(s: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {n: v for k in range(2) for n, v in columns(s["rows"][:, k], f"theta{k + 1}").items()}
        for name in ("phi", "lambda"):
            first = s[f"{name}_first"]
            found |= columns(torch.stack([first, first + s[f"{name}_step"]], -1), name)
        return found

    data = torch.stack([d["u"], d["v"]], -1)
    rates = 1 / data.mean(0)  # a state's are one below and one above
    near = {"phi_first": 0.8 * rates[0], "phi_step": 2 * rates[0]}
    near |= {"lambda_first": 0.8 * rates[1], "lambda_step": 2 * rates[1]}
    first = partial(init_to_value, values=near, fallback=init_to_mean)
    return Posterior(model, (data, d["alpha"]), parameters, first)


PROGRAMS: dict[str, Callable[[Data], Posterior]] = {
    "arK-arK": ar,
    "arma-arma11": arma,
    "bball_drive_event_0-hmm_drive_0": hmm_drive,
    "earnings-earn_height": earnings("earn_height"),
    "earnings-log10earn_height": earnings("log10_height"),
    **{
        f"earnings-logearn_{k}": earnings(f"log_{k}")
        for k in ("height", "height_male", "interaction", "interaction_z")
    },
    "eight_schools-eight_schools_noncentered": eight_schools,
    "hmm_example-hmm_example": hmm_example,
    **{f"kidiq-kidscore_{k}": kidscore(k) for k in ("interaction", "momhs", "momhsiq", "momiq")},
    **{
        f"kidiq_with_mom_work-kidscore_{k}": kidscore(k)
        for k in ("interaction_c", "interaction_z", "mom_work")
    },
    "kilpisjarvi_mod-kilpisjarvi": kilpisjarvi,
    "low_dim_gauss_mix-low_dim_gauss_mix": two_normals,
    "mesquite-logmesquite": mesquite(""),
    **{f"mesquite-logmesquite_{k}": mesquite(k) for k in ("logva", "logvash", "logvolume")},
    **{f"nes{year}-nes": nes for year in (1972, 1976, 1980, 1984, 1988, 1992, 2000)},
    "sblrc-blr": blr,
}


Found = tuple[dict[str, Tensor], float]


def gibbs(posterior: Posterior, draws: int) -> Found:
    """Draws by site, [chains, draws, ...], and no k-hat."""
    kernel = ConjugateGibbs(posterior.model, init_strategy=posterior.first)
    return kernel.draw(*posterior.args, num_samples=draws, warmup_steps=draws // 4), math.nan


def nuts(posterior: Posterior, draws: int) -> Found:
    """Two chains of a fifth of the draws, which depend less on each other; every other one is kept."""
    collapsed = collapse(posterior.model)
    try:
        collapsed.setup(*posterior.args)
        program: Any = collapsed
    except ValueError:
        program = posterior.model
    chains = []
    for _ in range(2):
        kernel = CapturedNUTS(program, init_strategy=posterior.first)
        mcmc = MCMC(kernel, num_samples=draws // 5, warmup_steps=100, disable_progbar=True)
        mcmc.run(*posterior.args)
        samples = {name: values[::2] for name, values in mcmc.get_samples().items()}
        if program is collapsed:
            samples |= collapsed.recover(samples, *posterior.args)
        chains.append(samples)
    return {name: torch.stack([chain[name] for chain in chains]) for name in chains[0]}, math.nan


def variational(posterior: Posterior, draws: int, joint: Any = ()) -> Found:
    """Draws of an ``AutoConjugate``, [1, draws, ...], and its k-hat."""
    guide = AutoConjugate(posterior.model, joint=joint)
    optim = NaturalGradient(0.3, partial(torch.optim.Adam, lr=0.02))
    svi = CapturedSVI(posterior.model, guide, optim, TraceConjugate_ELBO())
    for _ in range(500):
        svi.step(*posterior.args)
    with torch.no_grad():
        shapes = {n: v.shape for n, v in guide(*posterior.args).items()}
        found = Predictive(guide, num_samples=draws)(*posterior.args)
    samples = {n: v.reshape(1, draws, *shapes[n]) for n, v in found.items() if n in shapes}
    return samples, khat(posterior.model, guide, *posterior.args, num_samples=500)


METHODS: dict[str, Callable[[Posterior, int], Found]] = {
    "gibbs": gibbs,
    "nuts": nuts,
    "mean-field": variational,
    "joint": partial(variational, joint="auto"),
}


def compared(posterior: Posterior, draws: dict[str, Tensor], reference: dict[str, Any]) -> dict[str, float]:
    """The largest errors of any parameter, and what is within the aims.

    A mean is within 0.1 standard deviations and three Monte Carlo errors, a spread within 5 % and three.
    """
    chains = next(iter(draws.values())).shape[0]
    flat = {name: values.flatten(0, 1) for name, values in draws.items()}
    found = posterior.parameters(flat)
    means, spreads, sizes, good = [], [], [], True
    for name, known in reference["parameters"].items():
        x = found[name].view(chains, -1).double()
        size = float(effective_sample_size(x, chain_dim=0, sample_dim=1))
        mean = abs(float(x.mean()) - known["mean"]) / known["sd"]
        spread = abs(float(x.std()) / known["sd"] - 1)
        good &= mean < 0.1 + 3 / math.sqrt(size) and spread < 0.05 + 3 / math.sqrt(2 * size)
        means.append(mean)
        spreads.append(spread)
        sizes.append(size)
    return {"mean": max(means), "spread": max(spreads), "ess": min(sizes), "good": bool(good)}


def load(folder: Path, name: str) -> Data:
    """The data of a posterior, as float64 tensors."""
    data = json.loads((folder / "data" / f"{name.partition('-')[0]}.json").read_text())
    return {key: torch.tensor(value, dtype=torch.float64) for key, value in data.items()}


def main(argv: list[str] | None = None) -> None:
    """Run the methods on the posteriors and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--names", nargs="+", default=list(PROGRAMS), choices=list(PROGRAMS), metavar="NAME")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--draws", type=int, default=2000, help="of each of four chains")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file to write the rows to, as JSON")
    options = parser.parse_args(argv)
    torch.set_default_dtype(torch.float64)
    reference = json.loads((options.folder / "reference.json").read_text())
    rows = []
    print(f"{'posterior':45} {'method':10} {'mean':>6} {'spread':>7} {'ESS':>6} {'k-hat':>6} {'s':>6}")
    for name in options.names:
        for method in options.methods:
            pyro.set_rng_seed(options.seed)
            pyro.clear_param_store()
            posterior = PROGRAMS[name](load(options.folder, name))
            start = time.process_time()
            draws, shape = METHODS[method](posterior, options.draws)
            seconds = time.process_time() - start
            row = compared(posterior, draws, reference[name])
            rows.append({"posterior": name, "method": method, **row, "khat": shape, "seconds": seconds})
            print(
                f"{name:45} {method:10} {row['mean']:6.3f} {100 * row['spread']:6.1f}% {row['ess']:6.0f} "
                f"{shape:6.2f} {seconds:6.1f}{'' if row['good'] else '  outside the aims'}",
                flush=True,
            )
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
