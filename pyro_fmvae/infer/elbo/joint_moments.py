"""Expectations under the joint posterior of a location and its precision, and which sites may have one.

The statistics of the joint posterior are log det Λ, μᵀΛμ, Λ and Λμ. So a location may occur in products with
its own precision only, and its products with a precision matrix only in sums over whole rows and columns.
Numbers are vectors of one dimension. A location may be a matrix W whose rows have the same precision matrix:
then WΛWᵀ and WΛ are in the place of μᵀΛμ and Λμ. A vector whose precision matrix is scaled by a number is
simpler: all of its products with that number are statistics.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_fmvae.distributions import packed_matrices as packed
from pyro_fmvae.distributions.joint_kinds import JointKind, joint_kind
from pyro_fmvae.distributions.natural_distribution import NaturalDistribution
from pyro_fmvae.infer.elbo.expectation import entries_at
from pyro_fmvae.infer.elbo.structure import Site
from pyro_fmvae.infer.elbo.sums import Factor, Product, place

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
        kept = tuple(dict.fromkeys(name for f in everything for name in f.names if name not in summed))
        names = (*kept, *summed)
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
            fits = (fits & (index == first)).flatten(len(kept)).all(-1)
            index = first.flatten(len(kept))[..., 0]
        return entries_at(table, index).masked_fill(~fits, torch.nan), kept


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


def _same(one: Any, other: Any) -> bool:
    return one is other or (not isinstance(one, Tensor) and not isinstance(other, Tensor) and one == other)


def _has(term: Product, site: str) -> bool:
    return any(f.site == site for f in term)
