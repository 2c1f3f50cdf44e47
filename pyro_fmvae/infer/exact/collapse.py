"""Conjugate sites integrated out of a program, exactly: the log-density of what is left.

The bound on the evidence is an equality at the exact posterior. So with any member q₀ of a site's family,

    log p(rest) = E_{q₀}[log p(site, rest)] + H(q₀) + KL(q₀ || p(site | rest)),

and the conditional p(site | rest) has the natural parameters ∂E[log p]/∂E[t]. All of it is differentiable in
the rest, and the terms do not cancel. Hoffman, Johnson and Tran (2018), Section 4, have the algebra; Liu
(1994), The collapsed Gibbs sampler in Bayesian computations, the reasons to sample what is left.
"""

import copy
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from pyro.distributions import TorchDistribution
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.distributions import Distribution, Transform
from torch.utils._pytree import tree_leaves

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.distributions.exponential_family import unwrap
from pyro_fmvae.distributions.joint_parts import MOST_TOGETHER, JointKind, NormalBlock
from pyro_fmvae.infer.elbo.expansion import at_values
from pyro_fmvae.infer.elbo.expectation import Moments, NormalBlockMoments
from pyro_fmvae.infer.elbo.lazy import (
    Lazy,
    Sampled,
    device_of,
    dtype_of,
    has_lazy_arguments,
    is_lazy,
    lazy_sites,
)
from pyro_fmvae.infer.elbo.plain import PlainPosteriors, PlainProgram
from pyro_fmvae.infer.elbo.plain_terms import ExpectedDensities, mean_log_density
from pyro_fmvae.infer.elbo.recognition import Recognised, no_wider, recognise_conjugacy, spreads_of_data
from pyro_fmvae.infer.elbo.structure import (
    Site,
    Structure,
    enum_dim,
    is_discrete,
    is_latent,
    sample_sites,
    total,
    unmasked,
)
from pyro_fmvae.infer.elbo.sums import widest


class CollapseError(ValueError):
    """Sites cannot be integrated out. The message has one line: Pyro adds the shapes of a trace to others."""

    def __str__(self) -> str:
        return super().__str__().partition("\n")[0]


# Which sites can be integrated out together.


@dataclass
class Group:
    """Sites that have one conditional distribution given the rest.

    Attributes:
        names: of the sites.
        kind: class of the conditional.
        start: λ of a member of the family that is no worse than the prior, float64 [..., P].
        dtype: of draws.
        shapes: of the sites' values.
        block: how the sites lie in a Normal vector; None if they do not.
        joint: the kind of the joint conditional of a location and its precision; None if it is another one.
    """

    names: tuple[str, ...]
    kind: type[NaturalDistribution]
    start: Tensor
    dtype: torch.dtype
    shapes: tuple[torch.Size, ...]
    block: NormalBlock | None = None
    joint: JointKind | None = None

    def part(self, name: str, natural: Tensor, given: Mapping[str, Tensor]) -> Any:
        """The distribution of a site at λ of the group, given the values of those before it."""
        if self.block is not None:
            return self.block.part(name, natural, self.dtype, given)
        if self.joint is not None:
            location, precision = self.names
            part: Any = self.joint.parts[name == precision]
            return part(natural, self.dtype, False, given.get(precision) if name == location else None)
        return self.kind(natural, self.dtype, validate_args=False)

    def draw(self, natural: Tensor) -> dict[str, Tensor]:
        """Draws of the sites at λ."""
        if self.block is not None:
            return self.block.apart(self.kind(natural, self.dtype, validate_args=False).sample())
        values: dict[str, Tensor] = {}
        for name in reversed(self.names):  # a precision before its location
            values[name] = self.part(name, natural, values).sample()
        return values


def check_pairs(found: Recognised, names: Sequence[str]) -> None:
    """Refuse sites that cannot be integrated out together.

    Raises:
        CollapseError: it names the pair that stands in the way.
    """
    couplings = found.couplings
    for name in names:
        if name in couplings.discrete:
            raise CollapseError(
                f"site '{name}': expected a site that can be integrated out, but it has another conditional "
                f"at each value of the discrete site '{couplings.discrete[name]}'; observe or condition "
                f"'{couplings.discrete[name]}', or leave out '{name}'"
            )
        if name in couplings.summed:
            kind = type(unwrap(found.sites[couplings.summed[name]]["fn"])).__name__
            raise CollapseError(
                f"site '{name}': expected a site that can be integrated out, but the {kind} at "
                f"'{couplings.summed[name]}' depends on it and sums over something itself; leave out '{name}'"
            )
        site = found.sites[name]
        if site["mask"] is not None or isinstance(site["scale"], Tensor):
            raise CollapseError(
                f"site '{name}': expected a site without a mask, and with a number as its scale, to "
                "integrate it out; leave it out"
            )
    joint = set(_pairs_of_joint(found, names))
    for pair, owner in couplings.other.items():
        if pair <= set(names) and tuple(sorted(pair)) not in {tuple(sorted(each)) for each in joint}:
            one, other = (name for name in names if name in pair)
            raise CollapseError(
                f"sites '{one}' and '{other}': expected sites that can be integrated out together, but they "
                f"are multiplied with each other in the log-density of '{owner}' and are not jointly Normal; "
                "leave one of them out"
            )


def _pairs_of_joint(found: Recognised, names: Sequence[str]) -> list[tuple[str, str]]:
    """Locations with the precisions that they have a joint conditional with."""
    normal = found.couplings.normal
    return [
        (location, precision)
        for location, (precision, _) in found.joint.items()
        if {location, precision} <= set(names)
        and not any(location in pair and pair <= set(names) for pair in normal)
    ]


def together(found: Recognised, ranked: Iterable[str], size: float) -> list[str]:
    """As many sites as can be integrated out, in the model's order.

    Args:
        found: of the model.
        ranked: the sites, those first that are more wanted.
        size: the most numbers in one Normal block with a dense precision matrix.
    """
    chosen: list[str] = []
    for name in ranked:
        wanted = [each for each in found.kinds if each in {*chosen, name}]
        try:
            check_pairs(found, wanted)
        except CollapseError:
            continue
        if all(found.couplings.block(names, size) for names in found.couplings.blocks(wanted)):
            chosen = wanted
    return chosen


def groups_of(found: Recognised, names: Sequence[str]) -> list[Group]:
    """The groups of sites that are integrated out together; see :func:`check_pairs`."""
    spreads = spreads_of_data(found.sites.values())
    shapes = {name: found.sites[name]["value"].shape for name in names}
    members: dict[str, Any] = {}
    for name in names:
        prior = found.priors[name]
        members[name] = type(prior)(no_wider(prior, spreads), prior.dtype, validate_args=False)
    groups, done = [], set[str]()
    for block in found.couplings.blocks(names):
        vector = found.couplings.block(block, math.inf)
        assert vector is not None
        dtype, start = members[block[0]].dtype, vector.natural(members)
        groups.append(Group(vector.names, vector.kind, start, dtype, vector.shapes, vector))
        done.update(block)
    for location, precision in _pairs_of_joint(found, names):
        joint = found.joint[location][1]
        start = joint.together(members[location].natural, members[precision].natural)
        pair = (location, precision)
        own = tuple(shapes[name] for name in pair)
        groups.append(Group(pair, joint.kind, start, members[location].dtype, own, joint=joint))
        done |= {location, precision}
    for name in names:
        if name not in done:
            single = members[name]
            groups.append(Group((name,), type(single), single.natural, single.dtype, (shapes[name],)))
    return groups


# One run of the program without the values of these sites.


class WithoutValues(Messenger):
    """Runs a model without values of some sites, and hides what depends on them from handlers outside.

    Args:
        names: of the sites.
        leaves: names of sites that nothing depends on, which integrate to 1.

    Attributes:
        sites: those of ``names`` and those whose distributions depend on them, as they were inside.
        enumerated: names of discrete sites whose values are all there at once.
    """

    def __init__(self, names: Collection[str], leaves: Collection[str]) -> None:
        super().__init__()
        self._names, self._leaves = names, leaves
        self.sites: dict[str, Site] = {}
        self.enumerated: list[str] = []
        self._draws: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: Any) -> None:
        name, fn = msg["name"], msg["fn"]
        if msg["infer"].get("_deterministic"):
            msg["stop"] = is_lazy(msg["value"])
            return
        if type(fn).__name__ == "_Subsample":
            return
        ours = is_latent(msg) and name in self._names
        if not (ours or has_lazy_arguments(fn)):
            return
        inside = {"scale": msg["scale"], "mask": msg["mask"], "cond_indep_stack": msg["cond_indep_stack"]}
        self.sites[name] = {**msg, **inside, "infer": {}}
        if ours or name in self._leaves:
            origin: Any = Sampled(name, fn.support)
            value = Lazy.make(fn.shape(), dtype_of(fn), device_of(fn), origin)
            msg["value"], msg["done"], msg["stop"] = value, True, True
            self.sites[name]["value"] = value
            if name in self._leaves:
                del self.sites[name]
        else:
            msg["fn"] = IntegratedOver(fn, lambda: at_numbers(fn, self._numbers()))

    def _pyro_post_sample(self, msg: Any) -> None:
        own = self.sites.get(msg["name"])
        if own is not None and not is_lazy(own["value"]):
            own["value"], own["is_observed"] = msg["value"], True
        if enum_dim(msg) is not None:
            self.enumerated.append(msg["name"])

    def _numbers(self) -> dict[str, Tensor]:
        """Draws of the sites from their priors, for draws of those that depend on them."""
        for name, site in self.sites.items():
            if is_lazy(site["value"]) and name not in self._draws:
                with torch.no_grad():
                    self._draws[name] = at_numbers(site["fn"], self._draws).sample()
        return self._draws


class IntegratedOver(TorchDistribution):
    """Stands for a distribution that depends on sites that are integrated out; its density counts elsewhere.

    Args:
        fn: the distribution.
        at_draws: gives the distribution at draws of these sites.
    """

    def __init__(self, fn: Any, at_draws: Callable[[], Any]) -> None:
        self._fn, self._at_draws = fn, at_draws
        super().__init__(fn.batch_shape, fn.event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        """Support of the distribution."""
        return self._fn.support

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Expand to ``batch_shape``."""
        new = IntegratedOver(self._fn, self._at_draws)
        TorchDistribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        return new

    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Draws, given one and the same draw of the sites that are integrated out."""
        drawn: Tensor = self._at_draws().expand(self.batch_shape).sample(torch.Size(sample_shape))
        return drawn

    def log_prob(self, value: Tensor) -> Tensor:
        """0, [batch shape]."""
        return torch.zeros(self.batch_shape, device=value.device)


def at_numbers(x: Any, values: Mapping[str, Tensor]) -> Any:
    """A distribution with numbers in the place of values that are not there."""
    if isinstance(x, Lazy):
        return at_values(x, dict(values))
    if isinstance(x, list):
        return [at_numbers(each, values) for each in x]
    if not isinstance(x, Distribution | Transform):
        return x
    new = copy.copy(x)
    vars(new).update({name: at_numbers(value, values) for name, value in vars(x).items()})
    return new


@dataclass
class Integral:
    """The integral over sites at values of the rest.

    Attributes:
        log_value: the logarithm of the integral of all densities that depend on the sites, float64.
        naturals: λ of the groups' conditionals.
    """

    log_value: Tensor
    naturals: list[Tensor]


def integrate(groups: Sequence[Group], sites: Mapping[str, Site], identities: dict[Any, bool]) -> Integral:
    """Integrate over the sites of groups, in one evaluation of the expected log-densities.

    Args:
        groups: which sites, in a run without their values.
        sites: see :class:`WithoutValues`.
        identities: see :class:`~pyro_fmvae.infer.elbo.expansion.Expansion`.
    """
    enabled = torch.is_grad_enabled()
    model, guide = Trace(), Trace()
    for name, site in sites.items():
        model.add_node(name, **site)
    leaves = [group.start.detach().requires_grad_() for group in groups]
    for group, leaf in zip(groups, leaves, strict=True):
        for name in group.names:
            fn = group.part(name, leaf, sites_values(sites))
            fn = fn.to_event(sites[name]["fn"].event_dim - fn.event_dim)
            guide.add_node(name, **{**sites[name], "fn": fn})
    observed = [name for name, site in sites.items() if site["is_observed"]]
    structure = Structure(model, [], [n for n in sites if n not in observed], [], observed, [])
    program = PlainProgram(structure, _plates(sites), identities)
    posteriors = PlainPosteriors(sample_sites(model), sample_sites(guide))
    with torch.enable_grad():
        densities = ExpectedDensities(program, guide, posteriors)
        value = torch.zeros((), dtype=torch.float64, device=leaves[0].device)
        for name, site in sites.items():
            own = unmasked(site) if name in observed else site["value"]
            value = value + total(densities.of(site, own, widest(own.device)), site)
        wanted = enabled and _depends_on_others(value, leaves)
        slopes = torch.autograd.grad(value, leaves, create_graph=wanted)
        naturals = []
        for group, leaf, slope in zip(groups, leaves, slopes, strict=True):
            site = sites[group.names[0]]
            own_part: Any = unwrap(guide.nodes[group.names[0]]["fn"])
            natural, gap = _conditional(own_part, leaf.detach(), slope, posteriors.moments[group.names[0]])
            value = value + site["scale"] * gap
            naturals.append(natural)
    return Integral(value if wanted else value.detach(), [natural.detach() for natural in naturals])


def _depends_on_others(value: Tensor, leaves: Sequence[Tensor]) -> bool:
    """True if a value has gradients for other tensors than these leaves."""
    known, todo = set[Any](), [value.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in known:
            continue
        known.add(node)
        own = getattr(node, "variable", None)
        if own is not None and all(own is not leaf for leaf in leaves):
            return True
        todo += [following for following, _ in node.next_functions]
    return False


def sites_values(sites: Mapping[str, Site]) -> dict[str, Tensor]:
    """The values of sites by name."""
    return {name: site["value"] for name, site in sites.items()}


def _plates(sites: Mapping[str, Site]) -> int:
    frames = [frame for site in sites.values() for frame in site["cond_indep_stack"]]
    return max((-frame.dim for frame in frames if frame.vectorized), default=0)


def _conditional(part: Any, start: Tensor, slope: Tensor, moments: Any) -> tuple[Tensor, Tensor]:
    """λ of a conditional [..., P], and H(q₀) + KL(q₀ || conditional), summed.

    Args:
        part: q₀, or a part of it.
        start: its λ.
        slope: ∂E[log p]/∂E[t], which has the slope of the base measure's logarithm in it.
        moments: E[t] of the part.
    """
    family = part.family
    is_block = isinstance(moments, NormalBlockMoments)
    own = part.whole() if is_block else part
    stats = family.mean_stats(start).requires_grad_()
    base = family.log_base_measure(stats).sum()
    natural = slope - torch.autograd.grad(base, stats)[0] if base.requires_grad else slope
    is_location = is_block or (isinstance(moments, Moments) and moments.about is not None)
    with torch.no_grad():
        entropy = -mean_log_density(own.with_natural(start), stats, is_location).sum()
    return natural, entropy + family.relative_entropy(start, natural, stats.detach()).sum()


def _check_run(groups: Sequence[Group], sites: Mapping[str, Site], enumerated: Sequence[str]) -> None:
    """Refuse a run in which the integral of some site would not be exact.

    Args:
        groups: which sites, in a run without their values.
        sites: see :class:`WithoutValues`.
        enumerated: names of discrete sites whose values are all there at once.
    """
    plates, names = _plates(sites), [name for group in groups for name in group.names]
    for name, site in sites.items():
        inside = [*[name] * (name in names), *sorted(lazy_sites(site["fn"]) & set(names))]
        batch = site["fn"].batch_shape
        if batch[: max(len(batch) - plates, 0)].numel() > 1:
            why = (
                f"the discrete site '{enumerated[0]}' is enumerated"
                if enumerated
                else "particles are vectorised"
            )
            raise CollapseError(
                f"site '{name}': it depends on '{inside[0]}', which is integrated out, but {why} in its "
                f"log-density; leave '{inside[0]}' out of sites"
            )
        parts = {f.name for f in site["cond_indep_stack"] if f.full_size not in (None, f.size)}
        for parent in inside:
            own = {frame.name for frame in sites[parent]["cond_indep_stack"]}
            if outside := sorted(parts - own):
                raise CollapseError(
                    f"site '{parent}': all data are needed to integrate it out, but plate '{outside[0]}' of "
                    f"'{name}' is subsampled; give it all of its points, or leave out '{parent}'"
                )


class CollapsedModel(nn.Module):
    """A model with sites integrated out; see :func:`collapse`."""

    def __init__(self, model: Callable[..., Any], sites: Collection[str] | None) -> None:
        super().__init__()
        if not callable(model):
            raise CollapseError(f"model: expected a function, got {type(model).__name__}; do not call it")
        if isinstance(sites, str):
            raise CollapseError(f"sites: expected a list of names of sites, got '{sites}'; write ['{sites}']")
        self.model = model
        self._wanted = None if sites is None else list(sites)
        self._groups: list[Group] = []
        self._leaves: list[str] = []
        self._identities: dict[Any, bool] = {}
        self._given: tuple[Any, Any] = (), {}

    @property
    def sites(self) -> list[str]:
        """Names of the sites that are integrated out, in the model's order; none before the first call."""
        return [name for group in self._groups for name in group.names]

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Find out how the sites are integrated out; arguments as for the model.

        Raises:
            CollapseError: see :func:`collapse`.
        """
        found = recognise_conjugacy(self.model, args, kwargs)
        plates = {frame.name for site in found.sites.values() for frame in site["cond_indep_stack"]}
        found = recognise_conjugacy(self.model, args, kwargs, plates) if found.drawn else found
        latent = {n: s for n, s in found.sites.items() if is_latent(s) and not is_discrete(s)}
        names = self._wanted
        if names is None:
            sizes = {name: found.sites[name]["value"].numel() for name in found.kinds}
            names = together(found, sorted(sizes, key=lambda name: -sizes[name]), MOST_TOGETHER)
            if not names:
                raise CollapseError(
                    f"sites: expected sites that can be integrated out, got none in {list(latent)}"
                )
        for name in names:
            if name not in latent:
                raise CollapseError(
                    f"sites: expected names of continuous latent sites, of {list(latent)}, got '{name}'"
                )
        rest = {name: site["value"] for name, site in latent.items() if name not in {*names, *found.leaves}}
        found = recognise_conjugacy(poutine.condition(self.model, data=rest), args, kwargs, plates)
        for name in names:
            if name not in found.kinds:
                reason = found.drawn.get(name, "nothing depends on it")
                raise CollapseError(f"site '{name}': expected a site that can be integrated out: {reason}")
        check_pairs(found, names)
        self._wanted, self._leaves = names, found.leaves
        groups = groups_of(found, names)
        with torch.no_grad(), poutine.block(), poutine.condition(data=rest):
            run, _ = self._run(args, kwargs)
            _check_run(groups, run.sites, run.enumerated)
            for group, natural in zip(
                groups, integrate(groups, run.sites, self._identities).naturals, strict=True
            ):
                if not bool(group.kind.family.in_domain(natural).all()):
                    raise CollapseError(
                        f"site '{group.names[0]}': its distribution given all other sites is not proper; "
                        "check its prior, and the data for numbers that are not finite"
                    )
                group.start = natural
        self._groups = groups

    def _run(self, args: Any, kwargs: Any) -> tuple[WithoutValues, Any]:
        with WithoutValues(self._wanted or (), self._leaves) as run:
            return run, self.model(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on the rest; returns what the model does, or None if that has no numbers."""
        self._given = args, kwargs
        if not self._groups:
            self.setup(*args, **kwargs)
        run, result = self._run(args, kwargs)
        pyro.factor("collapsed", self._integral(run, args, kwargs).log_value)
        return None if is_lazy(*tree_leaves(result)) else result

    def _integral(self, run: WithoutValues, args: Any, kwargs: Any) -> Integral:
        _check_run(self._groups, run.sites, run.enumerated)
        shapes = [run.sites[name]["value"].shape for name in self.sites]
        if shapes != [shape for group in self._groups for shape in group.shapes]:
            with poutine.block():
                self.setup(*args, **kwargs)
        return integrate(self._groups, run.sites, self._identities)

    @torch.no_grad()
    def recover(self, samples: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw the sites that were integrated out, given each sample of the rest.

        Args:
            samples: by name, [S, *shape of the site], as ``MCMC.get_samples()`` returns them.
            args, kwargs: of the model; those of the last call if there are none.

        Returns:
            Draws by name, [S, *shape of the site].

        Raises:
            ValueError: samples of different numbers, or a latent site without samples.
        """
        if not (args or kwargs):
            args, kwargs = self._given
        if not self._groups:
            self.setup(*args, **kwargs)
        sizes = {len(values) for values in samples.values()}
        if len(sizes) > 1:
            raise CollapseError(f"samples: expected the same number for each site, got {sorted(sizes)}")
        draws: dict[str, list[Tensor]] = {name: [] for name in self.sites}
        for number in range(sizes.pop() if sizes else 1):
            values = {name: each[number] for name, each in samples.items()}
            for group, natural in self.conditionals(values, args, kwargs):
                for name, value in group.draw(natural).items():
                    draws[name].append(value)
        return {name: torch.stack(values) for name, values in draws.items()}

    @torch.no_grad()
    def conditionals(
        self, values: Mapping[str, Tensor], args: Any, kwargs: Any
    ) -> list[tuple[Group, Tensor]]:
        """The groups of sites that are integrated out, with λ of their conditionals.

        Args:
            values: of all other latent sites, by name.
            args, kwargs: of the model.

        Raises:
            ValueError: a latent site without a value.
        """
        if not self._groups:
            self.setup(*args, **kwargs)
        with poutine.block(), poutine.trace() as outside, poutine.condition(data=dict(values)):
            run, _ = self._run(args, kwargs)
            integral = self._integral(run, args, kwargs)
        left = [n for n, s in sample_sites(outside.trace).items() if is_latent(s) and not is_discrete(s)]
        if left:
            raise CollapseError(f"samples: expected those of '{left[0]}', too, got {list(values)}")
        return list(zip(self._groups, integral.naturals, strict=True))


def collapse(model: Callable[..., Any], sites: Collection[str] | None = None) -> CollapsedModel:
    """A model in which conjugate sites are integrated out exactly.

    It is a Pyro program over the other sites, for NUTS and HMC, for SVI with any guide, and for
    ``Predictive``::

        collapsed = collapse(model)
        mcmc = MCMC(NUTS(collapsed), num_samples=1000)
        mcmc.run(y)
        samples = mcmc.get_samples()
        theta = collapsed.recover(samples)["theta"]  # draws of what was integrated out

    Sites can be integrated out together if they do not depend on each other given the rest, if they are
    jointly Normal given the rest, or if they are a location and its precision in a conjugate prior. They have
    no statement in the program. Sites that depend on them keep theirs, with a density of 1; all of these
    densities are one ``pyro.factor``, "collapsed". Its gradients, of any order, are exact.

    Latents in a subsampled plate can be integrated out: the estimate of the log-density is then unbiased, as
    is that of the model. Pyro may enumerate discrete sites that no site that is integrated out depends on.

    Args:
        model: in Pyro's own distributions.
        sites: names of the sites to be integrated out; if None, as many as can be, those of the most numbers
            first, with at most 256 numbers in a Normal vector that no plate or chain divides.

    Raises:
        ValueError: no function; and, at the first call, a site without a closed form, or two that cannot be
            integrated out together. The message names them.
    """
    return CollapsedModel(model, sites)


def log_evidence(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
    """The log-density of the data, with all latent sites integrated out in closed form: float64 [].

    Args:
        model: in Pyro's own distributions; further arguments are passed on to it.

    Raises:
        ValueError: a site that cannot be integrated out, or two that cannot be so together.
    """
    found = recognise_conjugacy(model, args, kwargs)
    latent = [name for name, site in found.sites.items() if is_latent(site) and name not in found.leaves]
    collapsed = CollapsedModel(model, latent) if latent else model
    trace = poutine.trace(collapsed).get_trace(*args, **kwargs)
    return trace.log_prob_sum()
