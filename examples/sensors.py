"""A swing seen by three noisy sensors with gaps: its motion is learnt, and the gaps are filled.

    python examples/sensors.py [--sequences 40] [--steps 150] [--shared 0] [--seed 0] [--picture sensors.png]

The state of the swing (two numbers) moves linearly, and each sensor sees a linear function of it. All of that
is unknown. Printed are the period and the damping that are found, and the error in the gaps of new sequences,
beside that with the true numbers in place of posteriors, and that of straight lines across the gaps. With
``--shared 0.8``, four fifths of the variance of the sensors' noises are a disturbance that all of them have.
Then a model in which their noise has a full covariance matrix learns beside the one with independent noises.
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


def model(x, present, is_full=False):  # [B, T, SENSORS] twice
    nothing, wide = torch.zeros(D), torch.eye(D)
    with pyro.plate("states", D):
        moves = pyro.sample("moves", dist.Gamma(1.0, 0.01))
        a = pyro.sample("a", dist.MultivariateNormal(nothing, precision_matrix=moves[:, None, None] * wide))
    if is_full:
        noise = pyro.sample(
            "noise", dist.Wishart(torch.tensor(SENSORS + 1.0), precision_matrix=torch.eye(SENSORS))
        )
        rows = dist.MultivariateNormal(torch.zeros(D, SENSORS), precision_matrix=noise)
        c = pyro.sample("c", rows.to_event(1)).mT
        seen = dist.MultivariateNormal(torch.zeros(SENSORS), precision_matrix=noise).mask(present[..., 0])
    else:
        with pyro.plate("sensors", SENSORS):
            noise = pyro.sample("noise", dist.Gamma(1.0, 0.1))
            rows = dist.MultivariateNormal(nothing, precision_matrix=noise[:, None, None] * wide)
            c = pyro.sample("c", rows)
        seen = dist.Normal(0.0, noise.rsqrt()).mask(present).to_event(1)
    states = LinearDynamics(
        dist.MultivariateNormal(nothing, wide), a, dist.Normal(0.0, moves.rsqrt()).to_event(1), T
    )
    with pyro.plate("sequences", len(x)):
        pyro.sample("x", LinearGaussianChain(states, c, seen), obs=x)


def true_motion():
    """The dynamics of the swing."""
    angle = torch.tensor(2 * math.pi / PERIOD)
    a = DAMPING * torch.tensor([[angle.cos(), -angle.sin()], [angle.sin(), angle.cos()]])
    first, moves = (dist.Normal(torch.zeros(D), scale).to_event(1) for scale in (1.0, 0.05))
    return LinearDynamics(first, a, moves, T)


def noise_of_sensors(shared):
    """The noise of the sensors, of whose variance they share a part."""
    covariance = NOISE**2 * ((1 - shared) * torch.eye(SENSORS) + shared)
    return dist.MultivariateNormal(torch.zeros(SENSORS), covariance)


def swings(number, c, shared):
    """What sensors would see without noise, what they see, and where they see: [number, T, SENSORS] each."""
    clean, begins = true_motion().sample((number,)) @ c.T, torch.randint(5, T - GAP - 5, (number, 1, 1))
    steps = torch.arange(T).view(1, T, 1)
    present = (steps < begins) | (steps >= begins + GAP)
    noise = noise_of_sensors(shared).sample((number, T))
    return clean, clean + noise, present.expand(clean.shape)


def lines(x, present):
    """The sequences, with lines across the gaps."""
    filled, steps = x.clone(), np.arange(T)
    for b in range(len(x)):
        there = present[b, :, 0].numpy()
        for j in range(SENSORS):
            filled[b, :, j] = torch.from_numpy(np.interp(steps, steps[there], x[b, there, j].numpy()))
    return filled


def report(kind, filled, clean, present):
    """Print root mean square errors."""
    gap = (filled - clean).square()
    in_gaps, seen = (gap[where].mean().sqrt().item() for where in (~present, present))
    print(f"error in gaps, {kind}: {in_gaps:.3f}; elsewhere: {seen:.3f}")


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


def learn(x, present, is_full, steps):
    """The guide of a model after some steps, and its bound."""
    guide = AutoConjugate(model, structured=True)
    svi = ConjugateSVI(model, guide, NaturalGradient(1.0), TraceConjugate_ELBO())
    for _ in range(steps):
        loss = svi.step(x, present, is_full)
    return guide, -loss


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for name, default in (("sequences", 40), ("steps", 150), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--shared", type=float, default=0.0)
    parser.add_argument("--picture")
    chosen = parser.parse_args()
    if not 0 <= chosen.shared < 1:
        parser.error(f"--shared: expected a number from 0 to less than 1, got {chosen.shared:g}")
    pyro.set_rng_seed(chosen.seed)
    torch.set_default_dtype(torch.float64)
    c = torch.randn(SENSORS, D)
    _, x, present = swings(chosen.sequences, c, chosen.shared)
    kinds = {"independent noises": False} | ({"full covariance": True} if chosen.shared else {})
    learnt = {kind: learn(x, present, is_full, chosen.steps) for kind, is_full in kinds.items()}
    clean, new, there = swings(20, c, chosen.shared)
    for kind, (guide, bound) in learnt.items():
        turn = torch.linalg.eigvals(guide.marginal("a").mean.detach())[0]
        period = 2 * math.pi / max(abs(turn.angle().item()), 1e-6)
        print(f"{kind}: ELBO {bound:.1f}; period {period:.1f} (true: {PERIOD:.1f})", end=", ")
        print(f"damping {turn.abs().item():.3f} (true: {DAMPING})")
        with torch.no_grad():
            states = TraceConjugate_ELBO().chains(model, guide, new, there, kinds[kind])["x"].posterior()
            weights = guide.marginal("c").mean
            weights = weights.mT if kinds[kind] else weights
            found = states.mean @ weights.T
        report(kind, found, clean, there)
    noise = noise_of_sensors(chosen.shared).mask(there[..., 0])
    known = LinearGaussianChain(true_motion(), c, noise).chain(new).mean_path @ c.T
    report("true numbers", known, clean, there)
    report("lines", lines(new, there), clean, there)
    if chosen.picture:
        spread = (weights[0] @ states.covariance_matrix[0] @ weights[0]).sqrt()
        plot(clean[0, :, 0], new[0, :, 0], there[0, :, 0], found[0, :, 0], spread, chosen.picture)


if __name__ == "__main__":
    main()
