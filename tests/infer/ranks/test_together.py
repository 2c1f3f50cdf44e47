"""Processes that train together against one that trains alone. They are started once for all tests."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

slow = pytest.mark.slow
SCRIPT = Path(__file__).with_name("rank.py")
# A fixed point ends as soon as no mean changes by more than 1e-6; of fewer points that may be sooner.
FIXED_POINTS = ("binary EM", "binary EM, missing numbers", "gradient EM")
RUNS = ("fmvae", "vae", "bsc", "linear-sparse", "mixture")
QUICK = {
    "two": ["single precision", "labels", "linear slabs"],
    "three": ["captured", "binary EM, missing numbers", "rows", "bound"],
}
SLOW = {
    "two": [
        *("eager", "captured", "recompute, eager", "recompute, captured", "particles", "compiled"),
        *("dependence, eager", "dependence, captured"),
        *("total correlation, eager", "total correlation, captured", "binary EM", "gradient EM"),
        *("free steps, eager", "free steps, captured", "sparse codes, eager", "sparse codes, captured"),
        *RUNS,  # by the command line
    ],
    "three": [
        *("single precision", "recompute, captured", "labels", "dependence, captured", "linear slabs"),
        *("total correlation, captured", "free steps, captured", "sparse codes, captured", "gradient EM"),
    ],
}
OTHERS = {"two": ["failing, captured"], "three": ["refusals"]}
SLOW_OTHERS = {
    "two": ["failing, eager", "max slabs", "max-sparse", "vsc"],
    "three": ["failing, captured", "max slabs"],
}
SIZES = {"two": 2, "three": 3}


def started(folder, *cases):
    """Let three processes run cases, by the name of the group; returns what each of them has found."""
    names = [";".join(name for each in cases for name in each[group]) for group in SIZES]
    command = [sys.executable, str(SCRIPT), str(folder), *names]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(3)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return started(tmp_path_factory.mktemp("ranks"), QUICK, OTHERS)


@pytest.fixture(scope="module")
def all_found(tmp_path_factory):
    return started(tmp_path_factory.mktemp("ranks"), SLOW, SLOW_OTHERS)


def largest_difference(one, other):
    assert len(one) == len(other)
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(one, other, strict=True))


def assert_close_to_one(found, group, case, tolerance):
    """The numbers of all ranks are the same, and those of a single process but for rounding."""
    together = [found[rank][group][case] for rank in range(SIZES[group])]
    assert all(each == together[0] for each in together)  # to the bit
    alone, of_first = found[2]["one"][case], together[0]
    assert largest_difference(of_first["losses"], alone["losses"]) < tolerance
    assert of_first["state"].keys() == alone["state"].keys()
    for name, values in of_first["state"].items():
        assert largest_difference(values, alone["state"][name]) < tolerance, name
    assert of_first["random"] == alone["random"]  # one state of the generators is the whole truth


def pairs(cases):
    return [(group, case) for group, names in cases.items() for case in names]


def tolerance(case):
    if case in FIXED_POINTS or case == "single precision":
        return 1e-6
    if case in RUNS:
        return 1e-5  # in single precision, and of hundreds of nats
    return 1e-9 if case == "compiled" else 1e-11  # a compiler rounds otherwise


@pytest.mark.parametrize(("group", "case"), pairs(QUICK))
def test_ranks_together_get_what_one_gets(found, group, case):
    assert_close_to_one(found, group, case, tolerance(case))


@slow
@pytest.mark.parametrize(("group", "case"), pairs(SLOW))
def test_all_ways_of_training_together(all_found, group, case):
    assert_close_to_one(all_found, group, case, tolerance(case))


# The max rule has other draws. Before slabs of vsc carry information, a bias that moves the codes of data and
# of pseudo-inputs alike has no gradient but rounding, of which Adam makes whole steps.
@slow
@pytest.mark.parametrize("case", ["max-sparse", "vsc"])
def test_models_that_train_otherwise_on_ranks(all_found, case):
    first, second = (all_found[rank]["two"][case] for rank in range(2))
    assert first == second  # both have read the one checkpoint
    assert len(first["losses"]) == len(all_found[2]["one"][case]["losses"])


@slow
@pytest.mark.parametrize("group", SIZES)
def test_draws_that_depend_on_values_are_other_ones_but_the_ranks_agree(all_found, group):
    first, *others = [all_found[rank][group]["max slabs"] for rank in range(SIZES[group])]
    assert all(other == first for other in others)
    alone = all_found[2]["one"]["max slabs"]["losses"]
    assert first["losses"] != alone
    assert largest_difference(first["losses"], alone) < 0.5


def assert_all_failed(found, group, case):
    *others, last = [found[rank][group][case] for rank in range(SIZES[group])]
    kind, text, unchanged, loss = last
    assert kind == "NotFiniteError" or "invalid values" in text
    assert unchanged == "True" and math.isfinite(float(loss))  # the next step is taken as if nothing had been
    for kind, text, unchanged, other in others:
        assert kind == "AnotherRankError" and text.startswith(f"rank {len(others)}: ")
        assert (unchanged, other) == ("True", loss)


def test_what_fails_on_one_rank_fails_on_all(found):
    assert_all_failed(found, "two", "failing, captured")


@slow
@pytest.mark.parametrize(("group", "case"), [("two", "failing, eager"), ("three", "failing, captured")])
def test_what_fails_on_one_rank_fails_on_all_others(all_found, group, case):
    assert_all_failed(all_found, group, case)


def test_programs_that_cannot_be_shared_out(found):
    chosen, full, hidden, gamma, eager, normed = found[0]["three"]["refusals"]
    assert full.startswith(
        "group: expected a plate of the data, pyro.plate(..., N, subsample=x), in the program"
    )
    assert chosen.splitlines()[0] == (
        "plate 'data': expected the 2 rows of the arguments, subsample=x, got 5 others; rows that a plate "
        "chooses cannot be shared out among ranks"
    )
    assert hidden.startswith("the ranks have drawn random numbers in different ways")
    assert gamma.startswith("the step cannot be captured: standard_gamma: draws of it cannot be shared out")
    assert math.isfinite(float(eager))
    assert normed == (
        "group: 'norm' is a BatchNorm1d, whose statistics would be those of each rank's rows; normalise over "
        "something else than the batch, as GroupNorm does"
    )
