"""The structure of a program: the sites that form mixtures, and the posterior of each of their parents."""

from dataclasses import dataclass, field
from typing import Any

import pyro.distributions as dist
import torch
from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.lazy import is_lazy

Site = dict[str, Any]


@dataclass(frozen=True)
class Child:
    """A site with recognised parents: its name, and the site of each conjugate parent by argument."""

    name: str
    parents: dict[str, str]


@dataclass
class MixtureSites:
    """One assignment site with the site of its weights and everything that hangs on it."""

    name: str
    parents: dict[str, str]
    children: list[Child] = field(default_factory=list)


@dataclass
class Structure:
    """The structure of one pair of traces.

    Attributes:
        model: the model's trace, plates' own sites included.
        mixtures: assignments with their children.
        latents: names of the other unobserved sites, present in the model and in the guide.
        integrated: observed sites whose expected log-density is known in closed form under the posteriors of
            their parents, which are latents.
        observed: names of the other observed sites of the model.
        auxiliary: names of sites that are only in the guide.
        drawn: names of sites that enter at their draws, not by an expectation, because others depend on the
            draws: see :mod:`pyro_fmvae.infer.elbo.used_draws`.
    """

    model: Trace
    mixtures: list[MixtureSites]
    latents: list[str]
    integrated: list[Child]
    observed: list[str]
    auxiliary: list[str]
    drawn: frozenset[str] = frozenset()

    def posterior(self, guide: Trace, name: str) -> Distribution:
        """The distribution that expectations are taken under: the guide's, or a point mass.

        The point mass is at the value of an observed site, with 0 for masked numbers that are not finite, or
        at the draw of a site in ``drawn``.
        """
        site = self.model.nodes[name]
        if site["is_observed"]:
            return dist.Delta(unmasked(site), event_dim=site["fn"].event_dim)
        site = guide.nodes[name]
        return dist.Delta(site["value"], event_dim=site["fn"].event_dim) if name in self.drawn else site["fn"]


def sample_sites(trace: Trace) -> dict[str, Site]:
    """The sample statements of a trace by name, without plates' index sites and deterministic values."""
    return {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample"
        and type(site["fn"]).__name__ != "_Subsample"
        and not site["infer"].get("_deterministic", False)
    }


def unmasked(site: Site) -> Tensor:
    """The value of a site, with zeros for integers and what is not finite where it is masked out."""
    value, mask = site["value"], site["mask"]
    if mask is None or (not value.is_floating_point() and hasattr(site["fn"], "parents")):
        return value
    mask = torch.as_tensor(mask, device=value.device)[(..., *(None,) * site["fn"].event_dim)]
    kept = mask | value.isfinite() if value.is_floating_point() and not is_lazy(value) else mask
    return value.where(kept, value.new_zeros(()))


def auxiliary_sites(guide_sites: dict[str, Site], sites: dict[str, Site]) -> list[str]:
    """Names of the sites of a guide that are not in its model.

    Raises:
        ValueError: one that is not marked as auxiliary, or that can't be drawn with gradients.
    """
    auxiliary = [name for name in guide_sites if name not in sites]
    for name in auxiliary:
        site = guide_sites[name]
        if not (site["infer"].get("is_auxiliary") or site["is_observed"]):
            raise ValueError(
                f"site '{name}': it is in the guide but not in the model; sample it in the model too, or "
                "mark it by infer={'is_auxiliary': True}"
            )
        if not (site["is_observed"] or site["fn"].has_rsample):
            raise ValueError(
                f"site '{name}': {type(unwrap(site['fn'])).__name__} in the guide has no reparameterised "
                "sampler; give it a distribution that has_rsample"
            )
    return auxiliary
