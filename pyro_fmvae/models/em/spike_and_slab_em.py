"""Monte Carlo EM of spike-and-slab sparse coding, with the maximum or the sum of causes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from pyro_fmvae.models.em.expectation_maximization import Expectation, ExpectationMaximization, Maximum
from pyro_fmvae.models.em.spike_and_slab_gibbs import SpikeAndSlabGibbs, SpikeAndSlabParameters
from pyro_fmvae.models.em.spike_and_slab_rules import LEAST_MASS, Rule
from pyro_fmvae.models.em.statistics import Statistics

LEAST_PROBABILITY = 1e-6
LEAST_SLAB = 1e-4  # ψ / μ²
LEAST_NOISE = 1e-6  # σ² / mean square of data
ZERO_LOC = 0.5  # |μ| / √ψ of a slab that counts as one around 0
HALVINGS = 10
START_SPREAD, START_SLAB = 0.25, 0.25


class SpikeAndSlabEM(ExpectationMaximization[SpikeAndSlabParameters]):
    """EM with an E-step by Gibbs sweeps and an M-step in closed form on the last draws.

    Each chain goes on from its last state. The scale of a unit's weights and causes is arbitrary: each M-step
    fixes it by μ = 1, or by ψ = 1 where abs(μ) <= √ψ / 2. All computations are in float64. Source: Shelton et
    al. (2015).

    The objective does not depend on μ, ψ and the weights of a unit that is never on: each of their terms is
    multiplied by a sum over the draws in which it is on. Every value of them is a maximum. The M-step keeps
    the present ones, so that the unit is the same cause when it comes back; its π becomes 1e-6.

    Args:
        rule: :class:`~pyro_fmvae.models.em.spike_and_slab_rules.MaxRule` or ``LinearRule``.
        units: H >= 2.
        preselect: number of units that may be on at a point; None: all.
        sweeps: Gibbs sweeps of an E-step.
        kept: K, the number of last sweeps whose draws the M-step uses.
        shared: one π, μ and ψ for all units; False: one for each.

    Raises:
        ValueError: ``preselect`` < 1.
    """

    def __init__(
        self,
        rule: Rule,
        units: int,
        preselect: int | None = 6,
        sweeps: int = 4,
        kept: int = 2,
        shared: bool = True,
    ) -> None:
        self.rule, self.units, self.shared = rule, units, shared
        self.gibbs = SpikeAndSlabGibbs(rule, preselect)
        self.sweeps, self.kept = sweeps, kept

    @property
    def start_probability(self) -> float:
        """Initial π: two units are on at a time."""
        return min(2 / self.units, 0.5)

    def start(self, x: Tensor, starts: int) -> SpikeAndSlabParameters:
        """Initial parameters: W around the mean of the data, σ² their variance, μ = 1 and ψ = 1/4.

        The columns of W deviate from the mean by a quarter of the standard deviation of the data.
        """
        x = x.double()
        mean = x.nanmean(0).nan_to_num()
        variance = (x - mean).square().nanmean()
        noise = torch.randn(starts, x.shape[1], self.units, dtype=x.dtype, device=x.device)
        slab = x.new_ones(starts, 1 if self.shared else self.units)
        return SpikeAndSlabParameters(
            mean[:, None] + START_SPREAD * variance.sqrt() * noise,
            slab * self.start_probability,
            slab,
            slab * START_SLAB,
            variance.expand(starts).clone(),
        )

    def start_latents(self, parameters: SpikeAndSlabParameters, num_data: int) -> Tensor:
        """Zeros: all units are off."""
        weight = parameters.weight
        return weight.new_zeros(len(weight), num_data, self.units, dtype=torch.float64)

    @torch.no_grad()
    def e_step(
        self, x: Tensor, parameters: SpikeAndSlabParameters, latents: Tensor, temperature: float = 1.0
    ) -> Expectation:
        """Draws of s, and the expected log p(y, s) as the objective, at temperature 1 in any case."""
        x = x.double()
        samples = self.gibbs(x, parameters, latents, self.sweeps, self.kept, temperature)
        statistics = self.statistics(x, samples, parameters)
        objective = self.expected_log_joint(statistics, parameters)
        return Expectation(samples[:, -1], statistics, objective, samples)

    def statistics(self, x: Tensor, samples: Tensor, parameters: SpikeAndSlabParameters) -> Statistics:
        """Sums over points of what the M-step needs, means over draws.

        Args:
            x: data, float64 [B, D].
            samples: draws of s, [R, K, B, H].
            parameters: the present ones; the max rule attributes pixels to units by their W.
        """
        on = (samples != 0).to(samples.dtype)
        starts = x.new_ones(len(samples))
        values = {
            **self.rule.statistics(x, samples, parameters.weight),
            "on": on.mean(1).sum(1),
            "cause": samples.mean(1).sum(1),
            "energy": samples.square().mean(1).sum(1),
            "power": starts * x.square().nansum(),
            "observed": starts * (~x.isnan()).sum(),
        }
        return Statistics(values, float(len(x)))

    def expected_log_joint(self, statistics: Statistics, parameters: SpikeAndSlabParameters) -> Tensor:
        """E[log p(y, s)] in nats per point; the density of s is with respect to Lebesgue plus unit mass at 0.

        Under the max rule pixels stay attributed to the units that the statistics attribute them to, so that
        the value is exact only for the W of the statistics.

        Returns:
            [R].
        """
        values = statistics.values
        on, probs, loc, variance = values["on"], parameters.probs, parameters.loc, parameters.variance
        error = values["power"] - self.rule.explained(values, parameters.weight)
        noise = parameters.noise_variance
        likelihood = values["observed"] * (2 * math.pi * noise).log() + error / noise
        spread = values["energy"] - 2 * loc * values["cause"] + loc.square() * on
        slab = on * (2 * math.pi * variance).log() + spread / variance
        spike = on * probs.log() + (statistics.count - on) * (-probs).log1p()
        return ((spike - 0.5 * slab).sum(-1) - 0.5 * likelihood) / statistics.count

    @torch.no_grad()
    def m_step(
        self,
        statistics: Statistics,
        parameters: SpikeAndSlabParameters,
        x: Tensor | None = None,
        found: Expectation | None = None,
    ) -> Maximum[SpikeAndSlabParameters]:
        """Parameters of the greatest objective under the given statistics.

        Under the max rule this holds for the attribution of pixels to units by the present W. With ``x`` and
        ``found`` the step of W is halved until the error of the draws does not rise, so that the objective
        does not fall. π is the maximum in [1e-6, 1 - 1e-6], and ψ and σ² have lower bounds as well.
        """
        values = statistics.values
        weight = self.rule.maximum(values, parameters.weight)
        if x is None or found is None or found.samples is None:
            error = values["power"] - self.rule.explained(values, weight)
        else:
            weight, error = self._safeguarded(x.double(), found.samples, parameters.weight, weight)
        least = LEAST_NOISE * values["power"] / values["observed"]
        noise = torch.maximum(error / values["observed"], least)
        probs, loc, variance = self._slab(statistics, parameters)
        unit = torch.where(loc.abs() > ZERO_LOC * variance.sqrt(), loc, variance.sqrt())
        new = SpikeAndSlabParameters(
            weight * unit.unsqueeze(1),
            probs,
            loc / unit,
            (variance / unit.square()).clamp(min=LEAST_SLAB),
            noise,
        )
        inverse = unit.reciprocal().expand(-1, self.units)
        return Maximum(new, self._rescaled(statistics, inverse), inverse)

    def _safeguarded(self, x: Tensor, samples: Tensor, old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        """W on the way from the old to the new one where the error of the draws has not risen; that error."""
        least, error = (self._error(x, samples, weight) for weight in (old, new))
        weight, step = new, 1.0
        for _ in range(HALVINGS):
            worse = error > least
            if not worse.any():
                return weight, error
            step /= 2
            shorter = torch.where(worse[:, None, None], old + step * (new - old), weight)
            weight, error = shorter, self._error(x, samples, shorter)
        worse = error > least
        return torch.where(worse[:, None, None], old, weight), torch.minimum(error, least)

    def _error(self, x: Tensor, samples: Tensor, weight: Tensor) -> Tensor:
        """Σ (y - E[y | s])² over points and observed elements, a mean over draws, [R]."""
        mean = self.rule.superpose(samples, weight[:, None, None])
        return (x - mean).square().nansum((-2, -1)).mean(1)

    def _slab(
        self, statistics: Statistics, parameters: SpikeAndSlabParameters
    ) -> tuple[Tensor, Tensor, Tensor]:
        """π, μ and ψ of greatest likelihood, each [R, 1 or H]."""
        sums = (statistics.values[name] for name in ("on", "cause", "energy"))
        on, cause, energy = (t.sum(-1, keepdim=True) if self.shared else t for t in sums)
        count = statistics.count * (self.units if self.shared else 1)
        probs = (on / count).clamp(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
        used, mass = on >= LEAST_MASS, on.clamp(min=LEAST_MASS)
        loc = cause / mass
        variance = torch.maximum(energy / mass - loc.square(), LEAST_SLAB * loc.square())
        return (
            probs,
            torch.where(used, loc, parameters.loc),
            torch.where(used, variance, parameters.variance),
        )

    def _rescaled(self, statistics: Statistics, unit: Tensor) -> Statistics:
        """The statistics of causes that are multiplied by ``unit``, [R, H]."""
        values: Mapping[str, Tensor] = statistics.values
        new = {
            **values,
            **self.rule.rescaled(values, unit),
            "cause": values["cause"] * unit,
            "energy": values["energy"] * unit.square(),
        }
        return Statistics(new, statistics.count)

    def quality(self, parameters: SpikeAndSlabParameters, objective: Tensor) -> Tensor:
        """-σ²: a start that has failed leaves much of the data unexplained."""
        return -parameters.noise_variance

    def noise(self, parameters: SpikeAndSlabParameters) -> Tensor:
        """σ, [R]."""
        return parameters.noise_variance.sqrt()
