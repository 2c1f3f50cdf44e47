"""Arrays in a file, never half of one."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from pyro_fmvae import checkpoint


def save_arrays(target: Path, arrays: dict[str, Any]) -> None:
    """Write a .npz file, never half of it; folders that are missing are made."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, **arrays)

    target.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(target, write)


def save_pixels(target: Path, pixels: Tensor) -> None:
    """Write pixels in [0, 1], [H, W] or [H, W, 3], as a .png, one for one."""
    picture = Image.fromarray(np.uint8(pixels.clamp(0, 1).mul(255).round().numpy()))
    target.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(target, lambda path: picture.save(path, format="PNG"))
