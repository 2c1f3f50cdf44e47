"""Data sets: generated ones, published ones, and a person's own files."""

from pyro_fmvae.data.batches import Batches, whole
from pyro_fmvae.data.binarization import Binarization
from pyro_fmvae.data.count_table import CountOptions
from pyro_fmvae.data.dataset import Dataset, Split
from pyro_fmvae.data.labels import choose_labels, hide_labels, hold_out
from pyro_fmvae.data.loader import SparseOptions
from pyro_fmvae.data.own.files import load_file
from pyro_fmvae.data.patch_transform import PatchTransform
from pyro_fmvae.data.photo_views import RandomPhoto
from pyro_fmvae.data.preprocessing import Kind, Preprocessing
from pyro_fmvae.data.registry import load
from pyro_fmvae.data.sets.bars import Bars, BarsTruth, bars, bars_truth
from pyro_fmvae.data.sets.smileys import smiley
from pyro_fmvae.data.storage import luminance

__all__ = [
    "Bars",
    "BarsTruth",
    "Batches",
    "Binarization",
    "CountOptions",
    "Dataset",
    "Kind",
    "PatchTransform",
    "Preprocessing",
    "RandomPhoto",
    "SparseOptions",
    "Split",
    "bars",
    "bars_truth",
    "choose_labels",
    "hide_labels",
    "hold_out",
    "load",
    "load_file",
    "luminance",
    "smiley",
    "whole",
]
