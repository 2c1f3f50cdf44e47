"""The tree: a package imports only from those above it, so that a reader can stop at any layer."""

import ast
import importlib
import inspect
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import pyro_fmvae

PACKAGE = Path(__file__).resolve().parent.parent / "pyro_fmvae"

# Each may import from itself and from those before it: the library, what lies around it, and the application,
# from which `__main__` alone imports.
LAYERS = [
    *("distributions", "nn", "files", "infer", "models", "capture", "learn", "data", "evaluate", "figures"),
    "sklearn",
    *("app.version", "app.recipes", "app.runs", "app.explorer", "app.commands", "app.cli", "__main__"),
]
RANK = {name: rank for rank, name in enumerate(LAYERS)}
# Inside data: which parts each part may import. The face and the registry, on top, know them all.
PARTS_OF_DATA = {"shared": {"shared"}, "sets": {"shared", "sets"}, "own": {"shared", "own"}}
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


def part_of_data(package, name):
    """Return the part of data that a name below it belongs to: shared, sets, own, or top."""
    if name in PARTS_OF_DATA:
        return name
    module = (package / "data" / f"{name}.py").exists() and name not in ("__init__", "registry")
    return "shared" if module else "top"


def crossings_of_data(package):
    """Return one line of text for each import between parts of data that are not to know each other."""
    found = []
    for path in sorted((package / "data").rglob("*.py")):
        relative = path.relative_to(package)
        part = part_of_data(package, relative.parts[1].removesuffix(".py"))
        for line, name in imported_names(path, package) if part != "top" else ():
            target = name.removeprefix(f"{package.name}.data.")
            inside = target != name
            if inside and part_of_data(package, target.partition(".")[0]) not in PARTS_OF_DATA[part]:
                found.append(f"{relative}:{line}: {part} imports {name}")
    return found


def places(package):
    """Return the modules that define each name of a class."""
    classes = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(str(relative))
    return classes


def layer_of(parts):
    """The layer of a dotted name below the package: its first part, and the second of the application's."""
    return ".".join(parts[: 1 + (parts[0] == "app")])


def violations(package):
    """Return one line of text for each import that goes up, and for each module that is in no layer."""
    found = []
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        layer = layer_of(relative.with_suffix("").parts)
        if layer.endswith("__init__"):
            continue
        if layer not in RANK:
            found.append(f"{relative}: {layer} is in no layer")
            continue
        for line, name in imported_names(path, package):
            root, _, rest = name.partition(".")
            if root == package.name:
                target = layer_of(rest.split("."))
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


def test_what_is_captured_lies_below_capture():
    assert all(RANK[layer] < RANK["capture"] for layer in ("infer", "models"))


def test_published_sets_and_own_files_share_only_what_is_shared():
    assert crossings_of_data(PACKAGE) == []


def test_a_class_name_has_one_meaning():
    assert {name: where for name, where in places(PACKAGE).items() if len(where) > 1} == {}


def test_lowest_layers_see_only_torch_and_distributions():
    assert foreign_imports(PACKAGE) == []


@pytest.mark.parametrize("part", ["capture", "distributions", "infer", "learn", "models"])
def test_public_names_are_at_the_root_too(part):
    face = importlib.import_module(f"pyro_fmvae.{part}")
    names = {name for name in face.__all__ if not inspect.ismodule(getattr(face, name))}
    assert names <= set(pyro_fmvae.__all__)
    assert all(getattr(pyro_fmvae, name) is getattr(face, name) for name in names)


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
        ("data/files.py", "from ..app.runs import Run"),
        ("files/checkpoint.py", "from ..app.runs import fit"),
        ("learn/fitting.py", "from ..evaluate import evaluate"),
        ("evaluate/bounds.py", "from .. import figures"),
        ("figures/grid.py", "from ..app.recipes import configure"),
        ("sklearn/clusterer.py", "from ..app.recipes import configure"),
        ("app/runs/run.py", "from ..commands import train"),
        ("app/commands/training.py", "from ..cli import run_command"),
        ("infer/elbo.py", "from pyro_fmvae import FMVAE"),
        ("infer/elbo.py", "from .. import FMVAE"),
        ("infer/elbo.py", "import pyro_fmvae"),
        ("helpers.py", ""),
    ],
)
def test_checker_finds(tree, module, source):
    assert len(violations(tree(module, source))) == 1


@pytest.mark.parametrize(
    ("module", "source", "count"),
    [
        ("data/sets/mnist.py", "from pyro_fmvae.data.dataset import Split", 0),
        ("data/sets/mnist.py", "from .bars import bars", 0),
        ("data/sets/mnist.py", "from ..own.files import load_file", 1),
        ("data/own/files.py", "from pyro_fmvae.data.sets import mnist", 1),
        ("data/own/files.py", "from pyro_fmvae.data import load", 1),
        ("data/dataset.py", "from .own.files import load_file", 1),
        ("data/dataset.py", "from pyro_fmvae.data.registry import load", 1),
        ("data/registry.py", "from .sets import mnist", 0),
    ],
)
def test_checker_finds_crossings_of_data(tree, module, source, count):
    tree("data/dataset.py", "")
    assert len(crossings_of_data(tree(module, source))) == count


def test_checker_finds_names_that_are_taken_twice(tree):
    tree("data/sets/__init__.py", "class Split: pass")
    classes = places(tree("infer/sets.py", "class Split:\n    class Inner: pass"))
    assert {name: len(where) for name, where in classes.items()} == {"Split": 2, "Inner": 1}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("models/fmvae.py", "import torch\nfrom ..infer.elbo import ELBO\nfrom pyro_fmvae import nn"),
        ("infer/elbo.py", "from . import terms\nfrom .terms import kl\nimport infer, models"),
        ("app/runs/run.py", "from ...files.checkpoint import save\nfrom ...data import batches"),
        ("__main__.py", "from . import __version__\nfrom .app import cli\nfrom .figures import draw"),
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
