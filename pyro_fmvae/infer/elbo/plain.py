"""The bound of a program in Pyro's own distributions, conjugate or not.

A site that the guide gives a natural posterior is not drawn: the model computes with a value that is not
there, and the expectation of every log-density that it enters is taken term by term. Discrete sites are
summed out over these expectations, by Pyro. Everything else is drawn from the guide, with gradients.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyro.poutine as poutine
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from pyro.poutine.enum_messenger import EnumMessenger
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_fmvae.distributions import Assignment, Label, MixtureComponent, NaturalDistribution
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.density import device_of, dtype_of
from pyro_fmvae.infer.elbo.distribution_checks import check_distribution, check_label, check_shapes
from pyro_fmvae.infer.elbo.enumerated import Enumerated, is_discrete, is_latent
from pyro_fmvae.infer.elbo.frames import check_filled, check_same_points
from pyro_fmvae.infer.elbo.lazy import Lazy, Sampled
from pyro_fmvae.infer.elbo.masks import check_masks, take_masks, watch_missing
from pyro_fmvae.infer.elbo.observed_shapes import check_observed, check_support
from pyro_fmvae.infer.elbo.smoothing import Smoothing
from pyro_fmvae.infer.elbo.structure import (
    Site,
    Structure,
    auxiliary_sites,
    sample_sites,
)
from pyro_fmvae.infer.elbo.trial_runs import at_first_values, check_discrete
from pyro_fmvae.infer.elbo.used_draws import trace_guide


@dataclass
class PlainProgram:
    """One run of a program in which not all that is integrated or summed out belongs to shorthands.

    Attributes:
        structure: its sites, in the form that single terms are computed from.
        plates: the number of dimensions that plates take.
        identities: see :class:`Expansion`.
        used: names of sites whose draws the guide itself uses.
        points: name of a plate → a weight for each of its points, if they are to be told apart.
    """

    structure: Structure
    plates: int
    identities: dict[Hashable, bool]
    used: frozenset[str] = frozenset()
    points: dict[str, Tensor] = field(default_factory=dict)

    @property
    def model(self) -> Trace:
        """The model's trace."""
        return self.structure.model


class Undrawn(Messenger):
    """Puts a :class:`Lazy` in the place of every draw from a natural posterior.

    Args:
        leaves: True to do so with every continuous site that nobody has drawn yet. In a model run against its
            guide, nothing may depend on these.
    """

    def __init__(self, leaves: bool = False) -> None:
        super().__init__()
        self._leaves = leaves

    def _pyro_sample(self, msg: Any) -> None:
        check_filled(msg)
        if msg["done"] or not is_latent(msg):
            return
        fn: Any = unwrap(msg["fn"])
        if isinstance(fn, NaturalDistribution):
            dtype, device = fn.dtype, fn.natural.device
        elif self._leaves and not is_discrete(msg):
            dtype, device = dtype_of(fn), device_of(fn)
        else:
            return
        support: Any = fn.support
        origin = Sampled(msg["name"], support)
        msg["value"], msg["done"] = Lazy.make(msg["fn"].shape(), dtype, device, origin), True


def run_plain(
    model: Any,
    guide: Any,
    args: Any,
    kwargs: Any,
    plates: int,
    identities: dict[Hashable, bool],
    whole: dict[str, Tensor],
) -> tuple[PlainProgram, Trace]:
    """Run the guide, and the model against it with its discrete sites enumerated.

    Args:
        model, guide, args, kwargs: the program.
        plates: the number of dimensions that its plates take.
        identities: see :class:`Expansion`.
        whole: see :func:`check_same_points`.

    Raises:
        ValueError: a program that is not of a recognised shape; the message names the site.
    """
    with Undrawn(), Smoothing():
        guide_trace, used = trace_guide(guide, args, kwargs)
    drawn = without_discrete(guide_trace)
    enumeration = EnumMessenger(first_available_dim=-1 - plates)
    checked = SamePlates(guide_trace)
    with Undrawn(leaves=True), poutine.replay(trace=drawn), enumeration, Enumerated(), checked:
        trace = poutine.trace(model).get_trace(*args, **kwargs)
    take_masks(trace, guide_trace)
    check_masks(trace, guide_trace)
    if is_validation_enabled():
        watch_missing(trace)
    sites, guide_sites = sample_sites(trace), sample_sites(guide_trace)
    for name, site in sites.items():
        _check_shorthand(site)
        if site["is_observed"]:
            check_observed(site)
            check_support(site)
        if name in guide_sites:
            q = guide_sites[name]
            check_shapes(
                _without_enumeration(site, plates), _without_enumeration(q, len(q["fn"].batch_shape))
            )
            if is_discrete(site):
                _check_discrete(site, q, name in used)
            for frame in site["cond_indep_stack"] if q["infer"].get("kept") else ():
                if frame.vectorized and frame.name in trace.nodes and frame.size == frame.full_size:
                    check_same_points(name, frame.name, trace.nodes[frame.name]["value"], whole)
    latents = [name for name, site in sites.items() if not site["is_observed"]]
    observed = [name for name, site in sites.items() if site["is_observed"]]
    structure = Structure(trace, [], latents, [], observed, auxiliary_sites(guide_sites, sites))
    return PlainProgram(structure, plates, identities, frozenset(used)), guide_trace


def _check_shorthand(site: Site) -> None:
    """Refuse shorthands that have no formula by component."""
    check_distribution(site)
    name, fn = site["name"], site["fn"]
    if isinstance(fn, Label) and site["is_observed"]:
        check_label(name, site["value"])
    if hasattr(fn, "parents") and not isinstance(fn, Assignment | Label | MixtureComponent):
        raise ValueError(
            f"site '{name}': {type(fn).__name__} may not be mixed with plain sites that are enumerated or "
            "have natural posteriors of their own; write its density with Pyro's own distributions too"
        )


def without_discrete(guide: Trace) -> Trace:
    """A trace of the guide to replay the model against, in which discrete sites are enumerated anew."""
    drawn = Trace()
    for name, site in guide.nodes.items():
        if site["type"] != "sample" or not is_discrete(site):
            drawn.add_node(name, **site)
    return drawn


class SamePlates(Messenger):
    """Refuses a plate of another size in the guide, which Pyro's replay would take for a subsample.

    Args:
        guide: its trace.
    """

    def __init__(self, guide: Trace) -> None:
        super().__init__()
        self._guide = sample_sites(guide)

    def _pyro_sample(self, msg: Any) -> None:
        name = msg["name"]
        frames = self._guide[name]["cond_indep_stack"] if name in self._guide else ()
        sizes = {frame.name: frame.full_size for frame in frames}
        for frame in msg["cond_indep_stack"]:
            size = sizes.get(frame.name, frame.full_size)
            if size != frame.full_size:
                raise ValueError(
                    f"site '{name}': plate '{frame.name}' is of size {frame.full_size} in the model but "
                    f"{size} in the guide; give it the same size in both. A guide such as AutoConjugate has "
                    "the sizes of its first call: make a new one for other data"
                )


def _check_discrete(site: Site, q: Site, is_used: bool) -> None:
    """Refuse what a guide may not do with a discrete site, whose probabilities are all that it can give."""
    name, fn = site["name"], unwrap(q["fn"])
    if is_used:
        raise ValueError(
            f"site '{name}': the guide uses its draw, but the site is summed out; compute from its "
            "probabilities instead, or leave it out of the guide"
        )
    values = len(site["fn"].enumerate_support(expand=False))
    found = len(fn.enumerate_support(expand=False)) if fn.has_enumerate_support else "no finite number"
    if values != found:
        raise ValueError(
            f"site '{name}': expected probabilities of {values} values in the guide, as in the model, got "
            f"{type(fn).__name__} of {found}; give it a Categorical of {values}, or leave it out of the guide"
        )


def _without_enumeration(site: Site, plates: int) -> Site:
    """A site with the last batch dimensions of its distribution alone, as if nothing were enumerated."""
    fn = site["fn"]
    batch = list(fn.batch_shape[max(len(fn.batch_shape) - plates, 0) :])
    while batch[:1] == [1]:
        del batch[0]
    return {**site, "fn": SimpleNamespace(batch_shape=batch, event_shape=fn.event_shape)}


def plates_of(model: Any, guide: Any, args: Any, kwargs: Any, watching: Messenger) -> int:
    """The number of dimensions that a program's plates take, from a run in which nothing is enumerated.

    Args:
        model, guide, args, kwargs: the program.
        watching: sees all its sites.
    """
    with poutine.block(), watching, Undrawn():
        with Smoothing():
            guide_trace, _ = trace_guide(guide, args, kwargs)
        replayed = poutine.trace(poutine.replay(model, trace=without_discrete(guide_trace)))
        with Undrawn(leaves=True), SamePlates(guide_trace):
            trace = at_first_values(lambda first: first(replayed.get_trace)(*args, **kwargs))
    check_discrete(model, args, kwargs, sample_sites(trace))
    frames = [
        frame
        for each in (guide_trace, trace)
        for site in sample_sites(each).values()
        for frame in site["cond_indep_stack"]
    ]
    return max((-frame.dim for frame in frames if frame.vectorized), default=0)
