"""``--factors auto``: how many factors there are, and of how many components, by independent components."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from pyro_fmvae.app.recipes.networks import networks
from pyro_fmvae.app.recipes.options import NetworkOptions
from pyro_fmvae.app.recipes.settings import budgets_of, learning_of
from pyro_fmvae.data import Batches, Dataset, hide_labels, whole
from pyro_fmvae.learn.fitting import fit
from pyro_fmvae.learn.fmvae_phases import Pretraining, encode_some
from pyro_fmvae.learn.independent_components import found_sizes
from pyro_fmvae.models import VAE

LATENT: Final = 32
"""Dimensions of z in which factors are looked for, at least."""
EXAMPLES: Final = 1000
"""From which the decoder starts."""


def found_factors(config: Any, dataset: Dataset, label_sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes of the factors that independent components of the codes of a pretrained VAE show.

    The VAE is trained for this alone. Labelled factors come first; the others are what labels do not explain.

    Args:
        config: resolved but for the factors.
        dataset: to train on.
        label_sizes: components of the labelled factors.

    Raises:
        ValueError: there is no pretraining, or no direction of the codes has clusters.
    """
    assert isinstance(config, NetworkOptions) and config.batch_size is not None
    assert config.factor_dim is not None
    if not config.pretrain_iterations:
        raise ValueError("factors: auto needs --pretrain-iterations; or give sizes, such as 2,2,64")
    train, labels = dataset.train, None
    if label_sizes:
        labels = hide_labels(train, config.labels, config.seed)[:, : len(label_sizes)]  # type: ignore[attr-defined]
    gpu = config.device == "auto" and torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu" if config.device == "auto" else config.device)
    budget = budgets_of(config)["pretrain"]
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        made = networks(config, dataset.preprocessing, LATENT)
        vae = VAE(made.encoder, made.decoder, made.observation, LATENT, len(train), made.distortion).to(
            device
        )
        vae.start_at(whole(train.select(torch.arange(min(EXAMPLES, len(train)))), device)[0])
        batches = Batches(replace(train, labels=labels), config.batch_size, seed=config.seed, device=device)
        for _ in fit([Pretraining(vae, learning_of(config), budget)], batches):
            pass
        loc, scale, known = encode_some(vae.eval(), batches)
    found, spectrum = found_sizes(loc, scale, known, config.seed)
    if not found:
        beside = " that labels do not explain" if label_sizes else ""
        raise ValueError(
            f"factors: auto expected a direction of the codes with clusters{beside}, found none "
            f"(bits: {spectrum.strip('| ') or 'no signal'}); give sizes, such as --factors 2,2,64, or more "
            "--pretrain-iterations"
        )
    return (*label_sizes, *found)
