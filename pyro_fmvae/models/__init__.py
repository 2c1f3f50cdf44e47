"""Paper models: modules with a Pyro model and guide; networks and observation models are arguments."""

from pyro_fmvae.models.factor_group import FactorGroup, Hyperprior
from pyro_fmvae.models.factorial_mixture_vae import FactorialMixtureVAE
from pyro_fmvae.models.vae import VAE

__all__ = ["VAE", "FactorGroup", "FactorialMixtureVAE", "Hyperprior"]
