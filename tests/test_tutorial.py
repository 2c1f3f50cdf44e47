"""The blocks of pages that tell a story run, in their order, in one namespace."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from pyro_fmvae.cli import run_command

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("tutorial.md", "of the kinds found"),
        ("comparison.md", "assignment in the model"),
        ("latents-of-points.md", ""),
        ("streams.md", ""),
    ],
)
def test_page_runs(page, words, capsys):
    run_blocks(page)
    assert words in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("own_families")
def test_page_from_pyro_prints_its_plans(capsys):
    run_blocks("from-pyro.md")
    plans = re.findall(
        r"^```text\n(.*?)^```", (DOCS / "from-pyro.md").read_text(encoding="utf-8"), re.M | re.S
    )
    assert len(plans) == 3
    assert capsys.readouterr().out == "".join(plans)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("own-table.md", r"(1[67]\d) of 178 growers are right"),
        ("own-pictures.md", r"\d+% of the labels are right"),
    ],
)
def test_page_on_own_data_runs(page, words, capsys, tmp_path, monkeypatch):
    """Trainings by the clock are cut to a few seconds."""
    monkeypatch.chdir(tmp_path)
    run_blocks(page, lambda arguments: re.sub(r"--max-minutes \d+", "--max-minutes 0.05", arguments))
    assert re.search(words, capsys.readouterr().out)


def run_blocks(page, shortened=str):
    """Run the blocks of Python, and the commands after ``$ pyro-fmvae`` in blocks of the console."""
    torch.set_default_dtype(torch.float32)  # what a reader has; the fixture restores the tests' own
    text = (DOCS / page).read_text(encoding="utf-8")
    namespace = {"__name__": page}
    blocks = list(re.finditer(r"^```(python|console)\n(.*?)^```", text, re.M | re.S))
    assert blocks
    for block in blocks:
        if block[1] == "console":
            for arguments in re.findall(r"^\$ pyro-fmvae (.*)$", block[2], re.M):
                assert run_command(shlex.split(shortened(arguments))) == 0, arguments
            continue
        lines_before = text[: block.start(2)].count("\n")
        exec(compile("\n" * lines_before + block[2], page, "exec"), namespace)
