"""Models without networks, learnt by EM: their common options, defaults by data, measures and figures."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from torch import Tensor

from pyro_fmvae import figures
from pyro_fmvae.app.recipes.pictures import (
    activity_measures,
    codes_of,
    reconstructions,
    samples,
    source_measures,
    true_sources,
)
from pyro_fmvae.app.recipes.recipe import Recipe
from pyro_fmvae.app.recipes.settings import shared_defaults
from pyro_fmvae.data import Batches, Dataset, SparseOptions, Split
from pyro_fmvae.data.registry import LOADERS, SCENES
from pyro_fmvae.data.sets.bars import NAMES, bars_truth
from pyro_fmvae.evaluate.recovery import match_units
from pyro_fmvae.figures.page import Figure
from pyro_fmvae.infer.natural_gradient import RobbinsMonro
from pyro_fmvae.learn.options import CoderOptions, refuse
from pyro_fmvae.learn.phase import check_spread

WHOLE, BATCH = 2000, 1000  # points up to which a batch holds all; how many it holds of more
EPOCHS = 20  # of stepwise EM
UNITS = 100  # by default


_Options = TypeVar("_Options", bound=CoderOptions)


def em_rate_of(config: CoderOptions) -> RobbinsMonro:
    """Step sizes of stepwise EM."""
    return RobbinsMonro(delay=1.0, forgetting=config.em_forgetting)


def is_whole(config: CoderOptions, dataset: Dataset) -> bool:
    """Return True if a batch holds all training points."""
    return batch_size(config, dataset) >= len(dataset.train)


def batch_size(config: CoderOptions, dataset: Dataset) -> int:
    """Points per batch: all if they are few, unless it is given."""
    number = len(dataset.train)
    return config.batch_size or (number if number <= WHOLE else BATCH)


class CoderRecipe(Recipe[_Options]):
    """The common part of recipes of models without networks."""

    indexed = True  # each point keeps what its next E-step starts from
    splits_patches: ClassVar[bool] = False
    """True if patches are split into on and off by default: where means are never negative."""

    @classmethod
    def reading(cls, config: _Options, data: str) -> SparseOptions:
        """Numbers as they are, or patches of images."""
        own = data not in LOADERS
        as_is = config.patch_size is None and (own or data in NAMES)
        if not (own or data == SCENES or data == config.data):  # nothing to cut; others see other shapes
            return SparseOptions(as_is)
        split = cls._split_patches(config)
        return SparseOptions(as_is, config.patch_size, config.patches, config.whiten, split)

    @classmethod
    def _split_patches(cls, config: _Options) -> bool:
        """Split patches into on and off, as the model does by default, unless it is given."""
        if config.on_off is not None:
            return config.on_off
        return cls.splits_patches and (config.patch_size is not None or config.data == SCENES)

    @classmethod
    def defaults_for(cls, config: _Options, dataset: Dataset) -> dict[str, Any]:
        """Defaults of :class:`CoderOptions`, but for ``starts``, ``sweeps`` and ``temperature``."""
        bars = config.data in NAMES
        return {
            "latent_dim": 2 * dataset.event_shape[0] if bars else UNITS,
            "batch_size": batch_size(config, dataset),
            **shared_defaults(config),
            "on_off": cls._split_patches(config),
            "final_learning_rate": 0.1 * config.learning_rate,
        }

    @staticmethod
    def _epochs(config: _Options, dataset: Dataset) -> int:
        """Iterations of stepwise EM on batches that are not all data."""
        return EPOCHS * -(-len(dataset.train) // batch_size(config, dataset))

    @classmethod
    def check(cls, config: _Options, dataset: Dataset) -> _Options:
        """There is something to learn, and every option has an effect."""
        check_spread(dataset.train.observations)
        if config.patch_size is None and config.data != SCENES:
            refuse(config, ("patches", "whiten"), "--patch-size")
        if is_whole(config, dataset):
            refuse(config, ("em_forgetting",), "batches in closed form")
        return super().check(config, dataset)

    @property
    def misgiving(self) -> str:
        """As many units as points can memorise each point."""
        if self.num_data > self.config.units:
            return ""
        units = f"{self.config.units} units for {self.num_data} training points"
        return f"{units}: what is learnt will not hold for other points"

    @property
    def against_overfitting(self) -> str:
        """Fewer units."""
        return "fewer units (--latent-dim)"

    def _search(self) -> dict[str, Any]:
        """Arguments by which EM looks for a good optimum."""
        config = self.config
        return {"starts": config.starts, "temperature": config.temperature, "rate": em_rate_of(config)}

    def measures(self, model: Any, batches: Batches, split: str | None) -> dict[str, Any]:
        """Active latents, correlations with known sources, and :meth:`_unit_measures`."""
        codes = codes_of(model, batches)
        sources = true_sources(self.config, split, len(codes))
        return activity_measures(codes) | source_measures(codes, sources) | self._unit_measures(model)

    def _unit_measures(self, model: Any) -> dict[str, Any]:
        """Measures of units.

        Returns:
            ``units``, their number; ``noise``, the standard deviation of the observation; and, of data that
            were generated from known units, ``recovered``: how many of those have a unit of their own with a
            cosine above 0.95 to them.
        """
        result: dict[str, Any] = {"units": model.latent_dim, "noise": model.log_scale.exp().item()}
        truth = bars_truth(self.config.data)
        if truth is not None:
            learnt = model.dictionary.detach().cpu().double().numpy()
            result["recovered"] = match_units(learnt, np.asarray(truth.dictionary)).recovered
        return result

    def summary(self, model: Any) -> list[str]:
        """Units, noise, and known units that were recovered."""
        found = self._unit_measures(model)
        recovered = f", recovered units: {found['recovered']}" if "recovered" in found else ""
        return [f"units: {found['units']}, standard deviation of the noise: {found['noise']:.4g}{recovered}"]

    def draw_figures(
        self, model: Any, rows: Split, split: str, records: Sequence[Mapping[str, Any]]
    ) -> dict[str, Figure]:
        """The search for a good start; units and reconstructions of images; causes, of spikes and slabs."""
        drawn = {}
        followed = [record for record in records if "objective" in record and record["phase"] == "joint"]
        if followed:
            drawn["starts"] = figures.em_curves(followed, followed[-1]["start"])
        if len(model.event_shape) == 2:
            use = model.logits.sigmoid().expand(model.latent_dim).cpu()
            drawn["dictionary"] = figures.dictionary(self._units(model), order=use)
            drawn["reconstructions"] = reconstructions(self, model, rows)
            drawn["samples"] = samples(self, model)
            truth = bars_truth(self.config.data)
            if truth is not None:
                true, learnt = (part.double().cpu().numpy() for part in (truth.dictionary, model.dictionary))
                drawn["recovered"] = figures.recovered_units(true, learnt, match_units(learnt, true))
        return drawn

    def _units(self, model: Any) -> Tensor:
        """Units as images [H, h, w]; of patches that are split into on and off, the difference."""
        units, patches = model.dictionary.cpu(), self.preprocessing.patches
        return units if patches is None else patches.join(units)
