from pathlib import Path

import pytest

from pyro_fmvae.app.commands.output_files import check_different, check_spares_data
from tests.app.commands.labelled_run import RUN


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
    file = RUN.with_options(data=str(tmp_path / "mine.npz"))
    check_spares_data(file, Path("codes.npz"))
    for name in ("mine.npz", f"../{tmp_path.name}/mine.npz"):
        with pytest.raises(ValueError, match=rf"^out: {name} holds data that the run was trained on$"):
            check_spares_data(file, Path(name))
    photos = tmp_path / "smiley"
    (photos / "more").mkdir(parents=True)
    for name in ("more/a.png", "codes.npz"):
        (photos / name).touch()
    folder = RUN.with_options(data=str(photos))
    for name in ("smiley/new.png", "smiley/codes.npz", "a.png"):
        check_spares_data(folder, Path(name))
    with pytest.raises(ValueError, match=r"^compare: smiley/more/a\.png holds data that the run was"):
        check_spares_data(folder, Path("smiley/more/a.png"), "compare")
    check_spares_data(RUN.with_options(data="smiley"), Path("smiley/more/a.png"))  # a name, no folder
