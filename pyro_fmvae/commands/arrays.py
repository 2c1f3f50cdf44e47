"""Arrays in a file, never half of one."""

from pathlib import Path
from typing import Any

import numpy as np

from pyro_fmvae import checkpoint


def save_arrays(target: Path, arrays: dict[str, Any]) -> None:
    """Write a .npz file, never half of it; folders that are missing are made."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, **arrays)

    target.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(target, write)
