"""Interpolation of single latents, in value or between on and off (Tonolini et al., 2019)."""

from heapq import nlargest
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.evaluate.slabs import slabs_of
from pyro_fmvae.figures.page import Figure
from pyro_fmvae.figures.rows import Decoder, Row, check_codes, decode_images, image_rows


class _Sweep(NamedTuple):
    latent: int
    values: Tensor  # [steps]
    images: np.ndarray  # [steps, H, W] or [steps, H, W, 3]

    @property
    def change(self) -> float:
        """Squared distance between the first and the last image."""
        return float(np.square(self.images[-1] - self.images[0]).sum())


def value_sweeps(
    decode: Decoder, z: Tensor, latents: Tensor, most: int = 5, steps: int = 7, share: float = 0.9
) -> Figure:
    """Continuous interpolation: rows of images in which one active latent of an example changes its value.

    Each example has rows for the active latents that change its image most, by the squared difference of the
    first and last image. Values go in equal steps through the central range of the latent's non-zero values
    in a data set. All other latents are held fixed.

    Args:
        decode: maps z [n, J] to images in [0, 1].
        z: codes of the examples, [n, J], exactly zero where a latent is off.
        latents: codes of a data set, [N, J], where each latent that is active in an example is active, too.
        most: largest number of rows for each example.
        steps: number of images in each row, at least 2.
        share: share of the non-zero values between the first and the last value, in (0, 1].

    Raises:
        ValueError: tensors of other shapes, numbers out of range, no active latent in any example, or one
            that is never active in ``latents``.
    """
    check_codes(z, latents)
    if most < 1 or steps < 2 or not 0 < share <= 1:
        raise ValueError(
            f"most, steps, share: expected at least 1 and 2, and a number in (0, 1], "
            f"got {most}, {steps} and {share}"
        )
    rows = []
    for code, image in zip(z, decode_images(decode, z), strict=True):
        active = code.nonzero()[:, 0].tolist()
        sweeps = (_sweep(decode, code, j, _values(latents[:, j], j, steps, share)) for j in active)
        for sweep in nlargest(most, sweeps, key=lambda sweep: sweep.change):
            captions = [[_number(float(code[sweep.latent]))], list(map(_number, sweep.values.tolist()))]
            rows.append(Row(f"latent {sweep.latent}", (image[None], sweep.images), captions))
    if not rows:
        raise ValueError("z: expected at least one non-zero latent, got none")
    middle = f"the middle {100 * share:.0f} % of its non-zero values"
    note = f"In each row one latent goes through {middle}, all others are held."
    return image_rows(rows, ("reconstruction", "with the value below"), note)


def spike_toggles(decode: Decoder, z: Tensor, latents: Tensor, most: int = 4) -> Figure:
    """Discrete interpolation: a row of images for each example, each with one latent switched off or on.

    An active latent is set to zero, an inactive one to the mean of its non-zero values in a data set. A row
    shows the latents that change the image most, by the squared difference. Latents that are never active in
    the data set are left out.

    Args:
        decode: maps z [n, J] to images in [0, 1].
        z: codes of the examples, [n, J], exactly zero where a latent is off.
        latents: codes of a data set, [N, J].
        most: largest number of latents to switch off, and of those to switch on.

    Raises:
        ValueError: tensors of other shapes, or ``most`` < 1.
    """
    check_codes(z, latents)
    if most < 1:
        raise ValueError(f"most: expected a number >= 1, got {most}")
    loc, used = slabs_of(latents).loc, (latents != 0).any(0)
    rows = []
    for code, image in zip(z, decode_images(decode, z), strict=True):
        images, captions = [image[None]], [[""]]
        for candidates in (code.nonzero()[:, 0], ((code == 0) & used).nonzero()[:, 0]):
            chosen = _by_effect(decode, code, image, candidates, loc)[:most]
            switched = decode_images(decode, _switched(code, chosen, loc)) if len(chosen) else image[:0]
            images.append(switched)
            captions.append([f"latent {latent}" for latent in chosen.tolist()])
        rows.append(Row("", images, captions))
    note = "All latents but one are held in each image."
    if any(len(row.groups[2]) for row in rows):
        note += " Switched on, it has the mean of its non-zero values."
    return image_rows(rows, ("reconstruction", "switched off", "switched on"), note)


def _by_effect(decode: Decoder, code: Tensor, image: np.ndarray, candidates: Tensor, on: Tensor) -> Tensor:
    """Sort candidate latents, int64 [m], by how much switching them changes the image of a code [J]."""
    if not len(candidates):
        return candidates
    changed = decode_images(decode, _switched(code, candidates, on))
    effect = torch.from_numpy(np.square(changed - image)).flatten(1).sum(1)
    return candidates[effect.argsort(descending=True, stable=True).to(candidates.device)]


def _switched(code: Tensor, chosen: Tensor, on: Tensor) -> Tensor:
    """Copy a code [J] for each chosen latent and switch it: off to zero, or on to its value in ``on`` [J]."""
    copies = code.repeat(len(chosen), 1)
    copies[torch.arange(len(chosen), device=code.device), chosen] = torch.where(
        code[chosen] == 0, on[chosen], 0.0
    ).to(code)
    return copies


def _sweep(decode: Decoder, code: Tensor, latent: int, values: Tensor) -> _Sweep:
    """Decode a code [J] with other values [steps] of a latent."""
    swept = code.repeat(len(values), 1)
    swept[:, latent] = values.to(code)
    return _Sweep(latent, values, decode_images(decode, swept))


def _values(column: Tensor, latent: int, steps: int, share: float) -> Tensor:
    """Equal steps between two quantiles of the non-zero values, float64 [steps]."""
    values = column[column != 0].double().cpu().numpy()
    if not len(values):
        raise ValueError(f"latents: expected latent {latent} to be active somewhere, as it is in an example")
    low, high = np.quantile(values, [(1 - share) / 2, (1 + share) / 2])
    return torch.linspace(low, high, steps, dtype=torch.float64)


def _number(value: float) -> str:
    text = f"{value:.2f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")
