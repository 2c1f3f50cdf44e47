import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from pyro_fmvae.data import load
from pyro_fmvae.data.sets import omniglot
from pyro_fmvae.data.sets.omniglot import ALPHABETS, SIDE
from tests.data.published import published

RNG = np.random.default_rng(0)
N, M = 40, 7
X = RNG.integers(0, 256, (N + M, 28, 28), dtype=np.uint8)
TRAIN, TEST = X[:N], X[N:]
PLACES = (np.arange(N) % 30).astype(np.uint8)
CHARACTERS = np.arange(N).astype(np.int16)[::-1] // 2


def write_archive(root, **changes):
    arrays = {"x_train": TRAIN, "alphabet_train": PLACES, "y_train": CHARACTERS} | changes
    np.savez(root / "omniglot28.npz", **{name: array for name, array in arrays.items() if array is not None})


def columns(x):
    """Images as chardata.mat holds them: pixel i of an image is in row i % 28 and column i // 28."""
    return np.stack([image.flatten(order="F") for image in x], axis=1) / 255


def one_hot(alphabets):
    return np.eye(5)[:, alphabets]


IN_TRAIN, IN_TEST = np.arange(N) % 5, np.arange(M) % 2
NUMBERS, TEST_NUMBERS = 1 + np.arange(N) // 5 % 2, 1 + np.arange(M) // 2 % 2


def write_matlab(root, **changes):
    arrays = {
        "data": columns(TRAIN),
        "testdata": columns(TEST),
        "target": one_hot(IN_TRAIN),
        "testtarget": one_hot(IN_TEST),
        "targetchar": NUMBERS,
        "testtargetchar": TEST_NUMBERS,
    } | changes
    savemat(root / "chardata.mat", {name: array for name, array in arrays.items() if array is not None})


def draw(seed, side=SIDE):
    """An original image: True where there is ink."""
    return np.random.default_rng(seed).random((side, side)) < 0.3


def write_image(path, ink):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(~ink).save(path)  # one bit per pixel, black ink on white


# Characters are numbered across the alphabets, and not in the order of the alphabets' names.
BACKGROUND = {
    "Latin/character01/0001": ("Latin", 0),
    "Latin/character02/0002": ("Latin", 1),
    "Greek/character01/0003": ("Greek", 2),
}


def write_folder(root, evaluation=True):
    """Images of 3 characters by 2 hands, drawn with the seeds 0, ..., 5, and of another with the seed 6."""
    folder = root / "omniglot-py"
    paths = [f"images_background/{name}_0{hand}.png" for name in BACKGROUND for hand in (1, 2)]
    for seed, path in enumerate(paths):
        write_image(folder / path, draw(seed))
    if evaluation:
        write_image(folder / "images_evaluation/Angelic/character01/0965_01.png", draw(6))
    return folder


def brute_force(ink):
    """Means over the pixels whose centres lie in each of 28 x 28 squares, or on its right or lower border."""
    place = [-(-2 * (2 * pixel + 1) // 15) - 1 for pixel in range(SIDE)]
    total, count = np.zeros((28, 28)), np.zeros((28, 28))
    for row in range(SIDE):
        for column in range(SIDE):
            total[place[row], place[column]] += ink[row, column]
            count[place[row], place[column]] += 1
    return total / count


def rows_of(split, images=TRAIN):
    """Which of the images, uint8, those of a split of greys in some form are."""
    x = np.round(split.x.numpy() * (255 if split.x.dtype == torch.float32 else 1))
    return [int(np.flatnonzero((image == images).all(axis=(1, 2)))[0]) for image in x]


def test_an_archive(tmp_path):
    write_archive(tmp_path)
    data = load("omniglot", tmp_path)
    assert data.name == "omniglot" and data.event_shape == (28, 28) and data.preprocessing.binary
    assert data.label_names == ("alphabet", "character") and data.label_sizes == (30, 20)
    assert data.value_names == (ALPHABETS, ())
    assert data.test is None and data.train.resample and data.train.x.dtype == torch.uint8
    rows = rows_of(data.train)
    assert data.train.labels.dtype == torch.int64
    assert data.train.labels.tolist() == [[PLACES[row], CHARACTERS[row]] for row in rows]


def test_the_alphabets_are_sorted():
    assert len(set(ALPHABETS)) == 30 and list(ALPHABETS) == sorted(ALPHABETS)


def test_a_tenth_is_for_validation_and_every_image_is_in_one_split(tmp_path):
    labels = np.arange(N)  # of each image its own
    write_archive(tmp_path, y_train=labels)
    data, again = load("omniglot", tmp_path), load("omniglot", tmp_path, seed=1)
    valid, train = data.valid.labels[:, 1].tolist(), data.train.labels[:, 1].tolist()
    assert len(valid) == N // 10 and sorted(valid + train) == labels.tolist()
    assert rows_of(data.train) == train
    assert max(valid) - min(valid) >= len(valid)  # from everywhere, not a piece
    for split in ("train", "valid"):
        assert torch.equal(data.split(split).x, again.split(split).x)
        assert torch.equal(data.split(split).labels, again.split(split).labels)


def test_the_smallest_archive(tmp_path):
    write_archive(tmp_path, x_train=TRAIN[:2], alphabet_train=PLACES[:2], y_train=None)
    data = load("omniglot", tmp_path)
    assert (len(data.train), len(data.valid)) == (1, 1) and data.label_names == ("alphabet",)
    assert data.label_sizes == (30,)  # those of the two images are 0 and 1


def test_dynamic_binarisation(tmp_path):
    x = np.full((2000, 28, 28), 51, dtype=np.uint8)
    write_archive(tmp_path, x_train=x, x_test=x[:300], alphabet_train=None, y_train=None)
    data = load("omniglot", tmp_path)
    assert data.train.resample and (data.train.x == 51).all() and len(data.train) == 1800
    for split in (data.valid, data.test):
        # A grey of 1/5 is the probability of ink; 5 standard errors.
        assert not split.resample and split.x.dtype == torch.bool
        assert abs(split.x.float().mean() - 0.2) < 5 * 0.4 / split.x.numel() ** 0.5


def test_threshold(tmp_path):
    write_archive(tmp_path, y_train=np.arange(N), x_test=TEST)
    data = load("omniglot", tmp_path, binarization="threshold")
    for split in (data.train, data.valid):
        assert not split.resample
        assert (split.x.numpy() == (TRAIN >= 128)[split.labels[:, 1].numpy()]).all()
    assert (data.test.x.numpy() == (TEST >= 128)).all()


def test_labels_of_test_images_of_an_archive_are_unknown(tmp_path):
    write_archive(tmp_path, x_test=TEST)
    test = load("omniglot", tmp_path).test
    assert test.labels.dtype == torch.int64 and test.labels.tolist() == [[-1, -1]] * M


def test_an_archive_without_labels(tmp_path):
    write_archive(tmp_path, x_test=TEST, alphabet_train=None, y_train=None)
    data = load("omniglot", tmp_path)
    assert data.train.labels is data.valid.labels is data.test.labels is None
    assert data.label_names == data.label_sizes == data.value_names == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": None}, "expected an array 'x_train'"),
        ({"x_train": TRAIN / 255}, r"expected 'x_train' uint8 \[n, 28, 28\], got float64 \[40, 28, 28\]"),
        ({"x_train": TRAIN[:, 1:]}, r"expected 'x_train' .*, got uint8 \[40, 27, 28\]"),
        ({"x_test": TEST[:0]}, r"expected 'x_test' .*, got uint8 \[0, 28, 28\]"),
        (
            {"x_train": TRAIN[:1], "alphabet_train": None, "y_train": None},
            "expected at least 2 training images, got 1",
        ),
        ({"x_train": TRAIN // 128}, "training images: expected greys from 0 to 255, but the maximum"),
        ({"x_test": TEST // 128}, "test images: expected greys from 0 to 255, but the maximum"),
        (
            {"alphabet_train": PLACES[1:]},
            r"'alphabet_train': expected 40 integers >= 0, below 30, got uint8 \[39\]",
        ),
        ({"alphabet_train": PLACES + 1}, r"'alphabet_train': expected .* got uint8 \[40\] in \[1, 30\]"),
        (
            {"y_train": CHARACTERS - 1},
            r"'y_train': expected 40 integers >= 0, got int16 \[40\] in \[-1, 18\]",
        ),
        ({"y_train": CHARACTERS + 0.5}, r"'y_train': expected 40 integers >= 0, got float64"),
        ({"y_train": CHARACTERS.astype(str)}, r"'y_train': expected 40 integers >= 0, got <U6 \[40\]"),
        ({"x_train": TRAIN.astype(object)}, "'x_train' is a pickled array of objects"),
    ],
)
def test_bad_archives(tmp_path, changes, message):
    write_archive(tmp_path, **changes)
    with pytest.raises(ValueError, match=rf"omniglot28\.npz: {message}"):
        load("omniglot", tmp_path)


def test_a_matlab_file(tmp_path):
    write_matlab(tmp_path)
    data = load("omniglot", tmp_path)
    assert data.train.x.dtype == torch.float32 and data.train.resample
    rows = rows_of(data.train)  # upright
    assert len(rows) == 36 and len(data.valid) == 4 and len(data.test) == M
    assert data.label_names == ("alphabet", "character") and data.value_names == ((), ())
    assert data.label_sizes == (5, 10)
    # Two characters in each alphabet, numbered in the order of the alphabets.
    assert data.train.labels.tolist() == [
        [IN_TRAIN[row], 2 * IN_TRAIN[row] + NUMBERS[row] - 1] for row in rows
    ]
    assert data.test.labels.tolist() == [
        [place, 2 * place + number - 1] for place, number in zip(IN_TEST, TEST_NUMBERS, strict=True)
    ]


def test_thresholds_of_a_matlab_file(tmp_path):
    write_matlab(tmp_path)
    test = load("omniglot", tmp_path, binarization="threshold").test
    assert (test.x.numpy() == (TEST >= 128)).all()


def test_a_matlab_file_of_bytes(tmp_path):
    write_matlab(tmp_path, data=(columns(TRAIN) > 0.5).astype(np.uint8))
    data = load("omniglot", tmp_path)
    assert data.train.x.dtype == torch.float32 and data.train.x.unique().tolist() == [0, 1]


@pytest.mark.parametrize("missing", ["target", "testtarget"])
def test_a_matlab_file_without_alphabets_has_no_labels(tmp_path, missing):
    write_matlab(tmp_path, **{missing: None})
    data = load("omniglot", tmp_path)
    assert data.label_names == () and data.train.labels is data.test.labels is None


@pytest.mark.parametrize("missing", ["targetchar", "testtargetchar"])
def test_a_matlab_file_without_numbers_of_characters(tmp_path, missing):
    write_matlab(tmp_path, **{missing: None})
    data = load("omniglot", tmp_path)
    assert data.label_names == ("alphabet",) and data.label_sizes == (5,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": None}, "expected an array 'data'"),
        ({"testdata": None}, "expected an array 'testdata'"),
        (
            {"data": 2 * columns(TRAIN)},
            r"expected 'data' to be numbers in \[0, 1\] of .*, got float64 \[784, 40\]",
        ),
        ({"data": columns(TRAIN) - 0.5}, r"expected 'data' to be numbers in \[0, 1\]"),
        ({"data": columns(TRAIN) * np.nan}, r"expected 'data' to be numbers in \[0, 1\]"),
        ({"data": columns(TRAIN).T}, r"expected 'data' .* of shape \[784, n\], got float64 \[40, 784\]"),
        ({"testdata": columns(TEST) / 2 + 1j}, r"expected 'testdata' .*, got complex128"),
        ({"testdata": "text"}, r"expected 'testdata' .*, got <U4 \[1\]"),
        ({"testdata": np.zeros((784, 0))}, r"expected 'testdata' .*, got float64 \[784, 0\]"),
        (
            {"target": one_hot(IN_TRAIN)[:, 1:]},
            r"'target': expected a single 1 in each of 40 columns of 0, got",
        ),
        ({"target": 2 * one_hot(IN_TRAIN)}, "'target': expected a single 1"),
        ({"target": np.full((5, N), 0.2)}, "'target': expected a single 1"),
        ({"testtarget": 0 * one_hot(IN_TEST)}, "'testtarget': expected a single 1"),
        (
            {"targetchar": NUMBERS[1:]},
            r"'targetchar': expected 40 integers >= 0, got int64 \[39\] in \[1, 2\]",
        ),
        ({"testtargetchar": TEST_NUMBERS - 2}, "'testtargetchar': expected 7 integers >= 0"),
    ],
)
def test_bad_matlab_files(tmp_path, changes, message):
    write_matlab(tmp_path, **changes)
    with pytest.raises(ValueError, match=rf"chardata\.mat: {message}"):
        load("omniglot", tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 1000, -100])
def test_a_damaged_matlab_file(tmp_path, keep):
    write_matlab(tmp_path)
    path = tmp_path / "chardata.mat"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"chardata\.mat: not a \.mat file that can be read"):
        load("omniglot", tmp_path)


def test_a_text_file_in_the_place_of_a_matlab_file(tmp_path):
    (tmp_path / "chardata.mat").write_text("<html>Not here</html>" * 20)
    with pytest.raises(ValueError, match=r"chardata\.mat: not a \.mat file that can be read"):
        load("omniglot", tmp_path)


def test_a_folder(tmp_path):
    write_folder(tmp_path)
    data = load("omniglot", tmp_path)
    assert (len(data.train), len(data.valid), len(data.test)) == (5, 1, 1)
    assert data.label_names == ("alphabet", "character") and data.label_sizes == (2, 3)
    assert data.value_names == (("Greek", "Latin"), ())
    shrunk = np.stack([brute_force(draw(seed)) for seed in range(6)])
    known = [BACKGROUND[name] for name in BACKGROUND for _ in (1, 2)]
    for image, (alphabet, character) in zip(data.train.x.numpy(), data.train.labels.tolist(), strict=True):
        distance = abs(shrunk - image / 255).max(axis=(1, 2))
        seed = int(distance.argmin())
        assert distance[seed] < 1.5 / 255 < np.delete(distance, seed).min()  # rounded twice
        assert (data.value_names[0][alphabet], character) == known[seed]
    assert data.test.labels.tolist() == [[-1, -1]]


def test_thresholds_of_a_folder(tmp_path):
    write_folder(tmp_path)
    image = load("omniglot", tmp_path, binarization="threshold").test.x[0].numpy()
    grey = brute_force(draw(6))
    clear = abs(grey - 0.5) > 0.01
    assert (image == (grey > 0.5))[clear].all() and image.any() and not image.all()


def test_a_folder_gives_the_same_as_an_archive_of_its_images(tmp_path):
    write_folder(tmp_path)
    folder = load("omniglot", tmp_path)
    images = {}
    for seed in range(6):  # in the order of the characters' numbers
        ink = Image.fromarray(draw(seed).astype(np.uint8) * 255)
        images[seed] = np.asarray(ink.resize((28, 28), Image.Resampling.BOX))
    write_archive(
        tmp_path,
        x_train=np.stack([images[seed] for seed in range(6)]),
        alphabet_train=None,
        y_train=np.repeat(np.arange(3), 2),
    )
    archive = load("omniglot", tmp_path)
    for split in ("train", "valid"):
        assert torch.equal(archive.split(split).x, folder.split(split).x)
        assert torch.equal(archive.split(split).labels[:, 0], folder.split(split).labels[:, 1])


def test_a_folder_without_the_evaluation_set_has_no_test_split(tmp_path):
    write_folder(tmp_path, evaluation=False)
    assert load("omniglot", tmp_path).test is None


def test_bad_folders(tmp_path):
    folder = tmp_path / "omniglot-py"
    folder.mkdir()
    with pytest.raises(FileNotFoundError, match="images_background: no such folder"):
        load("omniglot", tmp_path)
    (folder / "images_background").mkdir()
    with pytest.raises(ValueError, match="images_background: expected images ALPHABET/CHARACTER/NNNN_DD"):
        load("omniglot", tmp_path)
    write_folder(tmp_path, evaluation=False)
    (folder / "images_evaluation").mkdir()
    with pytest.raises(ValueError, match="images_evaluation: expected images"):
        load("omniglot", tmp_path)
    bad = folder / "images_evaluation" / "Angelic" / "character01" / "0965_01.png"
    write_image(bad, draw(6, SIDE - 1))
    with pytest.raises(ValueError, match=r"0965_01\.png: expected 105 x 105 pixels, got 104 x 104"):
        load("omniglot", tmp_path)
    bad.write_bytes(bad.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"0965_01\.png: not an image that can be read"):
        load("omniglot", tmp_path)


def test_which_source_goes_first(tmp_path):
    write_folder(tmp_path)
    assert len(load("omniglot", tmp_path).train) == 5
    write_archive(tmp_path, x_train=TRAIN[:20], alphabet_train=None, y_train=None)
    assert len(load("omniglot", tmp_path).train) == 18
    write_matlab(tmp_path)
    assert len(load("omniglot", tmp_path).train) == 36


def publish(folder, tmp_path):
    """The folder of images as it is published: two archives."""
    (tmp_path / "server").mkdir()
    for part in ("images_background", "images_evaluation"):
        shutil.make_archive(tmp_path / "server" / part, "zip", folder, part)
    return published(tmp_path / "server")


def test_missing_images_are_downloaded_once(tmp_path, monkeypatch):
    root = tmp_path / "new" / "root"
    with publish(write_folder(tmp_path), tmp_path) as source:
        monkeypatch.setattr(omniglot, "SOURCE", source)
        data = load("omniglot", root)
    assert len(data.train) == 5 and data.test is not None
    assert len(load("omniglot", root).train) == 5  # the server is gone
    assert [path.name for path in root.iterdir()] == ["omniglot-py"]


def test_a_failed_download_leaves_nothing_behind(tmp_path, monkeypatch):
    with publish(write_folder(tmp_path), tmp_path) as source:
        wrong = source.sha256 | {"images_evaluation.zip": "0" * 64}
        monkeypatch.setattr(omniglot, "SOURCE", source._replace(sha256=wrong))
        with pytest.raises(
            FileNotFoundError, match=r"data_root: Omniglot could not be downloaded to .* not match"
        ):
            load("omniglot", tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []
