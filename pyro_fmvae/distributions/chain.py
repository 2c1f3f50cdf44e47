"""Sums over the paths of Markov chains with finitely many states, whole batches of sequences at a time."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_fmvae.distributions.recorded import is_recorded

# Sums over paths, with sequences along the last dimension, and their gradients.

_MODERATE = 300.0  # nats between transitions to the same state; float64 ends at e^-745
_SHORT = 50  # steps, up to which sequences are not cut into blocks
_FEW, _FEW_LOGARITHMS = 2000, 2500  # numbers K² B and K³ B of a step, up to which blocks are faster
_FEW_PAIRS = 2**20  # pairs of states of all steps, up to which a path is drawn at all steps at once
_FEW_ON_GPU = 2**18  # both, where a step of so many numbers takes no longer than to start it


class PathSums(torch.autograd.Function):
    """log Σ over paths, [B], by one pass forward and one backward.

    It takes tables of the first state [K, B], of transitions [K, K, B or 1] and of likelihoods [T, K, B], and
    lengths [B] or None. On a CPU each pass is a single operation of a recorded program, which looks at
    numbers when it is played.
    """

    @staticmethod
    def forward(
        ctx: Any, start: Tensor, transitions: Tensor, likelihood: Tensor, ends: Tensor | None
    ) -> Tensor:
        """Return log Σ over paths, [B]."""
        result, *tables = (_forward_op if start.is_cpu else _forward)(start, transitions, likelihood, ends)
        ctx.save_for_backward(transitions, *tables, ends)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return *(_backward_op if slope.is_cpu else _backward)(slope, *ctx.saved_tensors), None


def _forward(
    start: Tensor, transitions: Tensor, likelihood: Tensor, ends: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log Σ over paths [B], and what the backward pass needs.

    The steps after the first are one block. Few long sequences are cut into N blocks of L steps: once it is
    known what comes before each block, the blocks are sequences of their own, side by side (Särkkä and
    García-Fernández, 2021, Temporal parallelization of Bayesian smoothers). Nothing is left out.

    Returns:
        The sum; for each step but the first, the messages before its transition and after it, [T - 1, K, B]
        each; for each block, the probabilities of the states at its end given all that is observed,
        [N, K, B]. A single block has the last of these N.
    """
    before, steps, moderate = start + likelihood[0], likelihood[1:], _is_moderate(transitions)
    number = _number_of_blocks(steps, moderate)
    of_blocks, ends = _of_blocks(transitions, ends, steps, number)
    at_ends = steps.new_zeros(_most_blocks(len(steps)), *before.shape)
    way = _scaled_forward if moderate else _log_forward
    if number == 1:
        total, last, messages, predictions = way(before, of_blocks, steps, ends)
        return total, messages, predictions, torch.cat([at_ends[1:], last.unsqueeze(0)])
    duration, steps = len(steps), _cut(steps, number)
    products = (_scaled_products if moderate else _log_products)(of_blocks, steps, ends)
    before, at_ends = _ends_of_blocks(before, products.unflatten(-1, (number, -1)))
    total, _, *tables = way(before, of_blocks, steps, ends)
    messages, predictions = (_joined(table, number, duration) for table in tables)
    return total.unflatten(-1, (number, -1))[-1].clone(), messages, predictions, at_ends


def _backward(
    slope: Tensor,
    transitions: Tensor,
    messages: Tensor,
    predictions: Tensor,
    at_ends: Tensor,
    ends: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the tables of the first state, transitions and likelihoods."""
    moderate = _is_moderate(transitions)
    number = _number_of_blocks(predictions, moderate)
    last = (at_ends[-number:] * slope).transpose(0, 1).flatten(1)
    of_blocks, ends = _of_blocks(transitions, ends, predictions, number)
    way = _scaled_backward if moderate else _log_backward
    counts, of_steps = way(last, of_blocks, _cut(messages, number), _cut(predictions, number), ends)
    if transitions.shape[-1] > 1:
        counts = counts.unflatten(-1, (number, -1)).sum(2)
    if number > 1:
        first = of_steps[:1, :, : slope.shape[-1]]
        of_steps = torch.cat([first, _joined(of_steps[1:], number, len(predictions))])
    return of_steps[0].clone(), counts, of_steps


_forward_op = torch.library.custom_op(
    "pyro_fmvae::path_sums",
    _forward,
    mutates_args=(),
    schema="(Tensor start, Tensor transitions, Tensor likelihood, Tensor? ends) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
)
_backward_op = torch.library.custom_op(
    "pyro_fmvae::path_sums_backward",
    _backward,
    mutates_args=(),
    schema="(Tensor slope, Tensor transitions, Tensor messages, Tensor predictions, Tensor at_ends, "
    "Tensor? ends) -> (Tensor, Tensor, Tensor)",
)


@_forward_op.register_fake
def _(start: Tensor, transitions: Tensor, likelihood: Tensor, ends: Tensor | None) -> tuple[Tensor, ...]:
    later = likelihood[1:]
    at_ends = likelihood.new_empty(_most_blocks(len(later)), *likelihood.shape[1:])
    return start.new_empty(start.shape[1:]), torch.empty_like(later), torch.empty_like(later), at_ends


@_backward_op.register_fake
def _(
    slope: Tensor,
    transitions: Tensor,
    messages: Tensor,
    predictions: Tensor,
    at_ends: Tensor,
    ends: Tensor | None,
) -> tuple[Tensor, ...]:
    of_steps = messages.new_empty(len(messages) + 1, *messages.shape[1:])
    return torch.empty_like(of_steps[0]), transitions.new_empty(transitions.shape), of_steps


def _is_moderate(transitions: Tensor) -> bool:
    """True if transitions may be taken as numbers, in the place of logarithms.

    A recorded program, which can't depend on numbers, takes logarithms.
    """
    if transitions.shape[-1] > 1 or is_recorded():
        return False
    spread = transitions.detach().amax(0) - transitions.detach().amin(0)
    return bool(spread.max() < _MODERATE)


def _most_blocks(steps: int) -> int:
    """The number of blocks for the fewest operations one after another."""
    return math.ceil(steps / math.ceil(math.sqrt(steps) / 2)) if steps > _SHORT else 1


def _number_of_blocks(steps: Tensor, moderate: bool) -> int:
    """N: 1 if the numbers of all pairs of states take longer than operations one after another."""
    duration, states, batch = steps.shape
    numbers = states ** (2 if moderate else 3) * batch
    most = _FEW_ON_GPU if steps.is_cuda else _FEW if moderate else _FEW_LOGARITHMS
    return _most_blocks(duration) if numbers <= most else 1


def _of_blocks(
    transitions: Tensor, ends: Tensor | None, steps: Tensor, number: int
) -> tuple[Tensor, Tensor | None]:
    """Transitions and numbers of steps (less than 0: none) of the blocks that sequences are cut into."""
    ends = None if ends is None else ends - 1  # the first step is in no block
    if number == 1:
        return transitions, ends
    if ends is None:
        ends = torch.full(steps.shape[-1:], len(steps), device=steps.device)
    begins = math.ceil(len(steps) / number) * torch.arange(number, device=steps.device)
    own = transitions.shape[-1] > 1
    return transitions.repeat(1, 1, number) if own else transitions, (ends - begins.unsqueeze(-1)).flatten()


def _cut(table: Tensor, number: int) -> Tensor:
    """Cut sequences into blocks: [T, K, B] → [L, K, N B]."""
    if number == 1:
        return table
    length = math.ceil(len(table) / number)
    padded = table.new_zeros(number * length, *table.shape[1:])
    padded[: len(table)] = table
    return padded.unflatten(0, (number, length)).permute(1, 2, 0, 3).flatten(2)


def _joined(blocks: Tensor, number: int, duration: int) -> Tensor:
    """Undo :func:`_cut`."""
    if number == 1:
        return blocks
    return blocks.unflatten(-1, (number, -1)).permute(2, 0, 1, 3).flatten(0, 1)[:duration].clone()


def _ends_of_blocks(before: Tensor, products: Tensor) -> tuple[Tensor, Tensor]:
    """The messages before each block [K, N B], and the probabilities of the states at its end [N, K, B].

    Args:
        before: the message before the first block, [K, B].
        products: logarithms of the weights of all paths from the state before a block to that at its end,
            [K, K, N, B].
    """
    messages = [before]
    for product in products.unbind(2):
        messages.append((messages[-1].unsqueeze(1) + product).logsumexp(0))
    earlier, later = (torch.stack(each, 1) for each in (messages[:-1], messages[1:]))
    given_later = (earlier.unsqueeze(1) + products - finite(later)).exp()
    at_ends = [_shares(messages[-1])]
    for given in given_later.unbind(2)[:0:-1]:
        at_ends.append((given * at_ends[-1]).sum(1))
    return earlier.flatten(1), torch.stack(at_ends[::-1])


def _shares(message: Tensor) -> Tensor:
    """The probabilities of states, of messages [..., K, B]; 0 where there is no path."""
    return (message - finite(message.logsumexp(-2, keepdim=True))).exp()


def _log_forward(
    before: Tensor, transitions: Tensor, steps: Tensor, ends: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """By sums of exponentials of every pair of states, exact whatever the numbers.

    Returns:
        The sum [B], the probabilities of the last states [K, B], and tables as of :func:`_forward`.
    """
    messages, predictions = [before], [steps.new_empty(before.shape)]
    for t, step in enumerate(steps.unbind()):
        pairs = messages[-1].unsqueeze(1) + transitions
        largest = finite(pairs.amax(0))
        predictions.append(largest + (pairs - largest).exp().sum(0).log())
        messages.append(where_on(is_before(t, ends), predictions[-1] + step, messages[-1]))
    last = messages[-1]
    return last.logsumexp(0), _shares(last), torch.stack(messages)[:-1], torch.stack(predictions)[1:]


def _log_products(transitions: Tensor, steps: Tensor, ends: Tensor | None) -> Tensor:
    """Logarithms of the weights of all paths from the state before a sequence to its last one, [K, K, B]."""
    product = (
        torch.eye(len(transitions), dtype=steps.dtype, device=steps.device)
        .log()
        .unsqueeze(-1)
        .expand(-1, -1, steps.shape[-1])
    )
    for t, step in enumerate(steps.unbind()):
        ahead = (product.unsqueeze(2) + transitions).logsumexp(1) + step
        product = where_on(is_before(t, ends), ahead, product)
    return product


def _log_backward(
    last: Tensor, transitions: Tensor, messages: Tensor, predictions: Tensor, ends: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The probability of a pair of states is that of the later one times that of the earlier one given it.

    This needs no normaliser.

    Returns:
        Expected numbers of pairs, and probabilities of the states before all steps and at each one,
        [T + 1, K, B], which are 0 after the end.
    """
    states, of_steps, counts = last, [], transitions.new_zeros(transitions.shape)
    for t in range(len(messages) - 1, -1, -1):
        goes_on = is_before(t, ends)
        earlier = (messages[t].unsqueeze(1) + transitions - finite(predictions[t])).exp()
        here = where_on(goes_on, states, torch.zeros_like(states))
        pairs = earlier * here
        of_steps.append(here)
        counts = counts + (pairs.sum(-1, keepdim=True) if counts.shape[-1] == 1 else pairs)
        states = where_on(goes_on, pairs.sum(1), states)
    return counts, torch.stack([states, *reversed(of_steps)])


def _scaled_forward(
    before: Tensor, transitions: Tensor, steps: Tensor, ends: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """By products of matrices, for transitions that all sequences share; returns as :func:`_log_forward`.

    Messages are probabilities of the states given what is observed so far. What they round to 0 is less than
    e^-145 of any sum that it is missing in, as transitions to a state differ by less than e^300.
    """
    matrix, weights, top = _scaled(transitions, steps)
    states, predictions = weights.new_empty(len(steps) + 1, *steps.shape[1:]), torch.empty_like(weights)
    states[0], sizes, least = _shares(before), torch.empty_like(top), torch.finfo(top.dtype).tiny
    for t, (here, size) in enumerate(zip(states[1:].unbind(), sizes.unbind(), strict=True)):
        torch.mm(matrix.T, states[t], out=predictions[t])
        torch.mul(predictions[t], weights[t], out=here)
        torch.sum(here, 0, out=size)
        here.div_(size.clamp(min=least))  # of an impossible sequence, 0
        if ends is not None:
            here.copy_(torch.where(t < ends, here, states[t]))
    total = before.logsumexp(0) + _sum_before(ends, sizes.log_().add_(top))
    return total, states[-1], states[:-1], predictions.clamp_(min=least)


def _scaled_products(transitions: Tensor, steps: Tensor, ends: Tensor | None) -> Tensor:
    """As :func:`_log_products`: forward passes from every state, each with a scale of its own."""
    matrix, weights, top = _scaled(transitions, steps)
    product = (
        torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        .unsqueeze(-1)
        .expand(-1, -1, steps.shape[-1])
    )  # [to, from, B]
    sizes, least = [], torch.finfo(top.dtype).tiny
    for t, weight in enumerate(weights.unbind()):
        ahead = (matrix.T @ product.reshape(len(matrix), -1)).view_as(product).mul_(weight.unsqueeze(1))
        sizes.append(ahead.sum(0))
        product = where_on(is_before(t, ends), ahead.div_(sizes[-1].clamp(min=least)), product)
    total = _sum_before(ends, torch.stack(sizes).log_().add_(top.unsqueeze(1)))
    return (product.log() + total).transpose(0, 1)


def _scaled_backward(
    last: Tensor, transitions: Tensor, states: Tensor, predictions: Tensor, ends: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As :func:`_log_backward`."""
    matrix, *_ = _scaled(transitions, states[:0])
    of_steps, shares = states.new_empty(len(states) + 1, *last.shape), torch.empty_like(states)
    of_steps[-1] = last
    for t in range(len(states) - 1, -1, -1):
        torch.div(of_steps[t + 1], predictions[t], out=shares[t])
        earlier = torch.mm(matrix, shares[t], out=of_steps[t]).mul_(states[t])
        if ends is not None:
            earlier.copy_(torch.where(t < ends, earlier, of_steps[t + 1]))
    if ends is not None:
        over = ~_there(ends, states)
        for table in (shares, of_steps[1:]):
            table.masked_fill_(over, 0.0)
    counts = torch.bmm(states, shares.mT).sum(0) * matrix
    return counts.unsqueeze(-1), of_steps


def _scaled(transitions: Tensor, steps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Transitions and weights of the states at each step, at most 1, and logarithms of what scales these.

    Returns:
        [K, K], [T, K, B] and [T, B].
    """
    largest = transitions.amax(0)
    weights = steps + largest
    top = finite(weights.amax(1))
    return (transitions - largest).exp().squeeze(-1), weights.sub_(top.unsqueeze(1)).exp_(), top


def _sum_before(ends: Tensor | None, parts: Tensor) -> Tensor:
    """Sum parts [T, ..., B] over the steps before the end of each sequence: [..., B]."""
    return (parts if ends is None else torch.where(_there(ends, parts), parts, 0.0)).sum(0)


def _there(ends: Tensor, table: Tensor) -> Tensor:
    """Which steps of a table [T, ..., B] are before the end of their sequences."""
    steps = torch.arange(len(table), device=ends.device)
    return steps.view(-1, *(1,) * (table.dim() - 1)) < ends


def is_before(step: int, ends: Tensor | None) -> Tensor | None:
    """Which sequences have a step, bool [B]; None if all have it."""
    return None if ends is None else step < ends


def where_on(goes_on: Tensor | None, value: Tensor, otherwise: Tensor) -> Tensor:
    """The value of sequences that go on, of others what it was; see :func:`is_before`."""
    return value if goes_on is None else torch.where(goes_on, value, otherwise)


def finite(message: Tensor) -> Tensor:
    """A message to subtract, which leaves -inf where all that it is subtracted from is -inf."""
    return message.clamp(min=torch.finfo(message.dtype).min)


@dataclass(frozen=True)
class Chain:
    """The weights of all paths of a batch of chains, in logarithms that need not be normalised.

    A path z_1 … z_T weighs start[z_1] Π transitions[z_t, z_t+1] Π likelihood[t, z_t]. Sums are in float64.
    With inputs u, the transition to step t is by the table transitions[u_t]. Sums are then over pairs of an
    input and a state, which cost as much as those of U K states.

    Attributes:
        log_start: of the first state, [..., K].
        log_transitions: from one state (row) to the next, [..., K, K]; with inputs, [..., U, K, K].
        log_likelihood: of what is observed at each step, [..., T, K].
        lengths: T of each sequence, int64 [...], if they differ; steps from there on do not count.
        counted: whether a step counts for itself, bool [..., T], or None: all do. Others are a buffer. They
            help to tell the states of those that count.
        inputs: u of each step, from 0 to U - 1, int64 [..., T]; that of the first step does not matter.
    """

    log_start: Tensor
    log_transitions: Tensor
    log_likelihood: Tensor
    lengths: Tensor | None = None
    counted: Tensor | None = None
    inputs: Tensor | None = None

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of the sequences, [...]."""
        batch = [self.log_start.shape[:-1], self.log_transitions.shape[:-2], self.log_likelihood.shape[:-2]]
        if self.inputs is not None:
            batch[1:2] = self.log_transitions.shape[:-3], self.inputs.shape[:-1]
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
        return self._of_states(posterior.permute(2, 0, 1)).to(self.log_likelihood.dtype)

    def filtered(self) -> Tensor:
        """The probabilities of the states at each step given the steps up to it, [..., T, K].

        They are 0 where no path is possible. After the end of a sequence, they are those of its last step.
        """
        with torch.no_grad():
            start, transitions, likelihood, ends = self._by_step()
            _, last, messages, _ = _log_forward(start + likelihood[0], transitions, likelihood[1:], ends)
            shares = torch.cat([_shares(messages), last.unsqueeze(0)])
            return self._of_states(shares.permute(2, 0, 1)).to(self.log_likelihood.dtype)

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
            found = torch.stack(path[::-1], -1)
            return self._by_sequence(torch.where(found < 0, found, found % self.log_start.shape[-1]))

    def draw(self) -> Tensor:
        """A path drawn in proportion to its weight, int64 [..., T]: forward sums, backward sampling.

        Steps after the end of a sequence have some state, which means nothing.
        """
        with torch.no_grad():
            tables = self._by_step()
            _, messages, _, at_ends = _forward(*tables)
            _, transitions, likelihood, ends = tables
            if _is_moderate(transitions):
                messages = messages.log()
            last = draw_index(at_ends[-1].log(), 0)
            few = likelihood.shape[1] * likelihood.numel() <= _FEW_PAIRS
            path = (_drawn_at_once if few else _drawn_in_turn)(messages, transitions, ends, last)
            return self._by_sequence(path.movedim(0, -1) % self.log_start.shape[-1])

    def log_weight(self, path: Tensor) -> Tensor:
        """The logarithm of the weight of paths [..., T], [...], in the dtype of the likelihood."""
        start, transitions, likelihood, ends = self._by_step()
        if self.inputs is not None:
            path = path + self.log_start.shape[-1] * self.inputs
        path = path.reshape(-1, path.shape[-1]).T
        own = likelihood.gather(1, path.unsqueeze(1)).squeeze(1)
        rows = transitions.reshape(-1, transitions.shape[-1])  # [K * K, B or 1]
        pairs = path[:-1] * start.shape[0] + path[1:]
        steps = rows.expand(-1, path.shape[-1]).gather(0, pairs)
        if ends is not None:
            own = torch.where(_there(ends, own), own, 0.0)
            steps = torch.where(_there(ends, own)[1:], steps, 0.0)
        total = start.gather(0, path[:1]).squeeze(0) + own.sum(0) + steps.sum(0)
        return total.view(self.batch_shape).to(self.log_likelihood.dtype)

    def _by_step(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Tables with the sequences last, so that steps are loops over long rows of numbers.

        Returns:
            [K, B], [K, K, B or 1], [T, K, B], and the lengths [B].
        """
        batch, one = self.batch_shape, torch.Size([1])
        start, transitions, likelihood = self._tables()
        start = start.double().expand(*batch, -1).reshape(batch.numel(), -1).T
        transitions = transitions.double()
        shared = transitions.shape[:-2].numel() == 1
        transitions = transitions.expand(*(one if shared else batch), *transitions.shape[-2:])
        transitions = transitions.reshape(-1, *transitions.shape[-2:]).permute(1, 2, 0)
        likelihood = likelihood.expand(*batch, -1, -1).reshape(batch.numel(), *likelihood.shape[-2:])
        ends = None if self.lengths is None else self.lengths.expand(batch).reshape(-1)
        return start, transitions, likelihood.permute(1, 2, 0).to(torch.float64, copy=True).contiguous(), ends

    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tables of the start, transitions and likelihood; with inputs, of all pairs (u, z) in this order."""
        start, transitions, likelihood = self.log_start, self.log_transitions, self.log_likelihood
        if self.inputs is None:
            return start, transitions, likelihood
        number = transitions.shape[-3]
        rows = transitions.transpose(-3, -2).flatten(-2)  # to all pairs, whatever the input before
        given = self.inputs.unsqueeze(-1) == torch.arange(number, device=rows.device)
        possible = torch.where(given.unsqueeze(-1), likelihood.unsqueeze(-2), -torch.inf)
        start, rows = torch.cat([start] * number, -1), torch.cat([rows] * number, -2)
        return start, rows, possible.flatten(-2)

    def _of_states(self, table: Tensor) -> Tensor:
        """Probabilities [B, T, U K] as those of the states, [..., T, K]."""
        return self._by_sequence(table.unflatten(-1, (-1, self.log_start.shape[-1])).sum(-2))

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


def _drawn_in_turn(messages: Tensor, transitions: Tensor, ends: Tensor | None, last: Tensor) -> Tensor:
    """A path [T, B] to the last states [B], from messages [T - 1, K, B] before each transition."""
    path = [last]
    transitions = transitions.expand(*transitions.shape[:2], len(last))
    for t in range(len(messages), 0, -1):
        to_next = transitions.gather(1, path[-1].expand(len(transitions), 1, -1)).squeeze(1)
        before = draw_index(messages[t - 1] + to_next, 0)
        path.append(where_on(is_before(t, ends), before, path[-1]))
    return torch.stack(path[::-1])


def _drawn_at_once(messages: Tensor, transitions: Tensor, ends: Tensor | None, last: Tensor) -> Tensor:
    """As :func:`_drawn_in_turn`, in log T operations.

    At each step a state is drawn for every state that may follow it. These maps are composed, with twice as
    many steps in each every time.
    """
    maps = draw_index(messages.unsqueeze(2) + transitions, 1)  # [T - 1, K, B]
    if ends is not None:
        same = torch.arange(maps.shape[1], device=maps.device).unsqueeze(-1)
        maps = torch.where(_there(ends - 1, maps), maps, same)
    steps = 1
    while steps < len(maps):
        maps = torch.cat([maps[:-steps].gather(1, maps[steps:]), maps[-steps:]])
        steps *= 2
    last = last.unsqueeze(0)
    return torch.cat([maps.gather(1, last.expand(len(maps), 1, -1)).squeeze(1), last])


def draw_index(logits: Tensor, dim: int) -> Tensor:
    """Numbers drawn along a dimension in proportion to exp(logits), int64 without that dimension."""
    noise = torch.rand_like(logits, dtype=torch.float64)  # the largest sum with Gumbel noise
    return (logits.detach() - (-noise.log()).log()).argmax(dim)


def log_probabilities(probabilities: Tensor) -> Tensor:
    """Logarithms of probabilities: -inf, and without a gradient, where one is 0."""
    possible = probabilities != 0
    return torch.where(possible, probabilities.where(possible, 1.0).log(), -torch.inf)


def _product(shares: Tensor, logarithms: Tensor) -> Tensor:
    """Σ of shares times logarithms but for the last dimension, where what has no share may be -inf: [B]."""
    return torch.where(shares > 0, shares * logarithms, 0.0).flatten(0, -2).sum(0)
