"""The conjugate sites of a model, as its autoguide needs them."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Any

import pyro.poutine as poutine
import torch
from pyro.poutine.indep_messenger import CondIndepStackFrame
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions import MixtureComponent, NaturalDistribution
from pyro_fmvae.distributions.exponential_family import (
    natural_class,
    natural_class_named,
    natural_prior,
    unwrap,
)
from pyro_fmvae.distributions.joint_parts import MOST_TOGETHER, JointKind, NormalBlock, joint_kind_of
from pyro_fmvae.infer.elbo.recognition import (
    Recognised,
    hidden_in_plate,
    no_wider,
    recognise_conjugacy,
    spreads_of_data,
)
from pyro_fmvae.infer.elbo.structure import Site, has_shorthand, is_discrete, is_latent
from pyro_fmvae.infer.local_sites import LocalSite, local_sites
from pyro_fmvae.infer.posteriors import ConjugatePosterior, NaturalPosterior, random_posterior

# The sites of an autoguide that have joint posteriors: a location and its precision share one module.

Starts = dict[str, tuple[type[NaturalDistribution], Tensor]]


class JointSites:
    """Which sites have joint posteriors.

    Args:
        pairs: name of a location → the name of its precision, and the kind of their posterior.
        blocks: sites with one Normal posterior.
    """

    def __init__(
        self, pairs: Mapping[str, tuple[str, JointKind]], blocks: Sequence[NormalBlock] = ()
    ) -> None:
        self._pairs, self.blocks = dict(pairs), list(blocks)
        self._inside = {name: block for block in blocks for name in block.names}
        self._locations = {precision: location for location, (precision, _) in self._pairs.items()}

    @property
    def precisions(self) -> dict[str, str]:
        """Name of a location → the name of its precision."""
        return {location: precision for location, (precision, _) in self._pairs.items()}

    def owner(self, name: str) -> str:
        """The site under whose name a posterior is kept: that of the location, or the first of a block."""
        if name in self._inside:
            return self._inside[name].names[0]
        return self._locations.get(name, name)

    def join(self, starts: Starts) -> Starts:
        """The classes and natural parameters of posteriors from those of independent ones."""
        joined = dict(starts)
        for location, (precision, joint) in self._pairs.items():
            joined[location] = joint.kind, joint.together(starts[location][1], joined.pop(precision)[1])
        for block in self.blocks:
            parts = {name: joined.pop(name) for name in block.names}
            joined[block.names[0]] = (
                block.kind,
                block.natural({n: kind(own) for n, (kind, own) in parts.items()}),
            )
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
        location, block = self.owner(name), self._inside.get(name)
        if block is None and location not in self._pairs:
            return posterior
        if not isinstance(posterior, NaturalDistribution):
            others = block.names[1:] if block else [self._pairs[location][0]]
            option = "joint=()" if block else "structured=False"
            raise ValueError(
                f"the joint posterior of '{location}' and '{others[-1]}' was replaced by another than a "
                f"natural one; leave it in natural parameters, or make the guide with {option}"
            )
        if block is not None:
            return block.part(name, posterior.natural, posterior.dtype, values)
        precision, joint = self._pairs[location]
        part = joint.parts[name == precision]
        return part(posterior.natural, posterior.dtype, given=values.get(precision))

    def marginal(self, name: str, posterior: Any) -> Distribution:
        """The distribution of a site by itself; arguments as for :meth:`distribution`."""
        location = self.owner(name)
        if name in self._inside:
            return self._inside[name].marginal(name, posterior.natural, posterior.dtype)
        if location not in self._pairs:
            return posterior
        precision, joint = self._pairs[location]
        return joint.marginals(posterior)[name == precision]


def _is_normal(found: Recognised, name: str) -> bool:
    return found.kinds[name].family.monomials == NormalBlock.kind.family.monomials


def blocks_of(
    found: Recognised, joint: str | Sequence[Sequence[str]], names: Sequence[str]
) -> list[NormalBlock]:
    """The sites that get one Normal posterior.

    Args:
        found: of the model.
        joint: "auto" for all that depend on each other, up to 256 numbers each where their precision matrix
            is dense, or lists of names.
        names: of the sites that may.

    Raises:
        ValueError: another argument, a site in two lists, or sites not jointly Normal given the rest.
    """
    if joint != "auto" and any(isinstance(block, str) for block in joint):
        raise ValueError(f"joint: expected 'auto' or lists of names of sites, got {joint!r}")
    sites, couplings = found.sites, found.couplings
    plain = [name for name in names if sites[name]["mask"] is None and sites[name]["scale"] == 1]
    if joint == "auto":
        wanted = couplings.blocks(plain)
    else:
        wanted = [[name for name in names if name in set(block)] for block in joint if block]
        counts = Counter(chain.from_iterable(joint))
        for block, given in zip(wanted, filter(None, joint), strict=True):
            missing = [name for name in given if name not in plain or counts[name] > 1]
            apart = [p for p in combinations(block, 2) if frozenset(p) in couplings.other]
            if missing or apart or not all(_is_normal(found, name) for name in block):
                pair = " and ".join(f"'{name}'" for name in (missing or (apart[0] if apart else given)))
                raise ValueError(
                    "joint: expected conjugate sites that are jointly Normal given all others, each in one "
                    f"list, got {pair}"
                )
    limit = MOST_TOGETHER if joint == "auto" else math.inf
    blocks = [couplings.block(each, limit) for each in wanted]
    return [block for block in blocks if block is not None]


# An autoguide's first run of its model: values for its sites, and what they are refused for.

NO_MIXTURE = (
    "model: no site with a conjugate prior is the parent of an Assignment or a component of a mixture (give "
    "it the whole model: none of these may be hidden by poutine.block)"
)


def check_priors(sites: Iterable[Site]) -> None:
    """Refuse priors of the components of shorthands, where there are no shorthands."""
    kinds = [natural_class(unwrap(site["fn"])) for site in sites if not site["is_observed"]]
    if any(kind is not None and not kind.family.monomials for kind in kinds):
        raise ValueError(NO_MIXTURE)


def check_whole(site: Site) -> None:
    """Refuse a site in a subsampled plate."""
    reason = hidden_in_plate(site)
    if reason is not None:
        raise ValueError(f"site '{site['name']}': {reason}")


def harmless_value(site: Site) -> Tensor:
    """Prior means for conjugate sites (draws from vague priors overflow) if they are finite, else draws."""
    if natural_class(unwrap(site["fn"])) is not None:
        mean = site["fn"].mean
        if mean.isfinite().all():  # that of an inverse Gamma with a <= 1 is not
            return mean.expand(site["fn"].shape())
    with torch.no_grad():
        return site["fn"].sample()


_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


@dataclass
class ConjugateSites:
    """The sites.

    Attributes:
        sites: by name, in the order of the model: their plates and numbers of event dimensions.
        priors: of these sites.
        mixtures: name of a mixture's points → names of its weights and components, event shape of a point.
        joint: which sites have joint posteriors.
        local: latents of single data points, which are none of ``sites``.
    """

    sites: dict[str, Site] = field(default_factory=dict)
    priors: dict[str, NaturalDistribution] = field(default_factory=dict)
    mixtures: dict[str, tuple[str, str, torch.Size]] = field(default_factory=dict)
    joint: JointSites = field(default_factory=lambda: JointSites({}))
    local: dict[str, LocalSite] = field(default_factory=dict)

    def described(self, posteriors: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """Describe all but λ that draws from the posteriors need, in lists, words and numbers.

        Args:
            posteriors: by name.
        """
        return {
            "sites": {name: [s["event_dim"], list(s["cond_indep_stack"])] for name, s in self.sites.items()},
            "joint": self.joint.precisions,
            "blocks": [block.described() for block in self.joint.blocks],
            "posteriors": {
                name: [
                    posterior.kind.__name__,
                    posterior.dtype and str(posterior.dtype).removeprefix("torch."),
                ]
                for name, posterior in posteriors
            },
        }

    @classmethod
    def of_description(cls, description: Any) -> tuple["ConjugateSites", dict[str, Any]]:
        """The sites without their priors, and the class and dtype of posteriors by name.

        Args:
            description: of :meth:`described`.

        Raises:
            ValueError: a class of posteriors that is not there.
        """
        sites = {
            name: {"event_dim": events, "cond_indep_stack": tuple(CondIndepStackFrame(*f) for f in frames)}
            for name, (events, frames) in description["sites"].items()
        }
        kinds = {
            name: (natural_class_named(kind), None if dtype is None else _DTYPES[dtype])
            for name, (kind, dtype) in description["posteriors"].items()
        }
        joint = {
            location: (precision, joint_kind_of(kinds[location][0]))
            for location, precision in description["joint"].items()
        }
        blocks = [NormalBlock.of_description(block) for block in description["blocks"]]
        kinds |= {block.names[0]: (block.kind, kinds[block.names[0]][1]) for block in blocks}
        return cls(sites=sites, joint=JointSites(joint, blocks)), kinds

    def add(self, name: str, site: Site, prior: NaturalDistribution) -> None:
        """Add a site and its prior."""
        self.priors[name] = prior
        frames, events = site["cond_indep_stack"], site["fn"].event_dim
        self.sites[name] = {"cond_indep_stack": frames, "event_dim": events}

    def add_plain(
        self,
        found: Recognised,
        count: float,
        structured: bool,
        local: Collection[str],
        joint: str | Sequence[Sequence[str]] = (),
    ) -> dict[str, ConjugatePosterior]:
        """Add the sites that were recognised; arguments as of the autoguide.

        Returns:
            Posteriors to start with, by name; a joint one by that of the location.

        Raises:
            ValueError: a latent in the ``local`` plates is not conjugate, or there is none.
        """
        starts: Starts = {}
        self.local = local_sites(found, local)
        spreads = spreads_of_data(found.sites.values())
        for name, prior in found.priors.items():
            if name not in self.local:
                start = prior.family.scattered_start(no_wider(prior, spreads), count, None)
                starts[name] = type(prior), start
                self.add(name, found.sites[name], prior)
        pairs = {n: pair for n, pair in found.joint.items() if structured and n in starts}
        apart = {*pairs, *(precision for precision, _ in pairs.values())}
        self.joint = JointSites(
            pairs, blocks_of(found, joint, [name for name in starts if name not in apart])
        )
        for block in self.joint.blocks:  # each of its sites is sampled given those before it
            inside = iter(block.names)
            order = [next(inside) if name in block.names else name for name in self.sites]
            self.sites = {name: self.sites[name] for name in order}
        return {
            name: NaturalPosterior(*start, found.priors[name].dtype)
            for name, start in self.joint.join(starts).items()
        }

    def add_shorthands(
        self,
        sites: dict[str, Site],
        model: Any,
        args: Any,
        kwargs: Any,
        count: float,
        structured: bool,
        local: Collection[str],
        joint: str | Sequence[Sequence[str]] = (),
    ) -> dict[str, ConjugatePosterior]:
        """Add the parents of shorthands, and plain sites beside them.

        Args:
            sites: of the model.
            model, args, kwargs: the program.
            count, structured, local, joint: as of the autoguide.

        Returns:
            As :meth:`add_plain`.

        Raises:
            ValueError: there is no such site, or one inside a plate that is subsampled, or a prior outside
                the domain of its family.
            NotImplementedError: a site has no known conjugate posterior.
        """
        owners = {id(site["value"]): name for name, site in sites.items()}
        wanted = {
            owners.get(id(getattr(site["fn"], argument)))
            for site in sites.values()
            for argument in getattr(site["fn"], "parents", ())
            if argument != "assignment"
        }
        posteriors: dict[str, ConjugatePosterior] = {}
        for name, site in sites.items():
            if name in wanted and not site["is_observed"]:
                check_whole(site)
                try:
                    self.add(name, site, natural_prior(site["fn"]))
                except (NotImplementedError, ValueError) as error:
                    raise type(error)(f"site '{name}': {error}") from None
                posteriors[name] = random_posterior(site["fn"], count)
        known = {n: s["value"] for n, s in sites.items() if n in self.sites or _is_component(s)}
        others = [n for n, s in sites.items() if is_latent(s) and not has_shorthand([s]) and n not in known]
        if others and None not in wanted:
            rest = poutine.condition(model, data=known)
            found = recognise_conjugacy(rest, args, kwargs, local)
            posteriors |= self.add_plain(found, count, structured, local, joint)
        for name, site in sites.items():
            fn = site["fn"]
            if isinstance(fn, MixtureComponent):
                assignment = sites.get(owners.get(id(fn.assignment), ""), {}).get("fn")
                weights = owners.get(id(getattr(assignment, "weights", None)))
                components = owners.get(id(getattr(fn, fn.parents[0])))
                if weights in self.sites and components in self.sites:
                    self.mixtures[name] = weights, components, fn.event_shape
        if not self.sites:
            raise ValueError(NO_MIXTURE)
        return posteriors


def _is_component(site: Site) -> bool:
    return has_shorthand([site]) and not is_discrete(site)
