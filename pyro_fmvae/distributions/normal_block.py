"""One Normal posterior of the values of several sites, each sampled given those before it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_fmvae.distributions import packed_matrices as packed
from pyro_fmvae.distributions.joint_parts import JointPart
from pyro_fmvae.distributions.multivariate_normal import MULTIVARIATE_NORMAL, NaturalMultivariateNormal
from pyro_fmvae.distributions.natural_distribution import NaturalDistribution

MOST_TOGETHER = 256  # numbers in a block that is chosen for the user: its precision matrix is dense


@dataclass(frozen=True)
class NormalBlock:
    """Sites whose values, flattened, are one vector after another in a vector of D numbers.

    Attributes:
        names: of the sites.
        shapes: of their values.
        kind: class of the vector's posterior.
    """

    kind: ClassVar[type[NaturalDistribution]] = NaturalMultivariateNormal
    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @cached_property
    def starts(self) -> dict[str, int]:
        """The number of each site's first element."""
        sizes = [shape.numel() for shape in self.shapes]
        return {name: sum(sizes[:number]) for number, name in enumerate(self.names)}

    def shape_of(self, name: str) -> torch.Size:
        """Shape of a site's value."""
        return self.shapes[self.names.index(name)]

    def natural(self, members: Mapping[str, NaturalDistribution]) -> Tensor:
        """λ [D(D+3)/2] of independent Normal members, by site."""
        parts = [members[name].family.unpack(members[name].natural) for name in self.names]
        loc = torch.cat([m.reshape(-1) for m, _ in parts])
        matrices = []
        for name, (m, scale) in zip(self.names, parts, strict=True):
            is_vector = len(members[name].event_shape)
            matrices += [*scale.flatten(0, -3)] if is_vector and m.dim() > 1 else []
            matrices += [scale] if is_vector and m.dim() == 1 else []
            matrices += [] if is_vector else [scale.reshape(-1).diag()]
        return MULTIVARIATE_NORMAL.natural(loc, torch.block_diag(*matrices))

    def apart(self, vector: Tensor) -> dict[str, Tensor]:
        """The sites' values [*S, *shape], given vectors [*S, D]."""
        parts = vector.split([shape.numel() for shape in self.shapes], -1)
        found = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.reshape(part.shape[:-1] + shape) for name, part, shape in found}

    def part(
        self, name: str, natural: Tensor, dtype: torch.dtype, given: Mapping[str, Tensor]
    ) -> "BlockNormal":
        """The distribution of a site of the block in a guide.

        Args:
            name: of the site.
            natural: λ of the block, float64 [D(D+3)/2].
            dtype: of draws.
            given: values of the sites before it, which a draw or a density depends on.
        """
        first = self.names[: self.names.index(name)]
        before = tuple(given[other] for other in first if other in given)
        return BlockNormal(natural, dtype, self, name, before if len(before) == len(first) else None)

    def marginal(self, name: str, natural: Tensor, dtype: torch.dtype) -> dist.Normal:
        """The Normal distributions of the numbers of a site, each by itself."""
        part = BlockNormal(natural, dtype, self, name)
        return dist.Normal(part.loc, part.scale, validate_args=False)


class BlockNormal(JointPart, dist.Normal):
    """The posterior of a site of a :class:`NormalBlock`, given the values of those before it.

    Its log-density is a sum over the numbers of the value, each given those before it. ``loc`` and ``scale``
    are those of the numbers by themselves.

    Args:
        natural: λ of the block, float64 [D(D+3)/2].
        dtype: of draws.
        block, name: the block, and which of its sites this is.
        before: values of the sites before it, with leading dimensions that are not theirs, if any.
    """

    family = MULTIVARIATE_NORMAL

    def __init__(
        self,
        natural: Tensor,
        dtype: torch.dtype,
        block: NormalBlock,
        name: str,
        before: tuple[Tensor, ...] | None = None,
    ) -> None:
        self.natural, self.dtype, self.given = natural, dtype, None
        self.block, self.name, self.before = block, name, before
        self._validate_args = False
        dist.TorchDistribution.__init__(self, block.shape_of(name), torch.Size(), validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Expand to ``batch_shape``; the natural parameters stay the tensor that was given."""
        new = BlockNormal(self.natural, self.dtype, self.block, self.name, self.before)
        dist.TorchDistribution.__init__(new, torch.Size(batch_shape), torch.Size(), validate_args=False)
        return new

    def with_natural(self, natural: Tensor) -> Any:
        """The part of a block with other natural parameters."""
        return BlockNormal(natural, self.dtype, self.block, self.name, self.before)

    def whole(self) -> NaturalMultivariateNormal:
        """The distribution of the block's vector."""
        return NaturalMultivariateNormal(self.natural, self.dtype, validate_args=False)

    @cached_property
    def standard(self) -> tuple[Tensor, ...]:
        """Mean [D] and Cholesky factor [D, D] of the block's covariance matrix, float64."""
        return self.family.standard(self.natural)

    @property
    def _rows(self) -> slice:
        start = self.block.starts[self.name]
        return slice(start, start + self.block.shape_of(self.name).numel())

    @property
    def loc(self) -> Tensor:
        """The mean of each number."""
        return self.standard[0][self._rows].to(self.dtype).view(self.block.shape_of(self.name))

    @property
    def scale(self) -> Tensor:
        """The standard deviation of each number."""
        return self.standard[1][self._rows].norm(dim=-1).to(self.dtype).view(self.block.shape_of(self.name))

    def _given(self) -> tuple[Tensor, Tensor]:
        """The conditional mean [*S, n] of the value, flattened, and its Cholesky factor [n, n]."""
        m, tril = self.standard
        rows, start = self._rows, self._rows.start
        if not start:
            return m[rows], tril[rows, rows]
        assert self.before is not None
        known = zip(self.before, self.block.shapes, strict=False)
        values = [value.double().reshape(*_outer(value.shape, shape), -1) for value, shape in known]
        lead = torch.broadcast_shapes(*(value.shape[:-1] for value in values))
        gap = torch.cat([value.expand(*lead, -1) for value in values], -1) - m[:start]
        noise = torch.linalg.solve_triangular(tril[:start, :start], gap.unsqueeze(-1), upper=False)
        return m[rows] + (tril[rows, :start] @ noise).squeeze(-1), tril[rows, rows]

    def rsample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Reparameterised draws, [*sample_shape, *batch_shape]."""
        loc, tril = self._given()
        shape = torch.Size(sample_shape) + self.batch_shape
        outer = _outer(shape, self.block.shape_of(self.name))
        noise = torch.randn(*outer, len(tril), dtype=loc.dtype, device=loc.device)
        return (loc + noise @ tril.mT).to(self.dtype).reshape(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of each number given those before it."""
        loc, tril = self._given()
        outer = _outer(value.shape, self.block.shape_of(self.name))
        gap = (value.double().reshape(*outer, -1) - loc).unsqueeze(-1)
        noise = torch.linalg.solve_triangular(tril, gap, upper=False).squeeze(-1)
        density = -0.5 * noise.square() - packed.diagonal(tril).log() - 0.5 * math.log(2 * math.pi)
        return density.to(self.dtype).reshape(value.shape)

    def entropy(self) -> Tensor:
        """The entropy of each number given those before it."""
        tril = self._given()[1]
        numbers = packed.diagonal(tril).log() + 0.5 * math.log(2 * math.pi * math.e)
        return numbers.to(self.dtype).view(self.block.shape_of(self.name)).expand(self.batch_shape)


def _outer(shape: torch.Size, own: torch.Size) -> torch.Size:
    return shape[: len(shape) - len(own)]
