"""Terms of the bound of a plain program: expected log-densities, and the sum over discrete sites."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pyro.distributions as dist
import torch
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from pyro.util import check_site_shape
from torch import Tensor
from torch.distributions import Distribution
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from pyro_fmvae.distributions import Assignment, LinearDynamics
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.distributions.gaussian_chain import GaussianPath
from pyro_fmvae.distributions.natural_distribution import natural_class
from pyro_fmvae.infer.elbo.density import expectations, has_lazy_arguments, log_density
from pyro_fmvae.infer.elbo.enumerated import DiscreteFactors, enum_dim, is_discrete, units_of
from pyro_fmvae.infer.elbo.expansion import Expansion
from pyro_fmvae.infer.elbo.expectation import Expects, Moments, expectation_of
from pyro_fmvae.infer.elbo.formulas import by_formula
from pyro_fmvae.infer.elbo.joint_moments import JointMoments
from pyro_fmvae.infer.elbo.kept import KeptExpectations
from pyro_fmvae.infer.elbo.lazy import Lazy, NeedsValueError, Sampled, sites_of
from pyro_fmvae.infer.elbo.masks import counted
from pyro_fmvae.infer.elbo.mixture_terms import Role, Term, total
from pyro_fmvae.infer.elbo.placeholder import missing_in_guide
from pyro_fmvae.infer.elbo.plain import PlainProgram, without_discrete
from pyro_fmvae.infer.elbo.plain_posteriors import PlainPosteriors
from pyro_fmvae.infer.elbo.plain_weights import is_weighted_latent, label_terms, weighted_terms
from pyro_fmvae.infer.elbo.site_terms import kl_sum, latent_term, log_prob_sum, mean_log_density, role_of
from pyro_fmvae.infer.elbo.structure import Site, sample_sites, unmasked
from pyro_fmvae.infer.elbo.turns import Turns
from pyro_fmvae.infer.elbo.used_draws import in_order


@dataclass
class Bound:
    """Evaluates the terms of one run.

    Args:
        program, guide: the run.
        kl_weight: weight of the terms of drawn latents of single data points.
        label_weight: Δ of equation 8.
        kept: what stays the same while some posteriors change, whose divergences alone then count; or None.
    """

    program: PlainProgram
    guide: Trace
    kl_weight: float | Tensor = 1.0
    label_weight: float | Tensor = 0.0
    kept: KeptExpectations | None = None
    terms: list[Term] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sites = sample_sites(self.program.model)
        self.guide_sites = sample_sites(self.guide)
        self.factors: list[Site] = []
        self.given: dict[str, Tensor] = {}
        self.weighted: dict[str, Tensor] = {}
        self.posteriors = PlainPosteriors(self.sites, self.guide_sites, self.kl_weight)
        self.owners = {id(site["value"]): name for name, site in self.sites.items()}
        units = units_of(self.sites.values())
        self.expansion = Expansion(self.program.identities, self.posteriors.centres(), units)
        # Turns depend on numbers; those of a recorded run were found before.
        self.turns = None if get_proxy_mode() else Turns(self.posteriors.parameters())

    def collect(self) -> None:
        """Fill in the terms of single sites, and the factors that depend on discrete ones."""
        for name, site in self.sites.items():
            if is_discrete(site):
                self._discrete(name, site)
            elif site["is_observed"]:
                self._add(
                    name, site, self._expected(site, unmasked(site)), role_of(site, Role.RECONSTRUCTION)
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
        if self.turns is not None:
            self.turns.note()
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
        self._add(name, site, self._expected(site, site["value"]), Role.KL_R)
        if name in self.guide_sites:
            q = self.guide_sites[name]["fn"]
            self.given[name] = q.log_prob(site["value"])

    def _natural(self, name: str, site: Site) -> None:
        q, prior = self.posteriors.of(name), site["fn"]
        same = natural_class(unwrap(prior)) is type(unwrap(q)) and not has_lazy_arguments(prior)
        if same and len(prior.batch_shape) <= self.program.plates + len(q.batch_shape):
            if self.kept is not None and name not in self.kept.moving:
                return  # a constant
            self.terms.append(Term(name, Role.KL_GLOBAL, kl_sum(q, site), natural=True))
            return
        self._add(name, site, self._expected(site, site["value"], torch.float64), Role.KL_GLOBAL)
        own = self.posteriors.moments[name]
        if isinstance(own, JointMoments) and name == own.precision:
            return  # E[log q] of a joint posterior is a term of the location
        density = mean_log_density(q, own.stats, isinstance(own, Moments) and own.about is not None)
        self.terms.append(Term(name, Role.KL_GLOBAL, total(density, site), natural=True))

    def _drawn(self, name: str, site: Site) -> None:
        """A site that is drawn for others; its own density counts in closed form where it may."""
        q = counted(site, self.guide_sites[name]["fn"])
        is_weighted = is_weighted_latent(site, self.sites.values(), self.kl_weight)
        weight = self.kl_weight if is_weighted else 1.0
        enumerated = len(site["fn"].batch_shape) > max(self.program.plates, len(q.batch_shape))
        if not (has_lazy_arguments(site["fn"]) or enumerated):
            term = latent_term(self.program.structure, self.guide, name)
            self.terms.append(replace(term, value=weight * term.value))
            return
        if not q.has_rsample:
            raise ValueError(
                f"site '{name}': {type(unwrap(q)).__name__} in the guide has no reparameterised sampler; "
                "give it a distribution that has_rsample"
            )
        table = None if self.is_at_draw(name) else self._in_closed_form(name, site, q, is_weighted)
        if table is None:
            log_q = q.log_prob(site["value"])
            table = self._expected(site, site["value"], is_weighted=is_weighted)
        else:
            log_q = -q.entropy()
        self._add(name, site, table, Role.KL_Z, is_weighted)
        self.terms.append(Term(name, Role.KL_Z, weight * total(log_q, site)))

    def is_at_draw(self, name: str) -> bool:
        """True for a drawn site whose density may only count at its draw."""
        drawn = without_discrete(self.guide)  # the order of what is not drawn does not matter
        return name in self.program.used or not in_order(self.program.model, drawn, name)

    def _in_closed_form(self, name: str, site: Site, q: Distribution, is_weighted: bool) -> Tensor | None:
        inner = unwrap(q)
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
            return self._expected(site, symbol, is_weighted=is_weighted, own={name: own})
        except NeedsValueError:
            return None

    def undrawn(self, name: str) -> tuple[Lazy, Moments] | None:
        """A stand-in for the value of a drawn site, and its moments, if its family has any."""
        inner: Any = unwrap(self.guide_sites[name]["fn"])
        if (kind := natural_class(inner)) is None or not kind.family.monomials:
            return None
        value = self.sites[name]["value"]
        stats = kind.family.stats_from_standard(*kind.family.standard_of(inner))
        sampled = Sampled(name, self.sites[name]["fn"].support)
        symbol = Lazy.make(value.shape, value.dtype, value.device, sampled)
        return symbol, Moments(kind.family, stats.expand(*inner.batch_shape, stats.shape[-1]), value.shape)

    def _of_path(self, site: Site, path: GaussianPath, is_weighted: bool) -> Tensor:
        """E[log p] of the states of linear dynamics."""
        moments = self.posteriors.divided if is_weighted else self.posteriors.moments

        def evaluate(table: Lazy) -> Tensor:
            return self.evaluate(table, table.shape, moments, table.dtype)

        fn: Any = unwrap(site["fn"])
        table = fn.chain(*expectations(evaluate)).mean_log_weight(path.chain)
        return table.to(path.dtype).expand(torch.broadcast_shapes(table.shape, fn.batch_shape))

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

    def _expected(
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
            dtype: of the result; that of the density if None.
            is_weighted: whether the result is going to be multiplied by ``kl_weight``.
            own: moments of the value, if it is not there and has no natural posterior.
        """
        fn = site["fn"]
        moments = {**(self.posteriors.divided if is_weighted else self.posteriors.moments), **own}
        if hasattr(fn, "parents") and not isinstance(value, Lazy):
            q = fn if isinstance(fn, Assignment) else dist.Delta(value, event_dim=fn.event_dim)
            table = self._by_formula(site, q, is_weighted)
            if table is not None:
                return table

        def evaluate(table: Lazy, shape: torch.Size) -> Tensor:
            def found() -> Tensor:
                return self.evaluate(table, shape, moments, dtype or table.dtype)

            return found() if self.kept is None else self.kept.value(site["name"], table, found)

        try:
            density = log_density(fn, value, lambda table: evaluate(table, table.shape), self.kept)
        except NeedsValueError:
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(
                f"site '{site['name']}': the log-density of a value of shape {tuple(value.shape)} under "
                f"{type(unwrap(fn)).__name__} of batch shape {tuple(fn.batch_shape)} and event shape "
                f"{tuple(fn.event_shape)} can't be computed ({error})"
            ) from error
        shape = torch.broadcast_shapes(density.shape, fn.batch_shape)
        if isinstance(density, Lazy):
            density = evaluate(density, shape)
        density = density.expand(shape)
        if is_validation_enabled():
            check_site_shape({**site, "log_prob": density}, self.program.plates)
        return density

    def evaluate(
        self, table: Lazy, shape: torch.Size, moments: Mapping[str, Expects], dtype: torch.dtype
    ) -> Tensor:
        """The expectation of a lazy table, expanded to a shape."""
        terms = self.expansion.of(table)
        if self.turns is not None:
            self.turns.see(terms, moments)
        return expectation_of(terms, shape, moments, dtype, table.device)

    def _by_formula(self, site: Site, q: Distribution, is_weighted: bool) -> Tensor | None:
        def parent_of(parent: Site) -> Distribution:
            name = parent["name"]
            if not self.posteriors.is_natural(name):
                return dist.Delta(parent["value"], event_dim=parent["fn"].event_dim)
            return self.posteriors.of_weighted(name) if is_weighted else self.posteriors.of(name)

        return by_formula(site, q, self.sites, self.owners, parent_of)

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
