"""The natural posteriors of a plain program's sites, and their expectations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from pyro_fmvae.distributions import NaturalDistribution, NaturalParameter
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.distributions.joint_kinds import kind_of_part
from pyro_fmvae.infer.elbo.expectation import Moments
from pyro_fmvae.infer.elbo.gradient_scale import with_gradient_divided
from pyro_fmvae.infer.elbo.joint_moments import JointMoments, joint_moments
from pyro_fmvae.infer.elbo.structure import Site


@dataclass
class PlainPosteriors:
    """Natural posteriors by the names of their sites.

    Args:
        sites, guide_sites: of the model and of the guide, by name.
        kl_weight: weight of the terms of drawn latents of single data points.
    """

    sites: Mapping[str, Site]
    guide_sites: Mapping[str, Site]
    kl_weight: float | Tensor = 1.0

    def is_natural(self, name: str) -> bool:
        """True for a site that the guide gives a natural posterior."""
        return name in self.guide_sites and isinstance(
            unwrap(self.guide_sites[name]["fn"]), NaturalDistribution
        )

    def parameters(self) -> dict[str, NaturalParameter]:
        """The natural parameters of sites, where these are parameters themselves."""
        natural: Any = {
            name: unwrap(self.guide_sites[name]["fn"]) for name in filter(self.is_natural, self.sites)
        }
        found = {name: q.natural for name, q in natural.items()}
        return {name: natural for name, natural in found.items() if isinstance(natural, NaturalParameter)}

    def of(self, name: str) -> Any:
        """The natural posterior of a site, with the natural gradient of the unscaled site."""
        return with_gradient_divided(self.guide_sites[name]["fn"], self.sites[name]["scale"])

    def of_weighted(self, name: str) -> Any:
        """The natural posterior for terms that get ``kl_weight``, which its gradient is divided by."""
        return with_gradient_divided(self.of(name), self.kl_weight)

    @cached_property
    def moments(self) -> dict[str, Any]:
        """E[t] of every site with a natural posterior, one and the same for both sites of a joint one."""
        return self._moments(self.of)

    @cached_property
    def divided(self) -> dict[str, Any]:
        """The moments for terms that get ``kl_weight``: see :meth:`of_weighted`."""
        return self._moments(self.of_weighted)

    def _moments(self, posterior: Callable[[str], Any]) -> dict[str, Any]:
        moments: dict[str, Any] = {}
        for name, site in self.sites.items():
            if not self.is_natural(name):
                continue
            q: Any = unwrap(posterior(name))
            shape, kind = site["value"].shape, kind_of_part(q)
            stats = q.expected_stats().expand(*q.batch_shape, -1)
            about = len(shape) - site["fn"].event_dim, site["value"].dtype, q.natural
            if kind is None:
                moments[name] = Moments(q.family, stats, shape).centred(*about)
            elif q.given is not None:
                precision = q.given.origin.name
                joint = joint_moments(name, precision, kind, stats, shape).centred(*about)
                moments |= {name: joint, precision: joint}
        return moments

    def centres(self) -> dict[str, Tensor]:
        """Numbers that are subtracted from the values of locations, by site."""
        return {
            name: own.centre
            for name, own in self.moments.items()
            if own.centre is not None and not (isinstance(own, JointMoments) and name == own.precision)
        }
