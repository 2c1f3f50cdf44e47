import numpy as np
import pytest
import torch
from scipy.stats import skew
from sklearn.preprocessing import PowerTransformer
from torch.testing import assert_close

from pyro_fmvae.data.power_transform import PowerTransform
from pyro_fmvae.data.preprocessing import Preprocessing

RNG = np.random.default_rng(0)


def columns(n=400):
    """A symmetric column, one with a tail to the right, and one with a tail to the left."""
    tail = RNG.lognormal(size=n)
    return np.stack([RNG.normal(3, 2, n), 100 + 20 * tail, -5 * RNG.lognormal(size=n)], 1)


def test_skewed_columns_become_symmetric_and_others_stay():
    x = columns()
    powers = PowerTransform.fit(x)
    found = powers(x)
    assert powers.number == 2 and powers.power[0] == 1
    np.testing.assert_array_equal(found[:, 0], x[:, 0])
    assert (np.abs(skew(found)) < 0.5).all()


def test_powers_are_scikit_learns_of_standardised_columns():
    x = columns()[:, 1:2]
    standard = (x - x.mean()) / x.std()
    theirs = PowerTransformer(standardize=False).fit(standard)
    powers = PowerTransform.fit(x)
    assert powers.power == pytest.approx(theirs.lambdas_, abs=1e-4)
    np.testing.assert_allclose(powers(x), theirs.transform(standard), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("power", [-2.0, 0.0, 0.5, 2.0, 3.5])
def test_the_inverse_undoes_it(power):
    powers = PowerTransform((1.0, 0.0), (2.0, 1.0), (power, 1.0))
    x = np.stack([np.linspace(-4, 6, 50), np.linspace(-1, 1, 50)], 1)
    x[3, 0] = np.nan
    back = powers.inverse(torch.from_numpy(powers(x)))
    assert_close(back, torch.from_numpy(x), equal_nan=True)
    far = powers.inverse(torch.tensor([[1e6, 0.0], [-1e6, 0.0]]).double())
    assert far.isfinite().all() and far[0, 0] > 6 > -4 > far[1, 0]


def test_columns_that_may_not_be_transformed():
    x = columns()
    assert PowerTransform.fit(x, skip=[1, 2]) is None
    assert PowerTransform.fit(x[:, :1]) is None
    assert PowerTransform.fit(np.full((5, 1), 7.0)) is None


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
