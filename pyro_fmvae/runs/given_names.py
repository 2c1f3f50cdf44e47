"""Names that a person gives to factors and components: the file ``names.json`` in a run's folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pyro_fmvae import checkpoint
from pyro_fmvae.recipes.recipe import OWN_NAMES
from pyro_fmvae.untrusted import check_printable, check_type, read_json

NAMES: Final = "names.json"
FACTORS: Final = "factors"
"""Key of the names of factors themselves in that file."""
LONGEST: Final = 60
"""Characters of a name."""
RESERVED: Final = ",=*"
"""Characters by which a command line parts codes and settings."""

Names = Mapping[int, Mapping[int, str]]
"""Factor → component → its name; and `OWN_NAMES` → factor → its name."""


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


def write_names(folder: Path, names: Names) -> None:
    """Write the names of a run's components in one step.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    content = json.dumps(as_json(names), indent=1, ensure_ascii=False) + "\n"
    checkpoint.write_atomically(folder / NAMES, lambda path: path.write_text(content, encoding="utf-8"))


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
