"""The version of the package."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("pyro_fmvae")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0+unknown"
