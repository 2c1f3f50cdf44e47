"""The bound of a program by its definition, which shares no code with the library's, and its gradient."""

import math
import warnings
from typing import Any

import pyro
import pyro.poutine as poutine
import pytest
import torch
from pyro.distributions import Bernoulli, Categorical, Independent, Wishart
from pyro.infer import TraceEnum_ELBO
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions import NaturalDistribution, NaturalParameter, NaturalWishart
from pyro_fmvae.distributions.exponential_family import unwrap
from pyro_fmvae.infer import TraceConjugate_ELBO

DRAWS = 3000  # of everything that is continuous, fewer where there are many assignments
MOST_VALUES = 400_000  # of log p

Posteriors = dict[str, Distribution]


def naturals(guide: Any) -> dict[str, Tensor]:
    return {name: p for name, p in guide.named_parameters() if isinstance(p, NaturalParameter)}


def step(model: Any, guide: Any, *args: Any, rate: float) -> None:
    """Move every natural posterior along its natural gradient."""
    for p in guide.parameters():
        p.grad = None
    pyro.set_rng_seed(1)
    TraceConjugate_ELBO().differentiable_loss(model, guide, *args).backward()
    with torch.no_grad():
        for p in naturals(guide).values():
            p -= rate * p.grad


def assert_bound(model: Any, guide: Any, *args: Any, twin: Any = None) -> float:
    """The ELBO's bound is that of the definition, for the model or its twin, within 4 standard errors.

    Returns:
        The standard error, divided by the greatest with which the comparison has power.
    """
    bound, error = brute_force(twin or model, guide, *args)
    ours = torch.tensor([_loss(model, guide, args, seed) for seed in range(2)])
    if ours[0] != ours[1]:  # the guide draws
        ours = torch.tensor([_loss(model, guide, args, seed) for seed in range(200)])
        error = math.hypot(error, ours.std() / math.sqrt(len(ours)))
    assert abs(ours.mean() + bound) < 4 * error + 1e-9 * abs(bound)
    return float(error / max(0.2, 0.01 * abs(bound)))


def assert_gradient(model: Any, guide: Any, *args: Any) -> None:
    """(∂E[t]/∂λ)·(natural gradient), along a random direction, is the change of the bound."""
    step(model, guide, *args, rate=0.0)
    parameters, width = naturals(guide), 3e-5
    start = {name: p.detach().clone() for name, p in parameters.items()}
    along = {name: width * p.detach().abs() * torch.randn_like(p) for name, p in parameters.items()}
    families = {name: guide.get_submodule(name.rpartition(".")[0]).kind.family for name in parameters}
    losses, predicted = [], 0.0
    for sign in (1, -1):
        for name, p in parameters.items():
            p.data.copy_(start[name] + sign * along[name])
            predicted += sign * (families[name].mean_stats(p.detach()) * p.grad).sum().item()
        losses.append(_loss(model, guide, args, 1))
    for name, p in parameters.items():
        p.data.copy_(start[name])
    assert losses[0] - losses[1] == pytest.approx(predicted, rel=1e-5, abs=1e-8)


def _loss(model: Any, guide: Any, args: Any, seed: int) -> float:
    pyro.set_rng_seed(seed)
    return TraceConjugate_ELBO().loss(model, guide, *args)


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
    if isinstance(inner, NaturalWishart):
        rate = member.rate_tril @ member.rate_tril.mT
        member = Wishart(2 * member.concentration + rate.shape[-1] - 1, precision_matrix=2 * rate)
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
    """log Σ_a exp E[log p(x, a, θ)] - E[log q(θ)], the bound of a program, and its standard error.

    Expectations are averages over draws of θ from q, and the sum is over all joint values ``a`` of all
    discrete sites together. Where discrete sites are under a scale, as in a subsample, the sum is scaled as a
    whole.
    """
    q = posteriors(guide, *args)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Singular sample detected")  # torch's Wishart then draws again
        theta = {name: fn.sample((DRAWS,)) for name, fn in q.items()}
    one = {name: value[0] for name, value in theta.items()}
    assignments, scale = _all_assignments(model, one, args), _scale_of(model, one, args)
    count = len(next(iter(assignments.values()), torch.zeros(1)))
    draws = min(DRAWS, MOST_VALUES // count)
    theta = {name: value[:draws] for name, value in theta.items()}
    log_q = sum(fn.log_prob(theta[name]).reshape(draws, -1).sum(-1) for name, fn in q.items())

    def log_joint(a: dict[str, Tensor], theta: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return _log_joint(model, {**a, **theta}, set(a), args)

    if not assignments:
        of_theta = torch.vmap(lambda t: log_joint({}, t), randomness="same")(theta)
        scaled, outside = (part.unsqueeze(0) for part in of_theta)
    else:
        over_draws = torch.vmap(log_joint, in_dims=(None, 0), randomness="same")
        each = ({name: values[row] for name, values in assignments.items()} for row in range(count))
        scaled, outside = map(torch.stack, zip(*(over_draws(a, theta) for a in each), strict=True))
    assert scaled.shape == (count, draws)
    means = scaled.mean(1)
    gamma = means.softmax(0).unsqueeze(-1)
    per_draw = scale * torch.where(gamma > 0, gamma * scaled, 0.0).sum(0) + outside[0] - log_q
    bound = scale * means.logsumexp(0) + (outside[0] - log_q).mean()
    return bound.item(), (per_draw.std() / math.sqrt(draws)).item()


def assert_trace_enum(model: Any, guide: Any, *args: Any, twin: Any = None, draws: int = 120) -> None:
    """``TraceEnum_ELBO`` at the same posteriors, those of discrete sites included, has the same mean."""
    program, elbo = twin or model, TraceEnum_ELBO(max_plate_nesting=2, strict_enumeration_warning=False)
    gamma = TraceConjugate_ELBO().responsibilities(program, guide, *args)
    q = posteriors(guide, *args)

    def complete(*args: Any) -> None:
        with (
            poutine.block(hide_fn=lambda msg: msg["type"] == "sample" and msg["is_observed"]),
            _From(q, gamma),
        ):
            program(*args)

    with pyro.validation_enabled(False):  # it refuses NaN under a mask
        losses = torch.tensor([elbo.loss(program, complete, *args) for _ in range(draws)])
    error = losses.std().item() / math.sqrt(draws)
    ours = _loss(model, guide, args, 1)
    assert abs(losses.mean() - ours) < 4 * error + 1e-9 * abs(ours)


class _From(Messenger):
    """Turns a model into a guide: with given posteriors, and probabilities of discrete sites."""

    def __init__(self, q: Posteriors, gamma: dict[str, Tensor]) -> None:
        super().__init__()
        self._q, self._gamma = q, gamma

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self._q:
            msg["fn"] = self._q[msg["name"]]
        elif msg["name"] in self._gamma:
            gamma = self._gamma[msg["name"]]
            of_two = isinstance(unwrap(msg["fn"]), Bernoulli)
            msg["fn"] = Bernoulli(gamma[..., 1]) if of_two else Categorical(gamma)
            msg["infer"] = {"enumerate": "parallel"}


def _log_prob(fn: Any, value: Tensor) -> Tensor:
    """The log-density; that of torch's Multinomial before 2.15 indexes by a mask, which vmap cannot."""
    if not isinstance(fn, torch.distributions.Multinomial):
        return fn.log_prob(value)
    coefficient = torch.lgamma(value.sum(-1) + 1) - torch.lgamma(value + 1).sum(-1)
    return coefficient + torch.xlogy(value, fn.probs).sum(-1)


def _log_joint(model: Any, values: dict[str, Tensor], discrete: set[str], args: Any) -> tuple[Tensor, Tensor]:
    """log p of what is scaled together with discrete sites, without the scale, and of all the rest."""
    with poutine.block(), pyro.validation_enabled(False), _Values(values):
        sites = poutine.trace(model).get_trace(*args).nodes
    common = next((sites[name]["scale"] for name in discrete), 1.0)
    parts = [torch.zeros(()), torch.zeros(())]
    for name, site in sites.items():
        if not _counts(site, values):
            continue
        with pyro.validation_enabled(False):
            density = _log_prob(site["fn"], site["value"])
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
    numbers = torch.cartesian_prod(*(torch.arange(len(support)) for support in supports))
    rows = numbers.reshape(-1, len(supports)).unbind(1)
    columns = [support[row] for support, row in zip(supports, rows, strict=True)]
    return {
        name: torch.stack([c for c, owner in zip(columns, owners, strict=True) if owner == name], -1).reshape(
            -1, *site["value"].shape
        )
        for name, site in found.items()
    }
