"""Codes, factors and their components, as a command line gives them."""

from pathlib import Path

import torch

from pyro_fmvae.app.runs.factor_names import component_number, components_of, factor_number
from pyro_fmvae.app.runs.run import Run


def parse_codes(text: str | None, run: Run) -> torch.Tensor:
    """Read the component of each factor, -1 where it is to be drawn.

    Args:
        text: such as ``sunglasses,1,*``, a component by its number or, where the factor was trained on a
            label, by the name of the label's value; None draws all.
        run: the run that has the factors.

    Returns:
        Components, int64 [1, I].

    Raises:
        ValueError: the wrong number of codes, or one that is neither * nor a component.
    """
    count = len(run.recipe.factors)
    parts = ["*"] * count if text is None else [part.strip() for part in text.split(",")]
    if len(parts) != count:
        raise ValueError(f"codes: expected {count} of them, one per factor, got '{text}'")
    codes = [
        -1 if part == "*" else component_number("codes", factor, part, run, "* or ")
        for factor, part in enumerate(parts)
    ]
    return torch.tensor([codes])


def open_factorial(folder: str, purpose: str) -> Run:
    """Open a run whose model has factors.

    Args:
        folder: the run's folder.
        purpose: what needs the factors, such as ``edit``, for the message.

    Raises:
        ValueError: the folder is no run, or its model has no factors.
    """
    run = Run.open(Path(folder))
    run.recipe.check_factors("run", purpose)
    return run


def parse_factors(text: str, run: Run) -> list[int]:
    """Read a list of factors, each given by its number or by the name of the label it was trained on.

    Args:
        text: such as ``hair,body`` or ``0,3``.
        run: the run that has the factors.

    Raises:
        ValueError: an unknown factor, or one given twice.
    """
    factors = [factor_number("factors", part.strip(), run) for part in text.split(",")]
    if len(set(factors)) != len(factors):
        raise ValueError(f"factors: expected different ones, got '{text}'")
    return factors


def parse_settings(text: str, run: Run, argument: str = "settings") -> dict[int, int]:
    """Read which component each of some factors is set to: factor → component.

    Args:
        text: such as ``hat=1,hair=blond,6=3``: factors as in :func:`parse_factors`, and a component by its
            number or, where the factor was trained on a label, by the name of the label's value.
        run: the run that has the factors.
        argument: name of the argument in messages.

    Raises:
        ValueError: an unknown factor or component, or a factor set twice.
    """
    settings = [tuple(piece.strip() for piece in part.partition("=")) for part in text.split(",")]
    if not all(map(all, settings)):
        raise ValueError(f"{argument}: expected such as hat=1,6=3, got '{text}'")
    return components_of(argument, [(name, value) for name, _, value in settings], run)
