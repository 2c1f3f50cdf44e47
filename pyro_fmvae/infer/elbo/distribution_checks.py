"""Checks of the distributions at single sites."""

from typing import Any

from pyro_fmvae.distributions.expected_log_prob import unwrap


def check_unwrapped(site: dict[str, Any]) -> None:
    """Raise a ValueError if a distribution that remembers its parents is wrapped."""
    fn = site["fn"]
    if not hasattr(fn, "parents") and hasattr(unwrap(fn), "parents"):
        raise ValueError(
            f"site '{site['name']}': {type(unwrap(fn)).__name__} may not be wrapped by to_event; use a plate"
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
