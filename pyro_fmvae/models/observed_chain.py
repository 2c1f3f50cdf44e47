"""A Bayesian hidden Markov model of the rows of a table: states are components, every update is exact."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import Distribution

from pyro_fmvae.distributions import Columns, HiddenMarkov, NaturalDistribution
from pyro_fmvae.distributions.chain import Chain
from pyro_fmvae.distributions.restated import log_beta
from pyro_fmvae.models.learnt_prior import LearntPrior
from pyro_fmvae.models.packed_numbers import PackedObservations, incomplete
from pyro_fmvae.models.regressed_numbers import (
    LINES,
    LearntRegression,
    RegressedNumbers,
    at_zero,
    drawn,
    regressed_emission,
    regression_prior,
)
from pyro_fmvae.models.table_posterior import TablePosterior
from pyro_fmvae.models.table_sites import (
    NUMBERS,
    WEIGHTS,
    TablePrior,
    TableSites,
    parameter_of,
)

START: Final = WEIGHTS
"""Site of the probabilities of the first state."""
TRANSITIONS: Final = "transitions"
"""Site of the probabilities of the next state."""
SHARES: Final = "shares"
"""Site of the columns of successes in a number of trials."""
IMPOSSIBLE: Final = 1e-10
"""Concentration that stands for 0 in the prior of a transition that does not happen."""


class ChainSites(TableSites):
    """The children of the state of an :class:`ObservedChain`.

    Args:
        levels: see :class:`ObservedMixture`; columns of successes and of numbers of trials count as left out.
        trials: for each column of successes, that of the numbers of trials, or -1: there is one trial.
        start: concentrations of the prior of the first state, [K].
        transitions: those of the next states, [K, K], 0 for what does not happen.
        prior: hyperparameters of the columns.
        full: see :class:`ObservedMixture`.
        covariates: columns that the means of the numbers are linear in; they count as left out.
        inputs: number U of values of the input by its column, which counts as left out, if there is one. Each
            value has a table of transitions, with the same prior.
    """

    apart = (START, TRANSITIONS)

    def __init__(
        self,
        levels: Sequence[int],
        trials: Mapping[int, int],
        start: Tensor,
        transitions: Tensor,
        prior: TablePrior,
        full: bool,
        covariates: Sequence[int] = (),
        inputs: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(levels, len(start), (), prior, full)
        self.input = list(inputs or {})
        self.covariates = list(covariates) if self.numbers else []
        self.levels, self.trials = tuple(levels), dict(trials)
        self.start, self.transitions = start.double(), transitions.double()
        for number in (inputs or {}).values():
            self.transitions = self.transitions.expand(number, -1, -1)

    def priors(self, learnt: Any = None) -> dict[str, Any]:
        """Priors of the first state, batch shape [], of transitions, and of each child's parameters, [K]."""
        device = torch.get_default_device()
        found = super().priors(learnt)
        for name, concentration in ((START, self.start), (TRANSITIONS, self.transitions)):
            found[name] = dist.Dirichlet(concentration.clamp(min=IMPOSSIBLE).to(device))
        if self.trials:
            each = torch.full((len(self.trials), 2), self.prior.d0)
            found[parameter_of(SHARES)] = dist.Dirichlet(each).to_event(1).expand([self.components])
        return found

    def numbers_prior(self) -> Any:
        given = super().numbers_prior()
        return regression_prior(given, torch.ones(len(self.covariates))) if self.covariates else given

    def learnt_prior(self) -> LearntPrior:
        if not self.covariates:
            return super().learnt_prior()
        given = self.prior.numbers is not None
        numbers, means = super().numbers_prior(), given and self.prior.learn_s0
        return LearntRegression(numbers, given, means, len(self.covariates))

    def observations(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        """Values that each child observes, by site.

        Beside covariates, numbers are :class:`RegressedNumbers`. Successes are float64 [N, 2 C + 1]:
        successes, then failures of the C columns, both 0 where missing, and the sum of the logarithms of
        binomial coefficients.
        """
        found: dict[str, Any] = super().observations(x, labels)
        if self.covariates:
            found[NUMBERS] = RegressedNumbers(x[:, self.numbers], x[:, self.covariates], self.full)
        if self.trials:
            taken, ones = x[:, list(self.trials)].double(), torch.ones(len(x), device=x.device)
            total = torch.stack([x[:, c] if c >= 0 else ones for c in self.trials.values()], -1)
            gone = taken.isnan() | total.isnan() | (taken > total)  # a category above those of training
            yes, no = (part.masked_fill(gone, 0.0) for part in (taken, total - taken))
            ways = (yes + no + 1).lgamma() - (yes + 1).lgamma() - (no + 1).lgamma()
            found[SHARES] = torch.cat([yes, no, ways.sum(-1, keepdim=True)], -1)
        return found

    def log_likelihoods(self, child: str, values: Any, stats: Tensor, others: Tensor) -> Tensor:
        if isinstance(values, RegressedNumbers):
            return values.log_likelihoods(stats)
        if child != SHARES:
            return super().log_likelihoods(child, values, stats, others)
        return values[:, :-1] @ stats.transpose(-1, -2).flatten(-2).mT + values[:, -1:]

    def conjugate(
        self,
        child: str,
        prior: Tensor,
        values: Any,
        gamma: Tensor,
        stats: Tensor,
        scale: Tensor | float = 1.0,
    ) -> Tensor:
        if isinstance(values, RegressedNumbers):
            return values.update(prior, gamma, scale)
        if child != SHARES:
            return super().conjugate(child, prior, values, gamma, stats, scale)
        return prior + scale * (gamma.mT @ values[:, :-1]).unflatten(-1, (2, -1)).transpose(-1, -2)


@dataclass(frozen=True)
class SequenceRows:
    """Rows of sequences of different lengths.

    Attributes:
        observations: of all rows, one sequence after the other.
        lengths: of the sequences, each 1 or more, int64 [B].
        weights: how many sequences each one stands for, float64 [B].
        there: which places of a table [B, T] the rows have, bool.
        states: known states of the rows, -1 where unknown, int64 [N]; None: all are unknown.
        inputs: of a table [B, T], int64, if there are any.
    """

    observations: PackedObservations
    lengths: Tensor
    weights: Tensor
    there: Tensor
    states: Tensor | None = None
    inputs: Tensor | None = None

    @classmethod
    def of(
        cls,
        model: "ObservedChain",
        x: Tensor,
        lengths: Tensor,
        weights: Tensor | None = None,
        states: Tensor | None = None,
    ) -> "SequenceRows":
        """Sequences of rows [N, D], whose lengths add up to N."""
        there = _places(lengths)
        weights = torch.ones(len(lengths), dtype=torch.float64) if weights is None else weights
        partial = model.sites.full and not model.sites.covariates
        gaps = partial and incomplete(x[:, model.sites.numbers]).any()
        # packed rows with gaps leave out pairs of a row and a state that neighbours may ask for
        observations = model.sites.observations(x) if gaps else model.packed(x)
        return cls(observations, lengths, weights.to(x.device), there, states, model.inputs_of(x, there))


@dataclass(frozen=True)
class Expected:
    """Expected states of rows, and their sums over sequences with their weights.

    Attributes:
        gamma: probabilities of the states, times the weights, [N, K].
        first: of the first state, [K].
        pairs: expected numbers of transitions, [K, K] or [U, K, K].
        evidence: part of the bound that the sequences have.
    """

    gamma: Tensor
    first: Tensor
    pairs: Tensor
    evidence: float = 0.0

    @classmethod
    def of_states(cls, sequences: SequenceRows, gamma: Tensor) -> "Expected":
        """The sums where the states of neighbouring rows are independent, of probabilities [N, K].

        Transitions of all inputs are summed together: [K, K].
        """
        table = by_sequence(gamma.double(), sequences.there)
        weighted = table * sequences.weights[:, None, None]
        pairs = torch.einsum("btj,btk->jk", weighted[:, :-1], table[:, 1:])
        return cls(weighted[sequences.there], weighted[:, 0].sum(0), pairs)


class ObservedChain(TablePosterior):
    """Sequences of table rows whose states are a Markov chain.

        z_1 ~ Categorical(π),  z_t+1 | z_t=j ~ Categorical(A_j),  π ~ Dirichlet(s),  A_j ~ Dirichlet(a_j),

    and given the state, a row is that of a component of an :class:`ObservedMixture`. A column of successes is
    x | r=k ~ Binomial(n, φ_k) with φ_k ~ Beta(d0, d0). Beside covariates u, numbers are
    x | r=k ~ N(W_k (1, u), Λ_k⁻¹). Missing entries are marginalised. With an input v, a transition to step t
    is by the table of v_t, A[v_t].
    """

    sites: ChainSites

    @property
    def program_names(self) -> Mapping[str, str]:  # type: ignore[override]
        """See :class:`TablePosterior`."""
        lines = {parameter_of(NUMBERS): LINES} if self.sites.covariates else {}
        return {**TablePosterior.program_names, START: "start", **lines}

    @torch.no_grad()
    def chain(self, sequences: SequenceRows) -> Chain:
        """The chains of the states, with expected logarithms."""
        table: Any = torch.zeros(self.components, dtype=torch.float64, device=self.device)
        for name, values in sorted(sequences.observations.items(), key=lambda item: item[0] == NUMBERS):
            stats = self.natural(parameter_of(name)).expected_stats()
            table = table + self.sites.log_likelihoods(name, values, stats, table)
        start, transitions = (
            self.natural(name).expected_stats().masked_fill(given.to(self.device) == 0, -torch.inf)
            for name, given in ((START, self.sites.start), (TRANSITIONS, self.sites.transitions))
        )
        if sequences.states is not None:
            known = sequences.states.unsqueeze(-1)
            other = (known >= 0) & (known != torch.arange(self.components, device=known.device))
            table = table.masked_fill(other, -torch.inf)
        return _chain(start, transitions, table, sequences.lengths, sequences.there, sequences.inputs)

    @torch.no_grad()
    def predictive_chain(self, x: Tensor, lengths: Tensor) -> Chain:
        """The chains of sequences of rows [N, D], whose lengths [B] add up to N, with predictive densities.

        Start and transitions are at their posterior means.
        """
        table: Any = torch.zeros(self.components, dtype=torch.float64, device=self.device)
        for name, values in self.sites.observations(x.double()).items():
            table = table + self.log_predictives(name, values)
        there = _places(lengths)
        tables = self.start().log(), self.transitions().log(), table
        return _chain(*tables, lengths, there, self.inputs_of(x, there))

    def inputs_of(self, x: Tensor, there: Tensor) -> Tensor | None:
        """Inputs of rows [N, D] at their places [B, T], int64, if there are any."""
        return by_sequence(x[:, self.sites.input[0]].long(), there) if self.sites.input else None

    def expected(self, sequences: SequenceRows) -> Expected:
        """Sums at the present posterior, whose gradients the probabilities of states are."""
        chain = self.chain(sequences)
        tables = chain.log_start, chain.log_transitions, chain.log_likelihood
        start, transitions, likelihood = (part.detach().requires_grad_() for part in tables)
        with torch.enable_grad():
            followed = replace(chain, log_start=start, log_transitions=transitions, log_likelihood=likelihood)
            evidence = followed.log_evidence() @ sequences.weights
        first, pairs, gamma = torch.autograd.grad(evidence, (start, transitions, likelihood))
        return Expected(gamma[sequences.there], first, pairs, evidence.item())

    @torch.no_grad()
    def sums(self, sequences: SequenceRows, expected: Expected) -> dict[str, Tensor]:
        """The statistics that the rows add to λ of each site; missing numbers are filled in as expected."""
        found = {
            START: expected.first * (self.sites.start > 0).to(expected.first.device),
            TRANSITIONS: expected.pairs * (self.sites.transitions > 0).to(expected.pairs.device),
        }
        for child, values in sequences.observations.items():
            name = parameter_of(child)
            nothing = torch.zeros_like(self.natural(name).natural)
            stats = self.natural(name).expected_stats()
            found[name] = self.sites.conjugate(child, nothing, values, expected.gamma, stats)
        return found

    @property
    def is_ordered(self) -> bool:
        """True if no state is followed by one of a smaller number."""
        return self.components > 1 and not self.sites.transitions.tril(-1).any()

    @property
    def is_exchangeable(self) -> bool:
        """True if the prior is the same for every order of the states."""
        start, transitions = self.sites.start, self.sites.transitions
        stays = torch.eye(self.components, dtype=torch.bool, device=start.device)
        parts = start, transitions[..., stays], transitions[..., ~stays]
        return all(bool((part == part.flatten()[:1]).all()) for part in parts)

    # ------------------------------------------------------------------ the program

    def program_arguments(
        self, x: Tensor, lengths: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Arguments of :meth:`program`, of rows [N, D] of sequences.

        Returns:
            Columns of numbers, counts, categories and successes in this order, 0 where missing, [B, T, D];
            which of them are there, bool [B, T, D]; lengths [B]; weights [B]; numbers of trials, then
            covariates, then the input, [B, T, C + P + 1 or 0].

        Raises:
            ValueError: a row misses some numbers, but not all, and covariances are full.
        """
        sites = self.sites
        rows, known = self.program_rows(x)
        ones = torch.ones(len(x), device=x.device)
        totals = [x[:, column] if column >= 0 else ones for column in sites.trials.values()]
        trials = torch.stack(totals, -1) if totals else x.new_zeros(len(x), 0)
        known[:, rows.shape[1] - len(totals) :] &= ~trials.isnan() & (
            rows[:, rows.shape[1] - len(totals) :] <= trials
        )
        rows = torch.where(known, rows, 0.0)
        there = _places(lengths)
        weights = torch.ones(len(lengths), dtype=rows.dtype) if weights is None else weights.to(rows)
        weights = weights.clamp(min=torch.finfo(rows.dtype).tiny)  # which Pyro refuses to be 0
        given = torch.cat([trials, x[:, [*sites.covariates, *sites.input]]], -1).nan_to_num(0.0).to(rows)
        return (
            by_sequence(rows, there),
            by_sequence(known, there),
            lengths,
            weights,
            by_sequence(given, there),
        )

    def program(self) -> Callable[..., None]:
        """The model as a plain Pyro program of :meth:`program_arguments`, with the learnt prior."""
        sites, states = self.sites, self.components
        numbers = self.prior_of_numbers()
        first, later = (part.double().clamp(min=IMPOSSIBLE) for part in (sites.start, sites.transitions))

        def model(x: Tensor, there: Tensor, lengths: Tensor, weights: Tensor, given: Tensor) -> None:
            start = pyro.sample("start", dist.Dirichlet(first))
            inputs = given[..., -1].long() if sites.input else None
            with pyro.plate("states", states):
                with nullcontext() if inputs is None else pyro.plate("inputs", len(later), dim=-2):
                    rows = pyro.sample(TRANSITIONS, dist.Dirichlet(later))
                columns = Columns(*self.emissions(numbers, there, given))
            with pyro.plate("sequences", len(x)), poutine.scale(scale=weights):
                pyro.sample("x", HiddenMarkov(start, rows, columns, x.shape[1], lengths, inputs), obs=x)

        return model

    def emissions(self, numbers: Sequence[Tensor], there: Tensor, *given: Tensor) -> Iterator[Distribution]:
        """See :meth:`TablePosterior.emissions`; given are those of :meth:`program_arguments`."""
        trials, covariates = given[0].tensor_split((len(self.sites.trials),), -1)
        yield from super().emissions(numbers, there, covariates)
        if self.sites.trials:
            prior = dist.Beta(torch.full((len(self.sites.trials),), self.prior.d0), self.prior.d0)
            probs = pyro.sample(SHARES, prior.to_event(1))
            known = there[..., None, -len(self.sites.trials) :]
            yield dist.Binomial(trials.unsqueeze(-2), probs).mask(known).to_event(1)

    def emission_of_numbers(self, numbers: Sequence[Tensor], there: Tensor, *given: Tensor) -> Distribution:
        """See :meth:`TablePosterior.emission_of_numbers`; covariates are given, [..., P]."""
        if not self.sites.covariates:
            return super().emission_of_numbers(numbers, there)
        covariates = given[0][..., : len(self.sites.covariates)]
        return regressed_emission(numbers, self.sites.full, covariates, there)

    def program_numbers(self) -> Tensor:
        if not self.sites.covariates:
            return super().program_numbers()
        natural = self.natural(parameter_of(NUMBERS)).natural
        return (
            natural[:, 0] if self.sites.full else natural[..., : -len(self.sites.covariates)].transpose(0, 1)
        )

    def numbers(self) -> NaturalDistribution:
        """The posterior of the states' means and precisions, where all covariates are 0."""
        found = super().numbers()
        return at_zero(found, self.sites.full) if self.sites.covariates else found

    def slopes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Student-t posteriors of the slopes of the numbers in the covariates.

        Returns:
            Degrees of freedom, float64 [K, D or 1, 1], locations and scales, [K, D, P].
        """
        m, tril, a, rate = self.natural(parameter_of(NUMBERS)).standard
        rows, columns = (part.square().sum(-1).unsqueeze(side) for part, side in ((tril, -2), (rate, -1)))
        scales = (rows * columns / a[..., None, None]).sqrt()
        loc, scale = (part[..., 1:].flatten(1, 2) for part in (m.mT, scales))
        return 2 * a.unsqueeze(-1), loc, scale

    def start(self) -> Tensor:
        """E[π], float64 [K], 0 for states that are never the first."""
        return _mean(self.natural(START).natural)

    def transitions(self) -> Tensor:
        """E[A], float64 [K, K] or [U, K, K], 0 for transitions that do not happen."""
        return _mean(self.natural(TRANSITIONS).natural)

    def shares(self) -> Tensor:
        """E[φ] of the columns of successes, float64 [K, C]."""
        concentration = self.natural(parameter_of(SHARES)).natural
        return concentration[..., 0] / concentration.sum(-1)

    def log_predictives(self, child: str, values: Any) -> Tensor:
        """See :class:`TablePosterior`; of successes, by beta-binomial distributions."""
        if isinstance(values, RegressedNumbers):
            return values.log_predictives(self.natural(parameter_of(NUMBERS)).standard)
        if child != SHARES:
            return super().log_predictives(child, values)
        yes, no = values[:, :-1].chunk(2, -1)
        a, b = self.natural(parameter_of(SHARES)).natural.unbind(-1)
        single = torch.tensor([column < 0 for column in self.sites.trials.values()], device=a.device)
        p = (a / (a + b))[:, single]
        table = values[:, -1:] + yes[:, single] @ p.log().mT + no[:, single] @ (1 - p).log().mT
        for column in (~single).nonzero().squeeze(-1).tolist():
            own = (part[:, column, None] for part in (yes, no))
            after = log_beta(
                *(prior + part for prior, part in zip((a[:, column], b[:, column]), own, strict=True))
            )
            table = table + after - log_beta(a[:, column], b[:, column])
        return table

    @torch.no_grad()
    def draws(
        self, component: Tensor, trials: Sequence[float] = (), covariates: Tensor | None = None
    ) -> Tensor:
        """See :class:`TablePosterior`.

        Args:
            component: states [n].
            trials: numbers of trials, for each column of successes.
            covariates: [n, P].
        """
        rows = super().draws(component, covariates)
        for number, (column, total) in enumerate(self.sites.trials.items()):
            a, b = self.natural(parameter_of(SHARES)).natural[component, number].unbind(-1)
            count = trials[number] if total >= 0 else 1.0
            rows[:, column] = dist.Binomial(count, dist.Beta(a, b).sample()).sample().to(rows)
            if total >= 0:
                rows[:, total] = count
        return rows

    def draw_numbers(self, component: Tensor, *given: Any) -> Tensor:
        """See :meth:`TablePosterior.draw_numbers`; covariates are given, [n, P]."""
        if not self.sites.covariates:
            return super().draw_numbers(component)
        own = tuple(part[component] for part in self.natural(parameter_of(NUMBERS)).standard)
        return drawn(own, *given)


def _places(lengths: Tensor) -> Tensor:
    """Which places of a table [B, T] sequences have, bool."""
    return torch.arange(int(lengths.max()), device=lengths.device) < lengths.unsqueeze(-1)


def by_sequence(rows: Tensor, there: Tensor) -> Tensor:
    """Rows [N, ...] at their places [B, T]: [B, T, ...], 0 after the end of a sequence."""
    padded = rows.new_zeros(*there.shape, *rows.shape[1:])
    padded[there] = rows
    return padded


def _chain(
    start: Tensor,
    transitions: Tensor,
    table: Tensor,
    lengths: Tensor,
    there: Tensor,
    inputs: Tensor | None,
) -> Chain:
    """The chains of rows with a table of log-densities [N, K]."""
    ends = None if there.all() else lengths
    return Chain(start, transitions, by_sequence(table, there), ends, inputs=inputs)


def _mean(concentration: Tensor) -> Tensor:
    possible = torch.where(concentration > 2 * IMPOSSIBLE, concentration, 0.0)
    return possible / possible.sum(-1, keepdim=True)
