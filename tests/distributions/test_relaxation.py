import pytest
import torch
from torch.testing import assert_close

from pyro_fmvae.distributions import Concrete, ShiftedSigmoid, SpikeAndSlab, StraightThrough
from pyro_fmvae.distributions.relaxation import hard_spikes

DRAWS = [ShiftedSigmoid, Concrete, StraightThrough]


def grid(n=1_000_000):
    """Midpoints of n equal parts of (0, 1): means over them are integrals."""
    return (torch.arange(n) + 0.5) / n


def logit(probs):
    return torch.as_tensor(probs).logit()


@pytest.mark.parametrize("gamma", [0.0, 0.01, 0.3, 0.999])
def test_hard_spikes_are_on_with_their_probability(gamma):
    spikes = hard_spikes(logit(gamma), grid())
    assert set(spikes.unique().tolist()) <= {0.0, 1.0}
    assert spikes.mean().item() == pytest.approx(gamma, abs=1.1e-6)


@pytest.mark.parametrize("gamma", [1e-4, 0.01, 0.5, 0.97])
@pytest.mark.parametrize("slope", [1.0, 50.0, 200.0])
def test_mean_and_gradient_of_the_shifted_sigmoid(gamma, slope):
    """E[σ(c(η - 1 + γ))] = log[(1 + e^{cγ}) / (1 + e^{c(γ-1)})] / c, and its derivative in γ."""
    probs = torch.tensor(gamma, requires_grad=True)
    mean = ShiftedSigmoid(slope).spikes(probs.logit(), grid()).mean()
    up, down = (torch.tensor(slope * t) for t in (gamma, gamma - 1))
    expected = (torch.nn.functional.softplus(up) - torch.nn.functional.softplus(down)) / slope
    assert mean.item() == pytest.approx(expected.item(), rel=1e-6)
    (slope_of_mean,) = torch.autograd.grad(mean, probs)
    assert slope_of_mean.item() == pytest.approx((up.sigmoid() - down.sigmoid()).item(), rel=1e-6)


@pytest.mark.parametrize(("slope", "mean"), [(50.0, 0.0195), (100.0, 0.0131), (200.0, 0.0106)])
def test_leak_of_the_shifted_sigmoid(slope, mean):
    spikes = ShiftedSigmoid(slope).spikes(logit(0.01), grid())
    assert spikes.mean().item() == pytest.approx(mean, abs=5e-5)


@pytest.mark.parametrize("gamma", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_distribution_of_concrete_spikes(gamma, temperature):
    """P(T > t) = σ(logit γ - τ logit t)."""
    spikes = Concrete(temperature).spikes(logit(gamma), grid())
    for t in (0.1, 0.5, 0.8):
        expected = torch.sigmoid(logit(gamma) - temperature * logit(t))
        assert (spikes > t).double().mean().item() == pytest.approx(expected.item(), abs=2e-6)


def some_noise(*shape):
    return torch.randn(*shape), torch.rand(*shape)


@pytest.mark.parametrize("make", [lambda: ShiftedSigmoid(5.0), Concrete])
@pytest.mark.parametrize("warm_up", [0.3, 1.0])
def test_gradients_of_draws_are_finite_differences(make, warm_up, finite_differences):
    draws, noise = make(), some_noise(6)
    draws.warm_up.fill_(warm_up)
    parameters = [torch.randn(6), 0.5 + torch.rand(6), torch.randn(6)]
    for place in range(3):

        def value(t, place=place):
            return draws(*parameters[:place], t, *parameters[place + 1 :], *noise).square().sum()

        leaf = parameters[place].clone().requires_grad_()
        (grad,) = torch.autograd.grad(value(leaf), leaf)
        assert_close(grad, finite_differences(value, leaf), rtol=1e-6, atol=1e-6)
        assert grad.count_nonzero() == 6


def test_straight_through_is_hard_with_the_gradient_of_concrete():
    logits, noise = torch.randn(50, requires_grad=True), some_noise(50)
    slabs = torch.randn(50), torch.ones(50)
    hard, relaxed = (draws(*slabs, logits, *noise) for draws in (StraightThrough(0.7), Concrete(0.7)))
    assert_close(hard, hard_spikes(logits, noise[1]) * (slabs[0] + noise[0]))
    weights = torch.randn(50)
    grads = [torch.autograd.grad((weights * z).sum(), logits)[0] for z in (hard, relaxed)]
    assert_close(*grads)
    assert grads[0].count_nonzero() == 50


def test_straight_through_draws_what_exact_draws_are():
    q = torch.randn(40), 0.5 + torch.rand(40), torch.randn(40)
    torch.manual_seed(4)
    exact = SpikeAndSlab(*q).sample((3,))
    torch.manual_seed(4)
    drawn = SpikeAndSlab(*q, draws=StraightThrough()).rsample((3,))
    assert_close(drawn, exact)
    assert 0 < (exact == 0).sum() < 120


@pytest.mark.parametrize("make", DRAWS)
def test_cold_slabs_tell_nothing(make):
    draws, noise = make(), some_noise(30)
    draws.warm_up.fill_(0.0)
    parameters = [torch.randn(30), 0.5 + torch.rand(30), torch.randn(30)]
    for t in parameters:
        t.requires_grad_()
    z = draws(*parameters, *noise)
    assert_close(z, draws(torch.zeros(30), torch.ones(30), parameters[2], *noise))
    loc, scale, logits = torch.autograd.grad(z.sum(), parameters)
    assert loc.abs().sum() == scale.abs().sum() == 0
    assert logits.count_nonzero() == 30


def test_warm_up_scales_mean_and_log_variance():
    draws, (normal, uniform) = StraightThrough(), some_noise(30)
    loc, variance = torch.randn(30), 0.1 + torch.rand(30)
    for warm_up in (0.25, 1.0):
        draws.warm_up.fill_(warm_up)
        z = draws(loc, variance.sqrt(), torch.full((30,), 50.0), normal, uniform)
        assert_close(z, warm_up * loc + (0.5 * warm_up * variance.log()).exp() * normal)


def test_sharpening_moves_the_slope_linearly():
    draws = ShiftedSigmoid(50.0, 200.0)
    before = draws.slope
    for fraction, slope in ((0.0, 50.0), (0.5, 125.0), (1.0, 200.0), (1.5, 200.0)):
        draws.sharpen(fraction)
        assert draws.slope.item() == slope
    assert draws.slope is before
    concrete = Concrete(0.5)
    concrete.sharpen(0.5)
    assert concrete.temperature.item() == 0.5


@pytest.mark.parametrize("make", DRAWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_are_finite(make, dtype):
    """The smallest and the largest η that torch.rand gives, at spikes that are as good as certain."""
    eps = torch.finfo(dtype).eps / 2
    uniform = torch.tensor([0.0, eps, 0.5, 1 - eps], dtype=dtype).repeat(4)
    logits = torch.tensor([-90.0, -20.0, 20.0, 90.0], dtype=dtype).repeat_interleave(4).requires_grad_()
    draws = make().to(dtype)
    z = draws(torch.ones_like(uniform), torch.ones_like(uniform), logits, torch.zeros_like(uniform), uniform)
    (grad,) = torch.autograd.grad(z.sum(), logits)
    assert z.dtype == dtype
    assert z.isfinite().all() and grad.isfinite().all()
    halfway = z.view(4, 4)[:, 2]
    assert_close(halfway, torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=dtype), rtol=0, atol=1e-4)


def test_nothing_is_saved():
    assert all(not make().state_dict() for make in DRAWS)


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (ShiftedSigmoid, "slope"),
        (lambda value: ShiftedSigmoid(final_slope=value), "final_slope"),
        (Concrete, "temperature"),
        (StraightThrough, "temperature"),
    ],
)
def test_refuses(make, name, value):
    with pytest.raises(ValueError, match=rf"^{name}: expected a number > 0, got {value}"):
        make(value)
