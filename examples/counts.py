"""Topics of documents from counts of words: latent Dirichlet allocation as a plain Pyro program.

    python examples/counts.py [--steps 200] [--seed 0] [--picture counts.png]

The vocabulary is a grid of 4 × 4 words. A topic is a row or a column of the grid, and each document mixes
topics in proportions of its own (the data of Griffiths and Steyvers, 2004, in small). Every word of a
document comes from one of its topics; nobody says which, nor what the topics are.

Topics and proportions have Dirichlet posteriors, and Pyro's enumeration sums over the topic of each word. The
bound has several optima: the start is where the documents' counts of words cluster.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, config_enumerate
from torch.nn.functional import one_hot

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


def count(words):
    """How often each document has each word, [DOCUMENTS, VOCABULARY]."""
    return one_hot(words, VOCABULARY).sum(0)


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
    rows = {"true topics": topics, "found": found, "documents": count(words)}
    figure, panels = plt.subplots(3, TOPICS, figsize=(6.4, 2.7), layout="constrained")
    for panel, (title, grids) in zip(panels, rows.items(), strict=True):
        panel[0].set_ylabel(title)
        for axes, grid in zip(panel, grids[:TOPICS], strict=True):
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", help="file of a picture to draw")
    options = parser.parse_args()
    pyro.set_rng_seed(options.seed)
    words, topics = documents()
    guide, elbo = AutoConjugate(model), TraceConjugate_ELBO()
    print(elbo.plan(model, guide, words))
    guide.seed_clusters("topic", count(words).unsqueeze(0), words)  # all words of a document in one cluster
    svi = SVI(model, guide, NaturalGradient(1.0), elbo)
    for step in range(options.steps):
        loss = svi.step(words)
        if step % max(options.steps // 5, 1) == 0 or step + 1 == options.steps:
            print(f"step {step + 1:3}: ELBO {-loss:9.1f}")
    found = match(topics, guide.posterior("topics")().mean.detach().float())
    right = (0.5 * (found - topics).abs().sum(-1) < 0.2).sum()
    print(f"of {TOPICS} topics, {right} are found with less than a fifth of their words astray")
    if options.picture:
        plot(words, topics, found, options.picture)


if __name__ == "__main__":
    main()
