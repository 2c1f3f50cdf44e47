"""Starting points of an autoguide's posteriors: exact updates, given where points cluster."""

import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.nn.functional import one_hot

from pyro_fmvae.distributions import HiddenMarkov
from pyro_fmvae.distributions.exponential_family import unwrap
from pyro_fmvae.infer.conjugate_sites import ConjugateSites
from pyro_fmvae.infer.elbo import TraceConjugate_ELBO
from pyro_fmvae.infer.elbo.structure import (
    Site,
    enum_dim,
    frames_of,
    is_discrete,
    sample_sites,
    subsamples,
    values_of,
)
from pyro_fmvae.infer.natural_gradient import NaturalGradient
from pyro_fmvae.infer.posteriors import ConjugatePosterior, NaturalPosterior, PosteriorDict
from pyro_fmvae.infer.seeding import kmeans, posterior_weights

PASSES = 10  # posteriors that depend on each other, such as those of a location and its precision, take turns


@torch.no_grad()
def start_mixture(
    name: str,
    known: ConjugateSites,
    posterior_of: Callable[[str], ConjugatePosterior],
    loc: Tensor,
    scale: Tensor,
    generator: torch.Generator,
    num_data: int | None,
) -> None:
    """Start the components of a mixture and their weights: see :meth:`AutoConjugate.seed`.

    Args:
        name, loc, scale, generator, num_data: as for that method.
        known: sites of the model.
        posterior_of: gives the posterior of a site, which is changed in place.
    """
    if name not in known.mixtures:
        names = sorted(known.mixtures)
        raise ValueError(
            f"name: expected the components of a mixture, one of {names}, got '{name}'; "
            "seed_clusters starts a mixture in Pyro's own distributions"
        )
    weights, components, event = known.mixtures[name]
    prior, weights_prior = known.priors[components].natural, known.priors[weights]
    batch, size = prior.shape[:-2], prior.shape[-2]
    points = loc.shape[len(batch) : len(batch) + 1]
    if loc.shape != (*batch, *points, *event) or loc.shape != scale.shape or not points:
        shape = [*batch, "M", *event]
        raise ValueError(
            f"loc, scale: expected shape {shape} for '{name}', got {list(loc.shape)}, {list(scale.shape)}"
        )
    if weights_prior.batch_shape.numel() != batch.numel():
        raise ValueError(f"name: the weights '{weights}' of '{name}' belong to several mixtures")
    clusters = [kmeans(each, size, generator) for each in loc.reshape(-1, *points, *event)]
    gamma = one_hot(torch.stack(clusters), size).view(*batch, *points, size).to(loc.device)
    per_point = (num_data or points.numel()) / points.numel()
    family, moments = known.priors[components].family, (loc, scale.square())
    update = family.conjugate_update(prior.to(loc.device), gamma, *moments, per_point)
    counts = posterior_weights(weights_prior, gamma, per_point).natural
    for site, natural in ((components, update), (weights, counts)):
        posterior = posterior_of(site)
        if not isinstance(posterior, NaturalPosterior):
            raise ValueError(
                f"name: the posterior of '{site}' was replaced by another than a natural one; seed first"
            )
        posterior.natural.copy_(natural)


def start_at_clusters(
    posteriors: PosteriorDict,
    model: Callable[..., Any],
    whole: Callable[..., Any],
    assignment: str,
    points: Tensor | str,
    args: Any,
    kwargs: Any,
    generator: torch.Generator | None,
) -> None:
    """Start all posteriors where points cluster: see :meth:`AutoConjugate.seed_clusters`.

    Args:
        posteriors: of the model's conjugate sites, by name; changed in place.
        model: the model.
        whole: the whole guide.
        assignment, points, args, kwargs, generator: as for that method.
    """
    elbo = TraceConjugate_ELBO()
    with torch.no_grad():
        program, _ = elbo.trace(model, whole, *args, **kwargs)
    sites = sample_sites(program.model)
    given = _given(assignment, _data(points, sites), sites, generator)
    _update(posteriors, *given(model, whole), subsamples(program.model), args, kwargs)


def start_at_known_states(
    posteriors: PosteriorDict,
    model: Callable[..., Any],
    whole: Callable[..., Any],
    run: Trace,
    args: Any,
    kwargs: Any,
) -> None:
    """Start all posteriors at the known states of observed sequences, if there are any.

    A step whose state is not known has that of the nearest mean of steps with known states, in standard
    deviations of each coordinate. A state of which no step is known gets a mean by k-means++.

    Args:
        posteriors: of the model's conjugate sites, by name; changed in place.
        model: the model.
        whole: the whole guide.
        run: of the model.
        args, kwargs: of the model.
    """
    given = model
    for name, site in sample_sites(run).items():
        fn = site["fn"]
        if (
            isinstance(fn, HiddenMarkov)
            and site["is_observed"]
            and fn.states is not None
            and (fn.states >= 0).any()
        ):
            given = GivenStates(name, _clustered_states(name, fn, site["value"], None))(given)
    if given is not model:
        with torch.enable_grad():
            _update(posteriors, given, whole, subsamples(run), args, kwargs)


def _update(
    posteriors: PosteriorDict,
    model: Callable[..., Any],
    whole: Callable[..., Any],
    rows: Trace,
    args: Any,
    kwargs: Any,
) -> None:
    """Give all posteriors their updates by turns.

    Args:
        posteriors: see :func:`start_at_clusters`.
        model, whole: the program in which clusters are known.
        rows: trace of the rows of its plates.
        args, kwargs: of the model.
    """
    elbo, naturals = TraceConjugate_ELBO(), []
    for name, posterior in posteriors.items():
        if not isinstance(posterior, NaturalPosterior):
            raise ValueError(
                f"seed_clusters: the posterior of '{name}' was replaced by another than a natural one; "
                "seed first"
            )
        naturals.append(posterior.natural)
    optim = NaturalGradient(1.0)
    for _ in range(PASSES):
        with poutine.replay(trace=rows):
            loss = elbo.differentiable_loss(model, whole, *args, **kwargs)
        gradients = torch.autograd.grad(loss, naturals, allow_unused=True)
        if any(gradient is None for gradient in gradients):
            raise ValueError("guide: expected one that calls this AutoConjugate")
        for natural, gradient in zip(naturals, gradients, strict=True):
            natural.grad = gradient
        optim(naturals)


def _given(
    name: str, points: Tensor, sites: dict[str, Site], generator: torch.Generator | None
) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Makes a model and a guide into those in which each point's component is known from its cluster."""
    fn = sites[name]["fn"] if name in sites else None
    if isinstance(fn, HiddenMarkov):
        known = GivenStates(name, _clustered_states(name, fn, points, generator))
        return lambda model, guide: (known(model), guide)
    site = _assignment(name, sites)
    q = _clustered(site, points, generator)

    def with_clusters(model: Any, guide: Any) -> tuple[Any, Any]:
        def given_clusters(*args: Any, **kwargs: Any) -> None:
            guide(*args, **kwargs)
            with frames_of(site):
                pyro.sample(name, q)

        return model, given_clusters

    return with_clusters


class GivenStates(Messenger):
    """Tells a ``HiddenMarkov`` its states.

    Args:
        name: of its site.
        states: see :meth:`HiddenMarkov.given`.
    """

    def __init__(self, name: str, states: Tensor) -> None:
        super().__init__()
        self._name, self._states = name, states

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] == self._name:
            msg["fn"] = msg["fn"].given(self._states)


def _clustered_states(
    name: str, fn: HiddenMarkov, points: Tensor, generator: torch.Generator | None
) -> Tensor:
    """States of the steps of sequences by clusters, -1 where they are not present: [*batch shape, T].

    Known ones stay as they are, and the clusters are those around their means.
    """
    steps = (*fn.batch_shape, fn.event_shape[0])
    if points.shape[: len(steps)] != steps:
        raise ValueError(
            f"points: expected shape {list(steps)} and that of a point, as '{name}' has steps, got "
            f"{list(points.shape)}"
        )
    there = torch.ones(steps, dtype=torch.bool, device=points.device)
    if fn.present is not None:
        there = there & fn.present
    states = torch.full(steps, -1, device=points.device)
    if fn.states is None or not (fn.states >= 0).any():
        states[there] = _clusters(points[there], fn.start.shape[-1], generator)
        return states
    if isinstance(unwrap(fn.emissions), dist.Categorical):
        points = one_hot(points.long())
    known = fn.states.expand(steps)
    states[there] = _around_known(points[there], known[there], fn.start.shape[-1], generator)
    return torch.where(known < 0, states, known)


def _around_known(points: Tensor, known: Tensor, size: int, generator: torch.Generator | None) -> Tensor:
    """Cluster indices of points [M, *shape of a point] of which some are known: [M]."""
    _check_finite(points)
    points = points.reshape(len(points), -1).to(torch.promote_types(points.dtype, torch.float32))
    scale = points.std(0, correction=0)
    points = points / torch.where(scale > 0, scale, 1.0)
    found = known[known >= 0].unique()
    centres = torch.stack([points[known == state].mean(0) for state in found])
    others = torch.ones(size, dtype=torch.bool).index_fill(0, found, False).nonzero().squeeze(-1)
    return torch.cat([found, others])[kmeans(points, size, generator, 0, centres)]


def _assignment(name: str, sites: dict[str, Site]) -> Site:
    """The discrete site of a name, if it neither depends on another one nor another one on it."""
    discrete = {each: site for each, site in sites.items() if is_discrete(site)}
    if name not in discrete:
        raise ValueError(
            f"assignment: expected an unobserved discrete site, one of {sorted(discrete)}, or the site of a "
            f"HiddenMarkov, got '{name}'"
        )
    own, parents = enum_dim(discrete[name]), {each: _parents(site) for each, site in discrete.items()}
    if parents[name] or any(own in dims for dims in parents.values()):
        raise ValueError(
            f"assignment: '{name}' belongs to a chain or tree of discrete sites, so clusters of points "
            "don't tell its values; start from several random seeds instead, and take the best bound"
        )
    return discrete[name]


def _data(points: Tensor | str, sites: dict[str, Site]) -> Tensor:
    """The points, or the data of the observed site of that name."""
    if isinstance(points, Tensor):
        return points.detach()
    observed = {name: site["value"] for name, site in sites.items() if site["is_observed"]}
    if points not in observed:
        raise ValueError(
            f"points: expected a tensor or an observed site, one of {sorted(observed)}, got {points!r}"
        )
    data: Tensor = observed[points]
    return data


def _parents(site: Site) -> set[int]:
    """The enumerated dimensions of the discrete sites that a discrete site depends on."""
    shape = site["fn"].batch_shape
    return {dim for dim in range(-len(shape), -len(_batch(site))) if shape[dim] > 1}


def _batch(site: Site) -> list[int]:
    sizes = {frame.dim: frame.size for frame in site["cond_indep_stack"] if frame.vectorized}
    return [sizes.get(dim, 1) for dim in range(min(sizes, default=0), 0)]


def _clustered(site: Site, points: Tensor, generator: torch.Generator | None) -> dist.Distribution:
    """The distribution of an assignment that is certain of the clusters of points."""
    batch, size = _batch(site), values_of(site)
    if list(points.shape[: len(batch)]) != batch:
        raise ValueError(
            f"points: expected shape {batch} and that of a point, as '{site['name']}' has in its plates, got "
            f"{list(points.shape)}"
        )
    clusters = _clusters(points.reshape(math.prod(batch), -1), size, generator)
    probabilities = one_hot(clusters.view(batch), size).double()
    return (dist.OneHotCategorical if site["fn"].event_dim else dist.Categorical)(probs=probabilities)


def _clusters(points: Tensor, size: int, generator: torch.Generator | None) -> Tensor:
    """Cluster indices of points [N, *shape of a point]: [N]."""
    _check_finite(points)
    return kmeans(points.to(torch.promote_types(points.dtype, torch.float32)), size, generator)


def _check_finite(points: Tensor) -> None:
    if not points.isfinite().all():
        raise ValueError("points: expected finite numbers")
