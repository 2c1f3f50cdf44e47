"""What a location and a scale make of q(z | x): a Gaussian, or its limit of scale 0."""

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
        bounded: whether KL(q || p) is finite, so that there is a bound on log p(x).
    """

    bounded: bool

    @abstractmethod
    def __call__(self, loc: Tensor, scale: Tensor) -> Distribution:
        """q(z) of locations and scales [..., J]: batch shape [...], event shape [J]."""


class GaussianPosterior(PosteriorFamily):
    """N(loc, diag(scale²))."""

    bounded = True

    def __call__(self, loc: Tensor, scale: Tensor) -> Distribution:
        """The normal distribution, dimensions independent."""
        return dist.Normal(loc, scale).to_event(1)


class PointPosterior(PosteriorFamily):
    """The limit of scale 0, z = loc: the reconstruction term is that of an auto-encoder.

    It is a limit of that term alone. KL(N(m, s²) || N(0, 1)) = (m² + s² - 1 - log s²) / 2 grows without bound
    as s goes to 0; it is left out, the prior has no part in learning, and what remains is *no* bound on
    log p(x). Comparing it with bounds, or drawing z from the prior, has no meaning.
    """

    bounded = False

    def __call__(self, loc: Tensor, scale: Tensor) -> Distribution:
        """The point mass; the scale is not looked at."""
        return dist.Delta(loc, event_dim=1)
