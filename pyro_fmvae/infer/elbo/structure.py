"""The structure of a program: its sites by role, its plates, and the summands of its loss."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.util import scale_and_mask
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Distribution, constraints

from pyro_fmvae.distributions.exponential_family import unwrap
from pyro_fmvae.distributions.recorded import is_recorded
from pyro_fmvae.infer.elbo.lazy import is_lazy, memory_of

Site = dict[str, Any]


@dataclass(frozen=True)
class Child:
    """A site with recognised parents: its name, and the site of each conjugate parent by argument."""

    name: str
    parents: dict[str, str]


@dataclass
class MixtureSites:
    """One assignment site with the site of its weights and everything that hangs on it."""

    name: str
    parents: dict[str, str]
    children: list[Child] = field(default_factory=list)


@dataclass
class Structure:
    """The structure of one pair of traces.

    Attributes:
        model: the model's trace, plates' own sites included.
        mixtures: assignments with their children.
        latents: names of the other unobserved sites, present in the model and in the guide.
        integrated: observed sites whose expected log-density is known in closed form under the posteriors of
            their parents, which are latents.
        observed: names of the other observed sites of the model.
        auxiliary: names of sites that are only in the guide.
        drawn: names of sites that enter at their draws, not by an expectation, because others depend on the
            draws: see :mod:`pyro_fmvae.infer.elbo.plain`.
    """

    model: Trace
    mixtures: list[MixtureSites]
    latents: list[str]
    integrated: list[Child]
    observed: list[str]
    auxiliary: list[str]
    drawn: frozenset[str] = frozenset()

    def posterior(self, guide: Trace, name: str) -> Distribution:
        """The distribution that expectations are taken under: the guide's, or a point mass.

        The point mass is at the value of an observed site, with 0 for masked numbers that are not finite, or
        at the draw of a site in ``drawn``.
        """
        site = self.model.nodes[name]
        if site["is_observed"]:
            return dist.Delta(unmasked(site), event_dim=site["fn"].event_dim)
        site = guide.nodes[name]
        return dist.Delta(site["value"], event_dim=site["fn"].event_dim) if name in self.drawn else site["fn"]


def has_shorthand(sites: Iterable[Site]) -> bool:
    """True if any of a model's sites has a distribution that remembers its parents."""
    return any(hasattr(unwrap(site["fn"]), "parents") for site in sites)


def sample_sites(trace: Trace) -> dict[str, Site]:
    """The sample statements of a trace by name, without plates' index sites and deterministic values."""
    return {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample"
        and type(site["fn"]).__name__ != "_Subsample"
        and not site["infer"].get("_deterministic", False)
    }


def unmasked(site: Site) -> Tensor:
    """The value of a site, with zeros for integers and what is not finite where it is masked out."""
    value, mask = site["value"], site["mask"]
    if mask is None or (not value.is_floating_point() and hasattr(site["fn"], "parents")):
        return value
    mask = torch.as_tensor(mask, device=value.device)[(..., *(None,) * site["fn"].event_dim)]
    valid = mask | value.isfinite() if value.is_floating_point() and not is_lazy(value) else mask
    return value.where(valid, value.new_zeros(()))


def auxiliary_sites(guide_sites: dict[str, Site], sites: dict[str, Site]) -> list[str]:
    """Names of the sites of a guide that are not in its model.

    Raises:
        ValueError: one that is not marked as auxiliary, or that can't be drawn with gradients.
    """
    auxiliary = [name for name in guide_sites if name not in sites]
    for name in auxiliary:
        site = guide_sites[name]
        if not (site["infer"].get("is_auxiliary") or site["is_observed"]):
            raise ValueError(
                f"site '{name}': it is in the guide but not in the model; sample it in the model too, or "
                "mark it by infer={'is_auxiliary': True}"
            )
        if not (site["is_observed"] or site["fn"].has_rsample):
            raise ValueError(
                f"site '{name}': {type(unwrap(site['fn'])).__name__} in the guide has no reparameterised "
                "sampler; give it a distribution that has_rsample"
            )
    return auxiliary


# The summands of the loss, and the parts of the bound that they belong to.


class Role(Enum):
    """The part of equation 4 that a site's loss belongs to, or a term that is added to the bound."""

    RECONSTRUCTION = "reconstruction"
    KL_Z = "kl_z"
    KL_R = "kl_r"
    KL_GLOBAL = "kl_global"
    LABEL = "label"
    DEPENDENCE = "dependence"
    FACTOR = "factor"


@dataclass(frozen=True)
class Term:
    """One summand of the loss.

    Attributes:
        name: the site that it belongs to.
        role: its part of the bound.
        value: in nats, a scalar.
        natural: whether it is the KL divergence of a natural posterior.
    """

    name: str
    role: Role
    value: Tensor
    natural: bool = False


def role_of(site: Site, otherwise: Role) -> Role:
    """``Role.FACTOR`` for a site of ``pyro.factor``, in a model or in a guide; another role otherwise."""
    return Role.FACTOR if isinstance(unwrap(site["fn"]), dist.Unit) else otherwise


def total(tensor: Tensor, site: Site) -> Tensor:
    """Scaled and masked as a site is, and summed."""
    return scale_and_mask(tensor, site["scale"], site["mask"]).sum()


def sum_terms(terms: list[Term]) -> Tensor:
    """The sum of the terms' values (0 if there are none), in the widest type among them."""
    return sum((term.value for term in terms[1:]), terms[0].value) if terms else torch.zeros(())


# Re-entering the plates of a recorded site.


class frames_of(Messenger):
    """Enter the plates that a recorded site was in, without issuing their index sites again.

    Sequential plates are re-entered too, at the iteration that the site was recorded in.

    Args:
        site: a sample site; the statement inside has to bring its full batch shape.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._frames = tuple(site["cond_indep_stack"])

    def _process_message(self, msg: Any) -> None:
        msg["cond_indep_stack"] = self._frames + msg["cond_indep_stack"]


def check_filled(msg: Any) -> None:
    """Refuse a plate whose minibatch has no points, by whose number Pyro would divide.

    Args:
        msg: of any sample site.

    Raises:
        ValueError: with the name of the plate.
    """
    fn, rows = msg["fn"], msg["value"]
    if type(fn).__name__ == "_Subsample" and fn.size and rows is not None and not len(rows):
        raise ValueError(
            f"plate '{msg['name']}': its minibatch is empty; give it at least one of {fn.size} points"
        )


def subsamples(trace: Trace) -> Trace:
    """The index sites of a trace's plates alone: replayed, they give another run the same minibatch."""
    indices = Trace()
    for name, site in trace.nodes.items():
        if type(site.get("fn")).__name__ == "_Subsample":
            indices.add_node(name, **site)
    return indices


def are_rows(rows: Any, size: int) -> bool:
    """True for distinct integers from 0 to ``size`` - 1."""
    if not isinstance(rows, Tensor) or rows.dim() != 1 or rows.dtype not in (torch.int64, torch.int32):
        return False
    if is_recorded() or not len(rows):
        return True
    ordered = rows.sort().values
    return bool(ordered[0] >= 0 and ordered[-1] < size and (ordered.diff() > 0).all())


def check_same_points(site: str, plate: str, rows: Any, whole: dict[str, Tensor]) -> None:
    """Refuse all points of a plate in another order, where each has a posterior of its own.

    Args:
        site: that has these posteriors.
        plate: with as many points as ``rows``.
        rows: what the plate has as its subsample: numbers of rows, or data.
        whole: the data that a plate had first, by plate; filled in.

    Raises:
        ValueError: with the names of site and plate.
    """
    if not isinstance(rows, Tensor) or is_recorded():
        return
    if are_rows(rows, len(rows)):
        moved = bool((rows.diff() < 0).any())
    else:
        first = whole.setdefault(plate, rows)
        moved = first is not rows and first.shape == rows.shape and not torch.equal(first, rows)
        moved = moved and torch.equal(first.flatten().sort().values, rows.flatten().sort().values)
    if moved:
        raise ValueError(
            f"site '{site}': plate '{plate}' has its {len(rows)} rows in another order, but each has a "
            "posterior of its own; give the rows in order, or have these posteriors found anew for each "
            f"batch by AutoConjugate(model, local=['{plate}'])"
        )


# Names that a program gives to two sites or plates.


@contextmanager
def unique_sites(program: str, advice: str) -> Iterator[None]:
    """Say which program has a site twice, where Pyro says only that there is one.

    Args:
        program: "model" or "guide".
        advice: what to do about it.

    Raises:
        ValueError: Pyro found the same name twice within the block.
    """
    try:
        yield
    except RuntimeError as error:
        twice = re.match("Multiple sample sites named '(.*)'", str(error))
        if twice is None:
            raise
        raise ValueError(f"site or plate '{twice[1]}': the {program} has it twice. {advice}") from error


# Observed values that tell which site they belong to.


class OwnValues(Messenger):
    """Gives a tensor that is observed at several sites to each but the first as a view of its own.

    ``pyro.sample`` returns it, so that a parent tells which of the sites it is the value of.
    """

    def __init__(self) -> None:
        super().__init__()
        self._observed: dict[int, Tensor] = {}  # by identity; they are kept, so that none comes again

    def _pyro_sample(self, msg: Any) -> None:
        check_filled(msg)
        value = msg["value"]
        if not (msg["is_observed"] and isinstance(value, Tensor)) or msg["infer"].get("_deterministic"):
            return
        if id(value) in self._observed:
            msg["value"] = value.view_as(value)
        self._observed[id(value)] = value


def is_latent(site: Site) -> bool:
    """True for a site of unobserved values, plates' index sites and deterministic values left out."""
    named = not site["infer"].get("_deterministic") and type(site["fn"]).__name__ != "_Subsample"
    return named and not site["is_observed"]


def is_discrete(site: Site) -> bool:
    """True for a latent site of discrete values."""
    return is_latent(site) and bool(site["fn"].support.is_discrete)


def enum_dim(site: Site) -> int | None:
    """The dimension that a site is enumerated in, or None."""
    dim: int | None = site["infer"].get("_enumerate_dim")
    return dim


def values_of(site: Site) -> int:
    """The number of values that a discrete site may have."""
    return len(site["fn"].enumerate_support(expand=False))


def units_of(sites: Iterable[Site]) -> frozenset[int]:
    """Memory of the enumerated values of one-hot sites, unit matrices all."""
    return frozenset(
        memory_of(site["value"])
        for site in sites
        if enum_dim(site) is not None and site["fn"].support is constraints.one_hot
    )


def in_order(model: Trace, guide: Trace, name: str) -> bool:
    """True if whatever precedes a site in the model precedes it in the guide."""
    before = list(sample_sites(model))
    before = before[: before.index(name)]
    in_guide = list(sample_sites(guide))
    return set(before).isdisjoint(in_guide[in_guide.index(name) :])


def check_is_tensor(site: dict[str, Any]) -> None:
    """Refuse an observed value that is no tensor.

    Raises:
        ValueError: it is a list or an array, say.
    """
    if not isinstance(site["value"], Tensor):
        kind = type(site["value"]).__name__
        raise ValueError(
            f"site '{site['name']}': expected a tensor as its value, got {kind}; "
            "convert it by torch.as_tensor"
        )


class Enumerated(Messenger):
    """Marks every discrete site that is not observed for enumeration in parallel.

    Raises:
        ValueError: a site that can't be enumerated, or an observed value that is no tensor.
    """

    def _pyro_sample(self, msg: Any) -> None:
        if msg["is_observed"]:
            check_is_tensor(msg)
        if msg["done"] or not is_discrete(msg):
            return
        fn = msg["fn"]
        if not fn.has_enumerate_support:
            inner = unwrap(fn)
            if inner is not fn and inner.has_enumerate_support:
                advice = "may not be wrapped by to_event where it is summed out; use a plate"
            else:
                advice = (
                    "has no finite support to sum over; write the density of what hangs on it with the site "
                    "summed out (a GammaPoisson for a Poisson of a Gamma, say)"
                )
            raise ValueError(f"site '{msg['name']}': {type(inner).__name__} {advice}")
        msg["infer"] = {**msg["infer"], "enumerate": "parallel"}
