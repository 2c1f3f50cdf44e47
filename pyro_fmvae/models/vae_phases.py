"""How a plain VAE is learnt: pretraining, then a joint phase without a prior to learn."""

from typing import Any

import torch
from torch import Tensor

from pyro_fmvae.infer import TraceConjugate_ELBO
from pyro_fmvae.infer.phase import Budget, Phase
from pyro_fmvae.models.learning import Learning
from pyro_fmvae.models.vae import VAE
from pyro_fmvae.optim import NaturalGradient


class VAEJoint(Phase):
    """Encoder and decoder together, the learning rate falling in the last half.

    To the networks it is what a mixture's joint phase is: a fresh Adam, the same learning rates, the same
    weight of KL[z]. After pretraining and as many iterations, a VAE is a baseline with as many updates.

    Args:
        model: what is learnt.
        learning: how; of it count the learning rates, the KL weight, and how steps are taken.
        budget: how long.
    """

    def __init__(self, model: VAE, learning: Learning, budget: Budget) -> None:
        super().__init__("joint", budget, model)
        self.model, self.learning = model, learning
        self.kl_weight: float | Tensor = learning.kl_weight
        self.augmenting = True

    def enter(self) -> None:
        """Adam over the networks."""
        optim = NaturalGradient(1.0, self.learning.optimiser, self.model.parameters())
        self.svi = self.learning.svi(self.model.model, self.model.guide, optim, TraceConjugate_ELBO())

    def before_step(self, fraction: float) -> None:
        """Move the KL weight to 1 and, in the second half, the learning rate to its end."""
        learning = self.learning
        self.augmenting = fraction < learning.augment_until
        if learning.kl_weight != 1:  # as a tensor: numbers are constants of a captured step
            weight = learning.kl_weight_at(fraction)
            self.kl_weight = torch.tensor(weight, device=next(self.model.parameters()).device)
        self.svi.optim.others.param_groups[0]["lr"] = learning.learning_rate_at(fraction)

    def step(self, *batch: Any) -> float:
        """One step at the present weight of the KL divergence; labels are not looked at."""
        x = self.learning.augment(batch[0]) if self.augmenting else batch[0]
        return self.svi.step(x, kl_weight=self.kl_weight)
