"""Families of q(z | x) with a location and a scale: the Gaussian, and its limit of scale 0."""

from abc import ABC, abstractmethod
from typing import TypeAlias

import pyro.distributions as dist
from torch import Tensor
from torch.distributions import Distribution

LocScale: TypeAlias = tuple[Tensor, Tensor]
"""Location and scale of q(z), each [B, J]."""


class PosteriorFamily(ABC):
    """A family of densities q(z) with a location and a scale in every dimension.

    Attributes:
        bounded: True if KL(q || p) is finite, so that there is a bound on log p(x).
    """

    bounded: bool

    @abstractmethod
    def __call__(self, loc: Tensor, scale: Tensor) -> Distribution:
        """q(z) for locations and scales [..., J]: batch shape [...], event shape [J]."""


class GaussianPosterior(PosteriorFamily):
    """N(loc, diag(scale²))."""

    bounded = True

    def __call__(self, loc: Tensor, scale: Tensor) -> Distribution:
        """The normal distribution with independent dimensions."""
        return dist.Normal(loc, scale).to_event(1)


class PointPosterior(PosteriorFamily):
    """The limit of scale 0, z = loc: the reconstruction term is that of an auto-encoder.

    Only that term has a limit. KL(N(m, s²) || N(0, 1)) = (m² + s² - 1 - log s²) / 2 diverges as s goes to 0,
    so it is left out. The prior then has no part in learning, and the loss is *no* bound on log p(x). To
    compare it with bounds, or to draw z from the prior, is meaningless.
    """

    bounded = False

    def __call__(self, loc: Tensor, scale: Tensor) -> Distribution:
        """The point mass at the location; the scale is ignored."""
        return dist.Delta(loc, event_dim=1)
