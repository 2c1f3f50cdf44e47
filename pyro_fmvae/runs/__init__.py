"""A run: its folder, its trainer, its session and report; and, once trained, its use in Python."""

from pyro_fmvae.runs.loading import from_pretrained, load
from pyro_fmvae.runs.run import (
    CHECKPOINT,
    CONFIG,
    FIGURES,
    METRICS,
    REPORT,
    Run,
    load_data,
    resolve_device,
    saved,
)
from pyro_fmvae.runs.trained import TrainedRun
from pyro_fmvae.runs.trainer import Trainer

__all__ = [
    "CHECKPOINT",
    "CONFIG",
    "FIGURES",
    "METRICS",
    "REPORT",
    "Run",
    "TrainedRun",
    "Trainer",
    "from_pretrained",
    "load",
    "load_data",
    "resolve_device",
    "saved",
]
