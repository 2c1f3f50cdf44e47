"""Options of the search for the posteriors of latents of single data points."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class LocalSearch:
    """How the posteriors of latents of single data points are found.

    Attributes:
        plates: names of the plates of data points.
        steps: passes of coordinate ascent over all latents, at most.
        tolerance: nats: a point's passes end after one that moved its posteriors by less, in KL divergence;
            points of several plates end together, by their mean.
        warm: whether to start at the posterior of a point's last visit.

    Raises:
        ValueError: one of them is out of range.
    """

    plates: tuple[str, ...] = ()
    steps: int = 10
    tolerance: float = 0.0
    warm: bool = False

    def __post_init__(self) -> None:
        if not self.steps > 0:
            raise ValueError(f"local_steps: expected a number > 0, got {self.steps}")
        if not self.tolerance >= 0:
            raise ValueError(f"local_tolerance: expected a number >= 0, got {self.tolerance}")
        if self.warm and len(self.plates) != 1:
            raise ValueError(f"local_warm: expected one plate in local, got {list(self.plates)}")


def plates_of_points(local: Collection[str]) -> tuple[str, ...]:
    """The names of plates, refused if they are a single one that is not in a list."""
    if isinstance(local, str):
        raise ValueError(f"local: expected a list of names of plates, got '{local}'; write ['{local}']")
    return tuple(local)
