"""The command ``restore``: denoise and inpaint an image with a model of patches."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser
from torch import Tensor

from pyro_fmvae import figures
from pyro_fmvae.app.commands.command import Command, add_device, add_run, add_seed, check_seed
from pyro_fmvae.app.commands.output_files import check_different, check_ending, check_spares_data, save_pixels
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data import Kind, PatchTransform
from pyro_fmvae.data.own.picture_files import read_grey
from pyro_fmvae.evaluate import psnr
from pyro_fmvae.evaluate import restore as restore_image
from pyro_fmvae.evaluate.randomness import resolve_device


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`restore`."""
    add_run(parser)
    parser.add_argument("--image", type=str, required=True, help="file of any size; colours become grey")
    parser.add_argument("--out", type=str, required=True, help="file to write: .png")
    parser.add_argument("--compare", type=str | None, help="file for image, damaged and restored one: .png")
    text = "image of the same size, black where pixels of the image are missing"
    parser.add_argument("--mask", type=str | None, help=text)
    text = "standard deviation of noise to add first; greys are in [0, 1]"
    parser.add_argument("--noise", type=float, default=0.0, help=text)
    parser.add_argument("--missing", type=float, default=0.0, help="share of pixels to remove first")
    parser.add_argument("--stride", type=int, default=1, help="pixels from one patch to the next")
    add_seed(parser, "of the damage and of draws")
    add_device(parser)


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
    """Damage an image if asked to, restore it by a model of patches, write it, and print how close it is.

    Prints one JSON object: ``noise`` and ``missing`` as given, and the peak signal-to-noise ratios ``before``
    (missing pixels at the mean of the others) and ``after``, in dB. They compare with the image in the file,
    over all pixels that ``mask`` does not call missing. They are null where nothing was damaged, and where
    the ratio is infinite because the image comes out exactly.

    Raises:
        ValueError: a run not on plain patches, too small an image, a mask that does not fit, or a bad
            number or file name.
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
    like = next(model.parameters())

    def reconstruct(patches: Tensor) -> Tensor:
        x = transform.split(patches.to(like))
        return transform.join(opened.recipe.reconstruct(model, x)).to(patches)

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
    """Read which pixels of an image [H, W] the mask leaves: bool [H, W].

    Raises:
        ValueError: the mask has another size or leaves no pixel.
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
    """Return the transform of a run's patches.

    Raises:
        ValueError: the run is not on patches, or its patches are whitened, which mixes their pixels.
    """
    transform = run.preprocessing.patches if run.preprocessing.kind is Kind.PATCHES else None
    if transform is None:
        raise ValueError(f"run: expected one on patches of images (--patch-size), {run.folder} is none")
    if transform.whitening is not None:
        raise ValueError(
            f"run: expected one on patches as they are (--whiten false), those of {run.folder} are whitened"
        )
    return transform


COMMAND = Command(
    "restore",
    "denoise and inpaint an image by its patches",
    "Denoise and inpaint an image by a run on plain patches: train with --patch-size 8 --whiten false.",
    add_arguments,
    restore,
)
