"""Arrays in parts become the file that NumPy writes of the whole, or nothing."""

import numpy as np
import pytest

from pyro_fmvae.app.commands.array_parts import save_array_parts


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
