"""The recipe of variational sparse coding (Tonolini et al., 2019)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from torch import nn

from pyro_fmvae.app.recipes.networks import NetworkRecipe, networks
from pyro_fmvae.app.recipes.pictures import (
    activity_measures,
    class_activity,
    codes_of,
    correlations,
    first_codes,
    reconstructions,
    samples,
    source_measures,
    sparse_pictures,
    true_sources,
)
from pyro_fmvae.app.recipes.settings import budgets_of
from pyro_fmvae.data import Batches, Dataset, Split
from pyro_fmvae.distributions import Concrete, ShiftedSigmoid, SpikeDraws, StraightThrough
from pyro_fmvae.figures.page import Figure
from pyro_fmvae.learn.options import VSCOptions, refuse
from pyro_fmvae.learn.phase import Phase
from pyro_fmvae.learn.vsc_phases import SparsePhase
from pyro_fmvae.models import (
    FixedSparsePrior,
    MixtureSparsePrior,
    PseudoInputs,
    SelectionSparsePrior,
    SparsePrior,
    VariationalSparseCoding,
)
from pyro_fmvae.nn import ExponentialLink, SpikeHead


class VSC(NetworkRecipe[VSCOptions]):
    """z is exactly zero in most dimensions."""

    name = "vsc"
    title = "variational sparse coding"
    options = VSCOptions

    @classmethod
    def defaults_for(cls, config: VSCOptions, dataset: Dataset) -> dict[str, Any]:
        """Warm-up within the pretraining; ten pseudo-inputs, unless the prior is fixed."""
        defaults = super().defaults_for(config, dataset)
        if config.data == "smiley":
            defaults |= {"latent_dim": 40, "joint_iterations": 4000}
            if config.pretrained is None:
                defaults["pretrain_iterations"] = 2000
        if config.sparse_prior != "fixed":
            defaults["pseudo_inputs"] = 10
        return defaults

    @classmethod
    def check(cls, config: VSCOptions, dataset: Dataset) -> VSCOptions:
        """Options have an effect on the prior and its spikes."""
        config = super().check(config, dataset)
        if config.sparse_prior == "fixed":
            refuse(config, ("pseudo_inputs", "sharpness"), "priors with pseudo-inputs")
        if config.spikes != "shifted":
            refuse(config, ("slope",), "--spikes shifted")
        return config

    def build(self) -> VariationalSparseCoding:
        """Networks that end in spikes and slabs, and the chosen prior."""
        config, dim = self.config, self.config.size
        exponential = config.spike_link == "exponential"
        head = partial(SpikeHead, link=ExponentialLink()) if exponential else SpikeHead
        made = networks(config, self.preprocessing, dim, head)
        return VariationalSparseCoding(
            made.encoder,
            made.decoder,
            made.observation,
            dim,
            self.num_data,
            self._prior(),
            self._draws(),
            config.sparsity,
            made.distortion,
        )

    def _draws(self) -> SpikeDraws:
        """The relaxation by which spikes are drawn in training."""
        if self.config.spikes == "shifted":
            return ShiftedSigmoid(*self.config.slope)
        return Concrete() if self.config.spikes == "concrete" else StraightThrough()

    def _prior(self) -> SparsePrior:
        """Pseudo-inputs lie where data do: pixels between their bounds, columns anywhere."""
        config, preprocessing = self.config, self.preprocessing
        assert config.sparsity is not None
        if config.sparse_prior == "fixed":
            return FixedSparsePrior(config.size, config.sparsity)
        assert config.pseudo_inputs is not None
        bounds = (0.0, 1.0) if preprocessing.binary else (-1.0, 1.0) if preprocessing.signed else None
        shape = preprocessing.event_shape
        pseudo_inputs = PseudoInputs(config.pseudo_inputs, shape, bounds)
        if config.sparse_prior == "mixture":
            return MixtureSparsePrior(pseudo_inputs, config.sharpness)
        selection = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), config.pseudo_inputs))
        return SelectionSparsePrior(pseudo_inputs, selection, config.sharpness)

    def phases(self, model: VariationalSparseCoding) -> list[Phase]:
        """One schedule of warm-up and slope, in two phases with a learning rate each."""
        config, budgets = self.config, budgets_of(self.config)
        pretrain, joint = budgets["pretrain"], budgets["joint"]
        before, after = (budget.iterations or budget.minutes or 0.0 for budget in (pretrain, joint))
        border = before / (before + after) if before else 0.0
        first = replace(config, kl_weight=1.0, final_learning_rate=None, augment_until=1.0)
        at_joint = replace(config, learning_rate=config.joint_learning_rate or config.learning_rate)
        return [
            SparsePhase("pretrain", model, first, pretrain, (0.0, border)),
            SparsePhase("joint", model, at_joint, joint, (border, 1.0)),
        ]

    def measures(self, model: VariationalSparseCoding, batches: Batches, split: str | None) -> dict[str, Any]:
        """Active latents, and correlations with known sources."""
        codes = codes_of(model, batches)
        sources = true_sources(self.config, split, len(codes))
        return activity_measures(codes) | source_measures(codes, sources)

    def draw_figures(
        self, model: VariationalSparseCoding, rows: Split, split: str, records: Sequence[Mapping[str, Any]]
    ) -> dict[str, Figure]:
        """Reconstructions and samples of images, activity by class, and what single latents do."""
        drawn: dict[str, Figure] = {}
        if self.image:
            drawn |= {"reconstructions": reconstructions(self, model, rows), "samples": samples(self, model)}
        codes = first_codes(model, rows)
        drawn |= correlations(self, codes, split) | class_activity(self, codes, rows)
        return drawn | (sparse_pictures(self, model, rows, codes) if self.image else {})
