"""Options with the defaults that data call for."""

from pyro_fmvae.app.recipes.registry import configure, recipe_named, recipe_of, resolved
from pyro_fmvae.data import Kind, Preprocessing


def resolve(config, data):
    """A configuration with every default that depends on the data."""
    return recipe_of(config).resolve(config, data)


def build(config, data):
    """The untrained model of a configuration for these data."""
    return resolved(config, data).build()


def recipe(model, shape=(2, 3), kind=Kind.BINARY, **options):
    """A recipe whose options are as given, for data of 20 points."""
    return recipe_named(model)(
        configure(model, **{"data": "mine.npz", **options}), Preprocessing(kind, shape), 20
    )
