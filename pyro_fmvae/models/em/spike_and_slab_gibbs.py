"""Gibbs sampling of spike-and-slab causes, restricted to the most likely units of each point."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fmvae.models.em.spike_and_slab_rules import LARGEST, Rule, Slab

TEMPORARIES = 12  # numbers that a sweep holds per weight


class SpikeAndSlabParameters(NamedTuple):
    """Parameters of R starts in float64; π, μ and ψ are one per unit, or shared by all H units."""

    weight: Tensor
    """W, [R, D, H]."""
    probs: Tensor
    """π in (0, 1), [R, 1 or H]."""
    loc: Tensor
    """μ, [R, 1 or H]."""
    variance: Tensor
    """ψ > 0, [R, 1 or H]."""
    noise_variance: Tensor
    """σ² > 0, [R]."""

    @property
    def slab(self) -> Slab:
        """Prior of the causes, each [R, 1, 1 or H]."""
        return Slab(*(t.unsqueeze(1) for t in (self.probs.logit(), self.loc, self.variance)))


class SpikeAndSlabGibbs:
    """Draws from p(s | y) by Gibbs sweeps over units, for all points and starts at once.

    Args:
        rule: rule by which causes generate data.
        preselect: H', number of units that may be on at a point: those that explain it best each by itself.
            The cost of a sweep is proportional to it. None: all units; only then are posteriors exact.

    Raises:
        ValueError: ``preselect`` < 1.
    """

    def __init__(self, rule: Rule, preselect: int | None = None) -> None:
        if preselect is not None and preselect < 1:
            raise ValueError(f"preselect: expected a number of units >= 1, or None, got {preselect}")
        self.rule, self.preselect = rule, preselect

    @torch.no_grad()
    def __call__(
        self,
        y: Tensor,
        parameters: SpikeAndSlabParameters,
        latents: Tensor,
        sweeps: int = 1,
        kept: int = 1,
        temperature: float = 1.0,
    ) -> Tensor:
        """Run the chains and return their states after each of the last K sweeps.

        Args:
            y: data [B, D], NaN where missing.
            parameters: parameters of R starts.
            latents: initial states, [R, B, H].
            sweeps: number of sweeps, >= 1.
            kept: K, from 1 to ``sweeps``.
            temperature: T >= 1, a factor of σ².

        Returns:
            s, float64 [R, K, B, H], drawn from torch's generator.

        Raises:
            ValueError: a number is out of range, or there are fewer than two units.
        """
        starts, _, units = latents.shape
        if not 1 <= kept <= sweeps:
            raise ValueError(f"kept: expected a number from 1 to sweeps = {sweeps}, got {kept}")
        if units < 2:
            raise ValueError(f"latents: expected at least 2 units, got {list(latents.shape)}")
        y, latents = y.double(), latents.double()
        parameters = SpikeAndSlabParameters(*(t.double() for t in parameters))
        noise_variance = parameters.noise_variance * temperature
        rows = max(LARGEST // (TEMPORARIES * starts * y.shape[1] * min(self.preselect or units, units)), 1)
        parts = [
            self._chains(part, parameters, state, noise_variance, sweeps, kept)
            for part, state in zip(y.split(rows), latents.split(rows, 1), strict=True)
        ]
        return torch.cat(parts, 2)

    def select(self, y: Tensor, parameters: SpikeAndSlabParameters, noise_variance: Tensor) -> Tensor:
        """Units of each point that may be on, best first, int64 [R, B, U]."""
        weight, slab = parameters.weight, parameters.slab
        starts, _, units = weight.shape
        if self.preselect is None or self.preselect >= units:
            return torch.arange(units, device=y.device).expand(starts, len(y), units)
        score = self.rule.single_cause_log_odds(y, weight, slab, noise_variance)
        return score.topk(self.preselect, -1).indices

    def _chains(
        self,
        y: Tensor,
        parameters: SpikeAndSlabParameters,
        latents: Tensor,
        noise_variance: Tensor,
        sweeps: int,
        kept: int,
    ) -> Tensor:
        chosen = self.select(y, parameters, noise_variance)
        by_unit = chosen.movedim(-1, 0)
        start = torch.arange(len(latents), device=y.device)[:, None]
        weight = parameters.weight.mT[start, by_unit]
        slab = Slab(*(t.expand(*latents.shape).gather(-1, chosen).movedim(-1, 0) for t in parameters.slab))
        causes = latents.gather(-1, chosen).movedim(-1, 0).contiguous()
        rest = len(causes) < latents.shape[-1]
        sweep = self.rule.sweep(y, weight, slab, noise_variance, rest)
        states = []
        for number in range(sweeps):
            sweep(causes)
            if number >= sweeps - kept:
                found = torch.zeros_like(latents).scatter(-1, chosen, causes.movedim(0, -1))
                states.append(found)
        return torch.stack(states, 1)
