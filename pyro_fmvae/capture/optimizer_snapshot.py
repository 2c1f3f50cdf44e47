"""A torch optimiser's state, settings and hooks, which a recorded step relies on."""

from operator import is_
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from pyro_fmvae.optim.first_order import refuse_natural_parameters


class OptimizerSnapshot:
    """An optimiser with its state, settings and hooks at one time.

    Learning rates may change, as may the numbers in the tensors of its state; tensors for further parameters
    may be added.

    Args:
        optimizer: the optimiser, or None if there is nothing to optimise.
    """

    def __init__(self, optimizer: Optimizer | None) -> None:
        self._optimizer = optimizer
        self.groups = [] if optimizer is None else list(optimizer.param_groups)
        self._settings = _settings(self.groups)
        self._hooks = step_hooks(optimizer)
        self.take_state()

    def take_state(self) -> None:
        """Expect the tensors that make up the state of every parameter now."""
        self._state: Any = {} if self._optimizer is None else self._optimizer.state
        parts = ((p, part) for p, part in self._state.items() if isinstance(part, dict))
        self._parts = [(p, part, tuple(part.values())) for p, part in parts]

    def holds(self, optimizer: Optimizer | None) -> bool:
        """True if this is the same optimiser, with the same state, settings and hooks."""
        if optimizer is not self._optimizer:
            return False
        if optimizer is None:
            return True
        if step_hooks(optimizer) != self._hooks or _settings(optimizer.param_groups) != self._settings:
            return False
        return optimizer.state is self._state and self._holds_state()

    def _holds_state(self) -> bool:
        get = self._state.get
        for p, part, values in self._parts:
            if get(p) is not part or len(part) != len(values) or not all(map(is_, part.values(), values)):
                return False
        return True

    @property
    def rates(self) -> list[float | Tensor]:
        """The learning rate of every group, as it is now."""
        return [group["lr"] for group in self.groups]


def step_hooks(optimizer: Optimizer | None) -> tuple[Any, ...]:
    """Hooks that run before and after an optimiser's step: its own, and the global ones but the library's."""
    if optimizer is None:
        return ()
    given = (hook for hook in _global_optimizer_pre_hooks.items() if hook[1] is not refuse_natural_parameters)
    return (
        *(("before", *hook) for hook in given),
        *(("before", *hook) for hook in optimizer._optimizer_step_pre_hooks.items()),
        *(("after", *hook) for hook in optimizer._optimizer_step_post_hooks.items()),
        *(("after", *hook) for hook in _global_optimizer_post_hooks.items()),
    )


def _settings(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Settings of parameter groups without their learning rates, and the ids of their parameters."""
    return [
        {
            name: tuple(map(id, value)) if name == "params" else value
            for name, value in group.items()
            if name != "lr"
        }
        for group in groups
    ]
