"""The phases of a plain VAE: by an encoder, by variational EM with free posteriors, or by both in turn."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import pyro.poutine as poutine
import torch
from torch import Tensor, nn

from pyro_fmvae.capture import CapturedFreeGaussian
from pyro_fmvae.infer import ConjugateSVI
from pyro_fmvae.infer.free_gaussian import FreeGaussian, GaussianTable
from pyro_fmvae.infer.natural_gradient import NaturalGradient
from pyro_fmvae.learn.options import VAEOptions
from pyro_fmvae.learn.phase import Budget, GradientPhase, check_number, check_rows
from pyro_fmvae.models.vae import VAE


class VAEPhase(GradientPhase):
    """A phase in which the weight of KL[z] moves to β, and the learning rate falls in the last half.

    Args:
        model: learnt in place.
        options: learning rates, weights and ``augment_until`` are used, and how steps are taken. ``beta`` is
            the final weight of the KL divergence, which moves there linearly from ``kl_weight`` (β-VAE,
            Higgins et al., 2017), and ``total_correlation`` the weight of that term within it (β-TCVAE, Chen
            et al., 2018).
        budget: of the phase.
    """

    def __init__(self, model: VAE, options: VAEOptions, budget: Budget) -> None:
        super().__init__("joint", options, budget, model)
        self.model, self.beta = model, options.beta
        self.weights: dict[str, Any] = {
            "kl_weight": options.kl_weight,
            "tc_weight": options.total_correlation,
        }

    def before_step(self, fraction: float) -> None:
        """Move the KL weight and, in the second half, the learning rates."""
        super().before_step(fraction)
        if not self.settled:  # as a tensor: numbers are constants of a captured step
            device = next(self.model.parameters()).device
            self.weights["kl_weight"] = torch.tensor(self.kl_weight_now(self.beta), device=device)
        self._slow_down(self.slowing)

    @property
    def comparable(self) -> bool:
        """True if the phase ends at the bound itself: with the weight 1 of every term."""
        return self.beta == self.weights["tc_weight"] == 1

    @property
    def settled(self) -> bool:
        """True if the weight of the KL divergence stays."""
        return bool(self.options.kl_weight == self.beta)

    @abstractmethod
    def _slow_down(self, share: float) -> None:
        """Lower further learning rates to this share of what they are at the start."""

    def _adam(self, networks: nn.Module) -> ConjugateSVI:
        """The SVI object that takes steps of Adam on the parameters of some networks."""
        optim = NaturalGradient(1.0, self.adam, networks.parameters())
        return self.steps_of(self.model.model, self.model.guide, optim)

    def _augmented(self, x: Tensor) -> Tensor:
        return self.augment(x, self.options.augment_until)


class VAEJoint(VAEPhase):
    """Encoder and decoder together.

    To the networks it is what a mixture's joint phase is: a fresh Adam, the same learning rates, the same
    weight of KL[z]. After pretraining and as many iterations, a VAE is a baseline with as many updates.
    """

    def enter(self) -> None:
        """Adam over the networks."""
        self.svi = self._adam(self.model)

    def step(self, *batch: Any) -> Tensor:
        """One step at the present weight of the KL divergence; labels are not looked at."""
        return self.svi.step_async(self._augmented(batch[0]), **self.weights)

    def _slow_down(self, share: float) -> None:
        """There are none."""


class VariationalEM(VAEPhase):
    """A phase whose E-step is free: a few gradient steps of each point's own q_i = N(m_i, s_i²).

    Their number in each iteration is ``options.free_steps``. Adam's rate at the first of them is
    ``options.free_learning_rate``: it falls within an iteration, and from one to the next as the networks'.
    """

    def __init__(self, model: VAE, options: VAEOptions, budget: Budget) -> None:
        super().__init__(model, options, budget)
        given = model, options.free_steps, options.free_learning_rate
        autocast = torch.bfloat16 if options.autocast else None
        if options.eager:
            self.free = FreeGaussian(*given, autocast=autocast)
        else:
            self.free = CapturedFreeGaussian(*given, compile=bool(options.compile), autocast=autocast)

    def take_steps(self, eager: bool = False, compile: bool = False) -> bool:
        """Choose how free steps and those of the networks are taken; free ones are captured in any case."""
        if eager or not isinstance(self.free, CapturedFreeGaussian):
            return False
        self.free.compile = compile
        return super().take_steps(compile=compile)

    def _slow_down(self, share: float) -> None:
        """Lower the learning rate of the free steps."""
        self.free.learning_rate = self.options.free_learning_rate * share


class HybridEM(VariationalEM):
    """Variational EM whose E-step starts from an encoder.

    One iteration, on one batch: q_i starts at the encoder's output and takes its steps; the encoder takes one
    step on the bound at its own q, the decoder held fixed; the decoder takes one on the bound at q_i. So the
    encoder only has to come near, and the decoder is not fitted to its errors.
    """

    def enter(self) -> None:
        """One Adam over both networks, which step in turn."""
        self.svi = self._adam(self.model)
        fixed = poutine.block(self.model.model, hide_types=["param"])
        self.encoder_svi = self.steps_of(fixed, self.model.guide, self.svi.optim)

    def take_steps(self, eager: bool = False, compile: bool = False) -> bool:
        """Choose how free steps and those of both networks are taken."""
        chosen = super().take_steps(eager, compile)
        if chosen:
            self.encoder_svi.compile = compile
        return chosen

    def step(self, *batch: Any) -> float:
        """One iteration; returns the loss at q_i, in nats for all N points."""
        x = self._augmented(batch[0])
        with torch.no_grad():
            start = self.model.encoder(x)
        posterior = self.free(x, *start, **self.weights)
        self.encoder_svi.step(x, **self.weights)
        self.model.decoder.zero_grad()  # of eager steps
        return self.svi.step(x, posterior=posterior, **self.weights)


class FreeEM(VariationalEM):
    """Variational EM without an encoder: q_i of every point of the training set is kept between its visits.

    One iteration, on one batch: q_i takes its steps from where its last visit left it, about N(0, I) at
    first; the decoder takes one step on the bound at q_i. Batches must carry the indices of their rows, int64
    [B] behind everything else: ``Batches(..., indexed=True)``. The model's encoder is not used; a
    :class:`~pyro_fmvae.models.free_encoder.FreeEncoder` in its place finds the posteriors of other points.

    Attributes:
        posteriors: all q_i, a part of the phase's state; made by :meth:`enter`.

    Raises:
        ValueError: an augmentation: each point keeps the posterior of one x.
    """

    posteriors: GaussianTable

    def enter(self) -> None:
        """Adam over the decoder, and q_i of about N(0, I)."""
        if self.augmentation is not None:
            raise ValueError("augmentation: expected 0 if data points have posteriors of their own")
        model = self.model
        self.svi = self._adam(model.decoder)
        self.posteriors = GaussianTable(model.num_data, model.latent_dim).to(next(model.decoder.parameters()))

    def prepare(self, batches: Iterable[Any]) -> None:
        """Check that the loader goes through as many points as the model is of.

        Raises:
            ValueError: a loader that says it has another number (``num_data``).
        """
        check_number(batches, self.model.num_data)

    def step(self, *batch: Any) -> float:
        """One iteration; returns the loss at q_i, in nats for all N points.

        Raises:
            ValueError: a batch without indices of rows.
        """
        check_rows(batch)
        x, rows = batch[0], batch[-1]
        posterior = self.free(x, *self.posteriors(rows), **self.weights)
        self.posteriors.keep(rows, *posterior)
        return self.svi.step(x, posterior=posterior, **self.weights)

    def own_state(self) -> dict[str, Any]:
        """All q_i."""
        return {"posteriors": self.posteriors.state_dict()}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Take over all q_i."""
        self.posteriors.load_state_dict(state["posteriors"])
