from dataclasses import replace
from pathlib import Path

import pytest

from pyro_fmvae.commands import arguments
from pyro_fmvae.commands.arguments import (
    check_different,
    check_spares_data,
    parse_factors,
    parse_settings,
    rows_of,
)
from pyro_fmvae.config import TrainConfig
from pyro_fmvae.data import Kind, Preprocessing
from pyro_fmvae.runs.run import Run
from tests.datasets import dataset

RUN = Run(  # the label 'hat' was not trained on
    Path("run"),
    TrainConfig(factors=(2, 3, 5), labels=0.5, label_names=("eyes", "hair")),
    10,
    Preprocessing(Kind.BINARY, (2, 2)),
    ("eyes", "hair", "hat"),
    ((), ("blond", "dark", "7"), ("no", "yes")),
)
UNLABELLED = replace(RUN, config=replace(RUN.config, labels=0.0))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", [0]), ("hair", [1]), ("2,eyes", [2, 0]), (" hair , 0 ", [1, 0]), ("0,1,2", [0, 1, 2])],
)
def test_factors(text, expected):
    assert parse_factors(text, RUN) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hat", "factors: expected a factor, 0..2 or one of eyes, hair, got 'hat'"),
        ("3", "factors: expected a factor, 0..2 or one of eyes, hair, got '3'"),
        ("-1", "factors: expected a factor"),
        ("", "factors: expected a factor"),
        ("0,,1", "factors: expected a factor"),
        ("1,hair", "factors: expected different ones, got '1,hair'"),
    ],
)
def test_wrong_factors(text, message):
    with pytest.raises(ValueError) as error:
        parse_factors(text, RUN)
    assert str(error.value).startswith(message)


COLUMNS = ("label0", "label1", "label2")


@pytest.mark.parametrize(
    ("known", "chosen", "names", "expected"),
    [
        (("eyes", "hair", "hat"), None, COLUMNS, ("eyes", "hair", "hat")),
        (("eyes", "hair", "hat"), ("eyes",), ("hat", "hair"), ("hat", "hair")),
        (("label2", "label0", "label1"), ("label2",), COLUMNS, COLUMNS),
        (("eyes",), ("eyes",), ("label0",), ("eyes",)),
        ((), None, COLUMNS, COLUMNS),
        (("eyes", "hair", "hat"), ("eyes",), (), ()),
    ],
)
def test_names_of_label_columns(monkeypatch, known, chosen, names, expected):
    """Columns that a file gives no names are those of the run's data, in their order there."""
    run = replace(RUN, config=replace(RUN.config, label_names=chosen), label_names=known)
    monkeypatch.setattr(arguments, "load_file", lambda *_: ("rows", names))
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    assert rows_of(run, "new", None, "test") == ("rows", expected)


@pytest.mark.parametrize(
    ("chosen", "names", "message"),
    [
        (None, COLUMNS[:2], "labels: new has 2 columns of labels, the run's data have 3"),
        (("eyes",), COLUMNS, "labels: the run's labels were put in another order by label_names, so new has"),
    ],
)
def test_label_columns_that_could_be_any(monkeypatch, chosen, names, message):
    run = replace(RUN, config=replace(RUN.config, label_names=chosen))
    monkeypatch.setattr(arguments, "load_file", lambda *_: ("rows", names))
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    with pytest.raises(ValueError) as error:
        rows_of(run, "new", None, "test")
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(("given", "expected"), [(None, "/runs/data"), ("/other", "/other")])
def test_other_data_are_looked_for_where_the_runs_are(monkeypatch, given, expected):
    data = dataset((2, 2))
    roots = []
    monkeypatch.setattr(arguments, "load", lambda name, root, **_: roots.append((name, root)) or data)
    run = replace(RUN, config=replace(RUN.config, data="mnist", data_root="/runs/data"))
    assert rows_of(run, "fashion-mnist", given, "test") == (data.test, ())
    assert roots == [("fashion-mnist", Path(expected))]


def test_names_go_before_numbers():
    numbered = replace(RUN, label_names=("2", "hair", "hat"), value_names=(("1", "0"), (), ()))
    assert parse_factors("2,hair", numbered) == [0, 1]
    assert parse_settings("2=1,1=1", numbered) == {0: 0, 1: 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("eyes=1", {0: 1}),
        ("hair=dark,2=4", {1: 1, 2: 4}),
        ("1=blond", {1: 0}),
        (" hair = 2 , eyes=0", {1: 2, 0: 0}),
        ("hair=7", {1: 2}),  # no number of a component, so it is a name
    ],
)
def test_settings(text, expected):
    assert parse_settings(text, RUN) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hat=1", "set: expected a factor, 0..2 or one of eyes, hair, got 'hat'"),
        ("hair=3", "set: expected 0..2 or one of blond, dark, 7 for factor 1, got '3'"),
        ("hair=red", "set: expected 0..2 or one of blond, dark, 7 for factor 1, got 'red'"),
        ("2=yes", "set: expected 0..4 for factor 2, got 'yes'"),
        ("eyes=-1", "set: expected 0..1 for factor 0, got '-1'"),
        ("eyes", "set: expected such as hat=1,6=3, got 'eyes'"),
        ("eyes=", "set: expected such as hat=1,6=3"),
        ("=1", "set: expected such as hat=1,6=3"),
        ("", "set: expected such as hat=1,6=3"),
        ("eyes=1,0=0", "set: expected different factors, got 'eyes=1,0=0'"),
    ],
)
def test_wrong_settings(text, message):
    with pytest.raises(ValueError) as error:
        parse_settings(text, RUN, "set")
    assert str(error.value).startswith(message)


def test_without_labels_there_are_only_numbers():
    assert parse_factors("2,0", UNLABELLED) == [2, 0]
    assert parse_settings("1=2", UNLABELLED) == {1: 2}
    with pytest.raises(ValueError, match=r"factors: expected a factor, 0\.\.2, got 'hair'"):
        parse_factors("hair", UNLABELLED)
    with pytest.raises(ValueError, match=r"settings: expected 0\.\.2 for factor 1, got 'dark'"):
        parse_settings("1=dark", UNLABELLED)


def test_files_are_different(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_different(image="a.png", out="b.png", compare=None)
    check_different(image=None, out="b.png", compare=None)
    (tmp_path / "link.png").symlink_to("a.png")
    for same in ("a.png", "./a.png", str(tmp_path / "a.png"), f"../{tmp_path.name}/a.png", "link.png"):
        with pytest.raises(ValueError, match=r"^image, out, compare: expected different files$"):
            check_different(image="a.png", out="b.png", compare=same)


def test_data_of_a_run_are_spared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = replace(RUN, config=replace(RUN.config, data=str(tmp_path / "mine.npz")))
    check_spares_data(file, Path("codes.npz"))
    for name in ("mine.npz", f"../{tmp_path.name}/mine.npz"):
        with pytest.raises(ValueError, match=rf"^out: {name} holds data that the run was trained on$"):
            check_spares_data(file, Path(name))
    photos = tmp_path / "smiley"
    (photos / "more").mkdir(parents=True)
    for name in ("more/a.png", "codes.npz"):
        (photos / name).touch()
    folder = replace(RUN, config=replace(RUN.config, data=str(photos)))
    for name in ("smiley/new.png", "smiley/codes.npz", "a.png"):
        check_spares_data(folder, Path(name))
    with pytest.raises(ValueError, match=r"^compare: smiley/more/a\.png holds data that the run was"):
        check_spares_data(folder, Path("smiley/more/a.png"), "compare")
    check_spares_data(replace(RUN, config=TrainConfig()), Path("smiley/more/a.png"))  # a name, no folder
