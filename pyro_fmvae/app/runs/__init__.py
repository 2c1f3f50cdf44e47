"""A run: its folder, its trainer, its session and report; and, once trained, its use in Python."""

from pyro_fmvae.app.runs.closing_table import METRICS, REPORT
from pyro_fmvae.app.runs.run import CHECKPOINT, CONFIG, FIGURES, Run, load_data, saved
from pyro_fmvae.app.runs.trained import TrainedRun, from_pretrained, load
from pyro_fmvae.app.runs.trainer import Trainer
from pyro_fmvae.app.runs.training import train
from pyro_fmvae.evaluate.randomness import resolve_device

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
    "train",
]
