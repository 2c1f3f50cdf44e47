"""Expectations that updates derived by hand are made of."""

import itertools

import torch
from torch import Tensor
from torch.distributions import Beta, Dirichlet, Distribution, Gamma, Independent


def mean_log(q: Distribution) -> Tensor:
    """E[log θ]; of the determinant, for a Wishart."""
    if isinstance(q, Independent):
        return mean_log(q.base_dist)
    if isinstance(q, Gamma):
        return q.concentration.digamma() - q.rate.log()
    if isinstance(q, Beta):
        return q.concentration1.digamma() - (q.concentration1 + q.concentration0).digamma()
    if isinstance(q, Dirichlet):
        return q.concentration.digamma() - q.concentration.sum(-1, keepdim=True).digamma()
    dim = q.event_shape[-1]
    parts = 0.5 * (q.df.unsqueeze(-1) - torch.arange(dim))
    return parts.digamma().sum(-1) + dim * torch.tensor(2.0).log() + q.covariance_matrix.logdet()


def mean_log1m(q: Distribution) -> Tensor:
    """E[log(1 - θ)] under a Beta."""
    base = q.base_dist if isinstance(q, Independent) else q
    return base.concentration0.digamma() - (base.concentration1 + base.concentration0).digamma()


def mean_square(q: Distribution) -> Tensor:
    return q.mean.square() + q.variance


def second_moment(q: Distribution) -> Tensor:
    """E[θ θᵀ] under a multivariate Normal."""
    return q.covariance_matrix + q.mean.unsqueeze(-1) * q.mean.unsqueeze(-2)


def normal(first: Tensor, second: Tensor) -> torch.distributions.Normal:
    """The Normal with log-density ``first θ - second θ²/2 + ...``."""
    return torch.distributions.Normal(first / second, second.rsqrt())


def multivariate_normal(first: Tensor, second: Tensor) -> torch.distributions.MultivariateNormal:
    """The multivariate Normal with log-density ``firstᵀ θ - θᵀ second θ/2 + ...``."""
    mean = torch.linalg.solve(second, first.unsqueeze(-1)).squeeze(-1)
    return torch.distributions.MultivariateNormal(mean, precision_matrix=second)


def expected_paths(first: Tensor, rows: Tensor, emissions: Tensor) -> tuple[Tensor, Tensor]:
    """Expected states and transitions of a Markov chain, by the sum over all of its paths.

    Args:
        first: log-probabilities [K] of the first state.
        rows: those of transitions, [K, K], or [T - 1, K, K] where they change.
        emissions: log-densities [T, K] of the data.

    Returns:
        Probabilities [T, K] of states, and [T - 1, K, K] of pairs of successive ones.
    """
    times, states = emissions.shape
    paths = torch.tensor(list(itertools.product(range(states), repeat=times)))
    at, before, after = torch.arange(times), paths[:, :-1], paths[:, 1:]
    score = first[paths[:, 0]] + emissions[at, paths].sum(-1)
    score = score + rows.expand(times - 1, states, states)[at[1:] - 1, before, after].sum(-1)
    bits = torch.nn.functional.one_hot(paths, states).to(score)
    weight = score.softmax(0)
    pairs = torch.einsum("p,pti,ptj->tij", weight, bits[:, :-1], bits[:, 1:])
    return torch.einsum("p,pti->ti", weight, bits), pairs


def row_counts(states: Tensor, pairs: Tensor) -> Tensor:
    """Expected transitions [K, K] of a chain that comes from state 0; see :func:`expected_paths`."""
    counts = pairs.sum(0)
    counts[0] += states[0]
    return counts
