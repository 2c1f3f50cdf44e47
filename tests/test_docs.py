"""docs/reference/api.md documents every face of the package, and built pages need no network."""

import ast
import configparser
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pyro_fmvae.app.commands import all_commands
from pyro_fmvae.app.recipes.registry import kinds

ROOT = Path(__file__).resolve().parent.parent
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["'](?:https?:)?//"""
    r"""|<link\b[^>]*\bhref=["'](?:https?:)?//"""
    r"""|@import\s+(?:url\()?["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
)


def test_api_page_lists_every_face():
    faces = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "pyro_fmvae").rglob("*/__init__.py")
        if "__all__" in path.read_text(encoding="utf-8")
    }
    listed = re.findall(
        r"^\.\. automodule:: (\S+)$", (ROOT / "docs/reference/api.md").read_text(encoding="utf-8"), re.M
    )
    assert len(listed) == len(set(listed)), "a module is listed twice"
    assert sorted(faces - set(listed)) == [], "missing: '.. automodule:: NAME' in docs/reference/api.md"
    assert all(importlib.util.find_spec(name) for name in listed)


def test_the_page_of_commands_lists_the_options_of_every_command_and_model():
    page = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^```\{options\} (.+)$", page, re.M))
    models = {f"train --model {name}" for name in kinds()} - {"train --model linear-sparse"}  # as max-sparse
    assert listed == {"shared", *(command.name for command in all_commands()), *models}


def test_no_docstring_opens_in_the_middle_of_a_thought():
    opening = re.compile(r"(What|Whether|Those|Of|That|The same)\b")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for path in sorted((ROOT / "pyro_fmvae").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, documented) and opening.match(ast.get_docstring(node) or ""):
                found.append(f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}")
    assert found == [], "say the plain thing first"


@pytest.mark.parametrize(
    ("text", "loads"),
    [
        ('<script defer src="https://cdn.example/mathjax.js">', True),
        ("<img alt='' src='//example.org/a.png'>", True),
        ('<link rel="stylesheet" href="http://example.org/a.css">', True),
        ("@import url(https://fonts.example/a)", True),
        ('<a href="https://pyro.ai">', False),
        ('<svg xmlns="http://www.w3.org/2000/svg">', False),
    ],
)
def test_what_loads_from_the_network(text, loads):
    assert bool(LOADED.search(text)) == loads


def test_a_built_page_loads_nothing_and_draws_its_formulas(tmp_path):
    """One page with many formulas, under the pages' own configuration."""
    pytest.importorskip("sphinx", reason="Sphinx builds the pages: pip install '.[dev]'")
    pytest.importorskip("ziamath", reason="ziamath draws formulas: pip install '.[dev]'")
    source, built = tmp_path / "source", tmp_path / "built"
    source.mkdir()
    page = (ROOT / "docs/concepts/measures.md").read_text(encoding="utf-8")
    (source / "measures.md").write_text(page, encoding="utf-8")
    options = ["-q", "-b", "html", "-c", str(ROOT / "docs"), "-D", "root_doc=measures"]
    subprocess.run([sys.executable, "-m", "sphinx", *options, str(source), str(built)], check=True)
    files = [*built.rglob("*.html"), *built.rglob("*.css")]
    assert len(files) > 2
    assert [path.name for path in files if LOADED.search(path.read_text(encoding="utf-8"))] == []
    html = (built / "measures.html").read_text(encoding="utf-8")
    formulas = len(re.findall(r"\$\$.+?\$\$|\$[^$]+\$", page, re.S))
    assert html.count('role="img"') == formulas > 20
    assert "\\(" not in re.sub(r'aria-label="[^"]*"', "", html)


def test_citation_is_of_this_version():
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == setup["metadata"]["version"]
    assert citation["repository-code"] == setup["metadata"]["url"]
