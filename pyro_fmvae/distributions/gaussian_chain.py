"""Integrals over the paths of Gaussian Markov chains, whole batches of sequences at a time.

The weight of a path is the exponential of a quadratic function in which each step meets its neighbours alone.
So the precision matrix of a path is block-tridiagonal, and one pass forward finds its Cholesky factor, with
blocks L_t on the diagonal and -W_tᵀ below it. Everything else is a solution with that factor (Rue and Held,
2005, Gaussian Markov Random Fields, Sections 2.4 and 3.5): it is Kalman smoothing in information form.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import pad

from pyro_fmvae.distributions import packed_matrices as packed


@dataclass(frozen=True)
class GaussianChain:
    """The weights of all paths of a batch of chains of vectors, which need not integrate to 1.

    The logarithm of the weight of z_1 … z_T is c + Σ h_t·z_t - Σ z_tᵀ J_t z_t / 2 + Σ z_t+1ᵀ K_t z_t.

    Attributes:
        precision: J, symmetric, float64 [..., T, D, D].
        link: K, [..., T - 1, D, D].
        linear: h, [..., T, D].
        constant: c, [...].
    """

    precision: Tensor
    link: Tensor
    linear: Tensor
    constant: Tensor

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of the sequences, [...]."""
        blocks = self.precision.shape[:-3], self.link.shape[:-3], self.linear.shape[:-2], self.constant.shape
        return torch.broadcast_shapes(*blocks)

    def times(self, precision: Tensor, linear: Tensor, constant: Tensor | float = 0.0) -> "GaussianChain":
        """These weights times exp(c + Σ h_t·z_t - Σ z_tᵀ J_t z_t / 2), in the same notation."""
        return replace(
            self,
            precision=self.precision + precision,
            linear=self.linear + linear,
            constant=self.constant + constant,
        )

    def log_evidence(self) -> Tensor:
        """The logarithm of the integral over all paths, [...]."""
        paths, dim = self.linear.shape[-2:]
        square = 0.5 * self._forward.square().sum((-2, -1))
        return self.constant + square - self._log_determinant + 0.5 * paths * dim * math.log(2 * math.pi)

    def posterior(self, dtype: torch.dtype | None = None) -> "GaussianPath":
        """The distribution of a path that is proportional to its weight; its draws are of a given type."""
        return GaussianPath(self, dtype)

    def draw(self) -> Tensor:
        """A path drawn in proportion to its weight, float64 [..., T, D]."""
        return self.posterior(self.linear.dtype).sample()

    def log_density(self, path: Tensor) -> Tensor:
        """The log-density of paths [..., T, D] under the distribution proportional to the weights: [...]."""
        return self.log_densities(path).sum(-1)

    def log_densities(self, path: Tensor) -> Tensor:
        """Log-density of each step of paths [..., T, D] given the next step, [..., T]."""
        diagonal, below = (torch.stack(blocks, -3) if blocks else self.link for blocks in self._factor)
        ahead = (below @ path[..., 1:, :, None]).squeeze(-1)
        white = (diagonal.mT @ path.unsqueeze(-1)).squeeze(-1) - self._forward - pad(ahead, (0, 0, 0, 1))
        constant = 0.5 * (packed.log_determinant(diagonal) - path.shape[-1] * math.log(2 * math.pi))
        return constant - 0.5 * white.square().sum(-1)

    def log_weight(self, path: Tensor) -> Tensor:
        """The logarithm of the weight of paths [..., T, D]: [...]."""
        return self._mean_log_weight(path, _outer(path, path), _outer(path[..., 1:, :], path[..., :-1, :]))

    def mean_log_weight(self, posterior: "GaussianChain") -> Tensor:
        """The expectation of the logarithm of the weight of a path that another chain weighs: [...]."""
        mean, (own, across) = posterior.mean_path, posterior.covariances
        own, across = own + _outer(mean, mean), across + _outer(mean[..., 1:, :], mean[..., :-1, :])
        return self._mean_log_weight(mean, own, across)

    def _mean_log_weight(self, path: Tensor, own: Tensor, across: Tensor) -> Tensor:
        linear, square = (self.linear * path).sum((-2, -1)), (self.precision * own).sum((-3, -2, -1))
        return self.constant + linear - 0.5 * square + (self.link * across).sum((-3, -2, -1))

    def forward(self) -> tuple[Tensor, Tensor]:
        """Precision [..., T, D, D] and linear weights [..., T, D] of steps, earlier ones integrated out."""
        diagonal = torch.stack(self._factor[0], -3)
        return diagonal @ diagonal.mT, (diagonal @ self._forward.unsqueeze(-1)).squeeze(-1)

    @cached_property
    def mean_path(self) -> Tensor:
        """The most probable path, which is the mean one: [..., T, D]."""
        return self.solve(self._forward)

    @cached_property
    def covariances(self) -> tuple[Tensor, Tensor]:
        """Covariance of each step, [..., T, D, D], and of each but the first with the one before it."""
        (diagonal, below), identity = (
            self._factor,
            torch.eye(self.linear.shape[-1], dtype=self.linear.dtype, device=self.linear.device),
        )
        roots = [_divided(identity, own) for own in diagonal]  # the inverse of L_t
        last = roots[-1].mT @ roots[-1]
        own, across = [last], []
        for root, link in zip(reversed(roots[:-1]), reversed(below), strict=True):
            gain = root.mT @ link
            across.append(last @ gain.mT)
            last = root.mT @ root + gain @ across[-1]
            own.append(last)
        none = self.link.new_empty(self.link.shape)  # of a chain of one step
        return torch.stack(own[::-1], -3), torch.stack(across[::-1], -3) if across else none

    @property
    def entropies(self) -> Tensor:
        """Entropy of each step given the next one, in nats, [..., T]."""
        log_determinants = packed.log_determinant(torch.stack(self._factor[0], -3))
        return 0.5 * (self.linear.shape[-1] * (1 + math.log(2 * math.pi)) - log_determinants)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the distribution proportional to the weights, in nats, [...]."""
        return self.entropies.sum(-1).expand(self.batch_shape)

    def solve(self, white: Tensor) -> Tensor:
        """The solution of 𝓛ᵀ z = v [..., T, D]: for white noise v, a path without its mean."""
        diagonal, below = self._factor
        *earlier, v = white.unbind(-2)
        path = [_divided(v.unsqueeze(-1), diagonal[-1].mT, upper=True)]
        for v, own, link in zip(reversed(earlier), reversed(diagonal[:-1]), reversed(below), strict=True):
            path.append(_divided(v.unsqueeze(-1) + link @ path[-1], own.mT, upper=True))
        return torch.cat(path[::-1], -1).mT

    @cached_property
    def _factor(self) -> tuple[list[Tensor], list[Tensor]]:
        """The blocks L_t and W_t of the Cholesky factor 𝓛, NaN from where the weights have no integral."""
        first, *others = self.precision.unbind(-3)
        diagonal, below = [packed.cholesky_or_nan(first)], []
        for own, link in zip(others, self.link.unbind(-3), strict=True):
            below.append(_divided(link.mT, diagonal[-1]))
            diagonal.append(packed.cholesky_or_nan(own - below[-1].mT @ below[-1]))
        return diagonal, below

    @cached_property
    def _forward(self) -> Tensor:
        """The solution of 𝓛 y = h, [..., T, D]."""
        diagonal, below = self._factor
        first, *others = self.linear.unbind(-2)
        white = [_divided(first.unsqueeze(-1), diagonal[0])]
        for h, own, link in zip(others, diagonal[1:], below, strict=True):
            white.append(_divided(h.unsqueeze(-1) + link.mT @ white[-1], own))
        return torch.cat(white, -1).mT

    @property
    def _log_determinant(self) -> Tensor:
        return 0.5 * packed.log_determinant(torch.stack(self._factor[0], -3)).sum(-1)


@dataclass(frozen=True)
class GaussianChunks(GaussianChain):
    """The weights of paths through chunks of chains, some of whose steps do not count for themselves.

    These are a buffer: they help to tell the states at those that count. Paths are those through the whole
    chunk, but logarithms of weights and densities, and entropies, are the parts of steps that count.

    Attributes:
        counts: 1 for steps that count, 0 for others, [..., T].
        part: the factors of the weights that belong to steps that count.
    """

    counts: Tensor
    part: GaussianChain

    def log_evidence(self) -> Tensor:
        """The part of the logarithm that steps have which count, [...]; all of a sequence's add up to it.

        A step's part is E[log p(z_t | z_t-1) + log p(x_t | z_t) - log q(z_t | z_t+1)] under the distribution
        of paths q, which is a constant here.
        """
        path = GaussianChain(*(t.detach() for t in (self.precision, self.link, self.linear, self.constant)))
        return self.mean_log_weight(path) + (self.counts * path.entropies).sum(-1)

    def log_density(self, path: Tensor) -> Tensor:
        """The part in the log-density of paths of steps that count, each given the next one: [...]."""
        return (self.counts * self.log_densities(path)).sum(-1)

    @property
    def entropy(self) -> Tensor:
        """The part in the entropy of steps that count, each given the next one: [...]."""
        return (self.counts * self.entropies).sum(-1).expand(self.batch_shape)

    def _mean_log_weight(self, path: Tensor, own: Tensor, across: Tensor) -> Tensor:
        return self.part._mean_log_weight(path, own, across)


class GaussianPath(TorchDistribution):
    """Paths of a Gaussian Markov chain, in proportion to their weights.

    Args:
        chain: the weights.
        dtype: of draws and log-densities; torch's default dtype if None.

    Shapes: the event is [T, D].
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(self, chain: GaussianChain, dtype: torch.dtype | None = None) -> None:
        self.chain, self.dtype = chain, torch.get_default_dtype() if dtype is None else dtype
        super().__init__(chain.batch_shape, chain.linear.shape[-2:], validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Expand to ``batch_shape``; the weights stay those that were given."""
        new: Any = self._get_checked_instance(GaussianPath, _instance)
        new.chain, new.dtype = self.chain, self.dtype
        super(GaussianPath, new).__init__(torch.Size(batch_shape), self.event_shape, validate_args=False)
        return new

    @property
    def mean(self) -> Tensor:
        """The mean path, [..., T, D]."""
        return self.chain.mean_path.to(self.dtype).expand(*self.batch_shape, *self.event_shape)

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance matrix of each step, [..., T, D, D]."""
        own = self.chain.covariances[0].to(self.dtype)
        return own.expand(*self.batch_shape, *self.event_shape, self.event_shape[-1])

    @property
    def variance(self) -> Tensor:
        """Variance of each number, [..., T, D]."""
        return packed.diagonal(self.covariance_matrix)

    def rsample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Reparameterised draws, [*sample_shape, ..., T, D]."""
        noise = torch.randn(self._extended_shape(sample_shape)).to(self.chain.linear)
        return (self.chain.mean_path + self.chain.solve(noise)).to(self.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of paths [..., T, D]: [...]."""
        density = self.chain.log_density(value.to(self.chain.linear))
        return density.to(self.dtype).expand(torch.broadcast_shapes(density.shape, self.batch_shape))

    def entropy(self) -> Tensor:
        """In nats, [...]."""
        return self.chain.entropy.to(self.dtype).expand(self.batch_shape)


def _outer(one: Tensor, other: Tensor) -> Tensor:
    return one.unsqueeze(-1) * other.unsqueeze(-2)


def _divided(right: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    """The solution of a triangular system with several right-hand sides, [..., D, N]."""
    return torch.linalg.solve_triangular(factor, right, upper=upper)
