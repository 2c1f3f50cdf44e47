"""Captured steps of plain programs are eager ones, to the bit: recognition leaves tensor operations alone."""

from functools import partial

import pyro
import pytest
import torch

from pyro_fmvae.capture import CapturedSVI
from pyro_fmvae.infer import AutoConjugate, ConjugateSVI, TraceConjugate_ELBO
from pyro_fmvae.optim import NaturalGradient
from tests.infer.plain.mixtures import dirichlet_process_mixture, mixture_of_unknown_common_scale
from tests.infer.plain.regressions import regression_of_unknown_noise
from tests.infer.plain.sequences import poisson_hidden_markov_model
from tests.infer.plain.structure import masked_observations, subsample

ENTRIES = (
    mixture_of_unknown_common_scale,
    dirichlet_process_mixture,
    regression_of_unknown_noise,
    poisson_hidden_markov_model,
    masked_observations,
    subsample,
)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_captured_steps_are_eager_ones(entry):
    args, runs = entry.arguments(), []
    for kind in (ConjugateSVI, CapturedSVI):
        pyro.set_rng_seed(1)
        guide = AutoConjugate(entry.model)
        guide(*args)
        adam = partial(torch.optim.Adam, lr=0.01)
        svi = kind(entry.model, guide, NaturalGradient(0.5, adam), TraceConjugate_ELBO())
        pyro.set_rng_seed(2)
        losses = [svi.step(*args) for _ in range(4)]
        runs.append((losses, [p.detach().clone() for p in guide.parameters()]))
    (eager, expected), (captured, found) = runs
    assert eager == captured and all(map(torch.equal, expected, found))
    assert len(set(eager)) == 4
