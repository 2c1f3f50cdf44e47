"""README's own model runs as it stands."""

import re
from pathlib import Path

import pyro
import torch

README = Path(__file__).resolve().parent.parent / "README.md"


def test_own_model_learns():
    torch.set_default_dtype(torch.float32)  # what a reader has; the fixture restores the tests' own
    (program,) = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)
    namespace = {"__name__": README.name}
    pyro.set_rng_seed(0)
    exec(compile(program, README.name, "exec"), namespace)
    svi = namespace["svi"]
    x = torch.randn(namespace["N"], namespace["X"])
    before = svi.evaluate_loss(x)
    for batch in x.split(100):
        svi.step(batch)
    assert svi.evaluate_loss(x) < before
