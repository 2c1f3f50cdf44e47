"""A person's own data that cannot be learnt from: one line, exit status 2, and nothing left behind."""

import numpy as np
import pytest
from PIL import Image

from tests.small_runs import command

RNG = np.random.default_rng(0)


def pictures(folder, n=30, size=(16, 16), labels=None):
    """Pictures of noise; ``labels`` gives the label of a row, for a table."""
    folder.mkdir()
    for row in range(n):
        Image.fromarray(RNG.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / f"{row}.png")
    if labels is not None:
        rows = "".join(f"{row}.png,{labels(row)}\n" for row in range(n))
        (folder / "labels.csv").write_text(f"file,kind\n{rows}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bad")
    pictures(path / "five", 5)
    pictures(path / "dots", 30, (1, 1))
    pictures(path / "one_class", labels=lambda row: "cat")
    pictures(path / "one_of_two")
    rows = "".join(f"{row}.png,cat,{row % 2}\n" for row in range(30))
    (path / "one_of_two" / "labels.csv").write_text(f"file,kind,eyes\n{rows}")
    pictures(path / "rare", 60, labels=lambda row: "dog" if row == 7 else "cat")
    pictures(path / "unlabelled", labels=lambda row: "")
    pictures(path / "absent")
    (path / "absent" / "labels.csv").write_text("file,kind\nelsewhere.png,cat\n")
    table = RNG.normal(size=(6000, 3))
    arrays = {
        "classes": {"x": table, "labels": RNG.permutation(6000) % 5000},
        "nothing": {"x": np.full((60, 3), np.nan)},
        "constant": {"x": np.ones((60, 3))},
        "dot": {"x": RNG.random((60, 1, 1))},
        "words": {"x": np.array([["a", "b"]] * 60)},
    }
    for name, contents in arrays.items():
        np.savez(path / f"{name}.npz", **contents)
    (path / "constant.csv").write_text("u,v\n" + "3,4\n" * 40)
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "five"), "data: expected at least 10 points, better hundreds, got 5"),
        (("--data", "dots"), "0.png: expected at least 8 pixels on each side, got 1 x 1"),
        (("--data", "dot.npz"), "data: expected pictures of more than one pixel"),
        (("--data", "one_class", "--labels", "1"), "labels: expected at least two values of 'kind'"),
        (("--data", "one_of_two", "--labels", "1"), "--label-names eyes leaves it out"),
        (
            ("--data", "rare", "--labels", "1"),
            "have the same; validation and test points have others: --valid 0 --test 0 trains on these, too",
        ),
        (("--data", "unlabelled", "--labels", "1"), "whose labels are used has a known 'kind'"),
        (("--data", "absent", "--labels", "1"), "no image 'elsewhere.png' in the folder"),
        (
            ("--data", "classes.npz", "--labels", "1"),
            "labels: expected at least two training points",
        ),
        (("--data", "nothing.npz"), "expected training numbers in each column"),
        (("--data", "constant.npz"), "all columns are constant"),
        (("--data", "constant.csv"), "all columns are constant"),
        (("--data", "words.npz"), "'x' must hold numbers"),
        (("--data", ""), "data: expected one of smiley"),
        (("--data=",), "data: expected one of smiley"),
    ],
)
def test_is_refused(folder, tmp_path, monkeypatch, options, message):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    status, _, err = command("train", *options)
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith("pyro-fmvae: error: ") and message in err
    assert sorted(folder.rglob("*")) == before
