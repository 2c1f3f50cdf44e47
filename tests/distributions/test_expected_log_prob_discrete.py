"""E[log p] of assignments and labels."""

import pyro.distributions as dist
import pytest
import torch
from torch.distributions import kl_divergence

from pyro_fmvae.distributions import Assignment, Label, NaturalDirichlet, NaturalParameter, expected_log_prob

I, K, B = 2, 4, 5  # noqa: E741


def test_weights_under_a_dirichlet(assert_mean):
    c = torch.tensor([[0.7, 2.0, 4.0], [3.0, 1.0, 1.5]]).unsqueeze(1)
    draws = dist.Dirichlet(c).sample((50_000,)).log()
    p = Assignment(torch.full((2, 1, 3), torch.nan)).expand(torch.Size((2, B)))
    natural = NaturalParameter(c)
    posteriors = [
        NaturalDirichlet(natural),
        NaturalDirichlet(natural).expand(torch.Size((2, 1))),
        dist.Dirichlet(c),
        torch.distributions.Dirichlet(c),
    ]
    tables = [expected_log_prob(p, p, {"weights": posterior}) for posterior in posteriors]
    for table in tables:
        assert table.shape == (2, 1, 3)
        assert_mean(draws, table)
    other = dist.Categorical(torch.full((2, B, 3), 1 / 3))
    torch.testing.assert_close(expected_log_prob(other, p, {"weights": posteriors[0]}), tables[0])
    weight = torch.rand(2, 1, 3)
    (weight * tables[0]).sum().backward()
    torch.testing.assert_close(natural.grad, weight)  # expected counts: the natural gradient of equation 14


def test_weights_at_a_point():
    pi = dist.Dirichlet(torch.ones(I, 1, K)).sample()
    p = Assignment(pi)
    for posterior in (dist.Delta(pi, event_dim=1), dist.Delta(pi).to_event(1)):
        torch.testing.assert_close(expected_log_prob(p, p, {"weights": posterior}), pi.log())


def test_one_step_of_rate_1_is_equation_14():
    natural, gamma = NaturalParameter(1 + 5 * torch.rand(I, 1, K)), torch.randn(I, B, K).softmax(-1)
    p = Assignment(torch.full((I, 1, K), torch.nan)).expand(torch.Size((I, B)))
    posterior = NaturalDirichlet(natural)
    loss = kl_divergence(posterior, dist.Dirichlet(torch.full((K,), 0.7))).sum()
    loss = loss - (gamma * expected_log_prob(p, p, {"weights": posterior})).sum()
    loss.backward()
    torch.testing.assert_close((natural - natural.grad).detach(), 0.7 + gamma.sum(1, keepdim=True))


def test_label():
    labels = torch.tensor([[0, -1, 2], [1, 1, -1]])
    assignment = Assignment(torch.full((I, 1, 3), torch.nan)).expand(torch.Size((I, 3)))
    p = Label(torch.zeros(I, 3).long())
    table = expected_log_prob(dist.Delta(labels), p, {"assignment": assignment})
    assert table.shape == (I, 3, 3)
    for k in range(3):
        expected = Label(torch.full((I, 3), k)).log_prob(labels)
        assert torch.equal(table[..., k], expected)


@pytest.mark.parametrize("label", [3, -2])
def test_label_out_of_range(label):
    labels, assignment = torch.tensor([0, label]), Assignment(torch.ones(3) / 3)
    with pytest.raises(ValueError, match=r"label: expected -1 \(unknown\) or a component from 0 to 2"):
        expected_log_prob(dist.Delta(labels), Label(labels), {"assignment": assignment})
    expected_log_prob(dist.Delta(labels), Label(labels, validate_args=False), {"assignment": assignment})
