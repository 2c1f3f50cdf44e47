import csv
import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from pyro_fmvae.app.commands import judging
from pyro_fmvae.app.runs import report
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data import load, whole
from pyro_fmvae.evaluate import load_judge, train_judge
from tests.small_runs import command, succeed, train, write_files

pytestmark = pytest.mark.usefixtures("single_precision")

SIZE = 80


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Files of 16×16 images: `side` in the top rows (2 values), `tone` in the middle (3), `third` (2)."""
    folder = tmp_path_factory.mktemp("judging")
    rng = np.random.default_rng(0)
    labels = np.stack([rng.integers(0, size, SIZE) for size in (2, 3, 2)], 1)
    x = np.zeros((SIZE, 16, 16))
    x[:, :6] = labels[:, 0, None, None]
    x[:, 6:12] = labels[:, 1, None, None] / 2
    x[:, 12:] = labels[:, 2, None, None]
    names = np.array(["side", "tone", "third"])
    contents = {
        "grey": {"x": x, "labels": labels, "label_names": names},
        "binary": {"x": x > 0.75, "labels": labels, "label_names": names},
        "swapped": {"x": x, "labels": labels[:, ::-1], "label_names": names[::-1]},
        "two": {"x": x, "labels": labels[:, :1], "label_names": names[:1]},
        "other": {"x": x, "labels": labels, "label_names": np.array(["a", "b", "c"])},
        "unlabelled": {"x": x},
    }
    for name, arrays in contents.items():
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


@pytest.fixture(scope="module")
def runs(place):
    """Kind of data → a run with two labelled factors and a free one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "draw", lambda *_: None)
        for kind in ("grey", "binary"):
            options = {"labels": 1.0, "factors": "2,3,2", "label_names": "side,tone", "joint_iterations": 60}
            status, _, err = train(place / kind, place / f"{kind}.npz", **options)
            assert status == 0, err
        assert train(place / "unsupervised", place / "grey.npz", factors="2")[0] == 0
    return {name: place / name for name in ("grey", "binary", "unsupervised")}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(judging, "train_judge", partial(train_judge, iterations=60))


@pytest.fixture
def run(runs, tmp_path):
    """A copy of the run on greys, without a judge."""
    shutil.copytree(runs["grey"], tmp_path / "run", ignore=shutil.ignore_patterns("judge"))
    return tmp_path / "run"


def judge(run, *arguments):
    """The object that ``judge`` prints, on one line."""
    out = succeed("judge", run, "--samples", 40, "--edits", 20, "--sheet", 12, *arguments)
    assert out.count("\n") == 1
    return json.loads(out)


@pytest.mark.parametrize("kind", ["grey", "binary"])
def test_judge(runs, kind):
    result = judge(runs[kind], "--split", "train")
    assert set(result) == {"judge", "generated", "reconstructed", "edited", "samples", "edits"}
    assert set(result["judge"]) == set(result["reconstructed"]) == {"side", "tone", "third"}
    assert set(result["generated"]) == set(result["edited"]) == {"side", "tone"}
    for edited in result["edited"].values():
        assert set(edited) == {"flipped", "kept", "kept_least", "kept_of_original"}
        assert all(0 <= value <= 1 for value in edited.values())
    assert (result["samples"], result["edits"]) == (40, 20)
    assert result["judge"]["side"] == 1.0
    assert judge(runs[kind], "--split", "train") == result
    assert judge(runs[kind], "--split", "train", "--seed", 1) != result


def test_the_judge_is_kept_and_reused(run, place, monkeypatch):
    first = judge(run)
    dataset = load(str(place / "grey.npz"))
    expert = load_judge(run / "judge")
    alone = train_judge(dataset.train, (2, 3, 2), seed=judging.JUDGE_SEED, iterations=60)
    assert all(torch.equal(a, b) for a, b in zip(expert.parameters(), alone.parameters(), strict=True))
    x, labels = whole(dataset.test)
    assert list(first["judge"].values()) == expert.accuracy(x, labels).tolist()
    monkeypatch.setattr(judging, "train_judge", None)
    assert judge(run) == first


def test_values_that_the_judge_never_saw_are_left_out(run, place, tmp_path):
    with np.load(place / "grey.npz") as arrays:
        contents = dict(arrays)
    labels = contents["labels"].copy()
    results = []
    for side, third in ((5, 9), (-1, -1)):
        labels[:7, 0], labels[7:9, 2] = side, third
        np.savez(tmp_path / "new.npz", **contents | {"labels": labels})
        options = ("--samples", 5, "--edits", 20, "--sheet", 0, "--data", tmp_path / "new.npz")
        status, out, err = command("judge", run, *options)
        assert status == 0
        results.append((json.loads(out), err.splitlines()))
    (found, told), (expected, nothing) = results
    assert found == expected and not nothing
    assert told == [
        "left out 7 points whose 'side' is '5': training had 0, 1",
        "left out 2 points whose 'third' is '9': training had 0, 1",
    ]


def test_a_file_goes_by_the_names_of_its_labels(run, place):
    result = judge(run, "--data", place / "grey.npz")
    assert judge(run, "--data", place / "swapped.npz") == result
    partly = judge(run, "--data", place / "two.npz")
    assert partly["judge"] == {"side": result["judge"]["side"], "tone": None, "third": None}


def test_edits_are_at_most_the_rows_that_there_are(run):
    assert judge(run, "--edits", 500)["edits"] == SIZE // 10


def test_sheet_and_key(run, place):
    judge(run)
    assert (run / "judge/sheet.png").read_bytes().startswith(b"\x89PNG")
    with (run / "judge/key.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["image", "side", "tone", "judged side", "judged tone"]
    assert [row["image"] for row in rows] == [str(number) for number in range(1, 13)]
    generation = judging.judged_generation(
        Run.open(run).load_model(torch.device("cpu")), load_judge(run / "judge"), 12, seed=0
    )
    assert [[int(row["side"]), int(row["tone"])] for row in rows] == generation.intended.tolist()
    assert [[int(row["judged side"]), int(row["judged tone"])] for row in rows] == generation.judged.tolist()


def test_the_sheet_shows_what_the_judge_saw(run, monkeypatch):
    shown = []
    monkeypatch.setattr(judging.figures, "save", lambda *_: None)
    monkeypatch.setattr(judging.figures, "blind_sheet", lambda images, columns: shown.append(images))
    judge(run)
    model = Run.open(run).load_model(torch.device("cpu"))
    seen = judging.judged_generation(model, load_judge(run / "judge"), 12, seed=0).images
    assert shown[0] == pytest.approx((seen.numpy() + 1) / 2)


def test_values_are_called_by_their_names(run):
    opened = Run.open(run)
    named = replace(opened, recipe=replace(opened.recipe, value_names=(("left", "right"), (), ())))
    (run / "judge").mkdir()
    codes = torch.tensor([[0, 2], [1, 0]])
    judging._write_sheet(named, judging.Generation(torch.zeros(2, 16, 16), codes, codes.flip(0)))
    lines = (run / "judge/key.csv").read_text().splitlines()
    assert lines[1:] == ["1,left,2,right,0", "2,right,0,left,2"]


def test_no_sheet(run):
    judge(run, "--sheet", 0)
    assert {path.name for path in (run / "judge").iterdir()} == {"state.safetensors", "state.json"}


def failure(*arguments):
    status, out, err = command("judge", *arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    return err


def test_numbers_out_of_range(run):
    assert "samples: expected a number >= 1, got 0" in failure(run, "--samples", 0)
    assert "edits: expected a number >= 1, got 0" in failure(run, "--edits", 0)
    assert "sheet: expected a number >= 0, got -1" in failure(run, "--sheet", -1)
    assert "seed: expected a number in 0.." in failure(run, "--seed", -1)


def test_runs_that_cannot_be_judged(runs, run, place, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "draw", lambda *_: None)
    assert "has no labelled factors, so nothing can be intended" in failure(runs["unsupervised"])
    files = write_files(tmp_path)
    for name, options in (("table", {"factors": "4"}), ("binary", {"factors": "2,2", "labels": 0.5})):
        assert train(tmp_path / name, files[name], **options)[0] == 0
    assert "a judge looks at images" in failure(tmp_path / "table")
    assert "image_shape: expected (H, W) or (H, W, 3) with H and W >= 16" in failure(tmp_path / "binary")
    for name in ("unlabelled", "other"):
        message = failure(run, "--data", place / f"{name}.npz")
        assert "data: expected labels for side, tone, third, there are none" in message


def test_a_judge_of_other_data_is_refused(run, place):
    other = load(str(place / "two.npz"))
    judging.save_judge(train_judge(other.train, (2,), iterations=1), run / "judge")
    assert "was trained on other data; delete the folder" in failure(run)
    (run / "judge/state.safetensors").write_bytes(b"nonsense")
    assert "not a checkpoint of pyro_fmvae, or damaged" in failure(run)
