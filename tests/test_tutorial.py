"""The Python blocks of docs/tutorial.md run, in their order, in one namespace."""

import re
from pathlib import Path

import pytest
import torch

TUTORIAL = Path(__file__).resolve().parent.parent / "docs/tutorial.md"


@pytest.mark.slow
def test_tutorial_runs(capsys):
    torch.set_default_dtype(torch.float32)  # what a reader has; the fixture restores the tests' own
    text = TUTORIAL.read_text(encoding="utf-8")
    namespace = {"__name__": "tutorial"}
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S))
    assert blocks
    for block in blocks:
        lines_before = text[: block.start(1)].count("\n")
        exec(compile("\n" * lines_before + block[1], str(TUTORIAL), "exec"), namespace)
    assert "of the kinds found" in capsys.readouterr().out
