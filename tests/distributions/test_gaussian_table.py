"""What the table of equation 6 costs and how many digits it keeps; its values: test_expected_log_prob."""

import math

import pyro.distributions as dist
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyro_fmvae.distributions import NORMAL_GAMMA, Component, NaturalParameter, NormalGamma, expected_log_prob
from pyro_fmvae.distributions.normal_gamma import gaussian_table

I, K, B, D = 2, 16, 32, 64  # noqa: E741


def reference(mean, variance, standard):
    """Equation 6 by broadcasting in float64: no expanded square, so nothing cancels."""
    m, s, a, b = standard
    a_d = a.unsqueeze(-1)
    shared = D * (a.digamma() - math.log(2 * math.pi) - 1 / s) - b.log().sum(-1)
    gap = (mean.double().unsqueeze(-2) - m.unsqueeze(-3)) ** 2 + variance.double().unsqueeze(-2)
    return 0.5 * (shared.unsqueeze(-2) - ((a_d / b).unsqueeze(-3) * gap).sum(-1))


def problem(precision=1.0, shift=0.0, unused=0, device="cpu"):
    """Components with data near them; the last ``unused`` of each factor still at the prior."""
    spread = precision**-0.5
    m = spread * torch.randn(I, K, D) + shift
    s, a = torch.full((I, K), 50.0), torch.full((I, K), 25.0)
    b = a.unsqueeze(-1) / precision * (0.5 + torch.rand(I, K, D))
    for parameter, value in ((m, 0.0), (s, 1.0), (a, 0.01), (b, 0.01)):
        parameter[:, K - unused :] = value
    mean = spread * torch.randn(I, B, D) + shift
    variance = spread**2 * (0.1 + torch.rand(I, B, D))
    standard = [t.to(device) for t in (m, s, a, b)]
    natural = NaturalParameter(NORMAL_GAMMA.natural(*standard))
    return mean.to(device, torch.float32), variance.to(device, torch.float32), standard, natural


def table_and_gradients(mean, variance, natural, weight):
    mean = mean.clone().requires_grad_()
    natural.grad = None
    table = gaussian_table(mean, variance, NORMAL_GAMMA.expected_stats(natural))
    (weight * table).sum().backward()
    return table.detach(), mean.grad, natural.grad.clone()


@pytest.mark.parametrize("precision", [1.0, 1000.0])
@pytest.mark.parametrize("shift", [0.0, 5.0, 100.0])
@pytest.mark.parametrize("unused", [0, K // 2])
def test_float32_keeps_its_digits(precision, shift, unused, device):
    """The error is float32's rounding of a few sums of 2D terms: of the entry itself, of what a well-fitted
    entry has (5 nats a dimension), and of a/b (m - c)² at the distance from the components' centre c."""
    mean, variance, standard, natural = problem(precision, shift, unused, device)
    table = gaussian_table(mean, variance, NORMAL_GAMMA.mean_stats(natural).detach())
    assert table.dtype == torch.float32
    expected = reference(mean, variance, standard)
    m, _, a, b = standard
    weight = a.unsqueeze(-1) / b
    centre = (weight * m).sum(-2, keepdim=True) / weight.sum(-2, keepdim=True)
    distance = (weight * (m - centre) ** 2).sum(-1).unsqueeze(-2)
    bound = 4 * torch.finfo(torch.float32).eps * (expected.abs() + 5 * D + distance)
    error = (table.double() - expected).abs()
    assert (error <= bound).all()
    if precision > 1 or unused == 0:
        assert error[..., : K - unused].max() < 2e-3  # nats; about the origin it is 0.8 to 3


@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_float32_gradients_keep_their_digits(shift):
    mean, variance, standard, natural = problem(1000.0, shift, K // 2)
    weight = torch.randn(I, B, K).softmax(-1)
    _, gradient, step = table_and_gradients(mean, variance, natural, weight.float())
    exact = mean.double().requires_grad_()
    (weight * reference(exact, variance, standard)).sum().backward()
    torch.testing.assert_close(
        gradient.double(), exact.grad, rtol=1e-4, atol=1e-4 * exact.grad.abs().max().item()
    )
    # The step leads to λ* = λ₀ + Σ γ t: b is what is left of terms 1e4 times larger.
    prior = NORMAL_GAMMA.natural(
        torch.zeros(D), torch.tensor(1e-3), torch.tensor(0.5), torch.full((D,), 1e-3)
    )
    double = table_and_gradients(mean.double(), variance.double(), natural, weight.float().double())[2]
    got, expected = (NORMAL_GAMMA.unpack(prior + g) for g in (step, double))
    for name, one, other in zip("msab", got, expected, strict=True):
        torch.testing.assert_close(
            one, other, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("ratio", [100, 1000, 10_000])
def test_tight_clusters_far_apart_keep_their_spread_in_float32(ratio, device):
    """λ* = λ₀ + Σ γ t of clusters at ±1, 1 / ``ratio`` wide: b is what is left of terms ratio² times larger.

    Float32 rounds γ, each by eps at most, which changes a weighted mean square by 2 eps at most. What float64
    does to the sums is eps ratio², a tenth of that at most.
    """
    count, dim = 20_000, 2
    side = torch.tensor([1.0, -1.0]).repeat_interleave(count // 2)
    points = side.unsqueeze(-1) + torch.randn(count, dim) / ratio
    points = points.to(device, torch.float32)
    standard = torch.tensor([[1.0], [-1.0]]).expand(2, dim), *torch.full((2, 2), 0.5 * count)
    rate = torch.full((2, dim), 0.5 * count / ratio**2)
    natural = NaturalParameter(NORMAL_GAMMA.natural(*standard, rate).to(device))
    spread = []
    for dtype in (torch.float32, torch.float64):
        data = points.to(dtype)
        with torch.no_grad():
            table = gaussian_table(data, torch.zeros_like(data), NORMAL_GAMMA.mean_stats(natural))
        gamma = table.softmax(-1)
        step = table_and_gradients(data, torch.zeros_like(data), natural, gamma)[2]
        s, b = -2 * step[:, 1], NORMAL_GAMMA.unpack(step)[-1]
        spread.append((2 * b / s.unsqueeze(-1)).sqrt())
    torch.testing.assert_close(*spread, rtol=2 * torch.finfo(torch.float32).eps, atol=0)


def test_standard_and_point_posteriors_keep_their_digits_too():
    mean, variance, standard, _ = problem(1000.0, 100.0)
    standard = [t.float() for t in standard]
    exact = [t.double() for t in standard]
    p = Component(torch.full((I, K, 2, D), torch.nan), torch.zeros(I, B).long())
    q = dist.Normal(mean, variance.sqrt()).to_event(1)
    table = expected_log_prob(q, p, {"loc_precision": NormalGamma(*standard)})
    assert (table - reference(mean, q.variance, exact)).abs().max() < 2e-3
    m, _, a, b = standard
    point = torch.stack([m, a.unsqueeze(-1) / b], -2)
    table = expected_log_prob(q, p, {"loc_precision": dist.Delta(point, event_dim=2)})
    loc, precision = point.double().unsqueeze(-4).unbind(-2)
    gap = (mean.double().unsqueeze(-2) - loc) ** 2 + q.variance.double().unsqueeze(-2)
    expected = 0.5 * (precision.log() - math.log(2 * math.pi) - precision * gap).sum(-1)
    assert (table - expected).abs().max() < 2e-3


def test_autocast_changes_nothing(device):
    mean, variance, _, natural = problem(1000.0, 100.0, device=device)
    weight = torch.rand(I, B, K, dtype=torch.float32, device=device)
    plain = table_and_gradients(mean, variance, natural, weight)
    with torch.autocast(device, torch.bfloat16):
        inside = table_and_gradients(mean, variance, natural, weight)
    for a, b in zip(plain, inside, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def test_network_outputs_in_half_precision():
    mean, variance, _, natural = problem()
    half = gaussian_table(mean.bfloat16(), variance.bfloat16(), NORMAL_GAMMA.mean_stats(natural).detach())
    assert half.dtype == torch.float32
    mean = mean.bfloat16().requires_grad_()
    gaussian_table(mean, variance.bfloat16(), NORMAL_GAMMA.mean_stats(natural).detach()).sum().backward()
    assert mean.grad.dtype == torch.bfloat16


def test_only_what_is_asked_for_is_differentiated():
    mean, variance, _, natural = problem()
    stats = NORMAL_GAMMA.mean_stats(natural).detach()
    leaves = [mean, variance, stats]
    for leaf in leaves:
        leaf.requires_grad_()
        gaussian_table(*leaves).sin().sum().backward()
        got, leaf.grad = leaf.grad, None
        assert all(other.grad is None for other in leaves)
        leaf.requires_grad_(False)
        assert got.shape == leaf.shape and got.abs().max() > 0


def test_broadcasting_backwards():
    """Shared means, variances or statistics receive the sum over what they were shared by."""
    mean, variance, _, natural = problem()
    shared = [mean[:1].double(), variance[0, :1].double(), NORMAL_GAMMA.mean_stats(natural)[:1].detach()]
    leaves = [t.clone().requires_grad_() for t in shared]
    full = [
        t.clone().requires_grad_() for t in (shared[0], shared[1].expand(B, D), shared[2].expand(I, -1, -1))
    ]
    for tensors in (leaves, full):
        gaussian_table(*tensors).sin().sum(-1).mean(0).sum().backward()
    torch.testing.assert_close(leaves[0].grad, full[0].grad)
    torch.testing.assert_close(leaves[1].grad, full[1].grad.sum(0, keepdim=True))
    torch.testing.assert_close(leaves[2].grad, full[2].grad.sum(0, keepdim=True))


def test_gradients_by_finite_differences():
    make = torch.rand(2, 3, 2), torch.rand(2, 3, 2), torch.randn(2, 4, 6).abs()
    assert torch.autograd.gradcheck(gaussian_table, [t.requires_grad_() for t in make])


class Recorder(TorchDispatchMode):
    """Records the largest tensor that any operation makes, and the types of matrix products."""

    def __init__(self):
        super().__init__()
        self.largest, self.products = 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
                if "mm" in func.__name__:
                    self.products.add(tensor.dtype)
        return result


@pytest.fixture
def matmul_precision():
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_float64_products_where_float32_may_be_rounded(precision, matmul_precision):
    mean, variance, standard, natural = problem(1000.0, 100.0)
    weight = torch.rand(I, B, K)
    matmul_precision(precision)
    with Recorder() as recorder:
        table, *_ = table_and_gradients(mean, variance, natural, weight)
    assert recorder.products == {torch.float64}
    assert table.dtype == torch.float64
    # b itself is known to eps · s m² / b = 4e-9 only, out of λ.
    torch.testing.assert_close(table, reference(mean, variance, standard), rtol=1e-8, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_large_tensor_forwards_or_backwards(dtype):
    mean, variance, _, natural = problem()
    weight = torch.rand(I, B, K, dtype=dtype)
    with Recorder() as recorder:
        table_and_gradients(mean.to(dtype), variance.to(dtype), natural, weight)
    assert torch.float32 in recorder.products or dtype == torch.float64
    assert recorder.largest == I * max(B * 2 * D, K * (2 * D + 2), B * K)
    with Recorder() as recorder:
        reference(mean, variance, NORMAL_GAMMA.unpack(natural))
    assert recorder.largest == I * B * K * D  # the recorder sees what there is
