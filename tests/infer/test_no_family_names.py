"""Inference asks the families: no code under ``infer`` says which one it is dealing with."""

import ast
from pathlib import Path

import pytest

import pyro_fmvae
from pyro_fmvae.distributions import exponential_family

INFER = Path(pyro_fmvae.__file__).parent / "infer"
FAMILIES = ("dirichlet", "normalgamma", "normal_gamma", "wishart", "gaussian_table", "loc_precision")
MEMBERS = tuple(
    f"natural{name}" for name in ("beta", "gamma", "inversegamma", "normal", "multivariatenormal")
)
NAMES = FAMILIES + MEMBERS  # others are also words for something else


def mentions(source):
    """Names, attributes, arguments and imports in Python code that hold the name of a family."""
    fields = ("id", "attr", "arg", "name", "module")
    found = [getattr(node, field, None) for node in ast.walk(ast.parse(source)) for field in fields]
    words = [word for word in found if isinstance(word, str)]
    return [word for word in words if any(name in word.lower() for name in NAMES)]


def test_no_name_of_a_family():
    found = {path: mentions(path.read_text(encoding="utf-8")) for path in INFER.rglob("*.py")}
    assert found and {path: words for path, words in found.items() if words} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from pyro_fmvae.distributions import NaturalDirichlet",
        "from pyro_fmvae.distributions.normal_gamma import x",
        "import pyro_fmvae.distributions.dirichlet as d",
        "isinstance(q, dist.Dirichlet)",
        "q = NORMAL_GAMMA",
        "def f(loc_precision): pass",
        "class StandardNormalGamma: pass",
    ],
)
def test_the_checker_finds(source):
    assert len(mentions(source)) == 1


def test_the_checker_knows_the_library():
    families = set(exponential_family._NATURAL.values())
    own = [kind.__name__ for kind in families if kind.__module__.startswith("pyro_fmvae.")]
    assert len(own) == 12 and all(mentions(name) for name in own)
