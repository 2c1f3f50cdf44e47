"""The closing table of a training: the contents of ``report.json`` as text."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, Final, Literal, NotRequired, Required, TypedDict

from pyro_fmvae.files.untrusted import check_type, read_json

WIDTH: Final = 100

LONGEST_LABEL: Final = 24
SPLITS: Final = {
    "train": "training points",
    "valid": "validation points",
    "test": "test points",
    "unseen": "points with unseen combinations of labels",
}
BEYOND: Final = "so far from the training data that there is no finite bound"


class Classified(TypedDict):
    """How well a label is predicted."""

    n: int
    accuracy: float
    interval: list[float]
    balanced_accuracy: float | None
    macro_f1: float | None
    majority: float | None
    logistic_regression: float | None


class Clustered(TypedDict):
    """How well the codes of a factor agree with a label."""

    n: int
    factor: str | int
    accuracy: float
    ari: float
    nmi: float


class Agreement(TypedDict, total=False):
    """Agreement of codes with labels in a split."""

    n: Required[int]
    accuracy: dict[str, float]
    classification: dict[str, Classified]
    clustering: dict[str, Clustered]


class Measured(Agreement, total=False):
    """Agreement and the terms of the bound in a split."""

    elbo: Required[float | None]
    reconstruction: Required[float]
    kl_z: Required[float | None]
    kl_r: float
    kl_global: float
    left_out: Required[int]


class Labelled(TypedDict):
    """Labelled points that were used, and all training points."""

    used: int
    of: int


class Report(TypedDict):
    """Contents of ``report.json``."""

    split: str
    splits: dict[Literal["train", "valid", "test", "unseen"], Agreement]
    labelled: Labelled | None
    columns: NotRequired[list[dict[str, str]]]
    summary: list[str]
    warnings: list[str]


def read_report(path: Path) -> dict[str, Any]:
    """Read the ``report.json`` of a run; nothing if there is none.

    Raises:
        ValueError: it is damaged.
    """
    try:
        found: dict[str, Any] = read_json(path)
        check_type("report", found, Report)
        for measures in found["splits"].values():
            if "reconstruction" in measures:
                check_type("splits", measures, Measured)
        if found["split"] not in found["splits"]:
            raise ValueError(f"it has no measures of {found['split']!r}")
        lines(found)
    except FileNotFoundError:
        return {}
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"run: {path} is damaged ({error}); delete it") from None
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
            text += ["", f"labels of {SPLITS[name]}", *_classification(measures["classification"])]
    if any(measures.get("classification") for _, measures in splits):
        text += [
            "majority: always the commonest value of the labelled points",
            "logistic: logistic regression on the codes, fitted to the labelled points",
        ]
    for name, measures in splits:
        if measures.get("clustering"):
            heading = f"labels of {SPLITS[name]} that no factor was trained on"
            text += ["", heading, *_clustering(measures["clustering"])]
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


def _classification(classified: Mapping[str, Mapping[str, Any]]) -> list[str]:
    heads = ("label", "n", "accuracy", "95 % interval", "balanced", "macro F1", "majority", "logistic")
    scores = ("balanced_accuracy", "macro_f1", "majority", "logistic_regression")
    rows = [
        (
            label,
            f"{measures['n']:,}",
            f"{measures['accuracy']:.3f}",
            "{:.3f} - {:.3f}".format(*measures["interval"]),
            *("" if measures[score] is None else f"{measures[score]:.3f}" for score in scores),
        )
        for label, measures in classified.items()
    ]
    return _aligned(heads, rows)


def _clustering(clusterings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    heads = ("label", "n", "best factor", "matching accuracy", "ARI", "NMI")
    rows = [
        (
            label,
            f"{measures['n']:,}",
            str(measures["factor"]),
            *(f"{measures[key]:.3f}" for key in ("accuracy", "ari", "nmi")),
        )
        for label, measures in clusterings.items()
    ]
    return _aligned(heads, rows)


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
