"""Advice comes from a run's own figures, and only where they ask for it."""

import re
from dataclasses import replace

import pytest

from pyro_fmvae.app.recipes.registry import configure, options_of
from pyro_fmvae.app.recipes.table_mixture import Mixture
from pyro_fmvae.app.runs.closing_table import Moment, SelectedModel
from pyro_fmvae.app.runs.pages.advice import advice
from pyro_fmvae.app.runs.pages.evidence import Evidence
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data import Kind, Preprocessing
from tests.app.commands.labelled_run import RUN

FLAT = [-50.0, -20.0, -19.9, -19.8, -19.8]


def evidence(bounds=FLAT, used=(2, 3, 5), run=RUN, report=None):
    records = [
        {
            "step": 10 * n,
            "phase": "joint",
            "elbo": bound,
            "reconstruction": 0.0,
            "used_components": list(used),
        }
        for n, bound in enumerate(bounds)
    ]
    return Evidence(run, records, report or {}, None, {})


def with_accuracy(accuracy, majority):
    scores = {"accuracy": accuracy, "majority": majority}
    return {"split": "test", "splits": {"test": {"elbo": 0.0, "classification": {"hair": scores}}}}


def test_nothing_stands_out():
    assert advice(evidence()) == []
    assert advice(evidence(bounds=[])) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bounds": [-50.0, -18.0, -19.0, -30.5]}, ("best at step 10 (−18.00)", "fell by 12.50 nats")),
        ({"bounds": [-50.0, -40.0, -30.0, -20.0, -10.0]}, ("still rising", "by 10.00 nats", "--max-minutes")),
        ({"used": (2, 3, 2)}, ("Factor 2 uses 2 of its 5 components", "--prior-restarts")),
        ({"report": with_accuracy(0.6, 0.6)}, ("hair (0.60, the majority 0.60)",)),
    ],
)
def test_what_stands_out(changes, words):
    (line,) = advice(evidence(**changes))
    assert all(word in line for word in words)


def test_a_bound_that_fell_after_the_kept_step_is_not_still_rising():
    moments = [Moment("joint", step, step, value) for step, value in ((30, -9.0), (40, -10.0))]
    kept = SelectedModel("elbo", *moments, 100, -9.0, -8.0, False, "fewer iterations")
    rising = evidence(bounds=[-50.0, -40.0, -30.0, -9.0, -10.0])
    assert advice(rising) and advice(replace(rising, kept=kept)) == []


def test_what_was_cut_short_has_learnt_nothing_by_heart():
    run = RUN.with_options(max_minutes=0.5, joint_iterations=3000)
    bounds = [-50.0, -18.0, -19.0, -30.5]
    assert advice(evidence(bounds, run=run)) == []
    assert advice(evidence(bounds, run=run.with_options(joint_iterations=300)))


@pytest.mark.parametrize(
    "changes",
    [
        {"report": with_accuracy(1.0, 1.0)},
        {"bounds": [-50.0, -18.0, -19.0, -18.4]},  # within half a nat of the best
        {"bounds": [-5000.0, -1000.0, -1003.0]},  # within 0.5 %
        {"used": (1, 3, 5)},  # a labelled factor
        {"used": (2, 3, 3)},  # most of them
        {"report": with_accuracy(0.8, 0.6)},
    ],
)
def test_what_does_not(changes):
    assert advice(evidence(**changes)) == []


def test_labels_that_were_not_trained_on():
    config = replace(RUN.recipe.config, labels=0.0, label_names=None)
    (line,) = advice(evidence(run=replace(RUN, recipe=replace(RUN.recipe, config=config)), used=()))
    assert "(eyes, hair, hat)" in line and "--labels 1" in line


def test_a_mixture_is_advised_of_options_that_it_has():
    config = configure("mixture", "mine.csv", factors=(5,), labels=0.0)
    run = Run(RUN.folder, Mixture(config, Preprocessing(Kind.BINARY, (3,)), 9))
    (line,) = advice(evidence(used=(2,), run=run))
    typed = re.findall("--([a-z-]+)", line)
    assert "starts" in typed and {name.replace("-", "_") for name in typed} <= set(options_of("mixture"))
