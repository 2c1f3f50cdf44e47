"""Adam as tensor operations against torch's own."""

import copy

import pytest
import torch

from pyro_fmvae.capture.recorded_adam import RecordedAdam


def parameters():
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 2), (4,), ())]


def gradients(params, step):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(p.shape, generator=generator) for p in params]


def take_torch_step(optimizer, params, step):
    for p, grad in zip(params, gradients(params, step), strict=True):
        p.grad = grad
    optimizer.step()
    optimizer.zero_grad()


def take_recorded_step(recorded, params, step, ok=None):
    rates = [torch.as_tensor(rate, dtype=torch.float64) for rate in recorded.rates]
    with torch.no_grad():
        recorded.step(dict(zip(params, gradients(params, step), strict=True)), rates, ok)


def make(kind, params, **options):
    return kind([{"params": params[:1], "lr": 0.02}, {"params": params[1:]}], lr=0.1, **options)


def assert_equal_states(one, other):
    for p, q in zip(one.param_groups, other.param_groups, strict=True):
        for a, b in zip(p["params"], q["params"], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
            assert one.state[a].keys() == other.state[b].keys()
            for name, value in one.state[a].items():
                torch.testing.assert_close(
                    value, other.state[b][name], rtol=1e-12, atol=1e-14, check_dtype=False
                )


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize(
    "options", [{}, {"betas": (0.5, 0.8), "eps": 1e-3}, {"weight_decay": 0.3}, {"fused": True}], ids=str
)
def test_equals_torchs(kind, options):
    theirs, ours = parameters(), parameters()
    optimizer, owner = make(kind, theirs, **options), make(kind, ours, **options)
    recorded = RecordedAdam(owner, ours)
    for step in range(50):
        take_torch_step(optimizer, theirs, step)
        if step % 10 == 9:  # its state is the optimiser's own: they may take turns
            take_torch_step(owner, ours, step)
        else:
            take_recorded_step(recorded, ours, step)
    assert_equal_states(owner, optimizer)


def test_a_step_that_is_not_ok_changes_nothing():
    params = parameters()
    optimizer = make(torch.optim.Adam, params)
    recorded = RecordedAdam(optimizer, params)
    take_recorded_step(recorded, params, 0, ok=torch.tensor(True))
    kept = copy.deepcopy([*params, *recorded.tensors])
    bad = {p: torch.full_like(p, torch.nan) for p in params}
    with torch.no_grad():
        recorded.step(bad, [torch.tensor(0.1)] * 2, torch.tensor(False))
    assert all(torch.equal(a, b) for a, b in zip(kept, [*params, *recorded.tensors], strict=True))
    take_recorded_step(recorded, params, 1, ok=torch.tensor(True))
    assert not any(torch.equal(a, b) for a, b in zip(kept, [*params, *recorded.tensors], strict=True))


def with_hook(params):
    optimizer = make(torch.optim.Adam, params)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


@pytest.mark.parametrize(
    ("optimizer_of", "possible"),
    [
        (lambda params: make(torch.optim.Adam, params), True),
        (lambda params: make(torch.optim.AdamW, params, foreach=True), True),
        (lambda params: make(torch.optim.Adam, params, amsgrad=True), False),
        (lambda params: make(torch.optim.Adam, params, maximize=True), False),
        (lambda params: make(torch.optim.SGD, params), False),
        (lambda params: torch.optim.Adam(params[1:]), False),
        (with_hook, False),
        (lambda params: None, False),
    ],
)
def test_which_optimisers_it_can_stand_for(optimizer_of, possible):
    params = parameters()
    assert RecordedAdam.possible(optimizer_of(params), params) is possible


def test_notices_what_it_took_for_granted():
    params = parameters()
    optimizer = make(torch.optim.Adam, params)
    recorded = RecordedAdam(optimizer, params)
    optimizer.param_groups[0]["lr"] = 0.5
    assert recorded.current(optimizer)
    assert recorded.rates == [0.5, 0.1]
    optimizer.param_groups[1]["betas"] = (0.1, 0.2)
    assert not recorded.current(optimizer)
    other = RecordedAdam(optimizer, params)
    optimizer.load_state_dict(optimizer.state_dict())
    assert not other.current(optimizer)
    assert not other.current(None)


@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer: optimizer.state.clear(),
        lambda optimizer: optimizer.register_step_pre_hook(lambda *_: None),
    ],
)
@pytest.mark.parametrize("kept", [False, True])
def test_notices_another_state_and_hooks(change, kept):
    """Of the state that it made and kept itself, too."""
    params = parameters()
    optimizer = make(torch.optim.Adam, params)
    recorded = RecordedAdam(optimizer, params)
    if kept:
        recorded.keep(params[:2])
    assert recorded.current(optimizer)
    take_recorded_step(recorded, params[:2], 0)
    assert recorded.current(optimizer)
    change(optimizer)
    assert not recorded.current(optimizer)
