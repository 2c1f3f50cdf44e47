"""The report of trainings on data that have few labels, or splits of their own."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from pyro_fmvae.app.runs import REPORT, Run, label_measures, report
from pyro_fmvae.evaluate import reference_accuracies
from tests.small_runs import command, succeed, train

pytestmark = pytest.mark.usefixtures("single_precision")
SIZE = 60


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Tables of 60 rows: all rows have a label, or 14 do; two of these have the value 2."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    labels = np.arange(SIZE) % 2
    x = rng.normal(3.0 * labels[:, None], 1.0, (SIZE, 3))
    few = np.where(np.arange(SIZE) < 14, labels, -1)
    few[[0, 1]] = 2
    for name, column in (("all", labels), ("few", few)):
        np.savez(folder / f"{name}.npz", x=x, labels=column, label_names=np.array(["side"]))
    return {name: folder / f"{name}.npz" for name in ("all", "few")}


def trained(folder, data, **options):
    """The run, its report, and what was printed."""
    status, out, err = train(folder, data, **options)
    assert status == 0, err
    return Run.open(folder), json.loads((folder / REPORT).read_text()), out


def test_few_labels_stay_in_training(files, tmp_path):
    run, found, out = trained(tmp_path / "run", files["few"], labels=1)
    assert found["labelled"] == {"used": 14, "of": 48}
    assert "labelled points used: 14 of 48 (29 %)" in out
    assert found["splits"]["test"]["accuracy"] == {} and set(found["splits"]) == {"test"}
    (warning,) = found["warnings"]
    assert warning.startswith("no validation or test point has a known label of side; --test 0.2 tests")
    assert "warning: no validation or test point" in out
    dataset = run.load_data()
    assert (dataset.train.labels >= 0).sum() == 14 and (dataset.valid.labels == -1).all()


def test_references_of_a_rare_label_are_fitted_to_its_own_points(tmp_path, monkeypatch):
    """However few points are drawn, and however many have another label."""
    rng = np.random.default_rng(0)
    common = np.arange(SIZE) % 2
    rare = np.where(np.arange(SIZE) < 6, common, -1)
    x = rng.normal(3.0 * common[:, None], 1.0, (SIZE, 3))
    np.savez(tmp_path / "two.npz", x=x, labels=np.stack([common, rare], 1))
    monkeypatch.setattr(label_measures, "REFERENCE_POINTS", 4)
    fitted = []

    def recorded(codes, truth, *others):
        fitted.append(len(truth))
        return reference_accuracies(codes, truth, *others)

    monkeypatch.setattr(label_measures, "reference_accuracies", recorded)
    _, found, _ = trained(tmp_path / "run", tmp_path / "two.npz", labels=1, test=0, valid=0)
    assert set(found["splits"]["train"]["classification"]) == {"label0", "label1"}
    assert fitted == [4, 4]


def test_few_labels_are_tested_on_if_asked(files, tmp_path):
    run, found, out = trained(tmp_path / "run", files["few"], labels=1, test=0.5, valid=0.2)
    tested = found["splits"]["test"]
    assert (tested["n"], found["labelled"]["of"], len(run.load_data().valid)) == (30, 18, 12)
    known = int((run.load_data().test.labels >= 0).sum())
    assert found["labelled"]["used"] + tested["classification"]["side"]["n"] <= 14
    assert known == tested["classification"]["side"]["n"] > 0
    assert "labels of test points" in out


def test_labels_that_are_not_used_are_compared_in_training(files, tmp_path):
    _, found, out = trained(tmp_path / "run", files["few"])
    assert found["labelled"] is None and not found["warnings"]
    clustering = found["splits"]["train"]["clustering"]["side"]
    assert clustering["n"] == np.sum(clustering["confusion"]) == 14
    assert clustering["values"] == ["0", "1", "2"]  # texts, as those of a classification
    assert "labels of training points that no factor was trained on" in out


@pytest.mark.parametrize(
    ("options", "few"),
    [
        ({"max_minutes": 0.001, "joint_iterations": 9000}, True),
        ({"time_limit": 0.001, "joint_iterations": 9000}, True),
        ({"time_limit": 5}, False),
        ({"max_minutes": 0.001, "joint_iterations": 9000, "model": "mixture"}, False),
    ],
)
def test_a_training_that_time_cuts_short_after_few_steps_warns(files, tmp_path, options, few):
    """Not one that takes all its steps, nor one in closed form, whose steps are few."""
    _, found, out = trained(tmp_path / "run", files["all"], **options)
    warnings = [text for text in found["warnings"] if text.startswith("the time was up after")]
    assert len(warnings) == few == ("has hardly learnt" in out)
    if few:
        (name,) = (f"--{name.replace('_', '-')}" for name in ("max_minutes", "time_limit") if name in options)
        assert warnings[0].endswith(f"give more {name}") and "of 9,006 steps" in warnings[0]


def test_without_test_rows_the_report_goes_by_validation_rows(files, tmp_path):
    _, found, _ = trained(tmp_path / "run", files["all"], labels=1, test=0)
    assert (found["split"], found["splits"]["valid"]["classification"]["side"]["n"]) == ("valid", 6)
    assert json.loads(succeed("evaluate", tmp_path / "run"))["n"] == 6
    status, _, err = command("evaluate", tmp_path / "run", "--split", "test")
    assert (status, err) == (2, "pyro-fmvae: error: split: the data set 'all' has no test split\n")


def test_without_other_rows_the_report_goes_by_training_rows(files, tmp_path):
    _, found, out = trained(tmp_path / "run", files["all"], labels=1, test=0, valid=0)
    assert (found["split"], found["splits"]["train"]["n"]) == ("train", SIZE)
    assert "warning: the measures are those of training points" in out
    assert json.loads(succeed("evaluate", tmp_path / "run"))["n"] == SIZE
    status, _, err = command("evaluate", tmp_path / "run", "--split", "valid")
    assert (status, err) == (2, "pyro-fmvae: error: split: the data set 'all' has no valid split\n")


def test_a_number_of_labels_for_each_value(files, tmp_path, caplog):
    run, found, out = trained(tmp_path / "run", files["few"], labels=3)
    told = "labels: fewer than 3 training points have the side '2' (2)"
    assert found["labelled"] == {"used": 8, "of": 48} and told in found["warnings"]
    assert f"warning: {told}" in out and told in caplog.messages
    assert run.config.labels == 3


@pytest.mark.parametrize("model", ["fmvae", "mixture"])
def test_one_label_for_each_value(files, tmp_path, model):
    """Values 0, 1 and 2; ``labels=1`` is all of them."""
    run, found, _ = trained(tmp_path / "run", files["few"], labels="one-per-value", model=model)
    assert found["labelled"] == {"used": 3, "of": 48}
    assert not any(text.startswith("labels:") for text in found["warnings"])
    assert run.config.labels == "one-per-value"


def test_values_that_no_tested_point_has_are_named(tmp_path):
    """59 of one class, one of the other."""
    labels = (np.arange(SIZE) == 3).astype(int)
    x = np.random.default_rng(0).normal(size=(SIZE, 3))
    np.savez(tmp_path / "rare.npz", x=x, labels=labels, label_names=["side"])
    run, found, _ = trained(tmp_path / "run", tmp_path / "rare.npz", labels=1)
    dataset = run.load_data()
    assert 1 in dataset.train.labels and 1 not in dataset.test.labels
    (warning,) = found["warnings"]
    assert warning.startswith("none of the test points has the side '1', so the measures say nothing")


def test_folds_are_tested_on_in_turn(files, tmp_path):
    rows = [
        trained(tmp_path / str(number), files["all"], fold=f"{number}/3")[0].load_data().test.x
        for number in (1, 2, 3)
    ]
    assert [len(part) for part in rows] == [20, 20, 20]


@pytest.mark.parametrize("option", ["--valid 0.2", "--test 0", "--fold 1/5"])
def test_published_splits_are_fixed(tmp_path, option):
    status, _, err = command("train", "--out", tmp_path / "run", *option.split())
    assert (status, err) == (2, "pyro-fmvae: error: valid, test, fold: the splits of 'smiley' are fixed\n")


@pytest.mark.parametrize(("side", "advised"), [(24, ""), (32, "(--image-size 16)")])
def test_pictures_are_advised_to_be_smaller_down_to_16_pixels(tmp_path, monkeypatch, side, advised):
    monkeypatch.setattr(report, "cut_short", lambda *_: True)
    config = SimpleNamespace(max_minutes=1.0, usual_steps=4700, data=str(tmp_path))
    recipe = SimpleNamespace(image=True, preprocessing=SimpleNamespace(event_shape=(side, side)))
    (line,) = report._cut_short(SimpleNamespace(config=config, recipe=recipe), 30, None)
    assert line.endswith(
        f"give more --max-minutes, or make the pictures smaller {advised}" if advised else "minutes"
    )
