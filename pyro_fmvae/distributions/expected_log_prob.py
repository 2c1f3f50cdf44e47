"""E_q[log p(value | parents)] in closed form, by pair of classes, as torch does for ``kl_divergence``.

``TraceConjugate_ELBO`` integrates the pairs that are registered here. A new pair takes one decorated
function, which may be in the user's own code.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions.dirichlet import DIRICHLET, NaturalDirichlet
from pyro_fmvae.distributions.exponential_family import stats_under, unwrap
from pyro_fmvae.distributions.mixture import Assignment, Component, FullComponent, Label, MixtureComponent

Posteriors = Mapping[str, Distribution]
Formula = Callable[[Distribution, Distribution, Posteriors], Tensor]
F = TypeVar("F", bound=Callable[..., Tensor])

_FORMULAS: dict[tuple[type, type], Formula] = {}


def register_expected_log_prob(q: type[Distribution], p: type[Distribution]) -> Callable[[F], F]:
    """Register a closed form of E_q[log p(value | parents)] for a pair of distribution classes.

    Args:
        q: class of the variational distribution of the value, ``Delta`` for an observed value.
            ``Independent`` wrappers are taken off before the look-up. Subclasses are matched too, the most
            specific registration first (that for q, then that for p).
        p: class of the model's distribution at the site, with an attribute ``parents`` that lists its
            arguments.

    The function is called as ``f(q, p, posteriors)``, with ``posteriors`` a mapping from the names of the
    parents to their posterior distributions. It returns a table over the components, [..., K], with the
    data's batch shape in front, and must never call ``p.log_prob``: the parents that ``p`` holds need not
    have been drawn.
    """

    def decorate(formula: F) -> F:
        _FORMULAS[q, p] = formula
        return formula

    return decorate


def expected_log_prob(q: Distribution, p: Distribution, posteriors: Posteriors) -> Tensor:
    """E_q[log p(value | parents)], with the parents under their posteriors, as a table over the components.

    Args:
        q: variational distribution of the value, or ``Delta`` for an observed value.
        p: the model's distribution at the site.
        posteriors: posterior of each conjugate parent, by the name of the argument of ``p``.

    Returns:
        [..., K], K being the components of the discrete parent (or of the value itself, for an
        :class:`Assignment`).

    Raises:
        NotImplementedError: no closed form is registered for the pair.
    """
    inner = unwrap(q)
    for q_class in type(inner).__mro__:
        for p_class in type(p).__mro__:
            formula = _FORMULAS.get((q_class, p_class))
            if formula is not None:
                return formula(inner, p, posteriors)
    raise NotImplementedError(
        f"no closed form of E_q[log p] is registered for q = {type(inner).__name__} and "
        f"p = {type(p).__name__}; add one with register_expected_log_prob"
    )


@register_expected_log_prob(torch.distributions.Categorical, Assignment)
@register_expected_log_prob(Assignment, Assignment)
def _assignment(q: Distribution, p: Assignment, posteriors: Posteriors) -> Tensor:
    """E[log π_k] [..., K]: ψ(c_k) - ψ(Σ c) under a Dirichlet posterior, log π_k at a point estimate."""
    weights = unwrap(posteriors["weights"])
    if isinstance(weights, NaturalDirichlet):
        return weights.expected_stats()
    if isinstance(weights, torch.distributions.Dirichlet):
        return DIRICHLET.mean_stats(weights.concentration)
    if isinstance(weights, dist.Delta):
        return weights.v.log()
    raise NotImplementedError(
        f"weights: no closed form of E[log π] under {type(weights).__name__}; give the guide a Dirichlet, a "
        "NaturalDirichlet or a Delta"
    )


@register_expected_log_prob(dist.Delta, Label)
def _label(q: dist.Delta, p: Label, posteriors: Posteriors) -> Tensor:
    """Table [..., K] of log p(label | r=k): 0 where the label is k's value or unknown, -inf elsewhere."""
    assignment: Any = posteriors["assignment"]
    count, label = assignment.num_components, q.v.unsqueeze(-1)
    values = torch.arange(count, device=label.device) if p.values is None else p.values
    if len(values) != count:
        raise ValueError(f"values: expected one for each of {count} components, got {len(values)}")
    if p._validate_args and not ((label == -1) | (label == values).any(-1, keepdim=True)).all():
        allowed = f"a component from 0 to {count - 1}" if p.values is None else "a value of a component"
        raise ValueError(f"label: expected -1 (unknown) or {allowed}")
    return torch.zeros((), device=label.device).masked_fill((label >= 0) & (label != values), -torch.inf)


def component_table(q: Distribution, p: Any, posteriors: Posteriors) -> Tensor:
    """E_q[log p(x | θ_k)] [..., B, K] for any :class:`MixtureComponent`, from mean and variance of q.

    Registered for observed values. Register it for other classes of q, with a component, where the family's
    ``data_stats`` needs no other moment of q; such a q also needs an entropy.

    Raises:
        NotImplementedError: the posterior of θ is neither of the component's family nor a point mass.
    """
    return _table(p, q.mean, q.variance, _parameter_stats(p, posteriors))


def _table(p: Any, mean: Tensor, spread: Tensor, stats: Tensor) -> Tensor:
    """The family's table [..., B, K], or [K] for a single point outside all plates."""
    if mean.dim() > len(p.event_shape):
        return p.family.expected_log_likelihood(mean, spread, stats)
    return p.family.expected_log_likelihood(mean.unsqueeze(0), spread.unsqueeze(0), stats).squeeze(0)


def _parameter_stats(p: Any, posteriors: Posteriors) -> Tensor:
    """E[t] of the parameters of a mixture's components, float64 [..., K, P]."""
    argument, _ = p.parents
    try:
        return stats_under(unwrap(posteriors[argument]), p.family)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"{argument}: {error}; give the guide a {p.family.distribution.__name__}, in natural parameters "
            "or not, or a Delta"
        ) from None


register_expected_log_prob(dist.Delta, MixtureComponent)(component_table)
register_expected_log_prob(torch.distributions.Normal, FullComponent)(component_table)
for _normal in ("Normal", "MultivariateNormal", "LowRankMultivariateNormal"):
    register_expected_log_prob(getattr(torch.distributions, _normal), Component)(component_table)


@register_expected_log_prob(torch.distributions.MultivariateNormal, FullComponent)
@register_expected_log_prob(torch.distributions.LowRankMultivariateNormal, FullComponent)
def _full_component(q: Any, p: FullComponent, posteriors: Posteriors) -> Tensor:
    """The table under a q with covariances, -tr(E[Λ_k] Cov)/2 whole."""
    stats = _parameter_stats(p, posteriors)
    return _table(p, q.mean, q.covariance_matrix, stats)
