"""The contract of a data set that is known by name, and options for reading one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyro_fmvae.data.binarization import Binarization
from pyro_fmvae.data.count_table import CountOptions
from pyro_fmvae.data.dataset import Dataset
from pyro_fmvae.data.patch_transform import PatchTransform

LARGEST_PATCH: Final = 32


@dataclass(frozen=True)
class TableOptions:
    """Statements of a person about the columns of a table."""

    kinds: tuple[tuple[str, str], ...] = ()
    """Column, by name or by number from 1, and its kind."""
    labels: tuple[str, ...] = ()
    """Columns that are labels, beside those called ``label:NAME``."""
    header: bool | None = None
    """Whether the first row holds names; None: see `read_csv`."""
    ignore: tuple[str, ...] = ()
    """Columns, by name or by number from 1, that are set aside."""
    rest: str = ""
    """Kind of all others; ``plain``: numbers, or else categories, of which none is set aside; empty: to be
    found out."""

    def kinds_of(self, names: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Places of columns with these names, from 0, and their kinds.

        Raises:
            ValueError: there is no such column.
        """
        for place in range(len(names)) if self.rest else ():
            yield place, self.rest
        places = {str(place): place - 1 for place in range(1, len(names) + 1)}
        places |= {name: place for place, name in enumerate(names) if name}
        for column, kind in (*self.kinds, *((name, "ignored") for name in self.ignore)):
            if column not in places:
                argument = "ignore" if kind == "ignored" else "kind"
                listed = ", ".join(filter(None, names)) or f"1 to {len(names)}"
                raise ValueError(f"{argument}: expected columns out of {listed}, got {column!r}")
            yield places[column], kind


@dataclass(frozen=True)
class SparseOptions:
    """Options of `load` for models of sparse causes, mixtures and counts; defaults read data as for others.

    Raises:
        ValueError: `patch_size` or `patches` is out of range, `as_is` and `patch_size` are both given, or
            `transform` is for patches of another size.
    """

    as_is: bool = False
    """Take numbers as they are; NaN is a missing one. A .npz file or a folder becomes `Kind.REAL`. Columns of
    a .csv file are still standardised; its empty fields are missing numbers too."""
    patch_size: int | None = None
    """P, from 2 to 32: cut the images of a folder or .npz file, at their own size, into grey patches [P, P]
    (see `Kind.PATCHES`). None: whole images, except for `scenes`, which are cut into patches of 12."""
    patches: int = 20_000
    """Number of patches to cut, at least 3. There are fewer where the images do not have as many."""
    whiten: bool = True
    """Whiten the patches: see `PatchTransform`."""
    on_off: bool = False
    """Split each patch into its positive and its negative part: see `PatchTransform`."""
    transform: PatchTransform | None = None
    """Transform of the patches, such as that of an existing run; None: fit one to the training patches."""
    mixed: bool = False
    """Read a table whose missing numbers are NaN, and whose columns of words are categories. Columns of
    numbers are standardised as ever, skewed ones after a power: see `ColumnTransform`."""
    gaps: bool = False
    """Read a table as with `mixed` if it has words, or numbers are missing."""
    table: TableOptions = field(default_factory=TableOptions)
    """What is said about the columns of a table."""
    counts: CountOptions | None = None
    """Read a table of counts, and take them as they are: see `CountTable`."""

    def __post_init__(self) -> None:
        if self.patch_size is not None and not 2 <= self.patch_size <= LARGEST_PATCH:
            raise ValueError(f"patch_size: expected 2 to {LARGEST_PATCH} pixels, got {self.patch_size}")
        if self.patches < 3:
            raise ValueError(f"patches: expected at least 3, got {self.patches}")
        if self.as_is and self.patch_size is not None:
            raise ValueError("as_is: expected no patch_size with it, patches are standardised")
        if self.transform is not None and self.patch_size not in (None, self.transform.size):
            raise ValueError(
                f"transform: expected one of patches of {self.patch_size}, got one of {self.transform.size}"
            )


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
