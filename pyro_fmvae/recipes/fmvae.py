"""The recipe of the factorial mixture VAE (Paquet et al., 2018)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from pyro_fmvae.data import Batches, Dataset, Split, hide_labels
from pyro_fmvae.data.labels import check_amount
from pyro_fmvae.evaluate import label_agreement
from pyro_fmvae.learn.fmvae_phases import Joint, Pretraining, PriorFitting
from pyro_fmvae.learn.learning import Learning
from pyro_fmvae.learn.phase import Phase
from pyro_fmvae.models import FactorialMixtureVAE, Hyperprior
from pyro_fmvae.optim import RobbinsMonro
from pyro_fmvae.recipes.declarations import by_data, option
from pyro_fmvae.recipes.factor_pictures import factor_figures
from pyro_fmvae.recipes.labelling import check_labels, check_numbered
from pyro_fmvae.recipes.network_defaults import network_defaults, setting
from pyro_fmvae.recipes.networks import NetworkOptions, NetworkRecipe, check_networks, networks
from pyro_fmvae.recipes.options import check_iterations, completed
from pyro_fmvae.recipes.own_labels import SPREAD, own_labelled
from pyro_fmvae.recipes.ranges import count, nonnegative, share_below_one


@dataclass(frozen=True)
class FMVAEOptions(NetworkOptions):
    """Options of ``--model fmvae``."""

    labels: float | None = by_data(
        "share of labels used, or number for each value", check_amount, example="20"
    )
    prior_iterations: int | None = by_data("iterations of the prior alone", count(0))
    refine_iterations: int | None = by_data("iterations with label_weight 0, after the joint ones", count(0))
    pretrain_kl_weight: float = option(1.0, "weight of the KL divergence in pretraining, once it has grown")
    kl_annealing: float = option(0.0, "share of pretraining in which the KL weight grows from 0 to 1")
    prior_learning_rate: float = option(1e-2, "Adam's, for labelled factors while label_weight > 0")
    label_weight: float | None = by_data("weight of the classification of labelled points")
    independence_weight: float | None = by_data("weight of a penalty on labels that other factors tell of")
    spread: float | None = option(None, SPREAD, share_below_one)
    label_width: float = option(
        0.0, "factor on the channels of convolutions for labelled factors alone, beside an mlp", nonnegative
    )
    free_from: float | None = by_data("share of the joint phase before unlabelled factors are decoded")
    prior_restarts: int = option(
        1, "k-means starts of the prior, of which the one of greatest bound is kept", count(1)
    )
    restart_every: int = option(
        0, "joint and refine iterations between comparisons of the prior with new starts; 0: never", count(0)
    )
    delay: float = option(2000.0, "tau_0 of the natural gradient's step size (tau_0 + tau)^-kappa")
    forgetting: float = option(0.7, "kappa of the same, in (1/2, 1]")
    first_step: float | None = option(0.01, "its first step; null: what tau_0 and kappa give")
    recompute: bool = option(False, "recompute responsibilities at the updated encoder, as the paper does")
    c0: float = option(1.0, "Dirichlet concentration of the mixing weights")
    m0: float = option(0.0, "prior mean of the components' means")
    s0: float = option(1.0, "pseudo-observations behind it")
    a0: float = option(0.01, "shape of the Gamma prior over precisions")
    b0: float = option(0.01, "its rate")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.hyperprior  # raises what is wrong with it

    @property
    def hyperprior(self) -> Hyperprior:
        """Hyperparameters c0, m0, s0, a0 and b0 of the prior."""
        return Hyperprior(self.c0, self.m0, self.s0, self.a0, self.b0)

    @property
    def rate(self) -> RobbinsMonro:
        """Step sizes of the natural gradient."""
        return RobbinsMonro(self.delay, self.forgetting, self.first_step)

    @property
    def restarts(self) -> int:
        """``prior_restarts``, as :class:`~pyro_fmvae.learn.Learning` calls it."""
        return self.prior_restarts


_COMMON: dict[str, Any] = {
    "labels": 0.0,
    "label_weight": 100.0,
    "kl_weight": 1.0,
    "independence_weight": 0.0,
    "free_from": 0.0,
    "prior_iterations": 200,
    "refine_iterations": 1000,
}
_BY_SETTING: dict[str, dict[str, Any]] = {
    "smiley": {
        "labels": 0.1,
        "independence_weight": 3.0,
        "prior_iterations": 100,
        "refine_iterations": 1500,
    },
    "sprites": {
        "labels": 0.05,
        "label_weight": 1000.0,
        "kl_weight": 20.0,
        "independence_weight": 60.0,
        "free_from": 1.0,
        "prior_iterations": 100,
        "refine_iterations": 500,
    },
    "digits": {"prior_iterations": 500, "refine_iterations": 2000},
    "colour": {"kl_weight": 20.0, "prior_iterations": 300, "refine_iterations": 1500},
    "celeba": {
        "label_weight": 1000.0,
        "kl_weight": 20.0,
        "prior_iterations": 20_000,
        "refine_iterations": 20_000,
    },
}


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
        """Factors for labels first; no refine phase without labels; free factors opened by some phase."""
        given_free_from = config.free_from
        config = completed(config, cls._defaults(config, dataset))
        if not config.labels:
            config = replace(config, label_weight=0.0)
        if not config.label_weight:
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
        if config.labels:
            assert config.factors is not None
            check_labels(dataset, _label_names(config, dataset), config.factors, config.labels, config.seed)
        return config

    @staticmethod
    def _defaults(config: FMVAEOptions, dataset: Dataset) -> dict[str, Any]:
        kind = setting(config, dataset)
        defaults = network_defaults(config, dataset) | _COMMON | _BY_SETTING.get(kind, {})
        if config.labels and kind not in ("smiley", "sprites"):
            names = _label_names(config, dataset)
            if config.factors is None:
                check_numbered(dataset, names)
            of_labels = tuple(max(size, 1) for size in dataset.label_sizes[: len(names)])
            defaults["factors"] = (*of_labels, *defaults["factors"])
            if config.own_data:
                train, labels = dataset.train, None
                if train.labels is not None:
                    labels = hide_labels(train, config.labels, config.seed)[:, : len(names)]
                defaults |= own_labelled(dataset, labels, config.spread)
        return defaults

    @property
    def factors(self) -> tuple[int, ...]:
        """K_i of each factor."""
        assert self.config.factors is not None
        return self.config.factors

    @property
    def labels(self) -> float:
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
        )

    def phases(self, model: FactorialMixtureVAE, learning: Learning) -> list[Phase]:
        """Networks alone, prior alone, everything, and everything without the weight of labels."""
        budgets, seed = self.config.budgets(), self.config.seed
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
        unseeded = prior.empty and joint.empty
        return [
            Pretraining(model, learning, budgets["pretrain"]),
            PriorFitting(model, learning, prior, seed),
            Joint(model, at_joint, joint, seed=seed if prior.empty else None),
            Joint(model, last, budgets["refine"], "refine", seed if unseeded else None),
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
        """Agreement of codes with labels, where there are any."""
        if rows.labels is None:
            return {}
        found: dict[str, Any] = label_agreement(model, batches, label_names, self.factors_of(label_names))
        return found

    def summary(self, model: FactorialMixtureVAE) -> list[str]:
        """Components in use."""
        used = zip(model.used_components(), model.num_components, strict=True)
        return [f"components in use: {', '.join(f'{number} of {size}' for number, size in used)}"]

    def draw_figures(
        self,
        model: FactorialMixtureVAE,
        rows: Split,
        split: str,
        records: Sequence[Mapping[str, Any]],
    ) -> dict[str, Figure]:
        """Of images: what factors and their components show. Of tables: the means of components."""
        return factor_figures(self, model, rows, records)


def _label_names(config: FMVAEOptions, dataset: Dataset) -> tuple[str, ...]:
    """Names of the labels that are trained on."""
    return dataset.label_names if config.label_names is None else config.label_names


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
    if config.labels and len(config.factors) == len(_label_names(config, dataset)):
        raise ValueError(
            "restart_every: expected a factor without labels; those with labels do not start anew"
        )
