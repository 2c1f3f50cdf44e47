import numpy as np
import pytest
import torch
from scipy.stats import skew
from sklearn.preprocessing import PowerTransformer
from torch.testing import assert_close

from pyro_fmvae.data.column_transform import DECIMALS, ColumnTransform
from pyro_fmvae.data.preprocessing import Preprocessing

RNG = np.random.default_rng(0)


def columns(n=400):
    """A symmetric column, one with a tail to the right, and one with a tail to the left."""
    tail = RNG.lognormal(size=n)
    return np.stack([RNG.normal(3, 2, n), 100 + 20 * tail, -5 * RNG.lognormal(size=n)], 1)


def test_skewed_columns_become_symmetric_and_others_stay():
    x = columns()
    powers = ColumnTransform.fit(x)
    found = powers(x)
    assert powers.number == 2 and powers.power[0] == 1
    np.testing.assert_array_equal(found[:, 0], x[:, 0])
    assert (np.abs(skew(found)) < 0.5).all()


def test_powers_are_scikit_learns_of_standardised_columns():
    x = columns()[:, 1:2]
    standard = (x - x.mean()) / x.std()
    theirs = PowerTransformer(standardize=False).fit(standard)
    powers = ColumnTransform.fit(x)
    assert powers.power == (round(theirs.lambdas_.item(), DECIMALS),)
    theirs.lambdas_ = np.array(powers.power)
    np.testing.assert_allclose(powers(x), theirs.transform(standard))


@pytest.mark.parametrize("power", [-2.0, 0.0, 0.5, 2.0, 3.5])
def test_the_inverse_undoes_it(power):
    end = 1.5 if power > 1 else -1.5  # numbers on both sides of it
    powers = ColumnTransform((1.0, 0.0), (2.0, 1.0), (power, 1.0), (end, 0.0), ((), ()))
    x = np.stack([np.linspace(-4, 6, 50), np.linspace(-1, 1, 50)], 1)
    x[3, 0] = np.nan
    back = powers.inverse(torch.from_numpy(powers(x)))
    assert_close(back, torch.from_numpy(x), equal_nan=True)
    far = powers.inverse(torch.tensor([[1e6, 0.0], [-1e6, 0.0]]).double())
    assert far.isfinite().all() and far[0, 0] > 6 > -4 > far[1, 0]


@pytest.mark.parametrize("sign", [1, -1])
def test_rows_beyond_the_range_of_training_are_not_stretched_without_limit(sign):
    x = -sign * np.exp(1.5 * RNG.standard_normal((400, 1)))  # a tail on the other side
    powers = ColumnTransform.fit(x)
    far = sign * np.array([[1e3], [1e6], [1e9]])
    found = powers(far)
    assert np.abs(found).max() < 1000  # 1e9 ** 5 without an end
    assert_close(powers.inverse(torch.from_numpy(found)), torch.from_numpy(far))
    end = powers.mean[0] + powers.std[0] * powers.end[0]
    around = powers(end + np.array([[-2e-6], [-1e-6], [0.0], [1e-6], [2e-6]]) * powers.std[0])
    assert_close(np.diff(around, axis=0) / np.diff(around, axis=0)[0], np.ones((4, 1)), rtol=1e-3, atol=0)


def test_columns_that_may_not_be_transformed():
    x = columns()
    assert ColumnTransform.fit(x, skip=[1, 2]) is None
    assert ColumnTransform.fit(x[:, :1]) is None
    assert ColumnTransform.fit(np.full((500, 1), 171.9)) is None  # its deviation is that of rounding


def test_tables_are_unskewed_and_stored():
    x = columns()
    x[::9, 1] = np.nan
    preprocessing = Preprocessing.standardizing(x, True, unskew=True)
    stored = preprocessing(x)
    assert_close(stored.nanmean(0), torch.zeros(3).float(), rtol=0, atol=1e-5)
    assert_close(preprocessing.undo(stored), torch.from_numpy(x), rtol=1e-4, atol=1e-3, equal_nan=True)
    again = Preprocessing.from_dict(preprocessing.to_dict())
    assert again == preprocessing and torch.equal(again(x).nan_to_num(9), stored.nan_to_num(9))


def test_categories_are_not_standardised():
    x = np.stack([RNG.normal(5, 2, 50), RNG.integers(0, 3, 50)], 1)
    levels = ((), ("a", "b", "c"))
    preprocessing = Preprocessing.standardizing(x, True, levels=levels, unskew=True)
    assert torch.equal(preprocessing(x)[:, 1], torch.from_numpy(x[:, 1]).float())
    assert Preprocessing.from_dict(preprocessing.to_dict()).levels == levels


def test_columns_of_few_integers_are_categories():
    x = np.stack(
        [np.tile([3.0, 7, 9, 3], 25), RNG.normal(size=100), np.arange(100) % 11, np.full(100, 2.0)], 1
    )
    x[0, 0] = np.nan
    columns_ = ColumnTransform.fit(x)
    assert columns_.coded == [0] and columns_.values[0] == (3, 7, 9) and columns_.number == 0
    coded = columns_(x)
    assert coded[1:5, 0].tolist() == [1, 2, 0, 0] and np.isnan(coded[0, 0])
    assert_close(columns_.inverse(torch.from_numpy(coded)), torch.from_numpy(x), equal_nan=True)
    preprocessing = Preprocessing.standardizing(x, True, unskew=True)
    assert preprocessing(x)[1:5, 0].tolist() == [1, 2, 0, 0]


def test_categories_are_those_of_the_whole_file_and_others_count_as_missing():
    x = np.tile([3.0, 7, 9, 3, np.nan], 40)[:, None]
    x[-1] = 8
    preprocessing = Preprocessing.standardizing(x[:150], True, column_names=("grade",), unskew=True, every=x)
    assert preprocessing.powers.values == ((3, 7, 8, 9),)
    stored = preprocessing(x)
    assert stored[-1] == 2 and stored[4].isnan()
    assert_close(preprocessing.undo(stored), torch.from_numpy(x), equal_nan=True)
    new = np.array([[7.0], [4.0], [4.0], [np.nan], [2.5]])
    assert preprocessing.unseen(new) == {"column 'grade'": {"4": 2, "2.5": 1}}
    assert preprocessing.unseen(x) == {}
    assert preprocessing(new).isnan().squeeze().tolist() == [False, True, True, True, True]
    assert Preprocessing.standardizing(x[:150], True, unskew=True, ignored=(0,), every=x).powers is None
    x[-1] = 8.5  # so the column is no longer one of integers
    assert Preprocessing.standardizing(x[:150], True, unskew=True, every=x).powers is None
    assert Preprocessing.from_dict(preprocessing.to_dict()) == preprocessing
