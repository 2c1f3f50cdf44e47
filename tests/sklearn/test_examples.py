"""The examples in the estimators' docstrings run as they stand."""

import doctest

import pytest

from pyro_fmvae import sklearn


@pytest.mark.parametrize("name", sklearn.__all__)
def test_the_example_runs(name):
    estimator = getattr(sklearn, name)
    (example,) = doctest.DocTestFinder(recurse=False).find(estimator, name)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0
