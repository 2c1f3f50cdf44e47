"""Settings of learning: rates, weights and schedules that phases share."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from pyro_fmvae.capture import CapturedFreeGaussian, CapturedSVI
from pyro_fmvae.infer import TraceConjugate_ELBO
from pyro_fmvae.infer.free_gaussian import FreeGaussian
from pyro_fmvae.infer.natural_gradient import NaturalGradient, RobbinsMonro

AUGMENTED = 0.5  # share of a batch
DECAY, DECAY_BELOW = 0.5, 2000
"""Weight decay of perceptrons that learn from fewer points than this, chosen as their sizes are."""
HOW = ("eager", "compile", "compile_from", "autocast", "group")


def weight_decay(num_data: int) -> float:
    """Weight decay of perceptrons by the number of training points."""
    return DECAY if num_data < DECAY_BELOW else 0.0


@dataclass(frozen=True)
class Learning:
    """Settings that phases share.

    Args:
        learning_rate: of Adam, for the networks.
        final_learning_rate: the learning rate at the end of the joint phase, to which it falls geometrically
            in the last half; None: it stays.
        weight_decay: of AdamW, >= 0, for the networks (Loshchilov and Hutter, 2019). A step takes
            this times the learning rate from each weight.
        prior_learning_rate: of Adam, for λ of labelled factors while ``label_weight`` > 0.
        rate: step sizes ρ of the natural gradient, counted anew in each phase. Large first steps cost
            components: what a few small batches happen not to show is forgotten. From the same 64 seeded
            clusters of MNIST, 300 steps from 0.5 down left 38 in use, from 0.01 down all 64.
        label_weight: Δ >= 0 of equation 8, in the joint phase.
        label_distance: least distance >= 0 between the components of labelled factors when the joint phase
            begins, in their standard deviations, if Δ > 0. 0: they stay where they are. It is for networks
            that are not trained yet: see :meth:`FactorialMixtureVAE.separate_labelled`.
        kl_weight: weight > 0 of KL[z] (4b) at the start of the joint phase, moving linearly to 1 at its end.
        independence_weight: weight >= 0 of the penalty on blocks that tell of labels of others, in nats per
            data point: see :mod:`pyro_fmvae.infer.elbo.trace_conjugate_elbo`.
        free_from: share of the joint phase, in [0, 1], after which the decoder sees the blocks of unlabelled
            factors. With 1 labelled factors are learnt first, and the others in the phase after.
        kl_annealing: share of the pretraining in which the weight of its KL divergence grows from 0 to 1, in
            [0, 1].
        pretrain_kl_weight: weight > 0 of the KL divergence in pretraining, once it has grown. Far below 1 the
            networks are an auto-encoder: codes keep apart what a N(0, I) prior pushes together.
        augmentation: transform applied to half of the points of every batch, such as
            :class:`~pyro_fmvae.nn.RandomWarp`; None leaves them all as they are.
        augment_until: share of the joint phase, in [0, 1], after which they are left as they are. What is
            learnt of transformed data is unlearnt then, and what it has taught about the others stays.
        views: V, views of each point that share its assignments, in all phases but pretraining.
        view: transform at random that makes a view of a point, of every point by itself, such as
            :class:`~pyro_fmvae.nn.RandomWarp`. None: the views are the point itself, V times, and only the
            distortion before the encoder tells them apart.
        restarts: k-means starts for λ of each factor, the best by its bound: see
            :meth:`FactorialMixtureVAE.seed`.
        full_starts: start λ of factors without labels from the clusters of a mixture of full covariances, in
            the place of k-means: see :func:`~pyro_fmvae.learn.fmvae_phases.full_clusters`.
        independent_start: give each factor's block an independent component at its head, before λ is seeded:
            see :mod:`pyro_fmvae.learn.independent_components`. It needs pretrained networks. In joint phases,
            free factors whose components coincide start anew: see :mod:`pyro_fmvae.learn.revival`.
        restart_every: steps of a joint phase between two comparisons of λ of factors without labels with
            ``restarts`` new starts: see :meth:`FactorialMixtureVAE.restart`. 0: never.
        recompute: compute responsibilities again at the updated encoder (the paper's order).
        eager, compile, compile_from, autocast, group: how steps are taken, and by which processes: see
            :class:`~pyro_fmvae.capture.CapturedSVI`.

    Raises:
        ValueError: a number out of range.
    """

    learning_rate: float = 1e-3
    final_learning_rate: float | None = None
    weight_decay: float = 0.0
    prior_learning_rate: float = 1e-2
    rate: RobbinsMonro = field(default_factory=lambda: RobbinsMonro(first_step=0.01))
    label_weight: float = 0.0
    label_distance: float = 0.0
    kl_weight: float = 1.0
    independence_weight: float = 0.0
    free_from: float = 0.0
    kl_annealing: float = 0.0
    pretrain_kl_weight: float = 1.0
    augmentation: nn.Module | None = None
    augment_until: float = 0.5
    views: int = 1
    view: nn.Module | None = None
    restarts: int = 1
    full_starts: bool = False
    independent_start: bool = False
    restart_every: int = 0
    recompute: bool = False
    eager: bool = False
    compile: bool = False
    compile_from: int = 1
    autocast: torch.dtype | None = None
    group: Any = None

    def __post_init__(self) -> None:
        for name in ("learning_rate", "prior_learning_rate", "kl_weight", "pretrain_kl_weight"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a number > 0, got {getattr(self, name)}")
        if self.final_learning_rate is not None and not 0 < self.final_learning_rate <= self.learning_rate:
            range_ = f"(0, {self.learning_rate}]"
            raise ValueError(
                f"final_learning_rate: expected a number in {range_}, got {self.final_learning_rate}"
            )
        for name in ("weight_decay", "label_weight", "label_distance", "independence_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a number >= 0, got {getattr(self, name)}")
        for name in ("kl_annealing", "free_from", "augment_until"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected a number in [0, 1], got {getattr(self, name)}")
        for name, least in (("views", 1), ("restarts", 1), ("restart_every", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected a number >= {least}, got {getattr(self, name)}")

    def optimiser(self, networks: Iterable[Tensor], first_order: Sequence[Tensor] = ()) -> AdamW:
        """Adam with decoupled weight decay on the networks; λ in standard parameters at its own rate."""
        decay = {"weight_decay": self.weight_decay}
        groups: list[dict[str, Any]] = [{"params": list(networks), "lr": self.learning_rate, **decay}]
        if first_order:
            rate = {"lr": self.prior_learning_rate, "weight_decay": 0.0}
            groups.append({"params": list(first_order), **rate})
        return AdamW(groups, fused=True)

    def kl_weight_at(self, fraction: float) -> float:
        """Weight of KL[z] after this fraction of the joint phase: it moves linearly to 1."""
        return self.kl_weight + (1.0 - self.kl_weight) * min(fraction, 1.0)

    def learning_rate_at(self, fraction: float) -> float:
        """Networks' learning rate after this fraction of the joint phase; it falls in the second half."""
        if self.final_learning_rate is None:
            return self.learning_rate
        return self.learning_rate * (self.final_learning_rate / self.learning_rate) ** max(
            2 * fraction - 1, 0.0
        )

    def augment(self, x: Tensor) -> Tensor:
        """A batch [B, ...] of which half of the points, chosen at random, are transformed.

        Of an odd number of points, it is the smaller or the larger half, at random.
        """
        if self.augmentation is None:
            return x
        number = int(AUGMENTED * len(x) + torch.rand(()).item())
        chosen = torch.randperm(len(x), device=x.device)[:number]
        return x.index_copy(0, chosen, self.augmentation(x[chosen]))

    def viewed(self, x: Tensor) -> Tensor:
        """Return what training sees of a batch [B, ...]: a view of each point, or [B, V, ...] of several."""
        if self.views == 1:
            return x if self.view is None else self.view(x)
        several = x.repeat_interleave(self.views, 0)
        several = several if self.view is None else self.view(several)
        return several.unflatten(0, (len(x), self.views))

    def svi(
        self,
        model: Any,
        guide: Any,
        optim: NaturalGradient,
        elbo: TraceConjugate_ELBO,
        recompute: bool = False,
    ) -> CapturedSVI:
        """The SVI object that takes the steps of a phase."""
        how = {name: getattr(self, name) for name in HOW}
        return CapturedSVI(model, guide, optim, elbo, recompute, **how)

    def free_gaussian(self, model: Any, steps: int, learning_rate: float) -> FreeGaussian:
        """The object that takes the free steps of variational EM."""
        if self.eager:
            return FreeGaussian(model, steps, learning_rate, autocast=self.autocast)
        how: dict[str, Any] = {name: getattr(self, name) for name in ("compile", "autocast")}
        return CapturedFreeGaussian(model, steps, learning_rate, **how)
