"""A rehearsal finds what a program calls and changes, and undoes it."""

import torch
from torch import nn

from pyro_fmvae.capture.guards import Rehearsal


def test_a_rehearsal_finds_called_modules_and_undoes_what_they_did():
    norm, inner = nn.BatchNorm1d(3), nn.Linear(3, 3)
    net = nn.Sequential(norm, inner)
    rehearsal = Rehearsal()
    random = torch.get_rng_state()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with rehearsal.watching():
        net(torch.randn(5, 3))
    net(torch.randn(5, 3))
    assert rehearsal.modules == [net]
    assert not rehearsal.made(net.parameters())
    assert rehearsal.made([nn.Parameter(torch.ones(1))])
    assert norm.num_batches_tracked == 2
    rehearsal.undo()
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(torch.get_rng_state(), random)
    assert set(rehearsal.changed) == set(norm.buffers())


def test_a_rehearsal_notices_modules_that_grow():
    net = nn.Sequential(nn.Linear(1, 1))
    rehearsal = Rehearsal(net)
    assert not rehearsal.made([])
    net.append(nn.Linear(1, 1))
    assert rehearsal.made([])


def test_a_rehearsal_undoes_writes_to_tensors_from_outside():
    whole, other, out = torch.zeros(3), torch.ones(2), torch.ones(2)
    rehearsal = Rehearsal()
    with rehearsal.watching():
        for _ in range(2):
            whole[1:].add_(other)
            other.mul_(2.0)
            torch.add(other, 1.0, out=out)
            whole[:2].sub_(5.0)  # overlaps with what was written before
            made = torch.empty(3).fill_(1.0)
            made.view(3, 1)[0].mul_(2.0)
    assert [tensor.shape.numel() for tensor in rehearsal.written] == [2, 2, 2, 2]
    assert (whole.tolist(), other.tolist(), out.tolist()) == ([-10.0, -7.0, 3.0], [4.0, 4.0], [5.0, 5.0])
    rehearsal.undo()
    assert (whole.tolist(), other.tolist(), out.tolist()) == ([0.0] * 3, [1.0] * 2, [1.0] * 2)
