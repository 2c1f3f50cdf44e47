import pytest
import torch

from pyro_fmvae.data import load
from pyro_fmvae.data.sets import mnist
from pyro_fmvae.data.sets.idx import VALID_SIZE
from tests.data.idx_files import TEST_LABELS, TRAIN, TRAIN_LABELS, write, write_compressed
from tests.data.published import published


def test_splits(tmp_path):
    write(tmp_path)
    data = load("mnist", tmp_path)
    assert [len(data.split(name)) for name in ("train", "valid", "test")] == [3, VALID_SIZE, 5]
    assert data.event_shape == (28, 28) and data.preprocessing.binary
    assert data.label_names == ("digit",) and data.label_sizes == (10,)
    assert data.train.labels[:, 0].tolist() == TRAIN_LABELS[:3].tolist()
    assert data.valid.labels[:, 0].tolist() == TRAIN_LABELS[3:].tolist()
    assert data.test.labels[:, 0].tolist() == TEST_LABELS.tolist()


def test_dynamic_binarisation(tmp_path):
    write(tmp_path)
    data, again = load("mnist", tmp_path), load("mnist", tmp_path, seed=1)
    assert data.train.resample and not data.valid.resample and not data.test.resample
    assert torch.equal(data.train.x, torch.from_numpy(TRAIN[:3]))
    assert data.valid.x.dtype == data.test.x.dtype == torch.bool
    assert torch.equal(data.valid.x, again.valid.x) and torch.equal(data.test.x, again.test.x)
    # Drawn with the grey levels as probabilities: pixels of one level, 5 standard errors.
    level = torch.from_numpy(TRAIN[3:] == 51)
    assert abs(data.valid.x[level].float().mean() - 0.2) < 5 * 0.4 / level.sum() ** 0.5


def test_threshold(tmp_path):
    write(tmp_path)
    data = load("mnist", tmp_path, binarization="threshold")
    assert not data.train.resample
    assert torch.equal(data.train.x, torch.from_numpy(TRAIN[:3] >= 128))
    assert torch.equal(data.valid.x, torch.from_numpy(TRAIN[3:] >= 128))


def test_missing_files_are_downloaded_once(tmp_path, monkeypatch):
    root = tmp_path / "data"
    with published(write_compressed(tmp_path / "server")) as source:
        monkeypatch.setattr(mnist, "SOURCE", source)
        assert len(load("mnist", root).test) == 5
    assert len(load("mnist", root).test) == 5  # the server is gone
    assert [path.name for path in root.iterdir()] == ["MNIST"]


def test_a_failed_download_leaves_nothing_in_the_way_of_the_next(tmp_path, monkeypatch):
    root = tmp_path / "data"
    with published(write_compressed(tmp_path / "server")) as source:
        wrong = source.sha256 | {"t10k-labels-idx1-ubyte.gz": "0" * 64}
        monkeypatch.setattr(mnist, "SOURCE", source._replace(sha256=wrong))
        with pytest.raises(
            FileNotFoundError, match=r"data_root: MNIST could not be downloaded to .* does not match"
        ):
            load("mnist", root)
        assert list(root.iterdir()) == []
        monkeypatch.setattr(mnist, "SOURCE", source)
        assert len(load("mnist", root).test) == 5
