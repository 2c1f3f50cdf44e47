"""Real data with missing elements, whose mean is the sum, or the maximum, of the effects of causes."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Distribution, constraints

from pyro_fmvae.distributions.expected_log_prob import Posteriors, register_expected_log_prob
from pyro_fmvae.distributions.exponential_family import unwrap
from pyro_fmvae.distributions.mixture import RealOrMissing

LARGEST = 2**22  # numbers in a temporary of `largest`


class Superposition(TorchDistribution):
    """x ~ N(f(s), σ² I) of causes s; elements of x that are NaN are not observed, and left out.

    Args:
        causes: s, [..., H].
        weight: W, the effect of each cause on each element, [D, H].
        scale: σ > 0, a scalar.
    """

    arg_constraints: dict[str, constraints.Constraint] = {  # noqa: RUF012
        "weight": constraints.independent(constraints.real, 2),
        "scale": constraints.positive,
    }
    support = RealOrMissing()

    def __init__(
        self, causes: Tensor, weight: Tensor, scale: Tensor, validate_args: bool | None = None
    ) -> None:
        if weight.dim() != 2 or weight.shape[1] != causes.shape[-1]:
            raise ValueError(f"weight: expected [D, {causes.shape[-1]}], got {list(weight.shape)}")
        self.causes, self.weight, self.scale = causes, weight, scale
        super().__init__(causes.shape[:-1], weight.shape[:1], validate_args=validate_args)

    @abstractmethod
    def _mean(self) -> Tensor:
        """f(s), [..., D]."""

    @property
    def mean(self) -> Tensor:
        """f(s), [..., D]."""
        return self._mean()

    @property
    def variance(self) -> Tensor:
        """σ², [..., D]."""
        return self.scale.square().expand(self._extended_shape())

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "Superposition":
        """Expand to ``batch_shape``; the very same causes if that is theirs already."""
        new = self._get_checked_instance(type(self), _instance)
        shape = torch.Size(batch_shape)
        same = shape == self.batch_shape
        new.causes = self.causes if same else self.causes.expand(*shape, self.causes.shape[-1])
        new.weight, new.scale = self.weight, self.scale
        TorchDistribution.__init__(new, shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of the observed elements, [...]; 0 where none is."""
        if self._validate_args:
            self._validate_sample(value)
        return normal_log_prob(value, self.mean, torch.zeros((), dtype=value.dtype), self.scale)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, none missing: [*sample_shape, ..., D]."""
        with torch.no_grad():
            shape = self._extended_shape(torch.Size(sample_shape))
            noise = torch.randn(shape, dtype=self.weight.dtype, device=self.weight.device)
            return self.mean + self.scale * noise


class LinearNormal(Superposition):
    """x ~ N(W s, σ² I).

    Under ``TraceConjugate_ELBO`` causes need not be drawn: see
    :func:`pyro_fmvae.distributions.superposition.expected_linear_normal`. Arguments as for
    :class:`Superposition`.
    """

    parents = ("causes",)

    def _mean(self) -> Tensor:
        return self.causes @ self.weight.T


class MaxNormal(Superposition):
    """x_d ~ N(max_h W_dh s_h, σ²): Puertas et al. (2010), Shelton et al. (2015).

    The maximum is over all causes, so that those which are 0 contribute 0. Arguments as for
    :class:`Superposition`.
    """

    def _mean(self) -> Tensor:
        return largest(self.causes, self.weight)


def normal_log_prob(value: Tensor, mean: Tensor, variance: Tensor, scale: Tensor) -> Tensor:
    """E[log N(x; m, σ² I)] over elements of x that are not NaN, m being uncertain.

    Args:
        value: x, [..., D].
        mean: E[m], [..., D].
        variance: Var[m] of each element, broadcastable to [..., D].
        scale: σ, a scalar.

    Returns:
        Nats, [...].
    """
    observed = ~value.isnan()
    error = torch.where(observed, value - mean, 0.0).square() + torch.where(observed, variance, 0.0)
    constant = scale.log() + 0.5 * math.log(2 * math.pi)
    return -0.5 * error.sum(-1) / scale.square() - observed.sum(-1) * constant


def largest(causes: Tensor, weight: Tensor) -> Tensor:
    """max_h W_dh s_h, [..., D].

    Args:
        causes: s, [..., H].
        weight: W, [..., D, H], its leading dimensions broadcastable to those of ``causes``.
    """
    rows = causes[..., 0].numel() * weight.shape[-2]
    most = max(LARGEST // max(rows, 1), 1)
    parts = [
        (s.unsqueeze(-2) * w).amax(-1)
        for s, w in zip(causes.split(most, -1), weight.split(most, -1), strict=True)
    ]
    result = parts[0]
    for part in parts[1:]:
        result = torch.maximum(result, part)
    return result


# E_q[log p(x | causes)] in closed form, where the mean of x is linear in the causes.


@register_expected_log_prob(dist.Delta, LinearNormal)
def expected_linear_normal(q: dist.Delta, p: LinearNormal, posteriors: Posteriors) -> Tensor:
    """E[log N(x; W s, σ² I)] [...]: it depends on s through its mean and variance alone.

    Missing elements of x (NaN) are left out. Causes are independent, or independent in groups whose
    ``superposed_variance(W)`` gives the variance of W s.

    Args:
        q: x, observed.
        p: the model's distribution.
        posteriors: that of ``causes``, with batch shape [...].

    Raises:
        NotImplementedError: a posterior whose dimensions may depend on each other in another way.
    """
    causes: Any = unwrap(posteriors["causes"])
    weight = p.weight
    if hasattr(causes, "superposed_variance"):
        variance = causes.superposed_variance(weight)
    elif _independent(posteriors["causes"]):
        variance = causes.variance @ weight.square().T
    else:
        raise NotImplementedError(
            f"causes: no closed form of the variance of W s under {type(causes).__name__}; expected "
            "independent dimensions, or a method superposed_variance"
        )
    return normal_log_prob(q.v, causes.mean @ weight.T, variance, p.scale)


def _independent(fn: Distribution) -> bool:
    """True if the last dimension of the event holds independent numbers."""
    return isinstance(fn, torch.distributions.Independent) and fn.base_dist.event_shape == ()
