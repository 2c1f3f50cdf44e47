"""Vectors whose columns have distributions of several kinds, independent of each other, and their masks."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro.distributions import MaskedDistribution, TorchDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import Distribution, Independent, constraints


class Columns(TorchDistribution):
    """Columns of several kinds side by side, such as the emissions of a ``HiddenMarkov``.

    ::

        both = Columns(dist.Normal(locs, 1.0), dist.Poisson(rates))  # [K] each
        HiddenMarkov(start, transitions, both, T)  # of x [..., T, 2]

    Args:
        parts: distributions of scalars, one column each, or of vectors, one column for each entry.

    Shapes: the event is [D], the columns of all parts in their order.

    Raises:
        ValueError: no part, or one whose values are not scalars or vectors.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012
    support = constraints.real_vector

    def __init__(self, *parts: Distribution, validate_args: bool | None = None) -> None:
        if not parts or any(len(part.event_shape) > 1 for part in parts):
            shapes = [list(part.event_shape) for part in parts]
            raise ValueError(f"parts: expected distributions of scalars or vectors, got events {shapes}")
        self.parts = list(parts)
        batch = torch.Size(broadcast_shape(*(part.batch_shape for part in parts)))
        super().__init__(batch, torch.Size([sum(map(_width, parts))]), validate_args=validate_args)

    def split(self, value: Tensor) -> list[Tensor]:
        """Values [..., D] of each part, in its own event shape."""
        pieces = value.split([_width(part) for part in self.parts], -1)
        return [
            piece if part.event_shape else piece.squeeze(-1)
            for part, piece in zip(self.parts, pieces, strict=True)
        ]

    def density(self, value: Tensor, of_part: Callable[[Distribution, Tensor], Tensor]) -> Tensor:
        """The sum of the parts' log-densities of values [..., D], or of their expectations: [...]."""
        pieces = zip(self.parts, self.split(value), strict=True)
        total: Tensor = sum(of_part(part, piece) for part, piece in pieces)  # type: ignore[assignment]
        return total

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of values [..., D]."""
        return self.density(value, lambda part, piece: part.log_prob(piece))

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Expand to ``batch_shape``."""
        new: Any = self._get_checked_instance(Columns, _instance)
        new.parts = [part.expand(torch.Size(batch_shape)) for part in self.parts]
        super(Columns, new).__init__(torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Draw all columns: [*sample_shape, ..., D]."""
        drawn = [part.expand(self.batch_shape).sample(torch.Size(sample_shape)) for part in self.parts]
        pairs = zip(self.parts, drawn, strict=True)
        columns = [value if part.event_shape else value.unsqueeze(-1) for part, value in pairs]
        side_by_side = torch.cat(columns, -1)
        return (
            side_by_side if side_by_side.is_floating_point() else side_by_side.to(torch.get_default_dtype())
        )


def _width(part: Distribution) -> int:
    return part.event_shape.numel()


def is_masked(fn: Any) -> bool:
    """True if a distribution, or one inside of it, is masked."""
    if isinstance(fn, Columns):
        return any(map(is_masked, fn.parts))
    return isinstance(fn, MaskedDistribution) or (hasattr(fn, "base_dist") and is_masked(fn.base_dist))


def check_mask_of_states(emissions: Any) -> None:
    """Refuse emissions, of a batch shape [..., K], whose mask differs between the K states."""
    fn, dim = emissions, len(emissions.batch_shape) - 1
    while isinstance(fn, Independent | MaskedDistribution):
        if isinstance(fn, MaskedDistribution):
            mask = torch.as_tensor(fn._mask).expand(fn.batch_shape)
            if (mask != mask.narrow(dim, 0, 1)).any():
                raise ValueError(
                    "emissions: expected a mask that is the same for all states, whose dimension is the last "
                    f"one of {list(emissions.batch_shape)}; write mask(present.unsqueeze(-1))"
                )
        fn = fn.base_dist
    for part in fn.parts if isinstance(fn, Columns) else ():
        check_mask_of_states(part)
