"""A swing seen by three noisy sensors with gaps: its motion is learnt, and the gaps are filled.

    python examples/sensors.py [--sequences 40] [--steps 150] [--seed 0] [--picture sensors.png]

The state of the swing (two numbers) moves linearly, and each sensor sees a linear function of it. All of that
is unknown. Printed are the period and the damping that are found, and the error in the gaps of new sequences,
beside that with the true numbers in place of posteriors, and that of straight lines across the gaps.
"""

import argparse
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch

from pyro_fmvae import (
    AutoConjugate,
    ConjugateSVI,
    LinearDynamics,
    LinearGaussianChain,
    NaturalGradient,
    TraceConjugate_ELBO,
)

D, SENSORS, T, GAP = 2, 3, 60, 15
PERIOD, DAMPING, NOISE = 20.0, 0.99, 0.3


def model(x, present):  # [B, T, SENSORS]
    nothing, wide = torch.zeros(D), torch.eye(D)
    with pyro.plate("states", D):
        moves = pyro.sample("moves", dist.Gamma(1.0, 0.01))
        a = pyro.sample("a", dist.MultivariateNormal(nothing, precision_matrix=moves[:, None, None] * wide))
    with pyro.plate("sensors", SENSORS):
        noise = pyro.sample("noise", dist.Gamma(1.0, 0.1))
        c = pyro.sample("c", dist.MultivariateNormal(nothing, precision_matrix=noise[:, None, None] * wide))
    states = LinearDynamics(
        dist.MultivariateNormal(nothing, wide), a, dist.Normal(0.0, moves.rsqrt()).to_event(1), T
    )
    seen = dist.Normal(0.0, noise.rsqrt()).mask(present).to_event(1)
    with pyro.plate("sequences", len(x)):
        pyro.sample("x", LinearGaussianChain(states, c, seen), obs=x)


def true_motion():
    """The dynamics of the swing."""
    angle = torch.tensor(2 * math.pi / PERIOD)
    a = DAMPING * torch.tensor([[angle.cos(), -angle.sin()], [angle.sin(), angle.cos()]])
    first, moves = (dist.Normal(torch.zeros(D), scale).to_event(1) for scale in (1.0, 0.05))
    return LinearDynamics(first, a, moves, T)


def swings(number, c):
    """What sensors would see without noise, what they see, and where they see: [number, T, SENSORS] each."""
    clean, begins = true_motion().sample((number,)) @ c.T, torch.randint(5, T - GAP - 5, (number, 1, 1))
    steps = torch.arange(T).view(1, T, 1)
    present = (steps < begins) | (steps >= begins + GAP)
    return clean, clean + NOISE * torch.randn(clean.shape), present.expand(clean.shape)


def lines(x, present):
    """The sequences, with lines across the gaps."""
    filled, steps = x.clone(), np.arange(T)
    for b in range(len(x)):
        there = present[b, :, 0].numpy()
        for j in range(SENSORS):
            filled[b, :, j] = torch.from_numpy(np.interp(steps, steps[there], x[b, there, j].numpy()))
    return filled


def plot(clean, x, present, mean, spread, path):
    """Plot the first sensor of a sequence, and what is thought of it."""
    figure, axes = plt.subplots(figsize=(8.0, 3.0), layout="constrained")
    steps = torch.arange(T)
    axes.fill_between(steps, mean - 2 * spread, mean + 2 * spread, color="C0", alpha=0.25, lw=0)
    axes.plot(steps, mean, color="C0", label="found, and two standard deviations")
    axes.plot(steps, clean, color="0.4", ls="--", label="without noise")
    axes.plot(steps[present], x[present], "k.", ms=5, label="seen")
    axes.set(xlabel="step", ylabel="first sensor", xlim=(0, T - 1))
    axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.15), frameon=False)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for name, default in (("sequences", 40), ("steps", 150), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--picture")
    chosen = parser.parse_args()
    pyro.set_rng_seed(chosen.seed)
    torch.set_default_dtype(torch.float64)
    c = torch.randn(SENSORS, D)
    _, x, present = swings(chosen.sequences, c)
    guide, elbo = AutoConjugate(model, structured=True), TraceConjugate_ELBO()
    svi = ConjugateSVI(model, guide, NaturalGradient(1.0), elbo)
    for _ in range(chosen.steps):
        loss = svi.step(x, present)
    turn = torch.linalg.eigvals(guide.marginal("a").mean.detach())[0]
    period = 2 * math.pi / max(abs(turn.angle().item()), 1e-6)
    print(f"ELBO {-loss:.1f}; period {period:.1f} (true: {PERIOD:.1f})", end=", ")
    print(f"damping {turn.abs().item():.3f} (true: {DAMPING})")
    clean, x, present = swings(20, c)
    with torch.no_grad():
        states = elbo.chains(model, guide, x, present)["x"].posterior()
        weights = guide.marginal("c").mean
        found = states.mean @ weights.T
    noise = dist.Normal(torch.zeros(SENSORS), NOISE).mask(present).to_event(1)
    known = LinearGaussianChain(true_motion(), c, noise).chain(x).mean_path @ c.T
    for name, filled in (("found", found), ("true numbers", known), ("lines", lines(x, present))):
        error = (filled - clean)[~present].square().mean().sqrt().item()
        print(f"error in gaps, {name}: {error:.3f}")
    if chosen.picture:
        spread = (weights[0] @ states.covariance_matrix[0] @ weights[0]).sqrt()
        plot(clean[0, :, 0], x[0, :, 0], present[0, :, 0], found[0, :, 0], spread, chosen.picture)


if __name__ == "__main__":
    main()
