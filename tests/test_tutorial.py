"""The Python blocks of pages that tell a story run, in their order, in one namespace."""

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "words"), [("tutorial.md", "of the kinds found"), ("comparison.md", "assignment in the model")]
)
def test_page_runs(page, words, capsys):
    torch.set_default_dtype(torch.float32)  # what a reader has; the fixture restores the tests' own
    text = (DOCS / page).read_text(encoding="utf-8")
    namespace = {"__name__": page}
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S))
    assert blocks
    for block in blocks:
        lines_before = text[: block.start(1)].count("\n")
        exec(compile("\n" * lines_before + block[1], page, "exec"), namespace)
    assert words in capsys.readouterr().out
