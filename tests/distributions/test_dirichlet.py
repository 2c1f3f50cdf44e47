import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.distributions import kl_divergence

from pyro_fmvae.distributions import DIRICHLET, NaturalDirichlet, NaturalParameter

C = [[0.5, 2.0, 4.0], [3.1, 1.0, 1.5]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_a_dirichlet_in_its_own_dtype(dtype, device, assert_mean):
    natural = torch.tensor(C, device=device)
    q, reference = NaturalDirichlet(natural, dtype=dtype), dist.Dirichlet(natural)
    draws = q.sample((20_000,))
    assert draws.dtype == dtype and draws.shape == (20_000, 2, 3)
    assert_mean(draws.double(), reference.mean)
    assert q.log_prob(draws).dtype == dtype
    inside = reference.sample((10,))
    rtol = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(
        q.log_prob(inside.to(dtype)).double(), reference.log_prob(inside), rtol=rtol, atol=rtol
    )


def test_default_dtype():
    assert NaturalDirichlet(torch.tensor(C)).sample().dtype == torch.float64
    natural = NaturalParameter(torch.tensor(C))
    torch.set_default_dtype(torch.float32)
    assert NaturalDirichlet(natural).sample().dtype == torch.float32


def test_expand_keeps_identity():
    natural = NaturalParameter(torch.tensor(C).unsqueeze(1))
    q = NaturalDirichlet(natural, dtype=torch.float32).expand(torch.Size((5, 2, 1)))
    assert q.natural is natural
    assert q.dtype == torch.float32
    assert (q.batch_shape, q.event_shape) == ((5, 2, 1), (3,))
    assert q.sample().shape == (5, 2, 1, 3)


def test_identity_inside_plates():
    natural = NaturalParameter(torch.tensor(C).unsqueeze(1))

    def guide():
        with pyro.plate("factors", 2, dim=-2):
            pyro.sample("weights", NaturalDirichlet(natural))

    assert poutine.trace(guide).get_trace().nodes["weights"]["fn"].natural is natural


def test_gradient_of_draws_is_natural(finite_differences):
    """E[w·π] = w·c/Σc, whose ordinary gradient is known; the draws' gradients average to its natural one."""
    weight, c = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([1.5, 2.0, 4.0])
    natural = c.expand(100_000, 3).clone().requires_grad_()
    (NaturalDirichlet(natural).rsample() * weight).sum().backward()
    fisher = torch.diag(torch.polygamma(1, c)) - torch.polygamma(1, c.sum())
    gradient = finite_differences(lambda x: weight @ x / x.sum(), c)
    error = natural.grad.std(0) / len(natural) ** 0.5
    gap = (natural.grad.mean(0) - torch.linalg.solve(fisher, gradient)).abs()
    assert (gap < 5 * error).all()


@pytest.mark.parametrize("prior_class", [dist.Dirichlet, torch.distributions.Dirichlet])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kl(prior_class, dtype):
    natural = NaturalParameter(torch.tensor(C))
    q = NaturalDirichlet(natural).expand(torch.Size((4, 2)))
    kl = kl_divergence(q, prior_class(torch.ones(3, dtype=dtype)))
    assert kl.shape == (4, 2) and kl.dtype == torch.float64
    reference = kl_divergence(dist.Dirichlet(torch.tensor(C)), dist.Dirichlet(torch.ones(3)))
    torch.testing.assert_close(kl, reference.expand(4, 2))
    kl[0].sum().backward()
    torch.testing.assert_close(natural.grad, torch.tensor(C) - 1)


def test_kl_to_a_natural_prior_keeps_float64():
    q, p = (NaturalDirichlet(torch.tensor(c), dtype=torch.float32) for c in C)
    torch.testing.assert_close(kl_divergence(q, q), torch.zeros(()), rtol=0, atol=1e-12)
    torch.testing.assert_close(kl_divergence(q, p), DIRICHLET.kl(q.natural, p.natural), rtol=0, atol=0)


def test_gradient_scale():
    natural = NaturalParameter(torch.tensor(C))
    q = NaturalDirichlet(natural, dtype=torch.float32).expand(torch.Size((4, 2)))
    scaled = q.with_gradient_scale(0.25)
    assert scaled.batch_shape == (4, 2) and scaled.dtype == torch.float32
    for fn in (q, scaled):
        DIRICHLET.expected_stats(fn.natural).sin().sum().backward()
    statistics = DIRICHLET.mean_stats(natural).detach()
    torch.testing.assert_close(natural.grad, 1.25 * statistics.cos())


def test_errors():
    with pytest.raises(ValueError, match="concentration"):
        NaturalDirichlet(torch.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match="natural: expected float64"):
        NaturalDirichlet(torch.ones(2, dtype=torch.float32))
    NaturalDirichlet(torch.tensor([1.0, -1.0]), validate_args=False)
