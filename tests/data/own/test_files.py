import numpy as np
import pytest
import torch
from PIL import Image

from pyro_fmvae.data import Kind, Preprocessing, load_file
from pyro_fmvae.data.own.files import open_pictures, split_file

RNG = np.random.default_rng(0)


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("x", "kind", "dtype"),
    [
        (RNG.integers(0, 2, (10, 4, 4)).astype(np.uint8), Kind.BINARY, torch.bool),
        (RNG.integers(0, 2, (10, 5)).astype(np.uint8), Kind.BINARY, torch.bool),
        (RNG.integers(0, 2, (10, 5)).astype(bool), Kind.BINARY, torch.bool),
        (RNG.integers(0, 256, (10, 4, 4)).astype(np.uint8), Kind.IMAGE, torch.uint8),
        (RNG.integers(0, 256, (10, 5)).astype(np.uint8), Kind.IMAGE, torch.uint8),
        (RNG.integers(0, 256, (10, 4, 4, 3)).astype(np.uint8), Kind.IMAGE, torch.uint8),
        (RNG.random((10, 4, 4)), Kind.IMAGE, torch.float32),
        (RNG.random((10, 5)), Kind.TABLE, torch.float32),
        (RNG.integers(0, 9, (10, 5)), Kind.TABLE, torch.float32),
    ],
)
def test_the_kind_of_a_file(tmp_path, x, kind, dtype):
    data = split_file(write(tmp_path / "mine.npz", x=x), seed=0)
    assert data.name == "mine"
    assert data.preprocessing.kind is kind and data.event_shape == x.shape[1:]
    splits = [data.split(name) for name in ("train", "valid", "test")]
    assert {split.x.dtype for split in splits} == {dtype}
    assert {split.signed for split in splits} == {kind is Kind.IMAGE}


@pytest.mark.parametrize(
    ("n", "sizes"), [(3, (1, 1, 1)), (10, (8, 1, 1)), (19, (17, 1, 1)), (100, (80, 10, 10))]
)
def test_each_row_is_in_one_split_with_its_labels(tmp_path, n, sizes):
    x = (np.arange(n) / n).reshape(n, 1, 1)
    labels = np.arange(n)
    data = split_file(write(tmp_path / "a.npz", x=x, labels=labels), seed=0)
    splits = [data.train, data.valid, data.test]
    assert tuple(len(split) for split in splits) == sizes
    rows = torch.cat([split.labels for split in splits])[:, 0]
    assert sorted(rows.tolist()) == list(range(n))
    torch.testing.assert_close(torch.cat([split.x for split in splits]).flatten() * n, rows.float())
    assert data.label_names == ("label0",) and data.label_sizes == (n,)


def test_the_seed_makes_the_split(tmp_path):
    path = write(tmp_path / "a.npz", x=RNG.random((50, 2, 2)))
    first, again, other = (split_file(path, seed).train.x for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_a_table_is_standardised_by_its_training_rows(tmp_path):
    table = RNG.normal(7, 3, (200, 2))
    data = split_file(write(tmp_path / "a.npz", x=table), seed=0)
    x = data.train.x.double()
    torch.testing.assert_close(x.mean(dim=0), torch.zeros(2).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(dim=0, unbiased=False), torch.ones(2).double(), atol=1e-5, rtol=0)
    assert data.valid.x.mean().abs() > 1e-3  # the training rows' mean, not its own


def test_a_csv(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,label:kind\n" + "".join(f"{row},{row % 3}\n" for row in range(30)))
    data = split_file(path, seed=0)
    assert data.label_names == ("kind",) and data.label_sizes == (3,)
    split, names = load_file(path, data.preprocessing)
    assert names == ("kind",)
    raw = split.x[:, 0] * data.preprocessing.std[0] + data.preprocessing.mean[0]
    torch.testing.assert_close(raw, torch.arange(30, dtype=torch.float32))  # row order
    assert split.labels[:, 0].tolist() == [row % 3 for row in range(30)]


def test_the_columns_of_a_csv_keep_their_names(tmp_path):
    path, new = tmp_path / "a.csv", tmp_path / "b.csv"
    path.write_text("a,label:kind,b\n" + "".join(f"{row},0,{row % 7}\n" for row in range(30)))
    preprocessing = split_file(path, seed=0).preprocessing
    assert preprocessing.column_names == ("a", "b")
    for text in ("a,b\n1,2\n", "1,2\n", "b,label:a,a\n2,0,1\n", "c,b,a\n9,2,1\n"):
        new.write_text(text)
        rows, names = load_file(new, preprocessing)
        np.testing.assert_allclose(preprocessing.undo(rows.observations), [[1, 2]], rtol=1e-6)
        assert names == (("a",) if "label" in text else ())
    new.write_text("a,c\n1,2\n")
    with pytest.raises(ValueError, match=r"b\.csv: expected the columns a, b, got no 'b'$"):
        load_file(new, preprocessing)


def test_columns_are_named_where_they_are_too_large(tmp_path):
    (tmp_path / "a.csv").write_text("label:kind,a,b\n" + "".join(f"0,{row},{row}e300\n" for row in range(9)))
    path = write(tmp_path / "a.npz", x=np.arange(1, 10)[:, None] * np.array([1, 1e300]))
    for name, column in (("a.csv", "'b'"), ("a.npz: 'x'", "2")):
        with pytest.raises(ValueError, match=rf"{name}: expected columns whose .* those of column {column} "):
            split_file(path.with_name(name[:5]), seed=0)


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 3), (5,)])
def test_the_run_decides_the_scale_of_a_new_file(tmp_path, shape):
    greys = RNG.integers(0, 256, (20, *shape)).astype(np.uint8)
    greys[3] = greys[3] % 2
    run = split_file(write(tmp_path / "a.npz", x=greys), seed=0).preprocessing
    everything, _ = load_file(tmp_path / "a.npz", run)
    dark, _ = load_file(write(tmp_path / "dark.npz", x=greys[3:4]), run)
    assert everything.signed and dark.signed
    assert torch.equal(dark.observations, everything.observations[3:4])
    assert dark.observations.max().item() == pytest.approx(2 / 255 - 1)


def test_unknown_labels_have_no_size(tmp_path):
    labels = np.array([[-1, 2], [-1, -1], [-1, 0]])
    data = split_file(write(tmp_path / "a.npz", x=np.zeros((3, 1)), labels=labels), seed=0)
    assert data.label_sizes == (0, 3)


@pytest.mark.parametrize("n", [1, 2])
def test_too_few_rows(tmp_path, n):
    with pytest.raises(ValueError, match=rf"a\.npz: expected at least 3 rows .*, got {n}"):
        split_file(write(tmp_path / "a.npz", x=np.zeros((n, 2))), seed=0)


@pytest.mark.parametrize(
    ("x", "preprocessing", "message"),
    [
        (
            np.zeros((2, 3)),
            Preprocessing(Kind.BINARY, (4,)),
            r"expected observations of shape \[4\], got \[3\]",
        ),
        (np.full((2, 4), 0.5), Preprocessing(Kind.BINARY, (4,)), "expected binary values, 0 or 1"),
        (
            np.array([[0, 0, 255, 255]], np.uint8),
            Preprocessing(Kind.BINARY, (4,)),
            "expected binary values, 0 or 1",
        ),
        (np.full((2, 4), 2.0), Preprocessing(Kind.IMAGE, (4,)), r"expected uint8 or values in \[0, 1\]"),
    ],
)
def test_a_file_that_does_not_fit_the_run(tmp_path, x, preprocessing, message):
    path = write(tmp_path / "a.npz", x=x)
    with pytest.raises(ValueError, match=rf"a\.npz: 'x': {message}"):
        load_file(path, preprocessing)


def test_float_images_out_of_range(tmp_path):
    with pytest.raises(ValueError, match=r"a\.npz: 'x': expected uint8 or values in \[0, 1\], got float64"):
        split_file(write(tmp_path / "a.npz", x=np.full((3, 2, 2), 1.5)), seed=0)


def test_one_new_row_is_enough(tmp_path):
    path = write(tmp_path / "a.npz", x=np.ones((1, 4), bool))
    split, names = load_file(path, Preprocessing(Kind.BINARY, (4,)))
    assert len(split) == 1 and split.labels is None and names == ()


def test_another_suffix(tmp_path):
    (tmp_path / "a.dat").touch()
    with pytest.raises(
        ValueError,
        match=r"a\.dat: expected a file that ends in \.npz or \.csv or \.tsv or .* or \.h5ad or \.npy",
    ):
        load_file(tmp_path / "a.dat", Preprocessing(Kind.BINARY, (4,)))


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"a\.npz: no such file"):
        load_file(tmp_path / "a.npz", Preprocessing(Kind.BINARY, (4,)))


def test_a_folder_is_loaded_under_the_names_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "mine"
    folder.mkdir()
    for row, name in enumerate(("b", "a")):
        Image.new("L", (4, 4), 100 * row).save(folder / f"{name}.png")
    (folder / "labels.csv").write_text("file,mood\nb.png,sad\n")
    run = Preprocessing(Kind.IMAGE, (4, 4))
    split, names = load_file(str(folder), run, ("mood",), (("glad", "sad"),))
    assert names == ("mood",) and split.labels.tolist() == [[-1], [1]]
    assert split.signed and split.x[:, 0, 0].tolist() == [100, 0]
    assert load_file(folder, run)[0].labels.tolist() == [[-1], [0]]  # coded by itself


def test_named_values_are_numbered_as_in_the_run(tmp_path):
    labels, names = np.array([0, 1, 2, -1]), [["ash", "elm", "oak"]]
    path = write(tmp_path / "a.npz", x=np.eye(4), labels=labels, label_names=["tree"], value_names=names)
    run = Preprocessing(Kind.TABLE, (4,), mean=(0.0,) * 4, std=(1.0,) * 4)
    split, _ = load_file(path, run, ("tree",), (("oak", "ash", "elm"),))
    assert split.labels.squeeze(1).tolist() == [1, 2, 0, -1]
    with pytest.raises(ValueError, match="expected one of oak, ash, got 'elm'"):
        load_file(path, run, ("tree",), (("oak", "ash"),))
    left_out = {}
    split, _ = load_file(path, run, ("tree",), (("oak", "ash"),), left_out)
    assert split.labels.squeeze(1).tolist() == [1, -1, 0, -1] and left_out == {"tree": {"elm": 1}}


def test_labels_that_stay_in_training_belong_to_the_fingerprint(tmp_path):
    """Which rows have a rare label decides on the splits; what the label is does not."""
    x, first, second, third = np.eye(30), *np.full((3, 30), -1)
    first[[3, 8]], second[[3, 9]], third[[3, 8]] = 0, 0, 1

    def digest(labels):
        np.savez(tmp_path / "a.npz", x=x, labels=labels)
        data = split_file(tmp_path / "a.npz", seed=0)
        assert (data.train.labels >= 0).sum() == (labels >= 0).sum()
        return data.fingerprint

    assert digest(first) == digest(third) != digest(second)


@pytest.mark.parametrize("ending", [".npz", ".npy"])
def test_unseen_numbers_are_counted_over_the_whole_file(tmp_path, caplog, ending):
    x = np.column_stack([RNG.normal(size=90), np.arange(90) % 3])
    preprocessing = Preprocessing.standardizing(x, missing=True, unskew=True, column_names=("a", "grade"))
    new = np.tile(x, (1000, 1))
    new[::1000, 1], new[5, 1] = 7, 2.5
    path = tmp_path / f"new{ending}"
    np.save(path, new) if ending == ".npy" else np.savez(path, x=new)
    rows, _ = load_file(path, preprocessing)
    said = "91 fields of column 'grade' count as missing: training had no '7', '2.5'"
    assert caplog.messages == [f"{path}: {said}"]
    assert rows.observations.isnan().sum(0).tolist() == [0, 91]
    some = torch.tensor([80_000, 5, 1])
    np.testing.assert_array_equal(rows.select(some).raw_rows(torch.tensor([2, 0])), new[[1, 80_000]])
    assert len(caplog.messages) == 1  # nothing is said again as rows are read


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
