"""The bound of a program in Pyro's own distributions, conjugate or not.

A site that the guide gives a natural posterior is not drawn: the model computes with a value that is not
there, and the expectation of every log-density that it enters is taken term by term. Discrete sites are
summed out over these expectations, by Pyro. Everything else is drawn from the guide, with gradients.
"""

import inspect
from collections.abc import Callable, Hashable, Mapping, Set
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import pyro.poutine as poutine
import torch
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from pyro.poutine.enum_messenger import EnumMessenger
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Distribution
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyro_fmvae.distributions import (
    Assignment,
    Label,
    MixtureComponent,
    NaturalDistribution,
    NaturalParameter,
    SmoothedStates,
    expected_log_prob,
)
from pyro_fmvae.distributions.exponential_family import unwrap
from pyro_fmvae.distributions.joint_parts import BlockNormal, kind_of_part
from pyro_fmvae.infer.elbo.density import expectations
from pyro_fmvae.infer.elbo.distribution_checks import (
    check_distribution,
    check_label,
    check_masks,
    check_observed,
    check_shapes,
    check_support,
    take_masks,
    watch_missing,
)
from pyro_fmvae.infer.elbo.expansion import Expansion
from pyro_fmvae.infer.elbo.expectation import (
    JointMoments,
    Moments,
    NormalBlockMoments,
    expectation_of,
    joint_moments,
)
from pyro_fmvae.infer.elbo.lazy import Lazy, Sampled, Unsampled, device_of, dtype_of, memory_of, uncompiled
from pyro_fmvae.infer.elbo.structure import (
    Enumerated,
    Site,
    Structure,
    auxiliary_sites,
    check_filled,
    check_same_points,
    is_discrete,
    is_latent,
    sample_sites,
    unique_sites,
)
from pyro_fmvae.infer.elbo.trial_runs import at_first_values, check_discrete

# Natural posteriors whose gradients do not see the scale of their site, so that ρ keeps its meaning.

Posterior = Callable[[str], Distribution]


def natural_posteriors(program: Structure, guide: Trace) -> Posterior:
    """Posteriors by site name, those of scaled sites with the natural gradient of the unscaled site.

    The scale multiplies the KL divergence and all other terms under a common ``poutine.scale``. Dividing the
    gradient by it leaves λ - λ*, so that ρ keeps its meaning.
    """

    def posterior(name: str) -> Distribution:
        return with_gradient_divided(program.posterior(guide, name), program.model.nodes[name]["scale"])

    return posterior


def with_gradient_divided(q: Distribution, scale: float | Tensor) -> Distribution:
    """A natural posterior whose λ receives gradients divided by a site's scale; any other as it is."""
    natural, unscaled = unwrap(q), not isinstance(scale, Tensor) and scale == 1
    if unscaled or not isinstance(natural, NaturalDistribution):
        return q
    events = len(q.event_shape) - len(natural.event_shape)
    if isinstance(scale, Tensor):
        scale = scale.to(natural.natural)
        if scale.dim():
            shape = q.batch_shape  # a site that lacks dimensions of its scale counts as their sum
            scale = scale.expand(torch.broadcast_shapes(scale.shape, shape)).sum_to_size(shape)
            scale = scale[(..., *(None,) * (events + 1))]
    scaled: Any = natural.with_gradient_scale(1 / scale)
    return scaled.to_event(events)


# The natural posteriors of a plain program's sites, and their expectations.


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
            if isinstance(q, BlockNormal):
                if name == q.block.names[0]:
                    moments |= dict.fromkeys(q.block.names, NormalBlockMoments.of(q))
                continue
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
        centres: dict[str, Tensor] = {}
        for name, own in self.moments.items():
            if isinstance(own, NormalBlockMoments):
                centres[name] = own.centres()[name]
            elif own.centre is not None and not (isinstance(own, JointMoments) and name == own.precision):
                centres[name] = own.centre
        return centres


# States of linear dynamics in a guide, where the dynamics have natural posteriors themselves.


class Smoothing(Messenger):
    """Has a guide draw states under the expectations of what precedes them, which is not drawn itself.

    The posteriors of what precedes them are constants there. So their natural gradients are those given the
    states' distribution, and a step of a rate up to 1 goes to proper members of their families.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sites: dict[str, Any] = {}

    def _pyro_sample(self, msg: Any) -> None:
        fn = unwrap(msg["fn"])
        if isinstance(fn, SmoothedStates):
            constant = {name: {**site, "fn": _constant(site["fn"])} for name, site in self._sites.items()}
            posteriors = PlainPosteriors(self._sites, constant)
            expansion = Expansion({}, posteriors.centres())

            def evaluate(table: Lazy) -> Tensor:
                terms, moments = expansion.of(table), posteriors.moments
                return expectation_of(terms, table.shape, moments, table.dtype, table.device)

            msg["fn"] = fn.expected(*expectations(evaluate))
        self._sites[msg["name"]] = msg


def _constant(fn: Distribution) -> Distribution:
    inner = unwrap(fn)
    if not isinstance(inner, NaturalDistribution):
        return fn
    constant: Distribution = inner.with_natural(inner.natural.detach()).expand(inner.batch_shape)
    return constant


# Draws that a guide itself goes on to use, as it does where q(y | z) depends on z.

_OF_A_FALLBACK = (
    "The fallback of an AutoConjugate samples every site without a natural posterior, in the model's plates: "
    "give it fallback=None where the rest of the guide does so"
)


def trace_guide(guide: Any, args: Any, kwargs: Any) -> tuple[Trace, Set[str]]:
    """Run a guide; returns its trace, and the names of sites whose draws it uses later.

    A use is an operation on the memory of a draw, or a distribution, scale or mask that holds it. Other
    threads are not seen. From the first draw on, compiled functions run as they were before compilation.
    """
    with ExitStack() as watching, unique_sites("guide", _OF_A_FALLBACK):
        uses = _Uses(watching)
        trace = poutine.trace(uses(guide)).get_trace(*args, **kwargs)
    return trace, uses.names


def take_at_draws(program: Structure, guide: Trace, used: Set[str]) -> None:
    """Set ``program.drawn``: the sites that enter at their draws, not by an expectation.

    These are the sites in use among those under one expectation, except for the last of them.

    Args:
        program: the structure of the guide's trace and the model's.
        guide, used: the results of :func:`trace_guide`.

    Raises:
        ValueError: such a site whose distribution has no reparameterised sampler.
    """
    sites = sample_sites(guide)
    for names in _together(program):
        in_order = [name for name in sites if name in names]
        program.drawn |= used & set(in_order[:-1])
    for name in sorted(program.drawn):
        q = sites[name]["fn"]
        if not q.has_rsample:
            raise ValueError(
                f"site '{name}': the guide uses its draw, and {type(unwrap(q)).__name__} has no "
                "reparameterised sampler; give it a distribution that has_rsample"
            )


def _together(program: Structure) -> list[set[str]]:
    """The sites that have a part in the same expectation, for each mixture and whatever else has one."""
    together = [set(child.parents.values()) for child in program.integrated]
    for mixture in program.mixtures:
        names = {mixture.name, *mixture.parents.values()}
        for child in mixture.children:
            names |= {child.name, *child.parents.values()}
        together.append(names)
    return together


class _Uses(Messenger):
    """Records where in memory draws are, and the sites whose draws were used.

    Args:
        watching: closed when the guide ends.
    """

    def __init__(self, watching: ExitStack) -> None:
        super().__init__()
        self.names: set[str] = set()
        self._watching = watching
        self._drawn: dict[int, set[str]] = {}
        self._kept: list[Tensor] = []  # so that no other tensor comes to lie there

    def look_at(self, *values: Any) -> None:
        """Take note of the draws among these, and in the containers among them."""
        for value in tree_leaves(values):
            if isinstance(value, Tensor) and not isinstance(value, Lazy):
                self.names |= self._drawn.get(memory_of(value), set())

    def _pyro_post_sample(self, msg: Any) -> None:
        value = msg["value"]
        if msg["infer"].get("_deterministic") or type(msg["fn"]).__name__ == "_Subsample":
            return
        self.look_at(vars(unwrap(msg["fn"])), msg["scale"], msg["mask"])
        if msg["is_observed"]:
            self.look_at(value)
        elif isinstance(value, Tensor) and not isinstance(value, Unsampled | Lazy):
            if not self._drawn:  # before there is a draw, there is nothing to watch for
                self._watching.enter_context(uncompiled())
                self._watching.enter_context(_Operations(self))
            self._drawn.setdefault(memory_of(value), set()).add(msg["name"])
            self._kept.append(value)


class _Operations(TorchDispatchMode):
    def __init__(self, uses: _Uses) -> None:
        super().__init__()
        self.uses = uses

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.uses.look_at(args, kwargs)
        return func(*args, **(kwargs or {}))


# Models and guides as modules, so that their parameters are found.

_EXPECTED = "expected a torch.nn.Module, a bound method of one or a function without parameters"


class BoundMethod(torch.nn.Module):
    """A bound method of a module, as a module of its own that shares the owner's parameters."""

    def __init__(self, method: Any) -> None:
        super().__init__()
        self.owner = method.__self__
        self.name = method.__name__

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        return getattr(self.owner, self.name)(*args, **kwargs)


class Function(torch.nn.Module):
    """A function without parameters as a module."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        super().__init__()
        self.name, self.function = name, function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            ValueError: it has parameters, which are not among those of this module.
        """
        with poutine.trace(param_only=True) as capture:
            result = self.function(*args, **kwargs)
        if found := sorted(capture.trace.nodes):
            raise ValueError(f"{self.name}: {_EXPECTED}, got a function with the parameter '{found[0]}'")
        return result


def as_module(name: str, program: Any) -> torch.nn.Module:
    """A module as it is; a bound method of one, or a function without parameters, as a module.

    The function may be wrapped by handlers, such as ``config_enumerate``.

    Args:
        name: its name in error messages.
        program: a model or a guide.

    Raises:
        TypeError: something else, or a function that uses a module, whose parameters could not be found.
    """
    if isinstance(program, torch.nn.Module):
        return program
    if inspect.ismethod(program) and isinstance(program.__self__, torch.nn.Module):
        return BoundMethod(program)
    function = inspect.unwrap(program)
    if not inspect.isfunction(function):
        raise TypeError(f"{name}: {_EXPECTED}, got {type(program).__name__}")
    uses = inspect.getclosurevars(function)
    for variable, value in {**uses.globals, **uses.nonlocals}.items():
        if isinstance(value, torch.nn.Module):
            raise TypeError(f"{name}: {_EXPECTED}, got a function that uses the module '{variable}'")
    return Function(name, program)


@dataclass
class PlainProgram:
    """One run of a program in which not all that is integrated or summed out belongs to shorthands.

    Attributes:
        structure: its sites, in the form that single terms are computed from.
        plates: the number of dimensions that plates take.
        identities: see :class:`Expansion`.
        used: names of sites whose draws the guide itself uses.
        points: name of a plate → a weight for each of its points, if they are to be distinguished.
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


def expectation(site: Site, q: Distribution, parents: dict[str, Any]) -> Tensor:
    """The closed form of E_q[log p] at a model's site; where there is none, an error that names the site."""
    try:
        return expected_log_prob(q, site["fn"], parents)
    except NotImplementedError as error:
        raise NotImplementedError(f"site '{site['name']}': {error}") from None
