"""Programs in fewer and faster calls, against the operations that were recorded."""

import pyro
import torch
from torch.testing import assert_close

from pyro_fmvae.capture.playback import _MOST_BYTES, shortened
from pyro_fmvae.capture.recording import record


def operations(recording):
    return [str(node.target) for node in recording.graph.nodes if node.op.startswith("call")]


def check(function, inputs, *state, steps=3):
    """Both programs take the same steps to the bit; returns the operations of the short one."""
    recording, (short,) = record(function, inputs, state), shortened(record(function, inputs, state))
    begun = [tensor.clone() for tensor in state]
    found = []
    for program in (recording, short):
        run = program.function()
        for tensor, value in zip(state, begun, strict=True):
            tensor.copy_(value)
        pyro.set_rng_seed(1)
        results = []
        for step in range(steps):
            values = run(*(x + step for x in inputs), *program.state)
            results += [value.clone() for value in values]
            for value in values:
                value.add_(1.0)  # whoever gets a result may change it
        found.append((results, [tensor.clone() for tensor in state]))
    assert_close(found[1], found[0], rtol=0, atol=0)
    return operations(short)


def test_what_depends_on_no_tensor_is_computed_once():
    def function(x):
        index = (torch.arange(3) * 2 + torch.tensor(1)).flip(0)
        return (x[index] * torch.zeros_like(x)[:3].cos(),)

    assert len(check(function, [torch.randn(7)])) == 2


def test_constants_that_change_are_made_anew():
    def function(x):
        count, view = torch.zeros(2), torch.ones(4).view(2, 2)
        count += x
        view[0] += x
        return count, view.sum(0), torch.ones(2).neg()

    check(function, [torch.randn(2)])


def test_equal_values_are_computed_once_between_changes():
    weight = torch.tensor([1.0, 2.0])

    def function(x):
        view = weight[:]
        before = (view * x).exp() + (view * x).exp()
        weight.mul_(x)
        one, other = x + 1.0, x + 1.0
        other = other + (x * 5.0).cos()
        one.mul_(3.0)
        before = before + one.sin()
        one.mul_(3.0)
        return before, (view * x).exp(), one.sin() * other, (x * 5.0).cos() + x * 1.0, x * 1

    names = check(function, [torch.tensor([0.5, 0.25])], weight)
    assert [sum(each in name for name in names) for each in ("exp", "sin", "cos")] == [2, 2, 1]


def test_random_numbers_are_drawn_each_time():
    check(lambda x: (torch.rand(3) + x, torch.rand(3) - torch.rand(3)), [torch.randn(3)])


def test_views_of_everything_are_left_out():
    def function(x):
        return (x.view(2, 3).permute(0, 1).expand(2, 3).detach() * 2.0 + x.flip(0),)

    assert len(check(function, [torch.randn(2, 3)])) == 3


def test_large_values_are_neither_kept_nor_shared():
    size = _MOST_BYTES // 4 + 1

    def function(x):
        large = x.expand(size)
        return (torch.arange(size).sum() + (large.exp().sum() + large.exp().mean()),)

    names = check(function, [torch.randn(1)])
    assert sum("exp" in name and "expand" not in name for name in names) == 2
    assert any("arange" in name for name in names)


def test_torch_is_called_directly_where_that_reaches_the_same_operation():
    def function(x):
        return (x.mm(x).sum(0, keepdim=True) ** 2 - x.lgamma().clamp(min=0.5),)

    assert not any(name.startswith("aten") for name in check(function, [torch.rand(3, 3) + 1]))


def test_gathers_of_everything_in_order_are_left_out():
    def function(x):
        everything, some = torch.arange(4), torch.arange(4) * 2
        y = x.index_select(0, everything).exp()
        starts = (torch.zeros(4), everything), (torch.zeros(8), everything), (torch.ones(4), everything)
        return tuple(z.index_add(0, i, y).neg() for z, i in (*starts, (torch.zeros(8), some)))

    names = check(function, [torch.randn(4)])
    assert sum("index_select" in name for name in names) == 0
    assert sum("index_add" in name for name in names) == 3


def test_what_is_changed_or_returned_is_a_copy():
    def function(x):
        everything, one, other = torch.arange(3), x * 2, x * 3
        changed, kept = one.index_select(0, everything), other.index_select(0, everything)
        changed.add_(1.0)
        return one.exp(), changed, other.exp(), kept

    assert sum("index_select" in name for name in check(function, [torch.randn(3)])) == 2
