"""What is noticed about an optimiser, and what may change."""

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pyro_fmvae.capture.playback import OptimizerSnapshot, step_hooks


def make():
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = torch.optim.AdamW([{"params": weights[:1]}, {"params": weights[1:], "lr": 0.5}], lr=0.1)
    for p in weights:
        p.grad = torch.ones(2)
    optimizer.step()
    return optimizer


def first(optimizer):
    """The first parameter's state."""
    return optimizer.state[optimizer.param_groups[0]["params"][0]]


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
        lambda optimizer: optimizer.state.clear(),
        lambda optimizer: optimizer.state.popitem(),
        lambda optimizer: first(optimizer).update(exp_avg=first(optimizer)["exp_avg"].clone()),
        lambda optimizer: first(optimizer).clear(),
        lambda optimizer: first(optimizer).update(max_exp_avg_sq=torch.ones(2)),
        lambda optimizer: optimizer.register_step_pre_hook(lambda *_: None),
        lambda optimizer: optimizer.register_step_post_hook(lambda *_: None),
    ],
    ids=[
        *(
            "betas",
            "decay",
            "group",
            "parameter",
            "state",
            "cleared",
            "one state less",
            "tensor of the state",
        ),
        *("one state cleared", "more state", "hook before", "hook after"),
    ],
)
def test_all_else_is_noticed(change):
    optimizer = make()
    snapshot = OptimizerSnapshot(optimizer)
    change(optimizer)
    assert not snapshot.holds(optimizer)


def test_states_of_further_parameters_and_of_no_parameter_may_come():
    optimizer = make()
    del optimizer.state[optimizer.param_groups[1]["params"][1]]
    optimizer.state["number"] = 1
    snapshot = OptimizerSnapshot(optimizer)
    optimizer.state["number"] = 2
    optimizer.step()
    assert len(optimizer.state) == 4
    assert snapshot.holds(optimizer)
    optimizer.state.clear()
    assert not snapshot.holds(optimizer)
    snapshot.take_state()
    assert snapshot.holds(optimizer)


@pytest.mark.parametrize("register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook])
def test_hooks_of_all_optimisers(register):
    optimizer = make()
    snapshot = OptimizerSnapshot(optimizer)
    hook = register(lambda *_: None)
    try:
        assert not snapshot.holds(optimizer)
        assert len(step_hooks(optimizer)) == 1
        assert step_hooks(None) == ()
    finally:
        hook.remove()
    assert snapshot.holds(optimizer)


def test_another_optimiser_and_none():
    assert not OptimizerSnapshot(make()).holds(make())
    assert not OptimizerSnapshot(make()).holds(None)
    assert not OptimizerSnapshot(None).holds(make())
    assert OptimizerSnapshot(None).holds(None)
