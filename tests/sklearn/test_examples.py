"""The examples in the estimators' docstrings run as they stand."""

import doctest
import re
from pathlib import Path

import numpy as np
import pytest

from pyro_fmvae import sklearn


@pytest.mark.parametrize("name", sklearn.__all__)
def test_the_example_runs(name, single_precision):
    estimator = getattr(sklearn, name)
    (example,) = doctest.DocTestFinder(recurse=False).find(estimator, name)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


def test_the_page_of_sequences_runs(single_precision):
    page = Path(__file__).resolve().parents[2] / "docs/guides/sequences-and-topics.md"
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S))
    names: dict = {}
    exec(compile(code, str(page), "exec"), names)
    order = np.argsort(names["model"].rates_[:, 0])
    assert np.mean(order.argsort()[names["path"]] == names["spell"]) > 0.97
    assert names["forecast"].mean.shape == (14, 3)


def test_the_page_runs(single_precision):
    page = Path(__file__).resolve().parents[2] / "docs/guides/estimators.md"
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S))
    names: dict = {}
    exec(compile(code.replace("max_iter=600", "max_iter=60"), str(page), "exec"), names)
    assert names["mixture"].n_components_ == 2
    assert names["detector"].predict([[0.0, 0.0], [2.5, -9.0]]).tolist() == [1, -1]
    assert names["decoded"].shape == names["X"].shape
