"""Expectations of sums of products, under posteriors of exponential families.

Every product of elements of a site's value is one of the statistics of the site's family, or a product of
statistics of independent blocks; posteriors of different sites are independent. So the expectation of a
product is a product of entries of E[t], in every one of which it is linear: the gradient with respect to
E[t] is the natural gradient. Winn and Bishop (2005), Variational message passing, equations 15-17.
"""

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributions import MixtureSameFamily
from torch.utils._python_dispatch import _get_current_dispatch_mode

from pyro_fmvae.distributions import (
    ExponentialFamily,
    HiddenMarkov,
    LinearDynamics,
    LinearGaussianChain,
    ScalarFamily,
)
from pyro_fmvae.distributions import packed_matrices as packed
from pyro_fmvae.distributions.exponential_family import NaturalDistribution, event_dim_of, unwrap
from pyro_fmvae.distributions.joint_parts import (
    MOST_TOGETHER,
    BlockNormal,
    JointKind,
    NormalBlock,
    joint_kind,
)
from pyro_fmvae.distributions.multivariate_normal import MOST_PRODUCTS
from pyro_fmvae.infer.elbo.lazy import NeedsValueError
from pyro_fmvae.infer.elbo.structure import Site
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


class _NumbersOfAnother(torch.autograd.Function):
    """A tensor with the numbers of another; its gradients are its own."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, numbers: Tensor) -> Tensor:
        return numbers.reshape(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


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
                self._entries = _NumbersOfAnother.apply(self._entries, self.about.detach())
        self._tables: dict[tuple[Monomial, bool], Tensor] = {}

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
        with torch.no_grad():
            mean = self._of_all(("x",)).view(self.shape)
            dims = tuple(range(batch_dims))
            centre = (mean.mean(dims, keepdim=True) if dims else mean).to(dtype).to(mean)
            about = self.family.stats_about(natural.expand_as(self.stats), centre.expand(self.shape))
        return Moments(self.family, self.stats, self.shape, centre, about)

    def _about(self, centre: Tensor) -> Tensor:
        """The entries of t at x - c."""
        size = self.event.numel()
        c = centre.expand(self.shape).reshape(-1, size)
        x, squares = self._entries.view(-1, self.stats.shape[-1]).tensor_split([size], -1)
        row, column = self.family.pairs(self.event, c.device)  # each product once, for the backward
        one, other = c.index_select(1, row), c.index_select(1, column)
        products = one * other - one * x.index_select(1, column) - x.index_select(1, row) * other
        return torch.cat([x - c, squares + products], -1).reshape(-1)

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
            if indices[0].numel() < self.shape.numel():
                size = self.event.numel()
                inside = (indices[0] % size,) * len(functions)
                return self._entry(functions, indices[0] // size, inside), names
            return entries_at(self._of_all(functions), indices[0]), names
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

    def _of_all(self, functions: Monomial) -> Tensor:
        """E of functions of every single element, in order; each table is made once.

        A number's statistics are views, whose gradients are put together in one piece.
        """
        wanted = torch.is_grad_enabled()  # a table that was made without gradients is no use with them
        if (functions, wanted) not in self._tables:
            entries = self._entries.view(-1, self.stats.shape[-1])
            if isinstance(self.family, ScalarFamily):
                tables = zip(self.family.statistics, entries.unbind(-1), strict=True)
                self._tables.update({(each, wanted): table for each, table in tables})
            else:
                elements = torch.arange(self.event.numel(), device=entries.device)
                where = self.family.locate(functions, (elements,) * len(functions), self.event)
                self._tables[functions, wanted] = entries.index_select(1, where).reshape(-1)
        return self._tables[functions, wanted]

    def _entry(self, functions: Monomial, block: Tensor, inside: tuple[Tensor, ...]) -> Tensor:
        where = self.family.locate(functions, inside, self.event)
        if self.family.is_sparse:  # a product that the first call did not have poisons the result
            known = entries_at(self._entries, block * self.stats.shape[-1] + where.clamp(min=0))
            return known * torch.where(where < 0, torch.nan, 1.0).to(known)  # and its gradient
        return entries_at(self._entries, block * self.stats.shape[-1] + where)


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
        names = tuple(sorted({name for _, dims in operands for name in dims if name < 0}))
        kind = dtype if any(name >= 0 for _, dims in operands for name in dims) else wide
        operands = operands or [(torch.ones((), dtype=wide, device=device), ())]
        value = contract([(tensor.to(kind), dims) for tensor, dims in operands], factor, names)
        sums[names] = sums[names] + value if names in sums else value
    if not sums:
        return torch.zeros(shape, dtype=dtype, device=device)
    order = range(-len(shape), 0)
    parts = sorted((place(value, names, order) for names, value in sums.items()), key=Tensor.numel)
    return sum(parts[1:], parts[0]).to(dtype).expand(shape)


# Expectations under the joint posterior of a location and its precision, and which sites may have one.
#
# The statistics of the joint posterior are log det Λ, μᵀΛμ, Λ and Λμ. So a location may occur in products
# with its own precision only, and its products with a precision matrix only in sums over whole rows and
# columns. Numbers are vectors of one dimension. A location may be a matrix W whose rows have the same
# precision matrix: then WΛWᵀ and WΛ are in the place of μᵀΛμ and Λμ. A vector whose precision matrix is
# scaled by a number is simpler: all of its products with that number are statistics.


Names = tuple[int, ...]


@dataclass
class JointMoments:
    """E[t] of two sites with a joint posterior.

    Attributes:
        location, precision: names of the sites.
        kind: of the joint posterior.
        stats: E[t], float64 [..., P], one for each block of the location's value.
        shape: of the location's value; its last dimensions are those of a block.
        centre: see :class:`Moments`, of the location.
    """

    location: str
    precision: str
    kind: JointKind
    stats: Tensor
    shape: torch.Size
    centre: Tensor | None = None

    def __post_init__(self) -> None:
        log_det, matrix, square, vector = self._tables(self.stats.reshape(-1, self.stats.shape[-1]))
        self.rows, self.dim = vector.shape[-2:]
        if self.centre is not None:
            c = self.centre.expand(self.shape).reshape(vector.shape)
            scaled = c @ matrix
            across = (vector - scaled) @ c.mT
            square = square - across - across.mT - scaled @ c.mT
            vector = vector - scaled
        self._log_det, self._matrix = log_det, matrix.reshape(-1)
        self._square, self._vector = square.reshape(-1), vector.reshape(-1)

    def _tables(self, stats: Tensor) -> tuple[Tensor, ...]:
        """E of log det Λ, Λ, WΛWᵀ and WΛ, given those of all blocks: [N], [N, D, D], [N, K, K], [N, K, D]."""
        if self.kind.is_matrix:
            log_det, matrix, square, vector = packed.split_rows(stats)
            rows, dim = vector.shape[-2:]
            return log_det, packed.unpack(matrix, dim), packed.unpack(square, rows), vector
        log_det, square, matrix, vector = packed.split(stats)
        matrix = packed.halved(packed.unpack(matrix, vector.shape[-1]))
        return log_det, matrix, square[..., None, None], vector.unsqueeze(-2)

    @property
    def size(self) -> int:
        """The number of elements of a block of the precision."""
        return self.dim**2

    def centred(self, batch_dims: int, dtype: torch.dtype, natural: Tensor) -> "JointMoments":
        """Moments about the mean location, as :meth:`Moments.centred` has them."""
        with torch.no_grad():
            mean = self._mean(natural.expand_as(self.stats)).reshape(self.shape)
            dims = tuple(range(batch_dims))
            centre = (mean.mean(dims, keepdim=True) if dims else mean).to(dtype).to(mean)
        return type(self)(self.location, self.precision, self.kind, self.stats, self.shape, centre)

    def _mean(self, natural: Tensor) -> Tensor:
        """The mean location of a posterior, whose λ may be outside of the domain."""
        if self.kind.is_matrix:
            return self.kind.kind.family.unpack(natural)[0]
        _, fourth, _, third = packed.split(natural)
        return third / (-2 * fourth).unsqueeze(-1)

    def expected(self, factors: list[Factor], others: Set[int]) -> tuple[Tensor, Names] | None:
        """E of a product of elements, float64, and the names of its dimensions; None if it is not known.

        It is NaN where elements do not belong together.

        Args:
            factors: of the product, those of the two sites.
            others: names of the dimensions of its other factors.
        """
        locations: list[Factor] = []
        precisions = [f for f in factors if f.site == self.precision]
        for f in factors:
            if f.site == self.location:
                if f.function != "x" or f.power not in (1, 2):
                    return None
                locations += [f] * int(f.power)
        if len(precisions) != 1 or len(locations) > 2:
            return None
        (own,) = precisions
        if own.function in ("log", "logdet") and own.power == 1 and not locations:
            return self.kind.exponent * entries_at(self._log_det, own.elements // self.size), own.names
        if own.function != "x" or own.power != self.kind.exponent:
            return None
        if not locations:
            return entries_at(self._matrix, own.elements), own.names
        return self._product(own, locations, others)

    def _product(self, own: Factor, locations: list[Factor], others: Set[int]) -> tuple[Tensor, Names] | None:
        """E[Λ_ij w_kj] or E[w_ki Λ_ij w_lj], summed over j and over both: names of sums in these alone."""
        summed: list[int] = []
        if self.dim > 1:
            inner = {name for name in own.names if name >= 0} - others
            for f in locations:
                elsewhere = {name for g in locations if g is not f for name in g.names}
                mine = [name for name in f.names if name in inner and name not in elsewhere]
                if len(mine) != 1:
                    return None
                summed += mine
        everything = (own, *locations)
        remaining = tuple(dict.fromkeys(name for f in everything for name in f.names if name not in summed))
        names = (*remaining, *summed)
        matrix, *vectors = torch.broadcast_tensors(*(place(f.elements, f.names, names) for f in everything))
        block = matrix // self.dim**2
        row, column = matrix // self.dim % self.dim, matrix % self.dim
        inside = [index % self.dim for index in vectors]
        of_rows = [index // self.dim % self.rows for index in vectors]
        fits = torch.ones_like(matrix, dtype=torch.bool)
        for number, (index, name) in enumerate(zip(vectors, summed or [0] * len(vectors), strict=True)):
            fits = fits & (index // (self.dim * self.rows) == block)
            if self.dim > 1:
                if matrix.shape[names.index(name)] != self.dim:
                    return None
                order = torch.arange(self.dim, device=matrix.device)
                fits = fits & (inside[number] == place(order, (name,), names))
        if len(vectors) == 1:
            other = row + column - inside[0]
            fits = fits & ((row == inside[0]) | (column == inside[0]))
            table, index = self._vector, (block * self.rows + of_rows[0]) * self.dim + other
        else:
            one, two = inside
            fits = fits & (((row == one) & (column == two)) | ((row == two) & (column == one)))
            table, index = self._square, (block * self.rows + of_rows[0]) * self.rows + of_rows[1]
        if summed:
            first = index[(..., *(slice(0, 1) for _ in summed))]
            fits = (fits & (index == first)).flatten(len(remaining)).all(-1)
            index = first.flatten(len(remaining))[..., 0]
        return entries_at(table, index).masked_fill(~fits, torch.nan), remaining


class ScaledMoments(JointMoments):
    """E[t] of a vector and of the number that scales its precision matrix, with a joint posterior."""

    def __post_init__(self) -> None:
        self.dim = packed.dim_of(self.stats.shape[-1])
        log, scale, matrix, vector = packed.split(self.stats.reshape(-1, self.stats.shape[-1]))
        matrix = packed.unpack(matrix, self.dim)
        if self.centre is not None:
            c = self.centre.expand(self.shape).reshape(-1, self.dim)
            scaled = scale.unsqueeze(-1) * c
            across = c.unsqueeze(-1) * (vector - scaled).unsqueeze(-2)
            matrix = matrix - across - across.mT - scaled.unsqueeze(-1) * c.unsqueeze(-2)
            vector = vector - scaled
        self._log_det, self._matrix = log, scale
        self._vector, self._squares = vector.reshape(-1), matrix.reshape(-1)

    @property
    def size(self) -> int:
        """The number of elements of a block of the precision."""
        return 1

    def _mean(self, natural: Tensor) -> Tensor:
        return self.kind.kind.family.unpack(natural)[0]

    def _product(self, own: Factor, locations: list[Factor], others: Set[int]) -> tuple[Tensor, Names] | None:
        """E[τ w_i] or E[τ w_i w_j]."""
        everything = (own, *locations)
        names = tuple(dict.fromkeys(name for f in everything for name in f.names))
        block, *vectors = torch.broadcast_tensors(*(place(f.elements, f.names, names) for f in everything))
        fits = torch.stack([index // self.dim == block for index in vectors]).all(0)
        if len(vectors) == 1:
            known = entries_at(self._vector, vectors[0])
        else:
            known = entries_at(self._squares, vectors[0] * self.dim + vectors[1] % self.dim)
        return known.masked_fill(~fits, torch.nan), names


@dataclass
class NormalBlockMoments:
    """E[t] of several sites with one joint Normal posterior.

    Attributes:
        whole: of the vector of all their elements.
        block: which elements are whose.
    """

    whole: Moments
    block: NormalBlock

    @classmethod
    def of(cls, part: BlockNormal) -> "NormalBlockMoments":
        """The moments of the block that a distribution is a part of."""
        shape = torch.Size([sum(each.numel() for each in part.block.shapes)])
        whole = Moments(part.family, part.expected_stats(), shape)
        return cls(whole.centred(0, part.dtype, part.natural), part.block)

    def centres(self) -> dict[str, Tensor]:
        """The centre of each site, which is subtracted from its value, of its shape."""
        assert self.whole.centre is not None
        return self.block.apart(self.whole.centre)

    def expected(
        self, factors: list[Factor], others: Set[int] = frozenset()
    ) -> tuple[Tensor, tuple[int, ...]] | None:
        """E of a product of elements of any of the sites; see :class:`Expects`.

        Raises:
            ValueError: a product of a pair that a sparse block lacks. While operations are being recorded, it
                is NaN.
        """
        starts, stats = self.block.starts, self.whole.stats
        moved = {id(f): f._replace(tensor=f.elements + starts[f.site]) for f in factors}
        found = self.whole.expected([moved[id(f)] for f in factors])
        checked = self.whole.family.is_sparse and _get_current_dispatch_mode() is None
        if found and checked and found[0].isnan().any() and not stats.isnan().any():
            names = "', '".join(dict.fromkeys(f.site for f in factors))
            raise ValueError(
                f"site '{names}': expected products of the pairs of elements that the first call had, got "
                "further ones; make the indices integer arguments of the program, or leave the sites out of "
                "joint"
            )
        return found


class PairsOfBlock:
    """Stands for the moments of jointly Normal sites, and takes note of which of their elements are paired.

    Args:
        values: of the sites, by name; their elements are numbered one site after another.
    """

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self._values = torch.cat([value.reshape(-1) for value in values.values()]).to(torch.float64)
        self._starts = NormalBlock(tuple(values), tuple(value.shape for value in values.values())).starts
        self._counts = {name: value.numel() for name, value in values.items()}
        self._pairs = torch.zeros(2, 0, dtype=torch.int64, device=self._values.device)

    def expected(
        self, factors: list[Factor], others: Set[int] = frozenset()
    ) -> tuple[Tensor, tuple[int, ...]] | None:
        """A product at the values, if Normal vectors have its expectation; see :class:`Expects`."""
        moved = {id(f): f._replace(tensor=f.elements + self._starts[f.site]) for f in factors}
        found = monomial([moved[id(f)] for f in factors])
        if found is None or found[0] not in {("x",), ("x", "x")}:
            return None
        names, indices = _aligned(found[1])
        if len(indices) == 2:
            pairs = torch.stack([index.reshape(-1) for index in indices]).sort(0).values
            pairs = pairs[:, pairs[0] < pairs[1]]
            self._pairs = torch.cat([self._pairs, pairs.unique(dim=1)], 1)
        value = torch.stack([entries_at(self._values, index) for index in indices]).prod(0)
        return value, names

    def add_all(self, factors: list[Factor], sizes: Sequence[int]) -> bool:
        """Take note of all pairs that a product could have with other indices; False if they are too many.

        Two factors that are of the same block of a plate, with one index, are so with other indices.

        Args:
            factors: two, of different elements.
            sizes: numbers of elements in an event of their sites.
        """
        counts = [self._counts[f.site] for f in factors]
        number = [count // size for count, size in zip(counts, sizes, strict=True)]
        blocks = [i.reshape(-1) // size for i, size in zip(_aligned(factors)[1], sizes, strict=True)]
        if torch.equal(*blocks) and number[0] == number[1]:
            ends = [torch.arange(count).view(number[0], -1) for count in counts]
            one, other = ends[0].unsqueeze(-1), ends[1].unsqueeze(-2)
        elif math.prod(counts) * min(counts) > MOST_PRODUCTS:
            return False
        else:
            one, other = torch.arange(counts[0]).unsqueeze(-1), torch.arange(counts[1])
        one, other = one + self._starts[factors[0].site], other + self._starts[factors[1].site]
        pairs = torch.stack([each.reshape(-1) for each in torch.broadcast_tensors(one, other)]).sort(0).values
        pairs = pairs[:, pairs[0] < pairs[1]].to(self._pairs.device)
        self._pairs = torch.cat([self._pairs, pairs.unique(dim=1)], 1)
        return True

    def pairs(self) -> Tensor:
        """The pairs of different elements that products had, the smaller first, int64 [2, ...]."""
        return self._pairs.unique(dim=1)


def joint_moments(
    location: str, precision: str, kind: JointKind, stats: Tensor, shape: torch.Size
) -> JointMoments:
    """The moments of a joint posterior; arguments as for :class:`JointMoments`."""
    return (ScaledMoments if kind.is_scaled else JointMoments)(location, precision, kind, stats, shape)


@dataclass
class JointSearch:
    """Which locations may have a joint posterior with their precision.

    Args:
        kinds: classes of the sites' independent posteriors, in the model's order.
        sites: of the model.
        terms: the products that log-densities consist of, each with the name of the site whose density it is.
    """

    kinds: Mapping[str, type[NaturalDistribution]]
    sites: Mapping[str, Site]
    terms: Iterable[tuple[str, Product]]

    def run(self) -> tuple[dict[str, tuple[str, JointKind]], dict[str, str]]:
        """Locations with their precision and the kind; and those that may not, with the reason."""
        found: dict[str, tuple[str, JointKind]] = {}
        apart: dict[str, str] = {}
        for location in self.kinds:
            for precision, kind in self._candidates(location):
                if precision in {other for other, _ in found.values()}:
                    reason: str | None = f"'{precision}' has a joint posterior with another site"
                else:
                    reason = self._obstacle(location, precision, kind)
                if reason is None:
                    found[location] = precision, kind
                    apart.pop(location, None)
                    break
                apart[location] = reason
        return found, apart

    def _candidates(self, location: str) -> list[tuple[str, JointKind]]:
        """Sites that a location is multiplied with and could have a joint posterior with."""
        partners = {f.site for _, term in self.terms if _has(term, location) for f in term if f.site}
        events = {name: site["fn"].event_dim for name, site in self.sites.items()}
        kinds = {
            name: joint_kind(self.kinds[location], kind, (events[location], events[name]))
            for name, kind in self.kinds.items()
            if name in partners
        }
        return [(name, kind) for name, kind in kinds.items() if kind is not None]

    def _obstacle(self, location: str, precision: str, kind: JointKind) -> str | None:
        one, two = self.sites[location], self.sites[precision]
        shape = one["value"].shape
        event = kind.event(shape)
        batch, own = shape[: len(shape) - len(event)], kind.precision_event(event)
        if two["value"].shape != batch + own:
            return f"'{precision}' has another shape, {list(two['value'].shape)} for {list(shape)}"
        if not all(_same(one[what], two[what]) for what in ("cond_indep_stack", "scale", "mask")):
            return f"'{precision}' is in other plates, or has another scale or mask"
        if two["fn"].event_dim - one["fn"].event_dim != len(own) - len(event):
            return f"'{precision}' has {two['fn'].event_dim} dimensions in an event"
        stats = torch.zeros(*batch, kind.size(event), dtype=torch.float64)
        moments = joint_moments(location, precision, kind, stats.to(one["value"].device), shape)
        for owner, term in self.terms:
            factors = [f for f in term if f.site in (location, precision)]
            others = {name for f in term if f.site not in (location, precision) for name in f.names}
            mean = moments.expected(factors, others) if factors else (stats, ())
            if mean is not None and not bool(mean[0].isnan().any()):
                continue
            if not _has(term, precision):
                return f"the density of '{owner}' has '{location}' without '{precision}'"
            return f"the density of '{owner}' has products with '{precision}' without a joint expectation"
        return None


SUMS = (MixtureSameFamily, HiddenMarkov, LinearGaussianChain, LinearDynamics)
"""Distributions whose log-densities sum over something, so that they are no sums of products."""


@dataclass
class Couplings:
    """Which sites depend on each other given all others, by the products that log-densities consist of.

    Attributes:
        normal: pairs of sites that are jointly Normal given all others.
        within: Normal sites that have elements which depend on each other, beyond those of a block.
        other: further pairs → name of the site in whose density they are multiplied.
        discrete: sites that are multiplied with functions of a discrete site → its name.
        summed: sites that a density depends on which sums over something itself → name of its site.
        sums: log-densities, each with the squares in it, and whether other elements may be paired in the next
            call, as it is of a part of the points or the program has indices as arguments.
        values: of the Normal sites, each with the number of its elements in an event.
    """

    normal: set[frozenset[str]] = field(default_factory=set)
    within: set[str] = field(default_factory=set)
    other: dict[frozenset[str], str] = field(default_factory=dict)
    discrete: dict[str, str] = field(default_factory=dict)
    summed: dict[str, str] = field(default_factory=dict)
    sums: list[tuple[Sum, Mapping[str, SquareOfSum], bool]] = field(default_factory=list)
    values: dict[str, tuple[Tensor, int]] = field(default_factory=dict)

    def block(self, names: Iterable[str], limit: float = MOST_TOGETHER) -> NormalBlock | None:
        """Sites that are jointly Normal as one vector; see :meth:`NormalBlock.of`."""
        values = {name: self.values[name][0] for name in names}
        seen = PairsOfBlock(values)
        moments = dict.fromkeys(values, seen)
        for terms, squares, may_change in self.sums:
            known = Squares(squares, moments, torch.float64, torch.device("cpu"))
            for term in known.products(known.apart(terms)):
                factors = [f for f in term if f.site in values]
                if may_change and len(factors) == 2 and are_distinct(factors):
                    if not seen.add_all(factors, [self.values[f.site][1] for f in factors]):
                        return NormalBlock.of(values, None, limit)
                elif factors:
                    seen.expected(factors)
        return NormalBlock.of(values, seen.pairs(), limit)

    def blocks(self, names: Sequence[str]) -> list[list[str]]:
        """The sites among these that depend on each other as Normal vectors do, in their order."""
        found: list[set[str]] = [{name} for name in names if name in self.within]
        for pair in self.normal:
            if pair <= set(names):
                touched = [block for block in found if block & pair]
                found = [block for block in found if not block & pair] + [set(pair).union(*touched)]
        blocks = [[name for name in names if name in block] for block in found]
        return sorted(blocks, key=lambda block: names.index(block[0]))


@dataclass
class CouplingSearch:
    """Finds :class:`Couplings`.

    Args:
        kinds: classes of the sites' posteriors.
        sites: of the model.
        sums: log-densities, each with the name of its site and the squares in it.
        terms: as of :class:`JointSearch`.
        enumerated: dimension → name of the discrete site whose values lie in it.
        has_indices: whether arguments of the program are integers that may be indices.
    """

    kinds: Mapping[str, type[NaturalDistribution]]
    sites: Mapping[str, Site]
    sums: Iterable[tuple[str, Sum, Mapping[str, SquareOfSum]]]
    terms: Iterable[tuple[str, Product]]
    enumerated: Mapping[int, str]
    has_indices: bool = False

    def run(self) -> Couplings:
        """Look at every product."""
        parts = {
            name: self.has_indices
            or any(frame.full_size not in (None, frame.size) for frame in site["cond_indep_stack"])
            for name, site in self.sites.items()
        }
        sums = [(terms, squares, parts[owner]) for owner, terms, squares in self.sums]
        found = Couplings(sums=sums)
        for name in filter(self._is_normal, self.kinds):
            value = self.sites[name]["value"]
            event = value.shape[value.dim() - event_dim_of(self.kinds[name].family) :]
            found.values[name] = value, event.numel()
        for owner, terms, squares in self.sums:
            for term in terms:
                degree, names = self._degree(term, squares)
                for pair in map(frozenset, itertools.combinations(sorted(names), 2)):
                    if degree <= 2 and all(map(self._is_normal, pair)):
                        found.normal.add(pair)
                    else:
                        found.other.setdefault(pair, owner)
                if isinstance(unwrap(self.sites[owner]["fn"]), SUMS):
                    found.summed.update(dict.fromkeys(names, owner))
                dims = {name for f in term for name in f.names} & self.enumerated.keys()
                found.discrete.update((name, self.enumerated[dim]) for dim in dims for name in names)
        found.normal -= found.other.keys()
        for _, term in self.terms:
            for name, factors in by_site(term).items():
                if name in self.kinds and name not in found.within and self._are_apart(name, factors):
                    found.within.add(name)
        return found

    def _is_normal(self, name: str) -> bool:
        return name in self.kinds and self.kinds[name].family.monomials == {("x",), ("x", "x")}

    def _degree(self, term: Product, squares: Mapping[str, SquareOfSum]) -> tuple[float, set[str]]:
        """The degree of a product in the values of Normal sites, and the names of all of its sites."""
        degree, names = 0.0, set[str]()
        for f in term:
            if f.site in squares:
                inside = [self._degree(each, squares) for each in squares[f.site].terms]
                degree += 2 * f.power * max(each for each, _ in inside)
                names = names.union(*(each for _, each in inside))
            elif f.site:
                names.add(f.site)
                degree += f.power if self._is_normal(f.site) else 0
        return degree, names

    def _are_apart(self, name: str, factors: list[Factor]) -> bool:
        if len(factors) < 2 or not self._is_normal(name):
            return False
        family, shape = self.kinds[name].family, self.sites[name]["value"].shape
        batch = shape[: len(shape) - event_dim_of(family)]
        stats = torch.zeros(*batch, family.size(shape[len(batch) :]), dtype=torch.float64)
        return bool(Moments(family, stats.to(factors[0].elements.device), shape).blocks_apart(factors))


def _same(one: Any, other: Any) -> bool:
    return one is other or (not isinstance(one, Tensor) and not isinstance(other, Tensor) and one == other)


def _has(term: Product, site: str) -> bool:
    return any(f.site == site for f in term)
