"""A run that was never trained, with two labelled factors of three."""

from pathlib import Path

from pyro_fmvae.app.recipes import configure
from pyro_fmvae.app.recipes.fmvae import FMVAE
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data import Kind, Preprocessing

RUN = Run(  # the label 'hat' was not trained on
    Path("run"),
    FMVAE(
        configure(factors=(2, 3, 5), labels=0.5, label_names=("eyes", "hair")),
        Preprocessing(Kind.BINARY, (2, 2)),
        10,
        ("eyes", "hair", "hat"),
        ((), ("blond", "dark", "7"), ("no", "yes")),
    ),
)
