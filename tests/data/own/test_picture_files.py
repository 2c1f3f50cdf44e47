import numpy as np
import pytest
import torch
from PIL import Image

from pyro_fmvae.data.own.picture_files import open_pictures


def test_images_are_turned_upright_and_read_by_their_header(tmp_path):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8))
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned by a quarter
    image.save(tmp_path / "a.png", exif=exif)
    image.save(tmp_path / "b.png")
    pictures = open_pictures(tmp_path)
    assert pictures.sizes == [(30, 20), (20, 30)]
    assert [tuple(pictures.read(row).shape) for row in range(2)] == pictures.sizes
    torch.testing.assert_close(pictures.read(0), pictures.read(1).rot90(-1))


def test_files_that_hold_no_images(tmp_path):
    (tmp_path / "a.csv").write_text("1,2\n3,4\n")
    with pytest.raises(ValueError, match=r"patch_size: expected a folder or a \.npz file .*, got .*a\.csv"):
        open_pictures(tmp_path / "a.csv")
    (tmp_path / "a.png").write_text("no image")
    with pytest.raises(ValueError, match=r"a\.png: not an image that can be read"):
        open_pictures(tmp_path)
