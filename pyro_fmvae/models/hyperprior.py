"""Hyperparameters of mixture priors."""

import math
from dataclasses import dataclass


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
