"""A categorical observation of a mixture component, such as a column of words in a table."""

from collections.abc import Sequence

import torch
from pyro.distributions import OneHotCategorical, TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import pad

from pyro_fmvae.distributions.dirichlet import DIRICHLET
from pyro_fmvae.distributions.mixture import MixtureComponent


class Category(MixtureComponent):
    """A row's category given its own component: x | r=k ~ Categorical(φ_k), φ_k ~ Dirichlet.

    An observation is the indicator of its category, one of L. All zeros are a missing one: it is
    marginalised, as its factor of the probability is 1.

    Args:
        probs: φ, the very value of a Dirichlet site, [..., K, L].
        assignment: component indices, the very value of an ``Assignment`` site, [...].
    """

    parents, family, parameter_dim = ("probs", "assignment"), DIRICHLET, 1
    support = constraints.real_vector

    probs: Tensor

    def __init__(self, probs: Tensor, assignment: Tensor, validate_args: bool | None = None) -> None:
        if probs.dim() < 2:
            raise ValueError(f"probs: expected shape [..., K, L], got {list(probs.shape)}")
        super().__init__(probs, assignment, probs.shape[-1:], validate_args)

    def given(self, parameter: Tensor) -> TorchDistribution:
        """Indicators of categories of probabilities [..., L], none missing."""
        return OneHotCategorical(probs=parameter, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of indicators [..., L]: log φ of their category, 0 where it is missing."""
        if self._validate_args:
            self._validate_sample(value)
        log_prob = torch.where(value > 0, value * self._selected().log(), 0.0).sum(-1)
        return log_prob.expand(torch.broadcast_shapes(self.batch_shape, value.shape[:-1]))


class CategoryBlock:
    """Dirichlets over the categories of several columns, for which each operation is done once, not for each.

    Their λ lie one after the other, [..., L], where L is how many categories the columns have together.

    Args:
        sizes: how many categories each column has.
        device: of the block.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self.sizes = list(sizes)
        of_columns = torch.tensor(self.sizes, dtype=torch.int64, device=device)
        self._starts = of_columns.cumsum(0) - of_columns
        self._column = torch.arange(len(of_columns), device=device).repeat_interleave(of_columns)

    def indicators(self, codes: Sequence[Tensor]) -> Tensor:
        """Indicators of the categories of each column, all 0 where one is missing: bool [..., N, L].

        Args:
            codes: of :func:`codes_below`, int64 [..., N], for each column.
        """
        of_columns, count = torch.stack(list(codes), -1), len(self._column)
        places = torch.where(of_columns < 0, count, of_columns + self._starts)
        shown = torch.zeros(*places.shape[:-1], count + 1, dtype=torch.bool, device=places.device)
        return shown.scatter_(-1, places, True)[..., :-1]

    def log_softmax(self, logits: Tensor) -> Tensor:
        """Log-probabilities [..., L] of the logits of each column."""
        return logits - self._totals(logits.exp()).log()[..., self._column]

    def mean_stats(self, natural: Tensor) -> Tensor:
        """E[log φ] of each category, [..., L]."""
        return torch.digamma(natural) - torch.digamma(self._totals(natural))[..., self._column]

    def relative_entropy(self, natural: Tensor, prior: Tensor, stats: Tensor) -> Tensor:
        """KL(λ || λ₀) of all columns together, [...].

        Args:
            natural: λ, [..., L].
            prior: λ₀, broadcastable to that.
            stats: :meth:`mean_stats` of λ.
        """
        gap = ((natural - prior) * stats).sum(-1)
        return gap - self._log_normalizer(natural) + self._log_normalizer(prior)

    def _log_normalizer(self, natural: Tensor) -> Tensor:
        return torch.lgamma(natural).sum(-1) - torch.lgamma(self._totals(natural)).sum(-1)

    def _totals(self, natural: Tensor) -> Tensor:
        totals = natural.new_zeros(*natural.shape[:-1], len(self._starts))
        return totals.index_add_(-1, self._column, natural)


def codes_below(numbers: Tensor, size: int) -> Tensor:
    """Numbers of categories, int64 [...], -1 where they are negative, NaN, or not below ``size``.

    Args:
        numbers: of any real or integer type, [...].
        size: how many categories there are.
    """
    codes = numbers.nan_to_num(-1.0).long() if numbers.is_floating_point() else numbers.long()
    return torch.where((codes >= 0) & (codes < size), codes, -1)


def of_category(values: Tensor, codes: Tensor) -> Tensor:
    """Values of each code's category, 0 where it is missing: [..., N, K].

    Args:
        values: of K components and L categories, [..., K, L].
        codes: of :func:`codes_below`, int64 [..., N].
    """
    padded = pad(values, (0, 1))
    places = torch.where(codes < 0, values.shape[-1], codes)
    if places.dim() == 1:
        return padded.index_select(-1, places).mT
    places = places.unsqueeze(-2)
    lead = torch.broadcast_shapes(padded.shape[:-1], places.shape[:-1])
    return padded.expand(*lead, -1).gather(-1, places.expand(*lead, -1)).mT


def sums_by_category(weights: Tensor, codes: Tensor, size: int) -> Tensor:
    """Sums of weights [..., N, K] over the rows of each category, without missing ones: [..., K, size].

    Args:
        weights: [..., N, K].
        codes: of :func:`codes_below`, int64 [..., N].
        size: how many categories there are.
    """
    places = torch.where(codes < 0, size, codes)
    if weights.dim() == 2:
        return weights.new_zeros(size + 1, weights.shape[-1]).index_add_(0, places, weights)[:size].mT
    flat, count = weights.flatten(0, -3), weights.shape[:-2].numel()
    own = torch.arange(count, device=codes.device).unsqueeze(-1) * (size + 1) + places
    sums = weights.new_zeros(count * (size + 1), weights.shape[-1])
    sums.index_add_(0, own.flatten(), flat.flatten(0, 1))
    return sums.view(*weights.shape[:-2], size + 1, -1)[..., :size, :].mT


def indicators(codes: Tensor, size: int) -> Tensor:
    """Indicators of categories, in torch's default dtype: [..., L], all 0 where a code is negative or NaN.

    Args:
        codes: numbers of categories, below L, of any real or integer type, [...].
        size: L.
    """
    numbers = codes.nan_to_num(-1.0).long() if codes.is_floating_point() else codes
    return (numbers.unsqueeze(-1) == torch.arange(size, device=codes.device)).to(torch.get_default_dtype())
