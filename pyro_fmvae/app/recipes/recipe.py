"""The contract of a recipe: how the command line trains a model, and what it says and shows of it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic

from torch import nn

from pyro_fmvae.data import Batches, Dataset, Preprocessing, SparseOptions, Split
from pyro_fmvae.data.labels import Amount
from pyro_fmvae.figures.page import Figure
from pyro_fmvae.learn.options import Options, check_iterations, completed

if TYPE_CHECKING:
    from pyro_fmvae.learn.phase import Phase

OWN_NAMES: Final = -1
"""The key, among factors, of the names of factors themselves."""


@dataclass(frozen=True)
class Recipe(ABC, Generic[Options]):
    """One model of ``pyro-fmvae train --model``, with the options and the data of one run.

    Subclasses are abstract or final. A final one stands in :data:`pyro_fmvae.app.recipes.registry.RECIPES`.
    It says what it is by attributes of the class, or by properties where they depend on the run.

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

    # ------------------------------------------------------------------ what it is

    @property
    def factors(self) -> tuple[int, ...]:
        """K_i, components of each factor; none where z has no factors."""
        found: tuple[int, ...] | None = getattr(self.config, "factors", None) if self.factorial else ()
        if found is None:
            raise ValueError("factors: expected a size for each factor, got None")
        return found

    @property
    def labels(self) -> Amount:
        """How many labels are used, as :func:`~pyro_fmvae.data.hide_labels` takes it."""
        return getattr(self.config, "labels", None) or 0.0

    @property
    def spread(self) -> float:
        """Precision with which labels spread to other points for training, 0 for none.

        See :func:`~pyro_fmvae.learn.label_spreading.spread_labels`.
        """
        return getattr(self.config, "spread", None) or 0.0

    @property
    def indexed(self) -> bool:
        """True if training keeps something of each point, so that batches carry the indices of their rows.

        Then there is no encoder for other points.
        """
        return False

    @property
    def closed_form(self) -> bool:
        """True if training takes no gradient steps, so that there is nothing to capture or compile."""
        return False

    @property
    def start(self) -> tuple[Path, tuple[str, ...]] | None:
        """Run to start from, and prefixes of the names of the parameters to take over; None: from scratch."""
        return None

    @property
    def misgiving(self) -> str:
        """Warning about the size of the model for its data; empty: none."""
        return ""

    @property
    def against_overfitting(self) -> str:
        """Changes that would help where training points were memorised, for a message."""
        return "fewer iterations"

    # ------------------------------------------------------------------ training

    @classmethod
    def resolve(cls, config: Options, dataset: Dataset) -> Options:
        """Options with every default that depends on the data.

        Raises:
            ValueError: options that do not fit the data or each other; it names the option.
        """
        return cls.check(completed(config, cls.defaults_for(config, dataset)), dataset)

    @classmethod
    @abstractmethod
    def defaults_for(cls, config: Options, dataset: Dataset) -> dict[str, Any]:
        """Values by name of the options that data choose; ``config`` has what was given."""

    @classmethod
    def check(cls, config: Options, dataset: Dataset) -> Options:
        """Check options that have their defaults, and choose what depends on several of them."""
        check_iterations(config)
        return config

    @classmethod
    def reading(cls, config: Options, data: str) -> SparseOptions | None:
        """Options for reading data of that name; None: read pixels in [0, 1] or standardised columns."""
        return None

    @abstractmethod
    def build(self) -> Any:
        """The untrained model, with the networks that it needs.

        A model has ``code(x)``, one z [B, J] for each point; ``encode(x)``, the arrays that the command
        ``encode`` writes, among them ``mean``; ``decode(z)``; ``reconstruct(x)``; and ``sample_latent(n)``.
        """

    @abstractmethod
    def phases(self, model: Any) -> "list[Phase]":
        """The phases in which the model is learnt, in order."""

    def augmentation(self) -> nn.Module | None:
        """Transform of half of the points of every training batch, or None."""
        return None

    # ------------------------------------------------------------------ measures and pictures

    def measures(self, model: Any, batches: Batches, split: str | None) -> dict[str, Any]:
        """Entries that ``evaluate`` prints beside the bound, clusters and agreement with labels.

        Args:
            model: as trained.
            batches: of the points that were asked about, in order.
            split: its name, where these are the first points of a split of the run's own data.
        """
        return {}

    def summary(self, model: Any) -> list[str]:
        """Lines about the trained model for the report at the end of a training."""
        return []

    def draw_figures(
        self, model: Any, rows: Split, split: str, records: Sequence[Mapping[str, Any]]
    ) -> dict[str, Figure]:
        """Figures of a finished run, by name, beside the curves of its training.

        Args:
            model: as trained.
            rows: points to show.
            split: its name.
            records: of the training, as in ``metrics.jsonl``.
        """
        return {}

    # ------------------------------------------------------------------ names

    @property
    def image(self) -> bool:
        """True if a data point is an image."""
        return self.preprocessing.image

    @property
    def num_values(self) -> tuple[int, ...]:
        """Values that the components of each factor stand for: component k for value k modulo this."""
        per_value = getattr(self.config, "per_value", 1)
        of_labels = (self.factors[factor] // per_value for factor in self.labelled)
        return (*of_labels, *self.factors[len(self.labelled) :])

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

    def check_factors(self, argument: str, purpose: str) -> None:
        """Raise ValueError, naming the argument and what needs them, if z has no factors."""
        if not self.factorial:
            raise ValueError(
                f"{argument}: {purpose} needs factors, but this run's model ({self.name}) has none"
            )

    def used_components(self, model: Any) -> list[int]:
        """Components in use of each factor; none where z has no factors."""
        used: list[int] = model.used_components() if self.factorial else []
        return used
