import numpy as np
import pytest

from pyro_fmvae.data.splitting import Splitting, fingerprint, split_fingerprint, split_rows


@pytest.mark.parametrize(("n", "held_out"), [(3, 1), (19, 1), (20, 2), (105, 10)])
def test_every_row_is_in_one_split(n, held_out):
    train, valid, test = split_rows(n, 0, "rows")
    assert len(valid) == len(test) == held_out
    assert sorted([*train, *valid, *test]) == list(range(n))
    assert not np.array_equal(split_rows(n, 1, "rows")[0], train) or n == 3


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"valid": 0.25, "test": 0.3}, (18, 10, 12)),
        ({"test": 0.0}, (36, 4, 0)),
        ({"valid": 0.0}, (36, 0, 4)),
        ({"valid": 0.001, "test": 0.0}, (39, 1, 0)),
        ({"valid": 0.29, "test": 0.58}, (6, 11, 23)),
    ],
)
def test_shares(options, sizes):
    parts = split_rows(40, 0, "rows", Splitting(**options))
    assert tuple(map(len, parts)) == sizes
    assert sorted(np.concatenate(parts)) == list(range(40))


def test_a_share_of_a_tenth_that_is_asked_for_is_the_default():
    """Runs from before the option have the splits that they had."""
    for n in (19, 20, 105):
        order = np.random.default_rng(4).permutation(n)
        held_out = n // 10
        for how in (None, Splitting(test=0.1)):
            train, valid, test = split_rows(n, 4, "rows", how)
            np.testing.assert_array_equal(np.concatenate([valid, test, train]), order)
            assert len(valid) == len(test) == held_out


def test_every_row_is_in_the_test_split_of_one_fold():
    splits = [split_rows(23, 0, "rows", Splitting(fold=f"{number}/5")) for number in range(1, 6)]
    tests = [test for _, _, test in splits]
    assert sorted(np.concatenate(tests)) == list(range(23))
    assert sorted(map(len, tests)) == [4, 4, 5, 5, 5]
    for parts in splits:
        assert sorted(np.concatenate(parts)) == list(range(23)) and len(parts[1]) == 2


LABELS = np.where(np.arange(40)[:, None] < [40, 12], 1, -1)  # the second label is known of the first 12 rows


@pytest.mark.parametrize("options", [{}, {"test": 0.0, "valid": 0.3}])
def test_rows_with_rare_labels_stay_in_training(options):
    how = Splitting(**options)
    train, *_ = split_rows(40, 0, "rows", how, how.staying(LABELS))
    assert set(range(12)) <= set(train)


@pytest.mark.parametrize("options", [{"test": 0.1}, {"fold": "1/10"}])
def test_rows_with_rare_labels_are_spent_on_a_test_split_if_asked(options):
    assert Splitting(**options).staying(LABELS) is None


def test_labels_that_are_not_rare_stay_nowhere():
    assert Splitting().staying(None) is None
    assert Splitting().staying(LABELS[:, :1]) is None
    assert Splitting().staying(LABELS[:24]) is None  # half of the rows
    assert Splitting().staying(np.full((9, 1), -1)) is None


def test_rows_with_rare_labels_are_taken_where_others_do_not_suffice():
    labels = np.array([[0, -1, -1]] * 4 + [[-1, 0, -1]] * 3 + [[-1, -1, 0]] * 3)
    how = Splitting()
    assert how.staying(labels).all()
    assert [len(part) for part in split_rows(10, 0, "rows", how, how.staying(labels))] == [8, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valid": 1.0}, "valid: expected a share in [0, 1), got 1.0"),
        ({"test": -0.1}, "test: expected a share in [0, 1), got -0.1"),
        ({"test": float("nan")}, "test: expected a share in [0, 1), got nan"),
        ({"valid": 0.5, "test": 0.5}, "valid, test: expected shares with a sum below 1, got 0.5 and 0.5"),
        ({"fold": "0/5"}, "fold: expected such as 2/5, the second of five folds, got '0/5'"),
        ({"fold": "6/5"}, "fold: expected such as 2/5, the second of five folds, got '6/5'"),
        ({"fold": "two"}, "fold: expected such as 2/5, the second of five folds, got 'two'"),
        ({"fold": "1/1"}, "fold: expected such as 2/5, the second of five folds, got '1/1'"),
        ({"fold": "1/5", "test": 0.2}, "test: a fold is the test split, so give either --fold or --test"),
        ({"fold": "1/2", "valid": 0.5}, "valid: expected a share below 0.5 beside --fold 1/2"),
    ],
)
def test_shares_that_cannot_be(options, message):
    with pytest.raises(ValueError) as error:
        Splitting(**options)
    assert str(error.value) == message


@pytest.mark.parametrize("how", [Splitting(fold="9/9"), Splitting(valid=0.4, fold="1/2")])
def test_too_few_rows_for_shares(how):
    with pytest.raises(ValueError, match="too few rows to split so; there are 3"):
        split_rows(3, 0, "rows", how)


def test_the_digest_of_a_split_tells_of_the_labels_that_stay():
    first, second = np.eye(2, dtype=bool)
    assert split_fingerprint(fingerprint(ROWS), None) == fingerprint(ROWS)
    digests = {split_fingerprint(fingerprint(ROWS), mask) for mask in (None, first, second)}
    assert len(digests) == 3


def test_too_few_rows():
    with pytest.raises(ValueError, match="x: expected 3 rows to split into train, valid and test, got 2"):
        split_rows(2, 0, "x: expected 3 rows")


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
