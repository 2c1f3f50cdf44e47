"""A run that was never trained, with two labelled factors of three."""

from pathlib import Path

from pyro_fmvae.config import TrainConfig

from pyro_fmvae.data import Kind, Preprocessing
from pyro_fmvae.runs.run import Run

RUN = Run(  # the label 'hat' was not trained on
    Path("run"),
    TrainConfig(factors=(2, 3, 5), labels=0.5, label_names=("eyes", "hair")),
    10,
    Preprocessing(Kind.BINARY, (2, 2)),
    ("eyes", "hair", "hat"),
    ((), ("blond", "dark", "7"), ("no", "yes")),
)
