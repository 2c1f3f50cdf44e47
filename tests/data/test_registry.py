import importlib
import pkgutil

import numpy as np
import pytest
import torch
from PIL import Image

from pyro_fmvae.data import SparseOptions, load, sets
from pyro_fmvae.data.loader import Loader
from pyro_fmvae.data.registry import LOADERS


def write_images(folder, n=10):
    folder.mkdir()
    for row in range(n):
        Image.new("RGB", (10, 10), (row, 0, 0)).save(folder / f"{row}.png")
    return folder


def test_every_loader_is_registered():
    modules = [
        importlib.import_module(f"{sets.__name__}.{found.name}")
        for found in pkgutil.iter_modules(sets.__path__)
    ]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Loader)]
    found += [loader for module in modules for loader in getattr(module, "LOADERS", ())]
    assert {loader.name: loader for loader in found} == LOADERS


@pytest.mark.parametrize("data", ["minst", "nowhere/a.npz", ""])
def test_an_unknown_name_lists_the_known_ones(data):
    message = (
        "data: expected one of smiley, mnist, fashion-mnist, mnist-static, omniglot, sprites, celeba, "
        "bars-binary, bars-linear, bars-max, scenes, "
        "an existing file that ends in .npz or .csv or .tsv or .txt or .gz or .xlsx or .h5ad or .npy or "
        ".zarr or .parquet or .arrow or .feather, or a folder of images"
    )
    with pytest.raises(ValueError, match=f"{message}, got {data!r}"):
        load(data)


def test_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = write_images(tmp_path / "mine")
    assert load(str(folder)).event_shape == (10, 10, 3)
    assert load(str(folder), shape=(9, 12)).event_shape == (9, 12)
    data = load(str(folder), image_size=8)
    assert data.name == "mine" and data.event_shape == (8, 8, 3) and len(data.train) == 8
    monkeypatch.chdir(folder)
    assert load(".").name == "mine"


@pytest.mark.parametrize("name", LOADERS)
def test_a_name_is_that_of_a_data_set_and_a_path_is_that_of_a_folder(tmp_path, monkeypatch, name):
    write_images(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    loaded = []
    monkeypatch.setitem(LOADERS, name, Loader(name, loaded.append))
    load(name, tmp_path / "root", binarization="threshold", image_size=32)
    (options,) = loaded
    assert (options.root, options.binarization, options.image_size) == (tmp_path / "root", "threshold", 32)
    data = load(f"./{name}", image_size=8)
    assert data.event_shape == (8, 8, 3)
    assert f"./{name} is your own folder, not the published data set {name}; give --data-root" in data.note


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "a.dat").write_text("1,2")
    with pytest.raises(ValueError, match=r"a\.dat: expected a file that ends in \.npz or \.csv or \.tsv"):
        load(str(tmp_path / "a.dat"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"binarization": "random"}, "binarization: expected 'dynamic' or 'threshold', got 'random'"),
        ({"seed": -1}, "seed: expected at least 0, got -1"),
        ({"image_size": 7}, "image_size: expected 8 to 1024 pixels, got 7"),
        ({"image_size": 1025}, "image_size: expected 8 to 1024 pixels, got 1025"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        load("smiley", **arguments)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (
            "mnist",
            {"patch_size": 8},
            "patch_size: expected a file or folder of images, or scenes, got 'mnist'",
        ),
        ("bars-max", {"patch_size": 2}, "patch_size: expected a file or folder of images, or scenes"),
        ("smiley", {"as_is": True}, "as_is: expected a file or folder, or bars-binary, .*, got 'smiley'"),
        ("scenes", {"as_is": True}, "as_is: expected a file or folder, or bars-binary, .*, got 'scenes'"),
        ("smiley", {"on_off": True}, "on_off: expected a patch_size with it"),
        (".", {"on_off": True}, "on_off: expected a patch_size with it"),
    ],
)
def test_options_that_do_not_concern_a_data_set(data, options, message):
    with pytest.raises(ValueError, match=message):
        load(data, sparse=SparseOptions(**options))


def test_bars_are_as_they_are_anyhow():
    plain, as_is = load("bars-max"), load("bars-max", sparse=SparseOptions(as_is=True))
    assert torch.equal(plain.train.x, as_is.train.x)


def test_a_path(tmp_path):
    path = tmp_path / "a.NPZ"
    with path.open("wb") as file:
        np.savez(file, x=np.random.default_rng(0).random((20, 3)))
    first, other = load(str(path), seed=1), load(str(path), seed=2)
    assert first.name == "a" and len(first.train) == 16
    assert not torch.equal(first.train.x, other.train.x)


def test_the_default_root_lies_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    root = tmp_path / ".cache" / "pyro_fmvae"
    root.mkdir(parents=True)
    np.savez(root / "mnist_static.npz", x_train=np.eye(784), x_valid=np.eye(784)[:2])
    assert len(load("mnist-static").valid) == 2
