"""Names of rows of a person's own data: files of a folder of images, cells of a .h5ad file, or numbers."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyro_fmvae.data.dataset import Split
from pyro_fmvae.data.own.folder import find_images
from pyro_fmvae.data.own.h5ad_file import opened, read_names
from pyro_fmvae.data.own.on_disk import CELLS
from pyro_fmvae.data.own.zarr_store import is_folder

ROW = "row"


class RowNames(NamedTuple):
    """Names of n rows."""

    title: str
    """What they are: ``file``, ``name``, or `ROW` of rows that have no names."""
    values: np.ndarray
    """Strings [n]; of `ROW` where each row stands in its file, from 0."""

    @property
    def given(self) -> bool:
        """True if the data name their rows."""
        return self.title != ROW


def row_names(data: str, rows: Split) -> RowNames:
    """Find the names of rows.

    Args:
        data: the data set, file or folder that they were drawn from.
        rows: the rows.

    Raises:
        FileNotFoundError: the file is no longer there.
        ValueError: it is damaged.
    """
    path = Path(data)
    if rows.places is None:
        return RowNames(ROW, np.arange(len(rows)))
    places = rows.places.numpy()
    if is_folder(path):
        return RowNames("file", np.array(find_images(path))[places])
    if path.suffix.lower() == CELLS:
        with opened(path) as file:
            names = np.array(read_names(file, "obs", None, path))
        if places.max(initial=-1) >= len(names):
            raise ValueError(f"{path}: expected a name in 'obs' for each row of X, found {len(names):,}")
        return RowNames("name", names[places])
    return RowNames(ROW, places)
