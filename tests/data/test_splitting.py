import numpy as np
import pytest

from pyro_fmvae.data.splitting import fingerprint, split_rows


@pytest.mark.parametrize(("n", "held_out"), [(3, 1), (19, 1), (20, 2), (105, 10)])
def test_every_row_is_in_one_split(n, held_out):
    train, valid, test = split_rows(n, 0, "rows")
    assert len(valid) == len(test) == held_out
    assert sorted([*train, *valid, *test]) == list(range(n))
    assert not np.array_equal(split_rows(n, 1, "rows")[0], train) or n == 3


def test_too_few_rows():
    with pytest.raises(ValueError, match="x: expected 3 rows to split into train, valid and test, got 2"):
        split_rows(2, 0, "x: expected 3 rows")
    with pytest.raises(ValueError, match=r"^x: expected 5 rows to split .*, got 4$"):
        split_rows(4, 0, "x: expected 5 rows", 5)


ROWS = np.arange(6.0).reshape(3, 2)


@pytest.mark.parametrize(
    "other", [ROWS[[1, 0, 2]], ROWS[:2], ROWS.reshape(2, 3), ROWS.astype(np.float32), ROWS + 1e-12, ROWS > 2]
)
def test_other_rows_have_another_fingerprint(other):
    assert fingerprint(other) != fingerprint(ROWS)


@pytest.mark.parametrize("rows", [ROWS, ROWS > 2, np.array(["a.png", "b/ä.png"]), np.zeros((0, 2))])
def test_equal_rows_have_an_equal_fingerprint(rows):
    assert fingerprint(rows) == fingerprint(np.asfortranarray(rows.copy()))
    assert len(fingerprint(rows)) == 64
