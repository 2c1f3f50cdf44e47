"""The phases in which a factorial mixture VAE is learnt. Paquet et al. (2018), Section 2.4 and Appendix E."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_fmvae.infer import CapturedSVI, TraceConjugate_ELBO
from pyro_fmvae.infer.phase import Budget, Phase, arguments, endless
from pyro_fmvae.models.factorial_mixture_vae import FactorialMixtureVAE
from pyro_fmvae.optim import NaturalGradient, RobbinsMonro

SEEDING_POINTS = 20_000


@dataclass(frozen=True)
class Learning:
    """What the phases share.

    Args:
        learning_rate: of Adam, for the networks.
        final_learning_rate: what it falls to, geometrically, in the last half of the joint phase; None: it
            stays.
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
        recompute: compute responsibilities again at the updated encoder (the paper's order).
        eager, compile, autocast: how steps are taken: see :class:`~pyro_fmvae.infer.CapturedSVI`.

    Raises:
        ValueError: a number out of range.
    """

    learning_rate: float = 1e-3
    final_learning_rate: float | None = None
    prior_learning_rate: float = 1e-2
    rate: RobbinsMonro = field(default_factory=lambda: RobbinsMonro(first_step=0.01))
    label_weight: float = 0.0
    kl_weight: float = 1.0
    independence_weight: float = 0.0
    free_from: float = 0.0
    kl_annealing: float = 0.0
    recompute: bool = False
    eager: bool = False
    compile: bool = False
    autocast: torch.dtype | None = None

    def __post_init__(self) -> None:
        for name in ("learning_rate", "prior_learning_rate", "kl_weight"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a number > 0, got {getattr(self, name)}")
        if self.final_learning_rate is not None and not 0 < self.final_learning_rate <= self.learning_rate:
            range_ = f"(0, {self.learning_rate}]"
            raise ValueError(
                f"final_learning_rate: expected a number in {range_}, got {self.final_learning_rate}"
            )
        for name in ("label_weight", "independence_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a number >= 0, got {getattr(self, name)}")
        for name in ("kl_annealing", "free_from"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected a number in [0, 1], got {getattr(self, name)}")

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
        adam = partial(torch.optim.Adam, lr=self.learning.learning_rate, fused=True)
        optim = NaturalGradient(1.0, adam, self.vae.parameters())
        self.svi = self.learning.svi(self.vae.model, self.vae.guide, optim, TraceConjugate_ELBO())

    def before_step(self, fraction: float) -> None:
        """Anneal the weight of the KL divergence."""
        annealing = self.learning.kl_annealing
        if fraction < annealing:  # as a tensor: numbers are constants of a captured step
            weight = max(fraction / annealing, 1e-3)
            self.kl_weight = torch.tensor(weight, device=next(self.vae.parameters()).device)
        else:
            self.kl_weight = 1.0

    def step(self, *batch: Any) -> float:
        """One step at the present weight of the KL divergence; labels are not looked at."""
        return self.svi.step(batch[0], kl_weight=self.kl_weight)


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
        _seed(self.model, batches, self.seed)


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

    def enter(self) -> None:
        """Natural or standard parameters for λ, and one Adam over all but the natural ones."""
        model, learning = self.model, self.learning
        for group in model.factor_groups():
            if learning.label_weight > 0 and group.columns:
                group.use_standard()
            else:
                group.use_natural()
        networks = [*model.encoder.parameters(), *model.decoder.parameters()]
        groups = [{"params": networks, "lr": learning.learning_rate}]
        first_order = [p for g in model.factor_groups() if g.columns for p in g.parameters()]
        if learning.label_weight > 0 and first_order:
            groups.append({"params": first_order, "lr": learning.prior_learning_rate})
        optim = NaturalGradient(
            learning.rate, lambda _: torch.optim.Adam(groups, fused=True), model.parameters()
        )
        names = ("label_weight", "kl_weight", "independence_weight")
        elbo = TraceConjugate_ELBO(**{name: getattr(learning, name) for name in names})
        self.svi = learning.svi(model.model, model.guide, optim, elbo, learning.recompute)

    def prepare(self, batches: Iterable[Any]) -> None:
        """Seed λ if a seed was given, and enter again: seeding replaces λ's parameters."""
        if self.seed is not None:
            _seed(self.model, batches, self.seed)
            self.enter()

    def before_step(self, fraction: float) -> None:
        """Move the KL weight to 1, in the second half the learning rate to its end; open free factors."""
        learning = self.learning
        self.model.gate_free(float(fraction >= learning.free_from))
        self.svi.elbo.kl_weight = learning.kl_weight + (1.0 - learning.kl_weight) * min(fraction, 1.0)
        if learning.final_learning_rate is not None:
            ratio = learning.final_learning_rate / learning.learning_rate
            optimiser = self.svi.optim.others
            optimiser.param_groups[0]["lr"] = learning.learning_rate * ratio ** max(2 * fraction - 1, 0.0)


def _seed(model: FactorialMixtureVAE, batches: Iterable[Any], seed: int) -> None:
    """Seed λ from up to 20,000 encoded points."""
    model.seed(*encode_some(model, batches), torch.Generator().manual_seed(seed))


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
