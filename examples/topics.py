"""Topics of a large collection of documents, from minibatches: online latent Dirichlet allocation.

    python examples/topics.py [--documents 2000] [--passes 10] [--seed 0] [--picture topics.png]

The vocabulary is a grid of 5 × 5 words. A topic is a row or a column of the grid, and each document mixes
topics in shares of its own. The shares of a batch's documents are found anew in each step; only the topics
are kept. Printed is the perplexity of new documents: half of their words is predicted from the other half.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch

from pyro_fmvae import AutoConjugate, CapturedSVI, NaturalGradient, RobbinsMonro, TraceConjugate_ELBO

SIDE, LENGTH, BATCH = 5, 100, 200
TOPICS, VOCABULARY = 2 * SIDE, SIDE * SIDE


def model(words, counts, total):  # [B, W] each: different words of a document, and how often they occur
    with pyro.plate("number", TOPICS):
        topics = pyro.sample("topics", dist.Dirichlet(0.1 * torch.ones(VOCABULARY)))
    with pyro.plate("documents", total, subsample=words):
        shares = pyro.sample("shares", dist.Dirichlet(0.1 * torch.ones(TOPICS)))
        word = dist.Categorical(topics).expand([len(words), TOPICS])
        times, occurs = poutine.scale(scale=counts.T.clamp(min=1)), poutine.mask(mask=counts.T > 0)
        with pyro.plate("words", words.shape[1], dim=-2), times, occurs:
            pyro.sample("word", dist.MixtureSameFamily(dist.Categorical(shares), word), obs=words.T)


def bars():
    """The true topics, rows and columns of the grid, [TOPICS, VOCABULARY]."""
    lines = torch.eye(SIDE).unsqueeze(-1).expand(SIDE, SIDE, SIDE) / SIDE
    return torch.cat([lines.flatten(1), lines.transpose(1, 2).flatten(1)])


def documents(number):
    """Counts of all words in each document, [number, VOCABULARY]."""
    shares = dist.Dirichlet(0.1 * torch.ones(TOPICS)).sample((number,))
    return dist.Multinomial(LENGTH, shares @ bars()).sample()


def as_words(counts):
    """Numbers of the words and their counts, as the model takes them."""
    return torch.arange(VOCABULARY).expand(len(counts), -1), counts


@torch.no_grad()
def perplexity(guide, first, rest, total):
    """Of half of each document's words, given the other half; counts are [number, VOCABULARY]."""
    shares = guide.infer(*as_words(first), total)["shares"].mean
    topics = guide.posterior("topics")().mean.to(shares)
    return (-(rest * (shares @ topics).log()).sum() / rest.sum()).exp().item()


def plot(found, path):
    """Plot the true topics, and those found after each pass, nearest first."""
    figure, panels = plt.subplots(
        len(found) + 1, TOPICS, figsize=(6.4, 0.65 * len(found) + 0.9), layout="constrained"
    )
    last = list(found.values())[-1]
    order = torch.cdist(bars(), last, p=1).argmin(-1)
    rows = {"true": bars()} | {name: topics[order] for name, topics in found.items()}
    for panel, (name, topics) in zip(panels, rows.items(), strict=True):
        panel[0].set_ylabel(name, rotation=0, ha="right", va="center")
        for axes, topic in zip(panel, topics, strict=True):
            axes.imshow(topic.view(SIDE, SIDE), cmap="Greys", vmin=0, vmax=1 / SIDE)
            axes.set(xticks=[], yticks=[])
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture")
    chosen = parser.parse_args()
    pyro.set_rng_seed(chosen.seed)
    train, test = documents(chosen.documents), documents(500)
    first = dist.Binomial(test, 0.5).sample()
    guide = AutoConjugate(model, local=["documents"], local_steps=10)
    optim = NaturalGradient(RobbinsMonro(delay=10, forgetting=0.7))
    svi = CapturedSVI(model, guide, optim, TraceConjugate_ELBO())
    found = {}
    for number in range(1, chosen.passes + 1):
        for batch in train[torch.randperm(len(train))].split(BATCH):
            svi.step(*as_words(batch), len(train))
        found[f"pass {number}"] = guide.posterior("topics")().mean.detach().float()
        value = perplexity(guide, first, test - first, len(train))
        print(f"pass {number}: perplexity of new documents {value:.2f}")
    if chosen.picture:
        plot({name: found[name] for name in list(found)[:3] + list(found)[-1:]}, chosen.picture)


if __name__ == "__main__":
    main()
