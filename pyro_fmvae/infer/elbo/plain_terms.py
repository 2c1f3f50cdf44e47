"""Terms of the bound of a plain program: single sites, and the sum over discrete ones."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import pyro.distributions as dist
import torch
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from pyro.util import check_site_shape
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from pyro_fmvae.distributions import Assignment, Label, LinearDynamics, NaturalDistribution, NaturalParameter
from pyro_fmvae.distributions.exponential_family import natural_class, natural_prior, unwrap
from pyro_fmvae.distributions.gaussian_chain import GaussianPath
from pyro_fmvae.distributions.recorded import is_recorded
from pyro_fmvae.infer.elbo.density import ReusedExpectations, as_number, expectations, log_density
from pyro_fmvae.infer.elbo.distribution_checks import check_components, counted
from pyro_fmvae.infer.elbo.enumerated import DiscreteFactors, is_weighted_latent, label_terms, weighted_terms
from pyro_fmvae.infer.elbo.expansion import Expansion
from pyro_fmvae.infer.elbo.expectation import (
    Expects,
    JointMoments,
    Moments,
    NormalBlockMoments,
    Squares,
    expectation_of,
)
from pyro_fmvae.infer.elbo.lazy import (
    Lazy,
    NeedsValueError,
    Sampled,
    dtype_of,
    has_lazy_arguments,
    missing_in_guide,
    sites_of,
)
from pyro_fmvae.infer.elbo.linear_rules import OutOfRangeError
from pyro_fmvae.infer.elbo.plain import PlainPosteriors, PlainProgram, expectation, without_discrete
from pyro_fmvae.infer.elbo.structure import (
    Child,
    Role,
    Site,
    Structure,
    Term,
    enum_dim,
    in_order,
    is_discrete,
    role_of,
    sample_sites,
    total,
    units_of,
    unmasked,
    values_of,
)
from pyro_fmvae.infer.elbo.sums import Factor, Sum, widest

# Terms of single sites: log-densities, divergences and expectations.


def log_prob_sum(site: Site) -> Tensor:
    """The log-density of a site at its value, scaled and masked, summed over its plates."""
    return total(site["fn"].log_prob(as_number(site["value"])), site)


def kl_sum(q: Distribution, site: Site) -> Tensor:
    """KL(q || p) of a model's site, scaled and masked, summed over its plates.

    Raises:
        NotImplementedError: torch knows no closed form for the pair.
        ValueError: (with validation on) a prior whose λ is outside the domain of its family.
    """
    if is_validation_enabled() and isinstance(unwrap(q), NaturalDistribution):
        _check_prior(site)
    try:
        kl = kl_divergence(q, site["fn"])
    except NotImplementedError:
        raise NotImplementedError(
            f"site '{site['name']}': no closed form of KL(q || p) is registered for q = "
            f"{type(unwrap(q)).__name__} and p = {type(unwrap(site['fn'])).__name__}; add one with "
            "torch.distributions.register_kl, or give the guide another distribution"
        ) from None
    return total(kl, site)


def _check_prior(site: Site) -> None:
    try:
        natural_prior(site["fn"])
    except ValueError as error:
        raise ValueError(f"site '{site['name']}': {error}") from None
    except NotImplementedError:
        pass  # a prior of another class, whose divergence says so


def latent_term(program: Structure, guide: Trace, name: str) -> Term:
    """The term of a latent site: an analytic KL where it is valid, a reparameterised sample otherwise.

    KL(q || p) may stand in for the sample's log-ratio if p's parameters don't depend on anything that the
    guide draws after this site; that holds if whatever precedes the site in the model precedes it in the
    guide.

    Raises:
        ValueError: the guide's distribution can't be sampled with gradients, and not all that hangs on the
            site is integrated over in closed form.
    """
    site, guide_site = program.model.nodes[name], guide.nodes[name]
    q = counted(site, guide_site["fn"])
    role = Role.KL_GLOBAL if _is_parent(program, name) else Role.KL_Z
    if not (q.has_rsample or _is_integrated(program, name)):
        raise ValueError(
            f"site '{name}': {type(unwrap(q)).__name__} in the guide has no reparameterised sampler, and no "
            "registered class sums it out; give the guide a distribution that has_rsample, or the program to "
            "pyro.infer.TraceEnum_ELBO"
        )
    if not isinstance(unwrap(q), dist.Delta) and in_order(program.model, guide, name):
        try:
            return Term(name, role, kl_sum(q, site))
        except NotImplementedError:
            if not q.has_rsample:
                raise
    if not q.has_rsample:
        raise ValueError(
            f"site '{name}': it is not drawn, so it must precede in the guide what it precedes in the model"
        )
    alike = {**guide_site, "fn": q, "scale": site["scale"], "mask": site["mask"]}  # as a KL divergence counts
    return Term(name, role, log_prob_sum(alike) - log_prob_sum(site))


def integrated_term(program: Structure, guide: Trace, child: Child) -> Term:
    """The term of an observed site whose latent parents are integrated over in closed form."""
    site = program.model.nodes[child.name]
    posteriors = {argument: program.posterior(guide, parent) for argument, parent in child.parents.items()}
    expected = expectation(site, program.posterior(guide, child.name), posteriors)
    return Term(child.name, Role.RECONSTRUCTION, -total(expected, site))


def _is_integrated(program: Structure, name: str) -> bool:
    return any(name in child.parents.values() for child in program.integrated)


def _is_parent(program: Structure, name: str) -> bool:
    return any(
        name in parents.values()
        for mixture in program.mixtures
        for parents in (mixture.parents, *(child.parents for child in mixture.children))
    )


def mean_log_density(q: Distribution, stats: Tensor, is_location: bool) -> Tensor:
    """E[log q] [batch shape of q], whose backward delivers λ, and the base measure's part, to λ.

    Args:
        q: a natural distribution, with dimensions of its own if any.
        stats: E[t].
        is_location: True for a location: its terms nearly cancel far from 0, so the value is minus the
            entropy.
    """
    inner: Any = unwrap(q)
    family, natural = inner.family, inner.natural.detach()
    value = (natural * stats).sum(-1) - family.log_normalizer(natural) + family.log_base_measure(stats)
    if is_location:
        with torch.no_grad():
            entropy = family.entropy(natural)
        value = value - (value.detach() + entropy)
    value = value.expand(inner.batch_shape)
    events = len(inner.batch_shape) - len(q.batch_shape)
    return value.flatten(len(q.batch_shape)).sum(-1) if events else value


# The shorthands' own formulas in plain programs: E[log p] by component, at enumerated assignments.


def by_formula(
    site: Site,
    q: Distribution,
    sites: Mapping[str, Site],
    owners: Mapping[int, str],
    parent_of: Callable[[Site], Distribution],
) -> Tensor | None:
    """E_q[log p] of a shorthand: [enumerated dimensions..., batch shape].

    Args:
        site: of the model.
        q: distribution of its value.
        sites: of the model, by name.
        owners: identity of a site's value → its name.
        parent_of: the distribution that a parent's site has.

    Returns:
        None where there is no formula, or where its parents are not the very values of sites.

    Raises:
        ValueError: a parent that does not have one value for each component.
    """
    fn = site["fn"]
    names = {argument: owners.get(id(getattr(fn, argument))) for argument in fn.parents}
    if None in names.values() or isinstance(fn, Label):
        return None
    parents = {argument: sites[name] for argument, name in names.items() if name is not None}
    chosen = parents.pop("assignment", site)
    posteriors: dict[str, Any] = {"assignment": chosen["fn"]}
    for argument, parent in parents.items():
        if chosen is not site:
            check_components(site, argument, parent, chosen["name"], values_of(chosen))
        posteriors[argument] = parent_of(parent)
    table = expectation(site, q, posteriors).to(getattr(fn, fn.parents[0]).dtype)
    table = _at(table, chosen, fn.batch_shape)
    return table.expand(torch.broadcast_shapes(table.shape, fn.batch_shape))


def _at(table: Tensor, chosen: Site, batch_shape: torch.Size) -> Tensor:
    """A table [..., K] at a discrete site's values, with K in the dimension that they are enumerated in."""
    dim = enum_dim(chosen)
    if dim is None:
        index = chosen["value"].expand(batch_shape).unsqueeze(-1)
        return table.expand(*batch_shape, table.shape[-1]).gather(-1, index).squeeze(-1)
    between = -dim - table.dim()
    return table.movedim(-1, 0)[(slice(None), *(None,) * between)]


# Which natural posteriors may take exact steps together, and which have to take them by turns.
#
# Given the probabilities of discrete sites, the bound is a sum of products of E[t] of different posteriors.
# It is linear in those of posteriors that no product has two of: each of these may become the best one given
# all others in the same step, and the bound does not fall. Posteriors in one product have to be updated one
# after another, as in Bishop (2006), Section 10.1.1.


class UpdateOrder:
    """Finds the turns of natural parameters, by the products that log-densities consist of.

    Args:
        naturals: name of a site → its natural parameters, in the order of the model. Sites with a joint
            posterior have the same ones.
    """

    def __init__(self, naturals: Mapping[str, NaturalParameter]) -> None:
        self._naturals = naturals
        self._together: set[frozenset[NaturalParameter]] = set()
        self._within: dict[NaturalParameter, set[tuple[int, int]]] = defaultdict(set)

    def see(self, terms: Sum, moments: Mapping[str, Any]) -> None:
        """Take note of which parameters products have.

        Args:
            terms: a log-density.
            moments: of the sites in it, by name.
        """
        for term in terms:
            factors: dict[str, list[Factor]] = {}
            for f in term:
                if f.site in self._naturals:
                    factors.setdefault(f.site, []).append(f)
            owners = {self._naturals[site] for site in factors}
            self._together.update(map(frozenset, itertools.combinations(owners, 2)))
            for site, own in factors.items():
                if len(own) > 1 and isinstance(moments[site], Moments):
                    self._within[self._naturals[site]].update(moments[site].blocks_apart(own))

    def note(self) -> None:
        """Leave at each parameter in which turns it moves: see :class:`NaturalParameter`."""
        known = list(dict.fromkeys(self._naturals.values()))
        others = defaultdict[NaturalParameter, set[NaturalParameter]](set)
        for one, other in self._together:
            others[one].add(other)
            others[other].add(one)
        levels = {p: levels_of(frozenset(self._within[p])) for p in known}
        schedule: dict[NaturalParameter, list[int]] = {}
        for p in known:
            free = _free(p, others, schedule)
            schedule[p] = list(itertools.islice(free, 1 + max(levels[p].values(), default=0)))
        count = 1 + max(itertools.chain(*schedule.values()), default=0)
        for p in known:
            if len(schedule[p]) == 1:  # it need not wait where nothing stands in its way
                schedule[p] = list(itertools.takewhile(lambda turn: turn < count, _free(p, others, schedule)))
        for p in known:
            moves = _moves(p, schedule[p], levels[p], count) if count > 1 else None
            if moves is None or p.moves is None or not torch.equal(moves, p.moves):
                p.moves = moves


def _free(
    p: NaturalParameter,
    others: Mapping[NaturalParameter, set[NaturalParameter]],
    schedule: Mapping[NaturalParameter, list[int]],
) -> Iterator[int]:
    """The turns, from 0 on, in which none moves that shares a product with p."""
    taken = {turn for q in others[p] for turn in schedule.get(q, ())}
    return (turn for turn in itertools.count() if turn not in taken)


@lru_cache(maxsize=64)  # a program has the same ones in each step
def levels_of(pairs: Set[tuple[int, int]]) -> Mapping[int, int]:
    """Numbers of blocks, different for those in a pair; blocks that are in none are left out."""
    neighbours: dict[int, set[int]] = defaultdict(set)
    for one, other in pairs:
        neighbours[one].add(other)
        neighbours[other].add(one)
    levels: dict[int, int] = {}
    for block in sorted(neighbours):
        taken = {levels[each] for each in neighbours[block] if each in levels}
        levels[block] = next(level for level in itertools.count() if level not in taken)
    return levels


def _moves(p: Tensor, turns: list[int], levels: Mapping[int, int], count: int) -> Tensor:
    """1 where a parameter moves: a row for each turn, and one of 1 for steps of all at once."""
    rows = torch.zeros(count, p.shape[:-1].numel() if levels else 1, dtype=p.dtype)
    if levels:
        for block in range(rows.shape[1]):
            rows[turns[levels.get(block, 0)], block] = 1
    else:
        rows[turns] = 1
    rows = torch.cat([rows, torch.ones_like(rows[:1])])
    batch = p.shape[:-1] if levels else ()
    return rows.view(count + 1, *batch, 1).to(p.device)


# Expected log-densities of a plain program's sites, under the posteriors of its natural sites.


class ExpectedDensities:
    """Takes the expectations of one run, and notes which of them natural posteriors share.

    Args:
        program, guide: the run.
        posteriors: of the natural sites.
        reused: what stays the same while some posteriors change; or None.
    """

    def __init__(
        self,
        program: PlainProgram,
        guide: Trace,
        posteriors: PlainPosteriors,
        reused: ReusedExpectations | None = None,
    ) -> None:
        self._program, self._guide = program, guide
        self._posteriors, self._reused = posteriors, reused
        self._sites, self._guide_sites = sample_sites(program.model), sample_sites(guide)
        self._owners = {id(site["value"]): name for name, site in self._sites.items()}
        units = units_of(self._sites.values())
        self._expansion = Expansion(program.identities, posteriors.centres(), units, keeps_squares=True)
        # Turns depend on numbers; those of a recorded run were found before.
        self._turns = None if is_recorded() else UpdateOrder(posteriors.parameters())

    def note_turns(self) -> None:
        """Tell posteriors that share expectations to take exact steps by turns, once all are taken."""
        if self._turns is not None:
            self._turns.note()

    def of(
        self,
        site: Site,
        value: Tensor,
        dtype: torch.dtype | None = None,
        is_weighted: bool = False,
        own: Mapping[str, Expects] = MappingProxyType({}),
    ) -> Tensor:
        """E[log p] of a site, numbers: [enumerated dimensions..., batch shape].

        Args:
            site: of the model.
            value: of the site, or one that is not there.
            dtype: of the result; if None, that of the program over discrete sites, and float64 elsewhere.
            is_weighted: whether the result is going to be multiplied by ``kl_weight``.
            own: moments of the value, if it is not there and has no natural posterior.
        """
        fn = site["fn"]
        moments = {**(self._posteriors.divided if is_weighted else self._posteriors.moments), **own}
        if hasattr(fn, "parents") and not isinstance(value, Lazy):
            q = fn if isinstance(fn, Assignment) else dist.Delta(value, event_dim=fn.event_dim)
            table = self._by_formula(site, q, is_weighted)
            if table is not None:
                return table

        def evaluate(table: Lazy, shape: torch.Size, dtype: torch.dtype) -> Tensor:
            def found() -> Tensor:
                return self.evaluate(table, shape, moments, dtype)

            return found() if self._reused is None else self._reused.value(site["name"], table, found)

        narrow = dtype or dtype_of(fn)
        if value.is_floating_point():
            narrow = torch.promote_types(narrow, value.dtype)
        try:
            density = log_density(fn, value, lambda table: evaluate(table, table.shape, narrow), self._reused)
        except NeedsValueError:
            raise
        except OutOfRangeError as error:
            frames = self._sites[error.site]["cond_indep_stack"]
            where = next((f" in plate '{f.name}'" for f in frames if f.size == error.size), "")
            raise ValueError(
                f"site '{site['name']}': an index asks for number {error.number} of '{error.site}', of which "
                f"there are {error.size}{where}; expected numbers from 0 to {error.size - 1}, counted within "
                "the batch"
            ) from error
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(
                f"site '{site['name']}': the log-density of a value of shape {tuple(value.shape)} under "
                f"{type(unwrap(fn)).__name__} of batch shape {tuple(fn.batch_shape)} and event shape "
                f"{tuple(fn.event_shape)} can't be computed ({error})"
            ) from error
        shape = torch.broadcast_shapes(density.shape, fn.batch_shape)
        density = density.expand(shape)
        if is_validation_enabled():
            check_site_shape({**site, "log_prob": density}, self._program.plates)
        if isinstance(density, Lazy):
            outer = shape[: max(len(shape) - self._program.plates, 0)].numel()
            known: Any = density
            is_single = outer == 1 and enum_dim(site) is None and site["is_observed"]
            if is_single and site["mask"] is None and not torch.as_tensor(site["scale"]).dim():
                known, shape = density.sum(), torch.Size()  # of data first: their products do not change
            density = evaluate(known, shape, narrow if outer > 1 else widest(density.device))
        return density

    def is_at_draw(self, name: str) -> bool:
        """True for a drawn site whose density may only count at its draw."""
        drawn = without_discrete(self._guide)  # the order of what is not drawn does not matter
        return name in self._program.used or not in_order(self._program.model, drawn, name)

    def in_closed_form(self, name: str, q: Distribution, is_weighted: bool) -> Tensor | None:
        """E[log p] of a drawn site under q of the guide; None if only its draw counts, or none is known."""
        if self.is_at_draw(name):
            return None
        site, inner = self._sites[name], unwrap(q)
        if isinstance(inner, GaussianPath) and isinstance(unwrap(site["fn"]), LinearDynamics):
            return self._of_path(site, inner, is_weighted)
        if hasattr(site["fn"], "parents") and not isinstance(inner, dist.Delta):
            table = self._by_formula(site, q, is_weighted)
            if table is not None:
                return table
        known = self.undrawn(name)
        if known is None:
            return None
        symbol, own = known
        try:
            return self.of(site, symbol, is_weighted=is_weighted, own={name: own})
        except NeedsValueError:
            return None

    def undrawn(self, name: str) -> tuple[Lazy, Moments] | None:
        """A stand-in for the value of a drawn site, and its moments, if its family has any."""
        inner: Any = unwrap(self._guide_sites[name]["fn"])
        if (kind := natural_class(inner)) is None or not kind.family.monomials:
            return None
        value = self._sites[name]["value"]
        stats = kind.family.stats_from_standard(*kind.family.standard_of(inner))
        sampled = Sampled(name, self._sites[name]["fn"].support)
        symbol = Lazy.make(value.shape, value.dtype, value.device, sampled)
        return symbol, Moments(kind.family, stats.expand(*inner.batch_shape, stats.shape[-1]), value.shape)

    def evaluate(
        self, table: Lazy, shape: torch.Size, moments: Mapping[str, Expects], dtype: torch.dtype
    ) -> Tensor:
        """The expectation of a lazy table, expanded to a shape."""
        terms = self._expansion.of(table)
        products, all_moments = terms, moments
        if self._expansion.squares:
            squares = Squares(self._expansion.squares, moments, dtype, table.device)
            terms = squares.apart(terms)
            products, all_moments = squares.products(terms), squares.moments(terms)
        if self._turns is not None:
            self._turns.see(products, moments)
        return expectation_of(terms, shape, all_moments, dtype, table.device)

    def _of_path(self, site: Site, path: GaussianPath, is_weighted: bool) -> Tensor:
        """E[log p] of the states of linear dynamics."""
        moments = self._posteriors.divided if is_weighted else self._posteriors.moments

        def evaluate(table: Lazy) -> Tensor:
            return self.evaluate(table, table.shape, moments, table.dtype)

        fn: Any = unwrap(site["fn"])
        table = fn.chain(*expectations(evaluate)).mean_log_weight(path.chain)
        return table.to(path.dtype).expand(torch.broadcast_shapes(table.shape, fn.batch_shape))

    def _by_formula(self, site: Site, q: Distribution, is_weighted: bool) -> Tensor | None:
        def parent_of(parent: Site) -> Distribution:
            name = parent["name"]
            if not self._posteriors.is_natural(name):
                return dist.Delta(parent["value"], event_dim=parent["fn"].event_dim)
            return self._posteriors.of_weighted(name) if is_weighted else self._posteriors.of(name)

        return by_formula(site, q, self._sites, self._owners, parent_of)


@dataclass
class Bound:
    """Evaluates the terms of one run.

    Args:
        program, guide: the run.
        kl_weight: weight of the terms of drawn latents of single data points.
        label_weight: Δ of equation 8.
        reused: what stays the same while some posteriors change, whose divergences alone then count; or None.
    """

    program: PlainProgram
    guide: Trace
    kl_weight: float | Tensor = 1.0
    label_weight: float | Tensor = 0.0
    reused: ReusedExpectations | None = None
    terms: list[Term] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sites = sample_sites(self.program.model)
        self.guide_sites = sample_sites(self.guide)
        self.factors: list[Site] = []
        self.given: dict[str, Tensor] = {}
        self.weighted: dict[str, Tensor] = {}
        self.posteriors = PlainPosteriors(self.sites, self.guide_sites, self.kl_weight)
        self.densities = ExpectedDensities(self.program, self.guide, self.posteriors, self.reused)

    def collect(self) -> None:
        """Fill in the terms of single sites, and the factors that depend on discrete ones."""
        for name, site in self.sites.items():
            if is_discrete(site):
                self._discrete(name, site)
            elif site["is_observed"]:
                self._add(
                    name, site, self.densities.of(site, unmasked(site)), role_of(site, Role.RECONSTRUCTION)
                )
            elif self.posteriors.is_natural(name):
                self._natural(name, site)
            elif name in self.guide_sites:
                self._drawn(name, site)
            else:
                self._leaf(name, site)
        for name in self.program.structure.auxiliary:
            site = self.guide_sites[name]
            self.terms.append(Term(name, role_of(site, Role.KL_Z), log_prob_sum(site)))

    def all_terms(self) -> list[Term]:
        """The summands of the loss."""
        self.collect()
        self.densities.note_turns()
        if self.factors:
            names = [site["name"] for site in self.factors if enum_dim(site) is not None]
            name = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            self.terms.append(Term(name, Role.KL_R, -self.summed().log_sum()))
            self.terms += weighted_terms(self.factors, self.given, self.weighted, self.kl_weight)
        if isinstance(self.label_weight, Tensor) or self.label_weight > 0:
            self.terms += label_terms(self.sites, self._unweighted(), self.program.plates, self.label_weight)
        return self.terms

    def _unweighted(self) -> list[Site]:
        """The factors with the tables that gradients of latents go through."""
        return [
            {**site, "unscaled_log_prob": self.weighted.get(site["name"], site["unscaled_log_prob"])}
            for site in self.factors
        ]

    def summed(self) -> DiscreteFactors:
        """The sum over discrete sites."""
        dtypes = [site["unscaled_log_prob"].dtype for site in self.factors]
        widest = max(dtypes, key=lambda dtype: torch.finfo(dtype).bits)
        for site in self.factors:
            site["unscaled_log_prob"] = site["unscaled_log_prob"].to(widest)
        given = {name: q.to(widest) for name, q in self.given.items()}
        return DiscreteFactors(self.factors, given, self.program.points)

    def _discrete(self, name: str, site: Site) -> None:
        self._add(name, site, self.densities.of(site, site["value"]), Role.KL_R)
        if name in self.guide_sites:
            q = self.guide_sites[name]["fn"]
            self.given[name] = q.log_prob(site["value"])

    def _natural(self, name: str, site: Site) -> None:
        q, prior = self.posteriors.of(name), site["fn"]
        same = natural_class(unwrap(prior)) is type(unwrap(q)) and not has_lazy_arguments(prior)
        if same and not self._is_enumerated(prior, q):
            if self.reused is not None and name not in self.reused.moving:
                return  # a constant
            self.terms.append(Term(name, Role.KL_GLOBAL, kl_sum(q, site), natural=True))
            return
        self._add(name, site, self.densities.of(site, site["value"], torch.float64), Role.KL_GLOBAL)
        own = self.posteriors.moments[name]
        if isinstance(own, JointMoments) and name == own.precision:
            return  # E[log q] of a joint posterior is a term of the location
        if isinstance(own, NormalBlockMoments):
            if name == own.block.names[0]:
                part: Any = unwrap(q)
                density = site["scale"] * mean_log_density(part.whole(), own.whole.stats, True)
                self.terms.append(Term(name, Role.KL_GLOBAL, density, natural=True))
            return
        density = mean_log_density(q, own.stats, isinstance(own, Moments) and own.about is not None)
        self.terms.append(Term(name, Role.KL_GLOBAL, total(density, site), natural=True))

    def _drawn(self, name: str, site: Site) -> None:
        """A site that is drawn for others; its own density counts in closed form where it may."""
        q = counted(site, self.guide_sites[name]["fn"])
        is_weighted = is_weighted_latent(site, self.sites.values(), self.kl_weight)
        weight = self.kl_weight if is_weighted else 1.0
        if not (has_lazy_arguments(site["fn"]) or self._is_enumerated(site["fn"], q)):
            term = latent_term(self.program.structure, self.guide, name)
            self.terms.append(replace(term, value=weight * term.value))
            return
        if not q.has_rsample:
            raise ValueError(
                f"site '{name}': {type(unwrap(q)).__name__} in the guide has no reparameterised sampler; "
                "give it a distribution that has_rsample"
            )
        table = self.densities.in_closed_form(name, q, is_weighted)
        if table is None:
            log_q = q.log_prob(site["value"])
            table = self.densities.of(site, site["value"], is_weighted=is_weighted)
        else:
            log_q = -q.entropy()
        self._add(name, site, table, Role.KL_Z, is_weighted)
        self.terms.append(Term(name, Role.KL_Z, weight * total(log_q, site)))

    def _is_enumerated(self, prior: Distribution, q: Distribution) -> bool:
        """True for a prior with a discrete parent."""
        return len(prior.batch_shape) > max(self.program.plates, len(q.batch_shape))

    def _leaf(self, name: str, site: Site) -> None:
        """An unobserved site that the guide leaves out integrates to 1, if nothing depends on it."""
        users = [
            other
            for other, each in self.sites.items()
            if other != name
            and (name in sites_of(each["value"]) or name in sites_of(list(vars(unwrap(each["fn"])).values())))
        ]
        if users:
            raise ValueError(missing_in_guide(name, plain=True))

    def _add(self, name: str, site: Site, table: Tensor, role: Role, is_weighted: bool = False) -> None:
        """A term of one site, or a factor of the sum over discrete sites."""
        outer = table.shape[: max(table.dim() - self.program.plates, 0)]
        if enum_dim(site) is None and math.prod(outer) == 1:
            weight = self.kl_weight if is_weighted else 1.0
            self.terms.append(Term(name, role, -weight * total(table, site)))
            return
        if is_weighted:
            self.weighted[name] = table
            table = table.detach()
        scale = site.get("unweighted", site["scale"])
        self.factors.append({**site, "scale": scale, "unscaled_log_prob": table})
