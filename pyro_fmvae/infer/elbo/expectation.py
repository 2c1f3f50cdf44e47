"""Expectations of sums of products, under posteriors of exponential families.

Every product of elements of a site's value is one of the statistics of the site's family, or a product of
statistics of independent blocks; posteriors of different sites are independent. So the expectation of a
product is a product of entries of E[t], in every one of which it is linear: the gradient with respect to
E[t] is the natural gradient. Winn and Bishop (2005), Variational message passing, equations 15-17.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fmvae.distributions import ExponentialFamily
from pyro_fmvae.distributions.natural_distribution import event_dim_of
from pyro_fmvae.infer.elbo.lazy import NeedsValueError
from pyro_fmvae.infer.elbo.sums import Factor, Product, Sum, place

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


@dataclass
class Moments:
    """E[t] of one site.

    Attributes:
        family: of its posterior.
        stats: E[t], float64 [..., P], one for each block of the value.
        shape: of the site's value; its last dimensions are those of a block.
        centre: numbers c, of as many dimensions as the value and broadcastable to it, if the expectations are
            to be those of x - c, in place of x.
    """

    family: ExponentialFamily
    stats: Tensor
    shape: torch.Size
    centre: Tensor | None = None

    def __post_init__(self) -> None:
        self.event = self.shape[len(self.shape) - event_dim_of(self.family) :]
        times = self.family.multiplicity(self.event)
        self._entries = (self.stats if times is None else self.stats / times.to(self.stats)).reshape(-1)
        if self.centre is not None:
            self._entries = self._about(self.centre)

    def centred(self, batch_dims: int, dtype: torch.dtype) -> "Moments":
        """Moments about the mean of E[x] over the first dimensions; itself, unless t is of x and x xᵀ alone.

        Squares of values that are far from 0 against their spread then lose no digits in float32: numbers are
        gathered, (data - c), before anything is squared. ``dtype`` is that of the value: c is rounded to it.
        """
        if self.family.monomials != {("x",), ("x", "x")}:
            return self
        index = torch.arange(self.shape.numel(), device=self.stats.device)
        with torch.no_grad():
            inside, block = index % self.event.numel(), index // self.event.numel()
            mean = self._entry(("x",), block, (inside,)).view(self.shape)
            dims = tuple(range(batch_dims))
            centre = (mean.mean(dims, keepdim=True) if dims else mean).to(dtype).to(mean)
        return Moments(self.family, self.stats, self.shape, centre)

    def _about(self, centre: Tensor) -> Tensor:
        """The entries of t at x - c."""
        size, count = self.event.numel(), self.stats.shape[-1]
        entries = self._entries.view(-1, count)
        c = centre.expand(self.shape).reshape(-1, size)
        numbers = torch.arange(size, device=c.device)
        row, column = torch.tril_indices(size, size, device=c.device)  # each product once, for the backward
        singles = self.family.locate(("x",), (numbers,), self.event)
        pairs = self.family.locate(("x", "x"), (row, column), self.event)
        x = entries[:, singles]
        shift = torch.zeros_like(entries).index_copy(1, singles, -c)
        products = c[:, row] * c[:, column] - c[:, row] * x[:, column] - x[:, row] * c[:, column]
        return (entries + shift.index_copy(1, pairs, products)).reshape(-1)

    def expected(self, factors: list[Factor]) -> tuple[Tensor, tuple[int, ...]] | None:
        """E of a product of elements, float64, and the names of its dimensions; None if it is not known."""
        found = monomial(factors)
        if found is None:
            return None
        functions, ordered = found
        if functions not in self.family.monomials:
            return None
        names = tuple({name: None for f in ordered for name in f.names})
        indices = torch.broadcast_tensors(*(place(_index(f), f.names, names) for f in ordered))
        blocks = [index // self.event.numel() for index in indices]
        inside = tuple(index % self.event.numel() for index in indices)
        distinct = len({id(f.tensor) for f in ordered}) > 1 or len({f.names for f in ordered}) > 1
        if not distinct:
            return self._entry(functions, blocks[0], inside), names
        if functions != ("x", "x"):
            return None
        apart = self._entry(("x",), blocks[0], inside[:1]) * self._entry(("x",), blocks[1], inside[1:])
        together = self._entry(functions, blocks[0], inside)
        return torch.where(blocks[0] == blocks[1], together, apart), names

    def _entry(self, functions: Monomial, block: Tensor, inside: tuple[Tensor, ...]) -> Tensor:
        where = self.family.locate(functions, inside, self.event)
        index = block * self.stats.shape[-1] + where
        return self._entries[index.flatten()].view(
            index.shape
        )  # one index alone would be asked for its number


def _index(f: Factor) -> Tensor:
    assert isinstance(f.tensor, Tensor)
    return f.tensor


def check_expectations(terms: Sum, moments: Mapping[str, Moments]) -> None:
    """Raise a NeedsValueError if a product in a sum has no expectation."""
    for term in terms:
        for name, factors in by_site(term).items():
            if name not in moments:
                raise NeedsValueError.of({name}, "a density")
            if moments[name].expected(factors) is None:
                raise NeedsValueError.of({name}, "a product that its posterior has no expectation of")


def expectation_of(
    terms: Sum, shape: torch.Size, moments: Mapping[str, Moments], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """E of a sum of products, expanded to a shape.

    Args:
        terms: the sum; every product in it has to have an expectation.
        shape: of the result.
        moments: E[t] of every site in the terms.
        dtype, device: of the result.
    """
    sums: dict[tuple[int, ...], Tensor] = {}
    for term in terms:
        factor, operands = 1.0, []
        for f in term:
            if isinstance(f.tensor, float):
                factor *= f.tensor
            elif f.is_number:
                operands.append((f.tensor.to(dtype), f.names))
        for site, factors in by_site(term).items():
            known = moments[site].expected(factors)
            assert known is not None
            operands.append((known[0].to(dtype), known[1]))
        names = tuple(sorted({name for _, own in operands for name in own if name < 0}))
        value = _product(operands, factor, names, dtype, device)
        sums[names] = sums[names] + value if names in sums else value
    if not sums:
        return torch.zeros(shape, dtype=dtype, device=device)
    order = range(-len(shape), 0)
    parts = sorted((place(value, names, order) for names, value in sums.items()), key=Tensor.numel)
    return sum(parts[1:], parts[0]).expand(shape)


def _product(
    operands: list[tuple[Tensor, tuple[int, ...]]],
    factor: float,
    names: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """The product of tensors with named dimensions, summed over the names that are not to be kept."""
    if not operands:
        return torch.full((), factor, dtype=dtype, device=device)
    operands = sorted(operands, key=lambda operand: operand[0].numel())
    if factor != 1:
        operands[0] = operands[0][0] * factor, operands[0][1]
    if all(name < 0 for _, own in operands for name in own):
        return math.prod((place(*o, names) for o in operands[1:]), start=place(*operands[0], names))
    letters = {name: chr(97 + i) for i, name in enumerate({name: 0 for _, own in operands for name in own})}
    inputs = ",".join("".join(letters[name] for name in own) for _, own in operands)
    output = "".join(letters[name] for name in names)
    return torch.einsum(f"{inputs}->{output}", *(tensor for tensor, _ in operands))
