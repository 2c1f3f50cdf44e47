"""Examples and pages import the library from package faces only: what a user needs is public."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import pyro_fmvae

ROOT = Path(__file__).resolve().parent.parent
FACES = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "pyro_fmvae").rglob("__init__.py")}
SCRIPTS = [*sorted((ROOT / "examples").rglob("*.py")), *sorted((ROOT / "docs").rglob("*.py"))]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
CODE_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def offered(face):
    """The public names of a package: those that it lists, and the packages inside it."""
    inside = {path.rpartition(".")[2] for path in FACES if path.rpartition(".")[0] == face}
    return inside.union(getattr(importlib.import_module(face), "__all__", []))


def behind_faces(source):
    """Return one line of text for each import of the library that its faces do not offer."""
    imports = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imports += [(node.lineno, alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imports.append((node.lineno, node.module, [alias.name for alias in node.names]))
    found = []
    for line, module, names in imports:
        if module.partition(".")[0] != "pyro_fmvae":
            continue
        if module in FACES:
            hidden = [name for name in names if name not in offered(module)]
            found += [f"{line}: {module} does not offer {name}" for name in hidden]
        else:
            found.append(f"{line}: {module} is not a package")
    return found


def test_scripts_need_faces_only():
    shown = [path for path in SCRIPTS if path != ROOT / "docs/options.py"]  # it reads the parsers themselves
    found = {path: behind_faces(path.read_text(encoding="utf-8")) for path in shown}
    assert found and {path: lines for path, lines in found.items() if lines} == {}


def test_pages_need_faces_only():
    blocks = [(path, code) for path in PAGES for code in CODE_BLOCK.findall(path.read_text(encoding="utf-8"))]
    assert blocks and [(path, line) for path, code in blocks for line in behind_faces(code)] == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import torch\nfrom pyro_fmvae import VAE, fit, data", 0),
        ("import pyro_fmvae.data\nfrom pyro_fmvae.nn import MLPEncoder", 0),
        ("from pyro_fmvae.nn.mlp import MLPEncoder", 1),
        ("import pyro_fmvae.nn.mlp", 1),
        ("from pyro_fmvae.nn import mlp", 1),
        ("def f():\n    from pyro_fmvae import nothing, VAE", 1),
    ],
)
def test_checker(source, count):
    assert len(behind_faces(source)) == count


def test_faces_have_what_they_list():
    for face in sorted(FACES):
        module = importlib.import_module(face)
        names = getattr(module, "__all__", [])
        assert len(names) == len(set(names)), face
        assert [f"{face}.{name}" for name in names if not hasattr(module, name)] == []


def test_the_root_has_every_name_without_having_imported_it():
    assert set(pyro_fmvae.__all__) <= set(dir(pyro_fmvae))
    names: dict[str, object] = {}
    exec("from pyro_fmvae import *", names)
    assert all(names[name] is getattr(pyro_fmvae, name) for name in pyro_fmvae.__all__)
    assert pyro_fmvae.AutoConjugate.__module__ == "pyro_fmvae.infer.autoguide"
    for name, module in {"distributions": "", "sklearn": "", "checkpoint": "files."}.items():
        vars(pyro_fmvae).pop(name, None)
        assert getattr(pyro_fmvae, name) is importlib.import_module(f"pyro_fmvae.{module}{name}")
    with pytest.raises(AttributeError, match="'pyro_fmvae' has no attribute 'nothing'"):
        exec("pyro_fmvae.nothing")
