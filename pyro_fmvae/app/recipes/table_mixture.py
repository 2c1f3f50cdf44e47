"""The recipe of observed mixtures: tables without networks."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

import torch
from torch import Tensor

from pyro_fmvae import figures
from pyro_fmvae.app.recipes.labelling import check_labels, check_numbered
from pyro_fmvae.app.recipes.pictures import cluster_figure
from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.app.recipes.settings import budgets_of, shared_defaults
from pyro_fmvae.data import Dataset, Kind, Preprocessing, SparseOptions, Split, hide_labels
from pyro_fmvae.figures.columns import MOST_COLUMNS
from pyro_fmvae.figures.page import Figure
from pyro_fmvae.learn.cluster_tree import Clusters
from pyro_fmvae.learn.coordinate_ascent import Fitted
from pyro_fmvae.learn.mixture import STARTS, mixture_of_rows, seed_of
from pyro_fmvae.learn.mixture_ascent import MixtureAscent
from pyro_fmvae.learn.options import MixtureOptions
from pyro_fmvae.learn.phase import Phase
from pyro_fmvae.models import ObservedMixture, TablePrior
from pyro_fmvae.models.table_sites import LEFT_OUT, column_site

logger = logging.getLogger("pyro_fmvae")

# Options of mixtures of table rows, and how the evidence chooses them.

WIDEST_FULL: Final = 60
"""Most columns of numbers whose full covariances are tried."""
LEARNT: Final = TablePrior(c0=4.0, b0=0.3)
"""Prior of mixtures that learn the one of the numbers. With c0 = 4, shares stay away from 0
(Frühwirth-Schnatter, 2006, Finite mixture and Markov switching models, Section 4.2.2)."""


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
    for column in preprocessing.ignored:
        found[column] = LEFT_OUT
    return tuple(found)


def constant_columns(dataset: Dataset) -> tuple[str, ...]:
    """Names of the columns that have a single value in the training rows."""
    x = dataset.train.observations
    low, high = x.nan_to_num(torch.inf).amin(0), x.nan_to_num(-torch.inf).amax(0)
    names = column_names(dataset.preprocessing)
    return tuple(names[column] for column in (low >= high).nonzero().flatten().tolist())


def model_of(
    config: MixtureOptions, levels: Sequence[int], num_data: int, others: Sequence[int] = ()
) -> ObservedMixture:
    """A new model of resolved options."""
    assert config.factors is not None
    *label_sizes, components = config.factors
    given = config.component_variance
    prior = LEARNT if given is None else TablePrior(b0=given)
    full, learn = config.covariance == "full", given is None
    return ObservedMixture(levels, components, num_data, label_sizes, prior, full, learn, others)


def chosen(
    config: MixtureOptions, dataset: Dataset, levels: Sequence[int], label_sizes: tuple[int, ...]
) -> MixtureOptions:
    """Options with the components and covariance of the greatest evidence of some training rows."""
    x, labels = dataset.train.observations, None
    if label_sizes:
        assert config.labels is not None
        labels = hide_labels(dataset.train, config.labels, config.seed)[:, : len(label_sizes)]
    covariances: tuple[Literal["diagonal", "full"], ...] = ("full", "diagonal")
    if config.covariance is not None:
        covariances = (config.covariance,)
    elif not 2 <= levels.count(0) <= WIDEST_FULL:
        covariances = ("diagonal",)
    components = None if config.factors is None else config.factors[-1]
    assert config.starts is not None
    minutes = config.max_minutes or config.time_limit
    end = time.monotonic() + 60 * minutes / 2 if minutes else math.inf  # the rest is for training
    best: tuple[MixtureOptions, Fitted] | None = None
    for left, covariance in zip(range(len(covariances), 0, -1), covariances, strict=True):
        began = time.monotonic()
        until = began + (end - began) / left
        asked = replace(config, covariance=covariance)
        make = partial(_candidate, asked, label_sizes, levels)
        found = mixture_of_rows(
            make, x, seed_of(config.seed), components, config.starts, labels=labels, until=until
        )
        if best is None or found.evidence > best[1].evidence:
            best = asked, found
    if time.monotonic() > end:
        logger.warning("components: not all moves were tried: the time is up")
    assert best is not None
    asked, found = best
    return replace(asked, factors=(*label_sizes, found.model.components))


def _candidate(
    config: MixtureOptions, label_sizes: tuple[int, ...], levels: Sequence[int], number: int, num_data: int
) -> ObservedMixture:
    return model_of(replace(config, factors=(*label_sizes, number)), levels, num_data)


STEPS: Final = 100
"""Updates; by default each is on the whole table."""


class Mixture(Recipe[MixtureOptions]):
    """Rows of a table are drawn from components directly, without a decoder."""

    name = "mixture"
    title = "mixture of a table's rows, without networks"
    options = MixtureOptions
    factorial = True
    rows_are_codes = True
    tables = True
    indexed = True
    closed_form = True
    against_overfitting = "fewer components (--factors)"

    @classmethod
    def reading(cls, config: MixtureOptions, data: str) -> SparseOptions:
        """Missing numbers and words are understood."""
        return SparseOptions(mixed=True)

    @classmethod
    def defaults_for(cls, config: MixtureOptions, dataset: Dataset) -> dict[str, Any]:
        """Updates on the whole table; columns that are constant are left out.

        Raises:
            ValueError: pictures.
        """
        preprocessing, number = dataset.preprocessing, len(dataset.train)
        if len(preprocessing.event_shape) != 1 or preprocessing.kind is Kind.PATCHES:
            raise ValueError("model: mixture learns tables; for pictures give --model fmvae")
        own = {"batch_size": number, "joint_iterations": STEPS, "starts": STARTS}
        return shared_defaults(config) | own | {"ignore": constant_columns(dataset)}

    @classmethod
    def check(cls, config: MixtureOptions, dataset: Dataset) -> MixtureOptions:
        """Components and covariance by the greatest evidence of the training rows."""
        config = super().check(config, dataset)
        names: tuple[str, ...] = ()
        if config.labels:
            names = dataset.label_names if config.label_names is None else config.label_names
            check_numbered(dataset, names)
            of_labels = tuple(max(size, 1) for size in dataset.label_sizes[: len(names)])
            check_labels(dataset, names, of_labels, config.labels, config.seed)
            if config.factors is not None and len(config.factors) == 1:
                config = replace(config, factors=(*of_labels, *config.factors))
        if config.factors is not None and len(config.factors) != len(names) + 1:
            raise ValueError(f"factors: expected one number of components, got {config.factors}")
        levels = levels_of(config, dataset.preprocessing)
        if set(levels) == {LEFT_OUT}:
            raise ValueError("data: expected a column whose values differ, got none that is not left out")
        if None in (config.factors, config.covariance):
            config = chosen(config, dataset, levels, of_labels if names else ())
        return config

    # ------------------------------------------------------------------ model and learning

    def build(self) -> ObservedMixture:
        """Components of the columns that are not left out."""
        features = [column for column in self.preprocessing.plan for _ in column.features]
        others = [place for place, column in enumerate(features) if column.other]
        return model_of(self.config, levels_of(self.config, self.preprocessing), self.num_data, others)

    def phases(self, model: ObservedMixture) -> list[Phase]:
        """Coordinate ascent."""
        config = self.config
        assert config.starts is not None
        make = partial(_candidate, config, self.factors[:-1], model.levels)
        budget = budgets_of(config)["joint"]
        return [MixtureAscent(model, make, budget, seed_of(config.seed), config.starts, config.stacking)]

    # ------------------------------------------------------------------ reports and figures

    def summary(self, model: ObservedMixture) -> list[str]:
        """Components in use and what they are like; the columns that were left out."""
        *_, used = model.used_components()
        lines = [
            f"components in use: {used} of {model.components}, with {self.config.covariance} covariances, "
            f"learnt without networks; clusters that they make up: {Clusters(model).number}"
        ]
        for factor in self.labelled:
            if (predictor := model.predictor_of(factor)) is not None:
                lines.append(f"{self.factor_names[factor]} predicted by: {predictor.summary()}")
        if self.config.ignore:
            lines.append(f"columns left out: {', '.join(self.config.ignore)}")
        powers = self.preprocessing.powers
        if powers is not None and powers.number:
            lines.append(f"skewed columns, transformed by a power: {powers.number}")
        return lines

    def draw_figures(
        self, model: ObservedMixture, rows: Split, split: str, records: Sequence[Mapping[str, Any]]
    ) -> dict[str, Figure]:
        """Curves of training, how components join, and their means of numbers and shares of words."""
        drawn = cluster_figure(Clusters(model), model.counts().clamp(min=0))
        names = column_names(self.preprocessing)
        shown = [column for column, size in enumerate(model.levels) if not size]
        if 0 < len(shown) <= MOST_COLUMNS:
            means = self._of_components(model, model.locations()[:, shown])
            drawn["columns"] = figures.column_means(means, [names[column] for column in shown])
        categorical = [column for column, _ in model.sites.categories]
        levels = {
            column: words
            for column, words in enumerate(categories_of(self.preprocessing))
            if words and column in categorical
        }
        words = [f"{names[column]}: {word}" for column in levels for word in levels[column]]
        if 0 < len(words) <= MOST_COLUMNS:
            shares = torch.cat([model.probs(column_site(column)) for column in levels], -1)
            drawn["words"] = figures.column_means(self._of_components(model, shares), words, "share")
        return drawn

    def _of_components(self, model: ObservedMixture, values: Tensor) -> figures.Factors:
        """Values of components [K, columns] as figures of factors take them."""
        means = values.cpu()
        return figures.Factors(
            decode=lambda z: z,
            sample_latent=lambda n, codes: means[codes[:, 0]],
            means=[means],
            shares=[model.counts().clamp(min=0).cpu()],
            names=[self.factor_names[-1]],
        )
