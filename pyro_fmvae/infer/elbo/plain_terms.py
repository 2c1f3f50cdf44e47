"""Terms of the bound of a plain program: single sites, and the sum over discrete ones."""

import math
from dataclasses import dataclass, field, replace

import torch
from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.distributions.natural_distribution import natural_class
from pyro_fmvae.infer.elbo.density import has_lazy_arguments
from pyro_fmvae.infer.elbo.enumerated import DiscreteFactors, enum_dim, is_discrete
from pyro_fmvae.infer.elbo.expectation import Moments
from pyro_fmvae.infer.elbo.expected_densities import ExpectedDensities
from pyro_fmvae.infer.elbo.joint_moments import JointMoments
from pyro_fmvae.infer.elbo.kept import KeptExpectations
from pyro_fmvae.infer.elbo.lazy import sites_of
from pyro_fmvae.infer.elbo.masks import counted
from pyro_fmvae.infer.elbo.placeholder import missing_in_guide
from pyro_fmvae.infer.elbo.plain import PlainProgram
from pyro_fmvae.infer.elbo.plain_posteriors import PlainPosteriors
from pyro_fmvae.infer.elbo.plain_weights import is_weighted_latent, label_terms, weighted_terms
from pyro_fmvae.infer.elbo.site_terms import kl_sum, latent_term, log_prob_sum, mean_log_density
from pyro_fmvae.infer.elbo.structure import Site, sample_sites, unmasked
from pyro_fmvae.infer.elbo.terms import Role, Term, role_of, total


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
        self.densities = ExpectedDensities(self.program, self.guide, self.posteriors, self.kept)

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
            if self.kept is not None and name not in self.kept.moving:
                return  # a constant
            self.terms.append(Term(name, Role.KL_GLOBAL, kl_sum(q, site), natural=True))
            return
        self._add(name, site, self.densities.of(site, site["value"], torch.float64), Role.KL_GLOBAL)
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
