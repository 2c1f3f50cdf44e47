"""Labels that come after the training: further factors for them, and some seconds of learning from them."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from pyro_fmvae.data import Batches, Split, spread_labels
from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.learn.fitting import fit
from pyro_fmvae.learn.fmvae_phases import Joint
from pyro_fmvae.learn.phase import Budget, endless
from pyro_fmvae.models import FactorialMixtureVAE
from pyro_fmvae.models.further_factors import take_over
from pyro_fmvae.recipes.fmvae import FMVAE
from pyro_fmvae.recipes.own_labels import CLASSIFICATION
from pyro_fmvae.recipes.recipe import Recipe
from pyro_fmvae.recipes.table_mixture import Mixture

HALF: Final = 32
"""Points of a batch that have a label, and as many of all points."""

_Recipe = TypeVar("_Recipe", FMVAE, Mixture)


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
        ValueError: a model without factors, or networks that cannot take further ones.
    """
    raise ValueError(f"run: further labels need factors, a {recipe.name} has none")


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


def _with(recipe: _Recipe, names: Sequence[str], value_names: Sequence[tuple[str, ...]]) -> _Recipe:
    """A recipe with further labels, all of which are used."""
    trained = [recipe.label_names[factor] for factor in recipe.labelled]
    values = recipe.value_names or ((),) * len(recipe.label_names)
    known, sizes = len(trained), [len(one) for one in value_names]
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
def refine(recipe: Recipe[Any], model: Any, rows: Split, seconds: float, fresh: Sequence[int] = ()) -> None:
    """Learn from labels for some seconds, in place. The states of random generators are left alone.

    Args:
        recipe: of :func:`further`.
        model: of :func:`further`.
        rows: training points, with labels [N, L] of which one is known at least.
        seconds: of a clock on the wall, about.
        fresh: factors of further labels that were not refined yet.

    Raises:
        ValueError: a model without factors.
    """
    raise ValueError(f"run: refining needs factors, a {recipe.name} has none")


@refine.register
def _(
    recipe: FMVAE, model: FactorialMixtureVAE, rows: Split, seconds: float, fresh: Sequence[int] = ()
) -> None:
    """The joint phase on batches of which half have a label, so that few labels are seen often.

    Labels spread to near neighbours as in a training: see :func:`~pyro_fmvae.data.spread_labels`.
    """
    assert rows.labels is not None
    device = next(model.parameters()).device
    taught = replace(rows, labels=spread_labels(rows, rows.labels, recipe.spread))
    known = taught.select((taught.labels >= 0).any(-1).nonzero().squeeze(-1))
    learning = replace(
        recipe.config.learning(),
        label_weight=2 * CLASSIFICATION,
        kl_weight=1.0,
        independence_weight=0.0,
        free_from=0.0,
        augmentation=recipe.augmentation(),
        augment_until=1.0,
        restart_every=0,
        eager=True,  # capturing a step takes longer than some seconds of steps
    )
    batches = _Beside(Batches(known, HALF, device=device), Batches(taught, HALF, device=device))
    with seeded(0):
        _start(model, known, fresh)
        model.train()
        try:
            for _ in fit([Joint(model, learning, Budget(minutes=seconds / 60), "refine")], batches):
                pass
        finally:
            model.eval()


@torch.no_grad()
def _start(model: FactorialMixtureVAE, known: Split, fresh: Sequence[int]) -> None:
    """Start λ of further factors at the labelled points, those of others in their groups stay."""
    for group in model.factor_groups():
        if not set(group.factors) & set(fresh):
            continue
        before = group.weights.natural_value().clone(), group.loc_precision.natural_value().clone()
        posterior = model.posterior(known.observations.to(group.device))
        moments = (
            part.unflatten(-1, (-1, model.dim)).movedim(-2, 0)
            for part in (posterior.mean, posterior.variance)
        )
        labels = None if known.labels is None else known.labels.to(group.device)
        group.seed(*moments, labels, model.num_data, torch.Generator().manual_seed(0), 1)
        started = group.weights.natural_value(), group.loc_precision.natural_value()
        stays = torch.tensor([factor not in fresh for factor in group.factors], device=group.device)
        group.set_natural(
            *(torch.where(stays[:, None, None], old, new) for old, new in zip(before, started, strict=True))
        )


@refine.register
def _(recipe: Mixture, model: Any, rows: Split, seconds: float, fresh: Sequence[int] = ()) -> None:
    """A training of its own, which takes a table as long."""
    limited = replace(recipe, config=replace(recipe.config, time_limit=seconds / 60, max_minutes=None))
    batches = Batches(rows, len(rows), device=model.device, indexed=True)
    with seeded(0):
        for _ in fit(limited.phases(model, limited.config.learning()), batches):
            pass


@dataclass(frozen=True)
class _Beside:
    """Batches of labelled points beside batches of all points, one for each of the latter."""

    known: Batches
    everything: Batches

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for pair in zip(endless(self.known), self.everything, strict=False):
            yield tuple(torch.cat(parts) for parts in zip(*pair, strict=True))
