"""Pictures of a trained model and of its training.

Each function returns a matplotlib ``Figure``; `save` writes it.
"""

from pyro_fmvae.figures.attributes import attribute_rows
from pyro_fmvae.figures.columns import column_means
from pyro_fmvae.figures.components import component_grid
from pyro_fmvae.figures.factors import Factors
from pyro_fmvae.figures.grids import reconstructions, sample_grid
from pyro_fmvae.figures.page import save
from pyro_fmvae.figures.training import training_curves

__all__ = [
    "Factors",
    "attribute_rows",
    "column_means",
    "component_grid",
    "reconstructions",
    "sample_grid",
    "save",
    "training_curves",
]
