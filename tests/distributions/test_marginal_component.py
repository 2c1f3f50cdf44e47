import math
from itertools import product

import pyro.distributions as dist
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from pyro_fmvae.distributions import (
    NORMAL_WISHART,
    MarginalComponent,
    NaturalNormalWishart,
    expected_log_prob,
    marginal_component,
)
from pyro_fmvae.distributions import packed_matrices as packed
from pyro_fmvae.distributions.marginal_component import (
    conditionals,
    expected_numbers,
    filled_statistics,
    marginal_expectation,
    marginal_log_predictive,
    marginal_table,
    marginal_update,
)
from tests.distributions.family_case import assert_mean

NAN = torch.nan
X = torch.tensor(
    [[0.3, -1.0, 2.0], [NAN, 0.5, -1.0], [NAN, NAN, 1.5], [NAN, NAN, NAN], [0.1, NAN, 0.2]]
).double()


def standard():
    """Of two posteriors."""
    torch.manual_seed(0)
    root = torch.randn(2, 3, 6).double()
    tril = torch.linalg.cholesky(root @ root.mT)
    return (
        torch.randn(2, 3).double(),
        torch.tensor([2.0, 9.0]).double(),
        torch.tensor([3.0, 8.0]).double(),
        tril,
    )


def log_likelihoods(draws):
    """Log N(x_o; μ_o, Σ_oo) of draws [S, 2, 4, 3] of (μ, T): [S, 5, 2]."""
    loc, factor = draws[..., 0, :], draws[..., 1:, :]
    covariance = torch.linalg.inv(factor.mT @ factor)
    parts = []
    for row in X:
        known = (~row.isnan()).nonzero().squeeze(-1)
        if not len(known):
            parts.append(torch.zeros(loc.shape[:-1]).double())
            continue
        own = MultivariateNormal(loc[..., known], covariance[..., known, :][..., known])
        parts.append(own.log_prob(row[known]))
    return torch.stack(parts, 1)


def posterior():
    return NaturalNormalWishart(NORMAL_WISHART.natural(*standard()))


def integrals():
    """Log ∫ exp E[log N(x; μ_k, Λ_k⁻¹)] dx_m on grids of what is missing, and 0 where everything is."""
    stats, grid = posterior().expected_stats(), torch.linspace(-30, 30, 601).double()
    rows = []
    for row in X:
        missing = row.isnan().nonzero().squeeze(-1)
        if len(missing) == 3:
            rows.append(torch.zeros(2).double())
            continue
        points = torch.tensor(list(product(grid.tolist(), repeat=len(missing)))).double()
        x = row.repeat(len(points), 1)
        x[:, missing] = points
        values = NORMAL_WISHART.expected_log_likelihood(x, torch.zeros_like(x), stats)
        rows.append(values.logsumexp(0) + len(missing) * math.log(0.1))
    return torch.stack(rows)


def test_the_bound_integrates_over_what_is_missing():
    assert_close(marginal_table(X, posterior().expected_stats()), integrals())


def test_bound_and_densities_by_draws():
    likelihoods = log_likelihoods(posterior().sample((40_000,)).double())
    assert_mean(likelihoods.exp(), marginal_log_predictive(X, standard()).exp())
    table, exact = marginal_table(X, posterior().expected_stats()), likelihoods.mean(0)
    error = likelihoods.std(0) / len(likelihoods) ** 0.5
    assert (table <= exact + 4 * error).all()
    assert ((table - exact).abs() < 4 * error)[0].all() and (table < exact - 4 * error)[1].all()


def test_the_gradient_is_that_of_rows_filled_in(monkeypatch):
    """Its own way through the closed form; also row by row, as when there are too many for one tensor."""
    stats = posterior().expected_stats().requires_grad_()
    weights = torch.rand(5, 2).double()
    (weights * marginal_table(X, stats)).sum().backward()
    filled = marginal_update(torch.zeros_like(stats), weights, X, stats.detach())
    assert_close(filled, stats.grad)
    assert_close(3 * filled, marginal_update(0 * stats.detach(), weights, X, stats.detach(), 3.0))
    monkeypatch.setattr(marginal_component, "LARGEST", 1)
    assert_close(marginal_update(0 * stats.detach(), weights, X, stats.detach()), filled)


def test_statistics_of_filled_rows_are_the_mean_over_the_components():
    stats, gamma = posterior().expected_stats(), torch.tensor([[0.2, 0.8], [0.7, 0.3], [0.5, 0.5], [1, 1e-4]])
    found, zero = filled_statistics(X[1:], stats, gamma), torch.zeros_like(stats)
    gamma[3, 1] = 0.0  # it does not take part
    for row in range(4):
        own = marginal_update(zero, gamma[[row]], X[[row + 1]], stats)
        assert_close(found[row], own.sum(0))


def test_updates_are_those_of_each_row_by_itself():
    """Many patterns, some of several rows, and weights of which most are next to nothing."""
    torch.manual_seed(1)
    x = torch.randn(40, 3).double()
    x[torch.rand(40, 3) < 0.5] = NAN
    stats = posterior().expected_stats()
    m, _, a, tril = standard()
    precision = (a + 1)[:, None, None] * torch.cholesky_inverse(tril)  # ν/2 B⁻¹
    weights = (40 * torch.randn(40, 2)).double().softmax(-1)
    weights[::4] = torch.tensor([1.0, 0.0]).double()
    expected = torch.zeros_like(stats)
    for row, own in zip(x, weights, strict=True):
        gone = row.isnan()
        if gone.all():
            continue
        for k in range(2):
            filled, spread = row.clone(), torch.zeros(3, 3).double()
            if gone.any():
                block = torch.linalg.inv(precision[k][gone][:, gone])
                filled[gone] = m[k, gone] - block @ precision[k][gone][:, ~gone] @ (row - m[k])[~gone]
                spread[gone.outer(gone)] = block.flatten()
            square = torch.outer(filled, filled) + spread
            half = torch.tensor(0.5).double()
            expected[k] += own[k] * packed.join(half, -half, -0.5 * packed.pack(square), filled)
    assert_close(marginal_update(torch.zeros_like(stats), weights, x, stats), expected)


def wide(rows=60, dim=30, count=6):
    """Rows of six separate normals, most with half of their numbers missing, and E[t] of posteriors there."""
    torch.manual_seed(2)
    loc = 2 * torch.randn(count, dim).double()
    root = 0.5 * torch.randn(count, dim, 2 * dim).double() / dim**0.5
    tril = torch.linalg.cholesky(root @ root.mT)
    own = torch.arange(rows) % count
    x = loc[own] + (tril[own] @ torch.randn(rows, dim, 1).double()).squeeze(-1)
    gone = torch.rand(rows, dim) < 0.5
    gone[0], gone[1], gone[2, :3] = True, False, False
    gone[2, 3:] = gone[3, :4] = True
    gone[3, 4:] = False
    freedom = torch.full((count,), 20.0).double()
    q = NORMAL_WISHART.natural(loc, freedom, freedom, (freedom + dim / 2)[:, None, None].sqrt() * tril)
    return x.masked_fill(gone, NAN), NaturalNormalWishart(q).expected_stats()


def test_pairs_without_weight_make_no_difference(monkeypatch):
    """Rows with few, many, all and none of their numbers; by the table of all pairs, without bounds."""
    x, stats = wide()
    others = torch.randn(60, 6).double()
    others[:, 4] = -math.inf
    exact, factorised = marginal_table(x, stats), []
    plain = torch.linalg.cholesky
    monkeypatch.setattr(torch.linalg, "cholesky", lambda a: factorised.append(a) or plain(a))
    table, sums = marginal_expectation(x, stats, others)
    blocks = sum(len(a) for a in factorised if a.shape[-1] not in (3, 30))
    assert blocks < 0.7 * 57 * 6
    share = (exact + others).softmax(-1)
    assert_close((table + others).softmax(-1), share)
    assert_close((table + others).logsumexp(-1), (exact + others).logsumexp(-1))
    assert (table >= exact - 1e-9).all() and (table > exact + 1).any()
    gaps = x.isnan().any(-1)
    assert_close(sums, marginal_update(torch.zeros_like(stats), share[gaps], x[gaps], stats))


def test_bounds_hold_and_meet(monkeypatch):
    """With as many steps as numbers are missing, conjugate gradients are exact: the determinant is left."""
    x, stats = wide()
    x, (_, loc, precision) = x[4:], marginal_component._normals(stats)
    distance, determinant = torch.zeros(2, 56, 6).double()
    for part in conditionals(x, loc, precision):
        distance[part.row, part.component] = part.distance
        determinant[part.row, part.component] = part.log_determinant
    exact = distance + determinant
    for steps in 0, 1, 2:
        monkeypatch.setattr(marginal_component, "STEPS", steps)
        least, greatest = marginal_component._ranges(x, loc, precision)
        assert (least < exact).all() and (exact < greatest).all()
    monkeypatch.setattr(marginal_component, "STEPS", 30)
    least, greatest = marginal_component._ranges(x, loc, precision)
    gone = x.isnan().double()
    pivots = 2 * gone @ packed.diagonal(torch.linalg.cholesky(precision)).log().mT
    assert_close(least - pivots, distance)
    assert_close(greatest - gone @ packed.diagonal(precision).log().mT, distance)


def test_only_pairs_that_are_asked_for_are_computed():
    m, _, _, tril = standard()
    precision, chosen = torch.cholesky_inverse(tril), torch.zeros(5, 2).bool()
    chosen[1, 0] = chosen[4, 1] = True
    part, rest = conditionals(X, m, precision, chosen)  # rows that miss one number, and two
    assert part.component.tolist() == [0, 1] and part.row.tolist() == [1, 4]
    assert len(part.factor) == 2 and not len(rest.row)


def test_natural_gradients_are_those_of_the_program():
    natural = NORMAL_WISHART.natural(*standard()).requires_grad_()
    child = MarginalComponent(torch.zeros(2, 4, 3).double(), torch.zeros(5).long())
    q = NaturalNormalWishart(natural)
    table = expected_log_prob(dist.Delta(X, event_dim=1), child, {"loc_precision": q})
    assert_close(table, integrals())
    table.sum().backward()
    stats = posterior().expected_stats()
    assert_close(natural.grad, marginal_update(torch.zeros_like(stats), torch.ones(5, 2), X, stats))


def test_rows_are_scored_by_what_is_there():
    draws = NaturalNormalWishart(NORMAL_WISHART.natural(*standard())).sample().double()
    assignment = torch.tensor([0, 1, 1, 0, 1])
    expected = log_likelihoods(draws.unsqueeze(0))[0].gather(-1, assignment.unsqueeze(-1)).squeeze(-1)
    assert_close(MarginalComponent(draws, assignment).log_prob(X), expected)


def test_missing_numbers_are_expected_given_the_others():
    m, s, a, tril = standard()
    one = m[:1], s[:1], a[:1], tril[:1]
    filled = expected_numbers(X, torch.ones(5, 1), one)
    covariance = tril[0] @ tril[0].mT
    assert torch.equal(filled[0], X[0]) and torch.equal(filled[~X.isnan()], X[~X.isnan()])
    assert_close(filled[3], m[0])
    precision = torch.linalg.inv(covariance)  # E[x_0 | x_1, x_2] = m_0 - sum of P_0j (x_j - m_j) / P_00
    gap = (X[1, 1:] - m[0, 1:]) @ precision[0, 1:]
    assert_close(filled[1, 0], m[0, 0] - gap / precision[0, 0])
