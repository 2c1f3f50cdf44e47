from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pyro_fmvae.app.commands import data_rows
from pyro_fmvae.app.commands.data_rows import rows_of
from pyro_fmvae.app.commands.training import configuration
from pyro_fmvae.app.recipes.registry import all_options
from pyro_fmvae.data import Split
from pyro_fmvae.learn.options import unset
from tests.app.commands.labelled_run import RUN
from tests.datasets import dataset

COLUMNS = ("label0", "label1", "label2")
ROWS = Split(torch.zeros(1, 2, 2))


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
    run = RUN.with_options(label_names=chosen)
    run = replace(run, recipe=replace(run.recipe, label_names=known))
    monkeypatch.setattr(data_rows, "load_file", lambda *_: (ROWS, names))
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    assert rows_of(run, "new", None, "test") == (ROWS, expected)


@pytest.mark.parametrize(
    ("chosen", "names", "message"),
    [
        (None, COLUMNS[:2], "labels: new has 2 columns of labels, the run's data have 3"),
        (("eyes",), COLUMNS, "labels: the run's labels were put in another order by label_names, so new has"),
    ],
)
def test_label_columns_that_could_be_any(monkeypatch, chosen, names, message):
    run = RUN.with_options(label_names=chosen)
    monkeypatch.setattr(data_rows, "load_file", lambda *_: (ROWS, names))
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    with pytest.raises(ValueError) as error:
        rows_of(run, "new", None, "test")
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(("given", "expected"), [(None, "/runs/data"), ("/other", "/other")])
def test_other_data_are_looked_for_where_the_runs_are(monkeypatch, given, expected):
    data = dataset((2, 2))
    roots = []
    monkeypatch.setattr(data_rows, "load", lambda name, root, **_: roots.append((name, root)) or data)
    run = RUN.with_options(data="mnist", data_root="/runs/data")
    assert rows_of(run, "fashion-mnist", given, "test") == (data.test, ())
    assert roots == [("fashion-mnist", Path(expected))]


@pytest.mark.parametrize("name", ["fashion-mnist", "mnist", "bars"])
def test_a_folder_here_comes_before_the_published_data_of_its_name(monkeypatch, tmp_path, caplog, name):
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    monkeypatch.setattr(data_rows, "load_file", lambda data, *_: (ROWS, (data,)))
    run = RUN.with_options(data="mnist")
    assert rows_of(run, name, None, None, by_name=False) == (ROWS, (f"./{name}",))
    assert f"./{name} is your own folder, not the published data set {name}; give --data-root" in caplog.text
    typed = {**{key: unset(option) for key, option in all_options().items()}, "data": name}
    assert configuration("vae", {"data"}, typed).data == f"./{name}"
    assert configuration("vae", {"data", "data_root"}, {**typed, "data_root": "."}).data == name
    assert configuration("vae", set(), typed).data == name  # by default, or of an earlier run
