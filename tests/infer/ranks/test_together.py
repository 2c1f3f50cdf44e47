"""Processes that train together against one that trains alone. They are started once for all tests."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

slow = pytest.mark.slow
SCRIPT = Path(__file__).with_name("rank.py")
# Cases in which nothing is drawn that matters: ranks get what a single process gets, but for rounding.
UNDRAWN = {
    "two": ["undrawn, single precision", "undrawn, labels"],
    "three": ["undrawn, captured", "binary EM, missing numbers"],
}
SLOW_UNDRAWN = {
    "two": [
        *("undrawn, eager", "undrawn, captured", "undrawn, recompute, eager", "undrawn, recompute, captured"),
        *("undrawn, compiled", "binary EM", "gradient EM", "mixture"),
    ],
    "three": ["undrawn, eager", "undrawn, recompute, captured", "undrawn, labels", "gradient EM"],
}
DRAWN = {"two": ["captured", "fmvae"], "three": ["recompute, eager", "dependence, captured"]}
SLOW_DRAWN = {
    "two": [
        *("eager", "recompute, captured", "dependence, eager", "particles", "sparse codes, eager"),
        *("total correlation, eager", "total correlation, captured", "sparse codes, captured"),
        *("free steps, eager", "free steps, captured", "vsc", "max-sparse"),
    ],
    "three": ["captured", "total correlation, captured", "free steps, captured"],
}
OTHERS = {"two": ["failing, captured", "many_seeds"], "three": ["refusals"]}
SLOW_OTHERS = {"two": ["failing, eager"], "three": ["failing, captured"]}
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
    return started(tmp_path_factory.mktemp("ranks"), UNDRAWN, DRAWN, OTHERS)


@pytest.fixture(scope="module")
def all_found(tmp_path_factory):
    return started(tmp_path_factory.mktemp("ranks"), SLOW_UNDRAWN, SLOW_DRAWN, SLOW_OTHERS)


def largest_difference(one, other):
    assert len(one) == len(other)
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(one, other, strict=True))


def assert_equal_to_the_bit(found, group, case):
    first, *others = [found[rank][group][case] for rank in range(SIZES[group])]
    assert all(other == first for other in others)
    assert all(map(math.isfinite, first["losses"]))
    return first


def assert_close_to_one(found, group, case):
    together, alone = assert_equal_to_the_bit(found, group, case), found[2]["one"][case]
    tolerance = 1e-6 if "single" in case else 1e-9 if "compiled" in case else 1e-11
    assert largest_difference(together["losses"], alone["losses"]) < tolerance
    assert together["state"].keys() == alone["state"].keys()
    for name, values in together["state"].items():
        assert largest_difference(values, alone["state"][name]) < tolerance, name


def pairs(cases):
    return [(group, case) for group, names in cases.items() for case in names]


@pytest.mark.parametrize(("group", "case"), pairs(UNDRAWN))
def test_ranks_together_get_what_one_gets(found, group, case):
    assert_close_to_one(found, group, case)


@slow
@pytest.mark.parametrize(("group", "case"), pairs(SLOW_UNDRAWN))
def test_all_ways_of_training_together(all_found, group, case):
    assert_close_to_one(all_found, group, case)


@pytest.mark.parametrize(("group", "case"), pairs(DRAWN))
def test_ranks_that_draw_numbers_of_their_own_are_equal_to_the_bit(found, group, case):
    assert_equal_to_the_bit(found, group, case)


@slow
@pytest.mark.parametrize(("group", "case"), pairs(SLOW_DRAWN))
def test_all_ways_of_training_with_draws_are_equal_to_the_bit(all_found, group, case):
    assert_equal_to_the_bit(all_found, group, case)


def test_one_process_is_equalled_in_distribution(found):
    together, alone = (np.array(each["many_seeds"]["rows"]) for each in (found[0]["two"], found[2]["one"]))
    error = np.sqrt((together.var(0) + alone.var(0)) / len(alone))
    assert np.all(np.abs(together.mean(0) - alone.mean(0)) <= 4 * error + 1e-12)
    assert together[0, 0] != alone[0, 0]
    spreads = together[:, 0].std() / alone[:, 0].std()
    assert 0.7 < spreads < 1.4  # shares with equal draws would have correlated losses


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
    full, normed = found[0]["three"]["refusals"]
    assert full.startswith(
        "group: expected a plate of the 2 rows of a rank, pyro.plate(..., N, subsample=x), in the program"
    )
    assert normed == (
        "group: 'norm' is a BatchNorm1d, whose statistics would be those of each rank's rows; normalise over "
        "something else than the batch, as GroupNorm does"
    )
