"""A table of what happens to each site of a program under ``TraceConjugate_ELBO``, and why."""

import re
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.poutine import Trace

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer.elbo.kind import has_shorthand
from pyro_fmvae.infer.elbo.lazy import NeedsValueError
from pyro_fmvae.infer.elbo.plain import Undrawn
from pyro_fmvae.infer.elbo.recognition import Recognised, recognise_conjugacy
from pyro_fmvae.infer.elbo.structure import Site, Structure, sample_sites

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
    if name not in found.joint:
        return f"apart: {found.apart[name]}" if structured and name in found.apart else ""
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
