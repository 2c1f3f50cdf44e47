"""Finding the conjugate sites of a plain program, each with the family of its posterior.

A family is chosen by what log-densities are made of: the support of the site, and the products of its
elements that they are linear in. The prior's class does not matter. Hoffman, Johnson and Tran (2018), Section
4, find complete conditionals in the same way.
"""

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.distributions import ExpandedDistribution, MaskedDistribution
from pyro.poutine import Trace
from pyro.poutine.enum_messenger import EnumMessenger
from torch import Tensor
from torch.distributions import Independent, constraints
from torch.utils._pytree import tree_leaves

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.distributions.exponential_family import (
    event_dim_of,
    natural_class,
    natural_classes_on,
    unwrap,
)
from pyro_fmvae.distributions.joint_parts import BlockNormal, JointKind
from pyro_fmvae.infer.elbo.density import log_density
from pyro_fmvae.infer.elbo.distribution_checks import check_observed, check_support
from pyro_fmvae.infer.elbo.expansion import OF_A_SUM, Expansion
from pyro_fmvae.infer.elbo.expectation import (
    Couplings,
    CouplingSearch,
    JointSearch,
    Moments,
    Monomial,
    Squares,
    are_distinct,
    by_site,
    expectation_of,
    monomial,
)
from pyro_fmvae.infer.elbo.lazy import (
    TRUTH_VALUE,
    Lazy,
    NeedsValueError,
    functions_of,
    has_lazy_arguments,
    held,
    sites_of,
)
from pyro_fmvae.infer.elbo.plain import Undrawn
from pyro_fmvae.infer.elbo.structure import (
    Enumerated,
    Site,
    Structure,
    enum_dim,
    has_shorthand,
    is_discrete,
    is_latent,
    sample_sites,
    units_of,
    unmasked,
)
from pyro_fmvae.infer.elbo.sums import Product, SquareOfSum, Sum
from pyro_fmvae.infer.elbo.trial_runs import GivenValues, at_first_values, check_discrete, without_slopes

# Reasons why the posterior of a site has no closed form, with what to write for one that has.

_PRECISION = "give the precision a Gamma prior, and write precision.rsqrt() as the scale"
_MATRIX = "give the precision matrix a Wishart prior, and pass it as precision_matrix="
_PROBABILITY = "without regressors, give probs= a Beta prior, or a Dirichlet prior for several values"
_ARGUMENTS = {
    "scale": _PRECISION,
    "scale_tril": _MATRIX,
    "covariance_matrix": _MATRIX,
    "rate": "without regressors, give the rate a Gamma prior",
    "probs": _PROBABILITY,
    "logits": _PROBABILITY,
}
_CLASSES = {
    "ZeroInflatedPoisson": (
        "write a Bernoulli site z in its plate, with a Beta prior, and a Poisson of "
        "torch.where(z == 1, rate, 0.0)"
    ),
    "StudentT": "write a Normal, with a Gamma(df / 2, df / 2) site in its plate as a factor of the precision",
    "LKJCholesky": _MATRIX,
    "Weibull": "give a rate a Gamma prior, and write rate ** (-1 / concentration) as the scale",
    "GammaPoisson": "write a Gamma of concentration and rate in its plate, and a Poisson of that",
}
_OF_SEVERAL = {"Categorical", "OneHotCategorical", "Multinomial"}
_CONJUGATE = {"rate": {"Gamma"}, "probs": {"Beta", "Dirichlet"}}
_UNGUARDED = "leave it out, as expectations of logarithms are finite without it"
_NO_EVENT = (
    "a Bernoulli of exp(-x) that is 1 has the density of a Poisson of x that is 0: write that, if no 0 is "
    "observed"
)
_SUM = "a sum has none, so pick one value by an index, such as precision[z], where that is meant"


@dataclass
class Use:
    """How the log-density of one site depends on the value of another, or on its own.

    Attributes:
        user: the site whose density it is.
        arguments: names of the arguments of its distribution that depend on the value; none for a site's own.
        products: monomials of the value that the log-density is linear in.
        needed_for: a function without a closed form, in words; None if the log-density is a sum of products.
        is_in_argument: True if the program, not the density, calls that function.
        functions: names of those that the program computes the arguments by.
        guard: a small number or a clamp without which the log-density had a closed form.
    """

    user: Site
    arguments: list[str]
    products: set[Monomial]
    needed_for: str | None = None
    is_in_argument: bool = False
    functions: Set[str] = frozenset()
    guard: str | None = None

    @classmethod
    def of(
        cls,
        name: str,
        user: Site,
        products: set[Monomial],
        error: NeedsValueError | None,
        expansion: Expansion,
    ) -> "Use":
        """How the log-density of a site depends on the value of the site ``name``.

        Args:
            name, user, products: as above.
            error: that reading the log-density raised.
            expansion: of the run's values.
        """
        from_it = {
            key.removeprefix("_unbroadcasted_"): part
            for key, part in held(user["fn"])
            if name in sites_of(part)
        }
        use = error.use if error is not None and name in error.sites else None
        arguments = [key for key in from_it if not key.startswith("_")]
        is_in_argument = use is not None and use in {
            _needed_for(part, expansion) for part in from_it.values()
        }
        return cls(user, arguments, products, use, is_in_argument, functions_of(list(from_it.values())))

    def __str__(self) -> str:
        what = " and ".join(self.arguments) or "an argument"
        return f"{what} of {_class_of(self.user)} at '{self.user['name']}'"


def _needed_for(x: Any, expansion: Expansion) -> str | None:
    """The function because of which a value is no sum of products; None if it is one."""
    try:
        expansion.of(x)
    except NeedsValueError as error:
        return error.use
    return None


def reason_of_program(use: str) -> str:
    """Why a site is drawn whose value the model asks for outside of densities, for a function in words."""
    if use == TRUTH_VALUE:
        return "the model branches on its value"
    if use == "'setitem'":
        return "the model writes it into a tensor by an assignment; write torch.cat, torch.stack or F.pad"
    return (
        f"the model takes its value out of the tensor, or writes into it, by {use}; compute with the tensor"
    )


def reason_for(site: Site, uses: Iterable[Use]) -> str:
    """Why a site has no conjugate posterior, and what to write instead where there is something.

    Args:
        site: that has to be drawn.
        uses: of its value by all densities, its own among them.
    """
    others = [use for use in uses if use.user["name"] != site["name"]]
    kinds = natural_classes_on(site["fn"].support, site["fn"].event_shape)
    hard = next((use for use in others if not _covering(kinds, [use])), None)
    prior = _class_of(site)
    if hard is not None and hard.guard is not None:
        return f"no closed form as {hard}, because of {hard.guard}; {_UNGUARDED}"
    if hard is not None:
        because = f", because of {hard.needed_for}" if hard.is_in_argument else ""
        on_reals = natural_classes_on(constraints.real, site["fn"].event_shape)
        normal = "a Normal prior, on all real numbers, has one" if _covering(on_reals, [hard]) else None
        return _with_advice(f"no closed form as {hard}{because}", _advice(hard, prior) or normal)
    if not others:
        return _with_advice(f"no family has the density of its {prior} prior", _CLASSES.get(prior))
    fitting = _covering(kinds, others)
    users = ", ".join(map(str, others))
    if not fitting:
        return f"no family of posteriors goes with all of {users}"
    names = " or ".join(kind.family.distribution.__name__ for kind in fitting)
    article = "an" if names[0] in "AEIOU" else "a"
    return _with_advice(f"its {prior} prior is not conjugate to {users}", f"write {article} {names} prior")


def has_family(site: Site, products: Set[Monomial]) -> bool:
    """True if a family on the support of a site has these products among its statistics."""
    kinds = natural_classes_on(site["fn"].support, site["fn"].event_shape)
    return any(products <= kind.family.monomials for kind in kinds)


def _covering(kinds: list[type[NaturalDistribution]], uses: list[Use]) -> list[type[NaturalDistribution]]:
    products = set().union(*(use.products for use in uses))
    readable = not any(use.needed_for for use in uses)
    return [kind for kind in kinds if readable and products <= kind.family.monomials]


def _advice(use: Use, prior: str) -> str | None:
    if use.is_in_argument and str(use.needed_for).endswith(OF_A_SUM):
        return _SUM
    if prior == "Beta" and _class_of(use.user) in _OF_SEVERAL and not use.is_in_argument:
        return "its probabilities add up to 1, so give all of them one Dirichlet prior"
    if prior == "Gamma" and _class_of(use.user) == "Bernoulli" and "exp" in use.functions:
        return _NO_EVENT
    by_class = _CLASSES.get(_class_of(use.user)) or _CLASSES.get(prior)
    return by_class or next(filter(None, (_by_argument(use, name, prior) for name in use.arguments)), None)


def _by_argument(use: Use, name: str, prior: str) -> str | None:
    """Advice for an argument; None if the program follows it already."""
    if prior in _CONJUGATE.get(name, ()):
        return f"its {prior} prior has one where {name} is the value itself" if use.functions else None
    if name == "scale" and prior == "Gamma" and "rsqrt" in use.functions:
        return None
    return _ARGUMENTS.get(name)


def _with_advice(reason: str, advice: str | None) -> str:
    return reason if advice is None else f"{reason}; {advice}"


def _class_of(site: Site) -> str:
    fn = site["fn"]
    while isinstance(fn, Independent | ExpandedDistribution | MaskedDistribution):
        fn = fn.base_dist
    return type(fn).__name__


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
        couplings: which conjugate sites depend on each other given all others.
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
    couplings: Couplings = field(default_factory=Couplings)


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


def _may_be_index(argument: Any) -> bool:
    kind = getattr(argument, "dtype", None)
    return kind is not None and not isinstance(argument, torch.nn.Module) and "float" not in str(kind)


class _Search:
    """Tries the sites that may be conjugate together, and leaves out those that are not until all are."""

    def __init__(self, model: Any, args: Any, kwargs: Any, found: Recognised, local: Collection[str]) -> None:
        self._program = model, args, kwargs
        self._found, self._local = found, local
        self._latent = {n: s for n, s in found.sites.items() if is_latent(s) and not is_discrete(s)}
        self._uses: dict[str, list[Use]] = {}
        self._parents: set[str] = set()
        self._terms: list[tuple[str, Product]] = []
        self._sums: list[tuple[str, Sum, Mapping[str, SquareOfSum]]] = []
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
                    dims = {enum_dim(site): name for name, site in traced.items()}
                    enumerated = {dim: name for dim, name in dims.items() if dim is not None}
                    every = self._found.kinds, self._found.sites, self._sums, self._terms, enumerated
                    has_indices = any(map(_may_be_index, tree_leaves(self._program[1:])))
                    self._found.couplings = CouplingSearch(*every, has_indices).run()
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
        monomials: dict[str, set[Monomial]] = {}

        def read(table: Lazy) -> Tensor:
            squares, known = Squares(expansion.squares, {}, table.dtype, table.device), expansion.of(table)
            self._sums.append((site["name"], known, expansion.squares))
            for term in squares.products(squares.apart(known)):
                self._terms.append((site["name"], term))
                for name, factors in by_site(term).items():
                    found = monomial(factors)
                    if found is None:
                        powers = "·".join(f"{f.function}^{f.power:g}" for f in factors)
                        raise NeedsValueError.of({name}, powers)
                    monomials.setdefault(name, set()).add(found[0])
                    if are_distinct(found[1]):
                        pairs.add(name)
            return torch.zeros(table.shape, dtype=table.dtype, device=table.device)

        self._uses = {name: [] for name in candidates}
        self._failed, self._terms, self._sums = frozenset(), [], []
        for site in traced.values():
            if site["is_observed"]:
                check_observed(site)
                check_support(site)
            value = unmasked(site) if site["is_observed"] else site["value"]
            monomials, failure = {}, None
            try:
                density = log_density(site["fn"], value, read)
                if isinstance(density, Lazy):
                    read(density)
            except NeedsValueError as error:
                failure = error
                self._failed = self._failed or error.sites
            for name in monomials.keys() | (failure.sites if failure else set()):
                use = Use.of(name, site, monomials.get(name, set()), failure, expansion)
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


def _family_of(site: Site, monomials: set[Monomial], has_pairs: bool) -> type[NaturalDistribution] | None:
    """The class of natural posteriors with all monomials: a joint one, if products of elements occur."""
    kinds = natural_classes_on(site["fn"].support, site["fn"].event_shape)
    if has_pairs:
        kinds.sort(key=lambda kind: event_dim_of(kind.family) == 0)
    return next((kind for kind in kinds if monomials <= kind.family.monomials), None)


# A table of what happens to each site of a program under ``TraceConjugate_ELBO``, and why.


_NUMBER = re.compile(r"\d+")
_MANY = 4  # rows of sites that differ in a number alone


@dataclass(frozen=True)
class PlannedSite:
    """One row of a plan.

    Attributes:
        site: its name in the model.
        posterior: class of its distribution in the guide, or that of the probabilities that are optimal.
        treatment: ``"exact"`` (integrated in closed form), ``"drawn"``, ``"summed out"``, ``"observed"``,
            ``"left out"`` (integrates to 1) or ``"refused"`` (a step would raise an error).
        why: the reason, where there is something to say.
    """

    site: str
    posterior: str
    treatment: str
    why: str


class Plan:
    """How a program's sites are treated; printing it gives a table, with one line for sites of a sequence.

    Attributes:
        rows: of all sites, in the order of the model.
    """

    def __init__(self, rows: list[PlannedSite]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[PlannedSite]:
        return iter(self.rows)

    def __getitem__(self, site: str) -> PlannedSite:
        return {row.site: row for row in self.rows}[site]

    def __str__(self) -> str:
        alike: dict[tuple[str, ...], list[PlannedSite]] = {}
        for row in self.rows:
            alike.setdefault(_without_numbers(row), []).append(row)
        shown = [row for rows in alike.values() for row in _in_one(rows)]
        cells = [[field.name for field in fields(PlannedSite)], *map(list, map(astuple, shown))]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        return "\n".join(lines)


def _without_numbers(row: PlannedSite) -> tuple[str, ...]:
    return tuple(_NUMBER.sub("#", cell) for cell in astuple(row))


def _in_one(rows: list[PlannedSite]) -> list[PlannedSite]:
    """The line for rows that are alike but for numbers; they stay as they are if they are few."""
    if len(rows) < _MANY:
        return rows
    first, last = rows[0], rows[-1]
    return [replace(first, site=f"{first.site} … {last.site} ({len(rows)} sites)")]


def plan_of(elbo: Any, model: Any, guide: Any, args: Any, kwargs: Any) -> Plan:
    """The plan of a program; see :meth:`TraceConjugate_ELBO.plan`."""
    with torch.no_grad():
        try:
            program, guide_trace = elbo.trace(model, guide, *args, **kwargs)
        except NeedsValueError:
            program = None
            with Undrawn():
                guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
    sites = {} if program is None else sample_sites(program.model)
    if isinstance(program, Structure) and has_shorthand(sites.values()):
        return Plan([_of_shorthand(program, guide_trace, site) for site in sites.values()])
    local = getattr(guide, "local", ())
    found = recognise_conjugacy(model, args, kwargs, local)
    for name in _parents_of_shorthands(sites):
        found.drawn.pop(name, None)
    structured = getattr(guide, "structured", False)
    return Plan([_of_plain(found, guide_trace, site, structured) for site in (sites or found.sites).values()])


def _parents_of_shorthands(sites: dict[str, Site]) -> set[str]:
    """Names of the sites that shorthands take the values of."""
    owners = {id(site["value"]): name for name, site in sites.items()}
    taken = {
        owners.get(id(getattr(site["fn"], argument)))
        for site in sites.values()
        for argument in getattr(site["fn"], "parents", ())
    }
    return {name for name in taken if name is not None}


def _posterior(guide: Trace, name: str) -> str:
    """The class of a site's distribution; of what Pyro's autoguides draw and transform, if they have it."""
    if name not in guide.nodes:
        return ""
    fn = unwrap(guide.nodes[name]["fn"])
    kind = type(fn).__name__
    if not isinstance(fn, dist.Delta):
        return kind
    auxiliary = {n: s for n, s in sample_sites(guide).items() if s["infer"].get("is_auxiliary")}
    own = auxiliary.get(f"{name}_unconstrained")
    if own is not None:
        drawn = type(unwrap(own["fn"])).__name__
        return drawn if torch.equal(own["value"], fn.v) else f"transformed {drawn}"
    joint = (type(unwrap(s["fn"])).__name__ for n, s in auxiliary.items() if n.endswith("_latent"))
    return next((f"joint {drawn}" for drawn in joint), kind)


def _of_plain(found: Recognised, guide: Trace, site: Site, structured: bool) -> PlannedSite:
    name = site["name"]
    posterior = _posterior(guide, name)
    if site["is_observed"]:
        return PlannedSite(name, "", "observed", "")
    if name in found.discrete:
        why = "at the guide's probabilities" if posterior else ""
        return PlannedSite(name, posterior or "optimal", "summed out", why)
    if not posterior:
        return PlannedSite(name, "", "left out", "nothing depends on it")
    if isinstance(unwrap(guide.nodes[name]["fn"]), NaturalDistribution):
        reason = found.drawn.get(name)
        if reason is not None:
            return PlannedSite(name, posterior, "refused", reason)
        guard = f"{found.left_out[name]} is left out" if name in found.left_out else ""
        notes = filter(None, (guard, _about_joint(found, guide, name, structured)))
        return PlannedSite(name, posterior, "exact", "; ".join(notes))
    why = "; ".join(each[name] for each in (found.drawn, found.flat) if name in each)
    if name in found.kinds:
        why = f"the guide has no natural posterior; {found.kinds[name].__name__} is one"
    return PlannedSite(name, posterior, "drawn", why)


def _about_joint(found: Recognised, guide: Trace, name: str, structured: bool) -> str:
    """Say that a location has a joint posterior or could have one, or why it has none."""
    part = unwrap(guide.nodes[name]["fn"])
    if isinstance(part, BlockNormal):
        others = [f"'{other}'" for other in part.block.names if other != name]
        return f"jointly with {', '.join(others)}" if others else "jointly"
    if name not in found.joint:
        if structured and name in found.apart:
            return f"apart: {found.apart[name]}"
        coupled = sorted(other for pair in found.couplings.normal if name in pair for other in pair - {name})
        if coupled and not found.couplings.discrete:
            (names,) = (block for block in found.couplings.blocks(list(found.kinds)) if name in block)
            fits = found.couplings.block(names)
            how = "'auto')" if fits else f"[{names}]), with a dense matrix"
            return f"too narrow, as '{coupled[0]}' depends on it: AutoConjugate(model, joint={how}"
        return ""
    precision = found.joint[name][0]
    if getattr(unwrap(guide.nodes[name]["fn"]), "given", None) is not None:
        return f"jointly with '{precision}'"
    return f"may be joint with '{precision}': AutoConjugate(model, structured=True)"


def _of_shorthand(program: Structure, guide: Trace, site: Site) -> PlannedSite:
    name = site["name"]
    posterior = _posterior(guide, name)
    if site["is_observed"]:
        return PlannedSite(name, "", "observed", "")
    if name in {mixture.name for mixture in program.mixtures}:
        return PlannedSite(
            name, posterior or "optimal", "summed out", "at the guide's probabilities" if posterior else ""
        )
    if posterior and isinstance(unwrap(guide.nodes[name]["fn"]), NaturalDistribution):
        return PlannedSite(name, posterior, "exact", "")
    if not posterior:
        return PlannedSite(name, "", "left out", "nothing depends on it")
    children = {child.name for mixture in program.mixtures for child in mixture.children}
    parents = {
        parent
        for child in [*program.integrated, *(c for mixture in program.mixtures for c in mixture.children)]
        for parent in child.parents.values()
    }
    inside = name in children | parents and name not in program.drawn
    return PlannedSite(name, posterior, "drawn", "its density is expected in closed form" if inside else "")
