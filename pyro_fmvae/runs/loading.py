"""Opening a finished run for use in Python: from its folder, from a file, or from a hub of models."""

from pathlib import Path

import torch

from pyro_fmvae.runs.hub import fetch
from pyro_fmvae.runs.run import Run, resolve_device
from pyro_fmvae.runs.trained import TrainedRun


def load(folder: str | Path, device: str | torch.device = "auto") -> TrainedRun:
    """Load a run for use in Python.

    Args:
        folder: the run's folder, such as ``runs/photos-001``, or an exported ``model.fmvae``.
        device: where to compute; ``auto`` is a GPU where there is one.

    Returns:
        The run with its best model; of an interrupted one, with its model as it was at the last checkpoint.

    Raises:
        FileNotFoundError: the run has no checkpoint.
        ValueError: the folder is no run, it is damaged, or there is no such device.
    """
    return TrainedRun(Run.open(Path(folder)), resolve_device(str(device)))


def from_pretrained(
    name: str | Path,
    device: str | torch.device = "auto",
    revision: str | None = None,
    token: str | None = None,
) -> TrainedRun:
    """Load a model that :meth:`TrainedRun.push_to_hub` uploaded. It needs huggingface_hub, and no pickle.

    Args:
        name: repository, such as ``user/faces``; or a folder on this machine that holds ``model.fmvae``.
        device: where to compute; ``auto`` is a GPU where there is one.
        revision: branch, tag or commit; None: the newest.
        token: of an account that may read the repository; None: that of ``hf auth login``.

    Raises:
        FileNotFoundError: the folder holds no exported model.
        ValueError: huggingface_hub is not installed, or the file is damaged.
    """
    return load(fetch(name, revision, token), device)
