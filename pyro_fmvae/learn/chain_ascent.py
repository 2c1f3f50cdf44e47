"""Variational Bayes for hidden Markov models of table rows, and how many states they ask for."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pyro_fmvae.infer.seeding import kmeans
from pyro_fmvae.learn.mixture import POSITIVE, SHORT, WORSE, features_of, whitened
from pyro_fmvae.models.observed_chain import Expected, ObservedChain, SequenceRows
from pyro_fmvae.models.regressed_numbers import with_one
from pyro_fmvae.models.table_sites import LEFT_OUT

PARTS: Final = 5
"""Rows of a part of a sequence, for each coefficient of a line through it."""
RIDGE: Final = 1e-3
"""Rows that a slope of 0 counts for in such a line."""


@dataclass(frozen=True)
class FittedChain:
    """A hidden Markov model that has been fitted.

    Attributes:
        model: with the posterior that was reached.
        bounds: after each update, in nats for all rows.
        converged: whether the last update gained less than the tolerance.
        expected: of the states.
    """

    model: ObservedChain
    bounds: list[float]
    converged: bool
    expected: Expected

    @property
    def evidence(self) -> float:
        """The bound less what choosing the prior gained; plus log K! where any order of states is as good."""
        orders = math.lgamma(self.model.components + 1) if self.model.is_exchangeable else 0.0
        return self.bounds[-1] + orders - self.model.prior_cost()


def climb_chain(
    model: ObservedChain,
    sequences: SequenceRows,
    expected: Expected,
    iterations: int,
    tolerance: float,
    before: Mapping[str, Tensor] | None = None,
) -> FittedChain:
    """Coordinate ascent from expected sums, until an update gains less than the tolerance, in nats.

    Args:
        model: changed in place.
        sequences: that are learnt from.
        expected: where to start.
        iterations: updates at most, at least 1.
        tolerance: an update that gains less is the last.
        before: λ0 of each site; None: the prior, which is learnt if the model learns it.

    Raises:
        ValueError: no path has the known states.
    """
    bounds: list[float] = []
    converged = False
    for _ in range(iterations):
        sums = model.sums(sequences, expected)
        with torch.no_grad():
            for name, prior in model.natural_priors().items():
                start = prior.natural if before is None else before[name]
                model.posterior_of(name).natural.copy_(start + sums[name])
        if before is None:
            model.learn_prior()
        expected = model.expected(sequences)
        if expected.evidence == -math.inf:
            raise ValueError(
                "states: expected a path whose start and transitions have concentrations above 0, got none; "
                "change the states, or startprob_prior, transmat_prior or topology"
            )
        bounds.append(expected.evidence - divergence(model, before))
        converged = len(bounds) > 1 and bounds[-1] - bounds[-2] < tolerance
        if converged:
            break
    return FittedChain(model, bounds, converged, expected)


@torch.no_grad()
def divergence(model: ObservedChain, before: Mapping[str, Tensor] | None) -> float:
    """KL of all parameters from λ0 of each site; None: from their priors."""
    if before is None:
        return model.divergence().item()
    found = 0.0
    for name, natural in before.items():
        q = model.natural(name)
        found += float(q.family.kl(q.natural, natural, q.expected_stats()).sum())
    return found


Make = Callable[[int], ObservedChain]
"""Number of states → new model."""


def best_chain(
    make: Make,
    states: int,
    x: Tensor,
    lengths: Tensor,
    weights: Tensor,
    known: Tensor | None,
    starts: int,
    generator: torch.Generator,
    iterations: int,
    tolerance: float,
) -> FittedChain:
    """The model of so many states with the best bound of several starts, each improved a little.

    Args:
        make: see :data:`Make`.
        states: K.
        x: rows of all sequences [N, D], NaN where missing.
        lengths, weights: of the sequences, [B].
        known: known states of the rows, [N], -1 where unknown; None: none is known.
        starts: how many; clusters of k-means, every other time of whitened rows if covariances are full.
            Beside covariates, every other time the lines through short parts of sequences that rows are
            closest to. If no state is followed by one of a smaller number, each sequence is cut into K parts
            instead.
        generator: source of the random numbers, on the CPU.
        iterations, tolerance: of the best start in all, as for :func:`climb_chain`.
    """
    found: list[FittedChain] = []
    first, sequences = iterations if starts == 1 else min(SHORT, iterations), None
    for number in range(starts if states > 1 else 1):
        model = make(states)
        model.forget()
        if sequences is None:
            sequences, features = SequenceRows.of(model, x, lengths, weights, known), _features(model, x)
        if model.is_ordered:
            clusters = _cut(lengths, states, generator if number else None)
        elif model.sites.covariates and number % 2 == 0:
            clusters = _closest_lines(model, x, states, known, generator)
        else:
            space = whitened(features) if model.sites.full and number % 2 else features
            clusters = _clusters(space, states, known, generator)
        if known is not None:
            clusters = torch.where(known >= 0, known, clusters)
        gamma = one_hot(clusters, states).double()
        expected = Expected.of_states(sequences, gamma)
        found.append(climb_chain(model, sequences, expected, first, tolerance))
    assert sequences is not None
    best = max(found, key=lambda fitted: fitted.bounds[-1])
    if best.converged or first == iterations:
        return best
    ended = climb_chain(best.model, sequences, best.expected, iterations - first, tolerance)
    return FittedChain(ended.model, best.bounds + ended.bounds, ended.converged, ended.expected)


def search_chain(fit: Callable[[int], FittedChain], most: int, verbose: bool = False) -> FittedChain:
    """The number of states that has the greatest evidence.

    Numbers rise from 1 until two in a row have gained nothing, or up to ``most``.

    Args:
        fit: number of states → model.
        most: states at most.
        verbose: print the evidence of each number.
    """
    best, worse = fit(1), 0
    for states in range(2, most + 1):
        found = fit(states)
        if verbose:
            print(f"{states} states: evidence {found.evidence:.2f} nats")
        if found.evidence > best.evidence + POSITIVE:
            best, worse = found, 0
        else:
            worse += 1
        if worse == WORSE:
            break
    return best


def _features(model: ObservedChain, x: Tensor) -> Tensor:
    """Rows for k-means, [N, F]."""
    own = [column for column, level in enumerate(model.sites.levels) if level != LEFT_OUT]
    parts = [features_of(x[:, own], [model.sites.levels[column] for column in own])] if own else []
    for column, total in model.sites.trials.items():
        share = x[:, column] / (x[:, total] if total >= 0 else 1)
        parts.append(torch.where(share.isnan(), share.nanmean(), share).nan_to_num(0.0).unsqueeze(-1))
    return torch.cat(parts, -1)


def _closest_lines(
    model: ObservedChain, x: Tensor, states: int, known: Tensor | None, generator: torch.Generator
) -> Tensor:
    """Which of K regressions is closest to each row, int64 [N].

    Each is that of the rows in which its state is known, or of a part of successive rows.
    """
    inputs = with_one(x[:, model.sites.covariates].nan_to_num(0.0).double())
    numbers = x[:, model.sites.numbers].double()
    there = ~numbers.isnan().any(-1)
    inputs, numbers = inputs * there.unsqueeze(-1), numbers.nan_to_num(0.0) * there.unsqueeze(-1)
    length = min(PARTS * inputs.shape[1], len(x))
    begins = torch.randint(len(x) - length + 1, (states,), generator=generator).tolist()
    ridge, distances = RIDGE * torch.eye(inputs.shape[1], dtype=inputs.dtype, device=x.device), []
    for state, begin in enumerate(begins):
        own = slice(begin, begin + length) if known is None or not (known == state).any() else known == state
        u, y = inputs[own], numbers[own]
        line = torch.linalg.solve(u.mT @ u + ridge, u.mT @ y)
        distances.append((numbers - inputs @ line).square().sum(-1))
    return torch.stack(distances).argmin(0)


def _cut(lengths: Tensor, states: int, generator: torch.Generator | None) -> Tensor:
    """Numbers of the parts that sequences are cut into, equal ones or at random, int64 [N]."""
    parts = []
    for length in lengths.tolist():
        ends = torch.arange(1, states) / states
        if generator is not None:
            ends = torch.rand(states - 1, generator=generator).sort().values
        places = (torch.arange(length) + 0.5) / length
        parts.append(torch.searchsorted(ends, places))
    return torch.cat(parts).to(lengths.device)


def _clusters(points: Tensor, states: int, known: Tensor | None, generator: torch.Generator) -> Tensor:
    """Clusters of k-means, int64 [N]; those of known states begin at the means of their rows."""
    if known is None or not (known >= 0).any():
        return kmeans(points, states, generator)
    there = known.unique()
    there = there[there >= 0]
    centres = torch.stack([points[known == state].mean(0) for state in there])
    others = [state for state in range(states) if state not in there]
    rest = torch.tensor(others, dtype=torch.int64, device=there.device)
    return torch.cat([there, rest])[kmeans(points, states, generator, centres=centres)]
