import json

import numpy as np
import pytest
import torch
from PIL import Image

from pyro_fmvae.data import Batches, Kind, Preprocessing, SparseOptions, load, load_file
from pyro_fmvae.data.own.folder import read_image
from pyro_fmvae.data.patch_sets import FLAT

RNG = np.random.default_rng(0)
SPLITS = ("train", "valid", "test")


def textured(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def write_folder(folder, sizes=((40, 30), (25, 50), (30, 30))):
    folder.mkdir()
    for row, size in enumerate(sizes):
        Image.fromarray(textured(*size, 3)).save(folder / f"{row}.png")
    return folder


def write(path, x):
    np.savez(path, x=x)
    return path


def cut(path, **options):
    return load(str(path), sparse=SparseOptions(**({"patch_size": 4, "patches": 500} | options)))


def test_patches_are_parts_of_images_and_splits_share_no_pixel(tmp_path):
    x = RNG.random((3, 48, 48))
    data = cut(write(tmp_path / "a.npz", x), whiten=False)
    windows = torch.from_numpy(x).unfold(1, 4, 1).unfold(2, 4, 1).reshape(-1, 16)
    pixels = torch.arange(x.size).reshape(x.shape).unfold(1, 4, 1).unfold(2, 4, 1).reshape(-1, 16)
    centred = windows - windows.mean(1, keepdim=True)
    used = []
    for name, size in zip(SPLITS, (400, 50, 50), strict=True):
        back = data.preprocessing.patches.invert(data.split(name).x.double()).flatten(1)
        distance, nearest = torch.cdist(back, centred).min(1)
        assert len(nearest.unique()) == size and distance.max() < 1e-5
        used.append(set(pixels[nearest].flatten().tolist()))
    assert all(used[left].isdisjoint(used[right]) for left, right in ((0, 1), (0, 2), (1, 2)))
    # Regions of a split are spread over the images, not one after the other.
    assert {pixel // 48**2 for pixel in used[0]} == {0, 1, 2}


@pytest.mark.parametrize("tops", [("train", "valid", "test"), ("train", "test"), ("train", "val")])
def test_folders_with_the_names_of_splits_are_those_of_patches(tmp_path, tops):
    """Images for training have vertical stripes, those for testing horizontal ones, others both."""
    stripes = 255 * (np.arange(40)[:, None] // 2 % 2 * np.ones((1, 40))).astype(np.uint8)
    images = {"train": stripes.T, "test": stripes, "val": stripes ^ stripes.T}
    for top in tops:
        for row in range(4):
            file = tmp_path / "mine" / "data" / top / f"{row}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images["val" if top == "valid" else top]).save(file)
    data = cut(tmp_path / "mine", whiten=False)

    def stripes_of(name):
        patches = data.preprocessing.patches.invert(data.split(name).x)
        down, right = (patches.diff(dim=dim).abs().amax((1, 2)) > 0.1 for dim in (1, 2))
        return {(bool(a), bool(b)) for a, b in zip(down, right, strict=True)}

    train = {(False, True)}
    assert stripes_of("train") == train
    assert stripes_of("test") == ({(True, False)} if "test" in tops else train)
    assert stripes_of("valid") == (train if len(tops) == 2 and "test" in tops else {(True, True)})


def test_each_split_has_its_own_regions(tmp_path):
    # Each region of 16 x 16 has a contrast of its own, which its patches show.
    tiles = 20 + 4 * np.arange(50)
    checks = np.indices((16, 16)).sum(0) % 2
    images = (checks * tiles[:, None, None]).astype(np.uint8)
    data = cut(write(tmp_path / "a.npz", images), whiten=False)
    contrasts = []
    for name in SPLITS:
        back = data.preprocessing.patches.invert(data.split(name).x.double())
        contrasts.append(set(((back.amax((1, 2)) - back.amin((1, 2))) * 255).round().int().tolist()))
    assert [len(found) for found in contrasts] == [40, 5, 5]
    assert set.union(*contrasts) == set(tiles.tolist())


def test_patches_are_different_positions_drawn_uniformly(tmp_path):
    image = textured(12, 20, 20)
    path = write(tmp_path / "a.npz", image)
    # 12 regions of 20 x 20; 10 of them are for training: 17² positions each.
    data = cut(path, patches=10_000, whiten=False)
    assert len(data.train) == 10 * 17**2 and len(data.valid) == len(data.test) == 17**2
    assert len(data.train.x.flatten(1).unique(dim=0)) == len(data.train)
    assert not torch.equal(
        cut(path).train.x, load(str(path), seed=1, sparse=SparseOptions(patch_size=4, patches=500)).train.x
    )
    assert torch.equal(cut(path).train.x, cut(path).train.x)


def test_flat_patches_are_left_out(tmp_path):
    x = textured(30, 16, 16)
    x[:, :, :10] = 100
    assert FLAT * 255 > 1
    x[:, :, 10] = 101  # nearly flat: below the threshold
    data = cut(write(tmp_path / "a.npz", x), whiten=False)
    back = data.preprocessing.patches.invert(data.train.x.double())
    assert len(back) == 400 and (back.flatten(1).std(1, correction=0) > FLAT * 0.999).all()
    x[:] = 100
    with pytest.raises(ValueError, match="patches: expected some that are not flat in each split"):
        cut(write(tmp_path / "b.npz", x))


@pytest.mark.parametrize("on_off", [False, True])
@pytest.mark.parametrize("whiten", [False, True])
def test_undo_gives_greys_around_one_half(tmp_path, whiten, on_off):
    x = textured(30, 16, 16) // 4
    data = cut(write(tmp_path / "a.npz", x), whiten=whiten, on_off=on_off)
    assert data.preprocessing.kind is Kind.PATCHES
    assert not data.preprocessing.binary and not data.preprocessing.signed
    assert data.event_shape == ((4, 8) if on_off else (4, 4))
    undone = data.preprocessing.undo(data.train.observations)
    assert undone.shape == (400, 4, 4) and undone.dtype == torch.float32
    # Brightness is lost, and nothing else.
    windows = torch.from_numpy(x / 255).unfold(1, 4, 1).unfold(2, 4, 1).reshape(-1, 16)
    centred = 0.5 + windows - windows.mean(1, keepdim=True)
    nearest = torch.cdist(undone.flatten(1).double(), centred).min(1).values
    assert nearest.max() < 1e-4
    far = data.preprocessing.undo(100 * data.train.observations)
    assert far.min() == 0 and far.max() == 1


def test_whitened_training_patches_are_uncorrelated(tmp_path):
    x = np.cumsum(np.cumsum(RNG.normal(size=(60, 16, 16)), 1), 2)
    x = (x - x.min()) / (x.max() - x.min())
    data = cut(write(tmp_path / "a.npz", x), patches=4000)
    flat = data.train.x.double().flatten(1)
    values = torch.linalg.eigvalsh(flat.T @ flat / len(flat))
    assert ((values - 1).abs() < 1e-3).sum() >= 5 and values.max() < 1.001 and values[0] < 1e-3


def test_a_folder_of_images_of_several_sizes_at_their_own_size(tmp_path):
    folder = write_folder(tmp_path / "mine")
    data = cut(folder, whiten=False)
    assert data.name == "mine" and data.event_shape == (4, 4) and data.label_names == ()
    assert [len(data.split(name)) for name in SPLITS] == [400, 50, 50]
    greys = []
    for row in range(3):
        red, green, blue = np.moveaxis(np.asarray(Image.open(folder / f"{row}.png")) / 255, -1, 0)
        grey = torch.from_numpy(0.299 * red + 0.587 * green + 0.114 * blue)
        windows = grey.unfold(0, 4, 1).unfold(1, 4, 1).reshape(-1, 16)
        greys.append(windows - windows.mean(1, keepdim=True))
    back = data.preprocessing.patches.invert(data.train.x.double()).flatten(1)
    assert torch.cdist(back, torch.cat(greys)).min(1).values.max() < 1e-5
    x = next(iter(Batches(data.train, 100)))[0]
    assert x.shape == (100, 4, 4) and x.dtype == torch.float32


def test_a_run_evaluates_another_folder_and_another_file(tmp_path):
    run = cut(write_folder(tmp_path / "a")).preprocessing
    run = Preprocessing.from_dict(json.loads(json.dumps(run.to_dict())))
    new = write_folder(tmp_path / "b", [(9, 7), (6, 30)])
    (new / "labels.csv").write_text("f,p\n0.png,1\n")
    split, names = load_file(new, run)
    assert names == () and split.labels is None
    assert len(split) == 6 * 4 + 3 * 27  # all positions, as there are fewer than 500
    again, _ = load_file(new, run)
    assert torch.equal(split.x, again.x)
    x = textured(5, 20, 20)
    split, _ = load_file(write(tmp_path / "c.npz", x), run)
    assert len(split) == 500 and split.x.shape[1:] == (4, 4)
    windows = torch.from_numpy(x / 255).unfold(1, 4, 1).unfold(2, 4, 1).reshape(-1, 4, 4)
    expected = run.patches.apply(windows).flatten(1)
    assert torch.cdist(split.x.double().flatten(1), expected).min(1).values.max() < 1e-4


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("on_off", [False, True])
def test_json_round_trip(tmp_path, whiten, on_off):
    data = cut(write(tmp_path / "a.npz", textured(30, 16, 16)), whiten=whiten, on_off=on_off)
    state = json.loads(json.dumps(data.preprocessing.to_dict()))
    back = Preprocessing.from_dict(state)
    assert back == data.preprocessing and back.event_shape == data.event_shape
    again = cut(tmp_path / "a.npz", whiten=whiten, on_off=on_off).preprocessing
    assert again == data.preprocessing
    assert cut(tmp_path / "a.npz", whiten=not whiten, on_off=on_off).preprocessing != again
    del state["patches"]["scale"]
    with pytest.raises(ValueError, match=r"preprocessing: not what to_dict\(\) writes"):
        Preprocessing.from_dict(state)


def test_a_run_of_patches_sees_no_whole_image(tmp_path):
    folder = write_folder(tmp_path / "a")
    with pytest.raises(ValueError, match=r"0\.png: a whole image, but the run was trained on patches"):
        read_image(folder / "0.png", cut(folder).preprocessing)


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (
            textured(9, 6, 8),
            {"patch_size": 7},
            r"patch_size: expected at most 6, as .* is 8 x 6 pixels, got 7",
        ),
        (
            textured(2, 5, 5),
            {},
            "patch_size: expected images of at least 3 regions of 4 x 4 pixels .*, got 2",
        ),
        (textured(9, 50), {}, r"a\.npz: 'x': expected images to cut patches from, got rows of 50 numbers"),
        (textured(9, 6, 8), {"patches": 12}, "whiten: expected at least 16 training patches, got 10"),
        (np.full((9, 8, 8), 1.5), {}, r"a\.npz: 'x': expected uint8 or values in \[0, 1\], got float64"),
        (np.full((9, 8, 8), np.nan), {}, r"a\.npz: 'x' must be finite, but holds NaN or infinity"),
    ],
)
def test_images_that_cannot_be_cut(tmp_path, x, options, message):
    with pytest.raises(ValueError, match=message):
        cut(write(tmp_path / "a.npz", x), **options)


def test_new_images_that_are_smaller_than_the_patches_of_a_run(tmp_path):
    preprocessing = cut(write(tmp_path / "a.npz", textured(9, 6, 8))).preprocessing
    new = write(tmp_path / "b.npz", textured(2, 3, 9))
    with pytest.raises(
        ValueError, match=r"^data: expected images of at least 4 x 4 pixels, .*, .*b\.npz: 'x' is 9 x 3"
    ):
        load_file(new, preprocessing)


def test_as_few_patches_as_there_are_splits(tmp_path):
    data = cut(write(tmp_path / "a.npz", textured(3, 5, 5)), patches=3, whiten=False)
    assert [len(data.split(name)) for name in SPLITS] == [1, 1, 1]
