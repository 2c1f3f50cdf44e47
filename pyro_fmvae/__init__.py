"""Deep generative models with structured priors, as Pyro programs with closed-form inference."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("pyro_fmvae")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
