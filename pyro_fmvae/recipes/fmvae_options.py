"""Options of the factorial mixture VAE, and their defaults by data."""

from dataclasses import dataclass
from typing import Any, Literal

from pyro_fmvae.data import Dataset, hide_labels
from pyro_fmvae.data.labels import check_amount
from pyro_fmvae.models import Hyperprior
from pyro_fmvae.optim import RobbinsMonro
from pyro_fmvae.recipes.declarations import by_data, option
from pyro_fmvae.recipes.labelling import check_numbered
from pyro_fmvae.recipes.network_defaults import network_defaults, setting
from pyro_fmvae.recipes.networks import CountableOptions
from pyro_fmvae.recipes.options import completed
from pyro_fmvae.recipes.own_labels import SPREAD, own_labelled
from pyro_fmvae.recipes.ranges import count, nonnegative, positive, share_below_one
from pyro_fmvae.recipes.views import ViewOptions


@dataclass(frozen=True)
class FMVAEOptions(ViewOptions, CountableOptions):
    """Options of ``--model fmvae``."""

    labels: float | Literal["one-per-value"] | None = by_data(
        "share of labels used, number for each value, or one-per-value", check_amount, example="20"
    )
    prior_iterations: int | None = by_data("iterations of the prior alone", count(0))
    refine_iterations: int | None = by_data("iterations with label_weight 0, after the joint ones", count(0))
    pretrain_kl_weight: float = option(1.0, "weight of the KL divergence in pretraining, once it has grown")
    kl_annealing: float = option(0.0, "share of pretraining in which the KL weight grows from 0 to 1")
    prior_learning_rate: float = option(1e-2, "Adam's, for labelled factors while label_weight > 0")
    label_weight: float | None = by_data("weight of the classification of labelled points")
    label_distance: float | None = option(
        None,
        "least distance between components of labelled factors when the joint phase begins, in standard "
        "deviations; 0: they start where their points are; default: 10 for sprites that are not pretrained",
        nonnegative,
    )
    independence_weight: float | None = by_data("weight of a penalty on labels that other factors tell of")
    spread: float | None = option(None, SPREAD, share_below_one)
    label_width: float = option(
        0.0, "factor on the channels of convolutions for labelled factors alone, beside an mlp", nonnegative
    )
    per_value: int = option(1, "components of a labelled factor for each value of its label", count(1))
    free_from: float | None = by_data("share of the joint phase before unlabelled factors are decoded")
    prior_restarts: int = option(
        1, "k-means starts of the prior, of which the one of greatest bound is kept", count(1)
    )
    full_starts: bool | None = option(
        None,
        "start factors without labels from a mixture with full covariances instead of k-means; where no "
        "labels are trained on, start again in refine; default: for your own images without labels",
    )
    independent_start: bool | None = option(
        None,
        "after pretraining, start each factor from independent components of the codes; default: with two "
        "factors or more, one of them without labels",
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
    s0: float | None = by_data("pseudo-observations behind it", positive)
    a0: float = option(0.01, "shape of the Gamma prior over precisions")
    b0: float = option(0.01, "its rate")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.hyperprior  # raises what is wrong with it

    @property
    def hyperprior(self) -> Hyperprior:
        """Hyperparameters c0, m0, s0, a0 and b0 of the prior."""
        return Hyperprior(self.c0, self.m0, self.s0 or Hyperprior.s0, self.a0, self.b0)

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
    "label_distance": 0.0,
    "independence_weight": 0.0,
    "free_from": 0.0,
    "prior_iterations": 200,
    "refine_iterations": 1000,
    "s0": Hyperprior.s0,
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
        "label_distance": 10.0,
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


PRETRAINED: dict[str, Any] = {"kl_weight": 1.0, "free_from": 0.0}
"""Of pretrained networks. A heavier KL[z] or closed blocks would take from codes what they tell already."""
UNLABELLED_SPRITES = 1500
"""Iterations of pretraining for sprites with a property that no label names: a free factor has to find it."""
OWN_CLUSTERS: dict[str, Any] = {"full_starts": True, "s0": 0.05}
"""Options for a person's own images without labels: see Clusters without labels, in the page on the model."""
OWN_COMPONENTS = 16
"""Most components of the factor of such images."""


def fmvae_defaults(config: FMVAEOptions, dataset: Dataset) -> dict[str, Any]:
    """Values by name of all options whose default depends on the data."""
    kind = setting(config, dataset)
    defaults = network_defaults(config, dataset) | _COMMON | _BY_SETTING.get(kind, {})
    chosen = completed(config, defaults)
    unnamed = not chosen.labels or len(trained_labels(config, dataset)) < len(dataset.label_names)
    if kind == "sprites" and unnamed and config.pretrained is None:
        defaults["pretrain_iterations"] = UNLABELLED_SPRITES
        chosen = completed(config, defaults)
    pretrained = chosen.pretrained is not None or bool(chosen.pretrain_iterations)
    if pretrained:
        defaults |= PRETRAINED
    if pretrained or chosen.per_value > 1:
        defaults["label_distance"] = 0.0
    if config.own_data and not config.labels and kind != "columns":
        factors = tuple(min(components, OWN_COMPONENTS) for components in defaults["factors"])
        defaults |= OWN_CLUSTERS | {
            "factors": factors,
            "refine_iterations": (chosen.joint_iterations or 0) // 3,
        }
    if config.labels and kind not in ("smiley", "sprites"):
        names = trained_labels(config, dataset)
        if config.factors is None:
            check_numbered(dataset, names)
        of_labels = tuple(config.per_value * max(size, 1) for size in dataset.label_sizes[: len(names)])
        defaults["factors"] = (*of_labels, *defaults["factors"])
        if config.own_data:
            train, labels = dataset.train, None
            if train.labels is not None:
                labels = hide_labels(train, config.labels, config.seed)[:, : len(names)]
            defaults |= own_labelled(dataset, labels, config.spread)
    return defaults


def trained_labels(config: FMVAEOptions, dataset: Dataset) -> tuple[str, ...]:
    """Names of the labels that are trained on."""
    return dataset.label_names if config.label_names is None else config.label_names
