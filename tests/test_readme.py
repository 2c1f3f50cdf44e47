"""README's code runs as it stands."""

import contextlib
import io
import re
from pathlib import Path

import pyro
import torch

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_code_runs():
    pyro.set_rng_seed(0)
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)
    namespace, printed = {"__name__": README.name}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in blocks:
            exec(compile(block, README.name, "exec"), namespace)
    assert namespace["losses"][-1] < namespace["losses"][0]
    means = namespace["guide"].posterior("loc")().mean.sort().values
    torch.testing.assert_close(means, torch.tensor([-5.0, 0.0, 5.0]).to(means), rtol=0, atol=0.3)
    assert re.search(r"z +optimal +summed out", printed.getvalue())
    assert set(namespace["clusters"]) == {0, 1, 2}
