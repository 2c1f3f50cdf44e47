"""Weights of parts of a plain program's bound: of latents of single data points, and of labels."""

import itertools
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from pyro_fmvae.distributions import Label
from pyro_fmvae.infer.elbo.density import lazy_sites
from pyro_fmvae.infer.elbo.distribution_checks import without_natural_step
from pyro_fmvae.infer.elbo.enumerated import DiscreteFactors
from pyro_fmvae.infer.elbo.structure import Site
from pyro_fmvae.infer.elbo.terms import Role, Term, role_of

_PARTICLES = "num_particles_vectorized"  # Pyro's plate of particles


def is_weighted_latent(site: Site, sites: Iterable[Site], weight: float | Tensor) -> bool:
    """True for a latent of a single data point, in a plate of data, if it is weighted.

    Args:
        site: of the model.
        sites: all of the model's. Those of ``pyro.factor`` do not count.
        weight: of such latents; 1 for none.

    Raises:
        ValueError: there are no such plates, so there is no telling.
    """
    if isinstance(weight, float) and weight == 1:
        return False
    observed = [
        _plates(each)
        for each in sites
        if each["is_observed"] and role_of(each, Role.RECONSTRUCTION) is not Role.FACTOR
    ]
    data = _plates_of_data(observed)
    if not data:
        raise ValueError(
            f"kl_weight: expected 1 with '{site['name']}' drawn, since the observed sites share no plate "
            "that would tell latents of single data points from others; put the data into one plate, or "
            "weight sites by poutine.scale"
        )
    return not data.isdisjoint(_plates(site))


def _plates_of_data(observed: Iterable[frozenset[str]]) -> frozenset[str]:
    """The plates that all observed sites of a data set are in; none if those of one data set share none.

    Observed sites with a plate in common, directly or by way of others, belong to one data set. Those in no
    plate are single numbers.

    Args:
        observed: the plates of each observed site.
    """
    sets: list[list[frozenset[str]]] = []
    for plates in filter(None, observed):
        joined = [each for each in sets if any(not plates.isdisjoint(other) for other in each)]
        sets = [each for each in sets if each not in joined]
        sets.append([plates, *itertools.chain(*joined)])
    shared = [frozenset.intersection(*each) for each in sets]
    return frozenset().union(*shared) if all(shared) else frozenset()


def _plates(site: Site) -> frozenset[str]:
    return frozenset(frame.name for frame in site["cond_indep_stack"]) - {_PARTICLES}


def weighted_terms(
    factors: Iterable[Site],
    given: Mapping[str, Tensor],
    weighted: Mapping[str, Tensor],
    weight: float | Tensor,
) -> list[Term]:
    """The terms of weighted latents that hang on discrete sites.

    The probabilities of discrete sites are those without weights, and constant where they are optimal.

    Args:
        factors: of the sum over discrete sites, which takes the tables of weighted latents as constants.
        given: see :class:`DiscreteFactors`.
        weighted: name of a latent → its table, as it is differentiated.
        weight: of these.
    """
    if not weighted:
        return []
    probed = []
    for site in factors:
        table = site["unscaled_log_prob"].detach()
        probed.append({**site, "unscaled_log_prob": table.requires_grad_(site["name"] in weighted)})
    probes = {site["name"]: site["unscaled_log_prob"] for site in probed}
    with torch.enable_grad():
        total = DiscreteFactors(probed, given).log_sum()
        shares = torch.autograd.grad(total, [probes[name] for name in weighted], create_graph=bool(given))
    terms = []
    for (name, table), share in zip(weighted.items(), shares, strict=True):
        counted = (share * table.detach()).sum()  # by the sum over discrete sites
        terms.append(Term(name, Role.KL_Z, counted - weight * (share * table).sum()))
    return terms


def label_terms(
    sites: Mapping[str, Site], factors: list[Site], plates: int, weight: float | Tensor
) -> list[Term]:
    """Δ's term: minus the log-probability of the labels at the probabilities that are optimal without them.

    Args:
        sites: of the model, by name.
        factors: of the sum over discrete sites, with their tables.
        plates: the number of dimensions that plates take.
        weight: Δ of equation 8.

    Raises:
        ValueError: no site is a ``Label``, or a natural posterior would be differentiated.
    """
    names = [name for name, site in sites.items() if isinstance(site["fn"], Label)]
    if not names:
        raise ValueError(
            "label_weight: expected 0 in a program without a Label, which is all that it weights; write "
            'pyro.sample("label", Label(assignment), obs=labels), with -1 for labels that are unknown'
        )
    dims = {site["name"]: _varies_along(site["unscaled_log_prob"], plates) for site in factors}
    labelled = {dim for name in names for dim in dims.get(name, ())}
    for site in factors:
        if not labelled.isdisjoint(dims[site["name"]]):
            for name in sorted(lazy_sites(site["fn"])):
                raise ValueError(without_natural_step(name))
    if not labelled:
        return []
    others = [site for site in factors if site["name"] not in names]
    loss = DiscreteFactors(others, {}).log_sum() - DiscreteFactors(factors, {}).log_sum()
    return [Term("/".join(names), Role.LABEL, weight * loss)]


def _varies_along(table: Tensor, plates: int) -> set[int]:
    """The dimensions of discrete sites along which a table varies."""
    return {dim for dim in range(-table.dim(), -plates) if table.shape[dim] > 1}
