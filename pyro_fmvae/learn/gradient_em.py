"""Models learnt by EM whose M-step is a gradient step on the bound."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from pyro_fmvae.infer import ConjugateSVI, TraceConjugate_ELBO
from pyro_fmvae.infer.natural_gradient import NaturalGradient
from pyro_fmvae.learn.options import BSCOptions
from pyro_fmvae.learn.phase import Budget, GradientPhase, check_number, check_rows, first_batch
from pyro_fmvae.models.binary_sparse_coding import BinarySparseCoding


class GradientEM(GradientPhase):
    """The fixed point as E-step, one step of Adam on the bound as M-step, as in the model's source.

    The bound is that of ``TraceConjugate_ELBO`` at the fixed point, which no gradient goes through. Batches
    must carry the indices of their rows, as for :class:`StepwiseEM`.

    Args:
        model: learnt in place.
        options: learning rates and weight decay are used.
        budget: of the phase.
    """

    latents: Tensor

    def __init__(self, model: BinarySparseCoding, options: BSCOptions, budget: Budget) -> None:
        super().__init__("joint", options, budget, model)
        self.model = model

    def enter(self) -> None:
        """Adam over all parameters."""
        optim = NaturalGradient(1.0, self.adam, self.model.parameters())
        model, elbo = self.model, TraceConjugate_ELBO()
        self.svi = ConjugateSVI(model.model, model.guide, optim, elbo, group=self.group)

    def prepare(self, batches: Iterable[Any]) -> None:
        """Start from the first batch of data, as EM does.

        Raises:
            ValueError: as for :meth:`StepwiseEM.prepare`.
        """
        check_number(batches, self.model.num_data)
        parameters = self.model.em.start(first_batch(batches), 1)
        self.model.take(parameters, 0)
        (self.latents,) = self.model.em.start_latents(self.model.given(), self.model.num_data)

    def step(self, *batch: Any) -> float:
        """One fixed point and one step; returns the loss, in nats for all N points.

        Raises:
            ValueError: a batch without indices of rows.
        """
        check_rows(batch)
        x, rows = batch[0], batch[-1]
        posterior = self.model.posterior(x, self.latents[rows])
        self.latents[rows] = posterior.mean
        loss = self.svi.step(x, posterior=posterior)
        self.model.project()
        return loss

    def own_state(self) -> dict[str, Any]:
        """The latents."""
        return {"latents": self.latents.clone()}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Take over the latents."""
        self.latents = state["latents"].to(self.model.weight.device, copy=True)
