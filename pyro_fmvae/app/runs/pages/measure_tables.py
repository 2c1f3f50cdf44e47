"""Tables of a run's measures: the closing table of its training, as HTML."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyro_fmvae.app.runs.closing_table import BEYOND, SPLITS, classification, clustering
from pyro_fmvae.app.runs.pages import markup
from pyro_fmvae.app.runs.pages.markup import number

if TYPE_CHECKING:
    from pyro_fmvae.app.runs.pages.evidence import Evidence

TERMS: Final = {"elbo": "ELBO", "reconstruction": "reconstruction", "kl_z": "KL[z]", "kl_r": "KL[r]"}
"""Terms of the bound, and how they are written."""
REFERENCES: Final = markup.paragraph(
    "Majority: always naming the commonest value of the labelled points. Logistic regression: on the codes, "
    "fitted to the labelled points.",
    "lead",
)


def measure_tables(evidence: "Evidence") -> list[str]:
    """Bounds, the recipe's summary, and labels.

    Args:
        evidence: of the run. Without a report, the last validation measures stand for it.
    """
    splits = evidence.report.get("splits", {})
    parts = [_bounds(evidence), markup.bullets(evidence.report.get("summary", []))]
    for name, measures in splits.items():
        title = f"Labels of {SPLITS.get(name, name)}"
        if classified := measures.get("classification"):
            parts += [markup.heading(title), _table(*classification(classified)), REFERENCES]
        if clustered := measures.get("clustering"):
            parts += [
                markup.heading(f"{title} that no factor was trained on"),
                _table(*clustering(clustered)),
            ]
    return parts


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of numbers, with true minus signs and dashes in its cells."""

    def shown(cell: str) -> str:
        return re.sub(r"^-(?=\d)", "−", cell.replace(" - ", " – "))

    return markup.table(head, [(name, *map(shown, cells)) for name, *cells in rows])


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
    without = set() if evidence.run.recipe.factorial else {"kl_r"}
    if not evidence.bounded:
        without |= {"elbo", "kl_z"}
    return [term for term in TERMS if term not in without]
