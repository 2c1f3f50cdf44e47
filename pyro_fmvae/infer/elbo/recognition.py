"""Finding the conjugate sites of a plain program, each with the family of its posterior.

A family is chosen by what log-densities are made of: the support of the site, and the products of its
elements that they are linear in. The prior's class does not matter. Hoffman, Johnson and Tran (2018), Section
4, find complete conditionals in the same way.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyro.poutine as poutine
import torch
from pyro.poutine.enum_messenger import EnumMessenger
from torch import Tensor

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.distributions.joint_kinds import JointKind
from pyro_fmvae.distributions.natural_distribution import event_dim_of, natural_class, natural_classes_on
from pyro_fmvae.infer.elbo.density import has_lazy_arguments, log_density
from pyro_fmvae.infer.elbo.enumerated import Enumerated, is_discrete, is_latent, units_of
from pyro_fmvae.infer.elbo.expansion import Expansion
from pyro_fmvae.infer.elbo.expectation import (
    Moments,
    Monomial,
    Squares,
    are_distinct,
    by_site,
    expectation_of,
    monomial,
)
from pyro_fmvae.infer.elbo.joint_moments import JointSearch
from pyro_fmvae.infer.elbo.lazy import Lazy, NeedsValueError
from pyro_fmvae.infer.elbo.observed_shapes import check_observed, check_support
from pyro_fmvae.infer.elbo.reasons import Use, has_family, reason_for, reason_of_program
from pyro_fmvae.infer.elbo.structure import Site, sample_sites, unmasked
from pyro_fmvae.infer.elbo.sums import Product
from pyro_fmvae.infer.elbo.trial_runs import GivenValues, at_first_values, check_discrete, without_slopes

_UNOBSERVED = "_unobserved"  # the end of the names that Pyro gives to what obs_mask leaves out


@dataclass
class Recognised:
    """The sites of a model, by how their posteriors can be had.

    Attributes:
        kinds: conjugate sites, in the model's order, with the class of their natural posteriors.
        priors: their priors in natural parameters; under the posteriors of other sites, where these are
            parameters of the prior.
        drawn: other latent sites of continuous values, with the reason why they have to be drawn.
        discrete: names of the sites that are summed out.
        leaves: names of the sites of ``obs_mask`` for what was not observed, where nothing depends on them.
        sites: all sample sites by name, from a run without enumeration.
        joint: locations that may have a joint posterior with their precision: its name, and the kind.
        apart: locations that may not have one with a site that they are multiplied with, and the reason.
        left_out: clamps of sites that are left out, by the site's name.
        flat: drawn sites whose draws get no gradient from a site that depends on them, and the reason.
    """

    kinds: dict[str, type[NaturalDistribution]] = field(default_factory=dict)
    priors: dict[str, NaturalDistribution] = field(default_factory=dict)
    drawn: dict[str, str] = field(default_factory=dict)
    discrete: list[str] = field(default_factory=list)
    leaves: list[str] = field(default_factory=list)
    sites: dict[str, Site] = field(default_factory=dict)
    joint: dict[str, tuple[str, JointKind]] = field(default_factory=dict)
    apart: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    flat: dict[str, str] = field(default_factory=dict)


def recognise_conjugacy(model: Any, args: Any, kwargs: Any, local: Collection[str] = ()) -> Recognised:
    """Find the conjugate sites of a model.

    Nothing is drawn from priors, and torch's random numbers stay as they are.

    Args:
        model, args, kwargs: the program.
        local: names of plates that may be subsampled, as the posteriors in them are those of a batch alone.

    Raises:
        ValueError: a discrete site that can't be enumerated.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        with poutine.block(), GivenValues({}):
            trace = at_first_values(lambda first: poutine.trace(first(model)).get_trace(*args, **kwargs))
        sites = sample_sites(trace)
        check_discrete(model, args, kwargs, sites)
        found = Recognised(sites=sites, discrete=[name for name, site in sites.items() if is_discrete(site)])
        search = _Search(model, args, kwargs, found, local)
        search.run()
        found.flat = without_slopes(model, args, kwargs, sites, found.drawn)
    return found


class _Search:
    """Tries the sites that may be conjugate together, and leaves out those that are not until all are."""

    def __init__(self, model: Any, args: Any, kwargs: Any, found: Recognised, local: Collection[str]) -> None:
        self._program = model, args, kwargs
        self._found, self._local = found, local
        self._latent = {n: s for n, s in found.sites.items() if is_latent(s) and not is_discrete(s)}
        self._uses: dict[str, list[Use]] = {}
        self._parents: set[str] = set()
        self._terms: list[tuple[str, Product]] = []
        self._failed: Set[str] = frozenset()
        self._identities: dict[Hashable, bool] = {}
        self._units: Set[int] = frozenset()
        frames = [f for site in found.sites.values() for f in site["cond_indep_stack"] if f.vectorized]
        self._plates = max((-frame.dim for frame in frames), default=0)

    def run(self) -> None:
        """Fill in what was found."""
        candidates = dict(self._latent)
        hidden = {
            name: why for name, site in self._latent.items() if (why := hidden_in_plate(site, self._local))
        }
        self._drop(candidates, hidden)
        strange = [
            n for n, s in candidates.items() if not natural_classes_on(s["fn"].support, s["fn"].event_shape)
        ]
        strange = [name for name in strange if not name.endswith(_UNOBSERVED)]
        if strange:
            with suppress(NeedsValueError):  # for their uses alone
                self._attempt(candidates)
            self._drop(candidates, {name: self._reason(name) for name in strange})
        while True:
            try:
                traced, pairs = self._attempt(candidates)
            except NeedsValueError as error:
                error = error.first()
                self._drop(candidates, dict.fromkeys(error.sites, reason_of_program(error.use)))
                continue
            if self._failed:
                self._drop(candidates, {name: self._reason(name) for name in sorted(self._failed)})
                continue
            for name in [n for n in candidates if n.endswith(_UNOBSERVED) and n not in self._parents]:
                self._found.leaves.append(name)
                del candidates[name]
            kinds = {n: _family_of(site, self._products(n), n in pairs) for n, site in candidates.items()}
            missing = {n: self._reason(n) for n, kind in kinds.items() if kind is None}
            if not missing:
                self._found.kinds = {n: kind for n, kind in kinds.items() if kind is not None}
                missing = self._find_priors(traced)
                if not missing:
                    search = JointSearch(self._found.kinds, self._found.sites, self._terms)
                    self._found.joint, self._found.apart = search.run()
                    return
            self._drop(candidates, missing)

    def _drop(self, candidates: dict[str, Site], reasons: dict[str, str]) -> None:
        for name, reason in reasons.items():
            del candidates[name]
            self._found.drawn[name] = reason

    def _reason(self, name: str) -> str:
        return reason_for(self._latent[name], self._uses.get(name, []))

    def _products(self, name: str) -> set[Monomial]:
        return set().union(*(use.products for use in self._uses[name]))

    def _attempt(self, candidates: dict[str, Site]) -> tuple[dict[str, Site], set[str]]:
        """Run the model without values of candidates: its sites, and which candidates have pairs.

        Fills in the uses of each candidate, and the names of those that the first density without a closed
        form depends on.
        """
        model, args, kwargs = self._program
        values = {name: site["value"] for name, site in self._latent.items() if name not in candidates}
        enumeration = EnumMessenger(first_available_dim=-1 - self._plates)
        with poutine.block(), GivenValues(values, candidates), enumeration, Enumerated():
            traced = sample_sites(poutine.trace(model).get_trace(*args, **kwargs))
        self._units = units_of(traced.values())
        expansion = Expansion(self._identities, units=self._units, keeps_squares=True)
        pairs: set[str] = set()
        seen: dict[str, set[Monomial]] = {}

        def read(table: Lazy) -> Tensor:
            squares = Squares(expansion.squares, {}, table.dtype, table.device)
            for term in squares.products(squares.apart(expansion.of(table))):
                self._terms.append((site["name"], term))
                for name, factors in by_site(term).items():
                    found = monomial(factors)
                    if found is None:
                        powers = "·".join(f"{f.function}^{f.power:g}" for f in factors)
                        raise NeedsValueError.of({name}, powers)
                    seen.setdefault(name, set()).add(found[0])
                    if are_distinct(found[1]):
                        pairs.add(name)
            return torch.zeros(table.shape, dtype=table.dtype, device=table.device)

        self._uses = {name: [] for name in candidates}
        self._failed, self._terms = frozenset(), []
        for site in traced.values():
            if site["is_observed"]:
                check_observed(site)
                check_support(site)
            value = unmasked(site) if site["is_observed"] else site["value"]
            seen, failure = {}, None
            try:
                density = log_density(site["fn"], value, read)
                if isinstance(density, Lazy):
                    read(density)
            except NeedsValueError as error:
                failure = error
                self._failed = self._failed or error.sites
            for name in seen.keys() | (failure.sites if failure else set()):
                use = Use.of(name, site, seen.get(name, set()), failure, expansion)
                if failure is not None and name in failure.sites:
                    use.guard = self._guard_in_the_way(name, site, value)
                self._uses[name].append(use)
        self._found.left_out = expansion.left_out
        self._parents = {n for n, uses in self._uses.items() if any(u.user["name"] != n for u in uses)}
        return traced, pairs

    def _guard_in_the_way(self, name: str, user: Site, value: Tensor) -> str | None:
        """A guard without which a density would have a family for a site; None if it lacks more than that."""
        expansion = Expansion(self._identities, units=self._units, without_guards=True)
        products: set[Monomial] = set()

        def read(table: Lazy) -> Tensor:
            for term in expansion.of(table):
                found = monomial(by_site(term).get(name, []))
                if found is None:
                    raise NeedsValueError.of({name}, "a power")
                products.add(found[0])
            return torch.zeros(table.shape, dtype=table.dtype, device=table.device)

        try:
            density = log_density(user["fn"], value, read)
            if isinstance(density, Lazy):
                read(density)
        except NeedsValueError:
            return None
        fits = has_family(self._latent[name], products - {()})
        return expansion.left_out.get(name) if fits else None

    def _find_priors(self, traced: dict[str, Site]) -> dict[str, str]:
        """Fill in the priors; the reasons for those that have none."""
        moments: dict[str, Moments] = {}
        spreads = spreads_of_data(traced.values())
        for name, kind in self._found.kinds.items():
            site, family = traced[name], kind.family
            shape = site["value"].shape
            batch = shape[: len(shape) - event_dim_of(family)]
            event = shape[len(batch) :]
            prior = self._prior(name, site, kind, (*batch, family.size(event)), moments)
            if not bool(family.in_domain(prior).all()):
                return {name: "its prior is not a density of the family by itself"}
            self._found.priors[name] = kind(prior, site["value"].dtype, validate_args=False)
            start = family.scattered_start(no_wider(self._found.priors[name], spreads), 1.0, None)
            moments[name] = Moments(family, family.mean_stats(start), shape)
        return {}

    def _prior(
        self, name: str, site: Site, kind: Any, shape: tuple[int, ...], moments: dict[str, Moments]
    ) -> Tensor:
        """λ₀ [..., P]: the gradient of E[log p] with respect to E[t], without the base measure's part."""
        fn, family = site["fn"], kind.family
        if natural_class(unwrap(fn)) is kind and not has_lazy_arguments(fn):
            packed = family.pack(unwrap(fn))
            enumerated = list(range(packed.dim() - len(shape)))  # dimensions of discrete parents
            return (packed.mean(enumerated) if enumerated else packed).expand(shape)
        stats = torch.zeros(shape, dtype=torch.float64, device=site["value"].device, requires_grad=True)

        def expect(table: Lazy) -> Tensor:
            terms = Expansion(self._identities, units=self._units).of(table)
            return expectation_of(terms, table.shape, known, torch.float64, table.device)

        with torch.enable_grad():
            known = {**moments, name: Moments(family, stats, site["value"].shape)}
            density = log_density(fn, site["value"], expect)
            mean = expect(density) if isinstance(density, Lazy) else density
            shape_of_one = site["value"].shape[: site["value"].dim() - fn.event_dim]
            copies = max(mean.numel() // max(shape_of_one.numel(), 1), 1)  # under enumerated parents
            parts = mean.sum() / copies, family.log_base_measure(stats).sum()
            slopes = [
                torch.autograd.grad(part, stats, allow_unused=True)[0] if part.requires_grad else None
                for part in parts
            ]
        first, second = (torch.zeros_like(stats) if slope is None else slope for slope in slopes)
        return (first - second).detach()


def spreads_of_data(sites: Iterable[Site]) -> list[tuple[Tensor, Tensor]]:
    """Mean and variance of the numbers of each observed site of floating numbers, each []."""
    observed = (site["value"].detach() for site in sites if site["is_observed"])
    known = (value for value in observed if not isinstance(value, Lazy) and value.is_floating_point())
    finite = [value[value.isfinite()].double() for value in known]
    return [(x.mean(), x.var(correction=0)) for x in finite if x.numel()]


def no_wider(prior: NaturalDistribution, spreads: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """λ₀ [..., P], but a location is spread about its prior's mean no further than data are.

    Starts from a vague prior would be as far away as it reaches, and training would crawl from there.
    """
    if prior.family.monomials != {("x",), ("x", "x")} or not spreads:
        return prior.natural
    mean, variance = (t.double().reshape(*prior.batch_shape, -1) for t in (prior.mean, prior.variance))
    most = torch.stack([(own + (mean - x).square()).amax(-1, keepdim=True) for x, own in spreads]).amax(0)
    ratio = variance.amax(-1, keepdim=True) / most
    return prior.natural * ratio.clamp(min=1.0).where(most > 0, 1.0)


def hidden_in_plate(site: Site, local: Collection[str] = ()) -> str | None:
    """The reason why one run does not show all of a site; None if it does, or if its plate is ``local``."""
    for frame in site["cond_indep_stack"]:
        if frame.full_size not in (None, frame.size) and frame.name not in local:
            return (
                f"plate '{frame.name}' is subsampled, so no run shows its posterior whole; have it found for "
                f"each batch by local=['{frame.name}'], or write it by hand"
            )
    return None


def _family_of(site: Site, seen: set[Monomial], has_pairs: bool) -> type[NaturalDistribution] | None:
    """The class of natural posteriors with all monomials: a joint one, if products of elements occur."""
    kinds = natural_classes_on(site["fn"].support, site["fn"].event_shape)
    if has_pairs:
        kinds.sort(key=lambda kind: event_dim_of(kind.family) == 0)
    return next((kind for kind in kinds if seen <= kind.family.monomials), None)
