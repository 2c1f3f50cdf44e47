"""Adam as tensor operations on the state of torch's own, for a compiled step to have it inside."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from pyro_fmvae.capture.playback import OptimizerSnapshot, step_hooks

_UNSUPPORTED = ("amsgrad", "maximize", "differentiable")


class RecordedAdam:
    """The step of a ``torch.optim.Adam`` or ``AdamW`` (Kingma and Ba, 2015; Loshchilov and Hutter, 2019).

    Its state stays that of the optimiser, which may take the next step itself, or be saved.

    Args:
        optimizer: one that :meth:`possible` accepts.
        params: the parameters of the step; those without a state get that of a fresh optimiser, until
            :meth:`keep` says which are needed.
    """

    def __init__(self, optimizer: Optimizer, params: Sequence[Tensor]) -> None:
        self.optimizer, self._state = optimizer, optimizer.state
        self._snapshot = OptimizerSnapshot(optimizer)
        self._groups = self._snapshot.groups
        number = {p: i for i, group in enumerate(self._groups) for p in group["params"]}
        self._group_of = {p: number[p] for p in params}
        self._made = [p for p in params if not optimizer.state[p]]
        for p in self._made:
            zeros = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            count = torch.zeros((), dtype=self._dtype_of_count(p), device=p.device)
            optimizer.state[p].update({"step": count, **zeros})
        self._snapshot.take_state()

    def _dtype_of_count(self, p: Tensor) -> torch.dtype:
        """Type of a parameter's count of steps, as torch has it."""
        fused = self._groups[self._group_of[p]].get("fused")
        double = torch.get_default_dtype() == torch.float64 and not fused
        return torch.float64 if double else torch.float32

    def keep(self, params: Sequence[Tensor]) -> None:
        """Drop the state that was made for other parameters than these."""
        for p in self._made:
            if all(p is not other for other in params):
                del self._state[p]
                del self._group_of[p]
        self._made = []
        self._snapshot.take_state()

    @staticmethod
    def possible(optimizer: Optimizer | None, params: Sequence[Tensor]) -> bool:
        """True if this class can take the optimiser's step on these parameters."""
        if type(optimizer) not in (Adam, AdamW) or not params:
            return False
        assert optimizer is not None
        known = {p for group in optimizer.param_groups for p in group["params"]}
        plain = not any(group.get(flag) for group in optimizer.param_groups for flag in _UNSUPPORTED)
        begun = [p for p in params if optimizer.state.get(p)]
        together = all(optimizer.state[p]["step"].device == p.device for p in begun)
        return plain and not step_hooks(optimizer) and known.issuperset(params) and together

    def current(self, optimizer: Optimizer | None) -> bool:
        """True if the optimiser still is the one that was given, with the same state, settings and hooks."""
        return self._snapshot.holds(optimizer)

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors that the step changes, besides the parameters."""
        return [tensor for p in self._group_of for tensor in self._state[p].values()]

    @property
    def rates(self) -> list[float | Tensor]:
        """The learning rate of every group."""
        return self._snapshot.rates

    def step(self, grads: Mapping[Tensor, Tensor], rates: Sequence[Tensor], ok: Tensor | None) -> None:
        """Change parameters and state in place.

        Args:
            grads: by parameter.
            rates: learning rate of every group, scalars.
            ok: whether to take the step, a scalar; None is yes.
        """
        for p, grad in grads.items():
            number = self._group_of[p]
            group, state = self._groups[number], self._state[p]
            (beta1, beta2), decay = group["betas"], group["weight_decay"]
            decoupled = isinstance(self.optimizer, AdamW) or group.get("decoupled_weight_decay")
            start = p * (1 - rates[number] * decay).to(p) if decay and decoupled else p
            slope = grad + decay * p if decay and not decoupled else grad
            count = state["step"].double() + 1
            size = (rates[number] / (1 - beta1**count)).to(p)
            first = state["exp_avg"].lerp(slope, 1 - beta1)
            second = state["exp_avg_sq"] * beta2 + slope * slope * (1 - beta2)
            spread = second.sqrt() / (1 - beta2**count).sqrt().to(p) + group["eps"]
            new = {"step": count.to(state["step"]), "exp_avg": first, "exp_avg_sq": second}
            changes = [(p, start - size * first / spread), *((state[name], new[name]) for name in new)]
            for old, value in changes:
                old.copy_(value if ok is None else torch.where(ok, value, old))
