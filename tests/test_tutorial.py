"""The blocks of pages that tell a story run, in their order, in one namespace."""

import re
import shlex
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch

from pyro_fmvae.app.cli import run_command
from pyro_fmvae.app.commands import training
from pyro_fmvae.app.commands.parser import Parser

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("start/tutorial.md", "of the kinds found"),
        ("concepts/comparison.md", "assignment in the model"),
        ("models/latents-of-points.md", ""),
        ("models/chains.md", ""),
        ("guides/streams.md", ""),
        ("guides/exact-posteriors.md", "jointly with 'theta'"),
        ("concepts/families.md", ""),
    ],
)
@pytest.mark.usefixtures("own_families")
def test_page_runs(page, words, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS.parent / "examples"))
    run_blocks(page)
    assert words in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("own_families")
def test_page_from_pyro_prints_its_plans(capsys):
    run_blocks("start/from-pyro.md")
    first, drawn, exact = capsys.readouterr().out.split("site  ")[1:]
    assert re.findall(r"^(\w+) .* (exact|drawn|summed out)\b", first, re.M) == [
        ("weights", "exact"),
        ("locs", "exact"),
        ("precisions", "exact"),
        ("assignment", "summed out"),
    ]
    assert "scale       transformed Normal  drawn       no closed form as scale of Normal at 'obs'" in drawn
    assert "precision   NaturalGamma      exact" in exact


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "words"),
    [
        pytest.param("start/own-table.md", r"(1[67]\d) of 178 growers are right", marks=pytest.mark.slow),
        ("start/own-pictures.md", r"\d+% of the labels are right"),
    ],
)
def test_page_on_own_data_runs(page, words, capsys, tmp_path, monkeypatch):
    """Trainings by the clock are cut to a few seconds."""
    monkeypatch.chdir(tmp_path)
    run_blocks(page, lambda text: re.sub(r"(max.minutes[ =])[\d.]+", r"\g<1>0.05", text))
    assert re.search(words, capsys.readouterr().out)


def run_blocks(page, shortened=str):
    """Run blocks of Python, cells, and the commands after ``$ pyro-fmvae`` in blocks of the console."""
    torch.set_default_dtype(torch.float32)  # what a reader has; the fixture restores the tests' own
    text = (DOCS / page).read_text(encoding="utf-8")
    namespace = {"__name__": page}
    blocks = list(
        re.finditer(r"^```(python|console|{code-cell} ipython3)\n(.*?)^```", shortened(text), re.M | re.S)
    )
    assert blocks
    for block in blocks:
        if block[1] == "console":
            for arguments in re.findall(r"^\$ pyro-fmvae (.*)$", block[2], re.M):
                words = shlex.split(arguments)
                if words[0] == "train" and Path(words[-1]).exists():  # the cells have trained it
                    parser = Parser()
                    training.command(words[1:]).add_arguments(parser)
                    parser.parse_args(words[1:])
                else:
                    assert run_command(words) == 0, arguments
            continue
        lines_before = text[: block.start(2)].count("\n")
        python = re.sub(r"^(:tags:|%).*$", "", block[2], flags=re.M)  # what only a notebook knows
        exec(compile("\n" * lines_before + python, page, "exec"), namespace)
    plt.close("all")
