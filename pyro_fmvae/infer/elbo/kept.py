"""Expectations that need not be taken again while other posteriors change."""

from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass

from torch import Tensor

from pyro_fmvae.infer.elbo.lazy import Lazy, sites_of


@dataclass
class KeptExpectations:
    """Expectations that are the same in several evaluations of one run, between which posteriors change.

    Attributes:
        moving: names of the sites whose posteriors change.
    """

    moving: Set[str]

    def __post_init__(self) -> None:
        self._known: dict[tuple[str, int], Tensor | None] = {}
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
