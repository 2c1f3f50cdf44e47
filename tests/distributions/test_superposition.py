import math

import pyro
import pytest
import torch
from pyro.infer import Trace_ELBO

from pyro_fmvae.distributions import LinearNormal, MaxNormal
from pyro_fmvae.distributions.superposition import largest

SCALE = 0.7


def numbers(dtype, rows=6, units=4, size=5):
    causes, weight = torch.randn(rows, units, dtype=dtype), torch.randn(size, units, dtype=dtype)
    x = torch.randn(rows, size, dtype=dtype)
    return x, causes, weight, torch.tensor(SCALE, dtype=dtype)


def by_hand(x, mean):
    """Element by element, leaving out what is missing."""
    total = torch.zeros(len(x), dtype=x.dtype)
    for n, row in enumerate(x.tolist()):
        for d, value in enumerate(row):
            if not math.isnan(value):
                error = (value - mean[n, d].item()) / SCALE
                total[n] += -0.5 * error**2 - math.log(SCALE) - 0.5 * math.log(2 * math.pi)
    return total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [LinearNormal, MaxNormal])
def test_log_density_of_what_is_observed(kind, dtype):
    x, causes, weight, scale = numbers(dtype)
    causes[:, 0] = 0
    x[0, 1:3], x[1] = torch.nan, torch.nan
    products = causes.unsqueeze(-2) * weight
    mean = products.sum(-1) if kind is LinearNormal else products.max(-1).values
    found = kind(causes, weight, scale)
    assert found.mean.numpy() == pytest.approx(mean.numpy(), rel=1e-5, abs=1e-6)
    log_prob = found.log_prob(x)
    assert log_prob.dtype == dtype
    assert log_prob.numpy() == pytest.approx(by_hand(x, mean).numpy(), rel=1e-5)
    assert log_prob[1] == 0


def test_a_unit_that_is_off_covers_what_is_negative():
    weight = torch.tensor([[1.0, 1.0]])
    assert largest(torch.tensor([[-2.0, 0.0], [-2.0, -1.0]]), weight).tolist() == [[0.0], [-1.0]]


def test_the_maximum_is_found_in_parts(monkeypatch):
    _, causes, weight, _ = numbers(torch.float64)
    whole = largest(causes, weight)
    monkeypatch.setattr("pyro_fmvae.distributions.superposition.LARGEST", 60)
    assert torch.equal(largest(causes, weight), whole)


@pytest.mark.parametrize("kind", [LinearNormal, MaxNormal])
def test_draws_have_its_mean_and_variance(kind):
    _, causes, weight, scale = numbers(torch.float64)
    fn = kind(causes, weight, scale)
    draws = fn.sample((20_000,))
    assert draws.shape == (20_000, 6, 5)
    assert ((draws.mean(0) - fn.mean).abs() < 4.5 * SCALE / 20_000**0.5).all()
    assert ((draws.var(0) - fn.variance).abs() < 4.5 * SCALE**2 * (2 / 20_000) ** 0.5).all()


def test_expanding_to_its_own_shape_keeps_the_very_causes():
    _, causes, weight, scale = numbers(torch.float64)
    fn = LinearNormal(causes, weight, scale)
    assert fn.expand((6,)).causes is causes
    wider = fn.expand((3, 6))
    assert (wider.batch_shape, wider.event_shape, wider.causes.shape) == ((3, 6), (5,), (3, 6, 4))


def test_weights_of_another_number_of_causes_are_refused():
    with pytest.raises(ValueError, match=r"weight: expected \[D, 4\], got \[5, 3\]"):
        LinearNormal(torch.zeros(2, 4), torch.zeros(5, 3), torch.tensor(1.0))


def test_infinite_data_are_refused():
    x, causes, weight, scale = numbers(torch.float64)
    x[0, 0] = torch.inf
    with pytest.raises(ValueError, match="support"):
        LinearNormal(causes, weight, scale, validate_args=True).log_prob(x)


def test_gradients_do_not_meet_what_is_missing():
    x, causes, weight, scale = numbers(torch.float64)
    x[:, 0] = torch.nan
    weight.requires_grad_()

    def model():
        pyro.sample("x", LinearNormal(causes, weight, scale).to_event(1), obs=x)

    Trace_ELBO().differentiable_loss(model, lambda: None).backward()
    assert (weight.grad[0] == 0).all() and (weight.grad[1:] != 0).all()
