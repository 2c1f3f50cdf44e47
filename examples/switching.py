"""A state space whose dynamics switch: a room that is heated now and then, by Gibbs sampling.

    python examples/switching.py [--steps 24] [--draws 200] [--picture switching.png]

The temperature moves towards that outside when the heating is off, and towards a warm one when it is on; a
cheap thermometer adds noise. Neither the temperature nor the heating is known. Given the heating, all
temperatures are one Gaussian vector; given the temperatures, the heating is a Markov chain: each is drawn
whole, where a posterior of independent steps would say far too little of what is unsure. Printed are the
share of steps whose heating is found, and how often 90 % intervals hold the true temperature.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch

from pyro_fmvae import ConjugateGibbs

OUTSIDE, WARM, SPEED = 10.0, 22.0, 0.25  # degrees, and the share of the way in a step
STAYS = 0.9  # probability that the heating stays as it is


def model(y):  # [T]
    on_and_off = torch.tensor([[STAYS, 1 - STAYS], [1 - STAYS, STAYS]])
    noise = pyro.sample("noise", dist.InverseGamma(3.0, 3.0))  # variance of the thermometer
    moves = pyro.sample("moves", dist.InverseGamma(3.0, 0.5))  # variance of a step
    goals = pyro.sample("goals", dist.Normal(torch.tensor([OUTSIDE, WARM]), 3.0).to_event(1))
    heating = torch.zeros((), dtype=torch.int64)
    room = torch.tensor(OUTSIDE)
    for t in pyro.markov(range(len(y))):
        heating = pyro.sample(f"heating_{t}", dist.Categorical(on_and_off[heating]))
        ahead = (1 - SPEED) * room + SPEED * goals[heating]
        room = pyro.sample(f"room_{t}", dist.Normal(ahead, moves.sqrt()))
        pyro.sample(f"y_{t}", dist.Normal(room, noise.sqrt()), obs=y[t])


def data(steps):
    """Readings, and the true heating and temperature, each [T]."""
    heating, room, states, rooms = 0, OUTSIDE, [], []
    for _ in range(steps):
        heating = heating if torch.rand(()) < STAYS else 1 - heating
        room = (1 - SPEED) * room + SPEED * (WARM if heating else OUTSIDE) + 0.3 * float(torch.randn(()))
        states.append(heating)
        rooms.append(room)
    return torch.tensor(rooms) + torch.randn(steps), torch.tensor(states), torch.tensor(rooms)


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--draws", type=int, default=200, help="of each of four chains")
    parser.add_argument("--picture", type=Path, help="file for a picture of the temperatures")
    options = parser.parse_args(argv)
    pyro.set_rng_seed(1)
    y, heating, room = data(options.steps)
    kernel = ConjugateGibbs(model)
    print(kernel.plan(y))
    draws = kernel.draw(y, num_samples=options.draws, warmup_steps=options.draws // 4)
    on, rooms = (
        torch.stack([draws[f"{name}_{t}"] for t in range(options.steps)], -1).flatten(0, 1).float()
        for name in ("heating", "room")
    )
    low, middle, high = rooms.quantile(torch.tensor([0.05, 0.5, 0.95]), 0)
    print(f"heating found: {((on.mean(0) > 0.5) == heating).float().mean():.2f} of the steps")
    print(f"true temperatures inside 90 % intervals: {((low < room) & (room < high)).float().mean():.2f}")
    print(f"variance of the thermometer: {draws['noise'].mean():.2f} (true: 1.00)")
    if options.picture:
        fig, axis = plt.subplots(figsize=(7, 2.8), layout="constrained")
        t = torch.arange(options.steps)
        axis.fill_between(t, low, high, color="#bcd0e5", label="90 % intervals")
        axis.plot(t, middle, color="#3b6ea5")
        axis.plot(t, y, "k.", ms=3, label="readings")
        axis.plot(t, 5 + 2 * on.mean(0), color="#e0702a", label="probability that it is heated")
        axis.set(xlabel="step", ylabel="degrees")
        axis.legend(frameon=False, ncols=3, fontsize=8)
        options.picture.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(options.picture, dpi=100)


if __name__ == "__main__":
    main()
