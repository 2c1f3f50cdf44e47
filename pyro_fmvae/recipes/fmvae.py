"""The recipe of the factorial mixture VAE (Paquet et al., 2018)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from pyro_fmvae.data import Batches, Dataset, Split
from pyro_fmvae.data.labels import Amount
from pyro_fmvae.evaluate import bound, label_agreement
from pyro_fmvae.learn.fmvae_phases import Joint, Pretraining, PriorFitting
from pyro_fmvae.learn.learning import Learning
from pyro_fmvae.learn.phase import Phase
from pyro_fmvae.models import FactorialMixtureVAE
from pyro_fmvae.models.label_predictor import LabelPredictor
from pyro_fmvae.recipes.factor_pictures import factor_figures
from pyro_fmvae.recipes.fmvae_options import FMVAEOptions, fmvae_defaults, trained_labels
from pyro_fmvae.recipes.labelling import check_labels
from pyro_fmvae.recipes.networks import NetworkRecipe, check_networks, networks
from pyro_fmvae.recipes.options import check_iterations, completed, refuse
from pyro_fmvae.recipes.views import check_views, view_of


class FMVAE(NetworkRecipe[FMVAEOptions]):
    """Factors whose components are clusters or values of labels."""

    name = "fmvae"
    title = "factorial mixture VAE"
    options = FMVAEOptions
    factorial = True
    gaussian_codes = True
    indexed = False
    no_gap = ""

    @classmethod
    def resolve(cls, config: FMVAEOptions, dataset: Dataset) -> FMVAEOptions:
        """Factors for labels first; refining only if it changes something; free factors opened by a phase."""
        given_free_from = config.free_from
        config = completed(config, fmvae_defaults(config, dataset))
        if not config.labels:
            config = replace(config, label_weight=0.0)
        if not (config.label_weight or config.full_starts):
            config = replace(config, refine_iterations=0)
        if config.labels and config.free_from == 1 and not config.refine_iterations:
            if given_free_from == 1:
                raise ValueError(
                    "free_from: expected a number below 1, since no refine phase opens the factors"
                )
            config = replace(config, free_from=0.0)
        check_iterations(config)
        _check_restarts(config, dataset)
        check_networks(config, dataset)
        if config.label_width and not (config.labels and config.network == "mlp"):
            raise ValueError("label_width: expected 0 without labels or with convolutions")
        names = trained_labels(config, dataset) if config.labels else ()
        config = _independent_start(config, len(names))
        check_views(config, dataset, len(names))
        if config.labels:
            assert config.factors is not None
            amount = config.labels, config.seed
            check_labels(dataset, names, config.factors, *amount, config.per_value)
            _check_per_value(config, len(names))
        else:
            refuse(config, ("per_value",), "--labels")
        return config

    @property
    def factors(self) -> tuple[int, ...]:
        """K_i of each factor."""
        if self.config.factors is None:
            raise ValueError("factors: expected a size for each factor, got None")
        return self.config.factors

    @property
    def labels(self) -> Amount:
        """As configured."""
        return self.config.labels or 0.0

    @property
    def spread(self) -> float:
        """As configured."""
        return self.config.spread or 0.0

    def build(self) -> FactorialMixtureVAE:
        """Labels belong to the leading factors."""
        config, factors, dim = self.config, self.factors, self.config.factor_dim
        assert dim is not None
        own = len(self.labelled) * dim if config.label_width else 0
        made = networks(config, self.preprocessing, len(factors) * dim, own=own, own_width=config.label_width)
        return FactorialMixtureVAE(
            made.encoder,
            made.decoder,
            made.observation,
            factors,
            dim,
            self.num_data,
            self.labelled,
            config.hyperprior,
            made.distortion,
            config.per_view,
            config.per_value,
        )

    def phases(self, model: FactorialMixtureVAE, learning: Learning) -> list[Phase]:
        """Networks alone, prior alone, everything, and everything again.

        The second time labels have no weight. Without labels, full starts are made anew.
        """
        budgets, seed = self.config.budgets(), self.config.seed
        learning = replace(learning, view=view_of(self.config.view_strength, self.preprocessing))
        prior, joint = budgets["prior"], budgets["joint"]
        at_joint = replace(learning, learning_rate=self.config.joint_learning_rate or learning.learning_rate)
        last = replace(
            learning,
            label_weight=0.0,
            kl_weight=1.0,
            free_from=0.0,
            learning_rate=learning.final_learning_rate or at_joint.learning_rate,
            augment_until=0.0,
        )
        anew = self.config.full_starts and not self.labels and not learning.independent_start
        seeded = anew or (prior.empty and joint.empty)
        return [
            Pretraining(model, learning, budgets["pretrain"]),
            PriorFitting(model, learning, prior, seed),
            Joint(model, at_joint, joint, seed=seed if prior.empty else None),
            Joint(model, last, budgets["refine"], "refine", seed if seeded else None),
        ]

    def code(self, model: FactorialMixtureVAE, x: Tensor) -> Tensor:
        """Mean of q(z | x)."""
        mean: Tensor = model.posterior(x).mean
        return mean

    def encode(self, model: FactorialMixtureVAE, x: Tensor) -> dict[str, Tensor]:
        """``codes`` [B, I]; ``mean``, ``scale`` [B, I·D]; per factor i ``responsibilities_i`` [B, K_i]."""
        posterior, gammas = model.posterior(x), model.responsibilities(x)
        return {
            "codes": torch.stack([gamma.argmax(-1) for gamma in gammas], -1),
            "mean": posterior.mean,
            "scale": posterior.stddev,
            **{f"responsibilities_{factor}": gamma for factor, gamma in enumerate(gammas)},
        }

    def sample(self, model: FactorialMixtureVAE, codes: Tensor) -> tuple[Tensor, dict[str, np.ndarray]]:
        """Draw z [n, I·D] given codes, and return the ``codes`` drawn beside it."""
        drawn = model.sample_codes(len(codes), codes)
        return model.sample_latent(len(codes), drawn), {"codes": drawn.cpu().numpy()}

    def measures(
        self,
        model: FactorialMixtureVAE,
        rows: Split,
        batches: Batches,
        label_names: Sequence[str],
        split: str | None,
    ) -> dict[str, Any]:
        """Agreement of codes with labels, where there are any, and the bound of a program of views."""
        found: dict[str, Any] = {}
        if rows.labels is not None:
            found |= label_agreement(
                model, batches, label_names, self.factors_of(label_names), self.num_values
            )
        if self.config.views > 1:
            found["views"] = self._bound_of_views(model, batches)
        return found

    def _bound_of_views(self, model: FactorialMixtureVAE, batches: Batches) -> dict[str, float]:
        """The bound of the program that was trained, views and distortion drawn at random: nats per view."""
        number = self.config.views
        seen = Learning(views=number, view=view_of(self.config.view_strength, self.preprocessing)).seen
        model.train()
        try:
            found = bound(model, batches, views=seen)
        finally:
            model.eval()
        parts = ("elbo", "reconstruction", "kl_z", "kl_r")
        return {"number": number} | {name: found[name] / number for name in parts}

    def summary(self, model: FactorialMixtureVAE) -> list[str]:
        """Components in use; labels that the networks have not learnt."""
        used = zip(model.used_components(), model.num_components, strict=True)
        lines = [f"components in use: {', '.join(f'{number} of {size}' for number, size in used)}"]
        for column, predictor in model.predictors.items():
            assert isinstance(predictor, LabelPredictor)
            learnt, regression, forest = predictor.accuracies.tolist()
            name, known = self.factor_names[model.labelled[int(column)]], int(predictor.known)
            lines.append(
                f"{name} predicted by: logistic regression and random forest; accuracies by cross-validation "
                f"on the {known:,} labelled points: {regression:.2f}, {forest:.2f}; of the network on these "
                f"points, which it was trained on: {learnt:.2f}"
            )
        return lines

    def draw_figures(
        self,
        model: FactorialMixtureVAE,
        rows: Split,
        split: str,
        records: Sequence[Mapping[str, Any]],
    ) -> dict[str, Figure]:
        """Draw what factors and components show (images), or the means of the components (tables)."""
        return factor_figures(self, model, rows, records)


def _independent_start(config: FMVAEOptions, labelled: int) -> FMVAEOptions:
    """Choose whether factors start from independent components.

    Raises:
        ValueError: they are to, without pretrained networks, a second factor, or a factor without labels.
    """
    assert config.factors is not None
    problem = ""
    if not (config.pretrain_iterations or config.pretrained):
        problem = "pretrained networks (--pretrain-iterations)"
    elif not 2 <= len(config.factors) > labelled:
        problem = "two factors or more, one of them without labels"
    if config.independent_start and problem:
        raise ValueError(f"independent_start: expected {problem}")
    return config if config.independent_start is False else replace(config, independent_start=not problem)


def _check_per_value(config: FMVAEOptions, labelled: int) -> None:
    """Raise ValueError unless each of the leading factors has as many components for every value."""
    assert config.factors is not None
    for size in config.factors[:labelled]:
        if size % config.per_value:
            raise ValueError(
                f"factors: expected {config.per_value} components for each value of a label, got {size}"
            )


def _check_restarts(config: FMVAEOptions, dataset: Dataset) -> None:
    """Raise ValueError unless new starts of the prior have a phase and a factor to come in."""
    if not config.restart_every:
        return
    assert config.factors is not None
    joint = max(config.joint_iterations or 0, config.refine_iterations or 0)
    if not joint:
        raise ValueError("restart_every: expected joint or refine iterations, in which the prior starts anew")
    if config.max_minutes is None and joint <= config.restart_every:
        raise ValueError(
            f"restart_every: expected less than the {joint:,} iterations of the joint or refine phase, in "
            f"which the prior starts anew, got {config.restart_every:,}"
        )
    if config.labels and len(config.factors) == len(trained_labels(config, dataset)):
        raise ValueError(
            "restart_every: expected a factor without labels; those with labels do not start anew"
        )
