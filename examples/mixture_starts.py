"""Search for a better mixture than that of a trained run: fit its codes again from other starts.

    python examples/mixture_starts.py runs/NAME-001 --data-root DIR
    python examples/mixture_starts.py runs/NAME-001 --data-root DIR --starts 12 --splits 0.25,1

For each factor without labels, variational Bayes fits a mixture of Gaussians to up to 20,000 encoded training
points. It starts from the run's λ, from k-means, and from λ with its most crowded components split in two, as
far as there are unused ones. The script prints the bound of each start, -KL[z] - KL[r] - KL(λ) without the
entropy of q(z), in nats per point, and its number of components in use. Where a k-means start reaches more,
`pyro-fmvae train --restart-every N` may, too.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pyro_fmvae.app.runs import Run
from pyro_fmvae.data import Batches
from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.infer import natural_prior, seeding
from pyro_fmvae.learn import encode_some
from pyro_fmvae.models import FactorialMixtureVAE


@dataclass(frozen=True)
class Codes:
    """Codes of one factor, to which its mixture is fitted.

    Attributes:
        priors: p(π), and p(μ, α) with batch shape [K].
        data: mean and variance of q(z), [M, D].
        scale: number of data points for each of the M.
        gamma: responsibilities of λ for them, [M, K].
    """

    priors: tuple[NaturalDistribution, NaturalDistribution]
    data: tuple[Tensor, Tensor]
    scale: float
    gamma: Tensor

    def mixture(self, start: Tensor) -> seeding.MixturePosterior:
        """The result of coordinate ascent from clusters or responsibilities."""
        return seeding.coordinate_ascent(*self.priors, *self.data, start, self.scale)

    def describe(self, name: str, mixture: seeding.MixturePosterior) -> str:
        """One line of the table."""
        points, size = self.scale * len(self.gamma), self.gamma.shape[-1]
        counts = mixture.weights.natural - self.priors[0].natural
        used = int((counts > points / (20 * size)).sum())
        return f"{name:<24}{used:>8}{mixture.bound / points:>14.4f}"


def unlabelled(model: FactorialMixtureVAE, batches: Batches) -> Iterator[tuple[int, Codes]]:
    """The factors without labels, by their numbers."""
    loc, scale, _ = encode_some(model, batches)
    for group in model.factor_groups():
        if group.columns:
            continue
        whole = [natural_prior(prior) for prior in group.priors(loc.device)]
        posteriors = group.weights(), group.loc_precision()
        for number, factor in enumerate(group.factors):
            block = slice(factor * model.dim, (factor + 1) * model.dim)
            data = loc[:, block], scale[:, block].square()
            gamma = seeding.responsibilities(*group.of_factor(number, *posteriors), *data)
            yield factor, Codes(group.of_factor(number, *whole), data, model.num_data / len(loc), gamma)


def split(codes: Codes, share: float, generator: torch.Generator) -> Tensor:
    """Clusters with that share of those in use split in two by k-means, the most crowded ones first.

    Halves go to components that are no point's likeliest; if there are none, nothing is split.
    """
    clusters, size = codes.gamma.argmax(-1), codes.gamma.shape[-1]
    counts = torch.bincount(clusters, minlength=size)
    idle = (counts == 0).nonzero().flatten().tolist()
    crowded = counts.argsort(descending=True)[: round(share * (size - len(idle)))].tolist()
    for cluster, other in zip(crowded, idle, strict=False):
        members = (clusters == cluster).nonzero().flatten()
        halves = seeding.kmeans(codes.data[0][members], 2, generator)
        clusters[members[halves == 1]] = other
    return clusters


def shares(text: str) -> list[float]:
    """Numbers in (0, 1], separated by commas; none for an empty text."""
    values = [float(part) for part in text.split(",") if part]
    if not all(0 < value <= 1 for value in values):
        raise ValueError
    return values


def natural_number(text: str) -> int:
    """An integer >= 0."""
    if (value := int(text)) < 0:
        raise ValueError
    return value


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of a run of --model fmvae")
    parser.add_argument("--data-root", help="folder of data sets; default: that of the run")
    parser.add_argument("--starts", type=natural_number, default=2, help="k-means starts, >= 0")
    parser.add_argument(
        "--splits", type=shares, default=[0.25, 1.0], help="shares in (0, 1] of components to split: 0.25,1"
    )
    parser.add_argument("--seed", type=natural_number, default=0, help="seed of the starts, >= 0")
    chosen = parser.parse_args()
    try:
        run = Run.open(chosen.run)
        if not run.recipe.factorial:
            parser.error(f"run: expected one of --model fmvae, got {run.recipe.name}")
        model, dataset = run.load_model(torch.device("cpu")), run.load_data(chosen.data_root)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    if len(model.labelled) == len(model.num_components):
        parser.error("run: expected a factor without labels, all of them have some")
    generator = torch.Generator().manual_seed(chosen.seed)
    for factor, codes in unlabelled(model, Batches(dataset.train, 500, seed=chosen.seed)):
        print(f"factor {factor}, {len(codes.gamma):,} points")
        print(f"{'start':<24}{'in use':>8}{'bound':>14}")
        print(codes.describe("λ", codes.mixture(codes.gamma)), flush=True)
        for number in range(chosen.starts):
            clusters = seeding.kmeans(codes.data[0], codes.gamma.shape[-1], generator)
            print(codes.describe(f"k-means {number + 1}", codes.mixture(clusters)), flush=True)
        for share in chosen.splits:
            clusters = split(codes, share, generator)
            print(codes.describe(f"λ, {share:.0%} split", codes.mixture(clusters)), flush=True)


if __name__ == "__main__":
    main()
