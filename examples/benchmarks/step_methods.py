"""Methods of taking one training step, for ``step.py`` and ``estimators.py``.

A new method needs a function that makes a :class:`Learner` for a model, and a line in ``METHODS``.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from bare_methods import (
    closed_form,
    closed_form_compiled,
    closed_form_graph,
    vae,
    vae_compiled,
    vae_compiled_step,
    vae_graph,
)
from enumerated_methods import plain
from plain_programs import PROGRAMS
from pyro_methods import captured, svi
from start import Learner, Rates, Setting

from pyro_fmvae.models import FactorialMixtureVAE


@dataclass(frozen=True)
class Method:
    """A method of taking a step.

    Args:
        name: name of the method, which begins with its library.
        make: sets it up for a model.
        validate: True to run with Pyro's validation, as by default.
        floor: True for a plain VAE, with which others are compared.
        on_gpu: True if it takes a GPU; left out without one.
        numbers: approximate peak number of values in memory during a step, if it can be very large.
    """

    name: str
    make: Callable[[FactorialMixtureVAE, Rates], Learner]
    validate: bool = False
    floor: bool = False
    on_gpu: bool = False
    numbers: Callable[[Setting], int] = lambda setting: 0


def _plain_methods() -> list[Method]:
    return [
        Method(f"{program.name}{suffix}", partial(plain, program, compiled=compiled), numbers=program.numbers)
        for program in PROGRAMS
        for compiled, suffix in ((False, ""), (True, ", compiled networks"))
    ]


METHODS = (
    Method("vae", vae, floor=True),
    Method("vae compiled", vae_compiled, floor=True),
    Method("vae compiled step", vae_compiled_step, floor=True),
    Method("vae as one graph", vae_graph, floor=True, on_gpu=True),
    Method("closed form by hand", closed_form),
    Method("closed form by hand, compiled", closed_form_compiled),
    Method("closed form by hand, as one graph", closed_form_graph, on_gpu=True),
    Method("SVI TraceConjugate (eager)", svi),
    Method("SVI TraceConjugate (eager, validated)", svi, validate=True),
    Method("captured", captured),
    Method("captured compiled", partial(captured, compiled=True)),
    Method("captured compiled, bfloat16", partial(captured, compiled=True, autocast=torch.bfloat16)),
    *_plain_methods(),
)


def choose(text: str, methods: Sequence[Method] = METHODS) -> list[Method]:
    """Select methods with one of some substrings in their names, and without those that begin with ``-``.

    Raises:
        argparse.ArgumentTypeError: no method is left, or a substring is in no name.
    """
    parts = [part.strip() for part in text.split(",")]
    wanted, unwanted = (
        [part.removeprefix("-") for part in parts if part.startswith("-") == excluded]
        for excluded in (False, True)
    )
    for part in (*wanted, *unwanted):
        if not any(part in method.name for method in methods):
            raise argparse.ArgumentTypeError(f"no method has '{part}' in its name")
    chosen = [
        method
        for method in methods
        if (not wanted or any(part in method.name for part in wanted))
        and not any(part in method.name for part in unwanted)
    ]
    if not chosen:
        raise argparse.ArgumentTypeError(f"'{text}' leaves no method")
    return chosen
