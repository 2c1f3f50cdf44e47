import itertools

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.models.em import binary_em
from pyro_fmvae.models.em.binary_em import apply_moment, best_weight

STARTS, SIZE, UNITS, POINTS = 2, 5, 4, 30


def moments(per_element, used=UNITS):
    """Σ x s' and Σ ss' of random points, of which each element of x sees its own share."""
    x, s = torch.randn(POINTS, SIZE), torch.rand(STARTS, POINTS, UNITS) + 0.1
    s[..., used:] = 0
    seen = (torch.rand(POINTS, SIZE) < 0.7).double() if per_element else torch.ones(POINTS, SIZE)
    second = torch.einsum("nd,rni,rnj->rdij", seen, s, s)
    product = torch.einsum("nd,nd,rni->rdi", seen, x, s)
    return x, s, seen, product, second if per_element else second[:, :1]


def squared_error(x, s, seen, weight):
    """For each start and element, [R, D]."""
    return (seen * (x - s @ weight.mT).square()).sum(1)


@pytest.mark.parametrize("per_element", [False, True])
def test_it_is_least_squares(per_element):
    x, s, seen, product, second = moments(per_element)
    found = best_weight(product, second, torch.randn(STARTS, SIZE, UNITS), 1e-14, False)
    for r in range(STARTS):
        for d in range(SIZE):
            rows = seen[:, d] > 0
            expected = torch.linalg.lstsq(s[r, rows], x[rows, d : d + 1]).solution[:, 0]
            assert_close(found[r, d], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("per_element", [False, True])
def test_non_negative_weights_are_the_best_ones(per_element):
    """After enough calls: slope 0 where a weight is positive, and downwards where it is 0."""
    x, s, seen, product, second = moments(per_element)
    weight = torch.rand(STARTS, SIZE, UNITS)
    errors = [squared_error(x, s, seen, weight)]
    for _ in range(200):
        weight = best_weight(product, second, weight, 1e-14, True)
        errors.append(squared_error(x, s, seen, weight))
    assert (torch.stack(errors).diff(dim=0) <= 1e-10).all()
    slope = product - apply_moment(second, weight)
    inside = weight > 0
    assert inside.any() and (~inside).any() and (weight >= 0).all()
    assert slope[inside].abs().max() < 1e-6
    assert (slope[~inside] <= 1e-6).all()


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("per_element", [False, True])
def test_causes_that_are_never_there_keep_their_weights(per_element, nonnegative):
    x, s, seen, product, second = moments(per_element, used=2)
    weight = torch.rand(STARTS, SIZE, UNITS)
    found = best_weight(product, second, weight, 1e-12, nonnegative)
    assert_close(found[..., 2:], weight[..., 2:])
    assert (squared_error(x, s, seen, found) <= squared_error(x, s, seen, weight)).all()
    assert_close(best_weight(0 * product, 0 * second, weight, 1e-12, nonnegative), weight)


@pytest.mark.parametrize("per_element", [False, True])
def test_the_best_non_negative_weights_are_kept(per_element):
    """Where causes go together, and the positive part of the least-squares solution is far from the best."""
    s = torch.rand(STARTS, POINTS, UNITS) + 3
    seen = (torch.rand(POINTS, 40) < 0.7).double() if per_element else torch.ones(POINTS, 40)
    x = torch.randn(POINTS, 40)
    product = torch.einsum("nd,nd,rni->rdi", seen, x, s)
    second = torch.einsum("nd,rni,rnj->rdij", seen, s, s)
    second = second if per_element else second[:, :1]
    best = torch.full((STARTS, 40, UNITS), torch.inf)
    for used in itertools.product((False, True), repeat=UNITS):  # the best of all sets of positive weights
        mask = torch.tensor(used).double()
        kept = second * mask.unsqueeze(-1) * mask + torch.diag(1 - mask)
        weight = torch.linalg.solve(kept.expand(STARTS, 40, -1, -1), (product * mask).unsqueeze(-1)).squeeze(
            -1
        )
        better = squared_error(x, s, seen, weight) < squared_error(x, s, seen, best.nan_to_num(posinf=1e6))
        best = torch.where((better & (weight >= 0).all(-1)).unsqueeze(-1), weight, best)
    found = best_weight(product, second, best, 1e-14, True)
    assert_close(found, best, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("per_element", [False, True])
def test_fit_is_by_how_much_the_error_is_lower(per_element):
    x, s, seen, product, second = moments(per_element)
    weight = torch.randn(STARTS, SIZE, UNITS)
    lower = squared_error(x, s, seen, 0 * weight) - squared_error(x, s, seen, weight)
    assert_close(binary_em._fit(weight, product, second), lower)
