"""How a data set is read for a model of sparse causes."""

from dataclasses import dataclass
from typing import Final

from pyro_fmvae.data.patch_transform import PatchTransform

LARGEST_PATCH: Final = 32


@dataclass(frozen=True)
class SparseOptions:
    """What `load` does beyond its usual reading; the defaults are nothing.

    Raises:
        ValueError: `patch_size` or `patches` out of range, both `as_is` and `patch_size`, or a `transform` of
            patches of another size.
    """

    as_is: bool = False
    """Take numbers as they are, where NaN is a missing one. A .npz file or a folder becomes `Kind.REAL`; the
    columns of a .csv file, where empty fields are missing, too, are standardised none the less."""
    patch_size: int | None = None
    """P: cut the images of a folder or .npz file, at their own size, into grey patches [P, P]: see
    `Kind.PATCHES`. 2 to 32; None: whole images, except that `scenes` are cut into patches of 12."""
    patches: int = 20_000
    """Patches to cut in all, at least 3; fewer where the images do not have as many."""
    whiten: bool = True
    """Whiten the patches: see `PatchTransform`."""
    on_off: bool = False
    """Show a patch as two, what is above zero and what is below it: see `PatchTransform`."""
    transform: PatchTransform | None = None
    """What becomes of patches, such as that of an existing run; None: what fits the training patches."""

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
