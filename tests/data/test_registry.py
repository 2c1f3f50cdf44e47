import numpy as np
import pytest
import torch

from pyro_fmvae.data import load


@pytest.mark.parametrize("data", ["minst", "nowhere/a.npz", ""])
def test_an_unknown_name_lists_the_known_ones(data):
    message = (
        "data: expected one of smiley, mnist, mnist-static, or an existing file that ends in .npz or .csv"
    )
    with pytest.raises(ValueError, match=f"{message}, got {data!r}"):
        load(data)


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(ValueError, match="data: expected one of smiley"):
        load(str(tmp_path))


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "a.txt").write_text("1,2")
    with pytest.raises(ValueError, match=r"a\.txt: expected a file that ends in \.npz or \.csv"):
        load(str(tmp_path / "a.txt"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"binarization": "random"}, "binarization: expected 'dynamic' or 'threshold', got 'random'"),
        ({"seed": -1}, "seed: expected at least 0, got -1"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        load("smiley", **arguments)


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
