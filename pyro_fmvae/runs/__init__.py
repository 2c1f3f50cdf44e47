"""A run: its folder, the trainer of its model, the session at the terminal and the report at the end."""

from pyro_fmvae.runs.run import CHECKPOINT, CONFIG, FIGURES, METRICS, Run, load_data, resolve_device, saved
from pyro_fmvae.runs.trainer import Trainer

__all__ = [
    "CHECKPOINT",
    "CONFIG",
    "FIGURES",
    "METRICS",
    "Run",
    "Trainer",
    "load_data",
    "resolve_device",
    "saved",
]
