"""Which natural posteriors may take exact steps together, and which have to take them by turns.

Given the probabilities of discrete sites, the bound is a sum of products of E[t] of different posteriors. It
is linear in those of posteriors that no product has two of: each of these may become the best one given all
others in the same step, and the bound does not fall. Posteriors in one product have to be updated one after
another, as in Bishop (2006), Section 10.1.1.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pyro_fmvae.distributions import NaturalParameter
from pyro_fmvae.infer.elbo.expectation import Moments
from pyro_fmvae.infer.elbo.sums import Factor, Sum


class Turns:
    """Finds the turns of natural parameters, by the products that log-densities consist of.

    Args:
        naturals: name of a site → its natural parameters, in the order of the model. Sites with a joint
            posterior have the same ones.
    """

    def __init__(self, naturals: Mapping[str, NaturalParameter]) -> None:
        self._naturals = naturals
        self._together: set[frozenset[NaturalParameter]] = set()
        self._within: dict[NaturalParameter, set[tuple[int, int]]] = defaultdict(set)

    def see(self, terms: Sum, moments: Mapping[str, Any]) -> None:
        """Take note of which parameters products have.

        Args:
            terms: a log-density.
            moments: of the sites in it, by name.
        """
        for term in terms:
            factors: dict[str, list[Factor]] = {}
            for f in term:
                if f.site in self._naturals:
                    factors.setdefault(f.site, []).append(f)
            owners = {self._naturals[site] for site in factors}
            self._together.update(map(frozenset, itertools.combinations(owners, 2)))
            for site, own in factors.items():
                if len(own) > 1 and isinstance(moments[site], Moments):
                    self._within[self._naturals[site]].update(moments[site].blocks_apart(own))

    def note(self) -> None:
        """Leave at each parameter in which turns it moves: see :class:`NaturalParameter`."""
        known = list(dict.fromkeys(self._naturals.values()))
        others = defaultdict[NaturalParameter, set[NaturalParameter]](set)
        for one, other in self._together:
            others[one].add(other)
            others[other].add(one)
        levels = {p: _levels(frozenset(self._within[p])) for p in known}
        turns: dict[NaturalParameter, list[int]] = {}
        for p in known:
            free = _free(p, others, turns)
            turns[p] = list(itertools.islice(free, 1 + max(levels[p].values(), default=0)))
        count = 1 + max(itertools.chain(*turns.values()), default=0)
        for p in known:
            if len(turns[p]) == 1:  # it need not wait where nothing stands in its way
                turns[p] = list(itertools.takewhile(lambda turn: turn < count, _free(p, others, turns)))
        for p in known:
            moves = _moves(p, turns[p], levels[p], count) if count > 1 else None
            if moves is None or p.moves is None or not torch.equal(moves, p.moves):
                p.moves = moves


def _free(
    p: NaturalParameter,
    others: Mapping[NaturalParameter, set[NaturalParameter]],
    turns: Mapping[NaturalParameter, list[int]],
) -> Iterator[int]:
    """The turns, from 0 on, in which none moves that shares a product with p."""
    taken = {turn for q in others[p] for turn in turns.get(q, ())}
    return (turn for turn in itertools.count() if turn not in taken)


@lru_cache(maxsize=64)  # a program has the same ones in each step
def _levels(pairs: Set[tuple[int, int]]) -> Mapping[int, int]:
    """Numbers of blocks, different for those in a pair; blocks that are in none are left out."""
    neighbours: dict[int, set[int]] = defaultdict(set)
    for one, other in pairs:
        neighbours[one].add(other)
        neighbours[other].add(one)
    levels: dict[int, int] = {}
    for block in sorted(neighbours):
        taken = {levels[each] for each in neighbours[block] if each in levels}
        levels[block] = next(level for level in itertools.count() if level not in taken)
    return levels


def _moves(p: Tensor, turns: list[int], levels: Mapping[int, int], count: int) -> Tensor:
    """1 where a parameter moves: a row for each turn, and one of 1 for steps of all at once."""
    rows = torch.zeros(count, p.shape[:-1].numel() if levels else 1, dtype=p.dtype)
    if levels:
        for block in range(rows.shape[1]):
            rows[turns[levels.get(block, 0)], block] = 1
    else:
        rows[turns] = 1
    rows = torch.cat([rows, torch.ones_like(rows[:1])])
    batch = p.shape[:-1] if levels else ()
    return rows.view(count + 1, *batch, 1).to(p.device)
