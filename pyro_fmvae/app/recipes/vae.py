"""The recipe of the plain VAE, and of its weights and E-steps."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyro_fmvae.app.recipes.networks import NetworkRecipe, networks
from pyro_fmvae.app.recipes.pictures import (
    codes_of,
    correlations,
    first_codes,
    reconstructions,
    samples,
    source_measures,
    true_sources,
)
from pyro_fmvae.app.recipes.settings import budgets_of
from pyro_fmvae.capture import CapturedFreeGaussian
from pyro_fmvae.data import Batches, Dataset, Split
from pyro_fmvae.figures.page import Figure
from pyro_fmvae.infer.free_gaussian import FreeGaussian
from pyro_fmvae.learn.fmvae_phases import Pretraining
from pyro_fmvae.learn.options import VAEOptions, refuse
from pyro_fmvae.learn.phase import Phase
from pyro_fmvae.learn.vae_phases import FreeEM, HybridEM, VAEJoint, VAEPhase
from pyro_fmvae.models import VAE
from pyro_fmvae.models.free_encoder import FreeEncoder
from pyro_fmvae.models.vae import PointPosterior


class PlainVAE(NetworkRecipe[VAEOptions]):
    """z ~ N(0, I)."""

    name = "vae"
    gaussian_codes = True
    title = "plain VAE"
    options = VAEOptions

    @classmethod
    def defaults_for(cls, config: VAEOptions, dataset: Dataset) -> dict[str, Any]:
        """The networks and iterations that the mixture would have."""
        defaults = super().defaults_for(config, dataset) | {"kl_weight": config.beta}
        return defaults | ({"pretrain_iterations": 0} if config.posterior == "free" else {})

    @classmethod
    def check(cls, config: VAEOptions, dataset: Dataset) -> VAEOptions:
        """Options have an effect on the posterior."""
        config = super().check(config, dataset)
        if config.posterior == "free":
            for name in ("pretrain_iterations", "distortion", "augmentation"):
                if getattr(config, name):
                    raise ValueError(f"{name}: expected 0 with free posteriors, which have no encoder")
        if config.posterior in ("encoder", "point"):
            refuse(config, ("free_steps", "free_learning_rate"), "--posterior free or hybrid")
        if config.posterior == "point":
            weights = ("beta", "total_correlation", "kl_weight", "pretrain_kl_weight", "kl_annealing")
            refuse(config, weights, "posteriors that are no points", {"kl_weight": 1.0})
        return config

    def build(self) -> VAE:
        """With free posteriors, a search stands in the encoder's place."""
        config, dim = self.config, self.config.size
        made = networks(config, self.preprocessing, dim)
        encoder = made.encoder
        if config.posterior == "free":
            search = FreeGaussian if config.eager else CapturedFreeGaussian
            encoder = FreeEncoder(made.decoder, made.observation, dim, search=search)
        family = PointPosterior() if config.posterior == "point" else None
        return VAE(encoder, made.decoder, made.observation, dim, self.num_data, made.distortion, family)

    def phases(self, model: VAE) -> list[Phase]:
        """Pretraining as in a mixture, then the joint phase that the posterior asks for."""
        config, budgets = self.config, budgets_of(self.config)
        before = replace(config, pretrain_kl_weight=config.beta * config.pretrain_kl_weight)
        at_joint = replace(config, learning_rate=config.joint_learning_rate or config.learning_rate)
        kinds: dict[str, type[VAEPhase]] = {"free": FreeEM, "hybrid": HybridEM}
        joint = kinds.get(config.posterior, VAEJoint)(model, at_joint, budgets["joint"])
        return [Pretraining(model, before, budgets["pretrain"]), joint]

    @property
    def indexed(self) -> bool:
        """Free posteriors are kept for each point."""
        return self.config.posterior == "free"

    def measures(self, model: VAE, batches: Batches, split: str | None) -> dict[str, Any]:
        """Correlations with known sources."""
        sources = true_sources(self.config, split, batches.num_data)
        return {} if sources is None else source_measures(codes_of(model, batches), sources)

    def draw_figures(
        self, model: VAE, rows: Split, split: str, records: Sequence[Mapping[str, Any]]
    ) -> dict[str, Figure]:
        """Reconstructions and samples of images, and correlations with known sources."""
        drawn = {}
        if self.image:
            drawn["reconstructions"] = reconstructions(self, model, rows)
            if model.bounded:  # else there is no density of z to draw from
                drawn["samples"] = samples(self, model)
        codes = first_codes(model, rows)
        return drawn | correlations(self, codes, split)
