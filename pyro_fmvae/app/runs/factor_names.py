"""Factors and their components by name or number, and the file ``names.json`` in a run's folder."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from pyro_fmvae.app.recipes.recipe import OWN_NAMES
from pyro_fmvae.files import checkpoint
from pyro_fmvae.files.untrusted import check_printable, check_type, read_json

if TYPE_CHECKING:
    from pyro_fmvae.app.runs.run import Run

Settings: TypeAlias = Mapping[str | int, str | int]
"""Property, by its name or the factor's number → value, by its name or the component's number."""
NAMES: Final = "names.json"
FACTORS: Final = "factors"
"""Key of the names of factors themselves in that file."""
LONGEST: Final = 60
"""Characters of a name."""
RESERVED: Final = ",=*"
"""Characters by which a command line parts codes and settings."""
Names = Mapping[int, Mapping[int, str]]
"""Factor → component → its name; and `OWN_NAMES` → factor → its name."""


def factor_number(argument: str, text: str, run: "Run") -> int:
    """Find a factor by its number, by the name of the label it was trained on, or by the one it was given.

    Args:
        argument: name of the argument in messages.
        text: such as ``hair`` or ``3``.
        run: the run that has the factors.

    Raises:
        ValueError: there is no such factor.
    """
    count = len(run.recipe.factors)
    names = {name: i for i, name in enumerate(run.recipe.factor_names) if name != f"factor {i}"}
    if text in names:
        return names[text]
    if text.isdecimal() and int(text) < count:
        return int(text)
    listed = f" or one of {', '.join(names)}" if names else ""
    raise ValueError(f"{argument}: expected a factor, 0..{count - 1}{listed}, got '{text}'")


def component_number(argument: str, factor: int, text: str, run: "Run", otherwise: str = "") -> int:
    """Find a component by its number, by the name that it was given, or by that of its label's value.

    Args:
        argument: name of the argument in messages.
        factor: whose component.
        text: such as ``blond`` or ``3``.
        run: the run that has the factors.
        otherwise: what else the argument may be, such as ``"* or "``, for the message.

    Raises:
        ValueError: there is no such component.
    """
    size = run.recipe.factors[factor]
    names = run.recipe.component_names(factor)
    if text in names:
        return names.index(text)
    if text.isdecimal() and int(text) < size:
        return int(text)
    listed = f"{otherwise}0..{size - 1}" + (f" or one of {', '.join(names)}" if names else "")
    raise ValueError(f"{argument}: expected {listed} for factor {factor}, got '{text}'")


def components_of(
    argument: str, settings: Iterable[tuple[str | int, str | int]], run: "Run"
) -> dict[int, int]:
    """Find factors and components: factor → component, by number.

    Args:
        argument: name of the argument in messages.
        settings: a factor and its component, each by name or number.
        run: the run that has the factors.

    Raises:
        ValueError: an unknown factor or component, or a factor set twice.
    """
    components: dict[int, int] = {}
    for name, value in settings:
        factor = factor_number(argument, str(name), run)
        if factor in components:
            raise ValueError(f"{argument}: expected different factors, got {name!r} a second time")
        components[factor] = component_number(argument, factor, str(value), run)
    return components


def codes_to_draw(n: int, codes: Settings | ArrayLike | None, run: "Run") -> Tensor:
    """Component of each factor of n draws, int64 [n, I], -1 where it is to be drawn.

    Args:
        n: number of draws.
        codes: some factors' components; or that of each, integers [I] or [n, I], where -1 draws it. None
            draws all.
        run: the run that has the factors, I of them or none.

    Raises:
        ValueError: an unknown factor or component, or an array of another shape or type.
    """
    sizes = np.array(run.recipe.factors, dtype=np.int64)
    wanted = np.full((n, len(sizes)), -1)
    if codes is None:
        return torch.from_numpy(wanted)
    if isinstance(codes, Mapping):
        for factor, component in components_of("codes", codes.items(), run).items():
            wanted[:, factor] = component
        return torch.from_numpy(wanted)
    given = np.asarray(codes)
    if given.dtype.kind not in "iu" or given.shape not in ((len(sizes),), wanted.shape):
        raise ValueError(
            f"codes: expected a dictionary or integers [{len(sizes)}] or {list(wanted.shape)}, "
            f"got {given.dtype} {list(given.shape)}"
        )
    if (given < -1).any() or (given >= sizes).any():
        raise ValueError(f"codes: expected components below {sizes.tolist()}, or -1 to draw them")
    wanted[:] = given
    return torch.from_numpy(wanted)


def values_of(factor: int, components: np.ndarray, run: "Run") -> np.ndarray:
    """Values that components [n] of a factor stand for: names if there are any, else numbers.

    A value without a name has its number for one.
    """
    size = run.recipe.num_values[factor]
    names, values = run.recipe.component_names(factor), components % size
    if not names:
        return values
    return np.array([*names, *map(str, range(len(names), size))])[values]


def rename_all(run: "Run", factor: int, own: str | None, components: Mapping[int, str]) -> "Run":
    """Give a factor and some of its components names, all of them or none; an empty one takes a name away.

    Args:
        run: the run.
        factor: by number.
        own: the factor's name; None leaves it as it is.
        components: component, by number → its name.

    Returns:
        The run with all names that its folder has now.

    Raises:
        FileNotFoundError: the folder no longer exists.
        ValueError: there is no such factor or component, it cannot have this name, or ``own`` is not the
            label of a factor that was trained on one.
    """
    sizes = run.recipe.num_values
    check_component(sizes, factor, *components)
    names = {one: dict(of_factor) for one, of_factor in read_names(run.folder, sizes).items()}
    of_factor, of_factors = names.setdefault(factor, {}), names.setdefault(OWN_NAMES, {})
    for component in components:
        of_factor.pop(component, None)
    for component, name in components.items():
        if name := name.strip():
            check_name(name, component)
            if name in _named(run, names).recipe.component_names(factor):
                raise ValueError(f"name: another component of the factor is called '{name}' already")
            of_factor[component] = name
    if own is not None:
        of_factors.pop(factor, None)
        present = _named(run, names).recipe.factor_names
        if (own := own.strip()) and own != present[factor]:
            check_name(own, factor)
            if factor in run.recipe.labelled:
                raise ValueError(f"name: factor {factor} has that of its label, '{present[factor]}'")
            if own in present:
                raise ValueError(f"name: another factor is called '{own}' already")
            of_factors[factor] = own
    names = {one: of for one, of in names.items() if of}
    content = json.dumps(as_json(names), indent=1, ensure_ascii=False) + "\n"
    checkpoint.write_atomically(run.folder / NAMES, lambda path: path.write_text(content, encoding="utf-8"))
    return _named(run, names)


def _named(run: "Run", names: Mapping[int, Mapping[int, str]]) -> "Run":
    return replace(run, recipe=replace(run.recipe, given_names=names))


def read_names(folder: Path, sizes: Sequence[int]) -> Names:
    """Read the names of a run's components; there are none without the file.

    Args:
        folder: of the run.
        sizes: K_i of each factor.

    Raises:
        ValueError: the file is damaged, or names a component that there is not.
    """
    try:
        found = read_json(folder / NAMES)
    except FileNotFoundError:
        return {}
    return parse_names(found, sizes)


def parse_names(found: Any, sizes: Sequence[int]) -> Names:
    """Names as JSON has them, with their numbers; arguments and errors as for :func:`read_names`."""
    check_type(NAMES, found, dict[str, dict[str, str]])
    names = {
        OWN_NAMES if factor == FACTORS else int(factor): {int(k): name for k, name in of.items()}
        for factor, of in found.items()
    }
    for factor, of_factor in names.items():
        if factor == OWN_NAMES:
            for named in of_factor:
                check_component(sizes, named)
        else:
            check_component(sizes, factor, *of_factor)
        for component, name in of_factor.items():
            check_name(name, component)
    return names


def as_json(names: Names) -> dict[str, Mapping[int, str]]:
    """Names as :func:`parse_names` takes them."""
    return {FACTORS if one == OWN_NAMES else str(one): of for one, of in names.items()}


def check_component(sizes: Sequence[int], factor: int, *components: int) -> None:
    """Raise ValueError unless there is this factor, and it has these components."""
    if not 0 <= factor < len(sizes):
        raise ValueError(f"factor: expected 0..{len(sizes) - 1}, got {factor}")
    for component in components:
        if not 0 <= component < sizes[factor]:
            raise ValueError(
                f"component: expected 0..{sizes[factor] - 1} of factor {factor}, got {component}"
            )


def check_name(name: str, component: int) -> None:
    """Raise ValueError unless a component may have this name.

    Numbers stand for components themselves, so that a component may have no other number than its own.
    """
    if not name.strip() or len(name) > LONGEST or set(name) & set(RESERVED):
        raise ValueError(
            f"name: expected 1 to {LONGEST} characters without {' '.join(RESERVED)}, got '{name}'"
        )
    check_printable([name], "name")
    if name.isdecimal() and name != str(component):
        raise ValueError(f"name: expected no number, which would be another component's, got '{name}'")
