"""The sites of an autoguide that have joint posteriors: a location and its precision share one module."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.distributions.joint_kinds import JointKind

Starts = dict[str, tuple[type[NaturalDistribution], Tensor]]


class JointSites:
    """Which sites have joint posteriors.

    Args:
        pairs: name of a location → the name of its precision, and the kind of their posterior.
    """

    def __init__(self, pairs: Mapping[str, tuple[str, JointKind]]) -> None:
        self._pairs = dict(pairs)
        self._locations = {precision: location for location, (precision, _) in self._pairs.items()}

    @property
    def precisions(self) -> dict[str, str]:
        """Name of a location → the name of its precision."""
        return {location: precision for location, (precision, _) in self._pairs.items()}

    def owner(self, name: str) -> str:
        """The site under whose name the posterior of a site is kept: that of the location."""
        return self._locations.get(name, name)

    def join(self, starts: Starts) -> Starts:
        """The classes and natural parameters of posteriors from those of independent ones."""
        joined = dict(starts)
        for location, (precision, joint) in self._pairs.items():
            joined[location] = joint.kind, joint.together(starts[location][1], joined.pop(precision)[1])
        return joined

    def distribution(self, name: str, posterior: Any, values: Mapping[str, Tensor]) -> Any:
        """The distribution that a guide samples a site from.

        Args:
            name: of the site.
            posterior: the distribution of its module, which may be a joint one.
            values: of the sites that were sampled before.

        Raises:
            ValueError: a joint posterior that is not in natural parameters.
        """
        location = self.owner(name)
        if location not in self._pairs:
            return posterior
        precision, joint = self._pairs[location]
        if not isinstance(posterior, NaturalDistribution):
            raise ValueError(
                f"the joint posterior of '{location}' and '{precision}' was replaced by another than a "
                "natural one; leave it in natural parameters, or make the guide with structured=False"
            )
        part = joint.parts[name == precision]
        return part(posterior.natural, posterior.dtype, given=values.get(precision))

    def marginal(self, name: str, posterior: Any) -> Distribution:
        """The distribution of a site by itself; arguments as for :meth:`distribution`."""
        location = self.owner(name)
        if location not in self._pairs:
            return posterior
        precision, joint = self._pairs[location]
        return joint.marginals(posterior)[name == precision]
