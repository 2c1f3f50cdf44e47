"""Quantiles of the single numbers of a distribution."""

from collections.abc import Sequence
from typing import Any

import pyro.poutine as poutine
import scipy  # type: ignore[import-untyped]
import torch
from pyro.distributions import MultivariateStudentT
from torch import Tensor
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
        standard = scipy.special.stdtrit(q.df.double().cpu().numpy(), levels.cpu().numpy())
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


@torch.no_grad()
def medians_of_guide(guide: Any, args: Any, kwargs: Any) -> dict[str, Tensor]:
    """See :meth:`AutoConjugate.median`."""
    found = {name: values.squeeze(0) for name, values in _of_sites(guide, [0.5], args, kwargs).items()}
    if guide.fallback is None:
        return found
    if not hasattr(guide.fallback, "median"):
        raise ValueError("fallback: a guide that has no median; take one of Pyro's, such as AutoNormal")
    return {**found, **guide.fallback.median(*args, **kwargs)}


@torch.no_grad()
def quantiles_of_guide(guide: Any, levels: list[float], args: Any, kwargs: Any) -> dict[str, Tensor]:
    """See :meth:`AutoConjugate.quantiles`."""
    found = _of_sites(guide, levels, args, kwargs)
    if guide.fallback is None:
        return found
    if not hasattr(guide.fallback, "quantiles"):
        kind = type(guide.fallback).__name__
        raise ValueError(f"fallback: {kind} has no quantiles; take AutoNormal")
    return {**found, **guide.fallback.quantiles(levels, *args, **kwargs)}


def _of_sites(guide: Any, levels: list[float], args: Any, kwargs: Any) -> dict[str, Tensor]:
    """Quantiles of the conjugate sites."""
    with poutine.block():
        guide(*args, **kwargs)  # posteriors, and the sites that Pyro's autoguides know, exist after a call
    return {name: quantiles_of(q, levels) for name, q in guide.marginals().items()}
