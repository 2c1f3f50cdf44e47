"""Topics of documents from counts of words: latent Dirichlet allocation as a plain Pyro program.

    python examples/counts.py [--steps 200] [--starts 3] [--seed 0] [--picture counts.png]

The vocabulary is a grid of 4 × 4 words. A topic is a row or a column of the grid, and each document mixes
topics in proportions of its own (the data of Griffiths and Steyvers, 2004, in small). Every word of a
document comes from one of its topics; nobody says which, nor what the topics are.

Topics and proportions have Dirichlet posteriors, and Pyro's enumeration sums over the topic of each word. The
bound has several optima: of a few starts, the best is kept.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, config_enumerate

from pyro_fmvae import AutoConjugate, NaturalGradient, TraceConjugate_ELBO

SIDE, DOCUMENTS, WORDS = 4, 150, 60  # of the grid; documents, words of each
TOPICS, VOCABULARY = 2 * SIDE, SIDE * SIDE


@config_enumerate
def model(words):  # [WORDS, DOCUMENTS]
    with pyro.plate("number", TOPICS):
        topics = pyro.sample("topics", dist.Dirichlet(0.5 * torch.ones(VOCABULARY)))
    with pyro.plate("documents", DOCUMENTS, dim=-1):
        proportions = pyro.sample("proportions", dist.Dirichlet(0.3 * torch.ones(TOPICS)))
        with pyro.plate("words", WORDS, dim=-2):
            topic = pyro.sample("topic", dist.Categorical(proportions))
            pyro.sample("word", dist.Categorical(topics[topic]), obs=words)


def documents():
    """Words [WORDS, DOCUMENTS] and true topics [TOPICS, VOCABULARY]: rows and columns of the grid."""
    lines = torch.eye(SIDE).unsqueeze(-1).expand(SIDE, SIDE, SIDE) / SIDE
    topics = torch.cat([lines.flatten(1), lines.transpose(1, 2).flatten(1)])
    proportions = dist.Dirichlet(0.3 * torch.ones(TOPICS)).sample((DOCUMENTS,))
    return dist.Categorical(proportions @ topics).sample((WORDS,)), topics


def learn(words, steps):
    """Train from a random start. Returns the guide and the final bound."""
    guide = AutoConjugate(model)
    svi = SVI(model, guide, NaturalGradient(1.0), TraceConjugate_ELBO())
    for _ in range(steps):
        svi.step(words)
    return guide, -svi.evaluate_loss(words)


def match(topics, found):
    """Order the topics found like the true ones, each by the nearest of those that are left."""
    distances = torch.cdist(topics, found, p=1)
    order = torch.empty(TOPICS, dtype=torch.long)
    for _ in range(TOPICS):
        true, near = divmod(int(distances.argmin()), TOPICS)
        order[true] = near
        distances[true], distances[:, near] = torch.inf, torch.inf
    return found[order]


def plot(words, topics, found, path):
    """Plot true topics, found ones, and the words of a few documents, as grids."""
    counts = torch.stack([torch.bincount(words[:, i], minlength=VOCABULARY) for i in range(TOPICS)])
    rows = {"true topics": topics, "found": found, "documents": counts}
    figure, panels = plt.subplots(3, TOPICS, figsize=(6.4, 2.7), layout="constrained")
    for panel, (title, grids) in zip(panels, rows.items(), strict=True):
        panel[0].set_ylabel(title)
        for axes, grid in zip(panel, grids, strict=True):
            axes.imshow(grid.view(SIDE, SIDE), cmap="Greys", vmin=0)
            axes.set(xticks=[], yticks=[])
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", help="file of a picture to draw")
    options = parser.parse_args()
    pyro.set_rng_seed(options.seed)
    words, topics = documents()
    print(TraceConjugate_ELBO().plan(model, AutoConjugate(model), words))
    best, bound = None, -torch.inf
    for start in range(options.starts):
        guide, last = learn(words, options.steps)
        print(f"start {start}: ELBO {last:.1f}")
        if last > bound:
            best, bound = guide, last
    found = match(topics, best.posterior("topics")().mean.detach().float())
    right = (0.5 * (found - topics).abs().sum(-1) < 0.2).sum()
    print(f"of {TOPICS} topics, {right} are found with less than a fifth of their words astray")
    if options.picture:
        plot(words, topics, found, options.picture)


if __name__ == "__main__":
    main()
