"""Sums over paths, with sequences along the last dimension, and their gradients."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.fx.experimental.proxy_tensor import get_proxy_mode

_MODERATE = 300.0  # nats between transitions to the same state; float64 ends at e^-745
_FEW = 400  # numbers K² B of a step, up to which products of steps are faster than one step after another


def sums_for(transitions: Tensor, batch: torch.Size) -> Callable[..., Tensor]:
    """The fastest of the ways to sum over paths that are exact for such transitions [K, K, B or 1].

    All take tables of the first state [K, B], transitions, likelihoods [T, K, B] and lengths [B] or None, and
    give log Σ over paths, [B]. A recorded program, which can't depend on numbers, has no products of steps.
    """
    few = transitions.numel() * batch.numel() <= _FEW
    return _by_halves if few and _is_moderate(transitions) else _Sums.apply


def _is_moderate(transitions: Tensor) -> bool:
    """True if transitions may be taken as numbers, in the place of logarithms."""
    if transitions.shape[-1] > 1 or get_proxy_mode() is not None:
        return False
    spread = transitions.detach().amax(0) - transitions.detach().amin(0)
    return bool(spread.max() < _MODERATE)


def _by_halves(start: Tensor, transitions: Tensor, likelihood: Tensor, ends: Tensor | None) -> Tensor:
    """Log Σ over paths, [B], by products of neighbouring steps, then of these, and so on: log T rounds.

    Matrices are scaled to 1 at their largest number. What this rounds to 0 is less than e^-145 of any sum
    that it is missing in: rows of a product differ by less than e^300, and so do those of the next one.
    """
    largest = finite(likelihood.detach().amax(1, keepdim=True))  # [T, 1, B]
    scaled = (likelihood - largest).transpose(1, 2).unsqueeze(-2)  # [T, B, 1, K]
    steps = (transitions.permute(2, 0, 1) + scaled[1:]).exp()
    log_scale = largest[:, 0]
    if ends is not None:
        there = torch.arange(len(likelihood), device=ends.device).unsqueeze(-1) < ends
        identity = torch.eye(len(transitions)).to(steps)
        steps = torch.where(there[1:, :, None, None], steps, identity)
        log_scale = torch.where(there, log_scale, 0.0)
    total = log_scale.sum(0)
    while len(steps) > 1:
        alone = steps[len(steps) // 2 * 2 :]
        steps = steps[:-1:2] @ steps[1::2]
        size = steps.detach().amax((-2, -1), keepdim=True).clamp(min=torch.finfo(steps.dtype).tiny)
        total = total + size.log().sum((0, 2, 3))
        steps = torch.cat([steps / size, alone])
    message = start.T.unsqueeze(-2) + scaled[0]  # [B, 1, K]
    top = finite(message.detach().amax(-1, keepdim=True))
    message = (message - top).exp()
    for step in steps:
        message = message @ step
    weight = message.sum((-2, -1))
    log_weight = torch.where(weight > 0, weight, 1.0).log()  # without a gradient where there is no path
    return torch.where(weight > 0, log_weight + total + top.flatten(), -torch.inf)


class _Sums(torch.autograd.Function):
    """log Σ over paths, [B], by one pass forward and one backward.

    On a CPU each pass is a single operation of a recorded program, which looks at numbers when it is played.
    """

    @staticmethod
    def forward(
        ctx: Any, start: Tensor, transitions: Tensor, likelihood: Tensor, ends: Tensor | None
    ) -> Tensor:
        result, *messages = (_forward_op if start.is_cpu else _forward)(start, transitions, likelihood, ends)
        ctx.save_for_backward(transitions, *messages, ends)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return *(_backward_op if slope.is_cpu else _backward)(slope, *ctx.saved_tensors), None


def _forward(
    start: Tensor, transitions: Tensor, likelihood: Tensor, ends: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Log Σ over paths [B], and two messages of each step for the way back, [T, K, B] each."""
    way = _scaled_forward if _is_moderate(transitions) else _log_forward
    return way(start, transitions, likelihood, ends)


def _backward(
    slope: Tensor, transitions: Tensor, one: Tensor, other: Tensor, ends: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the tables of the first state, transitions and likelihoods."""
    way = _scaled_backward if _is_moderate(transitions) else _log_backward
    return way(slope, transitions, one, other, ends)


_forward_op = torch.library.custom_op(
    "pyro_fmvae::path_sums",
    _forward,
    mutates_args=(),
    schema="(Tensor start, Tensor transitions, Tensor likelihood, Tensor? ends) -> (Tensor, Tensor, Tensor)",
)
_backward_op = torch.library.custom_op(
    "pyro_fmvae::path_sums_backward",
    _backward,
    mutates_args=(),
    schema="(Tensor slope, Tensor transitions, Tensor one, Tensor other, Tensor? ends) -> "
    "(Tensor, Tensor, Tensor)",
)


@_forward_op.register_fake
def _(start: Tensor, transitions: Tensor, likelihood: Tensor, ends: Tensor | None) -> tuple[Tensor, ...]:
    return start.new_empty(start.shape[1:]), torch.empty_like(likelihood), torch.empty_like(likelihood)


@_backward_op.register_fake
def _(
    slope: Tensor, transitions: Tensor, one: Tensor, other: Tensor, ends: Tensor | None
) -> tuple[Tensor, ...]:
    return one.new_empty(one.shape[1:]), transitions.new_empty(transitions.shape), torch.empty_like(one)


def _log_forward(
    start: Tensor, transitions: Tensor, likelihood: Tensor, ends: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """By sums of exponentials of every pair of states, exact whatever the numbers."""
    message = start + likelihood[0]
    messages, predictions = [message], [start]
    for t in range(1, len(likelihood)):
        pairs = message.unsqueeze(1) + transitions
        largest = finite(pairs.amax(0))
        prediction = largest + (pairs - largest).exp().sum(0).log()
        message = where_on(is_before(t, ends), prediction + likelihood[t], message)
        messages.append(message)
        predictions.append(prediction)
    return message.logsumexp(0), torch.stack(messages), torch.stack(predictions)


def _log_backward(
    slope: Tensor, transitions: Tensor, messages: Tensor, predictions: Tensor, ends: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The probability of a pair of states is that of the later one times that of the earlier one given it.

    This needs no normaliser.
    """
    last = messages[-1]
    states = (last - finite(last.logsumexp(0))).exp() * slope
    of_steps, counts = [], torch.zeros(transitions.shape).to(transitions)
    for t in range(len(messages) - 1, 0, -1):
        goes_on = is_before(t, ends)
        earlier = (messages[t - 1].unsqueeze(1) + transitions - finite(predictions[t])).exp()
        here = where_on(goes_on, states, torch.zeros_like(states))
        pairs = earlier * here
        of_steps.append(here)
        counts = counts + (pairs.sum(-1, keepdim=True) if counts.shape[-1] == 1 else pairs)
        states = where_on(goes_on, pairs.sum(1), states)
    return states, counts, torch.stack([states, *reversed(of_steps)])


def _scaled_forward(
    start: Tensor, transitions: Tensor, likelihood: Tensor, ends: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """By products of matrices, for transitions that all sequences share.

    Messages are probabilities of the states given what is observed so far. What they round to 0 is less than
    e^-145 of any sum that it is missing in, as transitions to a state differ by less than e^300.
    """
    largest, matrix = _scaled(transitions)
    weights = likelihood + largest
    torch.add(start, likelihood[0], out=weights[0])
    top = finite(weights.amax(1))
    weights = weights.sub_(top.unsqueeze(1)).exp_()
    states, predictions, sizes = (torch.empty_like(table) for table in (weights, weights, top))
    predictions[0] = 1
    least = torch.finfo(weights.dtype).tiny
    for t, (here, size) in enumerate(zip(states.unbind(), sizes.unbind(), strict=True)):
        if t > 0:
            torch.mm(matrix.T, states[t - 1], out=predictions[t])
        torch.mul(predictions[t], weights[t], out=here)
        torch.sum(here, 0, out=size)
        here.div_(size.clamp(min=least))  # of an impossible sequence, 0
        predictions[t].clamp_(min=least)
        if t > 0 and ends is not None:
            here.copy_(torch.where(t < ends, here, states[t - 1]))
    parts = sizes.log_().add_(top)
    if ends is not None:
        parts = torch.where(_there(parts, ends), parts, 0.0)
    return parts.sum(0), states, predictions


def _scaled_backward(
    slope: Tensor, transitions: Tensor, states: Tensor, predictions: Tensor, ends: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    _, matrix = _scaled(transitions)
    of_steps, shares = torch.empty_like(states), torch.empty_like(states)
    torch.mul(states[-1], slope, out=of_steps[-1])
    for t in range(len(states) - 1, 0, -1):
        torch.div(of_steps[t], predictions[t], out=shares[t])
        earlier = torch.mm(matrix, shares[t], out=of_steps[t - 1]).mul_(states[t - 1])
        if ends is not None:
            earlier.copy_(torch.where(t < ends, earlier, of_steps[t]))
    if ends is not None:
        there = _there(states[:, 0], ends).unsqueeze(1)
        of_steps, shares = (torch.where(there, table, 0.0) for table in (of_steps, shares))
    counts = torch.bmm(states[:-1], shares[1:].mT).sum(0) * matrix
    return of_steps[0].clone(), counts.unsqueeze(-1), of_steps


def _scaled(transitions: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logarithm of transitions to each state, [K, 1], and transitions in proportion, [K, K]."""
    largest = transitions.amax(0)
    return largest, (transitions - largest).exp().squeeze(-1)


def _there(table: Tensor, ends: Tensor) -> Tensor:
    """Which steps of a table [T, B] are before the end of their sequences."""
    return torch.arange(len(table), device=ends.device).unsqueeze(-1) < ends


def is_before(step: int, ends: Tensor | None) -> Tensor | None:
    """Which sequences have a step, bool [B]; None if all have it."""
    return None if ends is None else step < ends


def where_on(goes_on: Tensor | None, value: Tensor, otherwise: Tensor) -> Tensor:
    """The value of sequences that go on, of others what it was; see :func:`is_before`."""
    return value if goes_on is None else torch.where(goes_on, value, otherwise)


def finite(message: Tensor) -> Tensor:
    """A message to subtract, which leaves -inf where all that it is subtracted from is -inf."""
    return message.clamp(min=torch.finfo(message.dtype).min)
