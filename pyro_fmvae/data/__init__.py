"""Data sets: generated ones, published ones, and a person's own files."""

from pyro_fmvae.data.batches import Batches, whole
from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.files import load_file
from pyro_fmvae.data.labels import choose_labels, hide_labels, hold_out
from pyro_fmvae.data.preprocessing import Binarization, Kind, Preprocessing
from pyro_fmvae.data.registry import load
from pyro_fmvae.data.smileys import smiley

__all__ = [
    "Batches",
    "Binarization",
    "Dataset",
    "Kind",
    "Preprocessing",
    "Split",
    "choose_labels",
    "hide_labels",
    "hold_out",
    "load",
    "load_file",
    "smiley",
    "whole",
]
