"""The seed of a command's random numbers."""

from jsonargparse import ArgumentParser

from pyro_fmvae.recipes.ranges import LARGEST


def add_seed(parser: ArgumentParser, of: str = "of the draws") -> None:
    """Add ``--seed``; ``of`` says in its help what it is the seed of."""
    parser.add_argument("--seed", type=int, default=0, help=of)


def check_seed(seed: int) -> None:
    """Check that random generators accept a seed.

    Raises:
        ValueError: they do not.
    """
    if not 0 <= seed <= LARGEST:
        raise ValueError(f"seed: expected a number in 0..{LARGEST}, got {seed}")
