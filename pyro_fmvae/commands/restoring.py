"""Denoise and inpaint an image with a run's model of patches."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyro_fmvae import figures
from pyro_fmvae.building import SparseCoder
from pyro_fmvae.commands.arguments import check_different, check_ending, check_seed, check_spares_data
from pyro_fmvae.commands.arrays import save_pixels
from pyro_fmvae.data import Kind, PatchTransform
from pyro_fmvae.data.patch_sets import read_grey
from pyro_fmvae.evaluate import psnr
from pyro_fmvae.evaluate import restore as restore_image
from pyro_fmvae.models import SpikeAndSlabSparseCoding
from pyro_fmvae.runs.run import Run, resolve_device


def restore(
    run: str,
    image: str,
    out: str,
    compare: str | None,
    mask: str | None,
    noise: float,
    missing: float,
    stride: int,
    seed: int,
    device: str,
) -> int:
    """Write an image as a run's model of patches sees it, damaged before on demand; print how close it came.

    Printed is one JSON object: ``noise`` and ``missing`` as given, and the peak signal-to-noise ratios
    ``before`` (missing pixels at the mean of the others) and ``after``, in dB, against the image as it is in
    its file, over all pixels that ``mask`` does not say are missing there; null where nothing was damaged, or
    where an image comes out exactly, whose ratio is infinite.
    """
    opened, target = Run.open(Path(run)), Path(out)
    if not 0 <= noise < float("inf"):
        raise ValueError(f"noise: expected a standard deviation >= 0, got {noise}")
    if not 0 <= missing < 1:
        raise ValueError(f"missing: expected a share in [0, 1), got {missing}")
    check_seed(seed)
    check_ending(target, (".png",))
    check_spares_data(opened, target)
    if compare is not None:
        check_ending(Path(compare), (".png",), "compare")
        check_spares_data(opened, Path(compare), "compare")
    check_different(image=image, out=out, compare=compare, mask=mask)
    transform = _transform(opened)
    if not 1 <= stride <= transform.size:
        raise ValueError(f"stride: expected a number from 1 to {transform.size}, got {stride}")
    model = opened.load_model(resolve_device(device))
    assert isinstance(model, SparseCoder)
    reference = read_grey(Path(image))
    if min(reference.shape) < transform.size:
        height, width = reference.shape
        raise ValueError(
            f"image: expected at least {transform.size} x {transform.size} pixels, as the run's patches are, "
            f"{image} is {width} x {height}"
        )
    there = _there(mask, reference)
    torch.manual_seed(seed)
    damaged = reference + noise * torch.randn_like(reference)
    damaged[(torch.rand_like(reference) < missing) | ~there] = torch.nan
    like = model.weight

    def reconstruct(patches: Tensor) -> Tensor:
        x = transform.split(patches.to(like))
        if isinstance(model, SpikeAndSlabSparseCoding):
            return transform.join(model.posterior_mean_image(x)).to(patches)
        return transform.join(model.decode(model.posterior(x).mean)).to(patches)

    size, scale = transform.size, transform.scale
    keep = noise == 0 and bool(damaged.isnan().any())
    restored = restore_image(reconstruct, damaged.to(like.device), size, stride, scale, keep).cpu()
    restored = restored.clamp(0, 1)
    save_pixels(target, restored)
    result: dict[str, Any] = {"noise": noise, "missing": missing, "before": None, "after": None}
    if noise or missing:
        filled = torch.where(damaged.isnan(), damaged.nanmean(), damaged)
        known = reference[there]
        result |= {"before": psnr(filled[there], known), "after": psnr(restored[there], known)}
    if compare is not None:
        images = {"image": reference, "damaged": damaged, "restored": restored}
        ratios = {"damaged": result["before"], "restored": result["after"]} if noise or missing else {}
        figures.save(figures.restoration(images, ratios), Path(compare))
    finite = {name: None if value == math.inf else value for name, value in result.items()}
    print(json.dumps(finite, allow_nan=False))
    return 0


def _there(mask: str | None, image: Tensor) -> Tensor:
    """Which pixels of an image [H, W] the mask leaves: bool [H, W].

    Raises:
        ValueError: a mask of another size, or one that leaves none.
    """
    if mask is None:
        return torch.ones_like(image, dtype=torch.bool)
    there = read_grey(Path(mask)) >= 0.5
    if there.shape != image.shape or not there.any():
        expected = "x".join(map(str, image.shape))
        got = "x".join(map(str, there.shape)) if there.any() else "a black one"
        raise ValueError(
            f"mask: expected an image of {expected} pixels that is not black all over, got {got}"
        )
    return there


def _transform(run: Run) -> PatchTransform:
    """How patches of a run were made.

    Raises:
        ValueError: the run is not one on patches, or on whitened ones, whose pixels are no longer apart.
    """
    transform = run.preprocessing.patches if run.preprocessing.kind is Kind.PATCHES else None
    if transform is None:
        raise ValueError(f"run: expected one on patches of images (--patch-size), {run.folder} is none")
    if transform.whitening is not None:
        raise ValueError(
            f"run: expected one on patches as they are (--whiten false), those of {run.folder} are whitened"
        )
    return transform
