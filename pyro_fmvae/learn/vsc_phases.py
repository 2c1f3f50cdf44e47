"""The phases of variational sparse coding: which latents are on at first, then their values too."""

from typing import Any

import torch
from torch import Tensor

from pyro_fmvae.infer.natural_gradient import NaturalGradient
from pyro_fmvae.learn.options import VSCOptions
from pyro_fmvae.learn.phase import Budget, GradientPhase
from pyro_fmvae.models.variational_sparse_coding import VariationalSparseCoding


class SparsePhase(GradientPhase):
    """All parameters under one Adam, while slabs come in and draws come closer to the step.

    A training may have several phases, each with its own learning rate; warm-up and slope go by the share of
    the whole training that is over. Tonolini et al. (2019) begin with slabs left out (λ = 0), let them in
    linearly, and only then lower the learning rate.

    Args:
        name: for records.
        model: learnt in place.
        options: learning rates, the weight of the KL divergence, which moves to 1, and ``augment_until`` are
            used, and how steps are taken. ``warm_up`` has the shares of the whole training between which the
            warm-up λ of the draws moves from 0 to 1.
        budget: of the phase.
        span: the part of the whole training that this phase is, from one share to another.
    """

    def __init__(
        self,
        name: str,
        model: VariationalSparseCoding,
        options: VSCOptions,
        budget: Budget,
        span: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__(name, options, budget, model)
        self.model, self.span = model, span
        self.kl_weight: float | Tensor = self.options.kl_weight

    def enter(self) -> None:
        """Adam over networks and prior."""
        optim = NaturalGradient(1.0, self.adam, self.model.parameters())
        self.svi = self.steps_of(self.model.model, self.model.guide, optim)

    def before_step(self, fraction: float) -> None:
        """Move warm-up, slope and KL weight and, in the second half, the learning rate."""
        super().before_step(fraction)
        draws = self.model.draws
        (before, after), (start, end) = self.span, self.options.warm_up
        over = before + fraction * (after - before)
        draws.warm_up.fill_((over - start) / (end - start) if start < over < end else float(over >= end))
        draws.sharpen(over)
        if self.options.kl_weight != 1:  # as a tensor: numbers are constants of a captured step
            device = next(self.model.parameters()).device
            self.kl_weight = torch.tensor(self.kl_weight_now(), device=device)

    @property
    def comparable(self) -> bool:
        """True once slabs carry information in full."""
        return bool(self.model.draws.warm_up == 1)

    @property
    def settled(self) -> bool:
        """True if the weight of the KL divergence is 1 throughout."""
        return bool(self.options.kl_weight == 1)

    def step(self, *batch: Any) -> Tensor:
        """One step at the present weight of the KL divergence; labels are not looked at."""
        x = self.augment(batch[0], self.options.augment_until)
        return self.svi.step_async(x, kl_weight=self.kl_weight)
