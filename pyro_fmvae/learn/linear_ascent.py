"""Variational Bayes for matrices of linear models: loadings, dynamics, weights of a regression."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from scipy.special import digamma, entr, gammaln, softmax  # type: ignore[import-untyped]
from torch import Tensor

from pyro_fmvae.distributions.gamma import GAMMA
from pyro_fmvae.distributions.gaussian_chain import GaussianChain
from pyro_fmvae.distributions.multivariate_normal import MULTIVARIATE_NORMAL
from pyro_fmvae.distributions.multivariate_normal_gamma import MULTIVARIATE_NORMAL_GAMMA

VAGUE: Final = 1e-6
"""Shape and rate of the Gamma priors of precisions, and precision of an offset in units of its noise's."""
LOG_2PI: Final = math.log(2 * math.pi)
BLOCK: Final = 2**22
"""Numbers of a block of covariances, at most."""


@dataclass(frozen=True)
class Sums:
    """Sums that a matrix is learnt from, over what each row w_d predicts, y ≈ w_d · z.

    Attributes:
        count: how many y, [D].
        yy: Σ y², [D].
        zy: Σ E[z] y, [D, M].
        zz: Σ E[z zᵀ] of each group of rows that have the same, [C, M, M].
        group: group of each row, int64 [D].
        evidence: part of the bound that the z themselves have.
    """

    count: np.ndarray
    yy: np.ndarray
    zy: np.ndarray
    zz: np.ndarray
    group: np.ndarray
    evidence: float = 0.0

    @classmethod
    def none(cls, dim: int, width: int) -> "Sums":
        """Sums of no y, for rows [D, M]."""
        zeros = np.zeros(dim)
        return cls(zeros, zeros, np.zeros((dim, width)), np.zeros((1, width, width)), zeros.astype(int))

    def plus(self, other: "Sums") -> "Sums":
        """These sums and others, of further y."""
        pairs, group = np.unique(np.stack([self.group, other.group]), axis=1, return_inverse=True)
        return Sums(
            self.count + other.count,
            self.yy + other.yy,
            self.zy + other.zy,
            self.zz[pairs[0]] + other.zz[pairs[1]],
            group.ravel(),
            self.evidence + other.evidence,
        )


@dataclass(frozen=True)
class MatrixPosterior:
    """Posterior of a matrix with w_d ~ N(0, (τ_d diag(α))⁻¹), and of precisions: τ of noises, α of columns.

    q(w_d | τ_d) is normal and q(τ), q(α) are Gamma distributions. If rows share one τ, w_d is independent of
    it under q.

    Attributes:
        noise: number of the noise of each row, int64 [D]; None: all τ are 1.
        relevance: number of the α of each column, -1 for one that is fixed at 1e-6, int64 [M].
        mean: E[w], [D, M].
        spread: covariances of a group of rows, in units of 1 / ``at``, [C, M, M].
        group: of each row, int64 [D].
        at: precision of each row's noise at which the covariances were found, [D].
        tau: shapes and rates of q(τ), [2, noises].
        alpha: shapes and rates of q(α), [2, relevances].
        evidence: bound on the log-probability of y given z, less the divergence of q(τ, w, α), and the sums'
            own.
        sums: what it was learnt from.
    """

    noise: np.ndarray | None
    relevance: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    group: np.ndarray
    at: np.ndarray
    tau: np.ndarray
    alpha: np.ndarray
    sums: Sums
    evidence: float = -math.inf

    @classmethod
    def at_start(
        cls, mean: np.ndarray, noise: np.ndarray | None, tau: np.ndarray, relevance: np.ndarray
    ) -> "MatrixPosterior":
        """Rows that are known to be ``mean`` [D, M], with noises of precisions ``tau``."""
        dim, width = mean.shape
        number = int(relevance.max()) + 1
        rows = cls(
            noise,
            relevance,
            mean,
            np.zeros((1, width, width)),
            np.zeros(dim, dtype=int),
            np.ones(dim),
            np.stack([tau, np.ones(len(tau))]),
            np.ones((2, number)),
            Sums.none(dim, width),
        )
        return replace(rows, at=rows.precision, alpha=rows._relevances())

    @property
    def certain(self) -> "MatrixPosterior":
        """The posterior means as if they were known."""
        noise = None if self.noise is None else np.arange(len(self.mean))
        return self.at_start(self.mean, noise, self.precision, self.relevance)

    @property
    def precision(self) -> np.ndarray:
        """E[τ] of each row, [D]."""
        if self.noise is None:
            return np.ones(len(self.mean))
        found: np.ndarray = (self.tau[0] / self.tau[1])[self.noise]
        return found

    @property
    def covariance(self) -> np.ndarray:
        """Covariance of each row, [D, M, M]; given E[τ] if it depends on τ."""
        found: np.ndarray = self.spread[self.group] / self.at[:, None, None]
        return found

    @property
    def weighted(self) -> np.ndarray:
        """E[τ_d w_d w_dᵀ], [D, M, M]."""
        tau = self.precision[:, None, None]
        found: np.ndarray = tau * (self.mean[:, :, None] * self.mean[:, None] + self.covariance)
        return found

    def sample(self, number: int, rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        """So many draws of w, [S, D, M], and of each row's τ, [S, D]."""
        dim, width = self.mean.shape
        tau, at = np.ones((number, dim)), np.broadcast_to(self.at, (number, dim))
        if self.noise is not None:
            shape, rate = self.tau
            tau = (rng.gamma(shape, size=(number, len(shape))) / rate)[:, self.noise]
            at = tau if len(shape) == dim else at
        root = np.linalg.cholesky(self.spread)[self.group]
        noise = np.einsum("dmn,sdn->sdm", root, rng.standard_normal((number, dim, width)))
        return self.mean + noise / np.sqrt(at)[..., None], tau

    def _relevances(self) -> np.ndarray:
        """Shapes and rates of q(α) given q(τ, w)."""
        own = self.relevance >= 0
        squares = np.einsum("d,dm->m", self.precision, self.mean**2)
        squares += (self.precision / self.at) @ np.einsum("cmm->cm", self.spread)[self.group]
        number = self.alpha.shape[1]
        columns = np.bincount(self.relevance[own], minlength=number)
        energy = np.bincount(self.relevance[own], squares[own], minlength=number)
        return VAGUE + np.stack([len(self.mean) * columns, energy]) / 2

    def learnt(self, sums: Sums) -> "MatrixPosterior":
        """The optimal q(α), then q(w) and q(τ), given the sums."""
        alpha, (dim, width) = self._relevances(), self.mean.shape
        expected = np.append(alpha[0] / alpha[1], VAGUE)[self.relevance]
        logs = np.append(digamma(alpha[0]) - np.log(alpha[1]), math.log(VAGUE))[self.relevance]
        precision = sums.zz + np.diag(expected)
        factor = np.linalg.cholesky(precision)
        half = np.linalg.solve(factor, np.eye(width))
        spread = half.swapaxes(-1, -2) @ half
        mean = np.einsum("dmk,dk->dm", spread[sums.group], sums.zy)
        off = sums.zy - np.einsum("dmk,dk->dm", precision[sums.group], mean)
        mean += np.einsum("dmk,dk->dm", spread[sums.group], off)  # what rounding left, or bounds may fall
        left = np.maximum(sums.yy - (mean * sums.zy).sum(1), 0.0)
        volume = np.log(np.einsum("cmm->cm", factor)).sum(1)[sums.group].sum()
        evidence = (dim * logs.sum() - sums.count.sum() * LOG_2PI) / 2 - volume - _divergence(alpha)
        if self.noise is None:
            at, tau = np.ones(dim), self.tau
            evidence -= left.sum() / 2
        else:
            number = self.tau.shape[1]
            counts = np.bincount(self.noise, sums.count, minlength=number)
            tau = VAGUE + np.stack([counts, np.bincount(self.noise, left, minlength=number)]) / 2
            if number < dim:
                old, numbers = float(self.precision[0]), dim * width / 2
                at = np.full(dim, old)
                tau += numbers * np.array([[1.0], [1 / old]])
                evidence += numbers * (1 - math.log(old))
            else:
                at = tau[0] / tau[1]
            start = VAGUE * math.log(VAGUE) - gammaln(VAGUE)
            evidence += (gammaln(tau[0]) - tau[0] * np.log(tau[1]) + start).sum()
        return replace(
            self,
            mean=mean,
            spread=spread,
            group=sums.group,
            at=at,
            tau=tau,
            alpha=alpha,
            evidence=float(evidence) + sums.evidence,
            sums=sums,
        )

    def without(self, columns: np.ndarray) -> "MatrixPosterior":
        """Without some of the first columns, each of which has its own α; forgets what it was learnt from."""
        kept = np.delete(np.arange(len(self.relevance)), columns)
        return replace(
            self,
            relevance=np.append(np.arange(len(kept) - 1), -1),
            mean=self.mean[:, kept],
            spread=self.spread[:, kept][:, :, kept],
            alpha=np.delete(self.alpha, columns, 1),
            sums=Sums.none(len(self.mean), len(kept)),
        )


def _divergence(gamma: np.ndarray) -> float:
    """KL of Gamma distributions (shapes, rates) from their prior."""
    shape, rate = gamma
    found = (shape - VAGUE) * digamma(shape) - gammaln(shape) + gammaln(VAGUE)
    found += VAGUE * np.log(rate / VAGUE) + shape * (VAGUE - rate) / rate
    return float(found.sum())


def climb(
    updates: Iterator[tuple[Any, float]], iterations: int, tolerance: float
) -> tuple[Any, list[float], bool]:
    """Coordinate ascent, until an update gains less than the tolerance, in nats.

    Args:
        updates: give what was found, and its bound.
        iterations: updates at most, at least 1.
        tolerance: an update that gains less is the last.

    Returns:
        What was found last, the bounds, and whether the last update gained less.
    """
    bounds: list[float] = []
    for found, bound in islice(updates, iterations):
        bounds.append(bound)
        if len(bounds) > 1 and bounds[-1] - bounds[-2] < tolerance:
            return found, bounds, True
    return found, bounds, False


def state_of(rows: MatrixPosterior, relevance: str, precision: str, weights: str) -> dict[str, Tensor]:
    """The posterior as a state of ``AutoConjugate(program, structured=True)``, for sites of these names."""
    tau, alpha, mean = (torch.tensor(part) for part in (rows.tau, rows.alpha, rows.mean))
    found = {relevance: GAMMA.natural(*alpha)}
    if rows.noise is None:
        tril = torch.linalg.cholesky(torch.tensor(rows.covariance))
        found[weights] = MULTIVARIATE_NORMAL.natural(mean, tril)
    elif tau.shape[1] == len(mean):
        tril = torch.linalg.cholesky(torch.tensor(rows.spread[rows.group]))
        found[weights] = MULTIVARIATE_NORMAL_GAMMA.natural(mean, tril, *tau)
    else:
        tril = torch.linalg.cholesky(torch.tensor(rows.covariance))
        found |= {precision: GAMMA.natural(*tau[:, 0]), weights: MULTIVARIATE_NORMAL.natural(mean, tril)}
    return {f"posteriors.{name}.natural": natural for name, natural in found.items()}


# Factor analysis.


@dataclass(frozen=True)
class Table:
    """Rows of numbers, in an order in which those with the same numbers missing are side by side.

    Attributes:
        x: numbers, 0 where missing, [N, D].
        order: place of each row in the data, int64 [N].
        patterns: which numbers there are, [U, D].
        counts: rows of each pattern, int64 [U].
        weights: rows that each one stands for, [N].
        totals: their sums by pattern, [U].
        columns: the different columns of ``patterns``, [U, C].
        group: number of that of each column, int64 [D].
    """

    x: np.ndarray
    order: np.ndarray
    patterns: np.ndarray
    counts: np.ndarray
    weights: np.ndarray
    totals: np.ndarray
    columns: np.ndarray
    group: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, weights: np.ndarray | None = None) -> "Table":
        """Numbers [N, D], NaN where missing, with weights [N]; None: 1."""
        weights = np.ones(len(x)) if weights is None else weights
        there = ~np.isnan(x)
        patterns, pattern, counts = np.unique(there, axis=0, return_inverse=True, return_counts=True)
        columns, group = np.unique(patterns, axis=1, return_inverse=True)
        order = np.argsort(pattern.ravel(), kind="stable")
        x, totals = np.where(there, x, 0.0)[order], np.bincount(pattern.ravel(), weights)
        patterns, columns = patterns.astype(float), columns.astype(float)
        return cls(x, order, patterns, counts, weights[order], totals, columns, group.ravel())


def _factors(
    table: Table, rows: MatrixPosterior
) -> Iterator[tuple[slice, slice, np.ndarray, np.ndarray, np.ndarray]]:
    """Optimal posteriors of factors, given loadings and, in the last column, the centre.

    Yields:
        Block by block: its patterns, its rows, means [N, K], and for each pattern the covariance [U, K, K]
        and its log-determinant [U].
    """
    squares, width = rows.weighted, rows.mean.shape[1] - 1
    loadings, eye = rows.precision[:, None] * rows.mean[:, :-1], np.eye(width)
    ends = np.append(0, np.cumsum(table.counts))
    for first in range(0, len(table.patterns), step := max(BLOCK // (width + 1) ** 2, 1)):
        block = slice(first, min(first + step, len(table.patterns)))
        own, patterns = slice(ends[block.start], ends[block.stop]), table.patterns[block]
        precision = patterns @ squares[:, :-1, :-1].reshape(len(squares), -1)
        factor = np.linalg.cholesky(eye + precision.reshape(-1, width, width))
        half = np.linalg.solve(factor, eye)
        covariance = half.swapaxes(-1, -2) @ half
        parts = np.split(table.x[own] @ loadings, ends[first + 1 : block.stop] - own.start)
        centre = patterns @ squares[:, :-1, -1]
        mean = np.concatenate([(p - c) @ v for p, c, v in zip(parts, centre, covariance, strict=True)])
        yield block, own, mean, covariance, -2 * np.log(np.einsum("ukk->uk", factor)).sum(1)


def factors_of(table: Table, rows: MatrixPosterior) -> tuple[np.ndarray, np.ndarray]:
    """Factors of each row of the data: means [N, K], and log-determinants of their covariances [N]."""
    means, log_scales = np.empty((len(table.x), rows.mean.shape[1] - 1)), np.empty(len(table.x))
    for block, own, mean, _, log_scale in _factors(table, rows):
        means[table.order[own]] = mean
        log_scales[table.order[own]] = np.repeat(log_scale, table.counts[block])
    return means, log_scales


def factor_sums(table: Table, rows: MatrixPosterior) -> Sums:
    """Sums that loadings are learnt from, with minus the divergence of factors from their prior."""
    width = rows.mean.shape[1]
    zz, zy, evidence = np.zeros((table.columns.shape[1], width**2)), np.zeros_like(rows.mean), 0.0
    for block, own, mean, covariance, log_scale in _factors(table, rows):
        z, ends = np.column_stack([mean, np.ones(len(mean))]), np.cumsum(table.counts[block])[:-1]
        weighted, totals = table.weights[own, None] * z, table.totals[block]
        parts = zip(np.split(z, ends), np.split(weighted, ends), strict=True)
        squares = np.stack([one.T @ other for one, other in parts])
        squares[:, :-1, :-1] += totals[:, None, None] * covariance
        zz += table.columns[block].T @ squares.reshape(len(totals), -1)
        zy += table.x[own].T @ weighted
        traces = np.einsum("ukk->u", covariance)
        evidence += (
            float(totals @ (log_scale + width - 1 - traces) - table.weights[own] @ (mean**2).sum(1)) / 2
        )
    zz = zz.reshape(-1, width, width)
    return Sums(table.totals @ table.patterns, table.weights @ table.x**2, zy, zz, table.group, evidence)


def factor_ascent(table: Table, rows: MatrixPosterior) -> Iterator[tuple[MatrixPosterior, float]]:
    """Updates of the factors of all rows, then of the loadings.

    Args:
        table: rows.
        rows: loadings to start at; the factors of earlier rows that they were learnt from stay.
    """
    before = rows.sums
    while True:
        rows = rows.learnt(factor_sums(table, rows).plus(before))
        yield rows, rows.evidence


def principal_start(table: Table, width: int, shared: bool, own: bool) -> MatrixPosterior:
    """Loadings along the principal axes of numbers around 0, with what is missing at 0.

    Args:
        table: numbers.
        width: K, how many factors.
        shared: all columns have noise of one precision.
        own: each factor has a relevance of its own.
    """
    dim = table.x.shape[1]
    covariance = (table.weights[:, None] * table.x).T @ table.x / table.totals.sum()
    values, axes = np.linalg.eigh(covariance)
    values, axes = np.maximum(values[::-1], 0), axes[:, ::-1]
    rest = values[width:].mean() if width < dim else values[-1] / 2
    loadings = np.zeros((dim, width + 1))
    loadings[:, :width] = axes[:, :width] * np.sqrt(
        np.maximum(values[:width] - rest, VAGUE * values[0] + VAGUE)
    )
    noise = np.full(dim, rest) if shared else np.diag(covariance) - (loadings**2).sum(1)
    noise = np.maximum(noise, VAGUE + 1e-3 * np.diag(covariance).mean())
    tau = 1 / (noise[:1] if shared else noise)
    relevance = np.append(np.arange(width) if own else np.zeros(width, dtype=int), -1)
    number = np.zeros(dim, dtype=int) if shared else np.arange(dim)
    return MatrixPosterior.at_start(loadings, number, tau, relevance)


def fewest_factors(
    table: Table, rows: MatrixPosterior, iterations: int, tolerance: float
) -> tuple[MatrixPosterior, list[float], bool]:
    """As many factors as have the greatest bound: those of least relevance are left out while it rises."""
    best = climb(factor_ascent(table, rows), iterations, tolerance)
    number = best[0].mean.shape[1] // 4
    while number := min(number, best[0].mean.shape[1] - 2):
        alpha = best[0].alpha
        fewer = best[0].without(np.argsort(alpha[1] / alpha[0])[:number])
        found = climb(factor_ascent(table, fewer), iterations, tolerance)
        if found[1][-1] > best[1][-1]:
            best = found
        else:
            number //= 2
    return best


# Regression.


@dataclass(frozen=True)
class Targets:
    """Rows of a regression, y ≈ w_k · z with noise N(0, 1 / (τ_k u)) in component k.

    Attributes:
        z: regressors, the last of which is 1, [N, M].
        y: targets, [N].
        weights: rows that each one stands for, [N].
        freedom: ν, of u ~ Gamma(ν/2, ν/2), so that noises are Student-t; None: u is 1.
    """

    z: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    freedom: float | None

    def errors(self, rows: MatrixPosterior) -> np.ndarray:
        """E[τ (y - w·z)²] of each row in each component, [N, K]."""
        inner = [((self.z @ spread) * self.z).sum(1) for spread in rows.spread[rows.group]]
        off = self.y[:, None] - self.z @ rows.mean.T
        found: np.ndarray = rows.precision * off**2 + np.stack(inner, 1)
        return found

    def sums(self, shares: np.ndarray, scales: np.ndarray, of_scales: np.ndarray) -> Sums:
        """Sums of components.

        Args:
            shares: probabilities of components, [N, K].
            scales: E[u], [N].
            of_scales: parts of the bound that the scales have, [N].
        """
        each = (self.weights * scales)[:, None] * shares
        zz = np.stack([(self.z * own[:, None]).T @ self.z for own in each.T])
        zy = each.T @ (self.z * self.y[:, None])
        evidence = float(self.weights @ (of_scales + entr(shares).sum(1)))
        return Sums(self.weights @ shares, self.y**2 @ each, zy, zz, np.arange(len(zz)), evidence)


@dataclass(frozen=True)
class Regression:
    """Posteriors of a mixture of regressions.

    Attributes:
        rows: of weights and noises, a row for each component.
        concentration: of the components' probabilities, [K].
        shares: probabilities of each row's components, [N, K].
    """

    rows: MatrixPosterior
    concentration: np.ndarray
    shares: np.ndarray


def regression_ascent(
    targets: Targets, rows: MatrixPosterior, shares: np.ndarray
) -> Iterator[tuple[Regression, float]]:
    """Updates of all components, then of each row's component and scale.

    Args:
        targets: rows.
        rows: components to start at; shares and scales of earlier rows that they were learnt from stay.
        shares: probabilities of components to start at, [N, K].
    """
    before = rows.sums
    scales, of_scales = np.ones(len(shares)), np.zeros(len(shares))
    if targets.freedom is not None:
        of_scales += (digamma(targets.freedom / 2) - np.log(targets.freedom / 2)) / 2
    while True:
        rows = rows.learnt(targets.sums(shares, scales, of_scales).plus(before))
        concentration = 1 + rows.sums.count
        logs = digamma(concentration) - digamma(concentration.sum())
        bound = rows.evidence + gammaln(concentration).sum() - gammaln(concentration.sum())
        yield Regression(rows, concentration, shares), float(bound + gammaln(len(logs)))
        errors = targets.errors(rows)
        levels = logs + (digamma(rows.tau[0]) - np.log(rows.tau[1])) / 2
        shares = softmax(levels - scales[:, None] * errors / 2, axis=1)
        if targets.freedom is not None:
            prior, shape = targets.freedom / 2, (targets.freedom + 1) / 2
            rate = prior + (shares * errors).sum(1) / 2
            scales = shape / rate
            of_scales = prior * np.log(prior) - gammaln(prior) + gammaln(shape) - shape * np.log(rate)
            of_scales += (rate - prior) * scales


# Linear dynamical systems.

FIRST: Final = 0.01
"""Precision of each number of the first state, in units of the noise of moves."""


@dataclass(frozen=True)
class Steps:
    """Sequences of observations, padded to one length.

    Attributes:
        x: numbers, 0 where missing and after the end, [B, T, D].
        there: 1 where there is a number, else 0, [B, T, D], or [1, T, D] of sequences without gaps.
        inside: 1 up to the end, else 0, [B, T] or [1, T].
        weights: sequences that each one stands for, [B].
    """

    x: np.ndarray
    there: np.ndarray
    inside: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray, sizes: np.ndarray, weights: np.ndarray | None = None) -> "Steps":
        """Rows [N, D], NaN where missing, of sequences of these lengths and weights [B]; None: 1."""
        weights = np.ones(len(sizes)) if weights is None else weights
        inside = np.arange(sizes.max()) < sizes[:, None]
        x = np.full((*inside.shape, rows.shape[1]), np.nan)
        x[inside] = rows
        there = ~np.isnan(x)
        if there.all():
            return cls(x, np.ones_like(x[:1]), np.ones(x.shape[1])[None], weights)
        return cls(np.where(there, x, 0.0), there.astype(float), inside.astype(float), weights)

    def chain(self, moves: MatrixPosterior, sights: MatrixPosterior) -> GaussianChain:
        """Weights of the paths of states; ``sights`` has the centre in its last column."""
        seen, width = sights.weighted, len(moves.mean)
        eye, goes = np.eye(width), self.inside[:, 1:, None, None]
        precision = (self.there @ seen[:, :-1, :-1].reshape(len(seen), -1)).reshape(
            *self.inside.shape, width, width
        )
        precision[:, 0] += FIRST * eye
        precision[:, 1:] += eye
        precision[:, :-1] += goes * moves.weighted.sum(0)
        loadings, centre = sights.precision[:, None] * sights.mean[:, :-1], sights.mean[:, -1]
        linear = self.x @ loadings - self.there @ seen[:, :-1, -1]
        tau = sights.precision
        squares = self.there * (np.log(tau) - LOG_2PI - tau * (self.x - centre) ** 2) / 2
        constant = squares.sum((1, 2)) - self.inside.shape[1] * width * LOG_2PI / 2
        parts = precision, goes * moves.mean, linear, constant + width * np.log(FIRST) / 2
        return GaussianChain(*(torch.as_tensor(part) for part in parts))

    def sums(self, chain: GaussianChain) -> tuple[Sums, Sums, float, np.ndarray]:
        """Sums of moves and sights; entropy plus E[log-density] of first states; Σ E[z zᵀ] of later ones."""
        mean, (own, across) = chain.mean_path.numpy(), (part.numpy() for part in chain.covariances)
        (count, duration, width), weights = mean.shape, self.weights
        inside = self.inside * weights[:, None]
        own, across = (np.broadcast_to(part, (count, *part.shape[1:])) for part in (own, across))
        second = own + mean[..., None] * mean[..., None, :]
        goes = inside[:, 1:, None, None]
        link = (goes * (across + mean[:, 1:, :, None] * mean[:, :-1, None])).sum((0, 1))
        before, after = (goes * second[:, :-1]).sum((0, 1)), (goes * second[:, 1:]).sum((0, 1))
        steps = np.full(width, inside[:, 1:].sum())
        moves = Sums(steps, np.diag(after), link, before[None], np.zeros(width, dtype=int))
        z = np.concatenate([mean, np.ones((count, duration, 1))], -1)
        squares = np.zeros((count, duration, width + 1, width + 1))
        squares[..., :-1, :-1] = own
        squares = (squares + z[..., None] * z[..., None, :]).reshape(count * duration, -1)
        each = weights[:, None, None]
        there, x = ((each * part).reshape(len(squares), -1) for part in (self.there, self.x))
        zz = (there.T @ squares).reshape(-1, width + 1, width + 1)
        zy = x.T @ z.reshape(len(squares), -1)
        sights = Sums(there.sum(0), (each * self.x**2).sum((0, 1)), zy, zz, np.arange(len(zz)))
        total, starts = weights.sum(), weights @ np.einsum("bkk->b", second[:, 0])
        first = width * (np.log(FIRST) - LOG_2PI) * total - FIRST * starts
        after_end = (total * duration - inside.sum()) * width * (1 + LOG_2PI)
        return moves, sights, float(weights @ chain.entropy.numpy()) + (first - after_end) / 2, after

    def start(self, width: int) -> tuple[MatrixPosterior, MatrixPosterior]:
        """Moves and sights by the principal components of windows (Van Overschee and De Moor, 1996)."""
        count, duration, dim = self.x.shape
        lags = min(max(5, -(-width // dim) + 1), max(duration, -(-width // dim)))
        padded = np.concatenate([self.x, np.zeros((count, lags, dim))], 1)
        windows = np.concatenate([padded[:, lag : lag + duration] for lag in range(lags)], -1)
        inside = np.broadcast_to(self.inside, self.x.shape[:2]) > 0
        of_rows = np.broadcast_to(self.weights[:, None], inside.shape)
        weights, goes = of_rows[inside], inside[:, 1:]
        sizes, following = np.sqrt(weights)[:, None], of_rows[:, 1:][goes]
        axes = np.linalg.svd(sizes * windows[inside], full_matrices=False)[2][:width].T
        z = windows @ np.pad(axes, ((0, 0), (0, width - axes.shape[1])))
        centred = z[inside] - np.average(z[inside], axis=0, weights=weights)
        z /= np.maximum(np.sqrt(np.average(centred**2, axis=0, weights=weights)), VAGUE)
        before, after, eye = z[:, :-1][goes], z[:, 1:][goes], np.eye(width)
        weighted = (following[:, None] * before).T
        matrix = np.linalg.solve(weighted @ before + eye, weighted @ after).T
        off = after - before @ matrix.T
        spread = (following[:, None] * off).T @ off / max(following.sum(), 1)
        root = np.linalg.cholesky(spread + 0.02 * eye)
        moves = np.linalg.solve(root, matrix @ root)
        states, x = z[inside] @ np.linalg.inv(root).T, self.x[inside]
        weighted = (weights[:, None] * states).T
        loadings = np.linalg.solve(weighted @ states + VAGUE * eye, weighted @ x).T
        noise = np.maximum(np.average((x - states @ loadings.T) ** 2, axis=0, weights=weights), 1e-2)
        of_all = np.zeros(width, dtype=int)
        sights = np.column_stack([loadings, np.zeros(dim)])
        return (
            MatrixPosterior.at_start(moves, None, np.ones(1), of_all),
            MatrixPosterior.at_start(sights, np.arange(dim), 1 / noise, np.append(of_all, -1)),
        )


def dynamics_ascent(
    steps: Steps, moves: MatrixPosterior, sights: MatrixPosterior
) -> Iterator[tuple[tuple[MatrixPosterior, MatrixPosterior], float]]:
    """Updates of the paths of states, then of moves and sights.

    Between two updates, states are rescaled so that the noise of moves is standard normal, if the bound rises
    (Liu, Rubin and Wu, 1998, Parameter expansion to accelerate EM).
    """
    (found, bound, after), waits = _update(steps, moves, sights), 0
    while True:
        yield found, bound
        last, waits = bound, waits - 1
        if waits < 0:
            more = _update(steps, *_rescaled(*found, after))
            if more[1] > last:
                found, bound, after = more
                continue
            waits = 10
        found, bound, after = _update(steps, *found)


def _update(
    steps: Steps, moves: MatrixPosterior, sights: MatrixPosterior
) -> tuple[tuple[MatrixPosterior, MatrixPosterior], float, np.ndarray]:
    """Moves and sights, their bound, and the covariance of the noise of moves."""
    of_moves, of_sights, evidence, after = steps.sums(steps.chain(moves, sights))
    moves, sights = moves.learnt(of_moves), sights.learnt(of_sights)
    noise = (after - moves.mean @ of_moves.zy.T) / max(of_moves.count[0], 1)
    return (moves, sights), moves.evidence + sights.evidence + evidence, (noise + noise.T) / 2


def _rescaled(
    moves: MatrixPosterior, sights: MatrixPosterior, noise: np.ndarray
) -> tuple[MatrixPosterior, MatrixPosterior]:
    """Moves and sights of states in units in which a noise of this covariance is standard normal."""
    values, axes = np.linalg.eigh(noise)
    values = np.sqrt(np.clip(values, 1e-4, 1e4))
    root, inverse, turn = (axes * values) @ axes.T, (axes / values) @ axes.T, np.eye(len(noise) + 1)
    turn[:-1, :-1] = root
    return (
        replace(moves, mean=inverse @ moves.mean @ root, spread=root @ moves.spread @ root),
        replace(sights, mean=sights.mean @ turn, spread=turn @ sights.spread @ turn),
    )
