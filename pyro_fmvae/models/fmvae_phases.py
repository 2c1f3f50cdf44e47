"""The phases in which a factorial mixture VAE is learnt. Paquet et al. (2018), Section 2.4 and Appendix E."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from pyro_fmvae.infer import CapturedSVI, TraceConjugate_ELBO
from pyro_fmvae.infer.phase import Budget, Phase, arguments, endless
from pyro_fmvae.models.factorial_mixture_vae import FactorialMixtureVAE
from pyro_fmvae.optim import NaturalGradient, RobbinsMonro

SEEDING_POINTS = 20_000
AUGMENTED = 0.5  # share of a batch


@dataclass(frozen=True)
class Learning:
    """What the phases share.

    Args:
        learning_rate: of Adam, for the networks.
        final_learning_rate: what it falls to, geometrically, in the last half of the joint phase; None: it
            stays.
        weight_decay: of AdamW, >= 0, for the networks (Loshchilov and Hutter, 2019). What it takes from a
            weight per step is this times the learning rate.
        prior_learning_rate: of Adam, for λ of labelled factors while ``label_weight`` > 0.
        rate: step sizes ρ of the natural gradient, counted anew in each phase. Large first steps cost
            components: what a few small batches happen not to show is forgotten. From the same 64 seeded
            clusters of MNIST, 300 steps from 0.5 down left 38 in use, from 0.01 down all 64.
        label_weight: Δ >= 0 of equation 8, in the joint phase.
        kl_weight: weight > 0 of KL[z] (4b) at the start of the joint phase, moving linearly to 1 at its end.
        independence_weight: weight >= 0 of the penalty on blocks that tell of labels of others, in nats per
            data point: see :mod:`pyro_fmvae.infer.dependence`.
        free_from: share of the joint phase, in [0, 1], after which the decoder sees the blocks of unlabelled
            factors. With 1 labelled factors are learnt first, and the others in the phase after.
        kl_annealing: share of the pretraining in which the weight of its KL divergence grows from 0 to 1, in
            [0, 1].
        pretrain_kl_weight: weight > 0 of the KL divergence in pretraining, once it has grown. Far below 1 the
            networks are an auto-encoder: codes keep apart what a N(0, I) prior pushes together.
        augmentation: what makes other data of half of the points of every batch, such as
            :class:`~pyro_fmvae.nn.RandomWarp`; None leaves them all as they are.
        augment_until: share of the joint phase, in [0, 1], after which they are left as they are. What is
            learnt of transformed data is unlearnt then, and what it has taught about the others stays.
        restarts: k-means starts for λ of each factor, the best by its bound: see
            :meth:`FactorialMixtureVAE.seed`.
        recompute: compute responsibilities again at the updated encoder (the paper's order).
        eager, compile, autocast: how steps are taken: see :class:`~pyro_fmvae.infer.CapturedSVI`.

    Raises:
        ValueError: a number out of range.
    """

    learning_rate: float = 1e-3
    final_learning_rate: float | None = None
    weight_decay: float = 0.0
    prior_learning_rate: float = 1e-2
    rate: RobbinsMonro = field(default_factory=lambda: RobbinsMonro(first_step=0.01))
    label_weight: float = 0.0
    kl_weight: float = 1.0
    independence_weight: float = 0.0
    free_from: float = 0.0
    kl_annealing: float = 0.0
    pretrain_kl_weight: float = 1.0
    augmentation: nn.Module | None = None
    augment_until: float = 0.5
    restarts: int = 1
    recompute: bool = False
    eager: bool = False
    compile: bool = False
    autocast: torch.dtype | None = None

    def __post_init__(self) -> None:
        for name in ("learning_rate", "prior_learning_rate", "kl_weight", "pretrain_kl_weight"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a number > 0, got {getattr(self, name)}")
        if self.final_learning_rate is not None and not 0 < self.final_learning_rate <= self.learning_rate:
            range_ = f"(0, {self.learning_rate}]"
            raise ValueError(
                f"final_learning_rate: expected a number in {range_}, got {self.final_learning_rate}"
            )
        for name in ("weight_decay", "label_weight", "independence_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a number >= 0, got {getattr(self, name)}")
        for name in ("kl_annealing", "free_from", "augment_until"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected a number in [0, 1], got {getattr(self, name)}")
        if self.restarts < 1:
            raise ValueError(f"restarts: expected a number >= 1, got {self.restarts}")

    def optimiser(self, networks: Iterable[Tensor], first_order: Sequence[Tensor] = ()) -> AdamW:
        """Adam with decoupled weight decay on the networks; λ in standard parameters at its own rate."""
        decay = {"weight_decay": self.weight_decay}
        groups: list[dict[str, Any]] = [{"params": list(networks), "lr": self.learning_rate, **decay}]
        if first_order:
            rate = {"lr": self.prior_learning_rate, "weight_decay": 0.0}
            groups.append({"params": list(first_order), **rate})
        return AdamW(groups, fused=True)

    def kl_weight_at(self, fraction: float) -> float:
        """Weight of KL[z] when so much of the joint phase is over: it moves linearly to 1."""
        return self.kl_weight + (1.0 - self.kl_weight) * min(fraction, 1.0)

    def learning_rate_at(self, fraction: float) -> float:
        """Of the networks, when so much of the joint phase is over; it falls in the second half."""
        if self.final_learning_rate is None:
            return self.learning_rate
        return self.learning_rate * (self.final_learning_rate / self.learning_rate) ** max(
            2 * fraction - 1, 0.0
        )

    def augment(self, x: Tensor) -> Tensor:
        """A batch [B, ...] of which half of the points, chosen at random, are transformed."""
        if self.augmentation is None:
            return x
        chosen = torch.rand((len(x),) + (1,) * (x.dim() - 1), device=x.device) < AUGMENTED
        return torch.where(chosen, self.augmentation(x), x)

    def svi(
        self,
        model: Any,
        guide: Any,
        optim: NaturalGradient,
        elbo: TraceConjugate_ELBO,
        recompute: bool = False,
    ) -> CapturedSVI:
        """What takes the steps of a phase."""
        how: dict[str, Any] = {"eager": self.eager, "compile": self.compile, "autocast": self.autocast}
        return CapturedSVI(model, guide, optim, elbo, recompute, **how)


class Pretraining(Phase):
    """The networks alone, under a N(0, I) prior."""

    def __init__(self, model: FactorialMixtureVAE, learning: Learning, budget: Budget) -> None:
        self.vae, self.learning = model.pretraining(), learning
        self.kl_weight: float | Tensor = 1.0
        super().__init__("pretrain", budget, self.vae)

    def enter(self) -> None:
        """Adam over the networks."""
        optim = NaturalGradient(1.0, self.learning.optimiser, self.vae.parameters())
        self.svi = self.learning.svi(self.vae.model, self.vae.guide, optim, TraceConjugate_ELBO())

    def before_step(self, fraction: float) -> None:
        """Anneal the weight of the KL divergence."""
        annealing, full = self.learning.kl_annealing, self.learning.pretrain_kl_weight
        if fraction < annealing:  # as a tensor: numbers are constants of a captured step
            weight = full * max(fraction / annealing, 1e-3)
            self.kl_weight = torch.tensor(weight, device=next(self.vae.parameters()).device)
        else:
            self.kl_weight = full

    def step(self, *batch: Any) -> float:
        """One step at the present weight of the KL divergence; labels are not looked at."""
        return self.svi.step(self.learning.augment(batch[0]), kl_weight=self.kl_weight)


class PriorFitting(Phase):
    """λ alone: seeded from encoded data, then fitted by natural-gradient steps with the encoder as it is."""

    def __init__(self, model: FactorialMixtureVAE, learning: Learning, budget: Budget, seed: int = 0) -> None:
        super().__init__("prior", budget, model)
        self.model, self.learning, self.seed = model, learning, seed

    def enter(self) -> None:
        """Natural steps only; the networks' parameters are handed to no optimiser."""
        for group in self.model.factor_groups():
            group.use_natural()
        optim = NaturalGradient(self.learning.rate, partial(torch.optim.SGD, lr=0.0))
        model = self.model
        self.svi = self.learning.svi(model.prior_model, model.prior_guide, optim, TraceConjugate_ELBO())

    def prepare(self, batches: Iterable[Any]) -> None:
        """Seed λ from up to 20,000 encoded points."""
        _seed(self.model, batches, self.seed, self.learning.restarts)


class Joint(Phase):
    """Networks and λ together; with ``label_weight`` > 0, λ of labelled factors takes first-order steps.

    Args:
        model: what is learnt.
        learning: how.
        budget: how long.
        name: for records.
        seed: seed λ from encoded data first, where no :class:`PriorFitting` did; None: leave it as it is.
    """

    def __init__(
        self,
        model: FactorialMixtureVAE,
        learning: Learning,
        budget: Budget,
        name: str = "joint",
        seed: int | None = None,
    ) -> None:
        super().__init__(name, budget, model)
        self.model, self.learning, self.seed = model, learning, seed
        self.augmenting = True

    def enter(self) -> None:
        """Natural or standard parameters for λ, and one Adam over all but the natural ones."""
        model, learning = self.model, self.learning
        for group in model.factor_groups():
            if learning.label_weight > 0 and group.columns:
                group.use_standard()
            else:
                group.use_natural()
        networks = [*model.encoder.parameters(), *model.decoder.parameters()]
        first_order = [p for g in model.factor_groups() if g.columns for p in g.parameters()]
        adam = learning.optimiser(networks, first_order if learning.label_weight > 0 else ())
        optim = NaturalGradient(learning.rate, lambda _: adam, model.parameters())
        names = ("label_weight", "kl_weight", "independence_weight")
        elbo = TraceConjugate_ELBO(**{name: getattr(learning, name) for name in names})
        self.svi = learning.svi(model.model, model.guide, optim, elbo, learning.recompute)

    def prepare(self, batches: Iterable[Any]) -> None:
        """Seed λ if a seed was given, and enter again: seeding replaces λ's parameters."""
        if self.seed is not None:
            _seed(self.model, batches, self.seed, self.learning.restarts)
            self.enter()

    def before_step(self, fraction: float) -> None:
        """Move the KL weight to 1, in the second half the learning rate to its end; open free factors."""
        learning = self.learning
        self.model.gate_free(float(fraction >= learning.free_from))
        self.augmenting = fraction < learning.augment_until
        self.svi.elbo.kl_weight = learning.kl_weight_at(fraction)
        self.svi.optim.others.param_groups[0]["lr"] = learning.learning_rate_at(fraction)

    def step(self, *batch: Any) -> float:
        """One step on a batch, which is augmented for as long as that is wanted."""
        x, *rest = batch
        return self.svi.step(self.learning.augment(x) if self.augmenting else x, *rest)


def _seed(model: FactorialMixtureVAE, batches: Iterable[Any], seed: int, restarts: int) -> None:
    """Seed λ from up to 20,000 encoded points."""
    model.seed(*encode_some(model, batches), torch.Generator().manual_seed(seed), restarts)


def encode_some(model: FactorialMixtureVAE, batches: Iterable[Any]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Encode up to 20,000 points of a loader: location, scale [M, I·D], and labels [M, L] or None."""
    locs, scales, labels, total = [], [], [], 0
    wanted = min(SEEDING_POINTS, model.num_data)
    with torch.no_grad():
        for batch in endless(batches):  # what a resumable loader has left of its epoch may be too few
            x, *rest = arguments(batch)
            loc, scale = model.encoder(x)
            locs.append(loc)
            scales.append(scale)
            labels += rest
            total += len(x)
            if total >= wanted:
                break
    return torch.cat(locs), torch.cat(scales), torch.cat(labels) if labels else None
