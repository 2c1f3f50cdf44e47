"""Expectations that need not be taken again while other posteriors change."""

from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from pyro_fmvae.infer.elbo.lazy import Lazy, sites_of

T = TypeVar("T")


@dataclass
class KeptExpectations:
    """Expectations that are the same in several evaluations of one run, between which posteriors change.

    Attributes:
        moving: names of the sites whose posteriors change.
    """

    moving: Set[str] = frozenset()

    def __post_init__(self) -> None:
        self._known: dict[tuple[str, int], Tensor | None] = {}
        self._derived: dict[int, Any] = {}
        self._asked: Counter[str] = Counter()

    def restart(self) -> None:
        """Begin a further evaluation, which asks for the same expectations in the same order."""
        self._asked.clear()

    def value(self, site: str, table: Lazy, evaluate: Callable[[], Tensor]) -> Tensor:
        """The expectation of a table, as a constant where it depends on nothing that moves.

        Args:
            site: whose log-density asks for it.
            table: without numbers.
            evaluate: takes the expectation.
        """
        key = site, self._asked[site]
        self._asked[site] += 1
        if key not in self._known:
            stays = sites_of(table).isdisjoint(self.moving)
            self._known[key] = evaluate().detach() if stays else None
        known = self._known[key]
        return evaluate() if known is None else known

    def is_constant(self, table: Tensor) -> bool:
        """True for an expectation that is kept."""
        return any(table is known for known in self._known.values())

    def derived(self, table: Tensor, compute: Callable[[], T]) -> T:
        """Compute something of an expectation, once for all evaluations if it is kept."""
        if not self.is_constant(table):
            return compute()
        if id(table) not in self._derived:
            self._derived[id(table)] = compute()
        found: T = self._derived[id(table)]
        return found
