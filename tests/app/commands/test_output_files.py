from pathlib import Path

import numpy as np
import pytest

from pyro_fmvae.app.commands.output_files import check_spares_data, output_file, save_array_parts
from tests.app.commands.labelled_run import RUN


def test_files_are_different(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert output_file(None, "b.png", [".png"], image="a.png", compare=None) == Path("b.png")
    (tmp_path / "link.png").symlink_to("a.png")
    for same in ("a.png", "./a.png", str(tmp_path / "a.png"), f"../{tmp_path.name}/a.png", "link.png"):
        with pytest.raises(ValueError, match=r"^image, compare: expected different files$"):
            output_file(None, same, [".png"], "compare", image="a.png", out="b.png")


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


def parts(n=10):
    rng = np.random.default_rng(0)
    for rows in (4, 4, n - 8):
        x = rng.normal(size=(2, rows, 3)).astype(np.float32).transpose(1, 0, 2)  # not contiguous
        yield {"x": x, "codes": rng.integers(0, 9, rows), "on": rng.random((rows, 0)) > 0.5}


def test_parts_are_joined_in_their_order(tmp_path):
    beside = {}

    def filling():
        yield from parts()
        beside["limit"] = 0.25  # known when the last row is

    shapes = save_array_parts(tmp_path / "new" / "a.npz", filling(), beside)
    whole = {name: np.concatenate([part[name] for part in parts()]) for name in ("x", "codes", "on")}
    assert shapes == {name: array.shape for name, array in whole.items()}
    with np.load(tmp_path / "new" / "a.npz", allow_pickle=False) as archive:
        assert sorted(archive) == ["codes", "limit", "on", "x"] and archive["limit"] == 0.25
        for name, array in whole.items():
            assert archive[name].dtype == array.dtype
            np.testing.assert_array_equal(archive[name], array)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.npz"]


@pytest.mark.parametrize("after", [0, 2, 3])
def test_nothing_is_left_if_a_part_fails(tmp_path, after):
    def failing():
        for number, part in enumerate(parts()):
            if number == after:
                break
            yield part
        raise OSError("disk full")

    (tmp_path / "a.npz").write_text("old")
    with pytest.raises(OSError, match="disk full"):
        save_array_parts(tmp_path / "a.npz", failing())
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
