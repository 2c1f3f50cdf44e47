"""Small problems of binary sparse coding, and their states one by one."""

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor


class Binary(NamedTuple):
    """Arguments of the functions of `binary_mean_field`, in their order."""

    x: Tensor
    weight: Tensor
    logits: Tensor
    noise_precision: Tensor

    def of(self, start):
        """The problem with a single start."""
        return Binary(self.x, *(t[start : start + 1] for t in self[1:]))


def problem(starts=3, size=4, dim=5, units=6, missing=False, dtype=torch.float64):
    x = torch.randn(size, dim, dtype=dtype) + 0.5
    if missing:
        x[torch.rand(size, dim) < 0.3] = torch.nan
        x[0, 0], x[-1] = torch.nan, torch.nan
    weight = 0.7 * torch.randn(starts, dim, units, dtype=dtype) + 0.2
    logits = torch.randn(starts, units, dtype=dtype)
    return Binary(x, weight, logits, 0.5 + torch.rand(starts, dtype=dtype))


def all_states(units, dtype=torch.float64):
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=units)), dtype=dtype)


def log_joint(p, states):
    """log p(x, h) of states [K, H] by the definition of the model, [K, R, B]."""
    mean = torch.einsum("rdh,kh->krd", p.weight, states)
    error = (p.x - mean.unsqueeze(2)).square()  # [K, R, B, D]
    precision = p.noise_precision[:, None, None]
    density = 0.5 * (precision / (2 * math.pi)).log() - 0.5 * precision * error
    prior = -torch.nn.functional.softplus(-(2 * states.unsqueeze(1) - 1) * p.logits).sum(-1)
    return torch.where(p.x.isnan(), 0.0, density).sum(-1) + prior.unsqueeze(-1)
