"""Plain Pyro programs with what is known of them, and evaluations of their bounds that share nothing with ours."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from pyro.infer.autoguide import AutoDelta
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Distribution, Independent

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.distributions.expected_log_prob import unwrap
from pyro_fmvae.infer import AutoConjugate

DRAWS = 3000  # of everything that is continuous, fewer where there are many assignments
MOST_VALUES = 400_000  # of log p

Posteriors = dict[str, Distribution]


@dataclass
class Program:
    """A model, its arguments, and what is known about it.

    Attributes:
        model: the program.
        plan: how each site is treated, by name.
        data: makes the arguments.
        make_guide: makes the guide from the model.
        twin: a program of the same meaning whose bound is found by brute force; the model itself as a rule.
        evidence: log p(data) as a function of the arguments; one step with rate 1 has to reach it.
        update: the posteriors after a step with rate 1 as a function of those before and the arguments,
            derived by hand; sites may be left out.
        loss: the bound as a function of the posteriors and the arguments, by another library, say.
    """

    model: Callable[..., Any]
    plan: dict[str, str]
    data: Callable[[], Any]
    make_guide: Callable[[Any], Any]
    twin: Callable[..., Any]
    evidence: Callable[..., Any] | None = None
    update: Callable[..., Posteriors] | None = None

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.model.__name__

    def setup(self) -> tuple[tuple[Any, ...], Any]:
        """The arguments, and a guide with posteriors that are not the best ones."""
        data = self.data()
        args = data if isinstance(data, tuple) else (data,)
        guide = self.make_guide(self.model)
        with poutine.block():
            guide(*args)
        return args, guide

    def known_evidence(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates the function that computes the evidence."""
        self.evidence = function
        return function

    def known_update(self, function: Callable[..., Posteriors]) -> Callable[..., Posteriors]:
        """Decorates the function that computes the update."""
        self.update = function
        return function


PROGRAMS: dict[str, Program] = {}


def autoguide(model: Any) -> AutoConjugate:
    """Natural posteriors, and fixed points for the sites that have none."""
    return AutoConjugate(model, fallback=AutoDelta)


def program(
    data: Callable[[], Any], guide: Callable[[Any], Any] = autoguide, twin: Any = None, **plan: str
) -> Callable[[Any], Program]:
    """Decorates the model of a program in the table.

    Args:
        data: makes its arguments: one, or a tuple of them.
        guide: makes the guide.
        twin: see :class:`Program`.
        plan: sites by how they are treated: ``exact="w, locs", enumerated="a", observed="x"``.
    """

    def register(model: Any) -> Program:
        sites = {site: status for status, names in plan.items() for site in names.split(", ")}
        entry = Program(model, sites, data, guide, twin or model)
        PROGRAMS[entry.name] = entry
        return entry

    return register


def posteriors(guide: Any, *args: Any) -> Posteriors:
    """The distributions of the guide's sites, those in natural parameters as torch's own, in float64."""
    with torch.no_grad(), poutine.block():
        trace = poutine.trace(guide).get_trace(*args)
    return {name: standard(site["fn"]) for name, site in trace.nodes.items() if _is_latent(site)}


def standard(fn: Any) -> Distribution:
    """A distribution without natural parameters."""
    inner = unwrap(fn)
    if not isinstance(inner, NaturalDistribution):
        return fn
    member = inner.family.member(*inner.family.unpack(inner.natural.detach()))
    events = len(inner.batch_shape) - len(fn.batch_shape)
    return Independent(member.expand(inner.batch_shape), events) if events else member


def _is_latent(site: Any) -> bool:
    return site["type"] == "sample" and not site["is_observed"] and type(site["fn"]).__name__ != "_Subsample"


class _Values(Messenger):
    """Gives sites their values, but leaves them unobserved."""

    def __init__(self, values: dict[str, Tensor]) -> None:
        super().__init__()
        self._values = values

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self._values:
            msg["value"], msg["done"] = self._values[msg["name"]], True


def brute_force(model: Any, guide: Any, *args: Any) -> tuple[float, float]:
    """The bound of a program by its definition, log Σ_a exp E[log p(x, a, θ)] - E[log q(θ)], and its standard error.

    Expectations are averages over draws of θ from q, and the sum is over all joint values ``a`` of all discrete
    sites together. Where discrete sites are under a scale, as in a subsample, the sum is scaled as a whole.
    """
    q = posteriors(guide, *args)
    assignments = _all_assignments(model, {name: fn.sample() for name, fn in q.items()}, args)
    count = len(next(iter(assignments.values()), torch.zeros(1)))
    draws = min(DRAWS, MOST_VALUES // count)
    theta = {name: fn.sample((draws,)) for name, fn in q.items()}
    log_q = sum(fn.log_prob(theta[name]).reshape(draws, -1).sum(-1) for name, fn in q.items())

    def log_joint(a: dict[str, Tensor], theta: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return _log_joint(model, {**a, **theta}, set(a), args)

    if not assignments:
        of_theta = torch.vmap(lambda t: log_joint({}, t), randomness="same")(theta)
        scaled, outside = (part.unsqueeze(0) for part in of_theta)
    else:
        over_draws = torch.vmap(log_joint, in_dims=(None, 0), randomness="same")
        over_all = torch.vmap(over_draws, in_dims=(0, None), randomness="same", chunk_size=64)
        scaled, outside = over_all(assignments, theta)
    scale = _scale_of(model, {name: value[0] for name, value in theta.items()}, args)
    assert scaled.shape == (count, draws)
    means = scaled.mean(1)
    per_draw = scale * means.softmax(0) @ scaled + outside[0] - log_q
    bound = scale * means.logsumexp(0) + (outside[0] - log_q).mean()
    return bound.item(), (per_draw.std() / math.sqrt(draws)).item()


def _log_joint(model: Any, values: dict[str, Tensor], discrete: set[str], args: Any) -> tuple[Tensor, Tensor]:
    """log p of the part that is scaled together with discrete sites, without the scale, and of all the rest."""
    with poutine.block(), pyro.validation_enabled(False), _Values(values):
        sites = poutine.trace(model).get_trace(*args).nodes
    common = next((sites[name]["scale"] for name in discrete), 1.0)
    parts = [torch.zeros(()), torch.zeros(())]
    for name, site in sites.items():
        if not _counts(site, values):
            continue
        with pyro.validation_enabled(False):
            density = site["fn"].log_prob(site["value"])
        if site["mask"] is not None:
            support = site["fn"].enumerate_support(expand=False) if name in discrete else None
            hidden = 0.0 if support is None else -math.log(len(support))
            density = torch.where(torch.as_tensor(site["mask"]), density, hidden)
        if site["scale"] == common:
            parts[0] = parts[0] + density.sum()
        else:
            parts[1] = parts[1] + site["scale"] * density.sum()
    return parts[0], parts[1]


def _counts(site: Any, values: dict[str, Tensor]) -> bool:
    """True for what has a density; what is neither observed nor in the guide integrates to 1."""
    if site["type"] != "sample" or site["infer"].get("_deterministic"):
        return False
    return type(site["fn"]).__name__ != "_Subsample" and (site["is_observed"] or site["name"] in values)


def _sites(model: Any, values: dict[str, Tensor], args: Any) -> dict[str, Any]:
    with poutine.block(), _Values(values):
        return dict(poutine.trace(model).get_trace(*args).nodes)


def _discrete(sites: dict[str, Any], values: dict[str, Tensor]) -> dict[str, Any]:
    return {
        name: site
        for name, site in sites.items()
        if name not in values
        and _is_latent(site)
        and not site["infer"].get("_deterministic")
        and site["fn"].support.is_discrete
    }


def _scale_of(model: Any, values: dict[str, Tensor], args: Any) -> float:
    found = _discrete(_sites(model, values, args), values)
    return float(next((site["scale"] for site in found.values()), 1.0))


def _all_assignments(model: Any, values: dict[str, Tensor], args: Any) -> dict[str, Tensor]:
    """All joint values of the discrete sites: name → [combinations, *shape of the site]."""
    found = _discrete(_sites(model, values, args), values)
    supports, owners = [], []
    for name, site in found.items():
        support = site["fn"].enumerate_support(expand=False).reshape(-1)
        supports += [support] * site["value"].numel()
        owners += [name] * site["value"].numel()
    if not found:
        return {}
    assert 500 * math.prod(len(support) for support in supports) <= MOST_VALUES
    columns = torch.cartesian_prod(*supports).reshape(-1, len(supports)).unbind(1)
    return {
        name: torch.stack([c for c, owner in zip(columns, owners, strict=True) if owner == name], -1).reshape(
            -1, *site["value"].shape
        )
        for name, site in found.items()
    }
