import re

import numpy as np
import pytest
import torch
from PIL import Image

from pyro_fmvae.data import Batches, Kind, Preprocessing, image_cache, load, load_file
from pyro_fmvae.data.own.folder import code, find_values, read_folder, read_image
from pyro_fmvae.data.splitting import Splitting

RNG = np.random.default_rng(0)
NAMES = ("a/1.png", "a/10.PNG", "a/2.png", "b.png", "c.png")  # sorted
COLOUR = Preprocessing(Kind.IMAGE, (8, 8, 3))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def write(folder, names=NAMES, **tables):
    """Images [8, 8, 3] of one colour each, 8 times their row in red. Tables are called by their arguments."""
    for row, name in enumerate(names):
        save(folder / name, np.full((8, 8, 3), (8 * row, 0, 1), np.uint8))
    for name, text in tables.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def rows(split):
    return (split.x[:, 0, 0, 0] // 8).tolist()


def many(folder, n=30, **tables):
    return write(folder, [f"{row:02d}.png" for row in range(n)], **tables)


# Finding and splitting


def test_subfolders_are_classes(tmp_path):
    names = [f"{kind}/{row}.png" for kind in ("cats", "dogs/old", "emus") for row in range(4)]
    folder = write(tmp_path / "mine", names)
    data = load(str(folder), image_size=8)
    assert data.label_names == ("class",) and data.value_names == (("cats", "dogs", "emus"),)
    split, names = load_file(folder, COLOUR, data.label_names, data.value_names)
    assert names == ("class",) and split.labels[:, 0].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    (folder / "labels.csv").write_text("file,hat\ncats/0.png,1\n")
    assert load(str(folder), image_size=8).label_names == ("hat",)


@pytest.mark.parametrize(
    ("tops", "drawn"),
    [(("Train", "VAL", "test"), 0), (("training", "testing"), 2), (("train", "validation"), 0)],
)
def test_folders_with_the_names_of_splits_are_the_splits(tmp_path, tops, drawn):
    names = sorted(
        f"{top}/{kind}/{row}.png" for top in tops for kind in ("cats", "dogs") for row in range(10)
    )
    folder = write(tmp_path / "mine", names)
    data = load(str(folder), image_size=8)
    assert data.label_names == ("class",) and data.value_names == (("cats", "dogs"),)
    held = {top: [row for row, name in enumerate(names) if name.startswith(top)] for top in tops}
    parts = {name: data.split(name).places.tolist() for name in ("train", "valid")}
    assert len(parts["train"]) == 20 - drawn
    if drawn:
        assert sorted(parts["train"] + parts["valid"]) == held[tops[0]]
    else:
        assert (sorted(parts["train"]), parts["valid"]) == (held[tops[0]], held[tops[1]])
    if "test" in tops[-1]:
        assert data.test.places.tolist() == held[tops[-1]]
    else:
        assert data.test is None
    for split in (data.train, data.valid):
        assert [names[place].split("/")[1] == "dogs" for place in split.places] == split.labels[:, 0].tolist()
    assert f"the folders {', '.join(sorted(tops))} are the splits; the folders cats, dogs are" in data.note
    assert load_file(folder, COLOUR, ("class",), (("cats", "dogs"),))[0].labels.sum() == 10 * len(tops)


@pytest.mark.parametrize("outer", ["data/", "photos-main/Images/", "train/"])
def test_folders_around_all_others_do_not_count(tmp_path, outer):
    names = [
        f"{outer}{top}/{kind}/{row}.png"
        for top in ("test", "train")
        for kind in ("cats", "dogs")
        for row in range(10)
    ]
    data = load(str(write(tmp_path / "mine", names)), image_size=8)
    assert data.value_names == (("cats", "dogs"),) and len(data.test) == 20
    assert sorted(data.test.places.tolist()) == list(range(20))
    assert "the folders test, train are the splits" in data.note


def test_a_folder_around_classes_does_not_count(tmp_path):
    names = [f"data/{kind}/{row}.png" for kind in ("cats", "dogs") for row in range(10)]
    assert load(str(write(tmp_path / "mine", names)), image_size=8).value_names == (("cats", "dogs"),)


def test_only_training_images_need_a_class(tmp_path):
    names = [f"train/{kind}/{row}.png" for kind in ("cats", "dogs") for row in range(5)] + ["test/0.png"]
    data = load(str(write(tmp_path / "mine", names)), image_size=8)
    assert data.label_names == ("class",) and data.test.labels.tolist() == [[-1]]


@pytest.mark.parametrize("tops", [("train", "test", "more"), ("test", "valid"), ("train",)])
def test_folders_are_no_splits_unless_all_are(tmp_path, tops):
    names = [f"{top}/{kind}/{row}.png" for top in tops for kind in ("cats", "dogs") for row in range(10)]
    data = load(str(write(tmp_path / "mine", names)), image_size=8)
    assert len(data.test) == len(data.valid) == len(names) // 10
    values = ("more", "test", "train") if "more" in tops else ("cats", "dogs")
    assert data.value_names == (values,) and "splits" not in data.note
    assert f"the folders {', '.join(values)} are the values of the label 'class'" in data.note


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": 0.2}, "test, fold: .*test images"),
        ({"fold": "1/5"}, "test, fold: "),
        ({"valid": 0.0}, "valid: "),
    ],
)
def test_shares_of_splits_that_folders_hold_are_errors(tmp_path, options, message):
    names = [f"{top}/{row}.png" for top in ("train", "val", "test") for row in range(5)]
    folder = write(tmp_path / "mine", names)
    with pytest.raises(ValueError, match=message):
        load(str(folder), image_size=8, splitting=Splitting(**options))


def test_too_few_training_images_beside_those_for_testing(tmp_path):
    folder = write(tmp_path / "mine", ["train/0.png", *(f"test/{row}.png" for row in range(5))])
    with pytest.raises(ValueError, match=r"mine: expected at least 3 training images to split .*, got 1"):
        load(str(folder), image_size=8)


def test_marks_of_what_is_missing_are_unknown_labels(tmp_path):
    folder = many(tmp_path / "mine", 4, labels="file,kind\n00.png,NA\n01.png,cat\n02.png,?\n")
    assert read_folder(folder).columns == {"kind": ["", "cat", "", ""]}


def test_one_subfolder_is_no_class(tmp_path):
    assert read_folder(write(tmp_path / "mine", ["a/1.png", "a/2.png"])).columns == {}


def test_decimal_labels_are_refused(tmp_path):
    folder = many(tmp_path / "mine", labels="file,age\n00.png,31.5\n01.png,7\n")
    with pytest.raises(ValueError, match=r"'age': expected words or integers, got '31\.5'; to learn from"):
        load(str(folder), image_size=8)


def test_images_are_found_below_the_folder_and_sorted(tmp_path):
    folder = write(tmp_path / "mine")
    (folder / "notes.txt").write_text("no image")
    (folder / ".hidden").mkdir()
    (folder / "empty.png").mkdir()
    for hidden in (".thumbnail.png", ".hidden/a.png", "a/._1.png"):
        save(folder / hidden, np.zeros((8, 8, 3), np.uint8))
    found = read_folder(folder)
    assert found.names == NAMES and found.columns == {}
    split, names = load_file(folder, COLOUR)
    assert rows(split) == [0, 1, 2, 3, 4] and split.labels is None and names == ()


@pytest.mark.parametrize("suffix", ["png", "jpg", "JPEG", "bmp", "webp", "tif", "TIFF"])
def test_kinds_of_files(tmp_path, suffix):
    pixels = np.full((8, 8, 3), (10, 100, 200), np.uint8)
    save(tmp_path / f"a.{suffix}", pixels, **({"lossless": True} if suffix == "webp" else {}))
    split, _ = load_file(tmp_path, COLOUR)
    assert np.abs(split.x[0].numpy().astype(int) - pixels).max() <= (3 if suffix in ("jpg", "JPEG") else 0)


@pytest.mark.parametrize(("n", "sizes"), [(3, (1, 1, 1)), (10, (8, 1, 1)), (20, (16, 2, 2))])
def test_each_image_is_in_one_split_with_its_labels(tmp_path, n, sizes):
    table = "file,row\n" + "".join(f"{row:02d}.png,{row}\n" for row in range(n))
    data = load(str(many(tmp_path / "mine", n, labels=table)))
    splits = [data.train, data.valid, data.test]
    assert tuple(len(split) for split in splits) == sizes
    assert all(split.signed and split.labels[:, 0].tolist() == rows(split) for split in splits)
    assert sorted(row for split in splits for row in rows(split)) == list(range(n))
    assert data.name == "mine" and data.preprocessing == Preprocessing(Kind.IMAGE, (8, 8, 3))
    assert data.label_names == ("row",) and data.label_sizes == (n,) and data.value_names == ((),)


def test_a_folder_without_labels(tmp_path):
    data = load(str(many(tmp_path / "mine")))
    assert data.train.labels is None and data.test.labels is None
    assert data.label_names == data.label_sizes == data.value_names == ()


def test_the_seed_makes_the_split(tmp_path):
    folder = str(many(tmp_path / "mine"))
    first, again, other = (load(folder, seed=seed).train for seed in (0, 0, 1))
    assert torch.equal(first.x, again.x) and rows(first) != rows(other)


def test_the_splits_are_those_of_a_file_with_as_many_rows(tmp_path):
    x = np.arange(30, dtype=np.uint8)[:, None, None].repeat(8, 1).repeat(8, 2)
    np.savez(tmp_path / "a.npz", x=x * 8)
    file, folder = load(str(tmp_path / "a.npz"), seed=5), load(str(many(tmp_path / "mine")), seed=5)
    for name in ("train", "valid", "test"):
        assert (file.split(name).x[:, 0, 0] // 8).tolist() == rows(folder.split(name))


def test_images_of_any_size_become_squares(tmp_path):
    for row, size in enumerate([(20, 9), (9, 20), (9, 9), (8, 8)] * 3):
        save(tmp_path / "mine" / f"{row}.jpg", RNG.integers(0, 256, (*size, 3), dtype=np.uint8))
    data = load(str(tmp_path / "mine"), image_size=9)
    assert data.event_shape == (9, 9, 3) and data.train.x.shape == (10, 9, 9, 3)


def test_an_epoch_is_what_the_files_say(tmp_path):
    folder = tmp_path / "mine"
    pixels = RNG.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    for row in range(12):
        save(folder / f"{row:02d}.png", pixels[row])
    (folder / "labels.csv").write_text("file,row\n" + "".join(f"{row:02d}.png,{row}\n" for row in range(12)))
    data = load(str(folder), image_size=8)
    x, labels = (torch.cat(parts) for parts in zip(*Batches(data.train, 3), strict=True))
    expected = torch.from_numpy(pixels[labels[:, 0]]).double() / 127.5 - 1
    assert len(x) == 10 and x.dtype == torch.float32
    torch.testing.assert_close(x.double(), expected, atol=1e-6, rtol=0)


def test_images_are_decoded_once_and_nothing_is_written_into_the_folder(tmp_path, home, monkeypatch):
    folder = many(tmp_path / "mine")
    before = sorted(folder.iterdir())
    first, whole = load(str(folder), image_size=8), load_file(folder, COLOUR)[0]

    def fail(*args):
        raise AssertionError("decoded again")

    monkeypatch.setattr(image_cache, "decode", fail)
    assert torch.equal(load(str(folder), image_size=8).train.x, first.train.x)
    assert torch.equal(load_file(folder, COLOUR)[0].x, whole.x)
    assert sorted(folder.iterdir()) == before
    assert len(list((home / ".cache" / "pyro_fmvae" / "images").iterdir())) == 2


@pytest.mark.parametrize("n", [1, 2])
def test_too_few_images(tmp_path, n):
    with pytest.raises(ValueError, match=rf"mine: expected at least 3 images to split .*, got {n}"):
        load(str(many(tmp_path / "mine", n)))


def test_no_images(tmp_path):
    with pytest.raises(
        ValueError, match=r"no images in this folder; they end in \.png, \.jpg, \.jpeg, \.bmp"
    ):
        load(str(tmp_path))


def test_a_damaged_image_is_named(tmp_path):
    folder = many(tmp_path / "mine")
    (folder / "07.png").write_text("no image")
    with pytest.raises(ValueError, match=r"/07\.png: not an image that can be read$"):
        load(str(folder))


def test_other_files_are_told(tmp_path):
    folder = many(tmp_path / "mine", 20)
    assert load(str(folder)).note == ""
    for name in ("a.heic", "b.HEIC", "more/c.txt", "Makefile", "labels.csv", ".hidden.xyz"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("file,kind\n" if name == "labels.csv" else "no image")
    assert load(str(folder)).note == "4 files are left out (.heic 2, .txt 1, Makefile 1)"


# The table of properties


def test_numbers_words_and_what_is_unknown(tmp_path):
    table = (
        "\ufefffile, age ,hair\r\n"
        "b.png, 3 ,red\r\n"
        "\r\n"
        "./a/1.png,,  dark brown \r\n"
        'c.png,-1,"blond, light"\r\n'
        "a/2.png,0,-1\r\n"
    )
    folder = write(tmp_path / "mine", labels=table)
    data = load(str(folder), image_size=8)
    assert data.label_names == ("age", "hair") and data.label_sizes == (4, 3)
    assert data.value_names == ((), ("blond, light", "dark brown", "red"))
    split, names = load_file(folder, COLOUR, data.label_names, data.value_names)
    assert names == ("age", "hair") and split.labels.dtype == torch.int64
    assert split.labels.tolist() == [[-1, 1], [-1, -1], [0, -1], [3, 2], [-1, 0]]
    splits = [data.train, data.valid, data.test]
    order = [row for part in splits for row in rows(part)]
    assert torch.cat([part.labels for part in splits]).tolist() == split.labels[order].tolist()


@pytest.mark.parametrize(
    "tables",
    [
        {"labels": "f,p\nb.png,7\n", "other": "x\n"},
        {"properties": "f,p\nb.png,7\n"},
        {"properties": "f,p\nb.png,7\n", "._properties": "\0\5\26\7"},  # what macOS writes beside a file
    ],
)
def test_which_table(tmp_path, tables):
    split, names = load_file(write(tmp_path, **tables), COLOUR)
    assert names == ("p",) and split.labels[:, 0].tolist() == [-1, -1, -1, 7, -1]


def test_several_tables(tmp_path):
    write(tmp_path, one="f,p\n", two="f,p\n")
    with pytest.raises(
        ValueError, match=r"expected one table, or one that is called labels\.csv, got one\.csv, two\.csv"
    ):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a header, separated by commas"),
        ("file\nb.png\n", "expected a header, separated by commas"),
        ("file;p\nb.png;1\n", "expected a header, .*; got 'file;p'"),
        ("file,p,p\nb.png,1,1\n", "different names of properties; got 'file,p,p'"),
        ("file,p,\nb.png,1,1\n", "different names of properties; got 'file,p,'"),
        ("b.png,1\nc.png,2\n", "expected a header, .*; got 'b.png,1'"),
        ("\ufeffb.png,1\nc.png,2\n", "expected a header, .*; got 'b.png,1'"),
        ("f,p\nb.png,1\nc.png\n", "line 3: expected 2 fields, got 1"),
        ("f,p\nb.png,1,2\n", "line 2: expected 2 fields, got 3"),
        ("f,p\n\nd.png,1\n", "line 3: no image 'd.png' in the folder"),
        ("f,p\nlabels.csv,1\n", "line 2: no image 'labels.csv' in the folder"),
        ("f,p\nb.png,1\nc.png,2\n./b.png,1\n", "line 4: a second row for './b.png', after line 2"),
        ('f,p\nb.png,"1\n', "not comma separated text"),
    ],
)
def test_bad_tables(tmp_path, text, message):
    with pytest.raises(ValueError, match=rf"labels\.csv.*{message}"):
        read_folder(write(tmp_path, labels=text))


def test_a_table_that_is_no_text(tmp_path):
    (write(tmp_path) / "labels.csv").write_bytes(b"f,p\nb.png,\xff\n")
    with pytest.raises(ValueError, match=r"labels\.csv: not comma separated text"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["3", "", "0"], ()),
        (["", ""], ()),
        (["b", "a", "", "b"], ("a", "b")),
        (["1", "x"], ("1", "x")),
        (["²"], ("²",)),
        (["-2"], ("-2",)),
        (["9" * 19], ("9" * 19,)),  # beyond int64
    ],
)
def test_the_values_of_a_column(texts, values):
    assert find_values(texts) == values
    coded = code(texts, values, "p")
    assert [text == "" for text in texts] == (coded == -1).tolist()
    assert [values[number] if values else str(number) for number in coded if number >= 0] == list(
        filter(None, texts)
    )


@pytest.mark.parametrize(
    ("texts", "values", "expected"),
    [
        (["b", ""], ("a", "b", "c"), [1, -1]),
        (["2", "0"], ("a", "b", "c"), [2, 0]),
        (["2", "1"], ("2", "1", "x"), [0, 1]),
        (["12"], (), [12]),
    ],
)
def test_the_run_says_what_words_mean(texts, values, expected):
    assert code(texts, values, "p").tolist() == expected


@pytest.mark.parametrize(
    ("texts", "values", "message"),
    [
        (["a", "z"], ("a", "b"), "p: expected one of a, b, got 'z'"),
        (["2"], ("a", "b"), "p: expected one of a, b, got '2'"),
        (["a", "1"], ("a", "b"), "p: expected one of a, b, got '1'"),
        (["1", "red"], (), "p: expected integers >= 0, got 'red'"),
        (["-2"], (), "p: expected integers >= 0, got '-2'"),
    ],
)
def test_values_that_the_run_does_not_know(texts, values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        code(texts, values, "p")


# Under the preprocessing of a run


def test_words_mean_the_same_as_in_training(tmp_path):
    training = "f,hair,age\n" + "".join(
        f"{row:02d}.png,{('red', 'blond', 'dark')[row % 3]},{row}\n" for row in range(30)
    )
    data = load(str(many(tmp_path / "mine", labels=training)), image_size=8)
    new = write(tmp_path / "new", labels="f,age,mood,hair\nb.png,4,sad,red\nc.png,5,gay,dark\n")
    split, names = load_file(new, data.preprocessing, data.label_names, data.value_names)
    assert names == ("age", "mood", "hair")
    assert split.labels[3:].tolist() == [[4, 1, 2], [5, 0, 1]] and (split.labels[:3] == -1).all()
    (new / "labels.csv").write_text("f,hair\nb.png,green\n")
    with pytest.raises(ValueError, match=r"new: 'hair': expected one of blond, dark, red, got 'green'"):
        load_file(new, data.preprocessing, data.label_names, data.value_names)
    (new / "labels.csv").write_text("f,age\nb.png,old\n")
    with pytest.raises(ValueError, match=r"new: 'age': expected integers >= 0, got 'old'"):
        load_file(new, data.preprocessing, data.label_names, data.value_names)


def test_words_that_the_run_does_not_know_are_counted_if_asked(tmp_path):
    table = "f,eyes,age\na/1.png,open,3\nb.png,wide,old\nc.png,wide,-1\n"
    folder = write(tmp_path, labels=table)
    left_out = {}
    split, names = load_file(folder, COLOUR, ("eyes", "age"), (("closed", "open"), ()), left_out)
    assert names == ("eyes", "age")
    found = dict(zip(NAMES, split.labels.tolist(), strict=True))
    assert (found["a/1.png"], found["b.png"], found["c.png"]) == ([1, 3], [-1, -1], [-1, -1])
    assert left_out == {"eyes": {"wide": 2}, "age": {"old": 1}}


def test_a_run_whose_labels_are_numbers(tmp_path):
    folder = write(tmp_path, labels="f,age\nb.png,old\n")
    with pytest.raises(ValueError, match="'age': expected integers >= 0, got 'old'"):
        load_file(folder, COLOUR, ("age",))


def test_images_take_the_shape_of_the_run(tmp_path):
    pixels = RNG.integers(0, 256, (3, 9, 4, 3), dtype=np.uint8)
    for row in range(3):
        save(tmp_path / f"{row}.png", pixels[row])
    split, _ = load_file(tmp_path, Preprocessing(Kind.IMAGE, (4, 4, 3)))
    assert split.signed and (split.x.numpy() == pixels[:, 2:6]).all()  # the centre, as it is
    split, _ = load_file(tmp_path, Preprocessing(Kind.IMAGE, (9, 4)))
    grey = pixels @ np.array([0.299, 0.587, 0.114])
    assert split.x.shape == (3, 9, 4) and np.abs(split.x.numpy() - grey).max() < 1
    threshold, _ = load_file(tmp_path, Preprocessing(Kind.BINARY, (9, 4), "threshold"))
    assert not threshold.signed and torch.equal(threshold.x, split.x >= 128)


def test_black_and_white_serves_a_binary_run_and_greys_do_not(tmp_path):
    pixels = RNG.integers(0, 2, (3, 6, 6), dtype=np.uint8)
    for row in range(3):
        save(tmp_path / f"{row}.png", 255 * pixels[row])
    run = Preprocessing(Kind.BINARY, (6, 6))
    split, _ = load_file(tmp_path, run)
    assert split.x.dtype == torch.bool and (split.observations.numpy() == pixels).all()
    assert torch.equal(read_image(tmp_path / "1.png", run).x, split.x[1:2])
    save(tmp_path / "2.png", np.full((6, 6), 128, np.uint8))
    with pytest.raises(ValueError, match="expected binary values, 0 or 1"):
        load_file(tmp_path, run)


def test_one_image(tmp_path, home):
    pixels = RNG.integers(0, 256, (8, 12, 3), dtype=np.uint8)
    path = save(tmp_path / "a.png", pixels)
    split = read_image(path, COLOUR)
    assert len(split) == 1 and split.labels is None and split.signed and not home.exists()
    assert (split.x[0].numpy() == pixels[:, 2:10]).all()
    with pytest.raises(FileNotFoundError, match=r"b\.png: no such image"):
        read_image(tmp_path / "b.png", COLOUR)


@pytest.mark.parametrize(
    "preprocessing",
    [Preprocessing(Kind.IMAGE, (5,)), Preprocessing(Kind.TABLE, (5,), mean=(0,) * 5, std=(1,) * 5)],
)
def test_a_run_that_was_not_trained_on_images(tmp_path, preprocessing):
    path = write(tmp_path) / "b.png"
    message = r"images, but the run was trained on data of shape \[5\]"
    with pytest.raises(ValueError, match=message):
        load_file(tmp_path, preprocessing)
    with pytest.raises(ValueError, match=rf"b\.png: {message}"):
        read_image(path, preprocessing)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("0", "3", "", "1"), ()),
        (("7",), ()),
        (("2001", "2000", "2001"), ("2000", "2001")),
        (("100", "9"), ("9", "100")),
        (tuple(map(str, range(60, 120))), ()),
        (("b", "a", "10"), ("10", "a", "b")),
    ],
)
def test_names_of_values(texts, expected):
    assert find_values(texts) == expected
