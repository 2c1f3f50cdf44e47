"""Sums over the paths of Markov chains with finitely many states, whole batches of sequences at a time."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fmvae.distributions.path_sums import PathSums, finite, is_before, where_on


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
        """Batch shape of the sequences, [...]."""
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
            result: Tensor = PathSums.apply(*tables)
        else:
            result = _part(*tables, counted.expand(*self.batch_shape, -1).reshape(-1, counted.shape[-1]).T)
        return result.view(self.batch_shape).to(self.log_likelihood.dtype)

    def posterior(self) -> Tensor:
        """The probabilities of the states at each step, [..., T, K]; 0 after the end of a sequence."""
        with torch.enable_grad():
            start, transitions, likelihood, ends = self._by_step()
            likelihood = likelihood.detach().requires_grad_()
            total = PathSums.apply(start, transitions, likelihood, ends)
            (posterior,) = torch.autograd.grad(total.sum(), likelihood)
        return self._by_sequence(posterior.permute(2, 0, 1)).to(self.log_likelihood.dtype)

    def best_path(self) -> Tensor:
        """The path that weighs most, int64 [..., T]; -1 after the end of a sequence. Viterbi (1967)."""
        with torch.no_grad():
            message, transitions, likelihood, ends = self._by_step()
            message, choices = message + likelihood[0], []
            for t in range(1, len(likelihood)):
                best, choice = (message.unsqueeze(1) + transitions).max(0)
                goes_on = is_before(t, ends)
                message = where_on(goes_on, best + likelihood[t], message)
                choices.append(choice)
            state = message.argmax(0)
            path = [state]
            for t in range(len(choices), 0, -1):
                before = choices[t - 1].gather(0, state.unsqueeze(0)).squeeze(0)
                goes_on = is_before(t, ends)
                path[-1] = where_on(goes_on, state, torch.full_like(state, -1))
                state = where_on(goes_on, before, state)
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
            messages.append(where_on(is_before(t, ends), ahead, messages[-1]))
        total, behind, later = messages[-1].logsumexp(0), torch.zeros_like(messages[0]), []
        entropy = torch.zeros_like(total)
        for t in range(len(likelihood) - 1, 0, -1):
            log_joint = transitions + (likelihood[t] + behind)
            here = log_joint.logsumexp(1)
            log_pair = messages[t - 1].unsqueeze(1) + log_joint - total
            pair = torch.where(counted[t], log_pair.exp(), 0.0)
            entropy = entropy - _product(pair, log_joint - finite(here).unsqueeze(1))
            later.append(pair)
            behind = where_on(is_before(t, ends), here, behind)
        log_first = messages[0] + behind - total
        first = torch.where(counted[0], log_first.exp(), 0.0)
        pairs = torch.stack(later[::-1]) if later else first.new_zeros(0, *transitions.shape)
        entropy = entropy - _product(first, log_first)
    own = _product(first, start + likelihood[0]) + _product(pairs.sum(0), transitions)
    return torch.where(total > -torch.inf, own + _product(pairs.sum(1), likelihood[1:]) + entropy, -torch.inf)


def log_probabilities(probabilities: Tensor) -> Tensor:
    """Logarithms of probabilities: -inf, and without a gradient, where one is 0."""
    possible = probabilities != 0
    return torch.where(possible, probabilities.where(possible, 1.0).log(), -torch.inf)


def _product(shares: Tensor, logarithms: Tensor) -> Tensor:
    """Σ of shares times logarithms but for the last dimension, where what has no share may be -inf: [B]."""
    return torch.where(shares > 0, shares * logarithms, 0.0).flatten(0, -2).sum(0)
