"""Scripts of a folder as modules. They import each other by their bare names, as scripts do."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest


@contextmanager
def imported(folder: Path, names: Sequence[str]) -> Iterator[SimpleNamespace]:
    """Import modules by name, and remove them from ``sys.modules`` afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        known = set(sys.modules)
        yield SimpleNamespace(**{name: __import__(name) for name in names})
        for name in set(sys.modules) - known:
            if (folder / f"{name}.py").is_file():
                del sys.modules[name]
