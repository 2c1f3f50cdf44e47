"""The contract of a recipe: everything that the command line has to know of a model."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic

import numpy as np
import torch
from torch import Tensor, nn

from pyro_fmvae.data import Batches, Dataset, Preprocessing, SparseOptions, Split
from pyro_fmvae.data.labels import Amount
from pyro_fmvae.evaluate import label_agreement
from pyro_fmvae.figures.page import Figure
from pyro_fmvae.learn.options import Options

if TYPE_CHECKING:
    from pyro_fmvae.learn.cluster_tree import Clusters
    from pyro_fmvae.learn.phase import Phase

OWN_NAMES: Final = -1
"""The key, among factors, of the names of factors themselves."""


@dataclass(frozen=True)
class Recipe(ABC, Generic[Options]):
    """One model of ``pyro-fmvae train --model``, with the options and the data of one run.

    Subclasses are abstract or final. A final one stands in :data:`pyro_fmvae.app.recipes.registry.RECIPES`.
    An
    attribute of the class takes the place of a property that is the same in all runs: ``labels = 0.0``.

    Args:
        config: resolved options.
        preprocessing: how raw data become the model's input.
        num_data: N, points in the training set.
        label_names: one per label column of the data set, those that are trained on first.
        value_names: per label column, names of its values; empty where they are numbers.
        given_names: factor → component → the name that a person gave it; and `OWN_NAMES` → factor → its name.
    """

    config: Options
    preprocessing: Preprocessing
    num_data: int
    label_names: tuple[str, ...] = ()
    value_names: tuple[tuple[str, ...], ...] = ()
    given_names: Mapping[int, Mapping[int, str]] = field(default_factory=dict)

    name: ClassVar[str]
    """As given to ``--model``."""
    title: ClassVar[str]
    """In words, for ``--help``."""
    options: ClassVar[type[Any]]
    """The model's options, a subclass of :class:`~pyro_fmvae.learn.options.TrainConfig`."""
    factorial: ClassVar[bool] = False
    """True if z has factors, with components and codes."""
    gaussian_codes: ClassVar[bool] = False
    """True if q(z | x) is Gaussian and z is decoded, so that points have distances."""
    rows_are_codes: ClassVar[bool] = False
    """True if z is the row of a table itself, with what is missing filled in."""
    tables: ClassVar[bool] = False
    """True if data must be tables."""
    bars: ClassVar[str | None] = None
    """The data set that ``--data bars`` stands for: one that the model could have generated."""

    # ------------------------------------------------------------------ options and data

    @classmethod
    @abstractmethod
    def resolve(cls, config: Options, dataset: Dataset) -> Options:
        """Options with every default that depends on the data.

        Raises:
            ValueError: options that do not fit the data or each other; it names the option.
        """

    @classmethod
    @abstractmethod
    def reading(cls, config: Options, data: str) -> SparseOptions | None:
        """Options for reading data of that name; None: read pixels in [0, 1] or standardised columns."""

    @property
    def image(self) -> bool:
        """True if a data point is an image."""
        return self.preprocessing.image

    @property
    @abstractmethod
    def factors(self) -> tuple[int, ...]:
        """K_i, components of each factor; none where z has no factors."""

    @property
    def num_values(self) -> tuple[int, ...]:
        """Values that the components of each factor stand for: component k for value k modulo this."""
        per_value = getattr(self.config, "per_value", 1)
        of_labels = (self.factors[factor] // per_value for factor in self.labelled)
        return (*of_labels, *self.factors[len(self.labelled) :])

    @property
    @abstractmethod
    def labels(self) -> Amount:
        """How many labels are used, as :func:`~pyro_fmvae.data.hide_labels` takes it."""

    @property
    @abstractmethod
    def spread(self) -> float:
        """Precision with which labels spread to other points for training, 0 for none.

        See :func:`~pyro_fmvae.learn.label_spreading.spread_labels`.
        """

    @property
    def labelled(self) -> tuple[int, ...]:
        """Factors that labels are trained on: the leading ones."""
        chosen = self.config.label_names
        return tuple(range(len(self.label_names if chosen is None else chosen))) if self.labels else ()

    @property
    def factor_names(self) -> tuple[str, ...]:
        """Name of each factor: its label, the name that a person gave it, or its number, as in codes."""
        trained = tuple(self.label_names[factor] for factor in self.labelled)
        given, free = self.given_names.get(OWN_NAMES, {}), range(len(trained), len(self.factors))
        return (*trained, *(given.get(factor, f"factor {factor}") for factor in free))

    def value_text(self, column: int, value: int) -> str:
        """Name of a value of a label column: the number itself where values have no names."""
        names = self.value_names[column] if self.value_names else ()
        given = self.given_names.get(column, {}) if column in self.labelled else {}
        return given.get(value, names[value] if value < len(names) else str(value))

    def component_names(self, factor: int) -> tuple[str, ...]:
        """Names of the leading values of a factor's components; none at all if none of them has a name.

        They are those that a person gave, else those of the values that it was trained on, else numbers.
        """
        size = self.num_values[factor]
        given = self.given_names.get(factor, {})
        of_values = self.value_names[factor][:size] if factor in self.labelled and self.value_names else ()
        named = max([len(of_values), *(component + 1 for component in given)])
        known = dict(enumerate(of_values)) | dict(given)
        return tuple(known.get(component, str(component)) for component in range(named))

    def factors_of(self, label_names: Sequence[str]) -> list[int | None]:
        """The factor that was trained on each of these labels, None where there is none."""
        trained = {self.label_names[factor]: factor for factor in self.labelled}
        return [trained.get(name) for name in label_names]

    # ------------------------------------------------------------------ model and learning

    @abstractmethod
    def build(self) -> Any:
        """The untrained model, with the networks that it needs."""

    @abstractmethod
    def match(self, model: Any, state: Mapping[str, Tensor]) -> None:
        """Prepare a model for loading a state dictionary."""

    @property
    @abstractmethod
    def start(self) -> tuple[Path, tuple[str, ...]] | None:
        """Run to start from, and prefixes of the names of the parameters to take over; None: from scratch."""

    @abstractmethod
    def augmentation(self) -> nn.Module | None:
        """Transform of half of the points of every training batch, or None."""

    @abstractmethod
    def phases(self, model: Any) -> "list[Phase]":
        """The phases in which the model is learnt, in order."""

    @property
    @abstractmethod
    def indexed(self) -> bool:
        """True if training keeps something of each point, so that batches carry the indices of their rows."""

    @property
    @abstractmethod
    def closed_form(self) -> bool:
        """True if training takes no gradient steps, so that there is nothing to capture or compile."""

    @property
    @abstractmethod
    def misgiving(self) -> str:
        """Warning about the size of the model for its data; empty: none."""

    @property
    @abstractmethod
    def against_overfitting(self) -> str:
        """Changes that would help where training points were memorised, for a message."""

    # ------------------------------------------------------------------ codes and samples

    @abstractmethod
    def code(self, model: Any, x: Tensor) -> Tensor:
        """One z [B, J] for each point of a batch: the mean of q(z | x); sparse codes have exact zeros."""

    @abstractmethod
    def decode(self, model: Any, z: Tensor) -> Tensor:
        """E[x | z] at z [..., J]: ``[..., *event_shape]``."""

    @abstractmethod
    def reconstruct(self, model: Any, x: Tensor) -> Tensor:
        """Posterior mean of the data that a batch ``x[B, *event_shape]`` is a noisy observation of."""

    @abstractmethod
    def encode(self, model: Any, x: Tensor) -> dict[str, Tensor]:
        """Arrays that ``encode`` writes of a batch, each [B, ...], by name."""

    @abstractmethod
    def fit_clusters(self, model: Any, batches: Batches) -> None:
        """Learn what :meth:`clusters` need beside the trained model.

        Args:
            model: as trained; it changes.
            batches: of training points.
        """

    @abstractmethod
    def clusters(self, model: Any) -> "Clusters | None":
        """Clusters that are unions of components; None: there are none."""

    @abstractmethod
    def of_clusters(self, model: Any, encoded: Mapping[str, Tensor]) -> Tensor:
        """Responsibilities of the components that make up clusters, [B, K].

        Args:
            model: as trained.
            encoded: what :meth:`encode` gives.
        """

    @abstractmethod
    def program(self, model: Any) -> nn.Module | None:
        """A module that gives the arrays of :meth:`encode` by tensor operations alone, to be traced.

        None where the model has no encoder.
        """

    @abstractmethod
    def sample(self, model: Any, codes: Tensor) -> tuple[Tensor, dict[str, np.ndarray]]:
        """Draw z [n, J] from the prior.

        Args:
            model: whose prior.
            codes: component of each factor, int64 [n, I], -1 where it is to be drawn; [n, 0] without factors.

        Returns:
            z, and further arrays that ``sample`` writes, by name.
        """

    @abstractmethod
    def edit(self, model: Any, x: Tensor, changes: Mapping[int, int]) -> Tensor:
        """Decoded rows of a batch, some factors of which have other components.

        Args:
            model: whose factors.
            x: a batch ``[B, *event_shape]``.
            changes: factor → its new component.

        Returns:
            E[x | z] at the edited z, ``[B, *event_shape]``.
        """

    # ------------------------------------------------------------------ reports and figures

    def agreement(self, model: Any, batches: Batches, label_names: Sequence[str]) -> dict[str, Any]:
        """Agreement of codes and clusters with labels: see :func:`~pyro_fmvae.evaluate.label_agreement`."""
        factors, clusters = self.factors_of(label_names), self.clusters(model)
        if clusters is None:
            return label_agreement(model, batches, label_names, factors, self.num_values)

        def of_rows(x: Tensor) -> Tensor:
            return clusters.assign(self.of_clusters(model, self.encode(model, x)))[0]

        return label_agreement(model, batches, label_names, factors, self.num_values, of_rows)

    @property
    @abstractmethod
    def no_gap(self) -> str:
        """Why ``evaluate --free-steps`` has nothing to compare; empty: it has an encoder of Gaussians."""

    def used_components(self, model: Any) -> list[int]:
        """Components in use of each factor; none where z has no factors."""
        used: list[int] = model.used_components() if self.factorial else []
        return used

    @abstractmethod
    def surprise(self, model: Any, x: Tensor, new: Tensor) -> Tensor:
        """Nats that categories that training did not have add to the scores of rows, float64 [B].

        Args:
            model: as trained.
            x: rows [B, D], NaN where they have such a category.
            new: where that is, bool [B, D].
        """

    @abstractmethod
    def measures(
        self, model: Any, rows: Split, batches: Batches, label_names: Sequence[str], split: str | None
    ) -> dict[str, Any]:
        """Entries that ``evaluate`` prints beside the bound.

        Args:
            model: as trained.
            rows: the points that were asked about.
            batches: of the same points, in order.
            label_names: of the label columns of ``rows``.
            split: its name, where ``rows`` are the first points of a split of the run's own data.
        """

    @abstractmethod
    def summary(self, model: Any) -> list[str]:
        """Lines about the trained model for the report at the end of a training."""

    @abstractmethod
    def draw_figures(
        self, model: Any, rows: Split, split: str, records: Sequence[Mapping[str, Any]]
    ) -> dict[str, Figure]:
        """Figures of a finished run, by name; ``training`` is one of them.

        Args:
            model: as trained.
            rows: points to show.
            split: its name.
            records: of the training, as in ``metrics.jsonl``.
        """


@torch.no_grad()
def codes_of(recipe: Recipe[Any], model: Any, batches: Batches) -> Tensor:
    """The code of every row, in order, on the CPU: [n, J]."""
    return torch.cat([recipe.code(model, x).cpu() for x, *_ in batches])


class ComponentsAlone(Recipe[Options]):
    """A recipe whose components make up no clusters."""

    def match(self, model: Any, state: Mapping[str, Tensor]) -> None:
        """Prepare a model for loading a state dictionary."""
        model.match(state)

    def fit_clusters(self, model: Any, batches: Batches) -> None:
        """Learn nothing."""

    def clusters(self, model: Any) -> None:
        """None: there are none."""

    def of_clusters(self, model: Any, encoded: Mapping[str, Tensor]) -> Tensor:
        """Refuse: there are no clusters."""
        raise NotImplementedError

    def surprise(self, model: Any, x: Tensor, new: Tensor) -> Tensor:
        """Zeros [B]: categories that training did not have are missing, and no more."""
        return torch.zeros(len(x), dtype=torch.float64)
