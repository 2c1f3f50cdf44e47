"""Refusals name the line to blame; what can be recorded is not refused."""

import copy
import re

import numpy as np
import pyro
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pyro_fmvae.capture import CaptureError, recording
from tests.capture.captured import EXACT, Plain, assert_twins, numbers, plainly, svi_for

PRIOR = pyro.distributions.Normal(torch.zeros(1, dtype=torch.float64), 1.0).expand([3]).to_event(1)


class Branching(nn.Linear):
    def forward(self, z):
        y = super().forward(z)
        return y if y.sum() > 0 else 2 * y


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * (grad.sum().item() != 0)


def library(program, z, x):
    return nn.functional.one_hot((x > 0).sum(-1)).sum() + program.decoder(z)


def changed_range(program, z, x):
    numbers = torch.arange(3)
    numbers += (x > 0).sum()
    return program.decoder(z) + sum(number.item() for number in numbers)


REFUSED = {
    "if": lambda p, z, x: p.decoder(z) if z.sum() > 0 else z,
    "item": lambda p, z, x: p.decoder(z) * z.mean().item(),
    "float": lambda p, z, x: p.decoder(z) * float(x.mean()),
    "int": lambda p, z, x: p.decoder(z) + z[int(x[0, 0] > 0)].sum(),
    "in": lambda p, z, x: p.decoder(z) * (0.5 in z),
    "equal": lambda p, z, x: p.decoder(z) * torch.equal(x, x),
    "tolist": lambda p, z, x: p.decoder(z) * z.tolist()[0][0],
    "numpy": lambda p, z, x: p.decoder(z) * float(x.numpy()[0, 0]),
    "array": lambda p, z, x: p.decoder(z) * float(np.asarray(x).mean()),
    "mask": lambda p, z, x: p.decoder(z) + z[z > 0].sum(),
    "nonzero": lambda p, z, x: p.decoder(z) + (x > 0).nonzero().sum(),
    "unique": lambda p, z, x: p.decoder(z) + x.unique().sum(),
    "list": lambda p, z, x: p.decoder(z) + torch.tensor([x[0, 0], 1.0, 2.0]),
    "new_tensor": lambda p, z, x: p.decoder(z) + x.new_tensor([[x[0, 0], 1.0, 2.0]]),
    "deepcopy": lambda p, z, x: p.decoder(z) + copy.deepcopy(x).mean(),
    "generator": lambda p, z, x: p.decoder(z) + torch.rand(3, generator=torch.Generator()),
    "backward": lambda p, z, x: Backward.apply(p.decoder(z)),
    "library": library,
    "range": changed_range,
    "plate": lambda p, z, x: p.decoder(z) + sum(x[:, [i]] for i in pyro.plate("i", 3, subsample_size=2)),
}
LINES = {
    "backward": "return grad * (grad.sum().item() != 0)",
    "range": "return program.decoder(z) + sum(number.item() for number in numbers)",
    "library": "return nn.functional.one_hot((x > 0).sum(-1)).sum() + program.decoder(z)",
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad:UserWarning")
def test_refuses_and_names_the_line(name):
    program = Plain(REFUSED[name])
    svi, x = svi_for(program), torch.randn(6, 3)
    before, random = numbers(program), torch.get_rng_state()
    with pytest.raises(CaptureError) as error:
        svi.step(x)
    message = str(error.value)
    assert f", in {__file__}, line " in message
    line = int(re.search(r"line (\d+): ", message)[1])
    text = LINES.get(name) or f'"{name}": lambda'
    with open(__file__) as file:
        assert file.readlines()[line - 1].strip().startswith(text)
    assert f"line {line}: {text}" in message
    assert message.endswith("or pass eager=True")
    assert all(torch.equal(value, before[key]) for key, value in numbers(program).items() if key in before)
    assert torch.equal(torch.get_rng_state(), random)
    assert svi.optim.others is None
    assert svi.optim.steps == 0
    svi.eager = True
    svi.step(x)


def test_names_the_line_of_a_module():
    program = Plain(plainly, Branching(2, 3))
    with pytest.raises(CaptureError, match=r"line \d+: return y if y\.sum\(\) > 0 else 2 \* y"):
        svi_for(program).step(torch.randn(6, 3))


def stored(program, z, x):
    """A distribution made beforehand, which goes on checking its values: no line of the user's is named."""
    pyro.sample("more", program.prior, obs=x[0])
    return program.decoder(z)


def stored_of_numbers(program, z, x):
    pyro.sample("more", PRIOR, obs=torch.ones(3))
    return program.decoder(z)


def test_names_a_line_of_a_library_if_there_is_no_other():
    program = Plain(stored)
    program.prior = PRIOR
    with pytest.raises(CaptureError, match=r"in .*distribution\.py, line \d+: .* replace the distrib"):
        svi_for(program).step(torch.randn(6, 3))


def masks_in_place(program, z, x):
    y = program.decoder(z).clone()
    y[x > 0] = 0.5
    return y


ACCEPTED = {
    "in place": masks_in_place,
    "dropout": lambda p, z, x: nn.functional.dropout(p.decoder(z)),
    "one_hot": lambda p, z, x: p.decoder(z) + nn.functional.one_hot((x > 0).sum(-1) % 3, 3),
    "data": lambda p, z, x: p.decoder(z) + z.data.sum(),
    "checkpoint": lambda p, z, x: checkpoint(p.decoder, z, use_reentrant=False),
    "unused noise": lambda p, z, x: (torch.rand(3), p.decoder(z))[1],
    "noise": lambda p, z, x: p.decoder(z) + torch.randn_like(x),
    "vmap": lambda p, z, x: torch.vmap(p.decoder)(z),
    "grad": lambda p, z, x: p.decoder(z) + torch.func.grad(lambda t: p.decoder(t).square().sum())(z).sum(),
    "linalg": lambda p, z, x: p.decoder(z) + torch.linalg.cholesky(torch.eye(2) + z.mT @ z).sum(),
    "iterate": lambda p, z, x: torch.stack([p.decoder(row) for row in z]),
    "plate": lambda p, z, x: p.decoder(z) + sum((i + 1) * x[:, [i]] for i in pyro.plate("columns", 3)),
    "index": lambda p, z, x: p.decoder(z) + x[torch.randperm(len(x))],
    "checks of numbers": stored_of_numbers,
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepts(name):
    assert_twins(lambda: Plain(ACCEPTED[name]), [(torch.randn(6, 3),)] * 5, EXACT)


@pytest.mark.parametrize("patience", [0.0, 1e3])
def test_says_once_that_it_takes_long(patience, monkeypatch, caplog):
    monkeypatch.setattr(recording, "PATIENCE", patience)
    x = torch.randn(4, 3)
    svi = svi_for(Plain(lambda program, z, x: program.decoder(z)))
    for _ in range(3):
        svi.step(x)
    said = [each for each in caplog.messages if each.startswith("capturing the step")]
    assert len(said) == (patience == 0)
