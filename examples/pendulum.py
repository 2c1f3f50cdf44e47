"""Noisy pictures of a pendulum: a structured VAE learns how it swings, and forecasts pictures.

    python examples/pendulum.py [--sequences 200] [--steps 4000] [--seed 0] [--picture pendulum.png]

Linear dynamics are the prior of the latents of a sequence, and are learnt by natural gradients. One latent
makes a picture, and another says how it moves, which no picture shows by itself. After 20 pictures of a new
sequence the next 20 are forecast. Printed are mean squared errors (pixels are from 0 to 1) one and twenty
steps ahead, beside those of a VAE whose latents are extrapolated linearly, from the last two by least
squares, and of an LSTM of about as many parameters.
"""

import argparse
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from torch import nn

from pyro_fmvae import (
    AutoConjugate,
    CapturedSVI,
    LinearDynamics,
    LinearGaussianChain,
    NaturalGradient,
    TraceConjugate_ELBO,
)

SIDE, SEEN, AHEAD, NOISE, BATCH, HIDDEN = 16, 20, 20, 0.1, 25, 64
PLACE, D = 1, 2  # latents that pictures are made of, and all: the others say how these move
T, PIXELS = SEEN + AHEAD, SIDE**2


def pendulums(number):
    """Pictures without noise, and with: [number, T, PIXELS] each."""
    angle = torch.empty(number).uniform_(-1.0, 1.0)
    speed, pictures = torch.empty(number).uniform_(-0.15, 0.15), []
    axis = torch.linspace(-1.3, 1.3, SIDE)
    for _ in range(T):
        x, y = 0.95 * angle.sin(), 0.95 * angle.cos()
        gaps = (axis - x[:, None, None]).square() + (axis[:, None] - y[:, None, None]).square()
        pictures.append((-gaps / 0.06).exp().flatten(1))
        for _ in range(10):
            speed = speed - 0.1 * 0.06 * angle.sin()
            angle = angle + 0.1 * speed
    clean = torch.stack(pictures, 1)
    return clean, clean + NOISE * torch.randn(clean.shape)


def networks():
    """An encoder to means and scales, and a decoder."""
    encoder = nn.Sequential(nn.Linear(PIXELS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 2 * PLACE))
    decoder = nn.Sequential(nn.Linear(PLACE, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, PIXELS))
    return encoder, decoder


class StructuredVAE(nn.Module):
    """Linear dynamics as the prior of latents, and a network to decode them."""

    def __init__(self, sequences):
        super().__init__()
        self.encoder, self.decoder = networks()
        self.sequences = sequences
        self.conjugate = AutoConjugate(self.model, fallback=None, structured=True)

    def dynamics(self, values, duration):
        first = dist.Normal(torch.zeros(D), 2.0).to_event(1)
        noise = dist.Normal(0.0, values["moves"].rsqrt()).to_event(1)
        return LinearDynamics(first, values["a"], noise, duration)

    def model(self, x):  # [B, T, PIXELS]
        pyro.module("decoder", self.decoder)
        with pyro.plate("rows", D):
            moves = pyro.sample("moves", dist.Gamma(2.0, 0.02))
            precision = 10 * moves[:, None, None] * torch.eye(D)
            steady = torch.ones(D, D).triu()  # the place moves by the same each time
            a = pyro.sample("a", dist.MultivariateNormal(steady, precision_matrix=precision))
        with pyro.plate("sequences", self.sequences, subsample=x):
            z = pyro.sample("z", self.dynamics({"moves": moves, "a": a}, x.shape[1]))
            pyro.sample("x", dist.Normal(self.decoder(z[..., :PLACE]), NOISE).to_event(2), obs=x)

    def guide(self, x):
        pyro.module("encoder", self.encoder)
        states = self.states(self.conjugate(x), x)
        with pyro.plate("sequences", self.sequences, subsample=x):
            pyro.sample("z", states)

    def states(self, values, x, ahead=0):
        """The states of sequences, and of further steps that are not seen."""
        loc, scale = self.encoder(x).chunk(2, -1)
        there = torch.arange(x.shape[1] + ahead) < x.shape[1]
        loc, scale = (nn.functional.pad(table, (0, 0, 0, ahead)) for table in (loc, scale))
        noise = dist.Normal(0.0, scale.exp()).to_event(1)
        noise = noise.mask(there) if ahead else noise
        seen = LinearGaussianChain(self.dynamics(values, x.shape[1] + ahead), torch.eye(D)[:PLACE], noise)
        return seen.states(loc)

    def learn(self, x, steps):
        optim = NaturalGradient(0.2, others=partial(torch.optim.Adam, lr=3e-3))
        svi = CapturedSVI(self.model, self.guide, optim, TraceConjugate_ELBO())
        for _ in range(steps):
            svi.step(x[torch.randperm(len(x))[:BATCH]])

    @torch.no_grad()
    def forecast(self, x):
        """The mean picture of 50 draws of the states, at the posterior means of the dynamics."""
        values = {name: self.conjugate.marginal(name).mean for name in ("moves", "a")}
        draws = self.states(values, x, AHEAD).rsample((50,))[..., x.shape[1] :, :PLACE]
        return self.decoder(draws).mean(0)


class VAE(nn.Module):
    """Latents of single pictures, extrapolated linearly."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = networks()

    def learn(self, x, steps):
        adam = torch.optim.Adam(self.parameters(), lr=3e-3)
        for _ in range(steps):
            batch = x[torch.randperm(len(x))[:BATCH]]
            loc, scale = self.encoder(batch).chunk(2, -1)
            q = dist.Normal(loc, scale.exp())
            gap = (batch - self.decoder(q.rsample())).square().sum() / (2 * NOISE**2)
            loss = gap + torch.distributions.kl_divergence(q, dist.Normal(0.0, 1.0)).sum()
            adam.zero_grad()
            loss.backward()
            adam.step()
        with torch.no_grad():
            z = self.encoder(x)[..., :PLACE]
            before = torch.cat([z[:, 1:-1], z[:, :-2]], -1).flatten(0, 1)
            self.matrix = torch.linalg.lstsq(before, z[:, 2:].flatten(0, 1)).solution

    @torch.no_grad()
    def forecast(self, x):
        path = list(self.encoder(x[:, -2:])[..., :PLACE].unbind(1))
        for _ in range(AHEAD):
            path.append(torch.cat([path[-1], path[-2]], -1) @ self.matrix)
        return self.decoder(torch.stack(path[2:], 1))


class LSTM(nn.Module):
    """The next picture from those before it."""

    def __init__(self, size=25):
        super().__init__()
        self.cell, self.out = nn.LSTM(PIXELS, size, batch_first=True), nn.Linear(size, PIXELS)

    def learn(self, x, steps):
        adam = torch.optim.Adam(self.parameters(), lr=3e-3)
        for _ in range(steps):
            batch = x[torch.randperm(len(x))[:BATCH]]
            loss = (self.out(self.cell(batch[:, :-1])[0]) - batch[:, 1:]).square().mean()
            adam.zero_grad()
            loss.backward()
            adam.step()

    @torch.no_grad()
    def forecast(self, x):
        hidden, state = self.cell(x)
        path = [self.out(hidden[:, -1:])]
        for _ in range(AHEAD - 1):
            hidden, state = self.cell(path[-1], state)
            path.append(self.out(hidden))
        return torch.cat(path, 1)


def plot(clean, seen, forecasts, path):
    """Plot the last pictures seen of a sequence, and what follows."""
    steps = range(SEEN - 6, T, 3)
    rows = {"true": clean, "seen": seen, **forecasts}
    figure, panels = plt.subplots(len(rows), len(steps), figsize=(8.0, 3.6), layout="constrained")
    for row, (name, pictures) in zip(panels, rows.items(), strict=True):
        row[0].set_ylabel(name, rotation=0, ha="right", va="center")
        for axes, step in zip(row, steps, strict=True):
            at = step if name in ("true", "seen") else step - SEEN
            axes.set(xticks=[], yticks=[])
            if 0 <= at < len(pictures):
                axes.imshow(pictures[at].view(SIDE, SIDE), cmap="Greys", vmin=0, vmax=1)
            else:
                axes.set_frame_on(False)
    for axes, step in zip(panels[0], steps, strict=True):
        axes.set_title(f"{step - SEEN + 1:+d}" if step >= SEEN else "seen", fontsize=9)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for name, default in (("sequences", 200), ("steps", 4000), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--picture")
    chosen = parser.parse_args()
    pyro.set_rng_seed(chosen.seed)
    _, x = pendulums(chosen.sequences)
    clean, new = pendulums(100)
    forecasts = {}
    for name, method in (("structured VAE", StructuredVAE(len(x))), ("VAE", VAE()), ("LSTM", LSTM())):
        method.learn(x, chosen.steps)
        forecasts[name] = method.forecast(new[:, :SEEN])
        errors = (forecasts[name] - clean[:, SEEN:]).square().mean((0, 2))
        size = sum(p.numel() for p in method.parameters())
        print(f"{name} ({size:,} parameters): one step {errors[0]:.4f}, twenty steps {errors[-1]:.4f}")
    mean = (x.mean((0, 1)) - clean[:, SEEN:]).square().mean()
    print(f"the mean picture: {mean:.4f}")
    if chosen.picture:
        widest = int(clean.var(1).sum(-1).argmax())
        shown = {name: each[widest] for name, each in forecasts.items()}
        plot(clean[widest], new[widest, :SEEN], shown, chosen.picture)


if __name__ == "__main__":
    main()
