"""Codes of data points: which latents are active, and what known sources they have found."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.building import Model, SparseCoder
from pyro_fmvae.config import TrainConfig
from pyro_fmvae.data import Batches
from pyro_fmvae.data.sets.bars import bars_truth
from pyro_fmvae.data.sets.smileys import ATTRIBUTES, FEATURES, smiley_sources
from pyro_fmvae.distributions import SpikeAndSlab
from pyro_fmvae.evaluate.recovery import match_units
from pyro_fmvae.evaluate.sources import (
    active_latents,
    activity,
    block_concentration,
    correlation_matrix,
    per_block,
)
from pyro_fmvae.models import BinarySparseCoding

USED = 0.01  # share of points in which a latent has to be on to count as active


@torch.no_grad()
def latent_code(model: Model, x: Tensor) -> Tensor:
    """One z for each data point of a batch, [B, J]: the mean of q(z | x).

    Of sparse codes it is the slab's mean where the spike is more likely on than off, and exactly 0 elsewhere;
    of binary ones 1 or 0.
    """
    q = model.posterior(x)
    if isinstance(model, BinarySparseCoding):
        return (q.mean > 0.5).to(q.mean)
    return torch.where(q.logits > 0, q.loc, 0.0) if isinstance(q, SpikeAndSlab) else q.mean


def decode(model: Model, z: Tensor) -> Tensor:
    """E[x | z] at z [..., J]: ``[..., *event_shape]``."""
    return model.decode(z) if isinstance(model, SparseCoder) else model.observation.mean(model.decoder(z))


def latent_codes(model: Model, batches: Batches) -> Tensor:
    """The same for every row, in order, on the CPU: [n, J]."""
    return torch.cat([latent_code(model, x).cpu() for x, *_ in batches])


def true_sources(config: TrainConfig, split: str, count: int) -> np.ndarray | None:
    """The sources behind the first points of a split, float64 [count, F]; None unless they are known.

    Those of ``smiley`` are, if no combinations of labels are held out, which takes rows away from splits.

    Args:
        config: resolved, of the run.
        split: name of the split.
        count: points.
    """
    return None if config.data != "smiley" or config.hold_out else smiley_sources(split)[:count]


def measures(codes: Tensor, sources: np.ndarray | None, sparse: bool) -> dict[str, Any]:
    """What is printed of codes.

    Args:
        codes: of :func:`latent_codes`, [n, J].
        sources: of :func:`true_sources` for the same points.
        sparse: whether codes have exact zeros.

    Returns:
        Of sparse codes ``active_latents``, how many are on in more than a hundredth of the points, and
        ``share_on``, the mean share of latents that are; with sources also ``sources``: how many latents are
        correlated with any (``active``) and with those of each attribute most, and ``block_concentration``.
    """
    result: dict[str, Any] = {}
    latents = codes.double().numpy()
    if sparse:
        share = activity(latents).share
        result = {"active_latents": int((share > USED).sum()), "share_on": float(share.mean())}
    if sources is not None and len(sources) > 1:
        correlations = correlation_matrix(sources, latents)
        concentration = block_concentration(correlations, FEATURES)
        result["sources"] = {
            "active": int(active_latents(correlations).sum()),
            **dict(zip(ATTRIBUTES, per_block(correlations, FEATURES).tolist(), strict=True)),
            "block_concentration": None if np.isnan(concentration) else concentration,
        }
    return result


def unit_measures(model: SparseCoder, data: str) -> dict[str, Any]:
    """What is printed of a model's units.

    Args:
        model: as trained.
        data: name of the data set that it was trained on.

    Returns:
        ``units``, their number; ``noise``, the standard deviation of the observation; and, of data that were
        generated from known units, ``recovered``: how many of those have a unit of their own with a cosine
        above 0.95 to them.
    """
    result: dict[str, Any] = {"units": model.latent_dim, "noise": model.log_scale.exp().item()}
    truth = bars_truth(data)
    if truth is not None:
        learnt = model.dictionary.detach().cpu().double().numpy()
        result["recovered"] = match_units(learnt, np.asarray(truth.dictionary)).recovered
    return result
