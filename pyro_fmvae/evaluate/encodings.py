"""Encodings of labelled points as plain arrays, the input of probes and disentanglement measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.data import Batches, Split
from pyro_fmvae.evaluate.randomness import seeded

_BATCH = 500


class Blocks(Protocol):
    """A model whose latent vector has I blocks of D numbers, each with a discrete code."""

    dim: int

    def posterior(self, x: Tensor) -> Distribution:
        """q(z | x) of x [B, *event_shape]: batch shape [B], event shape [I·D]."""

    def codes(self, x: Tensor) -> Tensor:
        """int64 [B, I]."""


@dataclass(frozen=True, eq=False)
class Encodings:
    """Encoded points and their true labels.

    Raises:
        ValueError: arrays of other shapes, or no points.
    """

    latents: np.ndarray
    """The latent vector by block, [n, I, D]: the mean μ_φ of q(z | x), or a draw from it."""
    codes: np.ndarray
    """The component of each block with the highest responsibility, integers [n, I]."""
    labels: np.ndarray
    """Values of the L properties, integers [n, L], -1 = unknown."""

    def __post_init__(self) -> None:
        n = len(self.labels)
        if n == 0:
            raise ValueError("labels: expected at least one point, got none")
        if self.latents.ndim != 3 or self.codes.shape != self.latents.shape[:2] or self.labels.ndim != 2:
            raise ValueError(
                f"latents, codes, labels: expected [n, I, D], [n, I] and [n, L], "
                f"got {self.latents.shape}, {self.codes.shape} and {self.labels.shape}"
            )
        if len(self.latents) != n:
            raise ValueError(f"labels: expected {len(self.latents)} rows, one per encoded point, got {n}")

    @property
    def num_blocks(self) -> int:
        """I, the number of blocks of a latent vector."""
        return self.codes.shape[1]

    @property
    def num_properties(self) -> int:
        """L, the number of label columns."""
        return self.labels.shape[1]

    def known(self, prop: int) -> np.ndarray:
        """Mask of the points whose value of a property is known, bool [n]."""
        return self.labels[:, prop] >= 0


def encode_split(
    model: Blocks,
    split: Split,
    num_rows: int | None = None,
    *,
    drawn: bool = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Encodings:
    """Encode the rows of a split, or a random subset of them.

    Args:
        model: a trained model.
        split: data with labels.
        num_rows: the largest number of rows; None takes all, in their order.
        drawn: encode each row by a draw from q(z | x), the decoder's input, instead of the mean.
        seed: seed of the subset and the draws, at least 0.
        device: device of the model.

    Raises:
        ValueError: no labels or no rows in the split, or `num_rows` < 1.
    """
    if split.labels is None:
        raise ValueError("split: expected labels, got none")
    if num_rows is not None and num_rows < 1:
        raise ValueError(f"num_rows: expected a number >= 1, got {num_rows}")
    if num_rows is not None and num_rows < len(split):
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
        split = split.select(order[:num_rows])
    latents, codes, labels = [], [], []
    with torch.no_grad(), seeded(seed):
        for x, known in Batches(split, _BATCH, shuffle=False, device=device):
            q = model.posterior(x)
            z = q.sample() if drawn else q.mean
            latents.append(z.unflatten(-1, (-1, model.dim)).cpu().double().numpy())
            codes.append(model.codes(x).cpu().numpy())
            labels.append(known.cpu().numpy())
    return Encodings(np.concatenate(latents), np.concatenate(codes), np.concatenate(labels))


def learnable(train: Encodings, test: Encodings) -> list[int]:
    """Properties with at least two known values in the training rows and one in the test rows.

    Raises:
        ValueError: encodings with different blocks or properties, or no such property.
    """
    ours, theirs = (e.latents.shape[1:] + e.labels.shape[1:] for e in (train, test))
    if ours != theirs:
        raise ValueError(f"test: expected blocks, dimensions and properties {ours}, got {theirs}")
    columns = range(train.num_properties)
    found = [
        j for j in columns if len(np.unique(train.labels[train.known(j), j])) > 1 and test.known(j).any()
    ]
    if not found:
        raise ValueError("labels: expected a property with at least two known values, got none")
    return found
