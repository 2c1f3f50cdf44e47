"""Step sizes for natural gradients."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class RobbinsMonro:
    """ρ_τ = (τ0 + τ)^(-κ) for τ = 1, 2, ...: Paquet et al. (2018), eq. 7; Hoffman et al. (2013), eq. 26.

    Args:
        delay: τ0 >= 0 and finite, in steps; a larger one damps the first steps.
        forgetting: κ in (1/2, 1], how fast old batches are forgotten.
        first_step: if given, ρ is rescaled so that ρ_1 is this; the paper's 0.01 does not follow from its τ0
            and κ.

    Raises:
        ValueError: an argument out of range.
    """

    delay: float = 2000.0
    forgetting: float = 0.7
    first_step: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.delay < math.inf:
            raise ValueError(f"delay: expected a finite number >= 0, got {self.delay}")
        if not 0.5 < self.forgetting <= 1:
            raise ValueError(f"forgetting: expected a number in (1/2, 1], got {self.forgetting}")
        if self.first_step is not None and not 0 < self.first_step <= 1:
            raise ValueError(f"first_step: expected a number in (0, 1], got {self.first_step}")

    def __call__(self, step: int) -> float:
        """ρ of the given step, counted from 0; in (0, 1]."""
        if self.first_step is None:
            return (self.delay + step + 1) ** -self.forgetting
        return self.first_step * ((self.delay + step + 1) / (self.delay + 1)) ** -self.forgetting
