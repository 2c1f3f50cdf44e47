"""The contract of a data set that is known by name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyro_fmvae.data.binarization import Binarization
from pyro_fmvae.data.dataset import Dataset
from pyro_fmvae.data.sparse_options import SparseOptions


@dataclass(frozen=True)
class LoadOptions:
    """Options of :func:`~pyro_fmvae.data.registry.load`, checked; a loader reads those that concern it."""

    root: Path
    """Folder that data sets lie in, or are downloaded to."""
    binarization: Binarization
    image_size: int
    sparse: SparseOptions = field(default_factory=SparseOptions)


@dataclass(frozen=True)
class Loader:
    """A data set that is known by name: each module in :mod:`pyro_fmvae.data.sets` ends with one."""

    name: str
    load: Callable[[LoadOptions], Dataset]
    as_is: bool = False
    """`SparseOptions.as_is` may be asked for."""
    patches: bool = False
    """The data set is cut into patches: `SparseOptions.patch_size` may be asked for."""
