"""Checks of the distributions at single sites."""

from textwrap import shorten
from typing import Any

import torch
from pyro.distributions import MaskedDistribution
from pyro.distributions.util import broadcast_shape
from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import Independent
from torch.nn.functional import pad

from pyro_fmvae.distributions import Label, NaturalDistribution
from pyro_fmvae.distributions.chunks import Sequences
from pyro_fmvae.distributions.columns import is_masked
from pyro_fmvae.distributions.exponential_family import unwrap
from pyro_fmvae.distributions.gaussian_chain import GaussianChunks, GaussianPath
from pyro_fmvae.distributions.hidden_markov import HiddenMarkov
from pyro_fmvae.distributions.linear_dynamics import LinearDynamics, LinearGaussianChain
from pyro_fmvae.infer.elbo.lazy import is_lazy
from pyro_fmvae.infer.elbo.structure import (
    MixtureSites,
    Site,
    Structure,
    check_is_tensor,
    enum_dim,
    sample_sites,
)

# Checks of observed values, with both shapes in the message.


def check_observed(site: dict[str, Any]) -> None:
    """Refuse an observed value that does not fit the distribution at its site.

    Raises:
        ValueError: it is no tensor, or its shape does not broadcast to that of the distribution, or (at a
            site with recognised parents) its events have another shape. The message has both shapes.
    """
    name, fn, value = site["name"], site["fn"], site["value"]
    check_is_tensor(site)
    events = len(fn.event_shape)
    same_events = value.shape[value.dim() - events :] == fn.event_shape if value.dim() >= events else False
    try:
        fits = broadcast_shape(value.shape, fn.shape()) == fn.shape()
    except ValueError:
        fits = False
    if fits and (same_events or not hasattr(fn, "parents")):
        return
    plates = ", ".join(f"'{f.name}' of size {f.size}" for f in site["cond_indep_stack"] if f.dim is not None)
    where = f"in plate {plates}" if plates else "in no plate"
    shared = len(fn.batch_shape) and value.dim() > 1 and value.shape[:1] == fn.batch_shape[-1:]
    if is_lazy(value) and value.dim() > len(fn.shape()):  # obs=x - locs[z], over all values of z
        advice = (
            "observe data alone, and give the distribution what a discrete site picks, as in "
            "dist.Normal(locs[z], scale)"
        )
    elif shared and not events and not hasattr(fn, "parents"):
        advice = (
            f"data points of shape {tuple(value.shape[1:])} are events: give the parameters these "
            "dimensions, and write .to_event(1) at their site and at this one"
        )
    elif same_events:
        advice = "for a batch write pyro.plate(name, N, subsample=batch), for all data a plate of their size"
    elif value.shape == fn.shape()[:-1] and fn.event_shape == (1,):
        advice = "single numbers become events by value.unsqueeze(-1)"
    else:
        advice = f"give events of shape {tuple(fn.event_shape)}, or parameters of another size"
    raise ValueError(
        f"site '{name}': its value is of shape {tuple(value.shape)}, but {type(fn).__name__} {where} has the "
        f"batch shape {tuple(fn.batch_shape)} and the event shape {tuple(fn.event_shape)}: {advice}"
    )


def check_support(site: dict[str, Any]) -> None:
    """Refuse observed numbers outside of a plain distribution's support, while validation is on.

    What is masked may be anything.

    Raises:
        ValueError: with the name of the site, and the support.
    """
    name, fn, value = site["name"], site["fn"], site["value"]
    if not fn._validate_args or hasattr(fn, "parents") or not value.numel() or is_lazy(value):
        return
    inside = fn.support.check(value)
    if not value.sum().isfinite():  # one of them is not, or they are huge
        finite = value.isfinite()
        for _ in range(fn.event_dim):
            finite = finite.all(-1)
        inside = inside & finite
    if site["mask"] is not None:
        inside = inside | ~torch.as_tensor(site["mask"], device=value.device)
    if not is_lazy(inside) and not inside.all():
        raise ValueError(
            f"site '{name}': {int((~inside).sum())} of its {inside.numel()} observed values are not finite "
            f"or outside of the support of {type(unwrap(fn)).__name__}, "
            f"{shorten(str(fn.support), 100, placeholder=' …')}"
        )


# Masks of sites, of distributions, and of the steps of latent sequences.


def take_masks(model: Trace, guide: Trace) -> None:
    """Make masks of distributions those of their sites, as ``poutine.mask`` does.

    A latent that is masked in the model would else have no density there, but still one in the guide. Where a
    guide has independent steps, states of linear dynamics after the end of a sequence lose their density: it
    would only loosen the bound.

    Raises:
        ValueError: a shorthand is masked, which is recognised by its class.
    """
    for trace in (model, guide):
        for site in sample_sites(trace).values():
            while isinstance(fn := site["fn"], MaskedDistribution):
                if hasattr(fn.base_dist, "parents"):
                    raise ValueError(
                        f"site '{site['name']}': {type(fn.base_dist).__name__} may not be wrapped by mask; "
                        "use poutine.mask"
                    )
                mask = torch.as_tensor(fn._mask)
                site["mask"] = mask if site["mask"] is None else mask & site["mask"]
                site["fn"] = fn.base_dist
    for name, site in sample_sites(model).items():
        prior = site["fn"]
        if (
            isinstance(prior, LinearDynamics)
            and name in guide
            and isinstance(guide.nodes[name]["fn"], Independent)
        ):
            site["fn"] = prior.without_ends()


def check_masks(model: Trace, guide: Trace) -> None:
    """Refuse masks with dimensions that are none of their site's plates.

    Raises:
        ValueError: with the name of the site, and both shapes.
    """
    sites = [*sample_sites(model).values(), *sample_sites(guide).values()]
    enumerated = {
        (dim, site["value"].shape[dim - site["fn"].event_dim])
        for site in sites
        if (dim := enum_dim(site)) is not None
    }
    for site in sites:
        shape = site["mask"].shape if isinstance(site["mask"], Tensor) else ()
        sizes: dict[int, int] = {f.dim: f.size for f in site["cond_indep_stack"] if f.vectorized}
        dims = range(-len(shape), 0)
        if all(shape[d] in (1, sizes.get(d, 1)) or (d, shape[d]) in enumerated for d in dims):
            continue
        plates = tuple(sizes.get(dim, 1) for dim in range(min(sizes, default=0), 0))
        raise ValueError(
            f"site '{site['name']}': its mask is of shape {tuple(shape)}, but its plates of {plates}; mask "
            "only sites in the plate that the mask is of; for parts of an event, such as steps of a "
            "sequence, mask the distribution before to_event, or the emissions of a chain"
        )


def watch_missing(model: Trace) -> None:
    """Make ``backward()`` fail if the loss depends on draws at missing steps of a latent sequence."""
    for site in sample_sites(model).values():
        if not site["is_observed"]:
            _watch(site)


def _watch(site: Site) -> None:
    name, present, value = site["name"], _present(site), site["value"]
    if present is None or not value.requires_grad:
        return
    if isinstance(unwrap(site["fn"]), LinearDynamics):  # the first that counts may depend on the last one
        present = present | pad(present[..., 1:], (0, 1))
    missing = ~present[(..., *(None,) * (site["fn"].event_dim - 1))]

    def check(slope: Tensor) -> None:  # to hold the site would keep its value, and all that this comes from
        if (missing & (slope != 0)).any():
            raise ValueError(
                f"site '{name}': the loss depends on its draws at steps that are missing; mask what "
                "is observed there, too"
            )

    value.register_hook(check)


def _present(site: Site) -> Tensor | None:
    """The steps of a latent sequence that count, bool [..., T]; None if all do."""
    prior = unwrap(site["fn"])
    try:
        return prior.present if isinstance(prior, Sequences) else None
    except ValueError as error:
        raise ValueError(f"site '{site['name']}': {error}") from None


class _Counted(MaskedDistribution):
    """A masked distribution with the entropy of what is not masked out."""

    def entropy(self) -> Tensor:
        """In nats, of the batch shape."""
        entropy: Tensor = torch.where(self._mask, self.base_dist.entropy(), 0.0)
        return entropy


def counted(site: Site, q: Any) -> Any:
    """The guide's distribution q of a latent, where the model has a density: not at steps that are missing.

    Draws are those of q.

    Raises:
        ValueError: parts of a latent are masked in a way that q can't follow; the message names the site.
    """
    name, prior, inner = site["name"], unwrap(site["fn"]), unwrap(q)
    if isinstance(inner, GaussianPath) and isinstance(prior, LinearDynamics):
        if isinstance(inner.chain, GaussianChunks) != (prior.spans is not None):
            raise ValueError(
                f"site '{name}': call of_chunks on the dynamics in both model and guide, or in neither"
            )
        return q
    if not isinstance(prior, Sequences):
        if is_masked(site["fn"]) and not is_masked(q):
            raise ValueError(
                f"site '{name}': parts of its event are masked in the model, but not in the guide; mask them "
                "in both"
            )
        return q
    present = _present(site)
    if present is None or (isinstance(prior, LinearDynamics) and prior.spans is None):
        return q
    if not (isinstance(q, Independent) and q.reinterpreted_batch_ndims):
        raise ValueError(
            f"site '{name}': steps are missing, but {type(q).__name__} in the guide is a distribution of all "
            "steps together; give it one of independent steps, as Normal(...).to_event(2)"
        )
    steps: Any = q.base_dist
    return _Counted(steps.to_event(q.reinterpreted_batch_ndims - 1), present).to_event(1)


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
