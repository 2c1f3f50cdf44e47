"""A small table with gaps, and a mixture of its rows after a few steps."""

from dataclasses import replace

import torch

from pyro_fmvae.learn.coordinate_ascent import ascend
from pyro_fmvae.models import ObservedMixture, TablePrior
from pyro_fmvae.models.mixing_weights import STICK_BREAKING

N, K = 30, 3
LEVELS = (0, 3, 0, 1, -1, -1)  # numbers, three categories, numbers, a column that is left out, counts
RATES = torch.tensor([1.5, 0.8]), torch.tensor([0.4, 0.6])
PRIOR = TablePrior(c0=0.7, s0=0.4, a0=1.5, b0=0.3, d0=0.6, l0=0.2, rates=RATES)
STICKS = replace(PRIOR, weights=STICK_BREAKING)


def table(missing=True):
    """Rows, two labels of each with some unknown, and responsibilities to start from."""
    torch.manual_seed(0)
    kinds = torch.arange(N) % 3
    x = torch.stack([3.0 * kinds + torch.randn(N), kinds.float(), torch.randn(N), torch.randn(N)], -1)
    x[::7, 1] = torch.nan
    if missing:
        x[::5, 0] = torch.nan
        x[3] = torch.nan
    labels = torch.stack([kinds % 2, kinds], -1)
    labels[::3, 0] = -1
    labels[::4] = -1
    gamma = torch.rand(N, K).softmax(-1).double()
    counts = torch.poisson(torch.stack([1.0 + 0.3 * kinds, torch.full((N,), 0.7)], -1))
    counts[::6, 0] = torch.nan
    counts[3] = torch.nan
    return torch.cat([x, counts], -1), labels, gamma


def fitted(full=False, steps=5, num_data=N, prior=PRIOR, start=None, **options):
    x, labels, gamma = table()
    gamma = gamma if start is None else start
    model = ObservedMixture(LEVELS, K, num_data, (2, 3), prior, full, **options)
    seen = model.observations(x, labels)
    for _ in range(steps):
        ascend(model, seen, gamma)
        gamma = model.table(seen).softmax(-1)
    return model, x, labels
