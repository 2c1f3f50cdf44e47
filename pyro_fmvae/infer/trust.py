"""Numbers to trust a posterior by: draws for ArviZ, PSIS k-hat, calibration by simulation, labels aligned."""

import math
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro.poutine as poutine
import torch
from pyro.distributions.util import scale_and_mask
from pyro.infer import Predictive
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_fmvae.infer.elbo import TraceConjugate_ELBO, loss_per_point
from pyro_fmvae.infer.elbo.recognition import recognise_conjugacy
from pyro_fmvae.infer.elbo.structure import Site, is_discrete, is_latent, sample_sites
from pyro_fmvae.infer.exact.collapse import CollapsedModel

Samples = Mapping[str, Tensor]


def _arviz() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # 0.2x announces 1.0 on import
        try:
            import arviz
        except ImportError as error:
            raise ImportError(
                "arviz: expected it to be installed; pip install 'pyro-fmvae[arviz]'"
            ) from error
    return arviz


def _draws(guide: Callable[..., Any], size: int, args: Any, kwargs: Any) -> dict[str, Tensor]:
    """Draws of a guide's sites by name, [S, *shape], without auxiliary ones."""
    with torch.no_grad(), poutine.block():
        names = [
            name
            for name, site in sample_sites(poutine.trace(guide).get_trace(*args, **kwargs)).items()
            if not (site["is_observed"] or site["infer"].get("is_auxiliary"))
        ]
        return _squeezed(
            Predictive(guide, num_samples=size, return_sites=names)(*args, **kwargs), guide, args, kwargs
        )


def _squeezed(draws: Samples, guide: Any, args: Any, kwargs: Any) -> dict[str, Tensor]:
    """Draws without the dimensions of plates that a site is not in, which ``Predictive`` leaves."""
    sites = sample_sites(poutine.trace(guide).get_trace(*args, **kwargs))
    return {name: value.reshape(len(value), *sites[name]["value"].shape) for name, value in draws.items()}


def _given(
    model: Any, values: Samples, args: Any, kwargs: Any, absent: Collection[str] = ()
) -> dict[str, Site]:
    """The sites of a run at values of latent sites.

    Args:
        model, args, kwargs: the program.
        values: by name.
        absent: names of sites that need none.

    Raises:
        ValueError: another continuous latent site has no value.
    """
    with poutine.block(), poutine.trace() as run, poutine.condition(data=dict(values)):
        model(*args, **kwargs)
    run.trace.compute_log_prob(lambda name, site: site["is_observed"])
    sites = sample_sites(run.trace)
    for name, site in sites.items():
        if is_latent(site) and not is_discrete(site) and name not in absent:
            raise ValueError(f"posterior: expected values of site '{name}', too, got {list(values)}")
    return sites


def _unneeded(model: Any, values: Samples, args: Any, kwargs: Any) -> list[str]:
    """Names of sites without values that nothing depends on, such as what ``obs_mask=`` leaves unobserved."""
    with poutine.block(), poutine.condition(data=dict(values)):
        sites = sample_sites(poutine.trace(model).get_trace(*args, **kwargs)).values()
    if not any(is_latent(site) and not is_discrete(site) for site in sites):
        return []
    return recognise_conjugacy(poutine.condition(model, data=dict(values)), args, kwargs).leaves


class _PointDensities:
    """Log-densities of the points of a program, given its latent sites.

    Args:
        model, args, kwargs: the program.
        values: of latent sites in a first run, by name. Continuous sites of the plate without a value are
            integrated out where that can be done in closed form.
        plate: of the points.
    """

    def __init__(self, model: Any, values: Samples, args: Any, kwargs: Any, plate: str) -> None:
        self._program, self._plate = (model, args, kwargs), plate
        self._unneeded = _unneeded(model, values, args, kwargs)
        with poutine.block(), poutine.condition(data=dict(values)):
            sites = sample_sites(poutine.trace(model).get_trace(*args, **kwargs))
        own = [n for n, s in sites.items() if is_latent(s) and not is_discrete(s) and _is_in(s, plate)]
        own = [name for name in own if name not in self._unneeded]
        self._collapsed = CollapsedModel(model, own) if own and not _has_discrete(sites) else None

    def __call__(self, values: Samples) -> dict[str, Tensor]:
        """By name of an observed site, or of the plate; see :func:`_pointwise`."""
        model, args, kwargs = self._program
        if self._collapsed is None:
            return _pointwise(model, values, args, kwargs, self._plate, self._unneeded)
        drawn, total = dict[str, Tensor](), torch.zeros((), dtype=torch.float64)
        densities = dict[str, Tensor]()  # of a draw: p(x) = p(x, z) / p(z | x)
        for group, natural in self._collapsed.conditionals(values, args, kwargs):
            new = group.draw(natural)
            densities |= {name: group.part(name, natural, new).log_prob(new[name]) for name in group.names}
            drawn |= new
        sites = _given(model, {**values, **drawn}, args, kwargs, self._unneeded)
        found = dict[str, Tensor]()
        for name, site in sites.items():
            if not site["is_observed"] or name in values or not site["unscaled_log_prob"].numel():
                continue
            density = scale_and_mask(site["unscaled_log_prob"], mask=site["mask"]).double()
            if name in drawn:
                own = densities[name].double()
                density = density - own.reshape(*density.shape, -1).sum(-1)
            elif not _is_in(site, self._plate):
                found[name] = density
                continue
            dim = next(f.dim for f in site["cond_indep_stack"] if f.name == self._plate)
            others = [each for each in range(-density.dim(), 0) if each != dim]
            total = total + (density.sum(others) if others else density)
        return {self._plate: total, **found}


def _pointwise(
    model: Any, values: Samples, args: Any, kwargs: Any, plate: str, absent: Collection[str]
) -> dict[str, Tensor]:
    """Log-densities of observations at values of the latent sites: by site, or by point of a plate.

    Discrete sites are summed out, point by point of the plate. What is masked out has 0.
    """
    sites = _given(model, values, args, kwargs, absent)
    if not _has_discrete(sites):
        return {
            name: scale_and_mask(site["unscaled_log_prob"], mask=site["mask"])
            for name, site in sites.items()
            if site["is_observed"] and name not in values and site["unscaled_log_prob"].numel()
        }

    def density(program: Any) -> Any:
        fixed = poutine.condition(program, data=dict(values))
        return -sum(loss_per_point(_ELBO, fixed, _nothing, *args, plate=plate, **kwargs).values())

    found = density(model)
    if any(name in values and _is_in(site, plate) for name, site in sites.items()):
        found = found - density(_WithoutData()(model))  # that of the points' own latent sites
    return {plate: found}


_ELBO = TraceConjugate_ELBO()


class _WithoutData(Messenger):
    """Masks out all observations."""

    def _pyro_sample(self, msg: Any) -> None:
        if msg["is_observed"]:
            msg["mask"] = False


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _is_in(site: Site, plate: str) -> bool:
    return any(frame.name == plate for frame in site["cond_indep_stack"])


def _has_discrete(sites: Mapping[str, Site]) -> bool:
    return any(map(is_discrete, sites.values()))


def to_arviz(
    posterior: Callable[..., Any] | Samples,
    model: Callable[..., Any] | None = None,
    *args: Any,
    num_samples: int = 1000,
    num_chains: int = 1,
    plate: str = "data",
    **kwargs: Any,
) -> Any:
    """Draws of a posterior as ArviZ's ``InferenceData`` (``DataTree`` from ArviZ 1.0 on).

    With a model they have the log-density of each observation, which ``arviz.loo``, ``arviz.compare`` and,
    before ArviZ 1.0, ``arviz.waic`` need::

        a = to_arviz(guide, model, x)
        b = to_arviz(mcmc.get_samples(), other, x)
        print(arviz.compare({"a": a, "b": b}))

    Args:
        posterior: a guide, or draws by site, [S, *shape of the site], those of one chain after another.
            Continuous latent sites of the plate may be left out where they have a conditional in closed form:
            they are integrated out, as ``arviz.loo`` requires of points with latent sites of their own.
        model: whose observations count; None for draws alone.
        args, kwargs: of the model and of the guide.
        num_samples: S of a guide.
        num_chains: of the draws.
        plate: of the points that sites are summed or integrated out by, if there are any.

    Raises:
        ImportError: ArviZ is not installed.
        ValueError: draws that are not those of so many chains, or lack a continuous latent site.
    """
    arviz = _arviz()
    draws = _draws(posterior, num_samples, args, kwargs) if callable(posterior) else dict(posterior)
    sizes = {len(value) for value in draws.values()}
    if len(sizes) != 1 or max(sizes) % num_chains:
        raise ValueError(
            f"posterior: expected the same number of draws of each site, a multiple of {num_chains}, got "
            f"{sorted(sizes)}"
        )
    size = sizes.pop()
    groups: dict[str, dict[str, Any]] = {"posterior": draws}
    if model is not None:
        with torch.no_grad():
            at = [{name: value[i] for name, value in draws.items()} for i in range(size)]
            points = _PointDensities(model, at[0], args, kwargs, plate)
            rows = [points(values) for values in at]
        groups["log_likelihood"] = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    found = {
        group: {
            name: value.detach().cpu().numpy().reshape(num_chains, -1, *value.shape[1:])
            for name, value in values.items()
        }
        for group, values in groups.items()
    }
    is_old = int(arviz.__version__.partition(".")[0]) < 1
    return arviz.from_dict(**found) if is_old else arviz.from_dict(found)


def khat(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *args: Any,
    num_samples: int = 1000,
    **kwargs: Any,
) -> float:
    """The Pareto shape k of the ratios of a model's density to a guide's: Yao et al. (2018), Section 2.

    Below 0.7, the guide is close enough to the posterior for importance sampling to correct it; -inf says
    that it is the posterior itself.

    Args:
        model, guide: of continuous sites; discrete ones of the model are summed out.
        args, kwargs: of both.
        num_samples: draws of the guide.

    Raises:
        ImportError: ArviZ is not installed.
        ValueError: the guide lacks a continuous latent site.
    """
    arviz, ratios, unneeded = _arviz(), [], None
    with torch.no_grad():
        for _ in range(num_samples):
            with poutine.block():
                drawn = poutine.trace(guide).get_trace(*args, **kwargs)
            values = {n: site["value"] for n, site in sample_sites(drawn).items() if is_latent(site)}
            if unneeded is None:
                unneeded = _unneeded(model, values, args, kwargs)
            sites = _given(model, values, args, kwargs, unneeded)
            if _has_discrete(sites):
                fixed = poutine.condition(model, data=values)
                ratio = -torch.as_tensor(_ELBO.loss(fixed, _nothing, *args, **kwargs))
            else:
                ratio = sum(s["log_prob"].double().sum() for s in sites.values() if s["is_observed"])
            ratios.append(float(ratio - drawn.log_prob_sum().double()))
    log_ratios = np.asarray(ratios)
    if np.ptp(log_ratios) < 1e-6:  # no tail to fit: the guide is the posterior
        return -math.inf
    if hasattr(arviz, "psislw"):
        return float(arviz.psislw(log_ratios)[1])
    from arviz_stats.base import array_stats  # type: ignore[import-not-found]

    return float(array_stats.psislw(-log_ratios)[1])  # it takes log-likelihoods, whose inverses are ratios


@dataclass(frozen=True)
class Calibration:
    """The result of :func:`vsbc` for one site.

    Attributes:
        probabilities: P(θ < true θ) under each fit's posterior, [J, *shape of the site].
        p_values: that they are symmetric about 1/2, [*shape]: small where the posterior is biased.
        spread: their variance divided by that of a uniform one, [*shape]: above 1 where the posterior is too
            narrow.
    """

    probabilities: Tensor
    p_values: Tensor
    spread: Tensor


def vsbc(
    model: Callable[..., Any],
    fit: Callable[[Tensor], Callable[..., Any]],
    data: str,
    *,
    num_simulations: int = 100,
    num_samples: int = 200,
) -> dict[str, Calibration]:
    """Calibration of variational inference by simulation: Yao et al. (2018), Section 3.

    Each time, the model draws parameters and data, and the data are fitted.

    Args:
        model: without data: it draws them when it is called without arguments.
        fit: returns a trained guide, given data; the guide is called with the data.
        data: name of the site of the data.
        num_simulations: J.
        num_samples: draws of each guide.

    Raises:
        ValueError: the model has no such site.
    """
    from scipy.stats import ks_2samp  # type: ignore[import-untyped]

    found: dict[str, list[Tensor]] = {}
    for _ in range(num_simulations):
        with torch.no_grad(), poutine.block():
            truth = {
                name: site["value"] for name, site in sample_sites(poutine.trace(model).get_trace()).items()
            }
        if data not in truth:
            raise ValueError(f"data: expected the name of a site, of {list(truth)}, got '{data}'")
        guide = fit(truth[data])
        for name, draws in _draws(guide, num_samples, (truth[data],), {}).items():
            found.setdefault(name, []).append((draws < truth[name]).double().mean(0))
    result = {}
    for name, rows in found.items():
        table = torch.stack(rows)
        flat = table.reshape(len(table), -1).cpu().numpy()
        values = [ks_2samp(column, 1 - column).pvalue for column in flat.T]
        p_values = torch.tensor(values, dtype=torch.float64).reshape(table.shape[1:])
        result[name] = Calibration(table, p_values, 12 * (table - 0.5).square().mean(0))
    return result


def align_labels(responsibilities: Tensor, reference: Tensor | None = None, max_passes: int = 50) -> Tensor:
    """Permutations of a mixture's components, so that they have the same numbers in all fits or draws.

    They minimise the KL divergence of the permuted responsibilities from their mean, alternately with this
    mean: Stephens (2000), Dealing with label switching in mixture models, Algorithm 2.

    Args:
        responsibilities: of fits or draws, [S, N, K].
        reference: [N, K], to align with; None for their own mean, from the first one on.
        max_passes: over all fits.

    Returns:
        Component of each fit that comes in the place of component k, int64 [S, K]:
        ``weights[s][permutations[s]]``.

    Raises:
        ValueError: another shape.
    """
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    shape = responsibilities.shape
    if len(shape) != 3 or (reference is not None and reference.shape != shape[1:]):
        given = "" if reference is None else f" and a reference of {list(reference.shape)}"
        raise ValueError(f"responsibilities: expected [S, N, K], got {list(shape)}{given}")
    table = responsibilities.detach().double().cpu()
    tiny = torch.finfo(table.dtype).tiny
    entropy = (table * table.clamp(min=tiny).log()).sum(1)  # [S, K]
    orders = torch.arange(shape[2]).expand(len(table), -1).clone()
    target = table[0] if reference is None else reference.detach().double().cpu()
    for _ in range(max_passes):
        before = orders.clone()
        cost = entropy.unsqueeze(1) - target.clamp(min=1e-12).log().mT @ table  # [S, K of target, K]
        for number, each in enumerate(cost):
            orders[number] = torch.as_tensor(linear_sum_assignment(each.numpy())[1])
        if reference is not None or torch.equal(before, orders):
            break
        target = table.gather(2, orders.unsqueeze(1).expand(shape)).mean(0)
    return orders.to(responsibilities.device)
