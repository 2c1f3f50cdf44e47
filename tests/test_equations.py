"""docs/notes/equations.md names functions and tests; all of them exist, and every equation has its row."""

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs/notes/equations.md").read_text(encoding="utf-8")
FUNCTIONS = sorted(set(re.findall(r"`(pyro_fmvae(?:\.\w+)+)`", TEXT)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))


def exists(name):
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        return reduce(lambda inside, part: getattr(inside, part, None), parts[length:], found) is not None
    return False


def test_functions_exist():
    assert FUNCTIONS and [name for name in FUNCTIONS if not exists(name)] == []
    assert not exists("pyro_fmvae.nothing") and not exists("nothing")


def test_tests_exist():
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file, _ in TESTS}
    lacking = [(f, name) for f, name in TESTS if not re.search(rf"^\s*def {name}\(", texts[f], re.M)]
    assert TESTS and lacking == []


def test_every_equation_has_a_row():
    cells = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("|")]
    covered = {int(number) for cell in cells for number in re.findall(r"\b\d+\b", cell)}
    assert set(range(1, 15)) <= covered


def test_every_row_of_an_equation_has_a_test():
    rows = [line for line in TEXT.splitlines() if "`pyro_fmvae." in line and line.startswith("|")]
    assert len(rows) > 30
    assert [row for row in rows if "`tests/" not in row] == []
