"""Paper models: modules with a Pyro model and guide; networks and observation models are arguments."""

from pyro_fmvae.models.binary_sparse_coding import BinarySparseCoding
from pyro_fmvae.models.factor_group import FactorGroup, Hyperprior
from pyro_fmvae.models.factorial_mixture_vae import FactorialMixtureVAE
from pyro_fmvae.models.free_encoder import FreeEncoder
from pyro_fmvae.models.observed_mixture import ObservedMixture
from pyro_fmvae.models.sparse_priors import (
    FixedSparsePrior,
    MixtureSparsePrior,
    PseudoInputs,
    SelectionSparsePrior,
    SparsePrior,
)
from pyro_fmvae.models.spike_and_slab_sparse_coding import SpikeAndSlabSparseCoding
from pyro_fmvae.models.table_sites import TablePrior
from pyro_fmvae.models.vae import VAE, GaussianPosterior, PointPosterior, PosteriorFamily
from pyro_fmvae.models.variational_sparse_coding import VariationalSparseCoding

__all__ = [
    "VAE",
    "BinarySparseCoding",
    "FactorGroup",
    "FactorialMixtureVAE",
    "FixedSparsePrior",
    "FreeEncoder",
    "GaussianPosterior",
    "Hyperprior",
    "MixtureSparsePrior",
    "ObservedMixture",
    "PointPosterior",
    "PosteriorFamily",
    "PseudoInputs",
    "SelectionSparsePrior",
    "SparsePrior",
    "SpikeAndSlabSparseCoding",
    "TablePrior",
    "VariationalSparseCoding",
]
