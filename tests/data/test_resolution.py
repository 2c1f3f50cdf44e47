"""Numbers of a table read as they did in its file, to the last digit, whatever rows come with them."""

import numpy as np
import pytest
import torch

from pyro_fmvae.data import Preprocessing
from pyro_fmvae.data.resolution import rounded_units

RNG = np.random.default_rng(0)
N = 300


def decimal(values, decimals):
    """Values with so many decimals, as a reader of text makes them."""
    return np.array([float(f"{value:.{decimals}f}") for value in values])


TABLE = np.stack(
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
TABLE[3, 0] = np.nan


@pytest.mark.parametrize("unskew", [False, True])
def test_rows_read_as_in_their_file(unskew):
    preprocessing = Preprocessing.standardizing(TABLE, missing=True, unskew=unskew)
    x = preprocessing(TABLE)
    noise = preprocessing.undo(x).numpy() != TABLE
    assert noise[:, [0, 1, 2, 3, 7]].mean() > 0.9
    found = rounded_units(preprocessing, x)
    np.testing.assert_array_equal(found, TABLE)
    np.testing.assert_array_equal(rounded_units(preprocessing, x[5:6]), found[5:6])


def test_a_number_moves_by_less_than_float32_does():
    preprocessing = Preprocessing.standardizing(TABLE, missing=True)
    x = torch.from_numpy(RNG.normal(0, 3, (N, TABLE.shape[1])))
    found, exact = rounded_units(preprocessing, x), preprocessing.undo(x).numpy()
    assert 0 < (np.abs(found - exact) / np.array(preprocessing.std)).max() < 6 * 2.0**-23 * x.abs().max()


def test_infinities_stay():
    preprocessing = Preprocessing.standardizing(TABLE, missing=True)
    x = torch.full((1, TABLE.shape[1]), float("inf"))
    assert (rounded_units(preprocessing, x) == np.inf).all()
