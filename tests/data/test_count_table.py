"""Tables of counts as observations, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from pyro_fmvae.data import CountOptions, Kind, Preprocessing
from pyro_fmvae.data.count_table import CountTable

RAW = np.array([[3.0, 7.0, 0.0], [0.0, 2.0, 9.0], [1.0, 7.0, 4.0], [5.0, 2.0, 0.0]])
NAMES = ("CD3", "donor", "NKG7")
STORED = torch.tensor([[3.0, 0.0, 1.0], [0.0, 9.0, 0.0], [1.0, 4.0, 1.0], [5.0, 0.0, 0.0]])
DONOR = CountOptions(batch_column="donor")


def fit(raw=RAW, options=DONOR, names=NAMES, levels=()):
    return CountTable.fit(iter(raw[:, None]), raw.shape, np.arange(3), options, names, levels, "cells")


def test_the_batch_goes_last_by_its_number():
    table = fit()
    assert (table.batch, table.batches, table.total) == (1, (2.0, 7.0), 5.0)  # totals 3, 9 and 5
    x = table(RAW, "cells", NAMES)
    assert x.dtype == torch.float32
    torch.testing.assert_close(x, STORED.float(), rtol=0, atol=0)
    np.testing.assert_array_equal(table.inverse(x), RAW)


def test_counts_without_batches_stay_as_they_are():
    table = fit(options=CountOptions(), names=())
    x = table(RAW.astype(np.uint8), "cells")
    np.testing.assert_array_equal(x, RAW)
    np.testing.assert_array_equal(table.inverse(x), RAW)


def test_a_run_keeps_it():
    made = Preprocessing(Kind.COUNTS, (3,), counts=fit(), column_names=NAMES, levels=((), ("a", "b"), ()))
    again = Preprocessing.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again == made
    assert (made.decoded.event_shape, made.decoded.column_names) == ((2,), ("CD3", "NKG7"))
    np.testing.assert_array_equal(made.undo(made(RAW)), RAW)
    decoded = torch.tensor([[0.5, 1.5]])
    assert made.undo(decoded) is decoded


def test_damaged_states_are_refused():
    state = fit().to_dict()
    for damage in ({"batches": ["x"]}, {"total": None}, {"options": {"batch_column": 3}}, {"batch": 0.5}):
        with pytest.raises((ValueError, TypeError)):
            CountTable.from_dict(state | damage)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (-1, "-1 in column 'NKG7' of row 2$"),
        (0.5, "0.5 .*; normalised values are no counts"),
        (np.nan, "nan"),
    ],
)
def test_what_is_no_count(value, got):
    raw = RAW.copy()
    raw[2, 2] = value
    for read in (fit, lambda raw: fit()(raw, "cells", NAMES)):
        with pytest.raises(ValueError, match=rf"cells: expected counts, whole numbers .*, got {got}"):
            read(raw)


def test_counts_that_float32_does_not_hold():
    raw = RAW.copy()
    raw[0, 0] = 2**24 + 1
    with pytest.raises(ValueError, match=r"from 0 to 16,777,216, got 1\.67772e\+07 in column 1 of row 0"):
        fit()(raw, "cells")


def test_a_row_of_zeros():
    raw = RAW * [0, 1, 1]
    with pytest.raises(ValueError, match=r"cells: expected a count in every row, but row 0 has none"):
        fit()(raw, "cells", NAMES)


def test_an_unknown_batch():
    raw = RAW.copy()
    raw[3, 1] = 4
    expected = r"cells: expected one of the training's batches, 2, 7, in column 'donor', got 4 in row 3"
    with pytest.raises(ValueError, match=expected):
        fit()(raw, "cells", NAMES)


def test_columns_that_are_not_there():
    with pytest.raises(ValueError, match=r"batch_column: expected a column of cells, but there is no 'site'"):
        fit(options=replace(DONOR, batch_column="site"))
    with pytest.raises(ValueError, match=r"cells: expected counts in column 'NKG7', got 'low'"):
        fit(levels=((), ("a",), ("low", "high")))
    with pytest.raises(ValueError, match=r"batch_column: expected columns of counts beside 'donor'"):
        fit(RAW[:, 1:2], names=("donor",))
    with pytest.raises(ValueError, match=r"cells: expected a table of counts \[n, D\], got \[4, 3, 1\]"):
        fit(RAW[..., None], CountOptions())
    many = np.column_stack([np.ones(1001), np.arange(1001), np.ones(1001)])
    with pytest.raises(ValueError, match=r"at most 1,000 batches, 'donor' has 1,001"):
        fit(many)
