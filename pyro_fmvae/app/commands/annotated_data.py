"""Encodings beside the data that they are of, in a .h5ad file of AnnData."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from pyro_fmvae.app.commands.row_tables import CLUSTER, CODES, MEAN, PREDICTED, factor_columns
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data.own.h5ad_file import member, opened
from pyro_fmvae.files import checkpoint

H5AD: Final = ".h5ad"


def check_annotates(data: str | None, target: Path) -> None:
    """Raise ValueError if a .h5ad file is to be written, but the data are none."""
    if target.suffix == H5AD and (data is None or Path(data).suffix != H5AD):
        raise ValueError(f"out: a {H5AD} file is written beside the data of one: give --data cells{H5AD}")


def save_annotated(run: Run, source: Path, target: Path, arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Write a copy of a .h5ad file with the encodings of its rows, in one step; make missing folders.

    Codes, the names of their values, their probabilities and clusters become columns of ``obs``; all other
    arrays go to ``obsm``, the means as ``X_fmvae``, by the name of the model.

    Args:
        run: whose model encoded the rows.
        source: the file with the rows.
        target: the file to write.
        arrays: as :meth:`~pyro_fmvae.app.recipes.recipe.Recipe.encode` gives them, each [n, ...], by name.

    Returns:
        The names that were added.

    Raises:
        ValueError: the file has one of these names already, or its ``obs`` or ``obsm`` lies elsewhere.
    """
    gammas = [arrays[f"responsibilities_{factor}"] for factor in range(len(run.recipe.factors))]
    columns = factor_columns(run, arrays, gammas) if run.factorial else {}
    beside = {name: array for name, array in arrays.items() if name not in (CODES, MEAN, PREDICTED, *CLUSTER)}
    beside = {f"X_{run.recipe.name}": arrays[MEAN], **beside}

    def write(path: Path) -> None:
        shutil.copyfile(source, path)
        with opened(path, "r+") as file:
            _add(file, "obs", columns, source)
            _add(file, "obsm", beside, source)
            obs = file["obs"]
            order = [str(name) for name in obs.attrs.get("column-order", ())]
            obs.attrs["column-order"] = np.array([*order, *columns], dtype=object)

    target.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(target, write)
    return [*(f"obs[{name!r}]" for name in columns), *(f"obsm[{name!r}]" for name in beside)]


def _add(file: Any, name: str, arrays: Mapping[str, np.ndarray], source: Path) -> None:
    from anndata.io import write_elem

    if name not in file:
        write_elem(file, name, {})
    group = member(file, name, source)
    for key, array in arrays.items():
        if key in group:
            raise ValueError(f"out: {source} has {name}[{key!r}] already")
        write_elem(group, key, array)
