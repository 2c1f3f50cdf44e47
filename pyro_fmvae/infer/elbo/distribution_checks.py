"""Checks of the distributions at single sites."""

from typing import Any

from pyro.poutine import Trace

from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.distributions.hidden_markov import HiddenMarkov
from pyro_fmvae.distributions.linear_dynamics import LinearDynamics
from pyro_fmvae.distributions.linear_gaussian_chain import LinearGaussianChain

CHAINS = HiddenMarkov, LinearGaussianChain, LinearDynamics


def check_distribution(site: dict[str, Any]) -> None:
    """Raise a ValueError if a distribution with parents is wrapped."""
    fn = site["fn"]
    inner = unwrap(fn)
    if not hasattr(fn, "parents") and hasattr(inner, "parents"):
        raise ValueError(
            f"site '{site['name']}': {type(inner).__name__} may not be wrapped by to_event; use a plate"
        )


def check_particles(model: Trace) -> None:
    """Raise a ValueError if a model has a chain, which has no dimension for vectorised particles."""
    for name, site in model.nodes.items():
        if site["type"] == "sample" and isinstance(unwrap(site["fn"]), CHAINS):
            raise ValueError(
                f"site '{name}': {type(unwrap(site['fn'])).__name__} takes the particles' dimension for that "
                "of its steps; leave out vectorize_particles"
            )


def check_shapes(site: dict[str, Any], guide_site: dict[str, Any]) -> None:
    """Raise a ValueError if a site has other shapes in the guide than in the model."""
    shapes = [(fn.batch_shape, fn.event_shape) for fn in (site["fn"], guide_site["fn"])]
    if shapes[0] != shapes[1]:
        (batch, event), (guide_batch, guide_event) = shapes
        raise ValueError(
            f"site '{site['name']}': batch and event shape are {tuple(batch)} and {tuple(event)} in the "
            f"model but {tuple(guide_batch)} and {tuple(guide_event)} in the guide; give it the same plates "
            "and the same to_event in both"
        )
