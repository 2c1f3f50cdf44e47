"""Sums over the paths of Markov chains with finitely many states, whole batches of sequences at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.fx.experimental.proxy_tensor import get_proxy_mode

_MODERATE = 600.0  # nats between transitions to the same state; float64 ends at e^-745
_FEW = 400  # numbers K² B of a step, up to which products of steps are faster than one step after another


@dataclass(frozen=True)
class Chain:
    """The weights of all paths of a batch of chains, in logarithms that need not be normalised.

    A path z_1 … z_T weighs start[z_1] Π transitions[z_t, z_t+1] Π likelihood[t, z_t]. Sums are in float64.

    Attributes:
        log_start: of the first state, [..., K].
        log_transitions: from one state (row) to the next, [..., K, K].
        log_likelihood: of what is observed at each step, [..., T, K].
        lengths: T of each sequence, int64 [...], if they differ; steps from there on do not count.
        counted: whether a step counts for itself, bool [..., T], or None: all do. Others are a buffer. They
            help to tell the states of those that count.
    """

    log_start: Tensor
    log_transitions: Tensor
    log_likelihood: Tensor
    lengths: Tensor | None = None
    counted: Tensor | None = None

    @property
    def batch_shape(self) -> torch.Size:
        """Of the sequences, [...]."""
        batch = [self.log_start.shape[:-1], self.log_transitions.shape[:-2], self.log_likelihood.shape[:-2]]
        return torch.broadcast_shapes(*batch, () if self.lengths is None else self.lengths.shape)

    def log_evidence(self) -> Tensor:
        """The logarithm of the sum over all paths, [...], in the dtype of the likelihood.

        Its gradients are the probabilities of states and the expected counts of transitions. Where not all
        steps count, both are the parts of those that do.
        """
        tables = self._by_step()
        counted = self.counted
        if counted is None:
            result: Tensor = _sums_for(tables[1], self.batch_shape)(*tables)
        else:
            result = _part(*tables, counted.expand(*self.batch_shape, -1).reshape(-1, counted.shape[-1]).T)
        return result.view(self.batch_shape).to(self.log_likelihood.dtype)

    def posterior(self) -> Tensor:
        """The probabilities of the states at each step, [..., T, K]; 0 after the end of a sequence."""
        with torch.enable_grad():
            start, transitions, likelihood, ends = self._by_step()
            likelihood = likelihood.detach().requires_grad_()
            total = _sums_for(transitions, self.batch_shape)(start, transitions, likelihood, ends)
            (posterior,) = torch.autograd.grad(total.sum(), likelihood)
        return self._by_sequence(posterior.permute(2, 0, 1)).to(self.log_likelihood.dtype)

    def best_path(self) -> Tensor:
        """The path that weighs most, int64 [..., T]; -1 after the end of a sequence. Viterbi (1967)."""
        with torch.no_grad():
            message, transitions, likelihood, ends = self._by_step()
            message, choices = message + likelihood[0], []
            for t in range(1, len(likelihood)):
                best, choice = (message.unsqueeze(1) + transitions).max(0)
                goes_on = _is_before(t, ends)
                message = _where(goes_on, best + likelihood[t], message)
                choices.append(choice)
            state = message.argmax(0)
            path = [state]
            for t in range(len(choices), 0, -1):
                before = choices[t - 1].gather(0, state.unsqueeze(0)).squeeze(0)
                goes_on = _is_before(t, ends)
                path[-1] = _where(goes_on, state, torch.full_like(state, -1))
                state = _where(goes_on, before, state)
                path.append(state)
            return self._by_sequence(torch.stack(path[::-1], -1))

    def _by_step(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Tables with the sequences last, so that steps are loops over long rows of numbers.

        Returns:
            [K, B], [K, K, B or 1], [T, K, B], and the lengths [B].
        """
        batch, one, likelihood = self.batch_shape, torch.Size([1]), self.log_likelihood
        start = self.log_start.double()
        start = start.expand(*batch, -1).reshape(batch.numel(), -1).T
        transitions = self.log_transitions.double()
        shared = transitions.shape[:-2].numel() == 1
        transitions = transitions.expand(*(one if shared else batch), *transitions.shape[-2:])
        transitions = transitions.reshape(-1, *transitions.shape[-2:]).permute(1, 2, 0)
        likelihood = likelihood.expand(*batch, -1, -1).reshape(batch.numel(), *likelihood.shape[-2:])
        ends = None if self.lengths is None else self.lengths.expand(batch).reshape(-1)
        return start, transitions, likelihood.permute(1, 2, 0).to(torch.float64, copy=True).contiguous(), ends

    def _by_sequence(self, table: Tensor) -> Tensor:
        return table.reshape(*self.batch_shape, *table.shape[1:])


def check_duration(duration: int) -> None:
    """Refuse sequences without a step."""
    if duration < 1:
        raise ValueError(f"duration: expected 1 or more, got {duration}")


def check_lengths(lengths: Tensor, duration: int) -> None:
    """Refuse lengths of sequences that are not in 1 … ``duration``."""
    outside = (lengths < 1) | (lengths > duration)
    if outside.any():
        raise ValueError(
            f"lengths: expected numbers from 1 to the duration {duration}, got {int(lengths[outside][0])}; "
            "leave out sequences without observations"
        )


def _sums_for(transitions: Tensor, batch: torch.Size) -> Callable[..., Tensor]:
    """The fastest of the ways to sum over paths that are exact for such transitions [K, K, B or 1].

    A recorded step, which cannot depend on numbers, has the one that always is.
    """
    if transitions.shape[-1] > 1 or get_proxy_mode() is not None:
        return _Sums.apply
    spread = (transitions.detach().amax(0) - transitions.detach().amin(0)).max()
    if spread < _MODERATE / 2 and transitions.numel() * batch.numel() <= _FEW:
        return _by_halves
    return _ScaledSums.apply if spread < _MODERATE else _Sums.apply


def _by_halves(start: Tensor, transitions: Tensor, likelihood: Tensor, ends: Tensor | None) -> Tensor:
    """Log Σ over paths, [B], by products of neighbouring steps, then of these, and so on: log T rounds.

    Matrices are scaled to 1 at their largest number. What this rounds to 0 is less than e^-145 of any sum
    that it is missing in: rows of a product differ by less than e^300, and so do those of the next one.
    """
    largest = _finite(likelihood.detach().amax(1, keepdim=True))  # [T, 1, B]
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
    top = _finite(message.detach().amax(-1, keepdim=True))
    message = (message - top).exp()
    for step in steps:
        message = message @ step
    return message.sum((-2, -1)).log() + total + top.flatten()


class _Sums(torch.autograd.Function):
    """log Σ over paths, [B], by sums of exponentials of every pair of states.

    Its backward pass goes through the steps once more, with two messages per step that the first one left.
    The probability of a pair of states is that of the later one times that of the earlier one given it: this
    needs no normaliser.
    """

    @staticmethod
    def forward(
        ctx: Any, start: Tensor, transitions: Tensor, likelihood: Tensor, ends: Tensor | None
    ) -> Tensor:
        message = start + likelihood[0]
        messages, predictions = [message], [start]
        for t in range(1, len(likelihood)):
            pairs = message.unsqueeze(1) + transitions
            largest = _finite(pairs.amax(0))
            prediction = largest + (pairs - largest).exp().sum(0).log()
            message = _where(_is_before(t, ends), prediction + likelihood[t], message)
            messages.append(message)
            predictions.append(prediction)
        ctx.save_for_backward(transitions, torch.stack(messages), torch.stack(predictions), ends)
        return message.logsumexp(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        transitions, messages, predictions, ends = ctx.saved_tensors
        last = messages[-1]
        states = (last - _finite(last.logsumexp(0))).exp() * slope
        of_steps, counts = [], torch.zeros_like(transitions)
        for t in range(len(messages) - 1, 0, -1):
            goes_on = _is_before(t, ends)
            earlier = (messages[t - 1].unsqueeze(1) + transitions - _finite(predictions[t])).exp()
            here = _where(goes_on, states, torch.zeros_like(states))
            pairs = earlier * here
            of_steps.append(here)
            counts = counts + (pairs.sum(-1, keepdim=True) if counts.shape[-1] == 1 else pairs)
            states = _where(goes_on, pairs.sum(1), states)
        return states, counts, torch.stack([states, *reversed(of_steps)]), None


class _ScaledSums(torch.autograd.Function):
    """log Σ over paths, [B], by products of matrices, for transitions that all sequences share.

    Messages are scaled to 1 at their largest state. What this rounds to 0 is less than e^-145 of any sum
    that it is missing in, as transitions to a state differ by less than e^600.
    """

    @staticmethod
    def forward(
        ctx: Any, start: Tensor, transitions: Tensor, likelihood: Tensor, ends: Tensor | None
    ) -> Tensor:
        largest = transitions.amax(0)  # [K, 1]
        matrix = (transitions - largest).exp().squeeze(-1)
        message, scaled, sums = start + likelihood[0], [], []
        for t in range(1, len(likelihood)):
            top = _finite(message.amax(0))
            scaled.append((message - top).exp())
            sums.append(matrix.T @ scaled[-1])
            ahead = sums[-1].log() + (likelihood[t] + (largest + top))
            message = _where(_is_before(t, ends), ahead, message)
        ctx.save_for_backward(matrix, message, ends, *scaled, *sums)
        return message.logsumexp(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        matrix, last, ends, *messages = ctx.saved_tensors
        scaled, sums = messages[: len(messages) // 2], messages[len(messages) // 2 :]
        states = (last - _finite(last.logsumexp(0))).exp() * slope
        of_steps, counts = [], torch.zeros_like(matrix)
        for t in range(len(scaled), 0, -1):
            goes_on = _is_before(t, ends)
            here = _where(goes_on, states, torch.zeros_like(states))
            share = here / sums[t - 1]
            of_steps.append(here)
            counts = counts + scaled[t - 1] @ share.T
            states = _where(goes_on, scaled[t - 1] * (matrix @ share), states)
        counts = (counts * matrix).unsqueeze(-1)
        return states, counts, torch.stack([states, *reversed(of_steps)]), None


def _part(
    start: Tensor, transitions: Tensor, likelihood: Tensor, ends: Tensor | None, counted: Tensor
) -> Tensor:
    """The part of log Σ over paths that steps have which count, [B]; the parts of all steps add up to it.

    A step's part is E[log p(z_t | z_t-1) + log p(x_t | z_t) - log q(z_t | z_t-1)] under the probabilities q
    of all paths, which are constants here.

    Args:
        start, transitions, likelihood, ends: tables of :meth:`Chain._by_step`.
        counted: bool [T, B].
    """
    with torch.no_grad():
        messages = [start + likelihood[0]]
        for t in range(1, len(likelihood)):
            ahead = (messages[-1].unsqueeze(1) + transitions).logsumexp(0) + likelihood[t]
            messages.append(_where(_is_before(t, ends), ahead, messages[-1]))
        total, behind, later = messages[-1].logsumexp(0), torch.zeros_like(messages[0]), []
        entropy = torch.zeros_like(total)
        for t in range(len(likelihood) - 1, 0, -1):
            log_joint = transitions + (likelihood[t] + behind)
            here = log_joint.logsumexp(1)
            log_pair = messages[t - 1].unsqueeze(1) + log_joint - total
            pair = torch.where(counted[t], log_pair.exp(), 0.0)
            entropy = entropy - _product(pair, log_joint - _finite(here).unsqueeze(1))
            later.append(pair)
            behind = _where(_is_before(t, ends), here, behind)
        log_first = messages[0] + behind - total
        first = torch.where(counted[0], log_first.exp(), 0.0)
        pairs = torch.stack(later[::-1]) if later else first.new_zeros(0, *transitions.shape)
        entropy = entropy - _product(first, log_first)
    own = _product(first, start + likelihood[0]) + _product(pairs.sum(0), transitions)
    return own + _product(pairs.sum(1), likelihood[1:]) + entropy


def _product(shares: Tensor, logarithms: Tensor) -> Tensor:
    """Σ of shares times logarithms but for the last dimension, where what has no share may be -inf: [B]."""
    return torch.where(shares > 0, shares * logarithms, 0.0).flatten(0, -2).sum(0)


def _is_before(step: int, ends: Tensor | None) -> Tensor | None:
    """Which sequences have a step, bool [B]; None if all have it."""
    return None if ends is None else step < ends


def _where(goes_on: Tensor | None, value: Tensor, otherwise: Tensor) -> Tensor:
    return value if goes_on is None else torch.where(goes_on, value, otherwise)


def _finite(message: Tensor) -> Tensor:
    """A message to subtract, which leaves -inf where all that it is subtracted from is -inf."""
    return message.clamp(min=torch.finfo(message.dtype).min)
