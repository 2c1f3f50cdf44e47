"""The rows of a batch that one rank works on."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only


@dataclass(frozen=True)
class Share:
    """Rows ``start`` to ``stop`` of a batch of ``total`` rows.

    A rank for which there is no row takes one that another rank has, with weight 0: programs need rows.

    Attributes:
        weight: part of the batch that the rows are, in [0, 1]. The weights of all ranks add up to 1.
    """

    start: int
    stop: int
    total: int
    weight: float

    @classmethod
    def of(cls, total: int, rank: int, size: int) -> "Share":
        """The share of a rank out of ``size``: shares differ by one row at most, in the order of ranks.

        Raises:
            ValueError: an empty batch.
        """
        if total < 1:
            raise ValueError("batch: expected at least one row, got none")
        start, stop = rank * total // size, (rank + 1) * total // size
        if start < stop:
            return cls(start, stop, total, (stop - start) / total)
        row = min(start, total - 1)
        return cls(row, row + 1, total, 0.0)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    @property
    def is_whole(self) -> bool:
        """True if it is all of the batch, so that there is nothing to cut."""
        return self.rows == self.total

    def cut(self, arguments: Any) -> Any:
        """Arguments, however nested, with these rows alone of every tensor that has a row per point.

        Those are the tensors with a dimension as long as the batch; the first such one is the rows'.
        """

        def own(tensor: Tensor) -> Tensor:
            if self.total not in tensor.shape:
                return tensor
            return tensor.narrow(list(tensor.shape).index(self.total), self.start, self.rows)

        return arguments if self.is_whole else tree_map_only(Tensor, own, arguments)
