"""Hidden Markov models as distributions of whole sequences."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro.distributions import MaskedDistribution
from pyro.distributions.util import broadcast_shape
from torch import Tensor
from torch.distributions import Categorical, Distribution, constraints

from pyro_fmvae.distributions.chain import Chain, check_duration, check_lengths, log_probabilities
from pyro_fmvae.distributions.chunks import Sequences, counted
from pyro_fmvae.distributions.columns import check_mask_of_states, is_masked


class _InAllStates(constraints.Constraint):
    """Values that are in the support of the emissions of every state.

    Args:
        of_states: the support of the emissions, whose ends have the emissions' batch shape.
    """

    def __init__(self, of_states: Any) -> None:
        self._of_states = of_states
        super().__init__()

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        return self._of_states.event_dim

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        """As of the emissions."""
        return self._of_states.is_discrete

    def check(self, value: Tensor) -> Tensor:
        """Which values are in the support, [..., T]."""
        inside: Tensor = self._of_states.check(value.unsqueeze(-1 - self.event_dim))
        return inside.all(-1)

    def __repr__(self) -> str:
        return repr(self._of_states)


class HiddenMarkov(Sequences):
    """Sequences of observations whose hidden states are a Markov chain; the states are summed out.

    In a plain program, parameters may have conjugate posteriors: ``TraceConjugate_ELBO`` takes the
    expectation of each logarithm, and sums over the states by one pass forward and one backward (Beal, 2003,
    Variational algorithms for approximate Bayesian inference, Section 3.4). ::

        start = pyro.sample("start", dist.Dirichlet(torch.ones(K)))
        with pyro.plate("states", K):
            rows = pyro.sample("rows", dist.Dirichlet(torch.ones(K)))
            locs = pyro.sample("locs", dist.Normal(0.0, 10.0))
        with pyro.plate("sequences", len(x)):
            pyro.sample("x", HiddenMarkov(start, rows, dist.Normal(locs, 1.0), x.shape[1]), obs=x)

    Args:
        start: probabilities of the first state, [..., K].
        transitions: probabilities of the next state, [..., K, K], a row for each state; with inputs, a table
            for each value of theirs, [..., U, K, K].
        emissions: distribution of an observation given its state: its last batch dimension is K, and the one
            before, if any, 1 or T. Mask it where an observation is missing.
        duration: T, the length of the longest sequence.
        lengths: of each sequence, int64 [...], if they differ. Values after the end do not matter, but have
            to be in the support of the emissions.
        inputs: known numbers of the tables by which the steps are reached, from 0 to U - 1, int64 [..., T].
            That of the first step does not matter. Sums cost as much as those of U K states.

    Sequences may be latent, too, with lengths and masks of whole steps, or as chunks: under
    ``TraceConjugate_ELBO``, steps that are not :attr:`present` count in neither model nor guide.

    Shapes: the event is [T, *event shape of the emissions].

    Raises:
        ValueError: shapes or dtypes do not fit, there is no step, or (with validation on) a length is not in
            1 … T, an input not in 0 … U - 1, or the mask of the emissions differs between states.
    """

    arg_constraints: dict[str, constraints.Constraint] = {  # noqa: RUF012
        "start": constraints.simplex,
        "transitions": constraints.simplex,
    }

    states: Tensor | None

    def __init__(
        self,
        start: Tensor,
        transitions: Tensor,
        emissions: Distribution,
        duration: int,
        lengths: Tensor | None = None,
        inputs: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        states = start.shape[-1] if start.dim() else 0
        table = 2 if inputs is None else 3
        if not states or transitions.shape[-2:] != (states, states) or transitions.dim() < table:
            shape = "[..., K, K]" if inputs is None else "[..., U, K, K]"
            raise ValueError(
                f"start, transitions: expected shapes [..., K] and {shape}, got {list(start.shape)} and "
                f"{list(transitions.shape)}"
            )
        check_duration(duration)
        if inputs is not None:
            _check_steps("inputs", inputs, duration)
        steps = emissions.batch_shape[-2:-1].numel()
        if emissions.batch_shape[-1:] != (states,) or steps not in (1, duration):
            raise ValueError(
                f"emissions: expected a batch shape that ends with the {states} states, after 1 or the "
                f"duration {duration} if there is more, got {list(emissions.batch_shape)}"
            )
        batch = broadcast_shape(
            start.shape[:-1],
            transitions.shape[:-table],
            () if inputs is None else inputs.shape[:-1],
            emissions.batch_shape[:-2],
            () if lengths is None else lengths.shape,
        )
        self.start, self.transitions, self.emissions = start, transitions, emissions
        self.lengths, self.inputs, self.states, self.spans = lengths, inputs, None, None
        super().__init__(batch, (duration, *emissions.event_shape), validate_args=validate_args)
        if self._validate_args:
            check_mask_of_states(emissions)
            if lengths is not None:
                check_lengths(lengths, duration)
            if inputs is not None:
                _check_numbers("inputs", inputs, 0, transitions.shape[-3] - 1)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Any:
        """Sequences of values in the support of the emissions."""
        support: Any = self.emissions.support
        ends = support
        while isinstance(ends, constraints.independent):
            ends = ends.base_constraint
        if any(isinstance(end, Tensor) for end in vars(ends).values()):
            support = _InAllStates(support)
        return constraints.independent(support, 1)

    @property
    def present(self) -> Tensor | None:
        """Steps that are before the end, not in a buffer and not masked out, bool [..., T]; None if all are.

        Raises:
            ValueError: the emissions' mask differs within a step.
        """
        there = super().present
        if isinstance(self.emissions, MaskedDistribution):
            mask = torch.as_tensor(self.emissions._mask).expand(self.emissions.batch_shape)
            mask = mask[..., 0].expand(*mask.shape[:-2], self.event_shape[0])
            return mask if there is None else there & mask
        if is_masked(self.emissions):
            raise ValueError("emissions: expected a mask of whole steps, as in .to_event(1).mask(present)")
        return there

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Expand to ``batch_shape``; the parameters stay the tensors that were given."""
        new: Any = self._get_checked_instance(HiddenMarkov, _instance)
        new.start, new.transitions, new.emissions = self.start, self.transitions, self.emissions
        new.lengths, new.inputs, new.states, new.spans = self.lengths, self.inputs, self.states, self.spans
        super(HiddenMarkov, new).__init__(torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def given(self, states: Tensor) -> "HiddenMarkov":
        """Take some states as known; densities are then those of observations and known states together.

        Draws do not depend on them. The posteriors of an ``AutoConjugate`` start at known states.

        Args:
            states: int64 [..., T], -1 where a state is not known.

        Raises:
            ValueError: states of another shape or dtype, or (with validation on) not in -1 … K - 1.
        """
        _check_steps("states", states, self.event_shape[0])
        if self._validate_args:
            _check_numbers("states", states, -1, self.start.shape[-1] - 1)
        new: HiddenMarkov = self.expand(broadcast_shape(self.batch_shape, states.shape[:-1]))
        new.states = states
        return new

    def chain(
        self,
        value: Tensor,
        table: Callable[[Tensor], Tensor] = log_probabilities,
        density: Callable[[Distribution, Tensor], Tensor] = lambda fn, value: fn.log_prob(value),
    ) -> Chain:
        """The chain of the states, given sequences of observations [..., T, *event].

        Args:
            value: the observations.
            table: gives logarithms of probabilities, or their expectations.
            density: gives the log-density of a value under a distribution, or its expectation.
        """
        value = value.unsqueeze(-1 - len(self.emissions.event_shape))
        likelihood = density(self.emissions, value)
        if self.states is not None:
            known = self.states.unsqueeze(-1)
            may_be = (known < 0) | (known == torch.arange(likelihood.shape[-1], device=known.device))
            likelihood = torch.where(may_be, likelihood, -torch.inf)
        start, transitions = table(self.start), table(self.transitions)
        if self.spans is None:
            return Chain(start, transitions, likelihood, self.lengths, inputs=self.inputs)
        begin, _, _, there = self.spans.unbind(-1)
        start = torch.where(begin.unsqueeze(-1) == 0, start, 0.0)  # others begin in any state
        counts = counted(self.spans, self.event_shape[0])
        return Chain(start, transitions, likelihood, there, counts, self.inputs)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density of sequences [..., T, *event]: [...]."""
        if self._validate_args:
            self._validate_sample(value)
        evidence = self.chain(value).log_evidence()
        return evidence.expand(broadcast_shape(evidence.shape, self.batch_shape))

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Draw sequences, of the full duration: [*sample_shape, ..., T, *event]."""
        shape, (states,) = torch.Size((*sample_shape, *self.batch_shape)), self.start.shape[-1:]
        state = Categorical(self.start.expand(*shape, -1)).sample()
        table = self.transitions if self.inputs is not None else self.transitions.unsqueeze(-3)
        tables = table.expand(*shape, -1, -1, -1)
        inputs = torch.zeros_like(state).unsqueeze(-1) if self.inputs is None else self.inputs
        inputs = inputs.expand(*shape, self.event_shape[0])
        path = [state]
        for step in range(1, self.event_shape[0]):
            number = inputs[..., step, None, None] * states + state[..., None, None]
            row = tables.flatten(-3, -2).gather(-2, number.expand(*shape, 1, states)).squeeze(-2)
            state = Categorical(row).sample()
            path.append(state)
        values = self.emissions.expand((*shape, self.event_shape[0], states)).sample()
        event = len(self.emissions.event_shape)
        index = torch.stack(path, -1)[(..., None, *(None,) * event)]
        index = index.expand(*shape, self.event_shape[0], 1, *values.shape[values.dim() - event :])
        return values.gather(len(shape) + 1, index).squeeze(len(shape) + 1)


def _check_steps(name: str, numbers: Tensor, duration: int) -> None:
    """Refuse numbers of steps that are not int64 [..., T]."""
    if numbers.dtype != torch.int64 or numbers.shape[-1:] != (duration,):
        given = f"{str(numbers.dtype).removeprefix('torch.')} {list(numbers.shape)}"
        raise ValueError(f"{name}: expected int64 [..., {duration}], got {given}")


def _check_numbers(name: str, numbers: Tensor, first: int, last: int) -> None:
    outside = (numbers < first) | (numbers > last)
    if outside.any():
        raise ValueError(f"{name}: expected numbers from {first} to {last}, got {int(numbers[outside][0])}")
