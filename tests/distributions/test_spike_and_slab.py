import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.distributions import Bernoulli, Normal, kl_divergence
from torch.testing import assert_close

from pyro_fmvae.distributions import Concrete, SpikeAndSlab, StraightThrough

# γ, μ, σ of q and p.
PAIRS = [
    ((0.3, 0.7, math.sqrt(0.4)), (0.1, -0.2, math.sqrt(1.5))),
    ((0.5, 0.0, 1.0), (0.5, 0.0, 1.0)),
    ((0.9, -2.0, 0.3), (0.6, -1.5, 0.5)),
    ((0.05, 1.0, 2.0), (0.8, 0.0, 1.0)),
]
NEARLY_CERTAIN = [
    ((1e-7, 0.4, 0.5), (0.2, 0.0, 1.0)),
    ((1 - 1e-7, 0.4, 0.5), (0.2, 0.0, 1.0)),
    ((0.3, 0.4, 0.5), (1e-9, 0.0, 1.0)),
    ((0.3, 0.4, 0.5), (1 - 1e-9, 0.0, 1.0)),
    ((1e-9, 0.4, 0.5), (1 - 1e-9, 0.0, 1.0)),
]


def spike_and_slab(gamma, loc, scale, **kwargs):
    return SpikeAndSlab(loc, scale, torch.tensor(gamma).logit(), **kwargs)


def integral(f, loc, scale):
    """∫ f(z) dz by the trapezoid rule, as far as 12 scales from loc."""
    z = torch.linspace(loc - 12 * scale, loc + 12 * scale, 40_002)  # an even number: 0 is not among them
    return torch.trapezoid(f(z), z)


def expectation(q, f):
    """E_q[f(z)]: a quadrature for the slab, and the mass at 0."""
    slab = integral(lambda z: q.log_prob(z).exp() * f(z), q.loc.item(), q.scale.item())
    zero = torch.tensor(0.0)
    return slab + q.log_prob(zero).exp() * f(zero)


@pytest.mark.parametrize("parameters", [q for q, _ in PAIRS + NEARLY_CERTAIN])
def test_mass_is_one(parameters):
    q = spike_and_slab(*parameters)
    assert expectation(q, torch.ones_like).item() == pytest.approx(1.0, abs=1e-9)


def test_log_prob_is_that_of_its_parts():
    q = spike_and_slab(0.3, 0.7, 0.5)
    assert q.log_prob(torch.tensor(0.0)).item() == pytest.approx(math.log(0.7))
    value = torch.tensor([-1.0, 1e-300, 2.0])
    assert_close(q.log_prob(value), math.log(0.3) + Normal(0.7, 0.5).log_prob(value))


@pytest.mark.parametrize("parameters", [q for q, _ in PAIRS])
def test_moments_and_entropy_are_integrals(parameters):
    q = spike_and_slab(*parameters)
    mean = expectation(q, lambda z: z)
    assert_close(q.mean, mean)
    assert_close(q.variance, expectation(q, lambda z: (z - mean) ** 2))
    assert_close(q.entropy(), expectation(q, lambda z: -q.log_prob(z)))


def test_draws(assert_mean, device):
    q = SpikeAndSlab(*(torch.tensor(t, device=device) for t in ([0.7, -2.0], [0.5, 1.5], [-1.0, 2.0])))
    z = q.sample((50_000,))
    assert_mean((z != 0).double(), q.probs)
    assert_mean(z, q.mean)
    assert_mean((z - q.mean) ** 2, q.variance)


@pytest.mark.parametrize(("q", "p"), PAIRS)
def test_kl_is_its_monte_carlo_estimate(q, p, assert_mean):
    q, p = spike_and_slab(*q), spike_and_slab(*p)
    z = q.sample((200_000,))
    assert_mean(q.log_prob(z) - p.log_prob(z), kl_divergence(q, p))


@pytest.mark.parametrize(("q", "p"), PAIRS + NEARLY_CERTAIN)
def test_kl_is_an_integral(q, p):
    q, p = spike_and_slab(*q), spike_and_slab(*p)
    expected = expectation(q, lambda z: q.log_prob(z) - p.log_prob(z))
    assert kl_divergence(q, p).item() == pytest.approx(expected.item(), rel=1e-8, abs=1e-12)


def test_kl_of_the_specification():
    q, p = (spike_and_slab(*parameters) for parameters in PAIRS[0])
    assert kl_divergence(q, p).item() == pytest.approx(0.3229, abs=5e-5)


def test_kl_of_certain_slabs_is_that_of_normals_and_of_equal_slabs_that_of_spikes():
    sure = SpikeAndSlab(0.3, 0.5, 600.0), SpikeAndSlab(-1.0, 2.0, 600.0)
    assert_close(kl_divergence(*sure), kl_divergence(Normal(0.3, 0.5), Normal(-1.0, 2.0)))
    spikes = SpikeAndSlab(0.3, 0.5, -1.0), SpikeAndSlab(0.3, 0.5, 2.0)
    bernoulli = [Bernoulli(logits=torch.tensor(t)) for t in (-1.0, 2.0)]
    assert_close(kl_divergence(*spikes), kl_divergence(*bernoulli))


@pytest.mark.parametrize("near", [-60.0, -20.0, 0.0, 20.0, 60.0])
@pytest.mark.parametrize("far", [-60.0, 0.0, 60.0])
def test_float32_follows_float64(near, far):
    values, grads = [], []
    for dtype in (torch.float64, torch.float32):
        q_logits, p_logits = (torch.tensor(t, dtype=dtype, requires_grad=True) for t in (near, far))
        one = torch.ones((), dtype=dtype)
        q, p = SpikeAndSlab(0.3 * one, 0.5 * one, q_logits), SpikeAndSlab(0 * one, one, p_logits)
        kl = kl_divergence(q, p)
        values.append(kl.double())
        grads.append(torch.stack(torch.autograd.grad(kl, (q_logits, p_logits))).double())
    assert torch.stack(grads).isfinite().all()
    rounding = 60 * torch.finfo(torch.float32).eps  # of sums of terms as large as the logits
    assert_close(values[1], values[0], rtol=1e-6, atol=rounding)
    assert_close(grads[1], grads[0], rtol=1e-6, atol=rounding)


def test_gradients_of_kl_are_finite_differences(finite_differences):
    parameters = torch.tensor([0.7, 0.6, -0.8, -0.2, 1.2, 0.5])

    def kl(t):
        return kl_divergence(SpikeAndSlab(t[0], t[1], t[2]), SpikeAndSlab(t[3], t[4], t[5]))

    leaf = parameters.clone().requires_grad_()
    (grad,) = torch.autograd.grad(kl(leaf), leaf)
    assert_close(grad, finite_differences(kl, parameters), rtol=1e-7, atol=1e-8)


def test_shapes_broadcast_and_expand():
    draws = Concrete()
    q = SpikeAndSlab(torch.randn(4, 3), 0.5, torch.randn(3), draws=draws)
    assert q.batch_shape == (4, 3) and q.logits.shape == (4, 3)
    wide = q.expand((2, 4, 3))
    assert wide.batch_shape == (2, 4, 3) and wide.draws is draws
    value = torch.randn(5, 2, 4, 3)
    assert_close(wide.log_prob(value), q.log_prob(value))
    assert wide.rsample((5,)).shape == wide.sample((5,)).shape == (5, 2, 4, 3)
    assert wide.to_event(2).log_prob(value).shape == (5, 2)
    p = SpikeAndSlab(0.0, 1.0, torch.zeros(3))
    kl = kl_divergence(q.to_event(1), p.expand((4, 3)).to_event(1))
    assert_close(kl, kl_divergence(q, p).sum(-1))


def test_in_a_program():
    q = SpikeAndSlab(torch.randn(3), 0.5, torch.randn(3)).to_event(1)

    def model():
        with pyro.plate("data", 4):
            return pyro.sample("z", q)

    site = poutine.trace(model).get_trace().nodes["z"]
    assert site["value"].shape == (4, 3)
    assert_close(site["fn"].log_prob(site["value"]), q.log_prob(site["value"]))


def test_draws_without_a_relaxation_move_slabs_only():
    """z = on·(μ + σε): where it is on, dz/dμ = 1 and dz/dσ = (z - μ)/σ."""
    loc, scale = torch.randn(30, requires_grad=True), (0.5 + torch.rand(30)).requires_grad_()
    z = SpikeAndSlab(loc, scale, torch.zeros(30)).rsample()
    on = (z != 0).double()
    assert 0 < on.sum() < 30
    to_loc, to_scale = torch.autograd.grad(z.sum(), (loc, scale))
    assert_close(to_loc, on)
    assert_close(to_scale, on * ((z - loc) / scale).detach())


def test_draws_without_a_relaxation_refuse_logits_that_are_learnt():
    logits = torch.zeros(3, requires_grad=True)
    q = SpikeAndSlab(torch.zeros(3), 1.0, logits)
    message = r"^draws: expected a ShiftedSigmoid, Concrete or StraightThrough, because the logits require"
    for fn in (q, q.expand((2, 3)), q.to_event(1)):
        with pytest.raises(ValueError, match=message):
            fn.rsample()
    with torch.no_grad():
        assert q.rsample().shape == (3,)
    assert not SpikeAndSlab(logits, 1.0, logits).sample().requires_grad
    assert SpikeAndSlab(torch.zeros(3), 1.0, logits, draws=StraightThrough()).rsample().requires_grad


@pytest.mark.parametrize(("scale", "value"), [(-1.0, 0.0), (1.0, math.nan)])
def test_validates(scale, value):
    with pytest.raises(ValueError):
        SpikeAndSlab(0.0, scale, 0.0, validate_args=True).log_prob(torch.tensor(value))


def test_kl_from_another_family_is_unknown():
    with pytest.raises(NotImplementedError):
        kl_divergence(SpikeAndSlab(0.0, 1.0, 0.0), dist.Normal(0.0, 1.0))
