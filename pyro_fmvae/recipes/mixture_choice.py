"""Options of mixtures of table rows, and how the evidence chooses them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

import torch

from pyro_fmvae.data import Dataset, Preprocessing, hide_labels
from pyro_fmvae.data.labels import check_amount
from pyro_fmvae.learn.mixture_search import Fitted, search
from pyro_fmvae.learn.stacking import labelled_first
from pyro_fmvae.models import ObservedMixture, TablePrior
from pyro_fmvae.models.table_sites import LEFT_OUT
from pyro_fmvae.ranks import now
from pyro_fmvae.recipes.declarations import NAMES, SIZES, by_data, option
from pyro_fmvae.recipes.options import TrainConfig
from pyro_fmvae.recipes.ranges import count, positive, sizes

MOST_COMPONENTS: Final = 50
"""Largest number of components that is tried."""
EVERY: Final = 8
"""Up to so many, every number of components is tried; from there on, steps are a fifth."""
SEARCHED: Final = 2000
"""Rows that the number of components is chosen by."""
WIDEST_FULL: Final = 60
"""Most columns of numbers whose full covariances are tried."""
LEARNT: Final = TablePrior(c0=4.0, b0=0.3)
"""Prior of mixtures that learn the one of the numbers. With c0 = 4, shares stay away from 0
(Frühwirth-Schnatter, 2006, Finite mixture and Markov switching models, Section 4.2.2)."""


@dataclass(frozen=True)
class MixtureOptions(TrainConfig):
    """Options of ``--model mixture``."""

    labels: float | Literal["one-per-value"] | None = by_data(
        "share of labels used, number for each value, or one-per-value", check_amount, example="20"
    )
    factors: tuple[int, ...] | None = by_data("number of components", sizes, SIZES, example="3")
    covariance: Literal["diagonal", "full"] | None = by_data("covariance of a component's numbers")
    component_variance: float | None = by_data(
        "variance of a component that the prior expects, as a share of the column's; without it, the prior "
        "is learnt",
        positive,
    )
    ignore: tuple[str, ...] | None = by_data(
        "columns that are left out, by name or by number from 1: id,date; none for none", parse=NAMES
    )
    stacking: bool = option(
        True,
        "predict labels by the mixture, a logistic regression and a random forest, weighed on held-out ones",
    )
    starts: int | None = by_data("k-means starts, of which the best is kept", count(1))


def column_names(preprocessing: Preprocessing) -> tuple[str, ...]:
    """Names of the columns of a table: the file's, else their numbers from 1."""
    count = preprocessing.event_shape[0]
    return preprocessing.column_names or tuple(str(column + 1) for column in range(count))


def categories_of(preprocessing: Preprocessing) -> list[tuple[str, ...]]:
    """The categories of each column in words, in the order of their codes; empty for a column of numbers."""
    each = ("0", "1") if preprocessing.binary else ()
    found = list(preprocessing.levels) or [each] * preprocessing.event_shape[0]
    for column, values in enumerate(preprocessing.powers.values if preprocessing.powers else ()):
        found[column] = found[column] or tuple(f"{value:.15g}" for value in values)
    return found


def levels_of(config: MixtureOptions, preprocessing: Preprocessing) -> tuple[int, ...]:
    """Categories of each column, as :class:`ObservedMixture` takes them.

    Raises:
        ValueError: a column to leave out that there is not.
    """
    names = column_names(preprocessing)
    numbers = {str(column + 1): column for column in range(len(names))}
    numbers |= {name: column for column, name in enumerate(names)}
    found = [len(categories) for categories in categories_of(preprocessing)]
    for name in config.ignore or ():
        if name not in numbers:
            raise ValueError(f"ignore: expected columns out of {', '.join(names)}, got {name!r}")
        found[numbers[name]] = LEFT_OUT
    return tuple(found)


def constant_columns(dataset: Dataset) -> tuple[str, ...]:
    """Names of the columns that have a single value in the training rows."""
    x = dataset.train.observations
    low, high = x.nan_to_num(torch.inf).amin(0), x.nan_to_num(-torch.inf).amax(0)
    names = column_names(dataset.preprocessing)
    return tuple(names[column] for column in (low >= high).nonzero().flatten().tolist())


def model_of(config: MixtureOptions, levels: Sequence[int], num_data: int) -> ObservedMixture:
    """A new model of resolved options."""
    assert config.factors is not None
    *label_sizes, components = config.factors
    given = config.component_variance
    prior = LEARNT if given is None else TablePrior(b0=given)
    full, learn = config.covariance == "full", given is None
    return ObservedMixture(levels, components, num_data, label_sizes, prior, full, learn)


def numbers_tried(least: int) -> list[int]:
    """Numbers of components from the least to :data:`MOST_COMPONENTS`, or the least alone if it is more."""
    found = [least]
    while found[-1] < MOST_COMPONENTS:
        step = found[-1] // 5 if found[-1] >= EVERY else 1
        found.append(min(found[-1] + step, MOST_COMPONENTS))
    return found


def chosen(
    config: MixtureOptions, dataset: Dataset, levels: Sequence[int], label_sizes: tuple[int, ...]
) -> MixtureOptions:
    """Options with the components and covariance of the greatest evidence of some training rows."""
    train = dataset.train
    rows, labels = torch.randperm(len(train), generator=torch.Generator().manual_seed(config.seed)), None
    if label_sizes:
        assert config.labels is not None
        labels = hide_labels(train, config.labels, config.seed)[:, : len(label_sizes)]
    rows = labelled_first(rows, labels)[:SEARCHED]
    x, labels = train.observations[rows], None if labels is None else labels[rows]
    covariances: tuple[Literal["diagonal", "full"], ...] = ("full", "diagonal")
    if config.covariance is not None:
        covariances = (config.covariance,)
    elif not 2 <= levels.count(0) <= WIDEST_FULL:
        covariances = ("diagonal",)
    numbers: Sequence[int] = numbers_tried(max(label_sizes, default=1))
    if config.factors is not None:
        numbers = (config.factors[-1],)
    assert config.starts is not None
    minutes = config.max_minutes or config.time_limit
    end = now() + 60 * minutes / 2 if minutes else math.inf  # the rest is for training
    best: tuple[MixtureOptions, Fitted] | None = None
    for left, covariance in zip(range(len(covariances), 0, -1), covariances, strict=True):
        began = now()
        until = began + (end - began) / left
        asked = replace(config, covariance=covariance)
        rival = -math.inf if best is None else best[1].evidence
        make = partial(_candidate, asked, label_sizes, levels, len(x))
        found = search(make, x, labels, numbers, config.seed, config.starts, rival, until)
        if best is None or found.evidence > best[1].evidence:
            best = asked, found
    assert best is not None
    asked, found = best
    return replace(asked, factors=(*label_sizes, found.model.components))


def _candidate(
    config: MixtureOptions,
    label_sizes: tuple[int, ...],
    levels: Sequence[int],
    num_data: int,
    number: int,
) -> ObservedMixture:
    return model_of(replace(config, factors=(*label_sizes, number)), levels, num_data)
