"""Small models of variational sparse coding for tests."""

import torch
from torch import nn

from pyro_fmvae.distributions import BernoulliObservation, ShiftedSigmoid
from pyro_fmvae.models import (
    FixedSparsePrior,
    MixtureSparsePrior,
    PseudoInputs,
    SelectionSparsePrior,
    VariationalSparseCoding,
)
from pyro_fmvae.nn import MLPDecoder, MLPEncoder, SpikeHead
from tests.models.small import SHAPE

COMPONENTS = 3


def pseudo_inputs():
    return PseudoInputs(COMPONENTS, SHAPE, (0.0, 1.0))


PRIORS = {
    "fixed": lambda dim: FixedSparsePrior(dim, 0.3),
    "mixture": lambda dim: MixtureSparsePrior(pseudo_inputs()),
    "sharp": lambda dim: MixtureSparsePrior(pseudo_inputs(), sharpness=10.0),
    "selection": lambda dim: SelectionSparsePrior(
        pseudo_inputs(), nn.Sequential(nn.Flatten(-2), nn.Linear(6, COMPONENTS))
    ),
}


def small_sparse_model(prior="mixture", draws=None, dim=4, num_data=20, sparsity=0.2, distortion=None):
    """A model of binary x [B, 2, 3] with hidden layers of 5 units, in training mode."""
    model = VariationalSparseCoding(
        MLPEncoder(SHAPE, dim, (5,), SpikeHead),
        MLPDecoder(dim, SHAPE, 1, (5,)),
        BernoulliObservation(2),
        dim,
        num_data,
        PRIORS[prior](dim),
        draws or ShiftedSigmoid(),
        sparsity,
        distortion,
    )
    return model.to(torch.get_default_dtype())
