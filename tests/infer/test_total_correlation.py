"""The total correlation of the aggregate posterior, against its definition and against quadrature."""

import math
from itertools import combinations

import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from pyro_fmvae.capture.recording import record
from pyro_fmvae.infer import importance as module
from pyro_fmvae.infer.importance import total_correlation


def posteriors(size, dims):
    """A draw, a location and a scale of each point."""
    loc, scale = torch.randn(size, dims), 0.3 + torch.rand(size, dims)
    return loc + scale * torch.randn(size, dims), loc, scale


def test_whole_data_set_is_exact():
    """By scipy's densities, averaged over all points with equal weights."""
    z, loc, scale = posteriors(7, 3)
    for i, actual in enumerate(total_correlation(z, loc, scale, 7).tolist()):
        joint = logsumexp(
            [multivariate_normal(m, s**2).logpdf(z[i]) for m, s in zip(loc, scale, strict=True)]
        )
        marginals = sum(logsumexp(norm(loc[:, j], scale[:, j]).logpdf(z[i, j])) for j in range(3))
        assert actual == pytest.approx(joint - math.log(7) - (marginals - 3 * math.log(7)))


def test_batches_are_unbiased_for_the_aggregate_posterior(monkeypatch):
    """q(z) itself, in place of its logarithm, averaged over all batches of 3 out of 6 that hold a point."""
    z, loc, scale = posteriors(6, 2)
    seen = {}

    def joint_alone(z, log_weights, loc, scale):
        log_probs = torch.distributions.Normal(loc, scale).log_prob(z.unsqueeze(1)).sum(-1)
        return (log_probs + log_weights).exp().sum(1)

    monkeypatch.setattr(module, "_rows", joint_alone)
    for rows in map(list, combinations(range(6), 3)):
        for point, value in zip(rows, total_correlation(z[rows], loc[rows], scale[rows], 6), strict=True):
            seen.setdefault(point, []).append(value.item())
    whole = total_correlation(z, loc, scale, 6)
    assert [sum(seen[i]) / len(seen[i]) for i in range(6)] == pytest.approx(whole.tolist())


def test_mean_is_the_total_correlation_by_quadrature():
    loc, scale = torch.tensor([[-1.0, -1.2], [1.0, 0.8], [0.2, 0.1]]), torch.full((3, 2), 0.5)
    axis = torch.linspace(-5, 5, 801)
    step = (axis[1] - axis[0]).item()
    density = torch.distributions.Normal(loc[:, :, None], scale[:, :, None]).log_prob(axis).exp()  # [3, 2, G]
    joint = torch.einsum("ng,nh->gh", density[:, 0], density[:, 1]) / 3
    marginals = density.mean(0)
    ratio = (joint / (marginals[0][:, None] * marginals[1])).log()
    expected = (joint * ratio).sum().item() * step**2
    z = loc + scale * torch.randn(2000, 3, 2)
    values = torch.stack([total_correlation(draw, loc, scale, 3).mean() for draw in z])
    error = values.std().item() / math.sqrt(len(values))
    assert expected > 0.2
    assert values.mean().item() == pytest.approx(expected, abs=4 * error)


def test_independent_dimensions_have_none():
    """Locations on a product grid: q(z) is a product."""
    side = torch.tensor([-2.0, 0.0, 1.0])
    loc = torch.cartesian_prod(side, side)
    scale = torch.tensor([0.3, 0.7]).expand(9, 2)
    values = total_correlation(loc + scale * torch.randn(9, 2), loc, scale, 9)
    torch.testing.assert_close(values, torch.zeros(9))


def test_one_dimension_has_none():
    torch.testing.assert_close(total_correlation(*posteriors(5, 1), 50), torch.zeros(5))


def test_a_single_point_says_nothing():
    assert total_correlation(*posteriors(1, 4), 50).tolist() == pytest.approx([0.0])


def test_gradients_are_those_of_finite_differences():
    given = [t.requires_grad_() for t in posteriors(4, 2)]
    assert torch.autograd.gradcheck(lambda *args: total_correlation(*args, 20), given)


@pytest.mark.parametrize("largest", [1, 5 * 3 * 2])
def test_parts_are_the_whole(largest, monkeypatch):
    """In parts of 1 and of 2 rows out of 5, gradients included."""
    given = [t.requires_grad_() for t in posteriors(5, 3)]
    whole = total_correlation(*given, 20)
    slopes = torch.autograd.grad(whole.square().sum(), given)
    calls, rows = [], module._rows
    monkeypatch.setattr(module, "_LARGEST", largest)
    monkeypatch.setattr(module, "_rows", lambda z, *args: calls.append(len(z)) or rows(z, *args))
    state = torch.get_rng_state()
    parts = total_correlation(*given, 20)
    assert calls == ([1] * 5 if largest == 1 else [2, 2, 1])
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(parts, whole)
    for slope, expected in zip(torch.autograd.grad(parts.square().sum(), given), slopes, strict=True):
        torch.testing.assert_close(slope, expected)


def test_parts_can_be_captured(monkeypatch):
    monkeypatch.setattr(module, "_LARGEST", 1)

    def step(*given):
        with torch.enable_grad():
            given = [t.detach().requires_grad_() for t in given]
            loss = total_correlation(*given, 20).square().sum()
            return loss.detach(), *torch.autograd.grad(loss, given)

    recording = record(step, posteriors(5, 3))
    others = posteriors(5, 3)
    for actual, expected in zip(recording.function()(*others, *recording.state), step(*others), strict=True):
        torch.testing.assert_close(actual, expected)


def test_refuses():
    z, loc, scale = posteriors(5, 2)
    with pytest.raises(ValueError, match=r"^num_data: expected a number >= 5, the size of the batch, got 4"):
        total_correlation(z, loc, scale, 4)
    with pytest.raises(ValueError, match=r"^z, loc, scale: expected the same shape \[B, J\], got \[5, 2\], "):
        total_correlation(z, loc, scale[:4], 9)
    with pytest.raises(ValueError, match=r"^z, loc, scale"):
        total_correlation(z[0], loc[0], scale[0], 9)


def test_weights_keep_their_digits(single_precision):
    weights = module._log_weights(4, 10, torch.zeros(1, dtype=torch.float64)).exp()
    assert weights.sum(1).tolist() == pytest.approx([1.0] * 4, rel=1e-15)
