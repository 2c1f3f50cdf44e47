"""What is noticed about an optimiser, and what may change."""

import pytest
import torch

from pyro_fmvae.infer.optimizer_snapshot import OptimizerSnapshot


def make():
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = torch.optim.AdamW([{"params": weights[:1]}, {"params": weights[1:], "lr": 0.5}], lr=0.1)
    for p in weights:
        p.grad = torch.ones(2)
    optimizer.step()
    return optimizer


def test_learning_rates_and_steps_may_change():
    optimizer = make()
    snapshot = OptimizerSnapshot(optimizer)
    optimizer.param_groups[1]["lr"] = 0.25
    optimizer.step()
    assert snapshot.holds(optimizer)
    assert snapshot.rates == [0.1, 0.25]


@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer: optimizer.param_groups[0].update(betas=(0.1, 0.2)),
        lambda optimizer: optimizer.param_groups[1].update(weight_decay=0.5),
        lambda optimizer: optimizer.add_param_group({"params": torch.nn.Parameter(torch.ones(1))}),
        lambda optimizer: optimizer.param_groups[0].update(params=[torch.nn.Parameter(torch.ones(2))]),
        lambda optimizer: optimizer.load_state_dict(optimizer.state_dict()),
    ],
    ids=["betas", "decay", "group", "parameter", "state"],
)
def test_all_else_is_noticed(change):
    optimizer = make()
    snapshot = OptimizerSnapshot(optimizer)
    change(optimizer)
    assert not snapshot.holds(optimizer)


def test_another_optimiser_and_none():
    assert not OptimizerSnapshot(make()).holds(make())
    assert not OptimizerSnapshot(make()).holds(None)
    assert not OptimizerSnapshot(None).holds(make())
    assert OptimizerSnapshot(None).holds(None)
