"""Sums over the components of mixtures whose weights are the same for many observations.

Such are the words of a document, which have the document's shares of topics as their weights. Hoffman, Blei
and Bach (2010), Online learning for latent Dirichlet allocation, Section 2, compute with exp E[log p] in the
place of E[log p]: a sum over topics is then one product of matrices, and a further pass of coordinate ascent
takes no exponentials of words.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Observations:
    """The observations of a mixture, by those that have the same weights.

    Attributes:
        batch: batch shape of the mixture.
        outer, inner: numbers of its dimensions along which weights vary and do not vary.
    """

    batch: torch.Size
    outer: tuple[int, ...]
    inner: tuple[int, ...]

    @classmethod
    def of(cls, weights: Tensor, batch: torch.Size) -> "Observations":
        """Observations under logarithms of weights [..., K], broadcastable to [*batch, K]."""
        weights = weights.expand(*batch, -1)
        varies = [weights.stride(i) != 0 and size > 1 for i, size in enumerate(batch)]
        outer = tuple(i for i, each in enumerate(varies) if each)
        return cls(batch, outer, tuple(i for i, each in enumerate(varies) if not each))

    def __bool__(self) -> bool:
        """True if several observations have the same weights."""
        return math.prod(self.batch[i] for i in self.inner) > 1

    @property
    def sizes(self) -> tuple[int, int]:
        """P, the number of different weights, and Q, that of observations under each."""
        return math.prod(self.batch[i] for i in self.outer), math.prod(self.batch[i] for i in self.inner)

    def weights(self, table: Tensor) -> Tensor:
        """Logarithms of weights [..., K], broadcastable to [*batch, K], as [P, K]."""
        lacking = len(self.batch) + 1 - table.dim()
        for i in sorted(self.inner, reverse=True):
            if i >= lacking:
                table = table.select(i - lacking, 0)
        return table.reshape(self.sizes[0], -1)

    def flat(self, table: Tensor) -> Tensor:
        """A table [*batch, ...] as [P, Q, ...]."""
        order = *self.outer, *self.inner
        rest = range(len(order), table.dim())
        return table.permute(*order, *rest).reshape(*self.sizes, *table.shape[len(order) :])

    def unflat(self, table: Tensor) -> Tensor:
        """The inverse of :meth:`flat` for a table [P, Q]."""
        order = *self.outer, *self.inner
        table = table.view([self.batch[i] for i in order])
        return table.permute([order.index(i) for i in range(len(order))])


@dataclass(frozen=True)
class Likelihoods:
    """Expected log-densities of observations under the components, as exponentials.

    Attributes:
        points: the P · Q observations.
        table: proportional to exp E[log p], float64 [P, Q, K].
        shift: the logarithm of what makes it equal, [P, Q]. It has no gradient.
    """

    points: Observations
    table: Tensor
    shift: Tensor

    @classmethod
    def kept(cls, points: Observations, table: Tensor) -> "Likelihoods":
        """Likelihoods from constants E[log p] [*batch, K]."""
        return cls(points, *_exponentials(points.flat(table.expand(*points.batch, -1))))

    @classmethod
    def looked_up(cls, points: Observations, table: Tensor, value: Tensor) -> "Likelihoods":
        """Likelihoods of observations that are categories.

        Args:
            points: the observations.
            table: E[log p] of each category under each component, [K, V].
            value: the categories, broadcastable to the batch shape.
        """
        found, shift = _exponentials(table.T.contiguous())
        index = points.flat(value.expand(points.batch).long()).reshape(-1)
        rows = found.index_select(0, index).view(*points.sizes, -1)
        return cls(points, rows, shift.index_select(0, index).view(points.sizes))

    def log_sum(self, weights: Tensor) -> Tensor:
        """Logarithms of sums over components, float64 [*batch], given logarithms of weights [..., K]."""
        sums = _LogSums.apply(self.points.weights(weights).double(), self.table)
        return self.points.unflat(sums + self.shift)


def _exponentials(table: Tensor) -> tuple[Tensor, Tensor]:
    """Exponentials of a table [..., K] in proportion, and the largest logarithm of each row [...]: float64.

    The largest one is as large as sums of K products of two may be. What is less than e^-690 of it counts as
    that, and so no product is 0. In float32 that would be e^-80, and a concentration of 0.01 without data has
    an E[log π] of -100.
    """
    table = table.double()
    shift, largest = table.detach().amax(-1), _largest(table)
    least = 0.5 * math.log(torch.finfo(table.dtype).tiny) - largest
    return (table - shift.unsqueeze(-1)).clamp(min=least).exp() * math.exp(largest), shift


def _largest(table: Tensor) -> float:
    """The logarithm of numbers of which K products of two may be added without an overflow."""
    return 0.5 * (math.log(torch.finfo(table.dtype).max) - math.log(table.shape[-1]) - 1)


class _LogSums(torch.autograd.Function):
    """Logarithms of sums [P, Q] over components, of weights' logarithms [P, K] and likelihoods [P, Q, K].

    Both directions take products of exponentials, and read the likelihoods along their memory.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, table: Tensor) -> Tensor:
        factors, shift = _exponentials(weights)
        sums = torch.bmm(factors.unsqueeze(1), table.mT).squeeze(1)
        ctx.save_for_backward(factors, table, sums)
        return (sums * math.exp(-2 * _largest(table))).log() + shift.unsqueeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        factors, table, sums = ctx.saved_tensors
        slopes, (of_weights, of_table) = grad / sums, ctx.needs_input_grad
        return (
            factors * torch.bmm(slopes.unsqueeze(1), table).squeeze(1) if of_weights else None,
            slopes.unsqueeze(-1) * factors.unsqueeze(1) if of_table else None,
        )
