"""The structure of a program of shorthands, read off its traces.

Recognition goes by the class of the distribution at a site and by the identity of the tensors that it was
given: ``replay`` hands the guide's very tensors to the model, so a parent that *is* a site's value belongs to
that site, and a parent that was derived from one does not. Under
:class:`pyro_fmvae.infer.elbo.own_values.OwnValues` that holds of observed values, too.
"""

from typing import Any

import pyro.distributions as dist
from pyro.poutine import Trace
from torch import Tensor

from pyro_fmvae.distributions import Assignment, Label
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.constants import add_constants
from pyro_fmvae.infer.elbo.distribution_checks import (
    check_components,
    check_distribution,
    check_label,
    check_shapes,
)
from pyro_fmvae.infer.elbo.observed_shapes import check_observed
from pyro_fmvae.infer.elbo.placeholder import Unsampled, is_imputed, missing_in_guide
from pyro_fmvae.infer.elbo.structure import (
    Child,
    MixtureSites,
    Site,
    Structure,
    auxiliary_sites,
    sample_sites,
)


def recognise(model: Trace, guide: Trace) -> Structure:
    """Read the structure off a model's trace that was replayed against a guide's.

    Raises:
        ValueError: a program that is not of a recognised shape; the message names the site and the argument.
    """
    sites, guide_sites = sample_sites(model), sample_sites(guide)
    owners: dict[int, str] = {}
    for name, site in sites.items():
        owners.setdefault(id(site["value"]), name)
    add_constants(model, sites, owners)
    parents = {**sites, **{name: node for name, node in model.nodes.items() if node["type"] == "constant"}}
    mixtures = {
        name: MixtureSites(name, _conjugate_parents(site, owners, parents))
        for name, site in parents.items()
        if isinstance(site["fn"], Assignment)
    }
    program = Structure(model, [], [], [], [], [])
    for site in sites.values():
        _check_class(site, owners, mixtures)
    for name, site in sites.items():
        if site["is_observed"]:
            check_observed(site)
        if name in guide_sites:
            check_shapes(site, guide_sites[name])
        if name in mixtures:
            continue
        if not site["is_observed"] and name not in guide_sites:
            if is_imputed(site):
                continue  # it integrates to 1
            plain = not any(hasattr(unwrap(each["fn"]), "parents") for each in sites.values())
            raise ValueError(missing_in_guide(name, plain))
        if "assignment" in getattr(site["fn"], "parents", ()):
            _attach(site, owners, parents, mixtures)
        elif hasattr(site["fn"], "parents"):
            program.integrated.append(_integrated(site, owners, parents))
        elif site["is_observed"]:
            program.observed.append(name)
        else:
            program.latents.append(name)
    program.mixtures = [  # an assignment that nothing hangs on integrates to 1
        mixture
        for name, mixture in mixtures.items()
        if mixture.children or name in guide_sites or parents[name]["is_observed"]
    ]
    program.auxiliary = auxiliary_sites(guide_sites, sites)
    return program


def _check_class(site: Site, owners: dict[int, str], mixtures: dict[str, MixtureSites]) -> None:
    """Raise an error if a site with parents is wrapped, or a child of a mixture has no assignment."""
    name, fn = site["name"], site["fn"]
    check_distribution(site)
    if "assignment" in getattr(fn, "parents", ()):
        assignment = _owner(site, "assignment", owners)
        if assignment not in mixtures:
            raise ValueError(
                f"site '{name}': argument 'assignment' is the value of '{assignment}', which is no "
                "Assignment; give it that of a pyro.sample(name, Assignment(weights))"
            )


def _attach(
    site: Site, owners: dict[int, str], sites: dict[str, Site], mixtures: dict[str, MixtureSites]
) -> None:
    """Add a site to the mixture of its assignment, which :func:`_check_class` has seen."""
    name, assignment = site["name"], _owner(site, "assignment", owners)
    assignment_fn = sites[assignment]["fn"]
    _check_plates(site, sites[assignment])
    if isinstance(site["fn"], Label) and site["is_observed"]:
        check_label(name, site["value"])
    parents = _conjugate_parents(site, owners, sites)
    for argument, parent in parents.items():
        check_components(site, argument, sites[parent], assignment, assignment_fn.num_components)
    mixtures[assignment].children.append(Child(name, parents))


def _check_plates(child: Site, assignment: Site) -> None:
    """Raise a ValueError unless a child lies in its assignment's plates, and in plates of its own at most.

    Plates of its own hold views of a point, which share its assignment.
    """
    shape, shared = child["fn"].batch_shape, assignment["fn"].batch_shape
    own = {frame.dim for frame in child["cond_indep_stack"] if frame.vectorized}
    own -= {frame.dim for frame in assignment["cond_indep_stack"] if frame.vectorized}
    sizes = (*[1] * (len(shape) - len(shared)), *shared)
    differ = [dim for dim in range(-len(shape), 0) if shape[dim] != sizes[dim]]
    if len(shape) >= len(shared) and all(dim in own and sizes[dim] == 1 for dim in differ):
        return
    raise ValueError(
        f"site '{child['name']}': its batch shape {tuple(shape)} is not that of its assignment "
        f"'{assignment['name']}', {tuple(shared)}; put both into the same plates, or views of a point into a "
        "plate that its assignment is not in"
    )


def _integrated(site: Site, owners: dict[int, str], sites: dict[str, Site]) -> Child:
    """An observed site that hangs on latents without an assignment between them."""
    parents = _conjugate_parents(site, owners, sites)
    name, shape = site["name"], site["fn"].batch_shape
    if not site["is_observed"]:
        raise ValueError(f"site '{name}': {type(site['fn']).__name__} has to be observed, by obs=")
    for argument, parent in parents.items():
        if sites[parent]["fn"].batch_shape != shape:
            raise ValueError(
                f"site '{name}': its batch shape {tuple(shape)} is not that of '{parent}', its argument "
                f"'{argument}', {tuple(sites[parent]['fn'].batch_shape)}; put both into the same plates"
            )
    return Child(name, parents)


def _conjugate_parents(site: Site, owners: dict[int, str], sites: dict[str, Site]) -> dict[str, str]:
    names = {
        argument: _owner(site, argument, owners)
        for argument in site["fn"].parents
        if argument != "assignment"
    }
    for argument, name in names.items():
        prior = unwrap(sites[name]["fn"])
        if isinstance(prior, Assignment):
            raise ValueError(
                f"site '{site['name']}': argument '{argument}' is the value of the assignment '{name}'; give "
                "it the value of a conjugate site"
            )
        if isinstance(site["fn"], Assignment) and not isinstance(prior, dist.Delta):
            _check_weights(name, prior, site)
    return names


def _check_weights(name: str, prior: Any, assignment: Site) -> None:
    if not isinstance(prior.support, type(dist.constraints.simplex)):
        raise ValueError(
            f"site '{name}': it has the probabilities of the {assignment['fn'].num_components} components of "
            f"'{assignment['name']}', which have to add up to 1; its prior should be a Dirichlet, not "
            f"{type(prior).__name__}"
        )


def _owner(site: Site, argument: str, owners: dict[int, str]) -> str:
    value: Tensor = getattr(site["fn"], argument)
    name = owners.get(id(value))
    if name is None:
        origin = f"that of '{value.site}'" if isinstance(value, Unsampled) else "one (or a constant)"
        raise ValueError(
            f"site '{site['name']}': argument '{argument}' of {type(site['fn']).__name__} is not the value "
            f"of a sample site but a tensor derived from {origin}; give it the very tensor that pyro.sample "
            "returned"
        )
    return name
