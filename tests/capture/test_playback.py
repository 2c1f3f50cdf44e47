"""Recorded programs as they are, and compiled."""

import copy
import shutil
from collections import Counter
from functools import partial

import pyro
import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_fmvae.capture.playback import _keep_apart, _lay_out, _share_exponentials, compiled, plain, resident
from pyro_fmvae.capture.recording import layouts, record
from pyro_fmvae.distributions import BernoulliObservation
from pyro_fmvae.models import VAE
from pyro_fmvae.nn import ConvDecoder, ConvEncoder
from tests.capture.captured import numbers, svi_for
from tests.infer.programs import Toy

needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="torch.compile needs a C++ compiler on a CPU"
)


def noisy(weight):
    def function(x):
        y = weight.digamma().unsqueeze(-1) * x + torch.rand(3)
        weight.mul_(2.0)
        return (y.sum(),)

    return function


def check(replay, tolerance):
    weight, x = torch.tensor([1.0, 2.0]), torch.ones(3)
    by_hand = weight.clone()
    program = replay(record(noisy(weight), [x], [weight]))
    pyro.set_rng_seed(1)
    results = [program(x)[0].clone() for _ in range(3)]
    pyro.set_rng_seed(1)
    expected = [noisy(by_hand)(x)[0] for _ in range(3)]
    assert_close(results, expected, **tolerance)
    assert_close(weight, by_hand, rtol=0, atol=0)
    assert not results[0].requires_grad


def test_plain_replays_bit_by_bit():
    check(plain, {"rtol": 0, "atol": 0})


def test_constants_made_on_the_host_are_copied_to_the_device_once():
    def function(x):
        return (x * torch.ones(3).to(x.device) + torch.tensor([1.0, 2.0, 3.0]).double().to(x),)

    recording = record(function, [torch.empty(3, device="meta")])
    assert any(each.device.type == "cpu" for node in recording.graph.nodes for each in layouts(node))
    recording = resident(recording)
    operations = [node for node in recording.graph.nodes if node.op == "call_function"]
    assert [each.device.type for node in operations for each in layouts(node)] == ["meta"] * 2
    assert [t.device.type for t in recording.state if t.dim()][-2:] == ["meta"] * 2


@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_replays_draw_the_same_numbers_up_to_rounding():
    check(compiled, {"rtol": 1e-13, "atol": 1e-13})


def drops_unused_draws():
    program = compiled(record(lambda x: (torch.rand(2), x + torch.rand(2))[1:], [torch.zeros(2)]))
    pyro.set_rng_seed(0)
    (result,) = program(torch.zeros(2))
    pyro.set_rng_seed(0)
    return torch.equal(result, torch.rand(2))


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("recompute", [False, True])
def test_compiled_steps(recompute):
    """Sums in another order: rounding errors, which forty steps of Adam amplify."""
    if recompute and drops_unused_draws():
        pytest.skip("this torch.compile leaves out random numbers that nothing uses, and draws others")
    toy = Toy()
    x, runs = toy.data(6), []
    for settings in ({"eager": True}, {"compile": True}):
        other = copy.deepcopy(toy)
        svi = svi_for(other, recompute=recompute, **settings)
        pyro.set_rng_seed(2)
        losses = [svi.step(batch) for _ in range(20) for batch in (x, x[:4])]
        runs.append((losses, numbers(other)))
    assert_close(torch.tensor(runs[1][0]), torch.tensor(runs[0][0]), rtol=1e-8, atol=0)
    for name, value in runs[0][1].items():
        assert_close(runs[1][1][name], value, rtol=1e-7, atol=1e-7)


def test_what_is_rewritten_for_the_compiler_computes_the_same():
    torch.manual_seed(0)
    logits, other = torch.randn(5, 4), torch.randn(5, 4)
    logits[0, 1:] = -torch.inf

    def function(x, y):
        weights = y.digamma().float().double()
        return (
            x.softmax(-1),
            (x + 1).log_softmax(0),
            x.log_softmax(-1) * weights,
            x.softmax(0),
            y.log_softmax(-1),
        )

    expected = function(logits, other)
    recording = record(function, [logits, other])
    for rewrite in (_share_exponentials, _keep_apart):
        rewrite(recording.graph)
        assert_close(recording.function()(logits, other), expected, rtol=1e-12, atol=1e-14)
    counts = Counter(str(node.target) for node in recording.graph.nodes)
    assert counts["aten.exp.default"] == 4  # one for x.softmax(-1) and x.log_softmax(-1)
    assert not any("softmax" in name for name in counts)
    assert counts["aten.as_strided.default"] == 4  # digamma, its float32, two inverse sums


@pytest.mark.parametrize(("channels", "laid"), [(1, 1), (3, 0)])
def test_gradients_of_one_channel_are_of_contiguous_images(channels, laid):
    weight = torch.randn(4, channels, 3, 3, requires_grad=True)

    def gradients(x):
        out = torch.nn.functional.conv_transpose2d(x.requires_grad_(), weight)
        return torch.autograd.grad(out.square().sum(), [x, weight])

    x = torch.randn(2, 4, 5, 5).contiguous(memory_format=torch.channels_last)
    recording = record(gradients, [x], [weight])
    _lay_out(recording.graph)
    nodes = recording.graph.nodes
    (backward,) = (node for node in nodes if node.target is torch.ops.aten.convolution_backward.default)
    (images,) = layouts(backward.args[1])
    assert images.empty().is_contiguous() == bool(laid)
    assert_close(plain(recording)(x), gradients(x.clone()))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("event", [(28, 28), (32, 32, 3)])
def test_compiled_convolutions_on_a_gpu(event):
    """Steps before the first that is replayed as a graph, which draws other numbers; then some of those."""
    networks = ConvEncoder(event, 2, width=0.25), ConvDecoder(2, event, width=0.25)
    vae = VAE(*networks, BernoulliObservation(len(event)), 2, 8).double().cuda()
    x, runs = torch.rand(8, *event).round().cuda(), []
    for settings in ({"eager": True}, {"compile": True}):
        other = copy.deepcopy(vae)
        svi = svi_for(other, partial(torch.optim.Adam, lr=1e-2, fused=True), **settings)
        pyro.set_rng_seed(2)
        runs.append([svi.step(x) for _ in range(12)])
    assert runs[1][:4] == pytest.approx(runs[0][:4], rel=1e-9)
    assert runs[1][11] == pytest.approx(runs[0][11], rel=0.05)


def of_data(x, weight):
    y = x.double()  # large data in float64 are not kept
    return ((torch.lgamma(y + 1).sum(0) * weight + y.square().sum(0)).sum(), (y * weight).sum())


class Counts(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.lgammas = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.lgammas += func is torch.ops.aten.lgamma.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [3, 300_000])
def test_what_depends_on_data_alone_is_computed_once_for_them(rows):
    weight, x = torch.tensor([1.0, 2.0]), torch.ones(rows, 2)
    program = plain(record(lambda x: of_data(x, weight), [x], [weight]), 1)

    def lgammas(x):
        with Counts() as counts:
            found = program(x)
        assert_close(found, of_data(x, weight), rtol=0, atol=0)
        return counts.lgammas

    assert [lgammas(x), lgammas(x)] == [1, 0]
    weight.add_(1.0)
    assert lgammas(x) == 0
    x[1].mul_(3.0)
    assert [lgammas(x), lgammas(x), lgammas(x.clone()), lgammas(x)] == [1, 0, 1, 1]
    numbers = x.numpy()  # changes that torch does not count
    for _ in range(2):
        numbers += 1
        assert lgammas(x) == 1


@pytest.mark.parametrize("kind", ["data", "constants"])
@pytest.mark.parametrize("change", ["product", "reshaped"])
def test_what_is_changed_in_place_is_computed_at_each_step(kind, change):
    """The product of matrices is in the memory that is changed, as a view that torch does not call one."""
    theta = torch.ones(())

    def function(x):
        x = x if kind == "data" else torch.ones(4, 3, 5)
        y = x @ torch.full((5, 2), 0.5) if change == "product" else x.transpose(1, 2).reshape(4, -1)
        y -= theta
        return (y.sum(),)

    x = torch.arange(60.0).view(4, 3, 5)
    program = plain(record(function, [x], [theta]), 1)
    found = [program(x)[0].item() for _ in range(4)]
    assert found == [function(x)[0].item()] * 4
