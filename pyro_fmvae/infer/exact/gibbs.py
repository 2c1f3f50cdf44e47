"""Gibbs sampling of plain programs: every site in turn, from its complete conditional.

Geman and Geman (1984), Stochastic relaxation, Gibbs distributions, and the Bayesian restoration of images;
van Dyk and Park (2008), Partially collapsed Gibbs samplers, for components and states that are summed over in
a density: they are drawn anew before each block and forgotten after it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyro.poutine as poutine
import torch
from pyro.distributions import MaskedDistribution
from pyro.infer import NUTS, infer_discrete
from pyro.infer.autoguide.initialization import InitMessenger, init_to_uniform
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Transform, biject_to, constraints

from pyro_fmvae.distributions.chain import draw_index
from pyro_fmvae.distributions.columns import is_masked
from pyro_fmvae.distributions.exponential_family import OutsideDomainError, unwrap
from pyro_fmvae.infer.elbo.expectation import SUMS
from pyro_fmvae.infer.elbo.plain_terms import levels_of
from pyro_fmvae.infer.elbo.recognition import Plan, PlannedSite
from pyro_fmvae.infer.elbo.structure import (
    Enumerated,
    Site,
    has_shorthand,
    is_discrete,
    is_latent,
    sample_sites,
    total,
    unmasked,
)
from pyro_fmvae.infer.elbo.trial_runs import NotByPointError, check_discrete
from pyro_fmvae.infer.exact.conditionals import LEAF, Block, LogJoint, find_blocks, products_of


class GibbsKernel(MCMCKernel):
    """The kernel whose sweeps :class:`~pyro_fmvae.ConjugateGibbs` records, which says what it does.

    Args:
        model, fallback, init_strategy: as there.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        fallback: Callable[[Callable[..., Any]], MCMCKernel] = NUTS,
        *,
        init_strategy: Callable[..., Any] = init_to_uniform,
    ) -> None:
        if not callable(model):
            raise ValueError(f"model: expected a function, got {type(model).__name__}; do not call it")
        self.model, self.fallback, self._init = _Unmasked()(model), fallback, init_strategy
        self._given: dict[str, Tensor] = {}
        self._values: dict[str, Tensor] = {}
        self._program: tuple[Any, Any] | None = None
        self._inner: Any = None
        self.transforms: dict[str, Transform] | None = None

    # What becomes of each site

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Find the conditional of each site, and first values; arguments as for the model."""
        with torch.no_grad(), poutine.block():
            start = InitMessenger(self._first)(self.model)
            sites = sample_sites(poutine.trace(start).get_trace(*args, **kwargs))
        _check(sites)
        values = {name: site["value"].detach() for name, site in sites.items() if is_latent(site)}
        for name, value in self._given.items():
            if name not in values:
                raise ValueError(
                    f"initial_params: the model has no latent site '{name}'; it has {list(values)}"
                )
            discrete = is_discrete(sites[name])
            values[name] = value if discrete else biject_to(sites[name]["fn"].support)(value)
        if self._program is None or not _are_same((args, kwargs), self._program):
            self._program = args, kwargs
            self._find(sites, values)
        self.transforms = {name: _Cast(values[name].dtype) for name in self._discrete}
        self._values = values
        if self._rest:
            self._inner = self.fallback(self._model_of_rest)
            rest = {name: biject_to(sites[name]["fn"].support).inv(values[name]) for name in self._rest}
            if bool(self._log_density(values).isfinite()):  # else it looks for other first values
                self._inner.initial_params = rest
            with torch.enable_grad():
                self._inner.setup(warmup_steps, *args, **kwargs)
            values |= self._constrained(self._inner.initial_params)

    def _first(self, site: Site) -> Tensor:
        return site["fn"].sample() if is_discrete(site) else self._init(site)

    def _find(self, sites: dict[str, Site], values: dict[str, Tensor]) -> None:
        assert self._program is not None
        args, kwargs = self._program
        self._sites, self._joint = sites, LogJoint(self.model, args, kwargs)
        self._discrete = [name for name, site in sites.items() if is_discrete(site)]
        self._one_by_one = ""
        if any(bool((torch.as_tensor(site["scale"]) != 1).any()) for site in sites.values()):
            self._one_by_one = "under poutine.scale"
        elif self._discrete:
            try:
                check_discrete(self.model, args, kwargs, sites)
            except NotByPointError:
                self._one_by_one = "as they depend on each other"
        plates = (-f.dim for site in sites.values() for f in site["cond_indep_stack"] if f.vectorized)
        self._first_dim = -1 - max(plates, default=0)
        blocks, reasons = find_blocks(self.model, args, kwargs, self._joint, values)
        self._collapsed = self._collapsible(blocks, values) if self._one_by_one else None
        self._numbers = [
            (name, here.view(sites[name]["fn"].batch_shape))
            for name in (self._discrete if self._one_by_one else ())
            for here in torch.eye(sites[name]["fn"].batch_shape.numel(), dtype=torch.bool)
        ]
        self._groups = _groups(blocks, self._joint, values)
        self._leaves = [name for name, reason in reasons.items() if reason == LEAF]
        self._rest = {name: reason for name, reason in reasons.items() if reason != LEAF}

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """How each site is drawn, and why, as a table to print; arguments as for the model."""
        GibbsKernel.setup(self, 0, *args, **kwargs)
        return Plan([self._planned(name, site) for name, site in self._sites.items()])

    def _planned(self, name: str, site: Site) -> PlannedSite:
        if site["is_observed"]:
            return PlannedSite(name, "", "observed", "")
        if name in self._discrete:
            others = [other for other in self._discrete if other != name]
            why = f"one by one, {self._one_by_one}" if self._one_by_one else ""
            if self._collapsed is not None:
                why += ", with '" + "', '".join(self._collapsed.names) + "' integrated out"
            if others and not why:
                why = f"jointly with {_listed(others)}"
            return PlannedSite(name, type(unwrap(site["fn"])).__name__, "Gibbs", why)
        if name in self._leaves:
            return PlannedSite(name, type(unwrap(site["fn"])).__name__, "Gibbs", "nothing depends on it")
        if name in self._rest:
            return PlannedSite(name, type(self._inner).__name__, "fallback", self._rest[name])
        group, block = next((g, b) for g in self._groups for b in g if name in b.names)
        others = [other for other in block.names if other != name]
        notes = [f"jointly with {_listed(others)}"] if others else []
        others = [other for each in group if each is not block for other in each.names]
        notes += [f"at once with {_listed(others)}"] if others else []
        if block.coupled:
            notes.append(f"its numbers in {1 + max(levels_of(frozenset(block.coupled)).values())} turns")
        return PlannedSite(name, block.kind.__name__.removeprefix("Natural"), "Gibbs", "; ".join(notes))

    # What Pyro's MCMC asks of a kernel

    @property
    def initial_params(self) -> dict[str, Tensor]:
        """First values, by the name of a site; those that are set are unconstrained, as Pyro's are."""
        return self._values

    @initial_params.setter
    def initial_params(self, params: Mapping[str, Tensor]) -> None:
        self._given = dict(params)

    def diagnostics(self) -> dict[str, Any]:
        """Return the diagnostics of the fallback."""
        return {} if self._inner is None else self._inner.diagnostics()

    def logging(self) -> Any:
        """Return that of the fallback."""
        return None if self._inner is None else self._inner.logging()

    def cleanup(self) -> None:
        """Clean up the fallback."""
        if self._inner is not None:
            self._inner.cleanup()

    # A sweep

    def sample(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One sweep: a draw of every site given all others, from values by name to the next ones."""
        with torch.no_grad(), poutine.block():
            values = self.sweep(dict(params))
            if self._rest:
                self._move_rest(values)
        for name, value in values.items():
            if value.is_floating_point() and not bool(value.isfinite().all()):
                raise ValueError(
                    f"site '{name}': its draw is not finite; give the sites before it proper priors"
                )
        return values

    def sweep(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Draw all sites but those of the fallback, from values by name."""
        for name, here in self._numbers:
            values = self.draw_number(name, here, values)
        return self.draw_others(values)

    def draw_number(self, name: str, here: Tensor, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Draw a number of a discrete site given all others.

        Args:
            name: of the site.
            here: True at the number, bool [*batch shape of the site].
            values: of all latent sites, by name.
        """
        fn = self._sites[name]["fn"]
        support = fn.enumerate_support(expand=False)
        support = support.reshape(len(support), *fn.event_shape).to(values[name].dtype)
        here = here.reshape(here.shape + (1,) * fn.event_dim)
        candidates = [torch.where(here, each, values[name]) for each in support]
        densities = [self._log_density({**values, name: each}) for each in candidates]
        chosen = draw_index(torch.stack(densities), 0).view(1)
        return {**values, name: torch.stack(candidates).index_select(0, chosen).squeeze(0)}

    def draw_others(self, values: dict[str, Tensor], proper: list[Tensor] | None = None) -> dict[str, Tensor]:
        """Draw all sites but those of the fallback and those whose numbers are drawn one by one.

        Args:
            values: of all latent sites, by name.
            proper: gets for each conditional whether it is a distribution, in place of an error.
        """
        values = dict(values)
        if self._discrete and not self._one_by_one:
            values |= self._draw_discrete(values)
        if self._collapsed is not None:  # before anything depends on its old values
            (natural,) = self._joint.naturals([self._collapsed], values)
            values |= self._collapsed.apart(_draw(self._collapsed, natural, values, proper))
        for group in self._groups:
            if len(group) == 1 and group[0].coupled:
                self._draw_in_turns(group[0], values, proper)
                continue
            for block, natural in zip(group, self._joint.naturals(group, values), strict=True):
                values |= block.apart(_draw(block, natural, values, proper))
        for name in self._leaves:
            fn = self._joint.sites(values)[name]["fn"]
            values[name] = fn.sample()
        return values

    def _draw_in_turns(self, block: Block, values: dict[str, Tensor], proper: list[Tensor] | None) -> None:
        """Draw the numbers of a site that depend on each other, those that do not together."""
        levels = levels_of(frozenset(block.coupled))
        for turn in range(1 + max(levels.values())):
            (natural,) = self._joint.naturals([block], values)
            old, new = block.together(values), _draw(block, natural, values, proper)
            batch = natural.shape[:-1]
            moves = [levels.get(number, 0) == turn for number in range(batch.numel())]
            mask = torch.tensor(moves, device=old.device).view(*batch, *[1] * (old.dim() - len(batch)))
            values |= block.apart(torch.where(mask, new, old))

    def _draw_discrete(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """All discrete sites together, by Pyro's enumeration and backward sampling."""
        args, kwargs = self._program or ((), {})
        known = {name: value for name, value in values.items() if name not in self._discrete}
        model = infer_discrete(
            Enumerated()(poutine.condition(self.model, data=known)),
            first_available_dim=self._first_dim,
            strict_enumeration_warning=False,
        )
        drawn = sample_sites(poutine.trace(model).get_trace(*args, **kwargs))
        found = {}
        for name in self._discrete:  # a single category has one number for a whole plate
            value, shape = drawn[name]["value"], values[name].shape
            found[name] = value.reshape(value.shape[max(value.dim() - len(shape), 0) :]).expand(shape)
        return found

    def _collapsible(self, blocks: Iterable[Block], values: dict[str, Tensor]) -> Block | None:
        """A Gaussian vector beside the discrete sites, whose numbers would hold each other fast."""
        ends = []
        for end in (0, -1):
            at_end = dict(values)
            for name in self._discrete:
                support = self._sites[name]["fn"].enumerate_support(expand=False)
                at_end[name] = support[end].expand(values[name].shape).to(values[name].dtype)
            sites = self._joint.sites(at_end).items()
            ends.append({name: site["fn"].log_prob(unmasked(site)).sum() for name, site in sites})
        moved = {name for name, one in ends[0].items() if one != ends[1][name]}
        # whose conditional is known without components or states that are drawn first
        sums = {name for name, site in self._sites.items() if isinstance(unwrap(site["fn"]), SUMS)}
        vectors = (
            block
            for block in blocks
            if block.is_normal_vector and block.users & moved and not block.users & sums
        )
        return next((block for block in vectors if block.together(values).dim() == 1), None)

    def _log_density(self, values: dict[str, Tensor]) -> Tensor:
        """The log joint density, with the block that is integrated out left out."""
        sites = self._joint.sites(values).values()
        densities = [total(site["fn"].log_prob(unmasked(site)).double(), site) for site in sites]
        density = sum(densities[1:], densities[0])
        if self._collapsed is None:
            return density
        (natural,) = self._joint.naturals([self._collapsed], values)
        q: Any = self._collapsed.kind(natural, torch.float64, validate_args=False)
        return density - q.log_prob(self._collapsed.together(values).double())

    # Sites without a conditional of a family

    def _model_of_rest(self, *args: Any, **kwargs: Any) -> Any:
        known = {name: value for name, value in self._values.items() if name not in self._rest}
        return poutine.condition(self.model, data=known)(*args, **kwargs)

    def _constrained(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._inner.transforms[name].inv(value).detach() for name, value in params.items()}

    def _move_rest(self, values: dict[str, Tensor]) -> None:
        """One step of the fallback, at the values of all other sites."""
        self._values = values
        params = {name: self._inner.transforms[name](values[name]) for name in self._rest}
        with torch.enable_grad():
            if hasattr(self._inner, "clear_cache"):  # what it knows is at other values
                self._inner.clear_cache()
            else:
                self._inner._energy_last = self._inner.potential_fn(params)
            values |= self._constrained(self._inner.sample(params))


def _draw(block: Block, natural: Tensor, values: Mapping[str, Tensor], proper: list[Tensor] | None) -> Tensor:
    """A draw from a conditional, inside its support also where rounding to the site's dtype would leave it.

    Raises:
        OutsideDomainError: λ* is of no distribution.
    """
    q: Any = block.kind(natural, torch.float64, validate_args=False)
    if block.is_normal_vector:  # it is NaN where there is no such distribution
        drawn = q.sample()
        is_proper = drawn.isfinite().all()
    else:
        drawn, is_proper = None, block.kind.family.in_domain(natural).all()
    if proper is not None:
        proper.append(is_proper)
    elif not bool(is_proper):
        names = "', '".join(block.names)
        raise OutsideDomainError(
            f"site '{names}': its conditional is no proper {block.kind.__name__.removeprefix('Natural')} "
            "given the other sites; give it a proper prior, or look for values that are not finite"
        )
    value = (q.sample() if drawn is None else drawn).to(values[block.names[0]].dtype)
    finfo = torch.finfo(value.dtype)
    support = block.kind.family.distribution.support
    if (
        support is constraints.positive
        or support is constraints.nonnegative
        or support is constraints.simplex
    ):
        value = value.clamp(min=finfo.tiny)
    elif support is constraints.unit_interval:
        value = value.clamp(min=finfo.tiny, max=1 - finfo.eps / 2)
    return value


def _listed(names: list[str]) -> str:
    """Names in quotes, of many the first two."""
    if len(names) <= 3:
        return ", ".join(f"'{name}'" for name in names)
    return f"'{names[0]}', '{names[1]}' and {len(names) - 2} more"


def _groups(blocks: list[Block], joint: LogJoint, values: Mapping[str, Tensor]) -> list[list[Block]]:
    """Blocks in groups that are drawn together, as no product of the density has sites of two of them."""
    try:
        products = products_of(joint, blocks, values)
    except ValueError:
        products = [
            set(one.names + other.names) for one in blocks for other in blocks if one.users & other.users
        ]

    def meet(one: Block, other: Block) -> bool:
        return any(
            not inside.isdisjoint(one.names) and not inside.isdisjoint(other.names) for inside in products
        )

    groups: list[list[Block]] = []
    for block in blocks:
        for group in groups:
            if not block.coupled and not any(each.coupled or meet(each, block) for each in group):
                group.append(block)
                break
        else:
            groups.append([block])
    return groups


def _check(sites: Mapping[str, Site]) -> None:
    """Refuse what no sweep can draw."""
    for name, site in sites.items():
        for frame in site["cond_indep_stack"]:
            if frame.full_size not in (None, frame.size):
                raise ValueError(
                    f"site '{name}': plate '{frame.name}' is subsampled; a posterior's draws need all data, "
                    "so leave subsample_size= and subsample= out"
                )
        if has_shorthand([site]):
            raise ValueError(
                f"site '{name}': expected Pyro's own distributions, got {type(unwrap(site['fn'])).__name__}; "
                "write its density with a Categorical and a Normal, say"
            )
        if is_discrete(site) and not site["fn"].has_enumerate_support:
            raise ValueError(
                f"site '{name}': {type(unwrap(site['fn'])).__name__} has no finite number of values to draw "
                "from; write the density of what depends on it with the site summed out"
            )


def _are_same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    return (
        len(one[0]) == len(other[0])
        and one[1].keys() == other[1].keys()
        and all(
            a is b for a, b in zip((*one[0], *one[1].values()), (*other[0], *other[1].values()), strict=True)
        )
    )


class _Unmasked(Messenger):
    """Leaves latent sites without masks: numbers that are masked out have their prior."""

    def _pyro_sample(self, msg: Any) -> None:
        if is_latent(msg):
            msg["mask"], msg["fn"] = None, _unmasked(msg["fn"])


def _unmasked(fn: Any) -> Any:
    if not is_masked(fn):
        return fn
    inner = _unmasked(fn.base_dist)
    return inner if isinstance(fn, MaskedDistribution) else inner.to_event(fn.reinterpreted_batch_ndims)


class _Cast(Transform):
    """Numbers of a site as Pyro's MCMC keeps them, and (:meth:`inv`) in the site's own dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def inv(self, value: Tensor) -> Tensor:  # type: ignore[override]
        """The numbers in the site's dtype."""
        return value.to(self._dtype)
