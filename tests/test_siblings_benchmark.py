"""examples/benchmarks/siblings.py compares like with like, and behaves."""

import copy
import json
from pathlib import Path

import pytest
import torch

from tests.scripts import imported

BENCHMARKS = Path(__file__).resolve().parent.parent / "examples" / "benchmarks"

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def s():
    with imported(BENCHMARKS, ["siblings"]) as modules:
        yield modules.siblings


@pytest.mark.parametrize("name", ["vae", "vsc"])
def test_all_methods_take_the_same_steps(s, name):
    torch.manual_seed(0)
    make, hand = s.MAKERS[name]
    start, x = make(7), s.random_images(5, 1)
    losses, moved = {}, {}
    for method in ("by hand", "captured", "SVI, eager"):
        model = copy.deepcopy(start)
        step = s.METHODS[method](model, hand)
        torch.manual_seed(3)
        losses[method] = [float(step(x)) for _ in range(2)]  # what captures a step undoes what it drew
        moved[method] = model.decoder.linear.weight - start.decoder.linear.weight
    assert losses["SVI, eager"] == pytest.approx(losses["by hand"], rel=1e-4)
    assert losses["captured"] == pytest.approx(losses["by hand"], rel=1e-4)
    for method in ("captured", "SVI, eager"):
        assert (moved[method] - moved["by hand"]).abs().max() < 0.05 * moved["by hand"].abs().max()


def test_records(s, capsys):
    s.main(["--json", "--models", "vsc", "--latents", "3", "--steps", "1", "--methods", "by hand;captured"])
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["method"], r["model"], r["J"]) for r in records] == [
        ("by hand", "vsc", 3),
        ("captured", "vsc", 3),
    ]
    assert records[0]["ratio"] == 1
    assert all(record["ms"] > 0 and record["peak_mb"] > 0 for record in records)
