"""What the closing table says of a report."""

import json

import pytest

from pyro_fmvae.app.runs.closing_table import WIDTH, duration, lines, read_report

BOUND = {"n": 1200, "elbo": -3.5, "reconstruction": -1.0, "kl_z": 2.0, "kl_r": 0.5, "left_out": 0}
EYES = {
    "n": 1200,
    "accuracy": 0.9,
    "interval": [0.8815, 0.9158],
    "balanced_accuracy": 0.75,
    "macro_f1": 0.5,
    "majority": 0.25,
    "logistic_regression": None,
}
FOUND = {
    "split": "test",
    "splits": {"test": {**BOUND, "classification": {"eyes": EYES}, "clustering": {}}},
    "labelled": {"used": 80, "of": 2000},
    "summary": ["components in use: 2 of 2"],
    "warnings": ["a few words " * 20],
}


def test_the_table():
    first, summary, labelled, *table = lines(FOUND)
    assert (
        first
        == "1,200 test points, nats per point: ELBO -3.50 = reconstruction -1.00 - KL[z] 2.00 - KL[r] 0.50"
    )
    assert (summary, labelled) == ("components in use: 2 of 2", "labelled points used: 80 of 2,000 (4 %)")
    assert table[:4] == [
        "",
        "labels of test points",
        "  label      n  accuracy  95 % interval  balanced  macro F1  majority  logistic",
        "  eyes   1,200     0.900  0.881 - 0.916     0.750     0.500     0.250",
    ]
    assert max(map(len, lines(FOUND))) <= WIDTH
    assert sum(line.startswith("warning: a few words") for line in table) == 1


@pytest.mark.parametrize(
    ("used", "of", "expected"),
    [
        (34, 34, "34 of 34 (100 %)"),
        (80, 1439, "80 of 1,439 (6 %)"),
        (11, 1618, "11 of 1,618 (0.7 %)"),
        (1, 202599, "1 of 202,599 (0.0005 %)"),
    ],
)
def test_labelled_points(used, of, expected):
    assert f"labelled points used: {expected}" in lines({**FOUND, "labelled": {"used": used, "of": of}})


def test_long_names_and_large_numbers_fit():
    long = {
        f"a label with a name that is far too long {number}": {**EYES, "n": 202599} for number in range(2)
    }
    clusters = {name: {"n": 9, "factor": 12, "accuracy": 1.0, "ari": -0.25, "nmi": 0.0} for name in long}
    for measures in clusters.values():
        measures["clusters"] = {"number": 12, "ari": -0.125}
    found = {"test": {**BOUND, "classification": long, "clustering": clusters}}
    text = lines({**FOUND, "splits": {**found, "unseen": found["test"]}})
    assert max(map(len, text)) <= WIDTH
    assert (
        sum("202,599" in line for line in text) == 4 and sum(" -0.250  0.000" in line for line in text) == 4
    )
    assert sum(line.endswith("       12     -0.125") for line in text) == 4


def test_what_there_is_not_is_left_out():
    measures = {"n": 5, "left_out": 2, "elbo": None, "reconstruction": -1.0, "kl_z": None}
    text = lines({"splits": {"valid": measures}, "labelled": None, "summary": [], "warnings": []})
    (line,) = text
    assert line.startswith("5 valid points (2 left out: so far from")
    assert line.endswith("nats per point: reconstruction -1.00")


SOUND = {
    "split": "test",
    "splits": {"test": {"n": 6, "elbo": -3.0, "reconstruction": -1.5, "kl_z": 1.5, "left_out": 0}},
    "labelled": {"used": 24, "of": 48},
    "summary": [],
    "warnings": [],
}
LABEL = {"n": 6, "accuracy": 1.0}


@pytest.mark.parametrize(
    "content",
    [
        *([], "text", {}),
        *(SOUND | {"split": "valid"}, SOUND | {"labelled": 3}, SOUND | {"warnings": 1}),
        SOUND | {"splits": {"test": SOUND["splits"]["test"] | {"classification": {"side": LABEL}}}},
    ],
)
def test_an_odd_report_is_one_line(tmp_path, content):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"^run: .*report\.json is damaged \(.*\); delete it$") as raised:
        read_report(path)
    assert len(str(raised.value).splitlines()) == 1


def test_a_sound_report_and_none(tmp_path):
    path = tmp_path / "report.json"
    assert read_report(path) == {}
    path.write_text(json.dumps(SOUND))
    assert read_report(path) == SOUND
    path.write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        read_report(path)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "less than a second"),
        (59.4, "59 s"),
        (59.7, "1 min"),
        (3599, "59 min 59 s"),
        (3725, "1 h 2 min"),
        (7200, "2 h"),
    ],
)
def test_the_two_greatest_units(seconds, text):
    assert duration(seconds) == text
