"""Denoising and inpainting of a photograph by sparse codes of its patches.

    python examples/restoration.py [--models bsc,linear-sparse] [--out restored]
    python examples/restoration.py --models max-sparse --epochs 5
    python examples/restoration.py --image old.jpg --out restored

Patches of 8×8 greys are cut from the two photographs that scikit-learn ships, centred, and divided by one
standard deviation. Each model learns 64 units from them by stepwise EM. Then a piece of one photograph is
damaged in two ways: by noise of standard deviation 0.1 on greys in [0, 1], and by removing half of the
pixels. Every overlapping patch is reconstructed by its posterior (missing pixels are left out of the
likelihood), and overlaps are averaged. For the max rule, whose means are never negative, patches are split
into positive and negative deviations from their mean.

The script prints peak signal-to-noise ratios in dB before and after. Before inpainting, missing pixels are
set to the mean of the others. The training patches come from the same photographs, so the results say nothing
about generalisation.
"""

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor

from pyro_fmvae import fit
from pyro_fmvae.data import Batches, Dataset, PatchTransform, SparseOptions, load, luminance
from pyro_fmvae.learn import Budget, StepwiseEM
from pyro_fmvae.models import BinarySparseCoding, SpikeAndSlabSparseCoding
from pyro_fmvae.models.em import BinaryEM, LinearRule, MaxRule, SpikeAndSlabEM

SIZE, UNITS, BATCH = 8, 64, 1000
PIECE = (slice(100, 228), slice(250, 378))  # of the first photograph: a pagoda
NOISE, MISSING = 0.1, 0.5
SLABS = {"max-sparse": MaxRule, "linear-sparse": LinearRule}


def psnr(image: Tensor, reference: Tensor) -> float:
    """Peak signal-to-noise ratio of greys in [0, 1], in dB."""
    error = (image.double() - reference.double()).square().mean().item()
    return math.inf if error == 0 else -10 * math.log10(error)


def extract_patches(image: Tensor, size: int, stride: int) -> Tensor:
    """Cut an image [H, W] into patches [n, P, P] that cover it; the last ones end at its edges."""
    rows, columns = (
        torch.tensor([*range(0, length - size, stride), length - size]) for length in image.shape
    )
    windows = image.unfold(0, size, 1).unfold(1, size, 1)
    return windows[rows[:, None], columns].reshape(-1, size, size)


def assemble_patches(patches: Tensor, shape: Sequence[int], stride: int) -> Tensor:
    """The inverse of :func:`extract_patches`: an image [H, W], the mean of patches where they overlap."""
    pixels = torch.arange(math.prod(shape)).reshape(*shape)
    index = extract_patches(pixels, patches.shape[1], stride).flatten()
    total = patches.new_zeros(len(pixels.flatten())).index_add_(0, index, patches.flatten())
    return (total / index.bincount()).reshape(*shape)


@torch.no_grad()
def restore(
    reconstruct: Callable[[Tensor], Tensor],
    image: Tensor,
    patch_size: int,
    stride: int = 1,
    scale: float = 1.0,
    keep_observed: bool = False,
) -> Tensor:
    """Denoise and inpaint a grey image with a model of patches.

    Each patch is centred at the mean of its observed pixels (of the image's, if it has none), divided by
    ``scale``, reconstructed, and transformed back. Overlapping reconstructions are averaged.

    Args:
        reconstruct: maps centred patches [n, P, P], NaN = missing, to their reconstructions [n, P, P].
        image: [H, W], NaN = missing.
        patch_size: P, height and width of a patch.
        stride: distance between patches in both directions, from 1 to P.
        scale: divisor of centred patches, that of the model's training data.
        keep_observed: copy observed pixels from the image, for images without noise.

    Returns:
        The restored image [H, W], without NaN; values outside [0, 1] are not clipped.
    """
    patches = extract_patches(image, patch_size, stride)
    mean = patches.nanmean((1, 2), keepdim=True)
    mean = torch.where(mean.isnan(), image.nanmean(), mean)
    found = torch.cat([reconstruct(part) for part in ((patches - mean) / scale).split(4096)])
    result = assemble_patches(found * scale + mean, image.shape, stride)
    return torch.where(image.isnan(), result, image) if keep_observed else result


def side_by_side(images: Mapping[str, Tensor], ratios: Mapping[str, float]) -> Figure:
    """Images [H, W] beside each other, with their names and ratios; missing pixels are orange."""
    figure = Figure(figsize=(2.2 * len(images), 2.8), layout="constrained")
    for (name, image), axes in zip(images.items(), figure.subplots(1, len(images)), strict=True):
        grey = image.clamp(0, 1).numpy()[..., None]
        axes.imshow(np.where(np.isnan(grey), (0.90, 0.42, 0.20), grey.repeat(3, -1)))
        axes.set_title(f"{name}\n{ratios[name]:.2f} dB" if name in ratios else name, fontsize=9)
        axes.axis("off")
    return figure


def learn(name: str, dataset: Dataset, epochs: int, seed: int) -> Any:
    """Train a model of patches."""
    batches = Batches(dataset.train, BATCH, seed=seed, indexed=True)
    shape, number = dataset.event_shape, batches.num_data
    budget = Budget(iterations=epochs * len(batches))
    if name == "bsc":
        binary = BinaryEM(UNITS)
        model: Any = BinarySparseCoding(shape, number, binary)
        phase = StepwiseEM(model, binary, budget)
    else:
        slabs = SpikeAndSlabEM(SLABS[name](), UNITS, preselect=6)
        model = SpikeAndSlabSparseCoding(shape, number, slabs, burn_in=10, draws=10)
        phase = StepwiseEM(model, slabs, budget, temperature=3.0)
    for _ in fit([phase], batches):
        pass
    return model.eval()


def reconstruction(model: Any, transform: PatchTransform) -> Callable[[Tensor], Tensor]:
    """E[W h | x] of patches, or E[f(s) | x] over draws."""

    def reconstruct(patches: Tensor) -> Tensor:
        x = transform.split(patches)
        if isinstance(model, BinarySparseCoding):
            return transform.join(model.decode(model.posterior(x).mean))
        return transform.join(model.reconstruct(x))

    return reconstruct


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="bsc,linear-sparse,max-sparse", help="models to learn")
    parser.add_argument("--epochs", type=int, default=10, help="passes through the training patches")
    parser.add_argument("--patches", type=int, default=20_000, help="patches; 8 in 10 are for training")
    parser.add_argument("--stride", type=int, default=2, help="pixels from one patch to the next")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--image", type=Path, help="picture to damage in place of the photograph")
    parser.add_argument("--out", type=Path, help="folder for pictures; default: no pictures")
    chosen = parser.parse_args()
    names = chosen.models.split(",")
    if unknown := set(names) - {"bsc", *SLABS}:
        parser.error(f"models: expected bsc, max-sparse or linear-sparse, got {', '.join(unknown)}")
    photograph = torch.tensor(load_sample_images().images[0]).float() / 255
    image = luminance(photograph)[PIECE]
    if chosen.image is not None:
        image = torch.from_numpy(np.asarray(Image.open(chosen.image).convert("L"), np.float32) / 255)
    pyro.set_rng_seed(chosen.seed)
    noisy = image + NOISE * torch.randn_like(image)
    holed = torch.where(torch.rand_like(image) < MISSING, torch.nan, image)
    filled = torch.where(holed.isnan(), holed.nanmean(), holed)
    tasks = {"denoising": (noisy, noisy), "inpainting": (holed, filled)}
    shown = {task: {"image": image, "damaged": damaged} for task, (damaged, _) in tasks.items()}
    ratios = {task: {"damaged": psnr(before, image)} for task, (_, before) in tasks.items()}
    print(f"{'model':15}{'training':>10}" + "".join(f"{task:>24}" for task in tasks))
    for name in names:
        start = time.monotonic()
        on_off = name == "max-sparse"
        options = SparseOptions(patch_size=SIZE, patches=chosen.patches, whiten=False, on_off=on_off)
        dataset = load("scenes", sparse=options)
        transform = dataset.preprocessing.patches
        assert transform is not None
        model = learn(name, dataset, chosen.epochs, chosen.seed)
        cells = [f"{name:15}{time.monotonic() - start:>8.1f} s"]
        for task, (damaged, _) in tasks.items():
            keep = task == "inpainting"
            how = SIZE, chosen.stride, transform.scale, keep
            found = restore(reconstruction(model, transform), damaged, *how).clamp(0, 1)
            shown[task][name], ratios[task][name] = found, psnr(found, image)
            cells.append(f"{ratios[task]['damaged']:>10.2f} to {ratios[task][name]:.2f} dB")
        print("  ".join(cells), flush=True)
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        for task, images in shown.items():
            side_by_side(images, ratios[task]).savefig(chosen.out / f"{task}.png", dpi=150)
        print(f"pictures in {chosen.out}")


if __name__ == "__main__":
    main()
