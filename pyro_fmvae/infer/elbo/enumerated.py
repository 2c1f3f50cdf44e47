"""Discrete sites summed out: Pyro's enumeration and contraction, over expected log-densities.

With log-densities replaced by their expectations under the posteriors of everything else, summing the
discrete sites out gives the bound at their optimal posterior: Hoffman et al. (2013), Stochastic variational
inference, Section 2. Obermeyer et al. (2019), Tensor variable elimination for plated factor graphs, do the
sum.
"""

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from opt_einsum import shared_intermediates  # type: ignore[import-untyped]
from pyro.infer.traceenum_elbo import _compute_model_factors
from pyro.ops import packed
from pyro.ops.contract import contract_tensor_tree
from pyro.ops.rings import LogRing
from pyro.poutine import Trace
from torch import Tensor

from pyro_fmvae.distributions import Label
from pyro_fmvae.distributions.recorded import is_recorded
from pyro_fmvae.infer.elbo.distribution_checks import without_natural_step
from pyro_fmvae.infer.elbo.lazy import lazy_sites
from pyro_fmvae.infer.elbo.structure import Role, Site, Term, enum_dim, role_of
from pyro_fmvae.infer.elbo.sums import widest


class DiscreteFactors:
    """The part of a program that depends on discrete sites, its log-densities being tables over their values.

    Args:
        sites: the discrete sites and all that depend on them, from the model's trace, each with its table
            ``unscaled_log_prob`` [enumerated dimensions..., batch shape].
        given: name of a discrete site → log q of its enumerated values, where the guide gives it.
        points: name of a plate → weights of its points, which multiply their parts of the sum.
    """

    def __init__(
        self,
        sites: Iterable[Site],
        given: Mapping[str, Tensor],
        points: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        self._trace, self._given, self._points = Trace(), given, points
        sites = list(sites)
        self._scale = _common_scale([s for s in sites if enum_dim(s) is not None and s["name"] not in given])
        self._scales = {site["name"]: site["scale"] for site in sites}
        for site in sites:
            packed = packed_inputs(site)
            share = 1.0 if self._scale is None else site["scale"] / self._scale
            if isinstance(share, Tensor) or share != 1:
                packed["unscaled_log_prob"] = packed["unscaled_log_prob"] * share
            self._trace.add_node(
                site["name"], **{**site, **packed, "scale": 1.0, "infer": dict(site["infer"])}
            )

    def log_sum(self, scaled: bool = True) -> Tensor:
        """The sum over discrete sites, a scalar; for those that are given, the bound at the guide's q.

        The scale of the discrete sites multiplies the sum. What a site has beyond it, such as N / M in a
        subsampled plate that a discrete site is outside of, multiplies its log-density within the sum: the
        value is the same for all N points.

        Args:
            scaled: whether the scale of the discrete sites counts.

        Raises:
            ValueError: discrete sites under different scales, or one outside of the plate of points, with the
                points, or of plates that a scale varies along; or discrete sites in plates that cross, with
                what depends on both.
        """
        trace = self._trace
        trace.pack_tensors()
        nodes = {name: trace.nodes[name] for name in self._given}
        log_q = {
            name: packed.pack(self._given[name], site["infer"]["_dim_to_symbol"])
            for name, site in nodes.items()
        }
        guide = SimpleNamespace(
            nodes={name: {**site, "packed": {"log_prob": log_q[name]}} for name, site in nodes.items()},
            plate_to_symbol=trace.plate_to_symbol,
        )
        costs, factors, _, sum_dims, _ = _compute_model_factors(trace, guide)
        every = [cost for terms in costs.values() for cost in terms]
        for plate in self._points:
            self._check_apart(plate, itertools.chain(*factors.values()))
        if factors:
            sizes = {
                symbol: size
                for terms in factors.values()
                for term in terms
                for symbol, size in zip(term._pyro_dims, term.shape, strict=True)
            }
            factors = OrderedDict((ordinal, _joined(terms)) for ordinal, terms in factors.items())
            with shared_intermediates() as cache:
                ring = LogRing(cache=cache, dim_to_size=sizes)
                try:
                    factors = contract_tensor_tree(factors, sum_dims, ring=ring)
                except NotImplementedError:  # plates that cross
                    raise ValueError(self._crossing()) from None
            (name, site), *_ = [each for each in trace.nodes.items() if self._is_summed(each[1])]
            scale = self._scales[name] if scaled else 1.0
            every += [_scaled(t, scale, site) for terms in factors.values() for t in terms]
        for name, q in log_q.items():
            masked = packed.scale_and_mask(q, mask=nodes[name]["packed"]["mask"])
            every.append(packed.neg(_scaled(masked, self._scales[name], nodes[name])))
        symbols = {nodes[name]["infer"]["_enumerate_symbol"]: q for name, q in log_q.items()}
        for plate, weights in self._points.items():
            every = [_weighted(cost, trace.plate_to_symbol[plate], weights) for cost in every]
        parts = [_mean(cost, symbols) for cost in every]
        return sum(parts[1:], parts[0])

    def _crossing(self) -> str:
        """Name the fault of discrete sites in plates that cross."""
        summed = [(name, site) for name, site in self._trace.nodes.items() if self._is_summed(site)]
        plates = {name: {f.name for f in site["cond_indep_stack"] if f.vectorized} for name, site in summed}
        pairs = itertools.combinations(plates, 2)
        a, b = next((a, b) for a, b in pairs if not (plates[a] <= plates[b] or plates[b] <= plates[a]))
        apart, other = min(plates[a] - plates[b]), min(plates[b] - plates[a])
        return (
            f"sites '{a}' and '{b}': they are summed out together, but lie in the plates '{apart}' and "
            f"'{other}', neither of which is inside of the other; sample both in the guide, or, if '{other}' "
            f"is short, make it sequential, as for i in pyro.plate('{other}', size)"
        )

    def _is_summed(self, site: Site) -> bool:
        return enum_dim(site) is not None and site["name"] not in self._given

    def _check_apart(self, plate: str, factors: Iterable[Any]) -> None:
        """Refuse a discrete site outside of a plate that factors of its points depend on."""
        nodes, symbol = self._trace.nodes, self._trace.plate_to_symbol.get(plate)
        together = {each for term in factors if symbol in term._pyro_dims for each in term._pyro_dims}
        for name, site in nodes.items():
            inside = any(frame.name == plate for frame in site["cond_indep_stack"])
            if enum_dim(site) is not None and not inside and site["infer"]["_enumerate_symbol"] in together:
                raise ValueError(
                    f"plate: site '{name}' is outside of '{plate}' and summed out with all of its points "
                    "together, so that none has a loss of its own; name a plate that the site is in"
                )

    def posteriors(self) -> dict[str, Tensor]:
        """Probabilities of each discrete site's values, optimal or given: [..., K] with its plates in front.

        The optimal ones are the gradient of the sum with respect to the site's table.
        """
        tables, probes = {}, {}
        with torch.enable_grad():
            for name, site in self._trace.nodes.items():
                if enum_dim(site) is None:
                    continue
                if name in self._given:
                    tables[name] = self._given[name].exp()
                    continue
                probes[name] = torch.zeros_like(site["unscaled_log_prob"], requires_grad=True)
                site["unscaled_log_prob"] = site["unscaled_log_prob"].detach() + probes[name]
            if probes:
                slopes = torch.autograd.grad(self.log_sum(scaled=False), list(probes.values()))
                tables.update(zip(probes, slopes, strict=True))
        return {name: _marginal(table, self._trace.nodes[name]) for name, table in tables.items()}


def _common_scale(sites: list[Site]) -> Any:
    """The scale of discrete sites that are summed out; None if there are none.

    Raises:
        ValueError: they differ.
    """
    for site in sites[1:]:
        if not _is_same(sites[0]["scale"], site["scale"]):
            raise ValueError(
                f"site '{site['name']}': it is summed out together with '{sites[0]['name']}', which has "
                "another scale, as one outside of a subsampled plate has; give all data at once, or give the "
                f"guide probabilities of '{sites[0]['name']}'"
            )
    return sites[0]["scale"] if sites else None


def _is_same(one: Any, other: Any) -> bool:
    """True for equal scales; those of a recorded run were compared before."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        one, other = torch.as_tensor(one), torch.as_tensor(other)
        return one.shape == other.shape and (is_recorded() or bool((one == other).all()))
    return bool(one == other)


def _scaled(cost: Any, scale: Any, site: Site) -> Any:
    """A packed cost times a scale, which may vary along the plates of a site.

    Raises:
        ValueError: the cost is a sum over them.
    """
    if not (isinstance(scale, Tensor) and scale.dim()):
        return packed.scale_and_mask(cost, scale=scale)
    weights = packed.pack(scale, site["infer"]["_dim_to_symbol"])
    if not set(weights._pyro_dims) <= set(cost._pyro_dims):
        raise ValueError(
            f"site '{site['name']}': its scale varies along a plate that a discrete site with it is outside "
            "of; scale what is observed alone, or put all of its discrete sites into the plate"
        )
    cost, weights = packed.broadcast_all(cost, weights)
    dims = cost._pyro_dims
    result = cost * weights
    result._pyro_dims = dims
    return result


def _marginal(table: Tensor, site: Site) -> Tensor:
    """A site's own probabilities [..., K] from weights [enumerated dimensions..., plates...]."""
    dim, plates = enum_dim(site), _plates(site)
    assert dim is not None
    size = table.shape[dim]
    others = [d for d in range(-table.dim(), -plates) if d != dim]
    weights = (table.sum(others, keepdim=True) if others else table).movedim(dim, -1)
    weights = weights.reshape(*weights.shape[weights.dim() - 1 - plates : -1], size)
    return weights / weights.sum(-1, keepdim=True)


def _plates(site: Site) -> int:
    """The number of dimensions that a site's plates take, from the last."""
    return max((-frame.dim for frame in site["cond_indep_stack"] if frame.vectorized), default=0)


def packed_inputs(site: Site) -> dict[str, Any]:
    """A site's log-densities as Pyro's contraction takes them.

    A discrete site that is masked out has no say in the sum: its values are equally likely there.
    """
    table, mask, dim = site["unscaled_log_prob"], site["mask"], enum_dim(site)
    if dim is not None and mask is not None:
        uniform = -math.log(table.shape[dim])
        table = torch.where(torch.as_tensor(mask, device=table.device), table, uniform)
    scaled = table * site["scale"]
    if mask is not None:
        scaled = torch.where(torch.as_tensor(mask, device=table.device), scaled, 0.0)
    return {"unscaled_log_prob": table, "log_prob": scaled}


def _joined(terms: Iterable[Any]) -> list[Tensor]:
    """Factors with those of the same dimensions in one."""
    sums: dict[str, Any] = {}
    for term in terms:
        dims = term._pyro_dims
        sums[dims] = sums[dims] + term if dims in sums else term
        sums[dims]._pyro_dims = dims
    return list(sums.values())


def _weighted(cost: Any, symbol: str, weights: Tensor) -> Any:
    """A packed cost times the weights of a plate's points, if it has them."""
    dims = cost._pyro_dims
    if symbol not in dims:
        return cost
    shape = [-1 if each == symbol else 1 for each in dims]
    weighted: Any = cost * weights.to(cost).view(shape)
    weighted._pyro_dims = dims
    return weighted


def _mean(cost: Any, given: Mapping[str, Tensor]) -> Tensor:
    """The sum of a packed cost, weighted by the probabilities that are given for its discrete sites."""
    dims = cost._pyro_dims
    own: list[Any] = [q for symbol, q in given.items() if symbol in dims]
    if not own:
        total: Tensor = cost.sum(dtype=widest(cost.device))
        return total
    formula = ",".join([dims, *(q._pyro_dims for q in own)])
    letters = {symbol: chr(97 + i) for i, symbol in enumerate(dict.fromkeys(formula.replace(",", "")))}
    renamed = "".join(letters.get(symbol, symbol) for symbol in formula)
    return torch.einsum(f"{renamed}->", cost, *(q.exp() for q in own))


# Weights of parts of a plain program's bound: of latents of single data points, and of labels.


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
        _plates_of_sites(each)
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
    return not data.isdisjoint(_plates_of_sites(site))


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


def _plates_of_sites(site: Site) -> frozenset[str]:
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
