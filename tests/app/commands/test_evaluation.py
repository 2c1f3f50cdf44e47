import json
import shutil

import numpy as np
import pytest
import torch

from pyro_fmvae.app.commands import evaluation
from pyro_fmvae.app.runs.run import CONFIG, Run
from pyro_fmvae.data import Split, hide_labels
from pyro_fmvae.evaluate import dci, encode_split, leakage, linear_probe, mutual_information, neighbour_probe
from tests.small_runs import command, succeed, train_all, write_files

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def runs(files, tmp_path_factory):
    options = {
        "binary": {"labels": 0.5, "factors": "2,2,3", "label_names": "noise"},
        "table": {"factors": "4"},
        "grey": {"factors": "3,2"},
    }
    return train_all(tmp_path_factory.mktemp("runs"), files, options)


def evaluate(run, *arguments):
    return json.loads(succeed("evaluate", run, *arguments))


def test_draws_of_equation_11_are_limited_for_all_points_together(runs, monkeypatch):
    few, many = (evaluate(runs["grey"], "--num-samples", number) for number in (3, 50))
    monkeypatch.setattr(evaluation, "DRAWS", 3 * few["n"] + 1)
    limited = evaluate(runs["grey"], "--num-samples", 50)
    tight = ("collapsed", "importance_weighted", "num_samples")
    assert few["elbo"] != many["elbo"]
    assert limited["elbo"] == few["elbo"]
    assert [limited[name] for name in tight] == [many[name] for name in tight]
    monkeypatch.setattr(evaluation, "DRAWS", 1)
    assert evaluate(runs["grey"], "--num-samples", 50)["elbo"] == evaluate(runs["grey"])["elbo"]


def test_probes_add_to_what_is_printed(runs):
    plain, probed = evaluate(runs["binary"]), evaluate(runs["binary"], "--probes")
    added = {
        "leakage",
        "leakage_nonlinear",
        "leakage_of_draws",
        "disentanglement",
        "information",
        "factor_accuracy",
    }
    assert probed.keys() - plain.keys() == added
    assert {name: probed[name] for name in plain} == plain
    assert set(probed["disentanglement"]) == {"mig", "dci"}
    assert set(probed["disentanglement"]["dci"]) == {"disentanglement", "completeness", "informativeness"}
    assert list(probed["information"]) == list(probed["factor_accuracy"]) == ["noise", "factor 1", "factor 2"]
    for name in ("leakage", "leakage_nonlinear", "leakage_of_draws"):
        assert list(probed[name]) == ["noise", "side"]  # the label that was trained on comes first
        assert probed[name]["noise"]["block"] == 0
    assert evaluate(runs["binary"], "--probes", "false") == plain


def test_probes_are_those_of_the_library(runs, files):
    result = evaluate(runs["binary"], "--probes", "--data", files["binary"])
    run = Run.open(runs["binary"])
    model, dataset = run.load_model(torch.device("cpu")), run.load_data()
    with np.load(files["binary"]) as arrays:
        labels = torch.from_numpy(arrays["labels"][:, [1, 0]].astype(np.int64))
        everything = Split(torch.from_numpy(arrays["x"]).bool(), labels)
    fitted, scored = encode_split(model, dataset.train), encode_split(model, everything)
    found = leakage(fitted, scored, (0, None))
    nearest = leakage(fitted, scored, (0, None), neighbour_probe)
    draws = (encode_split(model, split, drawn=True) for split in (dataset.train, everything))
    drawn = leakage(*draws, (0, None), neighbour_probe)
    expected = {"leakage": found, "leakage_nonlinear": nearest, "leakage_of_draws": drawn}
    for name, values in expected.items():
        for j, label in enumerate(("noise", "side")):
            printed = result[name][label]
            assert printed == {
                "own": values.own[j],
                "leaked": values.leaked[j],
                "leaked_skill": values.leaked_skill[j],
                "majority": values.majority[j],
                "block": values.block[j],
            }
    information = mutual_information(scored.codes, scored.labels)
    assert result["information"]["factor 2"]["side"] == pytest.approx(information.nats[2, 1])
    assert result["disentanglement"]["mig"] == pytest.approx(information.mig)
    assert result["disentanglement"]["dci"]["completeness"] == dci(fitted, scored).completeness


def test_a_file_goes_by_the_names_of_its_labels(runs, files):
    one, other = (
        evaluate(runs["binary"], "--probes", "--data", files[name]) for name in ("binary", "reversed")
    )
    assert one["leakage"] == other["leakage"]
    assert one["information"] == other["information"]


def test_tables_and_runs_without_trained_labels(runs):
    result = evaluate(runs["table"], "--probes", "--split", "train")
    assert set(result["leakage"]["label0"]) == {"own", "leaked", "leaked_skill", "majority", "block"}
    assert list(result["information"]) == ["factor 0"]


def test_at_most_so_many_rows_are_fitted(runs, monkeypatch):
    sizes = []

    def recorded(model, split, num_rows=None, **options):
        encoded = encode_split(model, split, num_rows, **options)
        sizes.append(len(encoded.labels))
        return encoded

    monkeypatch.setattr("pyro_fmvae.app.commands.evaluation.encode_split", recorded)
    monkeypatch.setattr("pyro_fmvae.app.commands.evaluation.PROBE_ROWS", 20)
    evaluate(runs["binary"], "--probes", "--split", "train")
    assert sizes == [20, 48, 20, 48]


def test_without_labels_there_is_nothing_to_probe(runs, files):
    for arguments in ((runs["grey"],), (runs["binary"], "--data", files["unlabelled"])):
        status, out, err = command("evaluate", *arguments, "--probes")
        assert (status, out) == (2, "")
        assert "probes: expected labels in the training data and in the data at hand" in err


def test_unknown_labels_cannot_be_probed(runs, files, tmp_path):
    with np.load(files["binary"]) as archive:
        arrays = dict(archive)
    np.savez(tmp_path / "one.npz", **arrays | {"labels": np.where(arrays["labels"] == 0, 0, -1)})
    status, _, err = command("evaluate", runs["binary"], "--data", tmp_path / "one.npz", "--probes")
    assert status == 2 and "probes: expected two known values of noise or side in the data at hand" in err


def test_training_points_among_the_data_are_told(runs, files, tmp_path):
    told = "has the training points, too; without --data they are left out"
    assert told in command("evaluate", runs["binary"], "--data", files["binary"])[2]
    copied = shutil.copy(files["binary"], tmp_path / "others.npz")
    for arguments in ((), ("--data", copied)):
        assert told not in command("evaluate", runs["binary"], *arguments)[2]


def test_nothing_to_measure_is_null(runs, files, monkeypatch):
    """A property that no training row knows is left out of leakage, and null in tables."""
    load_data = Run.load_data

    def forgetful(run, data_root=None):
        dataset = load_data(run, data_root)
        dataset.train.labels[:, 1] = -1
        return dataset

    monkeypatch.setattr(Run, "load_data", forgetful)
    result = evaluate(runs["binary"], "--probes", "--data", files["binary"])
    assert list(result["leakage"]) == ["noise"]
    assert {row["side"] for row in result["factor_accuracy"].values()} == {None}


# Labels that the run was trained on, and values that it does not know


def told(run, *arguments):
    """What evaluate prints, as JSON and on standard error."""
    status, out, err = command("evaluate", run, *arguments)
    assert status == 0, err
    return json.loads(out), err


def test_references_learn_from_the_labelled_points_alone(runs, files):
    """Fitted here to codes and labels as ``encode`` and the run's choice of points give them."""
    result, err = told(runs["binary"])
    run = Run.open(runs["binary"])
    dataset, model = run.load_data(), run.load_model(torch.device("cpu"))
    known = hide_labels(dataset.train, 0.5, seed=0)[:, 0] >= 0
    assert known.sum() == 24
    with torch.no_grad():
        codes, tested = (
            model.posterior(split.observations).mean.double().numpy()
            for split in (dataset.train, dataset.test)
        )
    truth, answers = dataset.train.labels[known, 0].numpy(), dataset.test.labels[:, 0].numpy()
    commonest = int(truth.mean() > 0.5)
    found = result["classification"]["noise"]
    assert found["majority"] == np.mean(answers == commonest)
    fitted = linear_probe().fit(codes[known], truth)
    assert found["logistic_regression"] == fitted.score(tested, answers)
    assert (found["n"], found["accuracy"]) == (len(answers), result["accuracy"]["noise"])
    assert "left_out" not in result and not err


def test_without_the_training_data_there_are_no_references(runs, files, tmp_path):
    shutil.copytree(runs["binary"], tmp_path / "run")
    config = json.loads((tmp_path / "run" / CONFIG).read_text())
    (tmp_path / "run" / CONFIG).write_text(json.dumps(config | {"data": str(tmp_path / "gone.npz")}))
    result, err = told(tmp_path / "run", "--data", files["binary"])
    assert result["accuracy"] == evaluate(runs["binary"], "--data", files["binary"])["accuracy"]
    assert "majority" not in result["classification"]["noise"]
    assert err.startswith("no majority and no logistic_regression without the training data: data: ")
    assert "gone.npz does not exist" in err


def test_numbers_that_training_never_saw_are_left_out(runs, files, tmp_path):
    with np.load(files["binary"]) as arrays:
        contents = dict(arrays)
    labels = contents["labels"].astype(np.int64)
    labels[:5, 1], labels[5, 1], labels[6:8, 0] = 2, 7, -1
    np.savez(tmp_path / "new.npz", **contents | {"labels": labels})
    result, err = told(runs["binary"], "--data", tmp_path / "new.npz")
    assert result["left_out"] == {"noise": {"2": 5, "7": 1}}
    assert err.splitlines() == ["left out 6 points whose 'noise' is '2' (5), '7' (1): training had 0, 1"]
    labels[:6, 1] = -1
    np.savez(tmp_path / "known.npz", **contents | {"labels": labels})
    expected, err = told(runs["binary"], "--data", tmp_path / "known.npz")
    assert not err and {**expected, "left_out": result["left_out"]} == result
    assert (result["n"], result["classification"]["noise"]["n"]) == (60, 54)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({}, "it has no labels"),
        ({"labels": np.zeros((60, 1), int), "label_names": np.array(["shape"])}, "its labels are shape"),
    ],
)
def test_a_file_that_tells_nothing_about_the_labels(runs, files, tmp_path, contents, message):
    with np.load(files["binary"]) as arrays:
        np.savez(tmp_path / "new.npz", x=arrays["x"], **contents)
    result, err = told(runs["binary"], "--data", tmp_path / "new.npz")
    assert result["n"] == 60 and not result.get("accuracy")
    assert err == f"{tmp_path / 'new.npz'} tells nothing about noise: {message}\n"
