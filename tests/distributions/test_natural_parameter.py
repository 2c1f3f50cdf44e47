import copy

import pytest
import torch

from pyro_fmvae.distributions import NaturalParameter


def module_with_natural():
    module = torch.nn.Module()
    module.natural = NaturalParameter(torch.arange(3.0))
    return module


def through_state_dict(module):
    other = module_with_natural()
    other.natural.data.zero_()
    other.load_state_dict(module.state_dict())
    return other.natural


@pytest.mark.parametrize(
    "copied",
    [
        lambda module: module.natural,
        lambda module: copy.deepcopy(module).natural,
        through_state_dict,
        lambda module: copy.copy(module.natural),
    ],
    ids=["itself", "deepcopy", "state_dict", "copy"],
)
def test_natural_parameter_keeps_its_type(copied):
    natural = copied(module_with_natural())
    assert type(natural) is NaturalParameter
    assert isinstance(natural, torch.nn.Parameter)
    assert natural.dtype == torch.float64
    assert natural.requires_grad and natural.is_leaf
    assert natural.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_natural_parameter_is_a_float64_copy(dtype):
    data = torch.ones(3, dtype=dtype, requires_grad=True)
    natural = NaturalParameter(data, requires_grad=False)
    natural += 1
    assert natural.dtype == torch.float64 and not natural.requires_grad
    assert data.tolist() == [1.0] * 3
