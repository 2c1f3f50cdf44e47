import pyro.distributions as dist
import pytest
import torch

from pyro_fmvae.distributions import LinearNormal, SpikeAndSlab, expected_log_prob

ROWS, UNITS, SIZE, DRAWS = 3, 4, 5, 200_000


def program(causes):
    x = torch.randn(ROWS, SIZE)
    x[0, :2] = torch.nan
    weight = torch.randn(SIZE, UNITS)
    return x, LinearNormal(causes, weight, torch.tensor(0.8))


@pytest.mark.parametrize(
    "posterior",
    [
        lambda: dist.Bernoulli(torch.rand(ROWS, UNITS)),
        lambda: SpikeAndSlab(torch.randn(ROWS, UNITS), torch.rand(ROWS, UNITS), torch.randn(ROWS, UNITS)),
        lambda: dist.Normal(torch.randn(ROWS, UNITS), torch.rand(ROWS, UNITS)),
    ],
)
def test_expectation_is_that_of_draws(posterior):
    q = posterior().to_event(1)
    x, p = program(torch.zeros(ROWS, UNITS))
    found = expected_log_prob(dist.Delta(x, event_dim=1), p, {"causes": q})
    draws = LinearNormal(q.sample((DRAWS,)), p.weight, p.scale).log_prob(x)
    error = draws.std(0) / DRAWS**0.5
    assert found.shape == (ROWS,)
    assert ((found - draws.mean(0)).abs() < 4 * error).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_expectation_under_binary_causes_is_the_sum_over_states(dtype):
    states = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * UNITS).to(dtype)
    probs = torch.rand(ROWS, UNITS, dtype=dtype)
    x, p = program(torch.zeros(ROWS, UNITS))
    x, p = (
        x.to(dtype),
        LinearNormal(torch.zeros(ROWS, UNITS, dtype=dtype), p.weight.to(dtype), p.scale.to(dtype)),
    )
    q = dist.Bernoulli(probs).to_event(1)
    found = expected_log_prob(dist.Delta(x, event_dim=1), p, {"causes": q})
    by_state = LinearNormal(states.unsqueeze(1).expand(-1, ROWS, -1), p.weight, p.scale).log_prob(x)
    weights = dist.Bernoulli(probs).to_event(1).log_prob(states.unsqueeze(1)).exp()
    assert found.dtype == dtype
    assert found.numpy() == pytest.approx((weights * by_state).sum(0).numpy(), rel=2e-5)


def test_causes_that_depend_on_each_other_are_refused():
    x, p = program(torch.zeros(ROWS, UNITS))
    q = dist.MultivariateNormal(torch.zeros(ROWS, UNITS), torch.eye(UNITS))
    with pytest.raises(NotImplementedError, match=r"causes: no closed form .* MultivariateNormal"):
        expected_log_prob(dist.Delta(x, event_dim=1), p, {"causes": q})
