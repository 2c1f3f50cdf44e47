import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.datasets
from PIL import Image

from pyro_fmvae.data import Batches, Kind, image_cache, load
from pyro_fmvae.data.image_cache import decode
from pyro_fmvae.data.sets import celeba

NAMES = tuple(f"{number:06d}.jpg" for number in (1, 2, 3, 4, 5, 6, 7))
PARTS = (2, 0, 1, 0, 0, 2, 1)
ORDER = (1, 3, 4, 2, 6, 0, 5)  # of the rows: training, validation, testing
ATTRIBUTES = tuple(f"Attribute_{number}" for number in range(40))
LABELS = np.random.default_rng(0).integers(0, 2, (7, 40))


def pixels(row, size=(218, 178)):
    """Smooth colours, so that JPEG leaves them nearly as they are; float [H, W, 3]."""
    height, width = (np.arange(n) / n for n in size)
    grid = np.add.outer(height * (row + 1), width * 3)
    return 127.5 + 120 * np.sin(np.stack([grid, grid + 1, grid + 2], axis=-1))


def attribute_text(names=NAMES, labels=LABELS, count=None):
    rows = [
        f"{name} " + " ".join(f"{2 * value - 1:2d}" for value in row)
        for name, row in zip(names, labels, strict=True)
    ]
    return "\n".join([str(len(rows) if count is None else count), " ".join(ATTRIBUTES) + " ", *rows]) + "\n"


def partition_text(names=NAMES, parts=PARTS):
    return "".join(f"{name} {part}\n" for name, part in zip(names, parts, strict=True))


def write(root, attributes=None, partition=None):
    folder = root / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    for row, name in enumerate(NAMES):
        image = Image.fromarray(pixels(row).round().astype(np.uint8))
        image.save(folder / "img_align_celeba" / name, quality=95)
    (folder / "list_attr_celeba.txt").write_text(attribute_text() if attributes is None else attributes)
    (folder / "list_eval_partition.txt").write_text(partition_text() if partition is None else partition)
    return folder


def sums(folder):
    names = ("list_attr_celeba.txt", "list_eval_partition.txt")
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """No download, and nothing written into the real home folder."""

    def download(*args, **kwargs):
        raise AssertionError("nothing should be downloaded")

    monkeypatch.setattr(torchvision.datasets, "CelebA", download)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_the_official_layout(tmp_path):
    folder = write(tmp_path)
    data = load("celeba", tmp_path)
    assert data.name == "celeba" and data.event_shape == (64, 64, 3) and data.preprocessing.kind is Kind.IMAGE
    assert [len(data.split(name)) for name in ("train", "valid", "test")] == [3, 2, 2]
    assert data.label_names == ATTRIBUTES
    assert data.label_sizes == (2,) * 40 and data.value_names == (("no", "yes"),) * 40
    splits = [data.train, data.valid, data.test]
    assert all(split.signed and not split.resample for split in splits)
    labels = torch.cat([split.labels for split in splits])
    assert labels.dtype == torch.int64 and (labels.numpy() == LABELS[list(ORDER)]).all()
    images = torch.cat([split.x for split in splits])
    assert images.dtype == torch.uint8
    for image, row in zip(images, ORDER, strict=True):
        assert (image.numpy() == decode(folder / "img_align_celeba" / NAMES[row], (64, 64, 3), 148)).all()


def test_the_pixels_are_those_of_the_centre(tmp_path):
    write(tmp_path)
    for size in (148, 37):
        data = load("celeba", tmp_path, image_size=size)
        block = 148 // size
        for image, row in zip(data.train.x.double(), ORDER, strict=False):
            centre = torch.from_numpy(pixels(row)[35:183, 15:163])
            expected = centre.reshape(size, block, size, block, 3).mean(dim=(1, 3))
            assert (image - expected).abs().max() < 8  # JPEG; a shift by ten pixels makes 20 and more


def test_an_epoch_is_what_the_files_say(tmp_path):
    folder = write(tmp_path)
    data = load("celeba", tmp_path, image_size=16)
    x, labels = (torch.cat(parts) for parts in zip(*Batches(data.train, 2, shuffle=False), strict=True))
    direct = np.stack(
        [decode(folder / "img_align_celeba" / NAMES[row], (16, 16, 3), 148) for row in ORDER[:3]]
    )
    assert x.dtype == torch.float32 and (labels.numpy() == LABELS[list(ORDER[:3])]).all()
    torch.testing.assert_close(x.double(), torch.from_numpy(direct).double() / 127.5 - 1, atol=1e-6, rtol=0)


def test_images_are_decoded_once_beside_the_files(tmp_path, monkeypatch):
    folder = write(tmp_path)
    first = load("celeba", tmp_path)

    def fail(*args):
        raise AssertionError("decoded again")

    monkeypatch.setattr(image_cache, "decode", fail)
    assert torch.equal(load("celeba", tmp_path).train.x, first.train.x)
    assert len(list((folder / "pyro_fmvae_cache").glob("images-*.npy"))) == 1
    assert not (tmp_path / "home").exists()


def test_without_writing_there_the_array_is_kept_in_the_home_folder(tmp_path):
    folder = write(tmp_path)
    (folder / "pyro_fmvae_cache").touch()  # no folder can be made of it
    load("celeba", tmp_path)
    assert len(list((tmp_path / "home" / ".cache" / "pyro_fmvae").glob("images-*.npy"))) == 1


def test_the_splits_are_views_of_one_array(tmp_path):
    write(tmp_path)
    data = load("celeba", tmp_path, image_size=8)
    starts = [split.x.data_ptr() - data.train.x.data_ptr() for split in (data.train, data.valid, data.test)]
    assert starts == [0, 3 * 8 * 8 * 3, 5 * 8 * 8 * 3]


def test_some_of_the_images_will_do(tmp_path):
    """The list of attributes decides: other images and other lines of the partition don't matter."""
    folder = write(tmp_path, attribute_text(NAMES[:3], LABELS[:3]))
    (folder / "img_align_celeba" / NAMES[6]).unlink()
    data = load("celeba", tmp_path)
    assert [len(data.split(name)) for name in ("train", "valid", "test")] == [1, 1, 1]
    assert data.test.labels.tolist() == LABELS[:1].tolist()


def test_a_listed_image_is_missing(tmp_path):
    folder = write(tmp_path)
    (folder / "img_align_celeba" / NAMES[4]).unlink()
    with pytest.raises(FileNotFoundError, match=rf"img_align_celeba/{NAMES[4]}: no such image"):
        load("celeba", tmp_path)


def test_an_image_that_is_not_of_celeba(tmp_path):
    folder = write(tmp_path)
    Image.new("RGB", (100, 218)).save(folder / "img_align_celeba" / NAMES[4])
    with pytest.raises(ValueError, match=rf"{NAMES[4]}: expected at least 148 x 148 pixels, got 100 x 218"):
        load("celeba", tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"attributes": ""}, r"list_attr_celeba\.txt: expected the number of images, a line of names"),
        ({"attributes": "a\nb\nc 1\n"}, r"list_attr_celeba\.txt: expected the number of images"),
        ({"attributes": attribute_text(count=9)}, "expected 9 images, as its first line says, got 7"),
        ({"attributes": attribute_text()[:-4]}, "expected 40 times 1 or -1 for 000007.jpg"),
        (
            {"attributes": attribute_text().replace(" -1", "  0", 1)},
            "expected 40 times 1 or -1 for 000001.jpg",
        ),
        ({"attributes": attribute_text((*NAMES[:6], NAMES[0]))}, "expected one line for each image"),
        (
            {"partition": partition_text(NAMES[:6], PARTS[:6])},
            "expected a line for 000007.jpg, as in list_attr",
        ),
        (
            {"partition": partition_text(parts=(3, *PARTS[1:]))},
            "a file name and 0, 1 or 2, got '000001.jpg 3'",
        ),
        ({"partition": partition_text(parts=(0,) * 7)}, r"images for training .*, got 7, 0, 0 of them"),
    ],
)
def test_bad_lists(tmp_path, files, message):
    write(tmp_path, **files)
    with pytest.raises(ValueError, match=message):
        load("celeba", tmp_path)


def test_a_list_that_is_no_text(tmp_path):
    folder = write(tmp_path)
    (folder / "list_attr_celeba.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"list_attr_celeba\.txt: not a text file"):
        load("celeba", tmp_path)


@pytest.mark.parametrize("lacking", ["img_align_celeba", "list_attr_celeba.txt", "list_eval_partition.txt"])
def test_what_is_missing_is_downloaded_by_torchvision(tmp_path, monkeypatch, lacking):
    folder = write(tmp_path)
    monkeypatch.setattr(celeba, "SHA256", sums(folder))
    (folder / lacking).rename(tmp_path / "server")

    def download(root, split, download):
        assert split == "all" and download
        (tmp_path / "server").rename(root / "celeba" / lacking)

    monkeypatch.setattr(torchvision.datasets, "CelebA", download)
    assert len(load("celeba", tmp_path).train) == 3


def test_another_file_than_the_published_one_is_deleted(tmp_path, monkeypatch):
    folder = write(tmp_path / "server")
    monkeypatch.setattr(celeba, "SHA256", sums(folder) | {"list_attr_celeba.txt": "0" * 64})
    monkeypatch.setattr(
        torchvision.datasets, "CelebA", lambda root, **_: shutil.copytree(folder, root / "celeba")
    )
    with pytest.raises(
        FileNotFoundError, match=r"downloaded: list_attr_celeba\.txt is another file than the published"
    ):
        load("celeba", tmp_path)
    assert [path.name for path in (tmp_path / "celeba").iterdir()] == ["img_align_celeba"]


def test_images_are_extracted_again_where_that_was_broken_off(tmp_path):
    folder = write(tmp_path)
    expected = load("celeba", tmp_path).train.x
    shutil.make_archive(folder / "img_align_celeba", "zip", folder, "img_align_celeba")
    shutil.rmtree(folder / "pyro_fmvae_cache")
    for name in NAMES[3:]:
        (folder / "img_align_celeba" / name).unlink()
    (folder / "img_align_celeba" / NAMES[2]).write_bytes(b"half of")
    assert torch.equal(load("celeba", tmp_path).train.x, expected)


@pytest.mark.parametrize("length", [0, 5000])
def test_a_damaged_archive(tmp_path, length):
    folder = write(tmp_path)
    archive = Path(shutil.make_archive(folder / "img_align_celeba", "zip", folder, "img_align_celeba"))
    content = archive.read_bytes()
    archive.write_bytes(content[:length] + bytes(100) + content[length + 100 :] if length else b"")
    (folder / "img_align_celeba" / NAMES[3]).unlink()
    with pytest.raises(ValueError, match=r"img_align_celeba\.zip: damaged: "):
        load("celeba", tmp_path)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("gdown is required.\nInstall it."), "gdown is required."),
        (OSError("no route to host"), "no route to host"),
        (Exception("quota exceeded"), "quota exceeded"),
        (ValueError(), "ValueError"),
        (None, "it came incomplete"),
    ],
)
def test_a_failed_download_is_one_line_that_says_what_was_expected_where(
    tmp_path, monkeypatch, error, reason
):
    def download(root, split, download):
        if error:
            raise error

    monkeypatch.setattr(torchvision.datasets, "CelebA", download)
    with pytest.raises(FileNotFoundError) as caught:
        load("celeba", tmp_path)
    assert str(caught.value) == (
        "data_root: expected img_align_celeba, list_attr_celeba.txt and list_eval_partition.txt in "
        f"{tmp_path / 'celeba'}, and CelebA could not be downloaded: {reason}"
    )
