"""Families of one number whose statistics are products of functions of it."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_fmvae.distributions.exponential_family import ExponentialFamily

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "x": lambda x: x,
    "1/x": torch.reciprocal,
    "log": torch.log,
    "log1m": lambda x: torch.log1p(-x),
}


class ScalarFamily(ExponentialFamily):
    """A family of numbers. The elements of a larger site are a batch of its members.

    A subclass names its statistics and says what they are good for: the standard parameters, A(λ), E[t], the
    inverse Fisher matrix and the domain.

    Attributes:
        statistics: the monomials that t consists of, in order; see :attr:`ExponentialFamily.monomials`.
    """

    statistics: ClassVar[tuple[tuple[str, ...], ...]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.monomials = frozenset(cls.statistics)

    def event_shape(self, size: int) -> torch.Size:
        """(), the shape of a number."""
        if size != len(self.statistics):
            raise ValueError(
                f"natural: expected shape [..., {len(self.statistics)}], got {size} as last size"
            )
        return torch.Size()

    def size(self, event: torch.Size) -> int:
        """How many statistics there are."""
        if len(event):
            raise ValueError(f"{type(self).__name__}: expected values that are numbers, got {list(event)}")
        return len(self.statistics)

    def locate(self, monomial: tuple[str, ...], elements: tuple[Tensor, ...], event: torch.Size) -> Tensor:
        """The place of the monomial among the statistics."""
        return torch.full_like(elements[0], self.statistics.index(monomial))

    def stats(self, value: Tensor) -> Tensor:
        """The statistics at numbers [...]: [..., P]."""
        products = (
            torch.stack([_FUNCTIONS[name](value) for name in monomial]).prod(0)
            for monomial in self.statistics
        )
        return torch.stack(tuple(products), -1)
