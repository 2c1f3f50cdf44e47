"""Small people who walk: what they look like stays along a film, and their pose is a chain.

    python examples/walking_sprites.py [--data-root DIR] [--steps 2000] [--seed 0] [--shortest 12]

A factorial mixture VAE of films. Looks are Gaussian mixtures, with one assignment for a whole film. Poses are
a mixture whose assignments are a Markov chain over frames. Eight frames are seen of people who were not in
the training data, and the next four are forecast: the mean picture under the probabilities of the next poses.
Printed are mean squared errors (colours are from 0 to 1), beside those of the last frame repeated, of the
mean of the frames seen, and of the true chain with the person's own pictures.

People are drawn by this script. With --data-root they are those of lpc_sprites64.npz in that folder, at half
the size, in nine poses. The order of poses is the script's either way. With --shortest 4, films to learn from
have 4 to 12 frames, and are padded to 12.
"""

import argparse
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import nn

from pyro_fmvae import (
    Assignment,
    AutoConjugate,
    CapturedSVI,
    Component,
    HiddenMarkov,
    NaturalGradient,
    NormalGamma,
    TraceConjugate_ELBO,
)

SIDE, SEEN, AHEAD, NOISE, BATCH = 32, 8, 4, 0.1, 16
LOOKS, KINDS, POSES, D = 3, 8, 12, 4
ON, STAYS = 0.85, 0.1  # probabilities of the next pose in order, and of the same one


def drawn_people(poses=6):
    """Figures in all combinations of colours, at each step of a walk: [625, poses, 3, SIDE, SIDE]."""
    skins = [[0.98, 0.84, 0.7], [0.9, 0.7, 0.5], [0.75, 0.52, 0.36], [0.55, 0.36, 0.25], [0.36, 0.22, 0.16]]
    clothes = [[0.9, 0.3, 0.25], [0.3, 0.55, 0.9], [0.35, 0.75, 0.4], [0.95, 0.8, 0.3], [0.9, 0.9, 0.95]]
    skins, clothes = torch.tensor(skins), torch.tensor(clothes)
    tables = torch.stack([skins, clothes, 0.7 * clothes.flip(-1), clothes.roll(1, -1)])
    kinds = torch.cartesian_prod(*torch.arange(5).expand(4, -1)).T
    skin, top, legs, hair = tables[torch.arange(4).unsqueeze(-1), kinds][..., None, None]
    pictures = torch.zeros(len(skin), poses, 3, SIDE, SIDE)
    for pose in range(poses):
        angle = torch.tensor(2 * torch.pi * pose / poses)
        swing, lift = int(4 * angle.sin()), int(1.5 * angle.cos() + 0.5)
        parts = (
            (skin, (7, 12), (13, 19)),
            (hair, (4, 8), (12, 20)),
            (top, (12, 20), (13, 19)),
            (skin, (13, 18), (11 - lift, 13 - lift)),
            (skin, (13, 18), (19 + lift, 21 + lift)),
            (legs, (20, 28), (13 + swing, 15 + swing)),
            (0.7 * legs, (20, 28), (17 - swing, 19 - swing)),
        )
        for colour, rows, columns in parts:
            pictures[:, pose, :, slice(*rows), slice(*columns)] = colour
    return pictures


def sprites(root):
    """Outfits of which the file has all poses: [number, 9, 3, SIDE, SIDE]."""
    with np.load(Path(root) / "lpc_sprites64.npz", allow_pickle=False) as arrays:
        x, factors = arrays["x"], arrays["factors"]
    _, outfit, count = np.unique(factors[:, :4], axis=0, return_inverse=True, return_counts=True)
    order = np.lexsort((factors[:, 5], factors[:, 4], outfit))
    order = order[count[outfit[order]] == 9]
    pictures = torch.from_numpy(x[order]).permute(0, 3, 1, 2) / 255
    return nn.functional.avg_pool2d(pictures, 64 // SIDE).unflatten(0, (-1, 9))


def moves(poses):
    """Probabilities of the next pose: [poses, poses]."""
    order = torch.eye(poses)
    other = torch.full((poses, poses), (1 - ON - STAYS) / poses)
    return ON * order.roll(1, -1) + STAYS * order + other


def films(people, frames):
    """A film of each person, [number, frames, 3, SIDE, SIDE], and the poses in it."""
    number, poses = people.shape[:2]
    path = [torch.randint(poses, (number,))]
    for _ in range(1, frames):
        path.append(dist.Categorical(moves(poses)[path[-1]]).sample())
    path = torch.stack(path, -1)
    return people[torch.arange(number).unsqueeze(-1), path], path


class Walkers(nn.Module):
    """Looks that stay, poses that move, and networks that see and draw a frame at a time."""

    def __init__(self, number, features=128):
        super().__init__()
        self.number = number
        self.see = nn.Sequential(nn.Linear(3 * SIDE**2, features), nn.ReLU())
        self.pose, self.look = nn.Linear(features, 2 * D), nn.Linear(features, 2 * LOOKS * D)
        self.draw = nn.Sequential(
            nn.Linear((LOOKS + 1) * D, features), nn.ReLU(), nn.Linear(features, features), nn.ReLU(),
            nn.Linear(features, 3 * SIDE**2), nn.Unflatten(-1, (3, SIDE, SIDE)),
        )  # fmt: skip
        self.conjugate = AutoConjugate(self.model, fallback=None, structured=True)

    def model(self, x, lengths=None):  # [B, T, 3, SIDE, SIDE], [B] if films differ in length
        pyro.module("draw", self.draw)
        looks = pyro.plate("looks", LOOKS, dim=-2)
        with looks:
            weights = pyro.sample("weights", dist.Dirichlet(torch.ones(KINDS)))
            with pyro.plate("kinds", KINDS, dim=-1):
                kinds = pyro.sample("kind", NormalGamma(torch.zeros(D), 0.1, 2.0, 0.5))
        start = pyro.sample("start", dist.Dirichlet(torch.ones(POSES)))
        with pyro.plate("poses", POSES, dim=-1):
            rows = pyro.sample("rows", dist.Dirichlet(torch.full((POSES,), 0.5)))
            precisions = pyro.sample("precisions", dist.Gamma(2.0 * torch.ones(D), 0.5).to_event(1))
            locs = pyro.sample("locs", dist.Normal(0.0, (0.1 * precisions).rsqrt()).to_event(1))
        poses = dist.Normal(locs, precisions.rsqrt()).to_event(1)
        walk = HiddenMarkov(start, rows, poses, x.shape[1], lengths)
        there = True if walk.present is None else walk.present
        with pyro.plate("films", self.number, subsample=x, dim=-1):
            with looks:
                kind = pyro.sample("assignment", Assignment(weights))
                look = pyro.sample("look", Component(kinds, kind))  # [LOOKS, B, D]
            pose = pyro.sample("pose", walk)  # [B, T, D]
            frames = dist.Normal(self.decode(look, pose), NOISE).to_event(3).mask(there)
            pyro.sample("x", frames.to_event(1), obs=x)

    def guide(self, x, lengths=None):
        for name in ("see", "pose", "look"):
            pyro.module(name, getattr(self, name))
        self.conjugate(x, lengths)
        (look, look_scale), (pose, pose_scale) = self.encode(x, lengths)
        with pyro.plate("films", self.number, subsample=x, dim=-1):
            with pyro.plate("looks", LOOKS, dim=-2):
                pyro.sample("look", dist.Normal(look, look_scale).to_event(1))
            pyro.sample("pose", dist.Normal(pose, pose_scale).to_event(2))

    def encode(self, x, lengths=None):
        """Means and scales of looks [LOOKS, B, D], which pool all frames, and of poses [B, T, D]."""
        seen = self.see(x.flatten(2))
        if lengths is None:
            pooled = seen.mean(1)
        else:
            there = torch.arange(x.shape[1]) < lengths.unsqueeze(-1)
            pooled = seen.where(there.unsqueeze(-1), 0.0).sum(1) / lengths.unsqueeze(-1)
        loc, scale = self.look(pooled).chunk(2, -1)
        look = (t.unflatten(-1, (LOOKS, D)).transpose(0, 1) for t in (loc, scale.exp()))
        loc, scale = self.pose(seen).chunk(2, -1)
        return tuple(look), (loc, scale.exp())

    def decode(self, look, pose):
        """Pictures [..., B, T, 3, SIDE, SIDE] of looks [..., LOOKS, B, D] and poses [..., B, T, D]."""
        look = look.transpose(-3, -2).flatten(-2).unsqueeze(-2)
        both = torch.cat([look.expand(*pose.shape[:-1], -1), pose], -1)
        return self.draw(both)

    def learn(self, x, lengths, steps):
        elbo = TraceConjugate_ELBO(kl_weight=0.1)
        optim = NaturalGradient(0.05, others=partial(torch.optim.Adam, lr=1e-3))
        svi = CapturedSVI(self.model, self.guide, optim, elbo)
        for step in range(steps):
            if step == steps // 3:  # encodings cluster by now: start the mixtures there
                elbo.kl_weight = 1.0
                with torch.no_grad():
                    (look, look_scale), (pose, _) = self.encode(x, lengths)
                self.conjugate.seed("look", look, look_scale, torch.Generator().manual_seed(0))
                self.conjugate.seed_clusters("pose", pose, x, lengths, guide=self.guide)
            rows = torch.randperm(len(x))[:BATCH]
            svi.step(x[rows], None if lengths is None else lengths[rows])

    @torch.no_grad()
    def states(self, x, lengths=None):
        """Probabilities of the states at each frame, [B, T, POSES]; 0 after the end of a film."""
        return TraceConjugate_ELBO().chains(self.model, self.guide, x, lengths)["pose"].posterior().float()

    @torch.no_grad()
    def forecast(self, x):
        """The frames as they are decoded, and mean pictures of the next: [B, SEEN + AHEAD, 3, SIDE, SIDE]."""
        (look, _), (pose, _) = self.encode(x)
        locs, rows = (self.conjugate.marginal(name).mean.float() for name in ("locs", "rows"))
        pictures = self.decode(look, locs.expand(len(x), -1, -1))  # of each state, [B, POSES, ...]
        ahead = expected_pictures(pictures, self.states(x)[:, -1], rows)
        return torch.cat([self.decode(look, pose), ahead], 1)


def expected_pictures(pictures, last, rows):
    """Mean pictures of the frames after the last, [B, AHEAD, 3, SIDE, SIDE].

    Args:
        pictures: of each pose, [B, poses, 3, SIDE, SIDE].
        last: probabilities of the last pose, [B, poses].
        rows: probabilities of the next pose, [poses, poses].
    """
    means = []
    for _ in range(AHEAD):
        last = last @ rows
        means.append(torch.einsum("bk,bk...->b...", last, pictures))
    return torch.stack(means, 1)


def share_found(states, path, known_states, known_path):
    """The share of frames whose state has the true pose, each state having that which it mostly goes with.

    Args:
        states, known_states: probabilities of the states at each frame, [B, T, POSES] each.
        path, known_path: true poses, [B, T] each.
    """
    there = known_states.sum(-1) > 0.5
    counts, found = torch.zeros(POSES, int(known_path.max()) + 1), known_states.argmax(-1)
    counts.index_put_((found[there], known_path[there]), torch.ones(()), accumulate=True)
    return (counts.argmax(-1)[states.argmax(-1)] == path).double().mean()


def plot(true, found, path):
    """Plot films, with every second frame of those seen, above what is decoded and forecast."""
    steps = (*range(1, SEEN, 2), *range(SEEN, SEEN + AHEAD))
    size = 0.9 * len(steps), 1.85 * len(true)
    figure, panels = plt.subplots(2 * len(true), len(steps), figsize=size, layout="constrained")
    for n, row in enumerate(panels):
        row[0].set_ylabel("found" if n % 2 else "true", rotation=0, ha="right", va="center")
        for step, axes in zip(steps, row, strict=True):
            axes.imshow((found if n % 2 else true)[n // 2, step].permute(1, 2, 0).clamp(0, 1))
            axes.set(xticks=[], yticks=[])
    for step, axes in zip(steps, panels[0], strict=True):
        axes.set_title("seen" if step < SEEN else f"{step - SEEN + 1:+d}", fontsize=9)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for name, default in (("people", None), ("steps", 2000), ("seed", 0), ("shortest", SEEN + AHEAD)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--data-root")
    parser.add_argument("--picture")
    chosen = parser.parse_args()
    pyro.set_rng_seed(chosen.seed)
    people = sprites(chosen.data_root) if chosen.data_root else drawn_people()
    people = people[torch.randperm(len(people))][: chosen.people]
    new, known = people[: len(people) // 5], people[len(people) // 5 :]
    (x, path), (test, test_path) = films(known, SEEN + AHEAD), films(new, SEEN + AHEAD)
    walkers, lengths = Walkers(len(x)), None
    if chosen.shortest < SEEN + AHEAD:
        lengths = torch.randint(chosen.shortest, SEEN + AHEAD + 1, (len(x),))
        x[torch.arange(SEEN + AHEAD) >= lengths.unsqueeze(-1)] = 0.0
    walkers.learn(x, lengths, chosen.steps)
    seen, ahead = test[:, :SEEN], test[:, SEEN:]
    found, last = walkers.forecast(seen), nn.functional.one_hot(test_path[:, SEEN - 1], new.shape[1])
    forecasts = {
        "the forecast": found[:, SEEN:],
        "the last frame repeated": seen[:, -1:],
        "the mean of the frames seen": seen.mean(1, keepdim=True),
        "the true chain": expected_pictures(new, last.float(), moves(new.shape[1])),
    }
    for name, pictures in forecasts.items():
        errors = (pictures - ahead).square().mean((0, 2, 3, 4))
        print(f"{name}: error {errors[0]:.4f} one frame ahead, {errors[-1]:.4f} {AHEAD} frames ahead")
    share = share_found(walkers.states(seen), test_path[:, :SEEN], walkers.states(x, lengths), path)
    print(f"poses found: {100 * share:.1f} %")
    if chosen.picture:
        plot(test[:3], found[:3], chosen.picture)


if __name__ == "__main__":
    main()
