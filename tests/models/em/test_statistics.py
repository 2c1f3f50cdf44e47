from functools import partial

import pytest
import torch

from pyro_fmvae.distributions import NORMAL_GAMMA, NaturalParameter
from pyro_fmvae.distributions.exponential_family import blend
from pyro_fmvae.infer import NaturalGradient
from pyro_fmvae.models.em.statistics import Statistics


def of(rows):
    return Statistics({"sum": rows.sum(0), "squares": rows.T @ rows}, float(len(rows)))


def same(found, expected):
    assert found.count == expected.count
    for name, value in expected.values.items():
        assert found.values[name].numpy() == pytest.approx(value.numpy(), rel=1e-12)


def test_statistics_of_parts_add_up():
    rows = torch.randn(10, 3)
    same(of(rows[:4]) + of(rows[4:]), of(rows))


def test_scaled_as_if_there_were_more_such_points():
    rows = torch.randn(5, 3)
    same(of(rows).scaled(15.0), of(rows.repeat(3, 1)))


def test_blending_all_data_at_rate_one_is_full_batch():
    old, rows = torch.randn(8, 3), torch.randn(8, 3)
    blended = of(old).blend(of(rows), 1.0)
    assert all(torch.equal(blended.values[name], value) for name, value in of(rows).values.items())


def test_blending_a_batch():
    old, rows = of(torch.randn(8, 3)), of(torch.randn(2, 3))
    blended = old.blend(rows, 0.25)
    assert blended.count == 8
    for name, value in blended.values.items():
        expected = 0.75 * old.values[name] + 0.25 * 4 * rows.values[name]
        assert value.numpy() == pytest.approx(expected.numpy(), rel=1e-12)


def test_a_natural_gradient_step_is_the_same_rule():
    """λ blends to prior + N/B · statistics just as statistics blend to N/B · statistics."""
    prior = NORMAL_GAMMA.natural(
        torch.zeros(2), torch.tensor(1.0), torch.tensor(2.0), torch.tensor([1.0, 3.0])
    )
    start, batch = prior + 10 * torch.rand(()), prior * torch.rand(())
    parameter = NaturalParameter(start.clone())
    parameter.grad = start - (prior + batch)  # what the ELBO leaves: λ - λ*
    NaturalGradient(0.3, partial(torch.optim.SGD, lr=0.1))([parameter])
    expected = prior + blend(start - prior, batch, 0.3)
    assert parameter.detach().numpy() == pytest.approx(expected.numpy(), rel=1e-12)


@pytest.mark.parametrize("rate", [0.0, 1.5, -1.0])
def test_rates_out_of_range(rate):
    rows = of(torch.randn(2, 3))
    with pytest.raises(ValueError, match=r"rate: expected a step size in \(0, 1\]"):
        rows.blend(rows, rate)


def test_statistics_of_another_model():
    rows = of(torch.randn(2, 3))
    with pytest.raises(ValueError, match="statistics: expected squares, sum, got sum"):
        rows.blend(Statistics({"sum": rows.values["sum"]}, 2.0), 0.5)
    with pytest.raises(ValueError, match="statistics: expected squares, sum, got sum"):
        rows + Statistics({"sum": rows.values["sum"]}, 2.0)
