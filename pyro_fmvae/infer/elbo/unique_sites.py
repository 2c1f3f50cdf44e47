"""Names that a program gives to two sites or plates."""

import re
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unique_sites(program: str, advice: str) -> Iterator[None]:
    """Say which program has a site twice, where Pyro says only that there is one.

    Args:
        program: "model" or "guide".
        advice: what to do about it.

    Raises:
        ValueError: Pyro found the same name twice within the block.
    """
    try:
        yield
    except RuntimeError as error:
        twice = re.match("Multiple sample sites named '(.*)'", str(error))
        if twice is None:
            raise
        raise ValueError(f"site or plate '{twice[1]}': the {program} has it twice. {advice}") from error
