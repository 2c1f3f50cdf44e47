"""Members of exponential families in standard parameters, where torch has no such distribution."""

from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor


class StandardDistribution(TorchDistribution):
    """Base of a family's members in standard parameters, which are tensors that ``arg_constraints`` names.

    Each is kept expanded to the batch shape, with a shape of its own behind it. ``register_family`` has torch
    find the KL divergence between two members.
    """

    has_rsample = True

    @property
    def standard(self) -> tuple[Tensor, ...]:
        """The parameters in the order of the arguments, in the dtype in which they are kept."""
        return tuple(getattr(self, name) for name in self.arg_constraints)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Expand every parameter to ``batch_shape``."""
        new: Any = self._get_checked_instance(type(self), _instance)
        for name, parameter in zip(self.arg_constraints, self.standard, strict=True):
            own = parameter.shape[len(self.batch_shape) :]
            setattr(new, name, parameter.expand(*batch_shape, *own))
        TorchDistribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new
