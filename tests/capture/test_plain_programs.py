"""Captured steps of plain programs are eager ones, to the bit: recognition leaves tensor operations alone."""

from functools import partial

import pyro
import pytest
import torch

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.infer import AutoConjugate, ConjugateSVI, TraceConjugate_ELBO
from pyro_fmvae.optim import NaturalGradient
from tests.infer.plain_programs import PROGRAMS

TITLES = (
    "Gaussian mixture with a shared scale that is drawn",
    "stick-breaking weights",
    "linear regression",
    "hidden Markov model",
    "scaled, masked, subsampled",
)


@pytest.mark.parametrize("title", TITLES)
def test_captured_steps_are_eager_ones(title):
    case, runs = PROGRAMS[title], []
    args = case.arguments()
    for kind in (ConjugateSVI, CapturedSVI):
        pyro.set_rng_seed(1)
        guide = AutoConjugate(case.model)
        guide(*args)
        adam = partial(torch.optim.Adam, lr=0.01)
        svi = kind(case.model, guide, NaturalGradient(0.5, adam), TraceConjugate_ELBO())
        pyro.set_rng_seed(2)
        losses = [svi.step(*args) for _ in range(4)]
        runs.append((losses, [p.detach().clone() for p in guide.parameters()]))
    (eager, expected), (captured, found) = runs
    assert eager == captured and all(map(torch.equal, expected, found))
    assert len(set(eager)) == 4
