"""A package imports only from those above it, so that a reader can stop at any layer."""

import ast
import importlib
import inspect
import sys
from pathlib import Path

import pytest

import pyro_fmvae

PACKAGE = Path(__file__).resolve().parent.parent / "pyro_fmvae"
LONGEST_MODULE = 300

# Each line may import from itself and from the lines above it. The last ones are the outer shell.
LAYERS = [
    {"distributions"},
    {"nn"},
    {"optim"},
    {"infer"},
    {"em"},
    {"models"},
    {"capture"},
    {"learn"},
    {"data"},
    {"checkpoint"},
    {"memory"},
    {"evaluate"},
    {"figures"},
    {"config"},
    {"checking"},
    {"defaults"},
    {"building"},
    {"codes"},
    {"runs"},
    {"commands"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
# Besides the standard library, the lowest layers see only these.
ALLOWED = {"distributions": ("torch", "pyro.distributions"), "nn": ("torch",)}


def imported_names(path, package):
    """Yield (line, dotted name) of everything that a module imports, relative imports made absolute."""
    parents = [package.name, *path.relative_to(package).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            base = [*base, node.module] if node.module else base
            for alias in node.names:
                yield node.lineno, ".".join([*base, alias.name])


def violations(package):
    """Return one line of text for each import that goes up, and for each module that is in no layer."""
    found = []
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        layer = relative.parts[0].removesuffix(".py")
        if layer == "__init__":
            continue
        if layer not in RANK:
            found.append(f"{relative}: {layer} is in no layer")
            continue
        for line, name in imported_names(path, package):
            root, _, rest = name.partition(".")
            if root == package.name:
                target = rest.partition(".")[0]
                # A name that is no module comes from the root, which imports everything: for the top only.
                if RANK.get(target, len(LAYERS) - 1) > RANK[layer]:
                    found.append(f"{relative}:{line}: {layer} imports {name}")
    return found


def foreign_imports(package):
    """Return one line of text for each third-party import that a low layer is not allowed."""
    found = []
    for layer, allowed in ALLOWED.items():
        for path in sorted((package / layer).rglob("*.py")):
            for line, name in imported_names(path, package):
                known = name.partition(".")[0] in {*sys.stdlib_module_names, package.name}
                if not known and not any(f"{name}.".startswith(f"{prefix}.") for prefix in allowed):
                    found.append(f"{path.relative_to(package)}:{line}: {layer} imports {name}")
    return found


def test_no_upward_import():
    assert violations(PACKAGE) == []


def test_lowest_layers_see_only_torch_and_distributions():
    assert foreign_imports(PACKAGE) == []


@pytest.mark.parametrize("part", ["capture", "distributions", "infer", "models", "optim"])
def test_public_names_are_at_the_root_too(part):
    face = importlib.import_module(f"pyro_fmvae.{part}")
    names = {name for name in face.__all__ if not inspect.ismodule(getattr(face, name))}
    assert names <= set(pyro_fmvae.__all__)
    assert all(getattr(pyro_fmvae, name) is getattr(face, name) for name in names)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_module_is_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_MODULE


@pytest.fixture
def tree(tmp_path):
    """Write one module of a small package, and return the package."""

    def write(module, source):
        path = tmp_path / "pyro_fmvae" / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        return tmp_path / "pyro_fmvae"

    return write


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("nn/mlp.py", "import pyro_fmvae.infer"),
        ("nn/mlp.py", "import torch, pyro_fmvae.infer.elbo as elbo"),
        ("nn/mlp.py", "from pyro_fmvae.models.fmvae import FMVAE"),
        ("nn/mlp.py", "from pyro_fmvae import models"),
        ("nn/mlp.py", "from ..models.fmvae import FMVAE"),
        ("nn/mlp.py", "from .. import models"),
        ("nn/deep/mlp.py", "from ...infer import elbo"),
        ("nn/__init__.py", "from ..infer import elbo"),
        ("nn/mlp.py", "def f():\n    from ..infer import elbo"),
        ("data/files.py", "from ..runs import Run"),
        ("checkpoint.py", "from .runs import fit"),
        ("learn/fitting.py", "from ..evaluate import evaluate"),
        ("evaluate.py", "from . import figures"),
        ("figures.py", "from .config import TrainConfig"),
        ("runs/run.py", "from ..commands import train"),
        ("commands.py", "from .cli import run_command"),
        ("infer/elbo.py", "from pyro_fmvae import FMVAE"),
        ("infer/elbo.py", "from .. import FMVAE"),
        ("infer/elbo.py", "import pyro_fmvae"),
        ("helpers.py", ""),
    ],
)
def test_checker_finds(tree, module, source):
    assert len(violations(tree(module, source))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("models/fmvae.py", "import torch\nfrom ..infer.elbo import ELBO\nfrom pyro_fmvae import nn"),
        ("infer/elbo.py", "from . import terms\nfrom .terms import kl\nimport infer, models"),
        ("runs/run.py", "from ..checkpoint import save\nfrom ..data import batches"),
        ("__main__.py", "from . import __version__, cli\nfrom .figures import draw"),
        ("__init__.py", "from .models import FMVAE\nfrom . import train"),
    ],
)
def test_checker_accepts(tree, module, source):
    assert violations(tree(module, source)) == []


@pytest.mark.parametrize(
    ("module", "source", "count"),
    [
        ("nn/mlp.py", "import math\nimport torch.nn as nn\nfrom torch import Tensor\nfrom . import mlp", 0),
        ("nn/mlp.py", "import numpy as np", 1),
        ("nn/mlp.py", "import torchvision", 1),
        ("nn/mlp.py", "from pyro import distributions", 1),
        ("distributions/mixture.py", "from pyro import distributions as dist", 0),
        ("distributions/mixture.py", "from pyro.distributions.util import broadcast_shape", 0),
        ("distributions/mixture.py", "import pyro", 1),
    ],
)
def test_checker_finds_foreign_imports(tree, module, source, count):
    assert len(foreign_imports(tree(module, source))) == count
