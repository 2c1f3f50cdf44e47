"""The recipes of spike-and-slab sparse coding, with a max rule and with a linear one."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pyro_fmvae import figures
from pyro_fmvae.app.recipes.coders import CoderRecipe, em_rate_of, is_whole
from pyro_fmvae.app.recipes.settings import budgets_of
from pyro_fmvae.data import Batches, Dataset, Split
from pyro_fmvae.figures.page import Figure
from pyro_fmvae.learn.options import SlabOptions
from pyro_fmvae.learn.phase import Phase
from pyro_fmvae.learn.stepwise_em import StepwiseEM
from pyro_fmvae.models import SpikeAndSlabSparseCoding
from pyro_fmvae.models.em.spike_and_slab_em import SpikeAndSlabEM
from pyro_fmvae.models.em.spike_and_slab_rules import LinearRule, MaxRule, Rule

DRAWN, DRAWS = 200, 20  # points whose causes are drawn, and how often


class SlabRecipe(CoderRecipe[SlabOptions]):
    """z has a spike and a slab in each dimension; a rule says how units go together."""

    options = SlabOptions
    closed_form = True

    @staticmethod
    @abstractmethod
    def _rule() -> Rule:
        """The rule by which the units that are on make the mean of x."""

    @classmethod
    def defaults_for(cls, config: SlabOptions, dataset: Dataset) -> dict[str, Any]:
        """Two starts and a refine phase where a batch holds all data."""
        full = is_whole(config, dataset)
        return super().defaults_for(config, dataset) | {
            "joint_iterations": 50 if full else cls._epochs(config, dataset),
            "refine_iterations": 5 if full else 0,
            "starts": 2 if full else 1,
            "sweeps": 4,
            "temperature": 3.0,
            "preselect": 5,
        }

    @classmethod
    def check(cls, config: SlabOptions, dataset: Dataset) -> SlabOptions:
        """There are units to choose from."""
        if config.units == 1:
            raise ValueError("latent_dim: expected 2 units at least, got 1")
        return super().check(config, dataset)

    def build(self) -> SpikeAndSlabSparseCoding:
        """The model with its EM."""
        em = self._em(self.config.preselect)
        return SpikeAndSlabSparseCoding(self.preprocessing.event_shape, self.num_data, em)

    def _em(self, preselect: int | None) -> SpikeAndSlabEM:
        """EM in which so many units are drawn for each point; 0 or None: all."""
        config = self.config
        assert config.sweeps is not None
        few = preselect if preselect and preselect < config.units else None
        last = max(config.sweeps // 2, 1)
        return SpikeAndSlabEM(self._rule(), config.units, few, config.sweeps, last, config.shared)

    def phases(self, model: SpikeAndSlabSparseCoding) -> list[Phase]:
        """EM with preselected units, then with all."""
        budgets, rate = budgets_of(self.config), em_rate_of(self.config)
        return [
            StepwiseEM(model, model.em, budgets["joint"], **self._search()),
            StepwiseEM(model, self._em(None), budgets["refine"], 0, rate, name="refine"),
        ]

    def draw_figures(
        self, model: Any, rows: Split, split: str, records: Sequence[Mapping[str, Any]]
    ) -> dict[str, Figure]:
        """Figures of every coder, and ``causes``: draws from the posterior beside the prior."""
        first = rows.select(torch.arange(min(DRAWN, len(rows))))
        (x, *_), *_ = Batches(first, DRAWN, shuffle=False, device=model.weight.device)
        draws = model.gibbs(x, DRAWS).flatten(0, 1).cpu()
        prior = model.logits.sigmoid(), model.loc, (0.5 * model.log_variance).exp()
        causes = figures.slab_histogram(draws, *(part.cpu() for part in prior))
        return super().draw_figures(model, rows, split, records) | {"causes": causes}


class MaxSparse(SlabRecipe):
    """The mean of x is, at each pixel, the greatest of the units that are on."""

    name = "max-sparse"
    title = "spike-and-slab sparse coding with a max rule"
    bars = "bars-max"
    splits_patches = True

    @staticmethod
    def _rule() -> Rule:
        return MaxRule()


class LinearSparse(SlabRecipe):
    """The mean of x is the sum of the units that are on."""

    name = "linear-sparse"
    title = "spike-and-slab sparse coding with a linear rule"
    bars = "bars-linear"

    @staticmethod
    def _rule() -> Rule:
        return LinearRule()
