"""Log-densities in terms of products and logarithms of the parameters themselves.

Some of torch's densities go through logits, Cholesky factors or clamps, in which no expectation is known in
closed form. The functions here have the same values, written in the elements that exponential families have
expectations of. One for each class of distribution, whatever its parameters are.
"""

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import AffineTransform, Distribution, Independent, Normal
from torch.overrides import handle_torch_function, has_torch_function

_RESTATED: dict[type[Distribution], Callable[[Any, Tensor], Tensor]] = {}


def restated_log_prob(fn: Distribution, value: Tensor) -> Tensor:
    """``fn.log_prob(value)``, by a formula that can be read as a sum of products where there is one."""
    for base in type(fn).__mro__:
        if base in _RESTATED:
            return _RESTATED[base](fn, value)
    return fn.log_prob(value)


def restate(
    *classes: type[Distribution],
) -> Callable[[Callable[[Any, Tensor], Tensor]], Callable[..., Tensor]]:
    """Register a log-density for classes and their subclasses, by decorating a function of (fn, value)."""

    def decorate(formula: Callable[[Any, Tensor], Tensor]) -> Callable[..., Tensor]:
        _RESTATED.update(dict.fromkeys(classes, formula))
        return formula

    return decorate


def _from_probs(formula: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """A formula in probabilities; a distribution that was given logits keeps torch's own."""

    def log_prob(fn: Any, value: Tensor) -> Tensor:
        return formula(fn, value) if "probs" in vars(fn) else fn.log_prob(value)

    return log_prob


def _log_binomial(count: Tensor | float, chosen: Tensor) -> Tensor:
    count = torch.as_tensor(count, dtype=chosen.dtype, device=chosen.device)
    return torch.lgamma(count + 1) - torch.lgamma(chosen + 1) - torch.lgamma(count - chosen + 1)


@restate(torch.distributions.Bernoulli)
@_from_probs
def _bernoulli(fn: Any, value: Tensor) -> Tensor:
    return torch.xlogy(value, fn.probs) + torch.xlogy(1 - value, 1 - fn.probs)


@restate(torch.distributions.Binomial)
@_from_probs
def _binomial(fn: Any, value: Tensor) -> Tensor:
    density = torch.xlogy(value, fn.probs) + torch.xlogy(fn.total_count - value, 1 - fn.probs)
    return density + _log_binomial(fn.total_count, value)


@restate(torch.distributions.Geometric)
@_from_probs
def _geometric(fn: Any, value: Tensor) -> Tensor:
    return torch.xlogy(value, 1 - fn.probs) + fn.probs.log()


@restate(torch.distributions.NegativeBinomial)
@_from_probs
def _negative_binomial(fn: Any, value: Tensor) -> Tensor:
    count = fn.total_count
    constant = torch.lgamma(count + value) - torch.lgamma(1 + value) - torch.lgamma(count)
    return torch.xlogy(count, 1 - fn.probs) + torch.xlogy(value, fn.probs) + constant


@restate(torch.distributions.Poisson)
def _poisson(fn: Any, value: Tensor) -> Tensor:
    return torch.xlogy(value, fn.rate) - fn.rate - torch.lgamma(value + 1)  # counts are not expanded before


@restate(torch.distributions.Multinomial)
def _multinomial(fn: Any, value: Tensor) -> Tensor:
    categorical = fn._categorical
    if "probs" not in vars(categorical):
        return fn.log_prob(value)
    constant = torch.lgamma(value.sum(-1) + 1) - torch.lgamma(value + 1).sum(-1)
    return torch.xlogy(value, categorical.probs).sum(-1) + constant


@restate(torch.distributions.MultivariateNormal)
def _multivariate_normal(fn: Any, value: Tensor) -> Tensor:
    if "precision_matrix" in vars(fn):
        precision = fn.precision_matrix
        log_determinant = precision.logdet()
    else:
        tril = fn._unbroadcasted_scale_tril
        precision = torch.cholesky_inverse(tril)
        log_determinant = -2 * tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    gap = value - fn.loc
    quadratic = (gap.unsqueeze(-1) * precision * gap.unsqueeze(-2)).sum((-2, -1))
    return 0.5 * (log_determinant - quadratic) - 0.5 * fn.event_shape[0] * math.log(2 * math.pi)


@restate(torch.distributions.Wishart)
def _wishart(fn: Any, value: Tensor) -> Tensor:
    tril, df, dim = fn._unbroadcasted_scale_tril, fn.df, fn.event_shape[-1]
    inverse = torch.cholesky_inverse(tril)
    log_determinant = 2 * tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    normaliser = 0.5 * df * (dim * math.log(2) + log_determinant) + torch.mvlgamma(0.5 * df, dim)
    trace = (inverse * value).sum((-2, -1))
    return 0.5 * (df - dim - 1) * value.logdet() - 0.5 * trace - normaliser


@restate(dist.InverseGamma)
def _inverse_gamma(fn: Any, value: Tensor) -> Tensor:
    a, b = fn.concentration, fn.rate
    return a * b.log() - torch.lgamma(a) - (a + 1) * value.log() - b / value


@restate(torch.distributions.LogNormal)
def _log_normal(fn: Any, value: Tensor) -> Tensor:
    return fn.base_dist.log_prob(value.log()) - value.log()


@restate(torch.distributions.HalfNormal)
def _half_normal(fn: Any, value: Tensor) -> Tensor:
    """Torch's own picks -inf or a number, which reads as the product of 0 and -inf."""
    outside = torch.where(value < 0, -math.inf, torch.zeros_like(value))
    return fn.base_dist.log_prob(value) + math.log(2) + outside


@restate(torch.distributions.Uniform)
def _uniform(fn: Any, value: Tensor) -> Tensor:
    """Inside the support; the posterior of a uniform variable is never outside."""
    return -(fn.high - fn.low).log().expand(value.shape)


@restate(torch.distributions.Beta)
def _beta(fn: Any, value: Tensor) -> Tensor:
    a, b = fn.concentration1, fn.concentration0
    return (a - 1) * value.log() + (b - 1) * (1 - value).log() - log_beta(a, b)


def log_beta(a: Tensor, b: Tensor) -> Tensor:
    """The logarithm of B(a, b), a function that tensors without numbers may have a rule for."""
    if has_torch_function((a, b)):
        result: Tensor = handle_torch_function(log_beta, (a, b), a, b)
        return result
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


@restate(torch.distributions.Weibull)
def _weibull(fn: Any, value: Tensor) -> Tensor:
    """With the shape as a number, if it is known and the same everywhere."""
    shape = fn.concentration.flatten()[:1]
    if not _are_all(fn.concentration, shape, "an Exponential of the value to the power of the shape"):
        return fn.log_prob(value)
    k = float(shape)
    return math.log(k) - k * fn.scale.log() + (k - 1) * value.log() - (value / fn.scale) ** k


@restate(torch.distributions.TransformedDistribution)
def _affine(fn: Any, value: Tensor) -> Tensor:
    """An affine function of a Normal around 0 as the Normal that it is."""
    base, (transform, *others) = fn.base_dist, fn.transforms
    while isinstance(base, dist.ExpandedDistribution | Independent):
        base = base.base_dist
    is_affine = isinstance(base, Normal) and isinstance(transform, AffineTransform) and not others
    if not is_affine or not _are_all(base.loc, 0, "a Normal of loc and scale"):
        return fn.log_prob(value)
    scale = transform.scale * base.scale
    scale = scale.abs() if type(scale) is Tensor else scale
    density = Normal(transform.loc, scale, validate_args=False).log_prob(value)
    events = len(fn.event_shape)
    return density.flatten(density.dim() - events).sum(-1) if events else density


def _are_all(numbers: Tensor, number: Any, instead: str) -> bool:
    """True if numbers that are not learnt are all the same one; ``instead`` is what needs no look at them."""
    if type(numbers) is not Tensor or numbers.requires_grad:
        return False
    try:
        return bool((numbers == number).all())
    except RuntimeError as error:
        raise type(error)(f"a captured step can't look at its numbers: write {instead}") from None
