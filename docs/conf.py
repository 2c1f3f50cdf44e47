"""Sphinx configuration; the API pages document the package of this checkout, installed or not."""

import configparser
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

setup_cfg = configparser.ConfigParser(interpolation=None)
setup_cfg.read(ROOT / "setup.cfg", encoding="utf-8")

project = setup_cfg["metadata"]["name"]
author = setup_cfg["metadata"]["author"]
copyright = f"2026, {author}"
release = setup_cfg["metadata"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"{project} {release}"

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
