"""docs/equations.md names functions and tests; all of them exist, and every equation has its row."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs/equations.md").read_text(encoding="utf-8")
FUNCTIONS = sorted(set(re.findall(r"`(pyro_fmvae(?:\.\w+)+)`", TEXT)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_exists(name):
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return
    pytest.fail(f"{name} can't be imported")


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_test_exists(file, name):
    assert re.search(rf"^\s*def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.M)


def test_every_equation_has_a_row():
    cells = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("|")]
    covered = {int(number) for cell in cells for number in re.findall(r"\b\d+\b", cell)}
    assert set(range(1, 15)) <= covered


def test_every_row_of_an_equation_has_a_test():
    rows = [line for line in TEXT.splitlines() if "`pyro_fmvae." in line and line.startswith("|")]
    assert len(rows) > 30
    assert [row for row in rows if "`tests/" not in row] == []
