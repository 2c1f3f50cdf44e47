"""Factors that are vectorised together: equal numbers of components, equal labelling."""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import is_validation_enabled
from torch import Tensor, nn

from pyro_fmvae.distributions import (
    Assignment,
    Component,
    FactorialMixture,
    Label,
    NaturalDistribution,
    NormalGamma,
)
from pyro_fmvae.distributions.exponential_family import natural_prior
from pyro_fmvae.infer.posteriors import (
    ConjugatePosterior,
    NaturalPosterior,
    random_posterior,
    to_natural,
    to_standard,
)
from pyro_fmvae.infer.seeding import (
    LEAST_GAIN,
    Clustering,
    better_mixture,
    coordinate_ascent,
    kmeans,
    kmeans_mixture,
)
from pyro_fmvae.models.labelled_start import labelled_start


@dataclass(frozen=True)
class Hyperprior:
    """Hyperparameters of equations 1 and 2 of Paquet et al. (2018), with their defaults.

    Args:
        c0: concentration of the Dirichlet over mixing weights, > 0.
        m0: prior mean of the components' means.
        s0: pseudo-observations behind it, > 0.
        a0, b0: shape and rate of the Gamma over precisions, > 0.

    Raises:
        ValueError: a number out of range.
    """

    c0: float = 1.0
    m0: float = 0.0
    s0: float = 1.0
    a0: float = 0.01
    b0: float = 0.01

    def __post_init__(self) -> None:
        for name in ("c0", "s0", "a0", "b0"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a number > 0, got {getattr(self, name)}")
        if not math.isfinite(self.m0):
            raise ValueError(f"m0: expected a finite number, got {self.m0}")


NO_PLATE: AbstractContextManager[Any] = nullcontext()
"""In the place of the plate of views where a point has only one."""


class FactorGroup(nn.Module):
    """A group of factors: their sites in the model and the guide, and the posterior of their parameters.

    Args:
        factors: indices of the factors in z, I_g of them.
        num_components: K, of each of them.
        dim: D, dimensions of each factor.
        columns: for labelled factors, the column of the labels of each; empty for unlabelled ones.
        hyperprior: of all of them.
        suffix: of the names of sites and plates; empty in a model with a single group.
        shared: whether the views of a point share its assignments.
        per_value: C, components for each value of a label: k stands for the value k modulo K / C.
    """

    values: Tensor | None

    def __init__(
        self,
        factors: Sequence[int],
        num_components: int,
        dim: int,
        columns: Sequence[int] = (),
        hyperprior: Hyperprior | None = None,
        suffix: str = "",
        shared: bool = True,
        per_value: int = 1,
    ) -> None:
        super().__init__()
        self.shared, self.per_value = shared, per_value
        values = (
            torch.arange(num_components) % (num_components // per_value)
            if per_value > 1 and columns
            else None
        )
        self.register_buffer("values", values, persistent=False)
        self.factors, self.columns, self.suffix = tuple(factors), tuple(columns), suffix
        self.num_components, self.dim = num_components, dim
        self.hyperprior = hyperprior or Hyperprior()
        self.plates = (
            pyro.plate(f"factors{suffix}", len(self.factors), dim=-2),
            pyro.plate(f"components{suffix}", num_components, dim=-1),
        )
        self._priors: dict[Any, tuple[dist.Dirichlet, NormalGamma]] = {}
        weights, loc_precision = self.priors()
        self.weights: ConjugatePosterior = random_posterior(weights, count=10.0)
        self.loc_precision: ConjugatePosterior = random_posterior(loc_precision, count=10.0)

    def priors(self, device: torch.device | str = "cpu") -> tuple[dist.Dirichlet, NormalGamma]:
        """p(π), batch shape [I_g, 1], and p(μ, α), batch shape [I_g, K], on a device.

        They never change, so they are made once per device and default dtype (and with and without checks of
        their values, as Pyro is set), not at every step.
        """
        key = (torch.device(device), torch.get_default_dtype(), is_validation_enabled())
        if key not in self._priors:
            h, count = self.hyperprior, len(self.factors)
            weights = dist.Dirichlet(torch.full((self.num_components,), h.c0, device=device))
            loc_precision = NormalGamma(torch.full((self.dim,), h.m0, device=device), h.s0, h.a0, h.b0)
            self._priors[key] = (
                weights.expand(torch.Size((count, 1))),
                loc_precision.expand((count, self.num_components)),
            )
        return self._priors[key]

    @property
    def device(self) -> torch.device:
        """Device of λ."""
        return next(self.parameters()).device

    def model(
        self, data: pyro.plate, labels: Tensor | None, views: AbstractContextManager[Any] = NO_PLATE
    ) -> Tensor:
        """The sites of equations 1 and 2 for this group.

        Args:
            data: the plate of data points, dim -1, not entered.
            labels: int64 [B, columns], -1 = unknown, or None.
            views: the plate of views of a point, dim -3, if there is one.

        Returns:
            z [I_g, B, D], or [V, I_g, B, D] of V views.
        """
        factors, components = self.plates
        weights_prior, loc_precision_prior = self.priors(self.device)
        with factors:
            weights = pyro.sample(f"weights{self.suffix}", weights_prior)
            with components:
                loc_precision = pyro.sample(f"loc_precision{self.suffix}", loc_precision_prior)
        with data, factors, NO_PLATE if self.shared else views:
            assignment = pyro.sample(
                f"assignment{self.suffix}", Assignment(weights), infer={"enumerate": "parallel"}
            )
            if labels is not None and self.columns:
                observed = labels[:, list(self.columns)].mT
                pyro.sample(f"label{self.suffix}", Label(assignment, self.values), obs=observed)
        with data, factors, views:
            return pyro.sample(f"z{self.suffix}", Component(loc_precision, assignment))

    def guide(
        self,
        data: pyro.plate,
        loc: Tensor,
        scale: Tensor,
        views: AbstractContextManager[Any] = NO_PLATE,
    ) -> None:
        """q(π) q(μ, α) and q(z | x) for this group; loc and scale are [I_g, B, D], or [V, I_g, B, D]."""
        factors, components = self.plates
        with factors:
            pyro.sample(f"weights{self.suffix}", self.weights())
            with components:
                pyro.sample(f"loc_precision{self.suffix}", self.loc_precision())
        with data, factors, views:
            pyro.sample(f"z{self.suffix}", dist.Normal(loc, scale).to_event(1))

    def predictive(self, dtype: torch.dtype | None = None) -> FactorialMixture:
        """The posterior predictive of z, event shape (I_g, D), equation 10; None is torch's default dtype."""
        return FactorialMixture.predictive(self.weights(), self.loc_precision(), dtype)

    def counts(self) -> Tensor:
        """How many data points each component stands for, c - c0: [I_g, K], float64."""
        return self.weights.natural_value().squeeze(-2) - self.hyperprior.c0

    def used(self, num_data: int) -> list[int]:
        """How many components of each factor stand for more than N / (20 K) of N data points."""
        return (self.counts() > num_data / (20 * self.num_components)).sum(-1).tolist()

    def locations(self) -> Tensor:
        """m: the posterior mean of every component's mean, [I_g, K, D], in torch's default dtype."""
        posterior = self.loc_precision()
        assert isinstance(posterior, NormalGamma)
        return posterior.loc.detach()

    def seed(
        self,
        mean: Tensor,
        variance: Tensor,
        labels: Tensor | None,
        num_data: int,
        generator: torch.Generator,
        restarts: int,
        clusters: Clustering = kmeans,
        starts: Mapping[int, Tensor] | None = None,
    ) -> None:
        """Start λ from M encoded points: see :meth:`FactorialMixtureVAE.seed`.

        Args:
            mean, variance: of q(z | x), of all factors, [I, M, D].
            labels: int64 [M, labelled factors], -1 = unknown, or None.
            num_data: N, for which the points stand.
            generator, restarts, clusters, starts: as for that method.
        """
        mixtures = []
        whole = [natural_prior(prior) for prior in self.priors(mean.device)]
        for number, factor in enumerate(self.factors):
            priors = self.of_factor(number, *whole)
            known = labels[:, self.columns[number]] if labels is not None and self.columns else None
            if known is not None and (known >= 0).any():
                every = torch.arange(self.num_components, device=known.device)
                values = every if self.values is None else self.values.to(every.device)
                data, own = (mean[factor], variance[factor]), generator.clone_state()
                start = labelled_start(priors, *data, known, values, num_data, own, restarts, clusters)
                mixtures.append(start)
            elif starts and factor in starts:
                data, each = (mean[factor], variance[factor]), num_data / mean.shape[1]
                mixtures.append(coordinate_ascent(*priors, *data, starts[factor], each, iterations=1))
            else:
                data, each = (mean[factor], variance[factor]), num_data / mean.shape[1]
                mixtures.append(kmeans_mixture(*priors, *data, generator, restarts, each, clusters=clusters))
        self.set_natural(
            torch.stack([mixture.weights.natural for mixture in mixtures])[:, None],
            torch.stack([mixture.components.natural for mixture in mixtures]),
        )

    def restart(
        self,
        mean: Tensor,
        variance: Tensor,
        num_data: int,
        generator: torch.Generator,
        restarts: int,
        least: float = LEAST_GAIN,
    ) -> dict[int, float]:
        """Start λ anew where that pays, in place: see :meth:`FactorialMixtureVAE.restart`.

        Args:
            mean, variance, num_data, generator, restarts: as for :meth:`seed`.
            least: nats per point that a start has to gain.

        Returns:
            Factor → gain, for each factor that was started anew.

        Raises:
            TypeError: λ is in standard parameters.
        """
        for posterior in (self.weights, self.loc_precision):
            if not isinstance(posterior, NaturalPosterior):
                raise TypeError(
                    f"λ: expected natural parameters, as of use_natural(), got a {type(posterior).__name__}"
                )
        gains, mean, variance = {}, mean.to(self.device), variance.to(self.device)
        whole = [natural_prior(prior) for prior in self.priors(mean.device)]
        for number, factor in enumerate(self.factors):
            priors = self.of_factor(number, *whole)
            present = self.of_factor(number, self.weights(), self.loc_precision())
            data, points = (mean[factor], variance[factor]), num_data / mean.shape[1]
            found = better_mixture(*priors, *present, *data, generator, restarts, points, least)
            if found is not None:
                mixture, gains[factor] = found
                present[0].natural.copy_(mixture.weights.natural)
                present[1].natural.copy_(mixture.components.natural)
        return gains

    @staticmethod
    def of_factor(
        number: int, weights: NaturalDistribution, components: NaturalDistribution
    ) -> tuple[NaturalDistribution, NaturalDistribution]:
        """The mixture of one factor, batch shapes [] and [K], sharing the memory of the group's.

        Args:
            number: place of the factor in the group.
            weights, components: of the whole group, batch shapes [I_g, 1] and [I_g, K].
        """
        weights = weights.with_natural(weights.natural.detach()[number, 0])
        return weights, components.with_natural(components.natural.detach()[number])

    def set_natural(self, weights: Tensor, loc_precision: Tensor) -> None:
        """Replace λ: weights [I_g, 1, K] and loc_precision [I_g, K, 2D+2]."""
        device = self.device
        self.weights = NaturalPosterior(self.weights.kind, weights.to(device))
        self.loc_precision = NaturalPosterior(self.loc_precision.kind, loc_precision.to(device))

    def use_standard(self) -> None:
        """Keep λ in standard parameters from now on, for first-order steps."""
        self.weights, self.loc_precision = to_standard(self.weights), to_standard(self.loc_precision)

    def use_natural(self) -> None:
        """Keep λ in natural parameters from now on, for natural-gradient steps."""
        self.weights, self.loc_precision = to_natural(self.weights), to_natural(self.loc_precision)


def make_groups(
    num_components: Sequence[int],
    dim: int,
    labelled: Sequence[int],
    hyperprior: Hyperprior | None = None,
    per_view: Sequence[int] = (),
    per_value: int = 1,
) -> list[FactorGroup]:
    """The groups of all factors: one for each combination of K, labelling and sharing by views.

    Args:
        num_components: K_i of every factor.
        dim: D, dimensions of each factor.
        labelled: the factors that labels belong to, in the order of the labels' columns.
        hyperprior: of all of them.
        per_view: factors whose assignments differ from view to view.
        per_value: components for each value of a label.
    """
    kinds: dict[tuple[int, bool, bool], list[int]] = {}
    for factor, size in enumerate(num_components):
        kinds.setdefault((size, factor in labelled, factor not in per_view), []).append(factor)
    groups = []
    for number, ((size, known, shared), factors) in enumerate(kinds.items()):
        columns = [labelled.index(factor) for factor in factors] if known else []
        suffix = f"_{number}" if len(kinds) > 1 else ""
        groups.append(FactorGroup(factors, size, dim, columns, hyperprior, suffix, shared, per_value))
    return groups
