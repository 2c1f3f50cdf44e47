"""Variational EM for binary sparse coding: mean-field E-steps, M-steps in closed form."""

import math
from functools import reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fmvae.distributions.grouped_bernoulli import GroupedBernoulli
from pyro_fmvae.em.binary_enumeration import MOST_UNITS, enumerate_states
from pyro_fmvae.em.binary_mean_field import LARGEST_GROUP, bound, mean_field
from pyro_fmvae.em.expectation_maximization import Expectation, ExpectationMaximization, Maximum
from pyro_fmvae.em.statistics import Statistics
from pyro_fmvae.em.superposed_weights import apply_moment, best_weight
from pyro_fmvae.ranks import anywhere

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
        ValueError: a number is out of range.
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
        if sweeps < 1:
            raise ValueError(f"sweeps: expected a number >= 1, got {sweeps}")
        if not 1 <= group_size <= LARGEST_GROUP:
            raise ValueError(f"group_size: expected 1 to {LARGEST_GROUP}, got {group_size}")
        if exact and units > MOST_UNITS:
            raise ValueError(f"exact: expected at most {MOST_UNITS} units, got {units}")
        self.units, self.sweeps, self.group_size = units, sweeps, group_size
        self.nonnegative, self.exact = nonnegative, exact

    @property
    def start_logit(self) -> float:
        """Initial b: two of the H units are on, or half of fewer than four."""
        rate = min(2 / self.units, 0.5)
        return math.log(rate / (1 - rate))

    def start(self, x: Tensor, starts: int) -> BinaryParameters:
        """Initial parameters: random data points as weights (small ones >= 0 if ``nonnegative``), β from x.

        Raises:
            ValueError: fewer than one start.
        """
        if starts < 1:
            raise ValueError(f"starts: expected a number >= 1, got {starts}")
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
    second = q.summed_second_moment(observed) if anywhere(missing) else q.summed_second_moment().unsqueeze(1)
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
