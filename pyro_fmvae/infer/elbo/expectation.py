"""Expectations of sums of products, under posteriors of exponential families.

Every product of elements of a site's value is one of the statistics of the site's family, or a product of
statistics of independent blocks; posteriors of different sites are independent. So the expectation of a
product is a product of entries of E[t], in every one of which it is linear: the gradient with respect to
E[t] is the natural gradient. Winn and Bishop (2005), Variational message passing, equations 15-17.
"""

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pyro_fmvae.distributions import ExponentialFamily
from pyro_fmvae.distributions.natural_distribution import event_dim_of
from pyro_fmvae.infer.elbo.lazy import NeedsValueError
from pyro_fmvae.infer.elbo.sums import (
    Factor,
    Product,
    SquareOfSum,
    Sum,
    contract,
    place,
    sites_in,
    square,
    widest,
)

Monomial = tuple[str, ...]


def monomial(factors: Sequence[Factor]) -> tuple[Monomial, list[Factor]] | None:
    """The monomial that factors of one site are, and its factors in the same order; None if it is none."""
    parts: list[tuple[str, Factor]] = []
    for f in factors:
        if f.function == "x" and f.power == int(f.power) < 0:
            parts += [("1/x", f)] * int(-f.power)
        elif f.power == int(f.power) and f.power > 0:
            parts += [(f.function, f)] * int(f.power)
        else:
            return None
    parts.sort(key=lambda part: part[0])
    return tuple(name for name, _ in parts), [f for _, f in parts]


def by_site(term: Product) -> dict[str, list[Factor]]:
    """The factors of a product by site, numbers left out."""
    sites: dict[str, list[Factor]] = {}
    for f in term:
        if not f.is_number:
            sites.setdefault(f.site, []).append(f)
    return sites


class Expects(Protocol):
    """Expectations of products of the elements of a site, or of two with a joint posterior."""

    def expected(
        self, factors: list[Factor], others: Set[int] = frozenset()
    ) -> tuple[Tensor, tuple[int, ...]] | None:
        """E of a product of elements, float64, and the names of its dimensions; None if it is not known."""
        ...


def by_moments(term: Product, moments: Mapping[str, Expects]) -> list[tuple[Expects, list[Factor]]]:
    """The factors of a product by the moments of their sites, numbers left out.

    Raises:
        NeedsValueError: a site has no moments.
    """
    missing = {f.site for f in term if not f.is_number} - moments.keys()
    if missing:
        raise NeedsValueError.of(missing, "a density")
    found: dict[int, tuple[Expects, list[Factor]]] = {}
    for f in term:
        if not f.is_number:
            own = moments[f.site]
            found.setdefault(id(own), (own, []))[1].append(f)
    return list(found.values())


def mean_of(own: Expects, factors: list[Factor], term: Product) -> tuple[Tensor, tuple[int, ...]] | None:
    """E of some factors of a product; see :meth:`Expects.expected`."""
    sites = {f.site for f in factors}
    return own.expected(factors, {name for f in term if f.site not in sites for name in f.names})


@dataclass
class Moments:
    """E[t] of one site.

    Attributes:
        family: of its posterior.
        stats: E[t], float64 [..., P], one for each block of the value.
        shape: of the site's value; its last dimensions are those of a block.
        centre: numbers c, of as many dimensions as the value and broadcastable to it, if the expectations are
            to be those of x - c, in place of x.
        about: E[t] of x - c, where it is known to more digits than E[t] leaves of it.
    """

    family: ExponentialFamily
    stats: Tensor
    shape: torch.Size
    centre: Tensor | None = None
    about: Tensor | None = None

    def __post_init__(self) -> None:
        self.event = self.shape[len(self.shape) - event_dim_of(self.family) :]
        times = self.family.multiplicity(self.event)
        self._entries = (self.stats if times is None else self.stats / times.to(self.stats)).reshape(-1)
        if self.centre is not None:
            self._entries = self._about(self.centre)
            if self.about is not None:
                self._entries = self._entries + (self.about.reshape(-1) - self._entries).detach()

    def centred(self, batch_dims: int, dtype: torch.dtype, natural: Tensor) -> "Moments":
        """Moments about the mean of E[x] over the first dimensions; itself, unless t is of x and x xᵀ alone.

        Squares of values that are far from 0 against their spread then lose no digits in float32: numbers are
        gathered, (data - c), before anything is squared. In float64, those of E[x²] are not needed either.

        Args:
            batch_dims: how many dimensions of the value are plates.
            dtype: of the value, which c is rounded to.
            natural: λ of the posterior, [..., P].
        """
        if self.family.monomials != {("x",), ("x", "x")}:
            return self
        index = torch.arange(self.shape.numel(), device=self.stats.device)
        with torch.no_grad():
            mean = self._of_elements(("x",), index).view(self.shape)
            dims = tuple(range(batch_dims))
            centre = (mean.mean(dims, keepdim=True) if dims else mean).to(dtype).to(mean)
            about = self.family.stats_about(natural.expand_as(self.stats), centre.expand(self.shape))
        return Moments(self.family, self.stats, self.shape, centre, about)

    def _about(self, centre: Tensor) -> Tensor:
        """The entries of t at x - c."""
        size, count = self.event.numel(), self.stats.shape[-1]
        entries = self._entries.view(-1, count)
        c = centre.expand(self.shape).reshape(-1, size)
        numbers = torch.arange(size, device=c.device)
        row, column = torch.tril_indices(size, size, device=c.device)  # each product once, for the backward
        singles = self.family.locate(("x",), (numbers,), self.event)
        pairs = self.family.locate(("x", "x"), (row, column), self.event)
        x = entries.index_select(1, singles)
        shift = torch.zeros_like(entries).index_copy(1, singles, -c)
        one, other = c.index_select(1, row), c.index_select(1, column)
        products = one * other - one * x.index_select(1, column) - x.index_select(1, row) * other
        return (entries + shift.index_copy(1, pairs, products)).reshape(-1)

    def expected(
        self, factors: list[Factor], others: Set[int] = frozenset()
    ) -> tuple[Tensor, tuple[int, ...]] | None:
        """E of a product of elements, whatever else it is multiplied with; see :class:`Expects`."""
        found = monomial(factors)
        if found is None:
            return None
        functions, ordered = found
        if functions not in self.family.monomials:
            return None
        names, indices = _aligned(ordered)
        if not are_distinct(ordered):
            if indices[0].numel() <= self.shape.numel():
                return self._of_elements(functions, indices[0]), names
            elements = torch.arange(self.shape.numel(), device=self.stats.device)
            return entries_at(self._of_elements(functions, elements), indices[0]), names
        blocks = [index // self.event.numel() for index in indices]
        inside = tuple(index % self.event.numel() for index in indices)
        if functions != ("x", "x"):
            return None
        together = self._entry(functions, blocks[0], inside)
        if self.stats[..., 0].numel() == 1:
            return together, names
        apart = self._entry(("x",), blocks[0], inside[:1]) * self._entry(("x",), blocks[1], inside[1:])
        return torch.where(blocks[0] == blocks[1], together, apart), names

    def blocks_apart(self, factors: list[Factor]) -> set[tuple[int, int]]:
        """Pairs of different blocks that two factors of a product are of, the smaller number first."""
        if not are_distinct(factors) or self.stats[..., 0].numel() == 1:
            return set()
        blocks = torch.stack([index.reshape(-1) // self.event.numel() for index in _aligned(factors)[1]])
        pairs = blocks.sort(0).values.unique(dim=1)
        return set(map(tuple, pairs[:, pairs[0] < pairs[1]].T.tolist()))

    def _of_elements(self, functions: Monomial, elements: Tensor) -> Tensor:
        """E of functions of single elements, which are given by their numbers."""
        size = self.event.numel()
        return self._entry(functions, elements // size, (elements % size,) * len(functions))

    def _entry(self, functions: Monomial, block: Tensor, inside: tuple[Tensor, ...]) -> Tensor:
        where = self.family.locate(functions, inside, self.event)
        index = block * self.stats.shape[-1] + where
        return entries_at(self._entries, index)


class Squares:
    """Expectations of squares of sums, which are factors of products.

    For a sum S of groups G of terms, with independent posteriors,

        E[S²] = E[S]² + Σ (E[G²] - E[G]²).

    Args:
        known: the sums, by the names of the factors.
        moments: of sites.
        dtype, device: of expectations.
    """

    def __init__(
        self,
        known: Mapping[str, SquareOfSum],
        moments: Mapping[str, Expects],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._known, self._moments = known, moments
        self._to = dtype, device
        self._owners: dict[str, frozenset[Hashable]] = {}
        self._groups: dict[str, list[Sum]] = {}

    def moments(self, terms: Sum) -> Mapping[str, Expects]:
        """The moments of all sites, and of the squares in a sum."""
        squares = sites_in(terms) & self._known.keys() if self._known else ()
        if not squares:
            return self._moments
        return {**self._moments, **{name: _Entries(self._mean_of(name)) for name in squares}}

    def _mean_of(self, name: str) -> Tensor:
        def mean(terms: Sum) -> Tensor:
            return expectation_of(terms, self._known[name].shape, self.moments(terms), *self._to)

        groups = [group for group in self._groups_of(name) if sites_in(group)]
        known = [term for term in self._known[name].terms if not sites_in([term])]
        means = [mean(group) for group in groups]
        spreads = [mean(self.apart(square(g))) - m.square() for g, m in zip(groups, means, strict=True)]
        return (sum(means, mean(known)).square() + sum(spreads)).reshape(-1)

    def apart(self, terms: Sum) -> Sum:
        """A sum in which squares are factors only beside those of independent posteriors."""
        result: Sum = []
        for term in terms:
            mixed = next((f for f in term if f.site in self._known and self._is_mixed(f, term)), None)
            if mixed is None:
                result.append(term)
            else:
                rest = [f for f in term if f is not mixed]
                known = self._known[mixed.site]
                result += self.apart(known.times(square(known.terms), mixed, rest))
        return result

    def _is_mixed(self, f: Factor, term: Product) -> bool:
        return any(self._of_site(f.site) & self._of_site(g.site) for g in term if g is not f and g.site)

    def products(self, terms: Sum) -> Sum:
        """A sum with products in the place of squares, in which the same functions of sites occur.

        One of more than two sites stands for all of their pairs.
        """
        result: Sum = []
        for term in terms:
            own = next((f for f in term if f.site in self._known), None)
            if own is None:
                result.append(term)
                continue
            rest, known = [f for f in term if f is not own], self._known[own.site]
            of_all = {f.site: f for each in known.terms for f in each if f.site}
            inside = [each for group in self._groups_of(own.site) for each in square(group)]
            inside += [*known.terms, list(of_all.values())]
            result += self.products(known.times(inside, own, rest))
        return result

    def _of_site(self, site: str) -> frozenset[Hashable]:
        """Identities of the moments that a factor depends on, or names of sites that have none."""
        if site not in self._known:
            return frozenset([id(self._moments[site]) if site in self._moments else site])
        if site not in self._owners:
            inside = sites_in(self._known[site].terms)
            self._owners[site] = frozenset(owner for each in inside for owner in self._of_site(each))
        return self._owners[site]

    def _groups_of(self, name: str) -> list[Sum]:
        """The terms of a sum, those together whose posteriors depend on each other."""
        if name not in self._groups:
            groups: list[tuple[frozenset[Hashable], Sum]] = []
            for term in self._known[name].terms:
                own = frozenset(owner for site in sites_in([term]) for owner in self._of_site(site))
                together = [term]
                for other in [group for group in groups if group[0] & own]:
                    groups.remove(other)
                    own, together = own | other[0], other[1] + together
                groups.append((own, together))
            self._groups[name] = [together for _, together in groups]
        return self._groups[name]


@dataclass
class _Entries:
    """Expectations of numbered elements."""

    values: Tensor

    def expected(
        self, factors: list[Factor], others: Set[int] = frozenset()
    ) -> tuple[Tensor, tuple[int, ...]] | None:
        (own,) = factors
        return entries_at(self.values, own.elements), own.names


def entries_at(table: Tensor, index: Tensor) -> Tensor:
    """``table[index]`` for a table of one dimension; torch would ask a single index for its number."""
    return table.index_select(0, index.reshape(-1)).view(index.shape)


def are_distinct(factors: Sequence[Factor]) -> bool:
    """True for factors of one site that may be of different elements."""
    return len({id(f.tensor) for f in factors}) > 1 or len({f.names for f in factors}) > 1


def _aligned(factors: Sequence[Factor]) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    """The names of all dimensions of factors, and the numbers of their elements along these."""
    names = tuple({name: None for f in factors for name in f.names})
    return names, torch.broadcast_tensors(*(place(f.elements, f.names, names) for f in factors))


def expectation_of(
    terms: Sum, shape: torch.Size, moments: Mapping[str, Expects], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """E of a sum of products, expanded to a shape.

    Args:
        terms: the sum.
        shape: of the result.
        moments: E[t] of every site in the terms.
        dtype, device: of the result.

    Raises:
        NeedsValueError: a product in the sum has no expectation.
    """
    sums: dict[tuple[int, ...], Tensor] = {}
    wide = widest(device)
    for term in terms:
        factor, operands = 1.0, []
        for f in term:
            if isinstance(f.tensor, float):
                factor *= f.tensor
            elif f.is_number:
                operands.append((f.tensor, f.names))
        for own, factors in by_moments(term, moments):
            known = mean_of(own, factors, term)
            if known is None:
                sites = {f.site for f in factors}
                raise NeedsValueError.of(sites, "a product that its posterior has no expectation of")
            operands.append(known)
        names = tuple(sorted({name for _, kept in operands for name in kept if name < 0}))
        kind = dtype if any(name >= 0 for _, kept in operands for name in kept) else wide
        operands = operands or [(torch.ones((), dtype=wide, device=device), ())]
        value = contract([(tensor.to(kind), kept) for tensor, kept in operands], factor, names)
        sums[names] = sums[names] + value if names in sums else value
    if not sums:
        return torch.zeros(shape, dtype=dtype, device=device)
    order = range(-len(shape), 0)
    parts = sorted((place(value, names, order) for names, value in sums.items()), key=Tensor.numel)
    return sum(parts[1:], parts[0]).to(dtype).expand(shape)
