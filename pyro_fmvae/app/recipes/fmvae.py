"""The recipe of the factorial mixture VAE (Paquet et al., 2018)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from pyro_fmvae.app.recipes.labelling import check_labels, check_numbered, own_labelled
from pyro_fmvae.app.recipes.networks import NetworkRecipe, check_views, networks, setting, view_of
from pyro_fmvae.app.recipes.pictures import cluster_figure, factor_figures
from pyro_fmvae.app.recipes.settings import budgets_of, hyperprior_of, is_own
from pyro_fmvae.data import Batches, Dataset, Split, hide_labels, whole
from pyro_fmvae.evaluate import bound
from pyro_fmvae.figures.page import Figure
from pyro_fmvae.learn.cluster_tree import Clusters
from pyro_fmvae.learn.fitting import fit
from pyro_fmvae.learn.fmvae_phases import Pretraining, draw_views, encode_some, fmvae_phases
from pyro_fmvae.learn.independent_components import found_sizes
from pyro_fmvae.learn.options import AUTO, FMVAEOptions, completed, refuse
from pyro_fmvae.learn.phase import Phase
from pyro_fmvae.models import VAE, FactorialMixtureVAE
from pyro_fmvae.models.label_predictor import LabelPredictor

# Options of the factorial mixture VAE, and their defaults by data.


LABEL_WEIGHT = 100.0
_BY_SETTING: dict[str, dict[str, Any]] = {
    "smiley": {"labels": 0.1, "independence_weight": 3.0, "prior_iterations": 100, "refine_iterations": 1500},
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

SMILEYS_WITHOUT_LABELS: dict[str, Any] = {
    "pretrain_iterations": 300,
    "prior_iterations": 50,
    "joint_iterations": 1250,
    "joint_learning_rate": 4e-3,
    "final_learning_rate": 1e-4,
}
"""Independent components show the properties of smileys after 300 iterations."""
LATENT: Final = 32
"""Dimensions of z in which factors are looked for, at least."""
EXAMPLES: Final = 1000
"""From which the decoder starts."""


def trained_labels(config: FMVAEOptions, dataset: Dataset) -> tuple[str, ...]:
    """Names of the labels that are trained on."""
    return dataset.label_names if config.label_names is None else config.label_names


class FMVAE(NetworkRecipe[FMVAEOptions]):
    """Factors whose components are clusters or values of labels."""

    name = "fmvae"
    title = "factorial mixture VAE"
    options = FMVAEOptions
    factorial = True
    gaussian_codes = True

    @classmethod
    def defaults_for(cls, config: FMVAEOptions, dataset: Dataset) -> dict[str, Any]:
        """Factors for labels first; free factors are opened by a phase that there is."""
        kind = setting(config, dataset)
        defaults = super().defaults_for(config, dataset) | {"label_weight": LABEL_WEIGHT}
        defaults |= _BY_SETTING.get(kind, {})
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
        if kind == "smiley" and not chosen.labels:
            defaults |= SMILEYS_WITHOUT_LABELS
        if is_own(config) and not config.labels and kind != "columns":
            factors = tuple(min(components, OWN_COMPONENTS) for components in defaults["factors"])
            defaults |= OWN_CLUSTERS | {
                "factors": factors,
                "refine_iterations": (chosen.joint_iterations or 0) // 3,
            }
        if config.labels and kind not in ("smiley", "sprites"):
            names = trained_labels(config, dataset)
            if config.factors in (None, AUTO):
                check_numbered(dataset, names)
            of_labels = tuple(config.per_value * max(size, 1) for size in dataset.label_sizes[: len(names)])
            defaults["factors"] = (*of_labels, *defaults["factors"])
            if is_own(config):
                train, labels = dataset.train, None
                if train.labels is not None:
                    labels = hide_labels(train, config.labels, config.seed)[:, : len(names)]
                closed = config.factors is None and not pretrained
                defaults |= own_labelled(dataset, labels, config.spread, closed)
        chosen = completed(config, defaults)
        refines = chosen.refine_iterations and (chosen.label_weight or chosen.full_starts)
        if chosen.labels and chosen.free_from == 1 and not refines:
            defaults["free_from"] = 0.0
        if config.factors == AUTO:
            del defaults["factor_dim"]  # by their number
        return defaults

    @classmethod
    def check(cls, config: FMVAEOptions, dataset: Dataset) -> FMVAEOptions:
        """Refining only if it changes something; factors that are to be found."""
        if not config.labels:
            config = replace(config, label_weight=0.0)
        if not (config.label_weight or config.full_starts):
            config = replace(config, refine_iterations=0)
        if config.labels and config.free_from == 1 and not config.refine_iterations:
            raise ValueError("free_from: expected a number below 1, since no refine phase opens the factors")
        config = super().check(config, dataset)
        _check_restarts(config, dataset)
        if config.label_width and not (config.labels and config.network == "mlp"):
            raise ValueError("label_width: expected 0 without labels or with convolutions")
        names = trained_labels(config, dataset) if config.labels else ()
        if config.factors == AUTO:
            of_labels = [config.per_value * max(size, 1) for size in dataset.label_sizes[: len(names)]]
            found = found_factors(config, dataset, of_labels)
            config = replace(
                config, factors=found, factor_dim=config.factor_dim or max(2, LATENT // len(found))
            )
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
            hyperprior_of(config),
            made.distortion,
            config.per_view,
            config.per_value,
        )

    def phases(self, model: FactorialMixtureVAE) -> list[Phase]:
        """Networks alone, prior alone, everything, and everything again."""
        phases = fmvae_phases(model, self.config, budgets_of(self.config), self.config.seed)
        for phase in phases:
            phase.view = view_of(self.config.view_strength, self.preprocessing)
        return [*phases]

    def measures(self, model: FactorialMixtureVAE, batches: Batches, split: str | None) -> dict[str, Any]:
        """The bound of a program of views."""
        return {"views": self._bound_of_views(model, batches)} if self.config.views > 1 else {}

    def _bound_of_views(self, model: FactorialMixtureVAE, batches: Batches) -> dict[str, float]:
        """The bound of the program that was trained, views and distortion drawn at random: nats per view."""
        number = self.config.views
        view = view_of(self.config.view_strength, self.preprocessing)
        model.train()
        try:
            found = bound(model, batches, views=lambda x: draw_views(x, number, view))
        finally:
            model.eval()
        parts = ("elbo", "reconstruction", "kl_z", "kl_r")
        return {"number": number} | {name: found[name] / number for name in parts}

    def summary(self, model: FactorialMixtureVAE) -> list[str]:
        """Components in use; labels that the networks have not learnt."""
        used = zip(model.used_components(), model.num_components, strict=True)
        lines = [f"components in use: {', '.join(f'{number} of {size}' for number, size in used)}"]
        if (clusters := Clusters.of_model(model)) is not None:
            lines.append(f"clusters of the codes: {clusters.number}")
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
        self, model: FactorialMixtureVAE, rows: Split, split: str, records: Sequence[Mapping[str, Any]]
    ) -> dict[str, Figure]:
        """Draw what factors and components show (images), or the means of the components (tables)."""
        drawn, clusters = factor_figures(self, model, rows, records), Clusters.of_model(model)
        if clusters is not None:
            drawn |= cluster_figure(clusters, clusters.mixture.counts().clamp(min=0))
        return drawn


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


def found_factors(config: Any, dataset: Dataset, label_sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes of the factors that independent components of the codes of a pretrained VAE show.

    The VAE is trained for this alone. Labelled factors come first; the others are what labels do not explain.

    Args:
        config: resolved but for the factors.
        dataset: to train on.
        label_sizes: components of the labelled factors.

    Raises:
        ValueError: there is no pretraining, or no direction of the codes has clusters.
    """
    assert isinstance(config, FMVAEOptions) and config.batch_size is not None
    if not config.pretrain_iterations:
        raise ValueError("factors: auto needs --pretrain-iterations; or give sizes, such as 2,2,64")
    train, labels = dataset.train, None
    if label_sizes:
        labels = hide_labels(train, config.labels or 0.0, config.seed)[:, : len(label_sizes)]
    gpu = config.device == "auto" and torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu" if config.device == "auto" else config.device)
    budget = budgets_of(config)["pretrain"]
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        made = networks(config, dataset.preprocessing, LATENT)
        vae = VAE(made.encoder, made.decoder, made.observation, LATENT, len(train), made.distortion).to(
            device
        )
        vae.start_at(whole(train.select(torch.arange(min(EXAMPLES, len(train)))), device)[0])
        batches = Batches(replace(train, labels=labels), config.batch_size, seed=config.seed, device=device)
        for _ in fit([Pretraining(vae, replace(config, compile=False), budget)], batches):
            pass
        loc, scale, known = encode_some(vae.eval(), batches)
    found, spectrum = found_sizes(loc, scale, known, config.seed)
    if not found:
        beside = " that labels do not explain" if label_sizes else ""
        raise ValueError(
            f"factors: auto expected a direction of the codes with clusters{beside}, found none "
            f"(bits: {spectrum.strip('| ') or 'no signal'}); give sizes, such as --factors 2,2,64, or more "
            "--pretrain-iterations"
        )
    return (*label_sizes, *found)
