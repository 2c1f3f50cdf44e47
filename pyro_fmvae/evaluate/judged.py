"""Judged generation and editing of images. Paquet et al. (2018), Section 4.2 and Table 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fmvae.distributions import BernoulliObservation
from pyro_fmvae.evaluate.edits import Placement, edit_latent, transport
from pyro_fmvae.evaluate.judge import Judge, share
from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.models import FactorialMixtureVAE

_CHUNK = 500  # points decoded at once


@dataclass(frozen=True, eq=False)
class Generation:
    """Images generated with intended values of L' properties, one per labelled factor."""

    images: Tensor
    """The generated images, [n, *image_shape]."""
    intended: Tensor
    """The intended values, int64 [n, L']."""
    judged: Tensor
    """The judge's predictions, int64 [n, L']."""

    @property
    def accuracy(self) -> Tensor:
        """Share of images judged as intended, float64 [L']."""
        return (self.judged == self.intended).double().mean(0)


@dataclass(frozen=True, eq=False)
class Edits:
    """Judged results of encoding real images, editing one property and decoding; all float64."""

    flipped: Tensor
    """Share of edited images judged to have the new value, [L']; NaN for a property with one value."""
    kept: Tensor
    """Share of images whose judged value of another property is the same before and after the edit, averaged
    over all of the judge's other properties, [L']; NaN where there is no other property. "Before" is the
    unedited reconstruction."""
    kept_least: Tensor
    """As `kept`, for the other property that changed most often instead of the average, [L']."""
    kept_of_original: Tensor
    """As `kept`, compared with the original image instead of its reconstruction, [L']."""
    reconstructed: Tensor
    """Share of images whose reconstruction is judged like the original, [L]."""


@torch.no_grad()
def decoded(model: FactorialMixtureVAE, z: Tensor) -> Tensor:
    """Decode z [n, I·D] to images [n, *event_shape] for a judge of data.

    An image is the mean of p(x | z), rounded to 0 or 1 for binary pixels: the judge knows neither greys nor
    the noise of pixels that are drawn independently.
    """
    means = torch.cat([model.observation.mean(model.decoder(part)) for part in z.split(_CHUNK)])
    return (means >= 0.5).to(means.dtype) if isinstance(model.observation, BernoulliObservation) else means


@torch.no_grad()
def judged_generation(
    model: FactorialMixtureVAE, judge: Judge, num_samples: int, seed: int = 0
) -> Generation:
    """Generate images with intended values of the labelled factors, and let the judge classify them.

    The values are uniform and independent. The components of all other factors, and z, are drawn from the
    posterior predictive (equations 9 and 10). An image is the decoder's mean.

    Args:
        model: a trained model whose labelled factors are the judge's first properties, in this order.
        judge: a judge on the model's device.
        num_samples: n >= 1.
        seed: seed of all draws.

    Raises:
        ValueError: no labelled factor, more of them than properties, or fewer components than values.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples: expected a number >= 1, got {num_samples}")
    sizes, labelled = _intended_sizes(model, judge), list(model.labelled)
    with seeded(seed):
        drawn = [torch.randint(size, (num_samples,)) for size in sizes]
        intended = torch.stack(drawn, -1)
        codes = torch.full((num_samples, len(model.num_components)), -1)
        codes[:, labelled] = intended
        z = model.sample_latent(num_samples, codes)
    images = decoded(model, z)
    judged = judge.predict(images)[:, : len(labelled)]
    return Generation(images, intended.to(judged.device), judged)


@torch.no_grad()
def judged_edits(
    model: FactorialMixtureVAE,
    judge: Judge,
    x: Tensor,
    labels: Tensor,
    seed: int = 0,
    placement: Placement = transport,
) -> Edits:
    """Change one property of real images at a time, and let the judge say what changed.

    z is the mean of q(z | x). The new value is uniform over the values that the image does not have.

    Args:
        model: as for :func:`judged_generation`.
        judge: a judge on the model's device.
        x: real images that neither was trained on, [n, *image_shape], n >= 1.
        labels: their true values, int64 [n, >= L']; the model's own code replaces an unknown value (-1).
        seed: seed of the new values.
        placement: rule for the new value of a changed block.

    Raises:
        ValueError: as for :func:`judged_generation`, or no images.
    """
    sizes = _intended_sizes(model, judge)
    if len(x) == 0 or len(labels) != len(x) or labels.shape[1] < len(sizes):
        shapes = f"{list(x.shape)} and {list(labels.shape)}"
        raise ValueError(f"x, labels: expected n >= 1 images and [n, {len(sizes)}] labels, got {shapes}")
    parts = list(x.split(_CHUNK))
    z = torch.cat([model.posterior(part).mean for part in parts])
    codes = torch.cat([model.codes(part) for part in parts])
    original, before = judge.predict(x), judge.predict(decoded(model, z))
    flipped, unchanged_shares, least, kept_of_original = [], [], [], []
    generator = torch.Generator().manual_seed(seed)
    for j, (size, factor) in enumerate(zip(sizes, model.labelled, strict=True)):
        current = torch.where(labels[:, j] >= 0, labels[:, j].to(codes), codes[:, factor])
        asked = _other_values(current, size, generator)
        after = judge.predict(decoded(model, edit_latent(model, z, {factor: asked}, codes, placement)))
        others = [other for other in range(len(judge.label_sizes)) if other != j]
        flipped.append(share(after[:, [j]] == asked[:, None], (asked != current)[:, None]).squeeze(0))
        unchanged = (after == before)[:, others].double().mean(0)
        unchanged_shares.append(unchanged.mean())
        least.append(unchanged.min() if others else unchanged.mean())
        kept_of_original.append((after == original)[:, others].double().mean())
    reconstructed = (before == original).double().mean(0)
    return Edits(
        flipped=torch.stack(flipped),
        kept=torch.stack(unchanged_shares),
        kept_least=torch.stack(least),
        kept_of_original=torch.stack(kept_of_original),
        reconstructed=reconstructed,
    )


def _other_values(current: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Draw from 0..size-1 without the current value, int64 [n]; the current value if there is no other.

    A current component >= size is not a value of the property and excludes nothing.
    """
    draws = torch.randint(2**31, (len(current),), generator=generator).to(current.device)
    asked = draws % (size - (current < size).long()).clamp(min=1)
    return (asked + (asked >= current)).clamp(max=size - 1)


def _intended_sizes(model: FactorialMixtureVAE, judge: Judge) -> tuple[int, ...]:
    """Number of values of each property that a factor was trained on."""
    count = len(model.labelled)
    if not count:
        raise ValueError("model: expected labelled factors, got none")
    if count > len(judge.label_sizes):
        raise ValueError(f"judge: expected {count} properties or more, got {len(judge.label_sizes)}")
    sizes = judge.label_sizes[:count]
    if any(model.num_components[i] < size for i, size in zip(model.labelled, sizes, strict=True)):
        raise ValueError(
            f"judge: expected no more values than components of each labelled factor, got {sizes}"
        )
    return sizes
