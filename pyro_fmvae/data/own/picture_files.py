"""A person's own images at their own size, to cut patches from."""

from pathlib import Path

from pyro_fmvae.data.image_cache import measure, read_pixels
from pyro_fmvae.data.own.folder import split_by_folders
from pyro_fmvae.data.own.image_names import find_images
from pyro_fmvae.data.own.in_memory import InMemory
from pyro_fmvae.data.own.npz_file import read_npz
from pyro_fmvae.data.own.zarr_store import is_folder
from pyro_fmvae.data.patch_sets import Pictures, greys_of, stacked


def open_pictures(path: Path | InMemory) -> Pictures:
    """Open the images of a folder, sorted by name, or of a .npz file or an array, at their own size.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: there are no images, or one is damaged.
    """
    if isinstance(path, InMemory):
        return stacked(path.read().x, "data: 'x'")
    if is_folder(path):
        names = find_images(path)
        files = [path / name for name in names]
        return Pictures(
            [str(file) for file in files],
            [measure(file) for file in files],
            lambda number: greys_of(read_pixels(files[number]), str(files[number])),
            split_by_folders(names)[0],
        )
    if path.suffix.lower() != ".npz":
        raise ValueError(f"patch_size: expected a folder or a .npz file of images to cut, got {path}")
    return stacked(read_npz(path).x, f"{path}: 'x'")
