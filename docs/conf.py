"""Sphinx configuration; the API pages document the package of this checkout, installed or not."""

import configparser
import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

setup_cfg = configparser.ConfigParser(interpolation=None)
setup_cfg.read(ROOT / "setup.cfg", encoding="utf-8")

project = setup_cfg["metadata"]["name"]
author = setup_cfg["metadata"]["author"]
copyright = f"2026, {author}"
release = setup_cfg["metadata"]["version"]

extensions = ["formulas", "options", "myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_math_renderer = "svg"  # of docs/formulas.py: formulas are drawn without a network
exclude_patterns = ["_build"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_title = f"{project} {release}"

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Notebooks are pages that begin with `file_format: mystnb`. They are executed when the pages are built, in a
# folder of their own, and again when their code or the package has changed. An error or a warning in a cell
# fails the build; a cell whose log is not to be shown has the tag `remove-stderr`.
nb_execution_mode = "cache"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_output_stderr = "remove-warn"
nb_merge_streams = True
# tqdm would like ipywidgets, whose bars need a script from the network.
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_mock_imports = ["gradio"]  # of an extra
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"

# An attribute's docstring of the form "z to E[x | z]: images" is taken for a type, and its words for names.
suppress_warnings = ["ref.python"]


def escape_stars(app, what, name, obj, options, lines):
    """Shapes such as [*sample_shape, D] are no emphasis; those in backticks are left alone."""
    for number, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [re.sub(r"(?<=[\[ ])\*(?=\w)", r"\\*", part) for part in parts[::2]]
        lines[number] = "`".join(parts)


def outputs_of_this_package(folder):
    """The folder of what notebooks print with this package; those of other versions of it are deleted."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "pyro_fmvae").rglob("*.py")):
        digest.update(path.read_bytes())
    own = folder / digest.hexdigest()[:16]
    for other in folder.glob("*"):
        if other != own:
            shutil.rmtree(other) if other.is_dir() else other.unlink()
    return own


def skip_requests(app, what, name, obj, skip, options):
    """Skip what scikit-learn adds to estimators, whose docstrings refer to its own pages."""
    return skip or (name.startswith("set_") and name.endswith("_request")) or None


def setup(app):
    outputs = outputs_of_this_package(Path(app.outdir).parent / ".jupyter_cache")
    app.config.nb_execution_cache_path = str(outputs)
    app.connect("autodoc-process-docstring", escape_stars, priority=900)
    app.connect("autodoc-skip-member", skip_requests)
