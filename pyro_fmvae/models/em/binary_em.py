"""Variational EM for binary sparse coding: mean-field E-steps, M-steps in closed form."""

import math
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fmvae.distributions.grouped_bernoulli import GroupedBernoulli, binary_states
from pyro_fmvae.models.em.binary_mean_field import bound, check_shapes, log_partition, mean_field
from pyro_fmvae.models.em.expectation_maximization import Expectation, ExpectationMaximization, Maximum
from pyro_fmvae.models.em.statistics import Statistics

# Exact posterior of binary sparse coding by enumeration of all states.

MOST_UNITS = 16


def enumerate_states(
    x: Tensor, weight: Tensor, logits: Tensor, noise_precision: Tensor
) -> tuple[Tensor, GroupedBernoulli]:
    """Evidence log p(x) and posterior p(h | x) of R models of binary sparse coding.

    Takes memory for R B 2^H numbers, and for R B H² more where elements are missing; no tensor has both 2^H
    and D.

    Args:
        x: [B, D], NaN where missing.
        weight, logits, noise_precision: W [R, D, H], b [R, H] and β [R].

    Returns:
        log p(x) in nats [R, B], with gradients, and the posterior as one group of all units, batch shape
        [R, B].

    Raises:
        ValueError: more than 16 units, or shapes that do not fit.
    """
    check_shapes(x, weight, logits, noise_precision)
    units = weight.shape[-1]
    if units > MOST_UNITS:
        raise ValueError(f"weight: expected at most {MOST_UNITS} units to enumerate, got {units}")
    missing, precision = x.isnan(), noise_precision[:, None, None]
    known = x.masked_fill(missing, 0.0)
    states = binary_states(units, weight)
    if missing.any():
        products = (weight.unsqueeze(-1) * weight.unsqueeze(-2)).flatten(2)
        gram = (~missing).to(weight.dtype) @ products  # [R, B, H²]
        squares = gram @ (states.unsqueeze(-1) * states.unsqueeze(-2)).flatten(1).mT
    else:
        squares = ((states @ (weight.mT @ weight)) * states).sum(-1).unsqueeze(1)
    linear = (logits.unsqueeze(1) + precision * (known @ weight)) @ states.mT
    constant = -0.5 * noise_precision.unsqueeze(-1) * known.square().sum(-1)
    log_joint = linear - 0.5 * precision * squares
    evidence = constant + log_joint.logsumexp(-1) - log_partition(x, logits, noise_precision)
    probs = log_joint.softmax(-1).unsqueeze(-2)
    return evidence, GroupedBernoulli(probs, validate_args=False)


# Least-squares weights W of x ≈ W s, given the moments of the causes s.

COORDINATE_SWEEPS = 3


def apply_moment(second: Tensor, weight: Tensor) -> Tensor:
    """Rows of W times Σ⟨ss'⟩, [R, D, H].

    Args:
        second: Σ⟨ss'⟩, shared by all elements of x [R, 1, H, H], or one for each [R, D, H, H].
        weight: W, [R, D, H].
    """
    if second.shape[1] == 1:
        return weight @ second[:, 0]
    return (second @ weight.unsqueeze(-1)).squeeze(-1)


def best_weight(product: Tensor, second: Tensor, weight: Tensor, ridge: float, nonnegative: bool) -> Tensor:
    """W of the least squared error Σ E|x - W s|², in closed form (Σ x⟨s⟩')(Σ⟨ss'⟩)⁻¹, [R, D, H].

    The change of W is solved for, with a ridge, so that the error never rises and causes that are never
    active keep their weights.

    Args:
        product: Σ x⟨s⟩', [R, D, H].
        second: Σ⟨ss'⟩ as in :func:`apply_moment`.
        weight: the present W, [R, D, H].
        ridge: on the diagonal of Σ⟨ss'⟩, relative to its trace.
        nonnegative: minimise over W >= 0 by a few sweeps of coordinate descent, which are exact in the limit.
            Each row starts from the better of the present W and the positive part of the solution.
    """
    trace = second.diagonal(dim1=-2, dim2=-1).sum(-1)
    raised = ridge * trace + torch.finfo(second.dtype).tiny
    eye = torch.eye(second.shape[-1], dtype=second.dtype, device=second.device)
    factor = torch.linalg.cholesky(second + raised[..., None, None] * eye)
    slope = product - apply_moment(second, weight)
    if second.shape[1] == 1:
        change = torch.cholesky_solve(slope.mT, factor[:, 0]).mT
    else:
        change = torch.cholesky_solve(slope.unsqueeze(-1), factor).squeeze(-1)
    found = weight + change
    if not nonnegative:
        return found
    found, weight = found.clamp_min(0.0), weight.clamp_min(0.0)
    better = _fit(found, product, second) > _fit(weight, product, second)
    found = torch.where(better.unsqueeze(-1), found, weight)
    curvature = second.diagonal(dim1=-2, dim2=-1) + raised.unsqueeze(-1)
    for _ in range(COORDINATE_SWEEPS):
        for i in range(found.shape[-1]):
            slope = product[..., i] - (second[:, :, i] * found).sum(-1)
            found[..., i] = (found[..., i] + slope / curvature[..., i]).clamp_min(0.0)
    return found


def _fit(weight: Tensor, product: Tensor, second: Tensor) -> Tensor:
    """Reduction of the squared error by each row of W, [R, D]."""
    return (weight * (2 * product - apply_moment(second, weight))).sum(-1)


ENUMERATED = 2**24  # numbers in the tables of an enumerated E-step
RESOLUTION = 10  # σ that rounding leaves, in units in the last place of the root mean square of x
LEAST_VARIANCE = 1e-30  # whose inverse a float32 can hold, times the squares of other numbers


class BinaryParameters(NamedTuple):
    """Parameters of x ~ N(W h, I/β), h_i ~ Bernoulli(σ(b_i)), for each of R starts."""

    weight: Tensor
    """W, [R, D, H]."""
    logits: Tensor
    """b, [R, H]."""
    noise_precision: Tensor
    """β > 0, [R]."""


class BinaryEM(ExpectationMaximization[BinaryParameters]):
    """EM for the binary sparse coding of Henniges et al. (2010), with mean-field posteriors.

    The statistics are Σ x⟨h⟩', Σ⟨hh'⟩, Σ⟨h⟩, Σ|x|² and the number of observed elements. They are in float64,
    because they are not centred and the noise may be a small difference of large sums. If a batch has missing
    elements, Σ⟨hh'⟩ has one matrix for each element of x, over the points where it is observed, [R, D, H, H];
    else it is [R, 1, H, H]. The two kinds blend.

    Args:
        units: H >= 1.
        sweeps: mean-field sweeps of an E-step, which continue from the last visit of a point.
        group_size: number of units in a group, 1 to 10; the posterior models dependence within groups.
        nonnegative: keep weights >= 0.
        exact: enumerate all states in the E-step, of at most 16 units.

    Raises:
        ValueError: no units.
    """

    def __init__(
        self,
        units: int,
        sweeps: int = 3,
        group_size: int = 1,
        nonnegative: bool = False,
        exact: bool = False,
    ) -> None:
        if units < 1:
            raise ValueError(f"units: expected a number >= 1, got {units}")
        self.units, self.sweeps, self.group_size = units, sweeps, group_size
        self.nonnegative, self.exact = nonnegative, exact

    @property
    def start_logit(self) -> float:
        """Initial b: two of the H units are on, or half of fewer than four."""
        rate = min(2 / self.units, 0.5)
        return math.log(rate / (1 - rate))

    def start(self, x: Tensor, starts: int) -> BinaryParameters:
        """Initial parameters: data points at random as weights (small ones if ``nonnegative``), β from x."""
        missing = x.isnan()
        centre = x.nanmean(0).nan_to_num(0.0)
        known = torch.where(missing, centre, x)
        present = (~missing).sum().clamp_min(1)
        variance = (known - centre).square().sum() / present
        if self.nonnegative:
            size = (x.masked_fill(missing, 0.0).square().sum() / present).sqrt()
            noise = torch.randn(starts, x.shape[1], self.units, dtype=x.dtype, device=x.device)
            weight = 0.1 * size * noise.abs()
        else:
            rows = torch.randint(len(x), (starts, self.units), device=x.device)
            weight = known[rows].mT.contiguous()
        logits = x.new_full((starts, self.units), self.start_logit)
        precision = _precision(variance, variance, x.dtype)
        return BinaryParameters(weight, logits, precision.repeat(starts))

    @torch.no_grad()
    def start_latents(self, parameters: BinaryParameters, num_data: int) -> Tensor:
        """Means of the prior."""
        return parameters.logits.sigmoid().unsqueeze(1).repeat(1, num_data, 1)

    @torch.no_grad()
    def e_step(
        self, x: Tensor, parameters: BinaryParameters, latents: Tensor, temperature: float = 1.0
    ) -> Expectation:
        """Posteriors after a few sweeps, and their bound at temperature 1 as the objective.

        Raises:
            ValueError: no data, or shapes that do not fit.
        """
        if not len(x):
            raise ValueError("x: expected at least one data point")
        x = x.to(parameters.weight.dtype)
        most = len(x)
        if self.exact:
            most = max(ENUMERATED // (2**self.units * len(latents)), 1)
        means, statistics, total = [], [], latents.new_zeros(len(latents))
        for rows, start in zip(x.split(most), latents.split(most, 1), strict=True):
            q = self.posterior(rows, parameters, start, self.sweeps, 0.0, temperature, shuffle=True)
            means.append(q.mean)
            statistics.append(_statistics(rows, q))
            total = total + bound(q, rows, *parameters).sum(-1)
        return Expectation(torch.cat(means, 1), reduce(add, statistics), total / len(x))

    @torch.no_grad()
    def posterior(
        self,
        x: Tensor,
        parameters: BinaryParameters,
        latents: Tensor | None = None,
        sweeps: int = 100,
        tolerance: float = 1e-6,
        temperature: float = 1.0,
        shuffle: bool = False,
    ) -> GroupedBernoulli:
        """q(h | x) of a batch [B, D], batch shape [R, B]; arguments as in :func:`mean_field`."""
        if self.exact:
            precision = parameters.noise_precision / temperature
            return enumerate_states(x, parameters.weight, parameters.logits, precision)[1]
        return mean_field(
            x,
            *parameters,
            latents,
            group_size=self.group_size,
            sweeps=sweeps,
            tolerance=tolerance,
            temperature=temperature,
            shuffle=shuffle,
        )

    @torch.no_grad()
    def search(self, x: Tensor, parameters: BinaryParameters) -> GroupedBernoulli:
        """q(h | x) of a batch [B, D], batch shape [R, B]: the better of two fixed points for each point.

        The first is reached by sweeps from the prior's means, which can end far from the best fixed point if
        the noise is small. The second is annealed: the temperature falls by halves to 1 from max β‖W_i‖²,
        where no unit weighs more than a nat. Units are updated in their own order.
        """
        plain = self.posterior(x, parameters)
        hottest = (parameters.noise_precision * parameters.weight.square().sum(1).amax(-1)).max().item()
        if self.exact or not 1 < hottest < math.inf:
            return plain
        means: Tensor | None = None
        for level in range(math.ceil(math.log2(hottest))):
            means = self.posterior(x, parameters, means, 1, 0.0, hottest / 2**level).mean
        annealed = self.posterior(x, parameters, means)
        better = bound(annealed, x, *parameters) > bound(plain, x, *parameters)
        probs = torch.where(better[..., None, None], annealed.probs, plain.probs)
        return GroupedBernoulli(probs, self.units, validate_args=False)

    @torch.no_grad()
    def m_step(
        self,
        statistics: Statistics,
        parameters: BinaryParameters,
        x: Tensor | None = None,
        found: Expectation | None = None,
    ) -> Maximum[BinaryParameters]:
        """W, b and β in closed form, computed in float64; the bound never falls.

        σ² has a lower bound from rounding: in float32 (1.2e-6)² times the mean square of x. Units that are
        never on keep their weights. With ``nonnegative`` weights coordinate ascent raises the bound, but a
        single M-step does not quite reach its maximum.
        """
        values, dtype = statistics.values, parameters.weight.dtype
        product, second, square = values["product"], values["second"], values["square"]
        eps = torch.finfo(dtype).eps
        weight = best_weight(product, second, parameters.weight.double(), 100 * eps, self.nonnegative)
        error = square + (weight * (apply_moment(second, weight) - 2 * product)).sum((-1, -2))
        observed = values["observed"].clamp_min(1)
        logits = (values["cause"] / statistics.count).clamp(eps, 1 - eps).logit()
        new = (weight, logits, _precision(error / observed, square / observed, dtype))
        return Maximum(BinaryParameters(*(t.to(dtype) for t in new)), statistics)

    def quality(self, parameters: BinaryParameters, objective: Tensor) -> Tensor:
        """The bound."""
        return objective

    def noise(self, parameters: BinaryParameters) -> Tensor:
        """β^-½."""
        return parameters.noise_precision.rsqrt()

    @torch.no_grad()
    def reseed(self, x: Tensor, parameters: BinaryParameters, found: Expectation) -> BinaryParameters:
        """Move the most dispensable unit onto the residual of the worst-explained point.

        Removing this unit raises the expected squared error of the batch least. Its weights become the
        residual of the point at the latents' means, 0 where missing (with ``nonnegative`` the positive part);
        its logit becomes the initial one.
        """
        weight = parameters.weight
        product, second = found.statistics.values["product"], found.statistics.values["second"]
        old = weight.double()
        own = second.diagonal(dim1=-2, dim2=-1)
        removal = 2 * old * (product - apply_moment(second, old)) + old.square() * own
        unit = removal.sum(1).argmin(-1)
        residual = (x.to(weight.dtype) - found.latents @ weight.mT).masked_fill(x.isnan(), 0.0)
        rows = torch.arange(len(weight), device=weight.device)
        worst = residual[rows, residual.square().sum(-1).argmax(-1)]
        weight, logits = weight.clone(), parameters.logits.clone()
        weight[rows, :, unit] = worst.clamp_min(0.0) if self.nonnegative else worst
        logits[rows, unit] = self.start_logit
        return parameters._replace(weight=weight, logits=logits)


def _statistics(x: Tensor, q: GroupedBernoulli) -> Statistics:
    """Statistics of a batch [B, D] in float64; Σ⟨hh'⟩ per element of x if some are missing."""
    x, q = x.double(), GroupedBernoulli(q.probs.double(), q.event_shape[0], validate_args=False)
    mean, missing = q.mean, x.isnan()
    starts, known, observed = len(mean), x.masked_fill(missing, 0.0), (~missing).to(x.dtype)
    second = q.summed_second_moment(observed) if missing.any() else q.summed_second_moment().unsqueeze(1)
    values = {
        "product": known.mT @ mean,
        "second": second,
        "cause": mean.sum(1),
        "square": known.square().sum().expand(starts),
        "observed": observed.sum().expand(starts),
    }
    return Statistics(values, float(len(x)))


def _precision(variance: Tensor, square: Tensor, dtype: torch.dtype) -> Tensor:
    """1 / variance, with the variance kept above the rounding error for data of such a mean square."""
    here, sums = torch.finfo(dtype).eps, torch.finfo(torch.float64).eps
    least = max((RESOLUTION * here) ** 2, RESOLUTION * sums)
    return torch.maximum(variance, least * square).clamp_min(LEAST_VARIANCE).reciprocal()
