import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from pyro_fmvae.data import Kind, PatchTransform, Preprocessing
from pyro_fmvae.data.preprocessing import in_units, rounded_units
from pyro_fmvae.data.storage import as_float

TABLE = np.array([[1.0, 5.0, 0.1], [3.0, 5.0, 0.2], [8.0, 5.0, 0.7]])


@pytest.mark.parametrize(
    "preprocessing",
    [
        Preprocessing(Kind.BINARY, (28, 28), "dynamic"),
        Preprocessing(Kind.BINARY, (28, 28), "threshold"),
        Preprocessing(Kind.IMAGE, (8, 8, 3)),
        Preprocessing.standardizing(TABLE),
        Preprocessing.standardizing(TABLE, missing=True),
        Preprocessing(Kind.REAL, (4, 5)),
        Preprocessing(Kind.PATCHES, (2, 2), patches=PatchTransform(2, 10, False, 0.3, None)),
    ],
)
def test_json_round_trip(preprocessing):
    assert Preprocessing.from_dict(json.loads(json.dumps(preprocessing.to_dict()))) == preprocessing


def test_column_names_are_stored():
    preprocessing = replace(Preprocessing.standardizing(TABLE), column_names=("a", "b", "c"))
    state = json.loads(json.dumps(preprocessing.to_dict()))
    assert Preprocessing.from_dict(state).column_names == ("a", "b", "c")


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "sound"},
        {"event_shape": 3},
        {"binarization": "often"},
        {"mean": 1.5},
        {"column_names": 3},
        {"patches": 3},
        {"patches": {}},
        None,
    ],
)
def test_a_malformed_state(change):
    state = {} if change is None else Preprocessing.standardizing(TABLE).to_dict() | change
    with pytest.raises(ValueError, match=r"preprocessing: not what to_dict\(\) writes"):
        Preprocessing.from_dict(state)


def test_only_binary_kinds_call_for_a_bernoulli():
    assert [Preprocessing(kind, (2,)).binary for kind in Kind] == [True, False, False, False, False, False]


def test_only_images_are_signed():
    assert [Preprocessing(kind, (2,)).signed for kind in Kind] == [False, True, False, False, False, False]


def test_a_table_is_undone():
    preprocessing = Preprocessing.standardizing(TABLE)
    x = preprocessing(TABLE)
    for seen in (x, x.double()):
        torch.testing.assert_close(preprocessing.undo(seen), torch.from_numpy(TABLE), atol=1e-6, rtol=1e-6)


def test_a_column_far_from_zero_keeps_its_differences():
    seconds = 1.7e9 + np.arange(100.0)[:, None]
    preprocessing = Preprocessing.standardizing(seconds)
    undone = preprocessing.undo(preprocessing(seconds))
    torch.testing.assert_close(undone, torch.from_numpy(seconds), atol=1e-4, rtol=0)


def test_real_numbers_are_left_alone():
    preprocessing = Preprocessing(Kind.REAL, (3,))
    x = preprocessing(np.array([[-1e6, np.nan, 0.5]]))
    assert x.dtype == torch.float32 and x[0, [0, 2]].tolist() == [-1e6, 0.5] and x[0, 1].isnan()
    assert preprocessing.undo(x) is x
    with pytest.raises(ValueError, match="x: expected finite numbers"):
        preprocessing(np.array([[0.0, np.inf, 1.0]]))


def test_greys_of_patches_are_expected_square_and_complete():
    preprocessing = Preprocessing(Kind.PATCHES, (2, 4), patches=PatchTransform(2, 10, True, 0.5, None))
    x = preprocessing(np.array([[[255, 0], [0, 255]]], dtype=np.uint8))
    assert x.dtype == torch.float32 and x.tolist() == [[[1, 0, 0, 1], [0, 1, 1, 0]]]
    assert preprocessing.undo(x).tolist() == [[[1, 0], [0, 1]]]
    with pytest.raises(ValueError, match=r"expected observations of shape \[2, 2\], got \[2, 4\]"):
        preprocessing(np.zeros((1, 2, 4)))
    with pytest.raises(ValueError, match=r"expected uint8 or values in \[0, 1\]"):
        preprocessing(np.full((1, 2, 2), np.nan))


@pytest.mark.parametrize("kind", [Kind.IMAGE, Kind.BINARY])
def test_pixels_are_undone(kind):
    preprocessing = Preprocessing(kind, (2,))
    raw = np.array([[0.0, 1.0], [1.0, 1.0]])
    seen = as_float(preprocessing(raw), preprocessing.signed)
    assert seen.min() == (-1 if kind is Kind.IMAGE else 0)
    torch.testing.assert_close(preprocessing.undo(seen).double(), torch.from_numpy(raw))


def test_a_table_is_standardised_and_constant_columns_are_centred():
    table = np.concatenate([TABLE, np.full((3, 1), 0.1)], axis=1)
    x = Preprocessing.standardizing(table)(table)
    assert x.dtype == torch.float32
    x = x.double()
    torch.testing.assert_close(x.mean(dim=0), torch.zeros(4).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        x.std(dim=0, unbiased=False), torch.tensor([1, 0, 1, 0]).double(), atol=1e-6, rtol=1e-6
    )


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(
    ("column", "found"),
    [
        ([1e300, 0.0, 1.0], "3.333e+299 and inf"),
        ([1e308, 1e308, 1e307], "inf and (inf|nan)"),
        ([1e39, 1e39, 1e39], "1e+39 and 1"),
        ([3e-200, 0.0, 0.0], "1e-200 and 0"),
    ],
)
def test_columns_are_standardised_within_float32(column, found, missing):
    table = np.stack([[1.0, 2.0, 4.0], column], axis=1)
    expected = "x: expected columns whose mean and standard deviation float32 holds, those of column"
    found = found.replace("+", r"\+")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=rf"^{expected} 2 are {found}$"):
            Preprocessing.standardizing(table, missing)
        with pytest.raises(ValueError, match=rf"^{expected} 'b' are {found}$"):
            Preprocessing.standardizing(table, missing, column_names=("a", "b"))


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("value", [1e300, -1e45, 1.7e308])
def test_new_numbers_are_standardised_within_float32(value, missing):
    preprocessing = Preprocessing.standardizing(0.1 * TABLE, missing, column_names=("a", "b", "c"))
    row = [0.0, 0.0, value]
    expected = "t.csv: expected numbers that float32 holds once they are standardised as in training"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=rf"^{expected}, column 'c' has others$"):
            preprocessing(np.array([row]), "t.csv")
        with pytest.raises(ValueError, match=r"column 3 has others$"):
            replace(preprocessing, column_names=())(np.array([row]))
        if missing:
            assert preprocessing(np.array([[0.0, 0.0, np.nan]])).isnan().tolist() == [[False, False, True]]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (np.array([[False, True]]), [[0, 1]]),
        (np.array([[0, 1]], dtype=np.uint8), [[0, 1 / 255]]),
        (np.array([[51, 255]], dtype=np.uint8), [[0.2, 1]]),
        (np.array([[0.25, 1.0]], dtype=np.float64), [[0.25, 1]]),
    ],
)
def test_the_scale_of_images(raw, expected):
    x = as_float(Preprocessing(Kind.IMAGE, (2,))(raw))
    torch.testing.assert_close(x, torch.tensor(expected, dtype=torch.float32))


def test_threshold():
    x = Preprocessing(Kind.BINARY, (3,), "threshold")(np.array([[127, 128, 255]], dtype=np.uint8))
    assert x.tolist() == [[False, True, True]]


def test_dynamic_draws_once_with_a_fixed_seed_and_leaves_binary_values_alone():
    grey = np.full((10_000, 2), 51, dtype=np.uint8)
    preprocessing = Preprocessing(Kind.BINARY, (2,), "dynamic")
    x = preprocessing(grey)
    assert x.dtype == torch.bool and torch.equal(x, preprocessing(grey))
    assert abs(x.float().mean() - 0.2) < 5 * 0.4 / 20_000**0.5
    assert preprocessing(np.array([[True, False]])).tolist() == [[True, False]]


@pytest.mark.parametrize("binarization", ["dynamic", "threshold"])
def test_where_greys_are_expected_uint8_0_and_1_are_refused(binarization):
    preprocessing = Preprocessing(Kind.BINARY, (2,), binarization)
    with pytest.raises(ValueError, match=r"expected greys .* maximum .* is 1; give binary pixels as bool"):
        preprocessing(np.array([[1, 0]], dtype=np.uint8))
    assert preprocessing(np.zeros((1, 2), np.uint8)).tolist() == [[False, False]]
    assert preprocessing(np.array([[1.0, 0.0]])).tolist() == [[True, False]]


def test_floats_and_uint8_that_are_binary_serve_a_binary_run():
    assert Preprocessing(Kind.BINARY, (2,))(np.array([[1, 0]], np.uint8)).tolist() == [[True, False]]
    assert Preprocessing(Kind.BINARY, (2,))(np.array([[1.0, 0.0]])).tolist() == [[True, False]]


@pytest.mark.parametrize(
    ("kind", "raw", "message"),
    [
        (Kind.IMAGE, np.zeros((1, 3)), r"x: expected observations of shape \[2\], got \[3\]"),
        (Kind.IMAGE, np.zeros((1, 2, 1)), r"x: expected observations of shape \[2\], got \[2, 1\]"),
        (
            Kind.IMAGE,
            np.array([[0.0, 1.5]]),
            r"x: expected uint8 or values in \[0, 1\], got float64 in \[0, 1.5\]",
        ),
        (Kind.IMAGE, np.array([[-1, 1]]), r"x: expected uint8 or values in \[0, 1\], got int64 in \[-1, 1\]"),
        (Kind.BINARY, np.array([[0.0, 0.5]]), "x: expected binary values, 0 or 1, but there are others"),
        (Kind.BINARY, np.array([[0, 255]], np.uint8)[:, ::-1] // 2, "x: expected binary values, 0 or 1"),
    ],
)
def test_arrays_that_do_not_fit(kind, raw, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing(kind, (2,))(raw)


def test_an_error_names_the_source():
    with pytest.raises(ValueError, match=r"new.npz: 'x': expected observations"):
        Preprocessing(Kind.TABLE, (2,), mean=(0, 0), std=(1, 1))(np.zeros((1, 3)), "new.npz: 'x'")


@pytest.mark.parametrize(
    ("low", "high", "lower", "upper"),
    [
        (-2.0, 4.0, -5.0, 7.0),
        (0.0, 10.0, 0.0, 15.0),
        (1.0, 9.0, 0.5, 13.0),
        (1990.0, 2020.0, 1975.0, 2035.0),
        (-9.0, -1.0, -13.0, -0.5),
        (3.0, 3.0, -np.finfo(float).max, np.finfo(float).max),
    ],
)
def test_bounds_are_half_a_range_beyond_what_was_seen_on_the_same_side_of_0(low, high, lower, upper):
    x = np.array([[low], [high], [low], [np.nan]])
    preprocessing = Preprocessing.standardizing(x, missing=True)
    assert (preprocessing.lower, preprocessing.upper) == ((lower,), (upper,))
    means = torch.tensor([[-1e9], [1e9]])
    if low < high:
        assert in_units(preprocessing, means).squeeze().tolist() == [lower, upper]
    np.testing.assert_allclose(in_units(preprocessing, preprocessing(x)), x)


RNG = np.random.default_rng(0)
N = 300


def decimal(values, decimals):
    """Values with so many decimals, as a reader of text makes them."""
    return np.array([float(f"{value:.{decimals}f}") for value in values])


MEASURED = np.stack(
    [
        decimal(RNG.normal(170, 9, N), 1),
        decimal(1e4 + 30 * RNG.standard_t(2, N), 2),  # some are far out
        1.7e9 + RNG.integers(0, 10**6, N),
        decimal(1e-4 * RNG.standard_normal(N), 7),
        np.full(N, 171.9),
        np.full(N, 1e-9),
        RNG.integers(0, 3, N),
        decimal(100 + 20 * RNG.lognormal(size=N), 2),  # takes a power
    ],
    1,
)
MEASURED[3, 0] = np.nan


@pytest.mark.parametrize("unskew", [False, True])
def test_rows_read_as_in_their_file(unskew):
    preprocessing = Preprocessing.standardizing(MEASURED, missing=True, unskew=unskew)
    x = preprocessing(MEASURED)
    noise = preprocessing.undo(x).numpy() != MEASURED
    assert noise[:, [0, 1, 2, 3, 7]].mean() > 0.9
    found = rounded_units(preprocessing, x)
    np.testing.assert_array_equal(found, MEASURED)
    np.testing.assert_array_equal(rounded_units(preprocessing, x[5:6]), found[5:6])


def test_a_number_moves_by_less_than_float32_does():
    preprocessing = Preprocessing.standardizing(MEASURED, missing=True)
    x = torch.from_numpy(RNG.normal(0, 3, (N, MEASURED.shape[1])))
    found, exact = rounded_units(preprocessing, x), preprocessing.undo(x).numpy()
    assert 0 < (np.abs(found - exact) / np.array(preprocessing.std)).max() < 6 * 2.0**-23 * x.abs().max()


def test_infinities_stay():
    preprocessing = Preprocessing.standardizing(MEASURED, missing=True)
    x = torch.full((1, MEASURED.shape[1]), float("inf"))
    assert (rounded_units(preprocessing, x) == np.inf).all()
