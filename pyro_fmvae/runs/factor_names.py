"""Factors and their components by name or number."""

from pyro_fmvae.runs.run import Run


def factor_number(argument: str, text: str, run: Run) -> int:
    """Find a factor by its number, or by the name of the label it was trained on.

    Args:
        argument: name of the argument in messages.
        text: such as ``hair`` or ``3``.
        run: the run that has the factors.

    Raises:
        ValueError: there is no such factor.
    """
    count = len(run.recipe.factors)
    names = [run.label_names[factor] for factor in run.labelled]
    if text in names:
        return names.index(text)
    if text.isdecimal() and int(text) < count:
        return int(text)
    listed = f" or one of {', '.join(names)}" if names else ""
    raise ValueError(f"{argument}: expected a factor, 0..{count - 1}{listed}, got '{text}'")


def component_number(argument: str, factor: int, text: str, run: Run) -> int:
    """Find a component by its number or, where the factor was trained on a label, by the value's name.

    Args:
        argument: name of the argument in messages.
        factor: whose component.
        text: such as ``blond`` or ``3``.
        run: the run that has the factors.

    Raises:
        ValueError: there is no such component.
    """
    size = run.recipe.factors[factor]
    names = component_names(factor, run)
    if text in names:
        return names.index(text)
    if text.isdecimal() and int(text) < size:
        return int(text)
    listed = f" or one of {', '.join(names)}" if names else ""
    raise ValueError(f"{argument}: expected 0..{size - 1}{listed} for factor {factor}, got '{text}'")


def component_names(factor: int, run: Run) -> tuple[str, ...]:
    """Names of a factor's leading components: of the values that it was trained on, if they have names."""
    named = factor in run.labelled and run.value_names
    return run.value_names[factor][: run.recipe.factors[factor]] if named else ()
