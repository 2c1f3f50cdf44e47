"""Tables of a run's measures: the closing table of its training, as HTML."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyro_fmvae.app.runs.closing_table import BEYOND, SPLITS
from pyro_fmvae.app.runs.pages import markup
from pyro_fmvae.app.runs.pages.markup import number

if TYPE_CHECKING:
    from pyro_fmvae.app.runs.pages.evidence import Evidence

TERMS: Final = {"elbo": "ELBO", "reconstruction": "reconstruction", "kl_z": "KL[z]", "kl_r": "KL[r]"}
"""Terms of the bound, and how they are written."""
CLASSIFIED: Final = {
    "balanced_accuracy": "balanced",
    "macro_f1": "macro F1",
    "majority": "majority",
    "logistic_regression": "logistic regression",
}
"""Scores of predicted labels beside the accuracy, and their headings."""
CLUSTERED: Final = {"accuracy": "matching accuracy", "ari": "ARI", "nmi": "NMI"}


def measure_tables(evidence: "Evidence") -> list[str]:
    """Bounds, the recipe's summary, and labels.

    Args:
        evidence: of the run. Without a report, the last validation measures stand for it.
    """
    splits = evidence.report.get("splits", {})
    parts = [_bounds(evidence), markup.bullets(evidence.report.get("summary", []))]
    for name, measures in splits.items():
        parts += [
            _classification(SPLITS.get(name, name), measures.get("classification", {})),
            _clustering(SPLITS.get(name, name), measures.get("clustering", {})),
        ]
    return parts


def _bounds(evidence: "Evidence") -> str:
    splits = evidence.report.get("splits", {}).items()
    measured = {SPLITS.get(name, name): values for name, values in splits if "reconstruction" in values}
    if not measured and evidence.records:
        measured = {"validation points, at the last step": evidence.closing}
    shown = [term for term in terms_of(evidence) if all(term in values for values in measured.values())]
    rows = [
        (_points(name, values), *(number(values[term], 2) for term in shown))
        for name, values in measured.items()
    ]
    return markup.table(("nats per point", *(TERMS[term] for term in shown)), rows)


def _points(name: str, measures: Mapping[str, Any]) -> str:
    if "n" not in measures:
        return name
    left_out = measures.get("left_out", 0)
    return f"{measures['n']:,} {name}" + (f" ({left_out:,} left out: {BEYOND})" if left_out else "")


def terms_of(evidence: "Evidence") -> list[str]:
    """Terms of the bound that the model has."""
    without = set() if evidence.run.factorial else {"kl_r"}
    if not evidence.bounded:
        without |= {"elbo", "kl_z"}
    return [term for term in TERMS if term not in without]


def _classification(split: str, classified: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        (
            name,
            f"{found['n']:,}",
            number(found["accuracy"]),
            " – ".join(number(end) for end in found["interval"]),
            *(number(found.get(score)) for score in CLASSIFIED),
        )
        for name, found in classified.items()
    ]
    head = ("label", "n", "accuracy", "95 % interval", *CLASSIFIED.values())
    if not rows:
        return ""
    return (
        markup.heading(f"Labels of {split}")
        + markup.table(head, rows)
        + markup.paragraph(
            "Majority: always naming the commonest value of the labelled points. Logistic regression: on "
            "the codes, fitted to the labelled points.",
            "lead",
        )
    )


def _clustering(split: str, clustered: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        (
            name,
            number(found.get("n"), 0),
            str(found["factor"]),
            *(number(found.get(score)) for score in CLUSTERED),
            *((number(of["number"], 0), number(of["ari"])) if (of := found.get("clusters")) else ()),
        )
        for name, found in clustered.items()
    ]
    if not rows:
        return ""
    joined = ("clusters", "their ARI") if len(rows[0]) > 3 + len(CLUSTERED) else ()
    head = ("label", "n", "best factor", *CLUSTERED.values(), *joined)
    return markup.heading(f"Labels of {split} that no factor was trained on") + markup.table(head, rows)
