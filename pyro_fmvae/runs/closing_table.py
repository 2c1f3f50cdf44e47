"""The closing table of a training: the contents of ``report.json`` as text."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any, Final

WIDTH: Final = 100

LONGEST_LABEL: Final = 24
SPLITS: Final = {
    "train": "training points",
    "valid": "validation points",
    "test": "test points",
    "unseen": "points with unseen combinations of labels",
}
BEYOND: Final = "so far from the training data that there is no finite bound"


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
    percent = 100 * found["used"] / found["of"]
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
