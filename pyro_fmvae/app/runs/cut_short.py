"""Trainings that a clock ended before their networks had learnt."""

from typing import Final

from pyro_fmvae.app.runs.run import Run, SelectedModel

FEW: Final = 0.05
"""Share of the steps of a training without a clock; with fewer, networks have hardly left their start."""


def cut_short(run: Run, steps: int, selected: SelectedModel | None) -> bool:
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
