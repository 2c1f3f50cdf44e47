"""Outside of the recipes, nothing asks which model it has: a recipe is asked instead."""

import ast
from pathlib import Path

import pytest

from pyro_fmvae import models
from pyro_fmvae.app.recipes import RECIPES

PACKAGE = Path(__file__).resolve().parent.parent.parent.parent / "pyro_fmvae"
AT_HOME = ("app/recipes", "models", "learn")  # where models are known by name
OUTSIDE = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if not path.relative_to(PACKAGE).as_posix().startswith(AT_HOME)
]
MODELS = {name for name in models.__all__ if isinstance(getattr(models, name), type)}


def names_of(node):
    return {one.id if isinstance(one, ast.Name) else one.attr for one in ast.walk(node) if is_name(one)}


def is_name(node):
    return isinstance(node, ast.Name | ast.Attribute)


def questions(source):
    """Return one line of text for each place that asks which model it has, or names one in a string."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr == "model" and "config" in names_of(node.value):
            found.append(f"{node.lineno}: the model of a configuration")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            found += [f"{node.lineno}: isinstance {name}" for name in names_of(node.args[1]) & MODELS]
        if isinstance(node, ast.Constant) and node.value in set(RECIPES):
            found.append(f"{node.lineno}: '{node.value}'")
    return found


def test_nobody_asks_which_model_it_is():
    found = {path: questions(path.read_text(encoding="utf-8")) for path in OUTSIDE}
    assert found and {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("run.config.model", 1),
        ("config.model == x", 1),
        ("trainer.model, self.model", 0),
        ("isinstance(model, VAE)", 1),
        ("isinstance(model, VAE | models.BinarySparseCoding)", 2),
        ("isinstance(x, Tensor)", 0),
        ("if name in ('bsc', 'max-sparse'): pass", 2),
        ("'a vae', 'fmvae model'", 0),
    ],
)
def test_checker(source, count):
    assert len(questions(source)) == count
