"""Terms of single sites: log-densities, divergences and expectations."""

from typing import Any

import pyro.distributions as dist
import torch
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from pyro_fmvae.distributions import NaturalDistribution, expected_log_prob
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.density import as_number
from pyro_fmvae.infer.elbo.masks import counted
from pyro_fmvae.infer.elbo.structure import Child, Site, Structure
from pyro_fmvae.infer.elbo.terms import Role, Term, total
from pyro_fmvae.infer.elbo.used_draws import in_order
from pyro_fmvae.infer.posteriors import natural_prior


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


def expectation(site: Site, q: Distribution, parents: dict[str, Any]) -> Tensor:
    """The closed form of E_q[log p] at a model's site; where there is none, an error that names the site."""
    try:
        return expected_log_prob(q, site["fn"], parents)
    except NotImplementedError as error:
        raise NotImplementedError(f"site '{site['name']}': {error}") from None


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
            entropy = family.member(*family.unpack(natural)).entropy()
        value = value - (value.detach() + entropy)
    value = value.expand(inner.batch_shape)
    events = len(inner.batch_shape) - len(q.batch_shape)
    return value.flatten(len(q.batch_shape)).sum(-1) if events else value
