"""What a recorded step takes for granted about a torch optimiser."""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class OptimizerSnapshot:
    """An optimiser with its state and settings at one time, but for the learning rates, which may change.

    Args:
        optimizer: the optimiser, or None if there is nothing to optimise.
    """

    def __init__(self, optimizer: Optimizer | None) -> None:
        self._optimizer = optimizer
        self._state = None if optimizer is None else optimizer.state
        self.groups = [] if optimizer is None else list(optimizer.param_groups)
        self._settings = _settings(self.groups)

    def holds(self, optimizer: Optimizer | None) -> bool:
        """Whether it still is the same optimiser, with the same state and settings."""
        if optimizer is not self._optimizer:
            return False
        if optimizer is None:
            return True
        return optimizer.state is self._state and _settings(optimizer.param_groups) == self._settings

    @property
    def rates(self) -> list[float | Tensor]:
        """The learning rate of every group, as it is now."""
        return [group["lr"] for group in self.groups]


def _settings(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Everything about parameter groups but their learning rates; of their parameters, the number and ids."""
    return [
        {
            name: tuple(map(id, value)) if name == "params" else value
            for name, value in group.items()
            if name != "lr"
        }
        for group in groups
    ]
