"""Checks of the distributions at single sites."""

from pyro.poutine import Trace
from torch import Tensor

from pyro_fmvae.distributions import Label, NaturalDistribution
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.distributions.hidden_markov import HiddenMarkov
from pyro_fmvae.distributions.linear_dynamics import LinearDynamics
from pyro_fmvae.distributions.linear_gaussian_chain import LinearGaussianChain
from pyro_fmvae.infer.elbo.structure import MixtureSites, Site, Structure

CHAINS = HiddenMarkov, LinearGaussianChain, LinearDynamics


def check_distribution(site: Site) -> None:
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


def check_shapes(site: Site, guide_site: Site) -> None:
    """Raise a ValueError if a site has other shapes in the guide than in the model."""
    shapes = [(fn.batch_shape, fn.event_shape) for fn in (site["fn"], guide_site["fn"])]
    if shapes[0] != shapes[1]:
        (batch, event), (guide_batch, guide_event) = shapes
        raise ValueError(
            f"site '{site['name']}': batch and event shape are {tuple(batch)} and {tuple(event)} in the "
            f"model but {tuple(guide_batch)} and {tuple(guide_event)} in the guide; give it the same plates "
            "and the same to_event in both"
        )


def check_label(name: str, label: Tensor) -> None:
    """Raise a ValueError if labels are not integers."""
    if label.is_floating_point():
        raise ValueError(
            f"site '{name}': expected integers as labels (-1: unknown), got {label.dtype}; convert them by "
            ".long()"
        )


def check_components(site: Site, argument: str, parent: Site, assignment: str, components: int) -> None:
    """Raise a ValueError if a parent of a mixture's component does not have one value for each of them."""
    name, shape = parent["name"], parent["fn"].batch_shape
    if not shape or shape[-1] != components:
        raise ValueError(
            f"site '{name}': expected {components} components (as many as '{assignment}' has) in its last "
            f"batch dimension, got batch shape {tuple(shape)}; it is argument '{argument}' of site "
            f"'{site['name']}'"
        )
    inside = {frame.name for frame in site["cond_indep_stack"]}
    for frame in parent["cond_indep_stack"]:
        if frame.dim == -1 and frame.name in inside:
            raise ValueError(
                f"site '{name}': components may not lie in plate '{frame.name}', which holds "
                f"'{site['name']}' too; put them into a plate of their own, outside of it"
            )


def check_first_order(mixture: MixtureSites, program: Structure, guide: Trace) -> None:
    """Raise a ValueError if Δ's term would be differentiated with respect to natural parameters."""
    sites = program.model.nodes
    labels = any(isinstance(sites[child.name]["fn"], Label) for child in mixture.children)
    if not (labels or sites[mixture.name]["is_observed"]):
        return
    parents = [*mixture.parents.values()]
    for child in mixture.children:
        parents += child.parents.values()
    for name in parents:
        if isinstance(unwrap(program.posterior(guide, name)), NaturalDistribution):
            raise ValueError(without_natural_step(name))


def without_natural_step(name: str) -> str:
    """The message for a natural posterior that Δ's term would be differentiated with respect to."""
    return (
        f"site '{name}': while label_weight > 0, the posterior of a labelled factor has no natural-gradient "
        "step; give the guide its distribution in standard parameters (to_standard), under a first-order "
        "optimiser"
    )
