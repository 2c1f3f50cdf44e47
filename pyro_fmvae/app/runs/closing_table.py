"""How a training ended: the model that its run stands for, and ``report.json`` as text."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyro_fmvae.files import checkpoint
from pyro_fmvae.files.untrusted import check_type, read_json

if TYPE_CHECKING:
    from pyro_fmvae.app.runs.run import Run

WIDTH: Final = 100

LONGEST_LABEL: Final = 24
SPLITS: Final = {
    "train": "training points",
    "valid": "validation points",
    "test": "test points",
    "unseen": "points with unseen combinations of labels",
}
BEYOND: Final = "so far from the training data that there is no finite bound"
FEW: Final = 0.05
"""Share of the steps of a training without a clock; with fewer, networks have hardly left their start."""
METRICS = "metrics.jsonl"
TRAINING = "training"
"""The figure that every run has, and no other command draws."""
REPORT = "report.json"  # the closing table
KEPT = "kept.json"
TOLERANCE = 0.5, 0.005
"""Nats, and share of the bound: by the lesser of them the end of a training may fall short of its best."""


@contextmanager
def undamaged(place: object, advice: str = "") -> Iterator[None]:
    """Say that a run is damaged if what is read has another form.

    Args:
        place: its file or folder.
        advice: added to the message.

    Raises:
        ValueError: it has.
    """
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        if str(error).startswith("run: "):
            raise
        raise ValueError(f"run: {place} is damaged ({error}){advice}") from error


def read_report(path: Path) -> dict[str, Any]:
    """Read the ``report.json`` of a run; nothing if there is none.

    Raises:
        ValueError: it is damaged.
    """
    if not path.exists():
        return {}
    with undamaged(path, "; delete it"):
        found: dict[str, Any] = read_json(path)
        found["splits"][found["split"]]
        lines(found)
    return found


def lines(found: Mapping[str, Any]) -> list[str]:
    """A report as text, 100 columns wide at most if no number is extreme.

    Args:
        found: contents of a run's ``report.json``.
    """
    splits = found["splits"].items()
    text = [_bound_line(name, measures) for name, measures in splits if "reconstruction" in measures]
    for line in found["summary"]:
        text += wrap(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    if found["labelled"]:
        text.append(f"labelled points used: {labelled(found['labelled'])}")
    for name, measures in splits:
        if measures.get("classification"):
            text += ["", f"labels of {SPLITS[name]}", *_aligned(*classification(measures["classification"]))]
    if any(measures.get("classification") for _, measures in splits):
        text += [
            "majority: always the commonest value of the labelled points",
            "logistic: logistic regression on the codes, fitted to the labelled points",
        ]
    for name, measures in splits:
        if measures.get("clustering"):
            heading = f"labels of {SPLITS[name]} that no factor was trained on"
            text += ["", heading, *_aligned(*clustering(measures["clustering"]))]
    if found["warnings"]:
        text.append("")
        for warning in found["warnings"]:
            text += wrap(f"warning: {warning}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return [*text, ""] if "" in text else text


def labelled(found: Mapping[str, int]) -> str:
    """How many training points are labelled, as text."""
    percent = 100 * found["used"] / max(1, found["of"])
    share = f"{percent:.0f} %" if percent >= 1 else f"{percent:.1g} %"
    return f"{found['used']:,} of {found['of']:,} ({share})"


def _bound_line(name: str, measures: Mapping[str, Any]) -> str:
    text = f"reconstruction {measures['reconstruction']:.2f}"
    if measures["elbo"] is not None:
        assigned = f" - KL[r] {measures['kl_r']:.2f}" if "kl_r" in measures else ""
        text = f"ELBO {measures['elbo']:.2f} = {text} - KL[z] {measures['kl_z']:.2f}{assigned}"
    beyond = f" ({measures['left_out']} left out: {BEYOND})" if measures["left_out"] else ""
    return f"{measures['n']:,} {name} points{beyond}, nats per point: {text}"


Table: TypeAlias = tuple[Sequence[str], list[Sequence[str]]]
"""Heads of columns, and rows."""


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many decimals; nothing for None."""
    return "" if value is None else f"{value:,.{digits}f}"


def classification(classified: Mapping[str, Mapping[str, Any]]) -> Table:
    """How well labels are predicted that factors were trained on; a row for each."""
    scores = ("balanced_accuracy", "macro_f1", "majority", "logistic_regression")
    heads = ("label", "n", "accuracy", "95 % interval", "balanced", "macro F1", "majority", "logistic")
    return heads, [
        (
            label,
            number(found["n"], 0),
            number(found["accuracy"]),
            " - ".join(map(number, found["interval"])),
            *(number(found.get(score)) for score in scores),
        )
        for label, found in classified.items()
    ]


def clustering(clustered: Mapping[str, Mapping[str, Any]]) -> Table:
    """How well codes, and clusters where there are any, agree with other labels; a row for each."""
    joined = any("clusters" in found for found in clustered.values())
    heads = ("label", "n", "best factor", "matching accuracy", "ARI", "NMI")
    return heads + (("clusters", "their ARI") if joined else ()), [
        (
            label,
            number(found["n"], 0),
            str(found["factor"]),
            *(number(found[score]) for score in ("accuracy", "ari", "nmi")),
            *((number(of["number"], 0), number(of["ari"])) if (of := found.get("clusters")) else ()),
        )
        for label, found in clustered.items()
    ]


def _aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, shortened, the others to the right."""
    table = [(_shortened(first), *others) for first, *others in [heads, *rows]]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            [f"  {first:<{widths[0]}}", *(f"{text:>{w}}" for text, w in zip(others, widths[1:], strict=True))]
        ).rstrip()
        for first, *others in table
    ]


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…"


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
        return cls(**{**values, "left_out": tuple(values["left_out"])})

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


def tolerance(value: float) -> float:
    """By how much the end may fall short of a best value, in nats."""
    nats, share = TOLERANCE
    return min(nats, share * abs(value))


@dataclass(frozen=True)
class SelectedModel:
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
    def read(cls, folder: Path) -> "SelectedModel | None":
        """Read it from a run's folder; None if the run is not finished, or compares no models.

        Raises:
            ValueError: the file is damaged.
        """
        path = folder / KEPT
        if not path.is_file():
            return None
        with undamaged(path):
            values = read_json(path)
            moments = {name: Moment.from_dict(values[name]) for name in ("kept", "end")}
            del values["parted"]
            found = cls(**{**values, **moments})
            for part in (found, found.kept, found.end):
                for one in fields(part):
                    check_type(one.name, getattr(part, one.name), one.type)
        return found

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
        learnt = "began to memorise" if self.stopped else "has memorised"
        return [
            f"the model {learnt} the training points: {self._name} of {self.points:,} of them "
            f"rose from {self.training:.2f} to {self.training_at_end:.2f}, while that of as many validation "
            f"points fell from {self.kept.value:.2f} to {self.end.value:.2f}; {self.advice} would help"
        ]

    @property
    def _name(self) -> str:
        return "ELBO" if self.measure == "elbo" else self.measure


def cut_short(run: "Run", steps: int, selected: SelectedModel | None) -> bool:
    """Tell whether the clock ended a training of networks after few of its steps.

    Args:
        run: the run.
        steps: taken in all phases.
        selected: which model the run stands for, if models were compared.
    """
    early = selected is not None and selected.stopped  # by the validation bound
    return (
        run.config.timed and not early and not run.recipe.closed_form and steps < FEW * run.config.usual_steps
    )


def duration(seconds: float) -> str:
    """A length of time in words, by its two greatest units.

    >>> duration(0.2), duration(200), duration(40_000)
    ('less than a second', '3 min 20 s', '11 h 6 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = {"h": hours, "min": minutes} if hours else {"min": minutes, "s": rest}
    return " ".join(f"{number} {unit}" for unit, number in parts.items() if number) or "less than a second"
