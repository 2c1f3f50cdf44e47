"""Gibbs sampling of causes that are a spike or a slab, over the units that a point most likely has."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fmvae.em.spike_and_slab_rules import LARGEST, Rule, Slab

TEMPORARIES = 12  # numbers that a sweep keeps for every weight that it looks at


class SpikeAndSlabParameters(NamedTuple):
    """Of R starts, in float64; the slab's are those of each of H units, or one for all."""

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
        """The prior of causes, each [R, 1, 1 or H]."""
        return Slab(*(t.unsqueeze(1) for t in (self.probs.logit(), self.loc, self.variance)))


class SpikeAndSlabGibbs:
    """Draws from p(s | y) by Gibbs sweeps: each unit in turn, for all points and starts at once.

    Args:
        rule: how causes make data.
        preselect: H', how many units of a point are ever on: those that explain it best each by itself; the
            cost of a sweep is in proportion. None: all of them, which alone gives exact posteriors.

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
        """States of the chains after each of the last sweeps; from torch's generator.

        Args:
            y: data [B, D], NaN where missing.
            parameters: of R starts.
            latents: states to start from, [R, B, H].
            sweeps: >= 1.
            kept: K, from 1 to ``sweeps``.
            temperature: T >= 1, by which σ² is multiplied.

        Returns:
            s, float64 [R, K, B, H].

        Raises:
            ValueError: a number out of range, or one unit alone.
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
        """The units of each point that may be on, best first, [R, B, U]."""
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
