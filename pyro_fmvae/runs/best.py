"""The best model of a phase by its validation bound, and which model a finished run stands for."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyro_fmvae import checkpoint
from pyro_fmvae.untrusted import check_type, read_json

KEPT = "kept.json"
TOLERANCE = 0.5, 0.005
"""Nats, and share of the bound: by the lesser of them the end of a training may fall short of its best."""


@dataclass(frozen=True)
class Moment:
    """A moment of a training, and how good its model was on validation data.

    Attributes:
        phase: its name.
        step: steps taken in the phase.
        total_steps: steps taken in all phases.
        value: of the main measure, the higher the better, in nats per point.
        right: share of the known labels that are predicted right; None where none is trained on.
        known: number of these labels.
        left_out: numbers of the validation points that have no finite bound, and that `value` leaves out.
    """

    phase: str
    step: int
    total_steps: int
    value: float
    right: float | None = None
    known: int = 0
    left_out: tuple[int, ...] = ()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Moment":
        """The inverse of ``vars``, also after JSON has made lists of tuples."""
        return cls(**{**values, "left_out": tuple(values.get("left_out", ()))})

    def worth_more_than(self, other: "Moment", tolerance: float = 0.0) -> bool:
        """Compare two models of one phase.

        Clearly more labels predicted right decide: more by twice the standard error of the difference of two
        shares, each of which has one more right and one more wrong, so that a few labels prove nothing.
        Otherwise the bound decides, if it is greater by more than the tolerance. Bounds are compared only if
        they are means of the same points. If not, the model with fewer points left out is the better one: a
        point without a finite bound outweighs all others.
        """
        if self.right is not None and other.right is not None:
            mine, theirs = (
                (right * self.known + 1) / (self.known + 2) for right in (self.right, other.right)
            )
            error = math.sqrt((mine * (1 - mine) + theirs * (1 - theirs)) / self.known)
            if abs(mine - theirs) > 2 * error:
                return mine > theirs
        if self.left_out != other.left_out:
            return len(self.left_out) < len(other.left_out)
        return self.value > other.value + tolerance

    def __str__(self) -> str:
        return f"{self.phase} step {self.step:,}"


@dataclass(frozen=True)
class Best:
    """The best model of a phase so far.

    Attributes:
        moment: when it was.
        model: its state dictionary.
        since: step from which patience counts: that of the model, or the last one at which the phase was not
            settled.
    """

    moment: Moment
    model: dict[str, Tensor]
    since: int

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {"moment": vars(self.moment), "model": self.model, "since": self.since}

    @classmethod
    def from_state(cls, state: dict[str, Any] | None) -> "Best | None":
        """The inverse of :meth:`state_dict`; None of None."""
        if state is None:
            return None
        moment = Moment.from_dict(state["moment"])
        return cls(moment, state["model"], state.get("since", moment.step))


def copied(model: torch.nn.Module) -> dict[str, Tensor]:
    """A copy of a model's state dictionary."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def tolerance(value: float) -> float:
    """By how much the end may fall short of a best value, in nats."""
    nats, share = TOLERANCE
    return min(nats, share * abs(value))


@dataclass(frozen=True)
class Kept:
    """Which model a finished run stands for, and what there was at the end of its training.

    Attributes:
        measure: ``elbo``, or ``reconstruction`` of models without a bound; all values are in nats per point.
        kept, end: the moments of the model that was kept and of the end, which may be one.
        points: validation points that the values are of, and about as many training points.
        training, training_at_end: the measure on these training points, of both models.
        stopped: True if the last phase was ended early.
        advice: what to try when training and validation parted.
    """

    measure: str
    kept: Moment
    end: Moment
    points: int
    training: float
    training_at_end: float
    stopped: bool
    advice: str

    @property
    def parted(self) -> bool:
        """True if training went on to model training points better and validation points worse."""
        return (
            self.kept != self.end
            and self.kept.left_out == self.end.left_out
            and self.training_at_end > self.training + tolerance(self.training)
            and self.end.value < self.kept.value
        )

    def write(self, folder: Path) -> None:
        """Write it into a run's folder, as ``kept.json``."""
        values = {**vars(self), "kept": vars(self.kept), "end": vars(self.end), "parted": self.parted}
        text = json.dumps(values, indent=1) + "\n"
        checkpoint.write_atomically(folder / KEPT, lambda path: path.write_text(text))

    @classmethod
    def read(cls, folder: Path) -> "Kept | None":
        """Read it from a run's folder; None if the run is not finished, or compares no models.

        Raises:
            ValueError: the file is damaged.
        """
        path = folder / KEPT
        if not path.is_file():
            return None
        try:
            values = read_json(path)
            moments = {name: Moment.from_dict(values[name]) for name in ("kept", "end")}
            del values["parted"]
            found = cls(**{**values, **moments})
            for part in (found, found.kept, found.end):
                for one in fields(part):
                    check_type(one.name, getattr(part, one.name), one.type)
            return found
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"run: {path} is damaged ({error})") from None

    def summary(self) -> list[str]:
        """Lines for the closing table: none if the model is that of the end."""
        if self.kept == self.end:
            return []
        early = ", where it was stopped early" if self.stopped else ""
        return [
            f"kept: {self.kept}, validation {self._name} {self.kept.value:.2f}; "
            f"at the end, {self.end}{early}, {self.end.value:.2f}"
        ]

    def warnings(self) -> list[str]:
        """A warning for the closing table if training and validation parted."""
        if not self.parted:
            return []
        learnt = "began to learn" if self.stopped else "has learnt"
        return [
            f"the model {learnt} the training points by heart: {self._name} of {self.points:,} of them "
            f"rose from {self.training:.2f} to {self.training_at_end:.2f}, of as many validation points it "
            f"fell from {self.kept.value:.2f} to {self.end.value:.2f}; {self.advice} would help"
        ]

    @property
    def _name(self) -> str:
        return "ELBO" if self.measure == "elbo" else self.measure
