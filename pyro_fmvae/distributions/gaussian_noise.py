"""Normal distributions of the noise in a linear system, by mean and precision."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pyro.distributions import MaskedDistribution
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

Number = Callable[[Tensor], Tensor]
Density = Callable[[Distribution, Tensor], Tensor]


def itself(tensor: Tensor) -> Tensor:
    """A tensor that has numbers."""
    return tensor


def log_density(fn: Distribution, value: Tensor) -> Tensor:
    """The log-density of a value under a distribution that has numbers."""
    return fn.log_prob(value)


def by_step(matrix: Tensor) -> Tensor:
    """A matrix with a dimension of steps, if it has dimensions of sequences before it."""
    return matrix.unsqueeze(-3) if matrix.dim() > 2 else matrix


class GaussianNoise(NamedTuple):
    """A normal distribution by its mean and its precision, which may be values that are not there.

    Args:
        loc: [..., N].
        precision: a matrix [..., N, N], or its diagonal [..., N].
        is_full: whether it is a matrix.
    """

    loc: Tensor
    precision: Tensor
    is_full: bool

    @classmethod
    def of(cls, fn: Any) -> "GaussianNoise":
        """Noise of a distribution, with a precision of 0 where it is masked."""
        if isinstance(fn, Independent):
            return cls.of(fn.base_dist)
        if isinstance(fn, MaskedDistribution):
            loc, precision, is_full = cls.of(fn.base_dist)
            mask = torch.as_tensor(fn._mask, dtype=precision.dtype, device=precision.device)
            return cls(loc, precision * mask[(..., *(None,) * (fn.event_dim + is_full))], is_full)
        if isinstance(fn, Normal):
            return cls(fn.loc, fn.scale**-2, False)
        if isinstance(fn, MultivariateNormal):
            known = "precision_matrix" in vars(fn)
            tril = fn._unbroadcasted_scale_tril
            return cls(fn.loc, fn.precision_matrix if known else torch.cholesky_inverse(tril), True)
        raise TypeError(type(fn).__name__)

    def times(self, matrix: Tensor) -> Tensor:
        """The precision times a matrix [..., N, M]."""
        return self.precision @ matrix if self.is_full else self.precision.unsqueeze(-1) * matrix

    def matrix(self, number: Number) -> Tensor:
        """The expected precision, [..., N, N]."""
        return number(self.precision) if self.is_full else torch.diag_embed(number(self.precision))


def check_gaussian(name: str, fn: Distribution) -> None:
    """Refuse a distribution of another kind, under the name of its argument."""
    try:
        GaussianNoise.of(fn)
    except TypeError as error:
        raise ValueError(
            f"{name}: expected a MultivariateNormal or Normal(...).to_event(1), masked or not, got {error}"
        ) from None


def batch_of(noise: Distribution, steps: int) -> torch.Size:
    """The batch shape of a noise without its dimension of steps."""
    if noise.batch_shape[-1:].numel() not in (1, steps):
        raise ValueError(
            f"noise: expected a batch shape that ends with 1 or the {steps} steps, if it has one, got "
            f"{list(noise.batch_shape)}"
        )
    return noise.batch_shape[:-1]
