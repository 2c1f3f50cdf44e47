"""Sums over components as products of matrices, against logarithms of sums of exponentials."""

import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.infer.elbo.density import Likelihoods, Observations

E, B, W, K, V = 2, 3, 4, 5, 6


def random(*shape, spread=3.0):
    generator = torch.Generator().manual_seed(0)
    return spread * torch.randn(*shape, generator=generator, dtype=torch.float64)


LAYOUTS = {
    "words by documents": ((W, B), (1, B, K)),
    "documents by words": ((B, W), (B, 1, K)),
    "expanded": ((W, B), None),
    "fewer dimensions": ((W, B), (B, K)),
    "no document": ((W,), (K,)),
    "words between": ((E, W, B), (E, 1, B, K)),
}
layouts = pytest.mark.parametrize(("batch", "shape"), LAYOUTS.values(), ids=LAYOUTS)


def weights_of(shape):
    table = random(B, K).expand(W, B, K) if shape is None else random(*shape)
    return table.detach().requires_grad_() if shape is not None else table


def by_logsumexp(table, weights):
    return (table + weights).logsumexp(-1)


def slopes(value, *tensors):
    """Gradients of a sum in which no two numbers count the same."""
    return torch.autograd.grad(
        (value * torch.arange(1.0, 1 + value.numel()).view(value.shape)).sum(), tensors, retain_graph=True
    )


@layouts
def test_sums_of_constants(batch, shape):
    weights, table = random(*(shape or (B, K))).requires_grad_(), random(*batch, K)
    given = weights.expand(W, B, K) if shape is None else weights
    points = Observations.of(given, torch.Size(batch))
    assert points
    ours, theirs = Likelihoods.of_table(points, table).log_sum(given), by_logsumexp(table, given)
    assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    assert_close(slopes(ours, weights), slopes(theirs, weights))


@layouts
def test_sums_of_categories(batch, shape):
    weights, table = random(*(shape or (B, K))).requires_grad_(), random(K, V).requires_grad_()
    given = weights.expand(W, B, K) if shape is None else weights
    words = torch.randint(V, batch, generator=torch.Generator().manual_seed(1))
    found = Likelihoods.looked_up(Observations.of(given, torch.Size(batch)), table, words)
    ours, theirs = found.log_sum(given), by_logsumexp(table.T[words], given)
    assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    assert_close(slopes(ours, weights, table), slopes(theirs, weights, table))
    kept = Likelihoods.looked_up(found.points, table.detach(), words).log_sum(given)
    assert_close(slopes(kept, weights), slopes(theirs, weights))


def test_points_with_weights_of_their_own_share_none():
    assert not Observations.of(random(W, B, K), torch.Size((W, B)))
    assert not Observations.of(random(B, K), torch.Size((1, B)))


@pytest.mark.parametrize(
    ("dtype", "gap", "rtol"), [(torch.float32, 600.0, 1e-6), (torch.float64, 600.0, 1e-12)]
)
def test_what_is_unlikely_under_the_largest_weight(dtype, gap, rtol):
    """No product underflows where the component of the largest weight is e^-gap as likely as another."""
    table, weights = torch.tensor([[0.0, -gap]], dtype=dtype), torch.tensor([-gap - 1, 0.0], dtype=dtype)
    table, weights = table.expand(2, 2), weights.requires_grad_()
    found = Likelihoods.of_table(Observations.of(weights, torch.Size((2,))), table).log_sum(weights)
    expected = by_logsumexp(table.double(), weights.double())
    assert_close(found.double(), expected, rtol=rtol, atol=0.0)
    assert_close(
        slopes(found, weights)[0].double(), slopes(expected, weights)[0].double(), rtol=1e-5, atol=0.0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 10_000])
def test_sums_are_finite_whatever_the_numbers(dtype, size):
    far = torch.finfo(dtype).max ** 0.5
    table, weights = torch.full((2, size), far, dtype=dtype), torch.zeros(size, dtype=dtype)
    table[:, 0], weights[0] = -far, far
    weights.requires_grad_()
    found = Likelihoods.of_table(Observations.of(weights, torch.Size((2,))), table).log_sum(weights)
    assert found.isfinite().all()
    assert slopes(found, weights)[0].isfinite().all()
    even = torch.zeros(2, size, dtype=dtype)
    found = Likelihoods.of_table(Observations.of(weights, torch.Size((2,))), even).log_sum(
        torch.zeros_like(weights)
    )
    rounding = size * torch.finfo(torch.float64).eps
    assert_close(found, torch.full((2,), float(size), dtype=torch.float64).log(), rtol=0.0, atol=rounding)
