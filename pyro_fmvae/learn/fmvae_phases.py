"""The phases in which a factorial mixture VAE is learnt. Paquet et al. (2018), Section 2.4 and Appendix E."""

import logging
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Final

import torch
from pyro.distributions import is_validation_enabled
from torch import Tensor

from pyro_fmvae.infer import TraceConjugate_ELBO
from pyro_fmvae.infer.natural_gradient import NaturalGradient, RobbinsMonro
from pyro_fmvae.infer.seeding import kmeans
from pyro_fmvae.learn.independent_components import Start, start_from_components
from pyro_fmvae.learn.mixture import Make, mixture_of_rows
from pyro_fmvae.learn.options import FMVAEOptions, VAEOptions
from pyro_fmvae.learn.phase import Budget, GradientPhase, arguments, endless
from pyro_fmvae.learn.revival import revive
from pyro_fmvae.models import ObservedMixture
from pyro_fmvae.models.factorial_mixture_vae import FactorialMixtureVAE
from pyro_fmvae.models.shapes import check_codes
from pyro_fmvae.models.vae import VAE

# Clusters of codes whose shapes are not along the axes.

SEARCHED: Final = 2000
"""Points at most that the mixture is found by."""
STARTS: Final = 3
"""Starts of the mixture."""
FLAT: Final = 0.01
"""Share of the largest standard deviation; dimensions with less are scaled as if they had that much."""


def full_clusters(points: Tensor, num_clusters: int, generator: torch.Generator) -> Tensor:
    """Cluster indices [N] by a mixture of full covariances of standardised points.

    The mixture is the one whose bound no swap of components raises:
    :func:`~pyro_fmvae.learn.mixture.mixture_of_rows`. It is found by 2,000 points, on the CPU,
    where thousands of small operations take less time than on a GPU. Where there is less than a point for
    each dimension of each cluster, the clusters are those of k-means.

    Args:
        points: [N, D], N >= 1, on any device, as are the clusters. With few distinct points, some stay empty.
        num_clusters: K.
        generator: source of the random numbers, on the CPU.
    """
    x = points.cpu().double()
    x = x - x.mean(0)
    spread = x.square().mean(0).sqrt()
    x = x / spread.clamp(min=FLAT * spread.max()).clamp(min=torch.finfo(x.dtype).tiny)
    rows = torch.randperm(len(x), generator=generator)[:SEARCHED]
    if len(rows) < num_clusters * x.shape[1]:
        return kmeans(x, num_clusters, generator).to(points.device)
    seed = int(torch.randint(SEED_RANGE, (), generator=generator))
    found = mixture_of_rows(_mixture_of(x.shape[1]), x[rows], seed, num_clusters, STARTS)
    return found.model.table(found.model.packed(x)).argmax(-1).to(points.device)


def _mixture_of(dim: int) -> Make:
    """Makes mixtures of so many columns of numbers."""
    return lambda components, rows: ObservedMixture([0] * dim, components, rows, full=True)


SEEDING_POINTS = 20_000
SEEDING_LABELS = 1000
FIRST_REVIVAL = 50
"""Steps of a joint phase after which free factors are compared with new starts; then twice as many."""
WARM_UP, COLDEST = 0.05, 0.01
"""Share of a joint phase in which the networks' learning rate and Δ grow to their values, and their start.

Adam starts anew: its first steps change every weight by the whole rate, however small the gradient, and would
undo what pretraining has learnt. So would Δ, which pulls the blocks of labels apart faster than the decoder
follows.
"""
SEED_RANGE = 2**62  # of starts within a phase, whose seeds are drawn from torch's own generator

logger = logging.getLogger("pyro_fmvae")


View = Callable[[Tensor], Tensor] | None
"""Transform at random that makes a view of every point, such as a :class:`~pyro_fmvae.nn.RandomWarp`.

None: views are the point itself, and only the distortion before the encoder tells them apart."""


def draw_views(x: Tensor, number: int, view: View) -> Tensor:
    """A batch [B, ...] as a model is to see it: a view of each point, or [B, V, ...] of V > 1."""
    if number == 1:
        return x if view is None else view(x)
    several = x.repeat_interleave(number, 0)
    several = several if view is None else view(several)
    return several.unflatten(0, (len(x), number))


class FactorialPhase(GradientPhase):
    """A phase of a factorial mixture VAE.

    Attributes:
        view: makes views of points, of which ``options.views`` share assignments.
    """

    view: View = None

    def viewed(self, x: Tensor) -> Tensor:
        """Views of a batch."""
        return draw_views(x, self.options.views, self.view)


class Pretraining(FactorialPhase):
    """The networks alone, under a N(0, I) prior."""

    def __init__(
        self, model: FactorialMixtureVAE | VAE, options: FMVAEOptions | VAEOptions, budget: Budget
    ) -> None:
        self.vae, self.model = model.pretraining(), model
        self.kl_weight: float | Tensor = 1.0
        super().__init__("pretrain", options, budget, self.vae)

    def enter(self) -> None:
        """Adam over the networks, in the model's mode."""
        self.vae.training = self.model.training
        optim = NaturalGradient(1.0, self.adam, self.vae.parameters())
        self.svi = self.steps_of(self.vae.model, self.vae.guide, optim)

    def before_step(self, fraction: float) -> None:
        """Anneal the weight of the KL divergence."""
        annealing, full = self.options.kl_annealing, self.options.pretrain_kl_weight
        if fraction < annealing:  # as a tensor: numbers are constants of a captured step
            weight = full * max(fraction / annealing, 1e-3)
            self.kl_weight = torch.tensor(weight, device=next(self.vae.parameters()).device)
        else:
            self.kl_weight = full

    @property
    def comparable(self) -> bool:
        """True once the weight of the KL divergence is 1."""
        return not isinstance(self.kl_weight, Tensor) and self.kl_weight == 1

    def step(self, *batch: Any) -> Tensor:
        """One step at the present weight of the KL divergence; labels are not looked at."""
        x = draw_views(self.augment(batch[0]), 1, self.view)
        return self.svi.step_async(x, kl_weight=self.kl_weight)


class PriorFitting(FactorialPhase):
    """λ alone: seeded from encoded data, then fitted by natural-gradient steps with the encoder as it is."""

    def __init__(
        self, model: FactorialMixtureVAE, options: FMVAEOptions, budget: Budget, seed: int = 0
    ) -> None:
        super().__init__("prior", options, budget, model)
        self.model, self.seed = model, seed
        self.start: Start | None = None

    def enter(self) -> None:
        """Natural steps only; the networks' parameters are handed to no optimiser."""
        for group in self.model.factor_groups():
            group.use_natural()
        optim = NaturalGradient(_rate(self.options))
        self.svi = self.steps_of(self.model.prior_model, self.model.prior_guide, optim)

    def before_step(self, fraction: float) -> None:
        """Nothing: steps fall by themselves."""

    def prepare(self, batches: Iterable[Any]) -> None:
        """Seed λ from up to 20,000 encoded points."""
        self.start = _seed(self.model, batches, self.seed, self.options)

    def measures(self) -> dict[str, Any]:
        """Independent components, once they were looked for: bits, how many have clusters, their factors."""
        if self.start is None or not self.start.units:
            return {}
        units, factors = self.start.units, self.start.factors
        return {
            "bits": [round(unit.bits, 4) for unit in units],
            "clustered": sum(unit.clustered for unit in units),
            "starts": [factors.get(number) for number in range(len(units))],
        }

    def step(self, *batch: Any) -> Tensor:
        """One natural-gradient step."""
        x, *rest = batch
        return self.svi.step_async(self.viewed(x), *rest)


class Joint(FactorialPhase):
    """Networks and λ together; with ``label_weight`` > 0, λ of labelled factors takes first-order steps.

    Args:
        model: learnt in place.
        options: rates, weights and schedules.
        budget: of the phase.
        name: for records.
        seed: seed λ from encoded data first; None: leave it as it is.
    """

    def __init__(
        self,
        model: FactorialMixtureVAE,
        options: FMVAEOptions,
        budget: Budget,
        name: str = "joint",
        seed: int | None = None,
    ) -> None:
        super().__init__(name, options, budget, model)
        self.model, self.seed = model, seed
        self.closed = self.options.free_from > 0
        self.begun = not self.closed

    def enter(self) -> None:
        """Natural or standard parameters for λ, and one Adam over all but the natural ones."""
        model, options = self.model, self.options
        for group in model.factor_groups():
            if options.label_weight > 0 and group.columns:
                group.use_standard()
            else:
                group.use_natural()
        networks = [*model.encoder.parameters(), *model.decoder.parameters()]
        first_order = [p for g in model.factor_groups() if g.columns for p in g.parameters()]
        adam = self.adam(networks, first_order if options.label_weight > 0 else ())
        optim = NaturalGradient(_rate(options), lambda _: adam, model.parameters())
        names = ("label_weight", "kl_weight", "independence_weight")
        elbo = TraceConjugate_ELBO(**{name: getattr(options, name) for name in names})
        self.svi = self.steps_of(model.model, model.guide, optim, elbo, options.recompute)

    def prepare(self, batches: Iterable[Any]) -> None:
        """Seed λ if a seed was given, separate components, and enter again: λ's parameters are replaced."""
        if self.seed is not None:
            _seed(self.model, batches, self.seed, self.options)
        distance = self.options.label_distance if self.options.label_weight > 0 else 0.0
        if distance:
            self.model.separate_labelled(distance, _generator())
        if self.seed is not None or distance:
            self.enter()
        self._revive(batches, 0)

    def between_steps(self, batches: Iterable[Any], step: int) -> bool:
        """Compare λ with new starts, every so many steps, and take those of a greater bound.

        Free factors are revived after 50 steps, 100, 200, 400 and so on.

        A copy of the loader hands out the points that are encoded for it, undistorted. With
        :class:`~pyro_fmvae.data.Batches` these are points still to come in this epoch of training.
        """
        times, anew = step // FIRST_REVIVAL, False
        if step % FIRST_REVIVAL == 0 and times.bit_count() == 1:
            anew = self._revive(copy(batches), step)
        every = self.options.restart_every
        if not (every and step and step % every == 0):
            return anew
        loc, scale, _ = encode_some(self.model, copy(batches))
        self._say(self.model.restart(loc, scale, _generator(), self.options.prior_restarts), step)
        return True

    def _revive(self, batches: Iterable[Any], step: int) -> bool:
        """Start free factors anew where that pays: see :mod:`pyro_fmvae.learn.revival`."""
        if self.options.independent_start:
            self._say(revive(self.model, batches, step, self.options.prior_restarts), step)
        return bool(self.options.independent_start)

    def _say(self, gains: dict[int, float], step: int) -> None:
        """Log which factors were started anew."""
        for factor, gain in gains.items():
            logger.info(
                "%s step %d: factor %d started anew, +%.3f nats a point", self.name, step, factor, gain
            )

    def before_step(self, fraction: float) -> None:
        """Move the KL weight to 1; warm learning rate and Δ up, later end the former; open free factors."""
        super().before_step(fraction)
        warm = min(max(fraction / WARM_UP, COLDEST), 1.0)
        self.svi.optim.others.param_groups[0]["lr"] *= warm
        self.svi.elbo.label_weight = self.options.label_weight * warm
        self.closed, self.begun = fraction < self.options.free_from, True
        self.svi.elbo.kl_weight = self.kl_weight_now()

    @property
    def comparable(self) -> bool:
        """False at the start of a phase that closes free factors: its labels are not learnt."""
        return self.begun

    @property
    def settled(self) -> bool:
        """True once the decoder sees all factors, if the weight of KL[z] is 1 throughout."""
        return self.options.kl_weight == 1 and not self.closed

    def step(self, *batch: Any) -> Tensor:
        """One step on a batch, augmented and without free factors for as long as either is wanted."""
        x, *rest = batch
        self._check_labels(*batch)
        if self.closed:
            self.model.gate_free(0.0)
        try:
            return self.svi.step_async(self.viewed(self.augment(x, self.options.augment_until)), *rest)
        finally:
            if self.closed:  # between steps the model is whole, whoever asks it
                self.model.gate_free(1.0)

    def _check_labels(self, x: Tensor, labels: Tensor | None = None, *_: Any) -> None:
        """Check labels on the CPU, while validation is on: captured steps do not look at their range."""
        if labels is not None and labels.device.type == "cpu" and is_validation_enabled():
            check_codes("labels", labels, len(x), self.model.label_sizes, "column")


def fmvae_phases(
    model: FactorialMixtureVAE,
    options: FMVAEOptions,
    budgets: Mapping[str, Budget],
    seed: int,
) -> list[FactorialPhase]:
    """The phases of a training: networks alone, prior alone, everything, and everything again.

    The second time labels have no weight. Without labels, full starts are made anew.

    Args:
        model: learnt in place.
        options: rates, weights and schedules.
        budgets: of the phases ``pretrain``, ``prior``, ``joint`` and ``refine``.
        seed: of the seeding of λ.
    """
    prior, joint = budgets["prior"], budgets["joint"]
    at_joint = replace(options, learning_rate=options.joint_learning_rate or options.learning_rate)
    last = replace(
        options,
        label_weight=0.0,
        kl_weight=1.0,
        free_from=0.0,
        learning_rate=options.final_learning_rate or at_joint.learning_rate,
        augment_until=0.0,
    )
    anew = options.full_starts and not model.labelled and not options.independent_start
    seeded = anew or (prior.empty and joint.empty)
    return [
        Pretraining(model, options, budgets["pretrain"]),
        PriorFitting(model, options, prior, seed),
        Joint(model, at_joint, joint, seed=seed if prior.empty else None),
        Joint(model, last, budgets["refine"], "refine", seed if seeded else None),
    ]


def _rate(options: FMVAEOptions) -> RobbinsMonro:
    """Step sizes ρ of the natural gradient, counted anew in each phase.

    Large first steps cost components: what a few small batches happen not to show is forgotten. From the same
    64 seeded clusters of MNIST, 300 steps from 0.5 down left 38 in use, from 0.01 down all 64.
    """
    return RobbinsMonro(options.delay, options.forgetting, options.first_step)


def _generator() -> torch.Generator:
    """Seeded by torch's own generator, whose state is kept for runs that are resumed."""
    return torch.Generator().manual_seed(int(torch.randint(SEED_RANGE, ())))


def _seed(model: FactorialMixtureVAE, batches: Iterable[Any], seed: int, options: FMVAEOptions) -> Start:
    """Seed λ from up to 20,000 encoded points, and from more that have labels where few of these do.

    With ``options.independent_start`` the networks' basis changes first, so that blocks begin with
    independent components.
    """
    clusters = full_clusters if options.full_starts else kmeans
    generator = torch.Generator().manual_seed(seed)
    loc, scale, labels = encode_some(model, batches, SEEDING_LABELS)
    start = Start(loc, scale)
    if options.independent_start:
        start = start_from_components(model, loc, scale, labels, seed)
    restarts, responsibilities = options.prior_restarts, start.responsibilities
    model.seed(start.loc, start.scale, labels, generator, restarts, clusters, responsibilities)
    return start


def encode_some(
    model: FactorialMixtureVAE | VAE, batches: Iterable[Any], labelled: int = 0
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Encode up to 20,000 points of a loader: location, scale [M, I·D], and labels [M, L] or None.

    Where fewer than ``labelled`` of them have a label, others of the epoch that have one are encoded as well.
    """
    locs, scales, labels = [], [], []
    wanted = min(SEEDING_POINTS, model.num_data)
    total = read = found = 0
    with torch.no_grad():
        for batch in endless(batches):  # what a resumable loader has left of its epoch may be too few
            x, *rest = arguments(batch)
            read += len(x)
            if total >= wanted:
                chosen = (rest[0] >= 0).any(-1)
                x, rest = x[chosen], [rest[0][chosen]]
            if len(x):
                loc, scale = model.encoder(x)
                locs.append(loc)
                scales.append(scale)
                labels += rest
                total += len(x)
            found += sum(int((known >= 0).any(-1).sum()) for known in rest)
            enough = not rest or found >= labelled or read >= model.num_data
            if total >= wanted and enough:
                break
    return torch.cat(locs), torch.cat(scales), torch.cat(labels) if labels else None
