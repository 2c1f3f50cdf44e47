"""Recordings of a bird that rests, feeds or sings: what it does is found from the number of sounds alone.

    python examples/hidden_states.py [--recordings 40] [--steps 40] [--starts 5] [--picture hidden-states.png]

What the bird does in a minute is a hidden state, which lasts for a while. Several random starts are tried,
and the one with the best bound is kept. Printed are the rates and the share of minutes whose state is found,
beside that of the true rates without the chain, which take each minute by itself.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from matplotlib.colors import ListedColormap

from pyro_fmvae import AutoConjugate, CapturedSVI, HiddenMarkov, NaturalGradient, TraceConjugate_ELBO

K, LONGEST = 3, 150
RATES = torch.tensor([1.0, 3.0, 6.0])
STAYS = 0.93  # probability of the same state a minute later
COLOURS = ("#dfe7f0", "#f3dcae", "#e9a59a")


def model(counts, lengths):  # [B, LONGEST], [B]
    start = pyro.sample("start", dist.Dirichlet(torch.ones(K)))
    with pyro.plate("states", K):
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(K)))
        rates = pyro.sample("rates", dist.Gamma(1.0, 0.2))
    with pyro.plate("recordings", len(counts)):
        pyro.sample("counts", HiddenMarkov(start, rows, dist.Poisson(rates), LONGEST, lengths), obs=counts)


def recordings(number):
    """Counts [number, LONGEST], their lengths [number], and the true states [number, LONGEST]."""
    rows = (1 - STAYS) / (K - 1) * torch.ones(K, K) + (STAYS - (1 - STAYS) / (K - 1)) * torch.eye(K)
    states = [torch.randint(K, (number,))]
    for _ in range(1, LONGEST):
        states.append(dist.Categorical(rows[states[-1]]).sample())
    states = torch.stack(states, -1)
    return torch.poisson(RATES[states]), torch.randint(60, LONGEST + 1, (number,)), states


def learn(counts, lengths, steps, starts):
    """The guide with the best bound of several random starts."""
    best = torch.inf, None
    for _ in range(starts):
        guide = AutoConjugate(model)
        svi = CapturedSVI(model, guide, NaturalGradient(1.0), TraceConjugate_ELBO())
        for _ in range(steps):
            loss = svi.step(counts, lengths)
        best = min(best, (loss, guide), key=lambda pair: pair[0])
    return best[1]


def plot(counts, states, found, probabilities, path):
    """Plot a recording: its counts over the true states, the states found, and their probabilities."""
    figure, (top, middle, bottom) = plt.subplots(
        3, 1, figsize=(8.0, 4.4), height_ratios=(3, 0.5, 2), sharex=True, layout="constrained"
    )
    minutes = torch.arange(len(counts))
    colours = ListedColormap(COLOURS)
    for axes, strip in ((top, states), (middle, found)):
        extent = (-0.5, len(counts) - 0.5, 0, 1)
        axes.imshow(
            strip[None], cmap=colours, vmin=0, vmax=K - 1, aspect="auto", extent=extent,
            transform=axes.get_xaxis_transform(), interpolation="nearest",
        )  # fmt: skip
    top.plot(minutes, counts, color="0.2", lw=1, marker=".", ms=4)
    top.set(ylabel="sounds", xlim=(-0.5, len(counts) - 0.5), ylim=(-0.5, counts.max() + 1))
    top.set_title(
        "sounds per minute; behind them, what the bird did: rest (blue), feed (yellow), sing (red)",
        fontsize=9,
    )
    middle.set(yticks=[], ylim=(0, 1))
    middle.set_title("the most probable path", fontsize=9)
    bottom.stackplot(minutes, probabilities.T, colors=COLOURS)
    bottom.set(xlabel="minute", ylabel="probability", ylim=(0, 1))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for name, default in (("recordings", 40), ("steps", 40), ("starts", 5), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--picture")
    chosen = parser.parse_args()
    pyro.set_rng_seed(chosen.seed)
    counts, lengths, states = recordings(chosen.recordings)
    guide = learn(counts, lengths, chosen.steps, chosen.starts)
    rates = guide.posterior("rates")().mean.detach()
    order = rates.argsort()  # states have no order of their own
    rank = order.argsort()
    chain = TraceConjugate_ELBO().chains(model, guide, counts, lengths)["counts"]
    found, there = rank[chain.best_path()], torch.arange(LONGEST) < lengths.unsqueeze(-1)
    alone = dist.Poisson(RATES).log_prob(counts.unsqueeze(-1)).argmax(-1)  # at the true rates
    print("rates:", ", ".join(f"{rate:.2f}" for rate in rates[order].tolist()))
    print("stays:", ", ".join(f"{p:.2f}" for p in guide.posterior("rows")().mean.diagonal()[order].tolist()))
    for name, path in (("by the best path", found), ("minute by minute, at the true rates", alone)):
        print(f"states {name}: {100 * (path == states)[there].double().mean():.1f} % right")
    if chosen.picture:
        n = int(lengths[0])
        probabilities = chain.posterior()[0, :n, order]
        plot(counts[0, :n], states[0, :n], found[0, :n], probabilities, chosen.picture)


if __name__ == "__main__":
    main()
