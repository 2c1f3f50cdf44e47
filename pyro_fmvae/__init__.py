"""Deep generative models with structured priors, as Pyro programs with closed-form inference."""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# The stub says which package a name comes from. That is imported when the name is first used.
_IMPORTS = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
_HOMES = {
    each.name: node.module for node in _IMPORTS if isinstance(node, ast.ImportFrom) for each in node.names
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        home = import_module(str(_HOMES[name]))
        value = getattr(home, name) if hasattr(home, name) else import_module(f"{home.__name__}.{name}")
    elif not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
