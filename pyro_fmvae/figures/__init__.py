"""Figures of a trained model and of its training.

Each function returns a matplotlib ``Figure``, which `save` writes; `traversal` returns the frames of an
animation, which `save_animation` writes.
"""

from pyro_fmvae.figures.activity import class_activity
from pyro_fmvae.figures.attribute_grid import attribute_grid
from pyro_fmvae.figures.attributes import attribute_rows
from pyro_fmvae.figures.clusters import clusters
from pyro_fmvae.figures.columns import column_means
from pyro_fmvae.figures.components import component_grid
from pyro_fmvae.figures.confusion import confusion
from pyro_fmvae.figures.correlation import correlation_matrices
from pyro_fmvae.figures.curves import compared_curves, training_curves
from pyro_fmvae.figures.dendrogram import dendrogram
from pyro_fmvae.figures.dictionary import dictionary
from pyro_fmvae.figures.em_curves import em_curves
from pyro_fmvae.figures.factors import Factors
from pyro_fmvae.figures.grids import reconstructions, sample_grid
from pyro_fmvae.figures.interpolation import spike_toggles, value_sweeps
from pyro_fmvae.figures.matrix import property_matrix
from pyro_fmvae.figures.nearest import nearest_pictures
from pyro_fmvae.figures.page import save
from pyro_fmvae.figures.pairs import pair_grid
from pyro_fmvae.figures.recovered_units import recovered_units
from pyro_fmvae.figures.resampling import conditional_samples
from pyro_fmvae.figures.slab_histogram import slab_histogram
from pyro_fmvae.figures.spectrum import moved_pictures, spectrum
from pyro_fmvae.figures.spread import spread
from pyro_fmvae.figures.traversal import save_animation, traversal

__all__ = [
    "Factors",
    "attribute_grid",
    "attribute_rows",
    "class_activity",
    "clusters",
    "column_means",
    "compared_curves",
    "component_grid",
    "conditional_samples",
    "confusion",
    "correlation_matrices",
    "dendrogram",
    "dictionary",
    "em_curves",
    "moved_pictures",
    "nearest_pictures",
    "pair_grid",
    "property_matrix",
    "reconstructions",
    "recovered_units",
    "sample_grid",
    "save",
    "save_animation",
    "slab_histogram",
    "spectrum",
    "spike_toggles",
    "spread",
    "training_curves",
    "traversal",
    "value_sweeps",
]
