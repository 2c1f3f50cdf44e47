"""Quantiles of the single numbers of a distribution."""

from collections.abc import Sequence
from typing import Any

import pyro.poutine as poutine
import torch
from pyro.distributions import MultivariateStudentT
from scipy.special import stdtrit  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.distributions import Distribution, MultivariateNormal, Normal, StudentT

from pyro_fmvae.distributions import NaturalDistribution

_DRAWS = 4096
_LOGARITHMS = 700.0  # of a positive number, at most: exp of more has no float64
_HALVINGS = 64


def quantiles_of(q: Distribution, probabilities: Sequence[float]) -> Tensor:
    """Quantiles of each number of a distribution's values: [Q, *batch shape, *event shape].

    Exact for a Normal and a Student-t, and where torch has the distribution function of a positive number;
    else those of 4,096 draws.

    Args:
        q: in natural parameters or not.
        probabilities: Q numbers.

    Raises:
        ValueError: a number that is not between 0 and 1.
    """
    if not all(0 < p < 1 for p in probabilities):
        raise ValueError(f"quantiles: expected numbers between 0 and 1, got {list(probabilities)}")
    dtype = q.mean.dtype
    if isinstance(q, NaturalDistribution):
        dtype = q.dtype
        q = q.family.member(*q.standard)
    if isinstance(q, MultivariateNormal):
        q = Normal(q.mean, q.stddev)
    elif isinstance(q, MultivariateStudentT):
        q = StudentT(q.df.unsqueeze(-1), q.loc, q.scale_tril.norm(dim=-1))
    levels = torch.tensor(probabilities, dtype=torch.float64, device=q.mean.device)
    try:
        return _by_inversion(q, levels.view(-1, *[1] * len(q.batch_shape + q.event_shape))).to(dtype)
    except NotImplementedError:
        draws = q.sample(torch.Size([_DRAWS])).sort(0).values
        return draws[(levels * _DRAWS).long()].to(dtype)


def _by_inversion(q: Distribution, levels: Tensor) -> Tensor:
    """The inverse of the distribution function, by bisection if it has to be."""
    if isinstance(q, StudentT):
        standard = stdtrit(q.df.double().cpu().numpy(), levels.cpu().numpy())
        return q.loc + q.scale * torch.as_tensor(standard, device=levels.device)
    try:
        return q.icdf(levels)
    except NotImplementedError:
        if getattr(q.support, "lower_bound", None) != 0 or hasattr(q.support, "upper_bound"):
            raise
    upper = torch.full((len(levels), *q.batch_shape), _LOGARITHMS, dtype=levels.dtype, device=levels.device)
    lower = -upper
    for _ in range(_HALVINGS):
        middle = (lower + upper) / 2
        below = q.cdf(middle.exp()) < levels
        lower, upper = middle.where(below, lower), upper.where(below, middle)
    return upper.exp()


class WithQuantiles(nn.Module):
    """A guide that tells the quantiles of its posteriors, as Pyro's ``AutoNormal`` does.

    They are of each number by itself: medians of probabilities need not add up to 1. Those of Normal, Gamma
    and inverse Gamma posteriors are exact, and of locations with a joint posterior; all others are of 4,096
    draws.

    Attributes:
        fallback: the autoguide of all other sites, if any.
    """

    fallback: Any

    def marginals(self) -> dict[str, Distribution]:
        """The posterior distributions of conjugate sites, each by itself, after the first call."""
        raise NotImplementedError

    @torch.no_grad()
    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Posterior medians by site, of the site's shape; arguments as for the model.

        Sites of ``fallback`` have the medians that it gives.

        Raises:
            ValueError: a ``fallback`` without medians, such as a function.
        """
        found = {name: values.squeeze(0) for name, values in self._quantiles([0.5], args, kwargs).items()}
        if self.fallback is None:
            return found
        if not hasattr(self.fallback, "median"):
            raise ValueError("fallback: a guide that has no median; take one of Pyro's, such as AutoNormal")
        return {**found, **self.fallback.median(*args, **kwargs)}

    @torch.no_grad()
    def quantiles(self, quantiles: Sequence[float] | Tensor, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Posterior quantiles by site: [Q, *shape of the site].

        Args:
            quantiles: Q numbers in (0, 1).
            args, kwargs: as for the model.

        Raises:
            ValueError: a number outside (0, 1), or a ``fallback`` without quantiles, such as ``AutoDelta``.
        """
        levels = torch.as_tensor(quantiles).tolist()
        found = self._quantiles(levels, args, kwargs)
        if self.fallback is None:
            return found
        if not hasattr(self.fallback, "quantiles"):
            kind = type(self.fallback).__name__
            raise ValueError(f"fallback: {kind} has no quantiles; take AutoNormal")
        return {**found, **self.fallback.quantiles(levels, *args, **kwargs)}

    def _quantiles(self, levels: list[float], args: Any, kwargs: Any) -> dict[str, Tensor]:
        with poutine.block():
            self(*args, **kwargs)  # posteriors, and the sites that Pyro's autoguides know, exist after a call
        return {name: quantiles_of(q, levels) for name, q in self.marginals().items()}
