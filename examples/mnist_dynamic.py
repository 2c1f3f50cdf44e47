"""Dynamically binarised MNIST: log-likelihoods beside those published for other priors.

    python examples/mnist_dynamic.py --data-root DIR --out dynamic-rows --split test
    python examples/mnist_dynamic.py --data-root DIR --out dynamic-rows --split test --rows mlp-K512-seed0
    python examples/mnist_dynamic.py --out dynamic-rows --report

Rows ``mlp`` have two hidden layers of 300 units on each side and 40 dimensions, as the networks of Tomczak
and Welling (2018, "VAE with a VampPrior"), whose units are gated. Rows ``conv`` have the convolutions of
Paquet et al. (2018) and 64 dimensions. The prior is one factor of 512 components, or N(0, I); both take as
many iterations. Log-likelihoods are importance-weighted bounds with 1,000 draws, of all images of the split.
Finished rows are not run again. The script ends with a table of all finished rows.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweep import Row, main, scaled, where

NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"network": "mlp", "hidden": (300, 300), "factor_dim": 40},
    "conv": {"network": "conv28", "factor_dim": 64, "autocast": True},
}
COMPONENTS = 512
PRETRAINING, PRIOR, JOINT = 10_000, 1000, 100_000
LEARNING = {"final_learning_rate": 1e-5, "weight_decay": 0.05, "augmentation": 0.33}
DRAWS = 1000
PUBLISHED = {  # test log-likelihoods of one layer of latents and the same hidden layers
    "N(0, I), Tomczak and Welling (2018)": -84.45,
    "VampPrior, 500 components, Tomczak and Welling (2018)": -82.43,
    "exemplar VAE, Norouzi et al. (2020)": -82.09,
}


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    """The mixture and N(0, I) from the same pretrained networks; perceptrons first."""
    given = where(chosen)
    evaluate = {"tight": {"split": chosen.split, "num_samples": DRAWS}}
    for network, options in NETWORKS.items():
        common = {"data": "mnist", **given, "seed": 0, **options}
        start, normal = f"pretrained-{network}-seed0", {"model": "vae", "pretrain_iterations": PRETRAINING}
        yield Row(start, scaled({**common, **normal, "joint_iterations": 0}, chosen.scale))
        mixture = {"factors": (COMPONENTS,), "prior_iterations": PRIOR}
        for name, prior in ((f"K{COMPONENTS}", mixture), ("normal", {"model": "vae"})):
            train = scaled({**common, **prior, "joint_iterations": JOINT, **LEARNING}, chosen.scale)
            about = {"network": network, "prior": name, "split": chosen.split}
            yield Row(f"{network}-{name}-seed0", train, evaluate, start, about)


def report(records: Sequence[Mapping[str, Any]], picture: Path | None) -> str:
    """One line per row, nats per image, and the published figures below."""
    lines = [
        "| networks | prior | split | ELBO (eq. 11) | log-likelihood, 1,000 draws | in use | hours |",
        "| --- " * 7 + "|",
    ]
    for record in records:
        tight = record["result"]["tight"]
        used = tight["used_components"][0] if record["prior"] != "normal" else ""
        lines.append(
            f"| {record['network']} | {record['prior']} | {record['split']} | {tight['elbo']:.2f} | "
            f"{tight['importance_weighted']:.2f} | {used} | {record['seconds'] / 3600:.2f} |"
        )
    lines += [f"| published | {name} | test | | {value:.2f} | | |" for name, value in PUBLISHED.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main(__doc__, "dynamic-rows", rows, report)
