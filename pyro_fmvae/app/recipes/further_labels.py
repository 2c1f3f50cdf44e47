"""Labels that come after the training: further factors for them, and learning from them."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, Final

import torch
from torch import Tensor

from pyro_fmvae.app.recipes.fmvae import FMVAE
from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.app.recipes.table_mixture import Mixture
from pyro_fmvae.data import Batches, Split
from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.learn.fitting import fit
from pyro_fmvae.learn.fmvae_phases import Joint
from pyro_fmvae.learn.label_spreading import CLASSIFICATION, spread_labels
from pyro_fmvae.learn.phase import Budget, endless
from pyro_fmvae.models import FactorialMixtureVAE
from pyro_fmvae.models.further_factors import regress_blocks, take_over

HALF: Final = 32
"""Points of a batch that have a label, and as many of all points."""
BATCH: Final = 500
LIKELIER: Final = 0.5
"""Share of hidden further labels that neighbours have to tell, so that they label others to learn from."""


@singledispatch
def further(
    recipe: Recipe[Any], model: Any, names: Sequence[str], value_names: Sequence[tuple[str, ...]]
) -> tuple[Recipe[Any], Any]:
    """Give a model factors for further labels, behind those of the labels that it was trained on.

    Args:
        recipe: of the model.
        model: as trained; it is left as it is.
        names: of the further labels; none leaves the factors as they are.
        value_names: of the values of each.

    Returns:
        The recipe with these factors, and a model that goes on from ``model``.

    Raises:
        ValueError: networks that cannot take further factors.
    """
    raise NotImplementedError


@further.register
def _(
    recipe: FMVAE, model: FactorialMixtureVAE, names: Sequence[str], value_names: Sequence[tuple[str, ...]]
) -> tuple[Recipe[Any], Any]:
    """The encoder gets dimensions for them that the decoder does not look at, until both are refined."""
    if not names:
        return recipe, deepcopy(model)
    changed, known, count = _with(recipe, names, value_names), len(recipe.labelled), len(recipe.factors)
    grown = changed.build().to(next(model.parameters()).device)
    take_over(grown, model, [factor + len(names) * (factor >= known) for factor in range(count)])
    return changed, grown.eval()


@further.register
def _(
    recipe: Mixture, model: Any, names: Sequence[str], value_names: Sequence[tuple[str, ...]]
) -> tuple[Recipe[Any], Any]:
    """A new mixture: it starts from the rows whenever it is refined."""
    changed = _with(recipe, names, value_names)
    return changed, changed.build().to(model.device).eval()


def _with(recipe: Any, names: Sequence[str], value_names: Sequence[tuple[str, ...]]) -> Any:
    """A recipe with further labels, all of which are used."""
    trained = [recipe.label_names[factor] for factor in recipe.labelled]
    values = recipe.value_names or ((),) * len(recipe.label_names)
    per_value = getattr(recipe.config, "per_value", 1)
    known, sizes = len(trained), [per_value * len(one) for one in value_names]
    config = replace(
        recipe.config,
        factors=(*recipe.factors[:known], *sizes, *recipe.factors[known:]),
        label_names=(*trained, *names),
        labels=1.0,
    )
    return replace(
        recipe,
        config=config,
        label_names=(*trained, *names),
        value_names=(*values[:known], *value_names),
        given_names={},
    )


@singledispatch
def refine(recipe: Recipe[Any], model: Any, rows: Split, budget: Budget, behind: Sequence[int] = ()) -> None:
    """Learn from labels for a while, in place. The states of random generators are left alone.

    Args:
        recipe: of :func:`further`.
        model: of :func:`further`.
        rows: training points, with labels [N, L] of which one is known at least.
        budget: iterations or minutes of learning.
        behind: factors of further labels.
    """
    raise NotImplementedError


@refine.register
def _(
    recipe: FMVAE, model: FactorialMixtureVAE, rows: Split, budget: Budget, behind: Sequence[int] = ()
) -> None:
    """Factors of further labels start in closed form; then the joint phase teaches everything.

    Half of each batch has a label, so that few labels occur often. Labels spread to near neighbours: see
    :func:`~pyro_fmvae.learn.label_spreading.spread_labels`.
    """
    device = next(model.parameters()).device
    model.predictors.clear()  # of the labels that were known before
    with seeded(0):
        labels = _taught(recipe, model, rows, behind)
        taught, labelled = replace(rows, labels=labels), (labels >= 0).any(-1).nonzero().squeeze(-1)
        known = taught.select(labelled)
        _start(model, known, labels[labelled], behind)
        options = replace(
            recipe.config,
            label_weight=2 * CLASSIFICATION,
            label_distance=0.0,
            kl_weight=1.0,
            independence_weight=0.0,
            free_from=0.0,
            augment_until=1.0,
            restart_every=0,
            compile=False,
            eager=True,  # capturing a step takes longer than some seconds of steps
        )
        phase = Joint(model, options, budget, "refine")
        phase.augmentation = recipe.augmentation()
        batches = _Beside(Batches(known, HALF, device=device), Batches(taught, HALF, device=device))
        model.train()
        try:
            for _ in fit([phase], batches):
                pass
        finally:
            model.eval()


def _taught(recipe: FMVAE, model: FactorialMixtureVAE, rows: Split, behind: Sequence[int]) -> Tensor:
    """Labels [N, L] to learn from: those known, and those of near neighbours.

    Neighbours are compared by their pixels or columns for labels of the training, and for further ones, of
    which few are known, by what the model encodes in its other factors.
    """
    assert rows.labels is not None
    first = len(recipe.labelled) - len(behind)
    trained = spread_labels(rows, rows.labels[:, :first], recipe.spread)
    if not behind:
        return trained
    with torch.no_grad():
        batches = Batches(rows, BATCH, shuffle=False, device=model.gate.device)
        means, scales = zip(
            *((q.mean, q.stddev) for q in (model.posterior(x) for x, *_ in batches)), strict=True
        )
    mean = torch.cat(means) / torch.cat(scales).mean(0)
    others = [factor for factor in range(len(recipe.factors)) if factor not in behind]
    encoded = Split(mean.unflatten(-1, (-1, model.dim))[:, others].flatten(1).cpu())
    return torch.cat([trained, spread_labels(encoded, rows.labels[:, first:], LIKELIER)], -1)


@torch.no_grad()
def _start(model: FactorialMixtureVAE, known: Split, labels: Tensor, behind: Sequence[int]) -> None:
    """Start factors of further labels: regress a centre for each value on the encoder's last features.

    λ of these factors is that of the labelled points; λ of others in their groups stays.
    """
    if not behind:
        return
    device = model.gate.device
    labels = labels.to(device)
    regress_blocks(model, known.observations.to(device), labels, behind)
    posterior = model.posterior(known.observations.to(device))
    parts = posterior.mean, posterior.variance
    mean, variance = (part.unflatten(-1, (-1, model.dim)).movedim(-2, 0) for part in parts)
    for group in model.factor_groups():
        if not set(group.factors) & set(behind):
            continue
        before = group.weights.natural_value().clone(), group.loc_precision.natural_value().clone()
        group.seed(mean, variance, labels, model.num_data, torch.Generator().manual_seed(0), 1)
        started = group.weights.natural_value(), group.loc_precision.natural_value()
        stays = torch.tensor([factor not in behind for factor in group.factors], device=device)
        group.set_natural(
            *(torch.where(stays[:, None, None], old, new) for old, new in zip(before, started, strict=True))
        )


@refine.register
def _(recipe: Mixture, model: Any, rows: Split, budget: Budget, behind: Sequence[int] = ()) -> None:
    """A training of its own, which takes a table as long."""
    config: Any = replace(recipe.config, time_limit=budget.minutes, max_minutes=None)
    limited = replace(recipe, config=config)
    batches = Batches(rows, len(rows), device=model.device, indexed=True)
    with seeded(0):
        for _ in fit(limited.phases(model), batches):
            pass


@dataclass(frozen=True)
class _Beside:
    """Batches of labelled points beside batches of all points, one for each of the latter."""

    known: Batches
    everything: Batches

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for pair in zip(endless(self.known), self.everything, strict=False):
            yield tuple(torch.cat(parts) for parts in zip(*pair, strict=True))
