"""Advice on what to try next, by a few rules about a run's own figures."""

from typing import TYPE_CHECKING

from pyro_fmvae.app.runs.closing_table import cut_short
from pyro_fmvae.app.runs.pages.markup import number

if TYPE_CHECKING:
    from pyro_fmvae.app.runs.pages.evidence import Evidence

NATS, SHARE = 0.5, 0.005  # changes of the bound that count: the greater of the two
RISING = 0.75  # share of the last phase after which the bound should be flat
MANY_UNUSED = 0.5  # share of a factor's components, of which fewer in use are few
BARELY = 0.02  # above the accuracy of always naming the commonest value


def advice(evidence: "Evidence") -> list[str]:
    """Sentences about what stands out in a run, each with what could be tried; often none.

    Args:
        evidence: of the run.
    """
    return [
        *_parted(evidence),
        *_still_rising(evidence),
        *_unused_components(evidence),
        *_weak_labels(evidence),
        *_labels_left_aside(evidence),
    ]


def _change(values: list[float]) -> float:
    """Last value minus the greatest; 0 if the difference does not count."""
    best = max(values)
    return values[-1] - best if best - values[-1] > max(NATS, SHARE * abs(best)) else 0.0


def _parted(evidence: "Evidence") -> list[str]:
    records = evidence.last_phase
    if evidence.kept is not None or not (evidence.bounded and len(records) > 1):
        return []  # the best model is kept, and the closing table warns
    if cut_short(evidence.run, records[-1]["step"], None):
        return []  # and the closing table warns
    bounds = [record["elbo"] for record in records]
    fallen = _change(bounds)
    if not fallen:
        return []
    best = records[bounds.index(max(bounds))]
    return [
        f"The validation ELBO was best at step {best['step']:,} ({number(best['elbo'], 2)}) and fell by "
        f"{-fallen:.2f} nats after it: the model memorises the training points. Train for fewer "
        "iterations, with smaller networks (--hidden), or with a --weight-decay such as 0.01. More data help "
        "most."
    ]


def _still_rising(evidence: "Evidence") -> list[str]:
    records = evidence.last_phase
    ended_best = evidence.kept is None or evidence.kept.kept == evidence.kept.end
    if not (evidence.bounded and len(records) > 3 and ended_best):
        return []
    first, last = records[0]["step"], records[-1]
    late = [record for record in records if record["step"] <= first + RISING * (last["step"] - first)]
    gained = last["elbo"] - max(record["elbo"] for record in late)
    if gained <= max(NATS, SHARE * abs(last["elbo"])):
        return []
    return [
        f"The validation ELBO was still rising at the end: by {gained:.2f} nats in the last quarter of "
        f"{last['phase']}. Train longer: give --max-minutes, or more iterations."
    ]


def _unused_components(evidence: "Evidence") -> list[str]:
    labelled = {evidence.run.recipe.factor_names[factor] for factor in evidence.run.recipe.labelled}
    restarts = "--prior-restarts 10" if hasattr(evidence.run.config, "prior_restarts") else "--starts 50"
    return [
        f"{name[0].upper()}{name[1:]} uses {number} of its {size} components. If fewer clusters than "
        f"expected were found, try {restarts} or another --seed; else lower its number in --factors."
        for name, (number, size) in evidence.used.items()
        if name not in labelled and number < MANY_UNUSED * size
    ]


def _weak_labels(evidence: "Evidence") -> list[str]:
    weak = [
        f"{name} ({found['accuracy']:.2f}, the majority {found['majority']:.2f})"
        for name, found in evidence.tested.get("classification", {}).items()
        if found.get("majority") is not None and found["accuracy"] < min(found["majority"] + BARELY, 1.0)
    ]
    if not weak:
        return []
    return [
        f"Labels that are predicted hardly better than by naming the commonest value: {', '.join(weak)}. "
        "Label more points, train longer, or check that the data show the property at all."
    ]


def _labels_left_aside(evidence: "Evidence") -> list[str]:
    run = evidence.run
    if run.recipe.labelled or not run.recipe.label_names or "labels" not in run.config.to_dict():
        return []
    names = ", ".join(run.recipe.label_names[:5]) + (", …" if len(run.recipe.label_names) > 5 else "")
    return [f"The data have labels ({names}) that were not trained on. With --labels 1 they are."]
