"""Coordinate ascent of a mixture of table rows: on all rows, in parts, or of several mixtures at once."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pyro_fmvae.distributions import NaturalDistribution
from pyro_fmvae.distributions.category import CategoryBlock
from pyro_fmvae.distributions.exponential_family import blend
from pyro_fmvae.distributions.marginal_component import LARGEST, NEGLIGIBLE
from pyro_fmvae.models import ObservedMixture
from pyro_fmvae.models.learnt_prior import LearntPrior
from pyro_fmvae.models.packed_numbers import PackedNumbers, PackedObservations
from pyro_fmvae.models.table_sites import NUMBERS, WEIGHTS, child_of, parameter_of

SHARE: Final = 256
"""A step on a GPU takes a number for so many bytes of free memory, if these are more than on a CPU."""
ALL: Final = 6
"""Every so many updates, all components take part in rows with missing numbers; else those that had them."""
REMEMBERED: Final = 6
"""Steps that :class:`Anderson` remembers."""
SINGULAR: Final = 1e-12
"""Share of the greatest eigenvalue up to which changes of its steps say nothing new."""

Naturals = Mapping[str, Tensor]
"""Site → natural parameters, or sums of the sufficient statistics that are added to them."""


@torch.no_grad()
def updated(
    model: ObservedMixture,
    before: Naturals,
    observations: PackedObservations,
    gamma: Tensor,
    scale: float = 1.0,
) -> dict[str, Tensor]:
    """Natural parameters with the statistics of rows added to them, given responsibilities.

    For full covariances, missing numbers are filled in as the present posterior expects them.

    Args:
        model: whose sites these are.
        before: of every site of parameters. From the priors, the result is the conjugate posterior.
        observations: of B rows, :meth:`ObservedMixture.packed` or not; labels may be left out.
        gamma: responsibilities of these rows, [B, K].
        scale: rows that each row stands for.
    """
    after = dict(before)
    for name, natural in before.items():
        child = child_of(name)
        if name == WEIGHTS:
            after[name] = natural + scale * model.prior.weights.statistics(gamma.double().sum(0))
        elif child in observations:
            stats = model.natural(name).expected_stats()
            after[name] = model.sites.conjugate(child, natural, observations[child], gamma, stats, scale)
    return after


@torch.no_grad()
def ascend(
    model: ObservedMixture,
    observations: PackedObservations,
    gamma: Tensor,
    rate: float = 1.0,
    learn: bool = True,
) -> None:
    """Move λ towards the conjugate posterior λ* given responsibilities, by the rate ρ.

    With ρ = 1 and all rows this is coordinate ascent, and the bound rises.

    Args:
        model: learnt in place.
        observations: of B rows that stand for all N: see :func:`updated`.
        gamma: responsibilities of these rows, [B, K].
        rate: ρ in (0, 1].
        learn: a prior that is learnt follows.
    """
    priors = {name: prior.natural for name, prior in model.natural_priors().items()}
    targets = updated(model, priors, observations, gamma, model.num_data / len(gamma))
    for name, target in targets.items():
        natural = model.posterior_of(name).natural
        natural.copy_(blend(natural, target, rate))
    if learn:
        model.learn_prior()


@torch.no_grad()
def bound_of(model: ObservedMixture, table: Tensor) -> float:
    """The variational bound, in nats for all N rows.

    Args:
        model: as it stands.
        table: of :meth:`ObservedMixture.table`, of B rows that stand for all.
    """
    scale = model.num_data / len(table)
    return (scale * table.logsumexp(-1).sum() - model.divergence()).item()


class Rows(NamedTuple):
    """Part of a table."""

    x: Tensor
    """Rows [B, D], as :meth:`ObservedMixture.observations` takes them."""
    weights: Tensor
    """How many rows each one stands for, float64 [B]."""

    def split(self, most: int) -> "list[Rows]":
        """Parts of at most so many rows, in their order."""
        return [Rows(*part) for part in zip(self.x.split(most), self.weights.split(most), strict=True)]


class IncrementalAscent:
    """Variational Bayes for an observed mixture that keeps the statistics of every part of the rows.

    A visit to a part replaces its statistics T_b by those at the present responsibilities, and takes λ to
    λ0 + Σ_b T_b. Every visit raises the bound, so that no step size has to be chosen, and one sweep over many
    small parts gets further than one over all rows at once (Neal and Hinton, 1998, A view of the EM algorithm
    that justifies incremental, sparse, and other variants; Hughes and Sudderth, 2013, Memoized online
    variational inference for Dirichlet process mixture models).

    With a single part it is coordinate ascent, whose sweeps begin where :class:`Anderson` expects λ and λ0 to
    settle, if the bound is no lower there. Without that, missing numbers and λ0 take hundreds of sweeps.

    The bound is Σ_b h_b + Σ_b T_b · E[t] - KL(λ || λ0), where h_b is what a part adds beside its statistics:
    the entropy of its assignments and missing numbers, and constants.

    Args:
        model: learnt in place, from where it stands.
        parts: of the rows.
        before: λ0; None: the model's prior, which is learnt after each sweep if the model learns it. The
            posterior given earlier rows makes it streaming variational Bayes (Broderick et al., 2013).
        stand_for: how many rows λ - λ0 stands for at first. Until its first visit, a part has its share of
            these statistics, scaled to its number of rows. 0: none, λ is λ0 at first.

    Attributes:
        plain: the last sweep began where the one before it ended, and every component took part.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: ObservedMixture,
        parts: Sequence[Rows],
        before: Naturals | None = None,
        stand_for: float = 0.0,
    ) -> None:
        self.model, self.parts = model, parts
        self.before, self._learns = before or self._priors(), before is None
        self.total_weight = float(sum(part.weights.sum() for part in parts))
        self._beside = [-math.inf] * len(parts)
        self._anderson, self._swept, self.plain = Anderson(), 0, True
        self._among: list[Tensor | None] = [None] * len(parts)
        self._statistics: dict[str, Tensor] = {}  # of all parts: small pieces would split the heap
        for name, value in self.before.items():
            gap = model.natural(name).natural - value
            self._statistics[name] = gap.new_zeros(len(parts), *gap.shape)
            if stand_for:
                for part, kept in zip(parts, self._statistics[name], strict=True):
                    kept.copy_(gap * (part.weights.sum() / stand_for))

    @torch.no_grad()
    def sweep(self, plain: bool = False) -> float:
        """Visit every part once; returns the bound, in nats for all rows.

        Args:
            plain: begin where the last sweep ended, and let every component take part in every row.
        """
        if plain or self._swept % ALL == 0:
            self._among = [None] * len(self.parts)
        self._swept += 1
        self.plain = plain or self._among[0] is None
        leapt = not plain and self._leap()
        self.plain = self.plain and not leapt
        if not leapt:
            begun, totals = self._state(), self._totals()  # anew, so that rounding does not pile up
            for number in range(len(self.parts)):
                for name, total in totals.items():
                    total -= self._statistics[name][number]
                self._visit(number)
                for name, total in totals.items():
                    total += self._statistics[name][number]
                self._add(totals)
            self._end(begun, totals)
        return self.bound()

    def _end(self, begun: Tensor, totals: Naturals) -> None:
        """Learn the prior, and remember the sweep, from the state in which it began."""
        if self._learns:
            self.model.learn_prior()
            self.before = self._priors()
            self._add(totals)
        if len(self.parts) == 1:
            self._anderson.add(begun, self._state())

    def _leap(self) -> bool:
        """Sweep from where sweeps are expected to settle; if the bound falls, undo it and return False."""
        ahead = self._anderson.ahead()
        if ahead is None:
            return False
        reached, before, totals = self.bound(), self.before, self._totals()
        kept = self._beside[0], self._among[0]
        sizes = [value.numel() for value in before.values()]
        pieces = [part.split(sizes) for part in ahead.split(len(ahead) // 2)]
        of_prior, of_posterior = (
            {name: piece.view_as(before[name]) for name, piece in zip(before, part, strict=True)}
            for part in pieces
        )
        families = {name: self.model.natural(name).family for name in before}
        if all(
            bool(families[name].in_domain(part[name]).all())
            for part in (of_prior, of_posterior)
            for name in part
        ):
            self.before = of_prior
            self._add({name: of_posterior[name] - value for name, value in of_prior.items()})
            begun = self._state()
            self._visit(0)
            left = self._totals()
            self._add(left)
            self._end(begun, left)
            if self.bound() >= reached:
                return True
        self._beside[0], self._among[0] = kept
        self._statistics = {name: total.unsqueeze(0) for name, total in totals.items()}
        self.before = before
        self._add(totals)
        self._anderson = Anderson()
        return False

    def _visit(self, number: int) -> None:
        """Take the statistics of a part, and which components may have its rows next time."""
        found = sufficient_statistics(self.model, self.parts[number], self._among[number])
        statistics, self._beside[number], self._among[number] = found
        for name, value in statistics.items():
            self._statistics[name][number] = value

    def _state(self) -> Tensor:
        """λ0 and λ of all sites, laid out flat."""
        natural = [self.model.posterior_of(name).natural.flatten() for name in self.before]
        return torch.cat([*(value.flatten() for value in self.before.values()), *natural]).detach()

    def _add(self, totals: Naturals) -> None:
        """λ of given sums of statistics."""
        for name, total in totals.items():
            self.model.posterior_of(name).natural.copy_(self.before[name] + total)

    def _priors(self) -> Naturals:
        return {name: prior.natural.detach() for name, prior in self.model.natural_priors().items()}

    @torch.no_grad()
    def bound(self) -> float:
        """The bound, in nats for all rows; minus infinity before the first sweep."""
        bound = sum(self._beside)
        for name, total in self._totals().items():
            q = self.model.natural(name)
            divergence = q.family.kl(q.natural, self.before[name], q.expected_stats()).sum()
            bound += float((total * q.expected_stats()).sum() - divergence)
        return bound

    def _totals(self) -> dict[str, Tensor]:
        return {name: value.sum(0) for name, value in self._statistics.items()}


class Anderson:
    """Acceleration of an iteration x → g(x): the x at which it is expected to settle, by its last steps.

    Steps g(x) - x are taken to be linear in x, and the combination of the last x of the smallest step
    is sought (Anderson, 1965, Iterative procedures for nonlinear integral equations; Walker and Ni, 2011,
    Anderson acceleration for fixed-point iterations).
    """

    def __init__(self) -> None:
        self._begun: list[Tensor] = []
        self._ended: list[Tensor] = []

    def add(self, x: Tensor, after: Tensor) -> None:
        """Remember a step, from x to g(x)."""
        self._begun, self._ended = [*self._begun, x][-REMEMBERED:], [*self._ended, after][-REMEMBERED:]

    def ahead(self) -> Tensor | None:
        """The next x; None: there have been too few steps."""
        if len(self._ended) < 2:
            return None
        ended = torch.stack(self._ended)
        steps = ended - torch.stack(self._begun)
        changes = steps.diff(dim=0)
        inverse = torch.linalg.pinv(changes @ changes.mT, rtol=SINGULAR, hermitian=True)
        return ended[-1] - inverse @ (changes @ steps[-1]) @ ended.diff(dim=0)


@torch.no_grad()
def sufficient_statistics(
    model: ObservedMixture, rows: Rows, among: Tensor | None = None
) -> tuple[dict[str, Tensor], float, Tensor | None]:
    """Statistics of weighted rows at their best responsibilities, by site, and what is beside them.

    Args:
        model: whose posterior decides the responsibilities.
        rows: any number; they are taken in pieces.
        among: components that may have each row, bool [B, K]; None: all.

    Returns:
        T, the sum that λ* has beside λ0; h, so that h + T · E[t] is the rows' part of the bound; and where
        responsibilities are not negligible, bool [B, K], or None where that would save no time.
    """
    stats = {name: model.natural(name).expected_stats() for name in model.natural_priors()}
    sums = {name: torch.zeros_like(value) for name, value in stats.items()}
    beside, likely, start = rows.weights.new_zeros(()), list[Tensor](), 0
    for x, weights in rows.split(max(room(rows.x.device) // (model.components * model.dim), 1)):
        observations, part = model.packed(x), slice(start, start := start + len(x))
        of_rows, gamma = _shares(model.table(observations, None if among is None else among[part]))
        beside += weights @ of_rows
        sums = updated(model, sums, observations, weights.unsqueeze(-1) * gamma)
        if not side_by_side(observations):
            likely.append(gamma > NEGLIGIBLE)
    beside -= sum((sums[name] * stats[name]).sum() for name in sums)
    return sums, float(beside), torch.cat(likely) if start == sum(map(len, likely)) else None


@dataclass(frozen=True)
class Fitted:
    """A mixture that has been fitted.

    Attributes:
        model: with the posterior that was reached.
        gamma: responsibilities of the rows, [N, K].
        bound: of the model, in nats for all rows.
        rows: part of the bound that each row has, [N]; the rest is the divergence from the priors.
    """

    model: ObservedMixture
    gamma: Tensor
    bound: float
    rows: Tensor

    @property
    def evidence(self) -> float:
        """The bound plus log K!, less what was gained by choosing the prior.

        Any order of the components is as good (Bishop, 2006, Section 10.2.4).
        """
        return self.bound + math.lgamma(self.model.components + 1) - self.model.prior_cost()

    def error(self, other: "Fitted") -> float:
        """Standard error of the difference in evidence from another mixture of these rows, in nats.

        As if the rows were drawn anew (Vuong, 1989, Likelihood ratio tests for model selection).
        """
        return float((self.rows - other.rows).std(correction=0)) * len(self.rows) ** 0.5


def ascended(
    models: Sequence[ObservedMixture],
    observations: PackedObservations,
    gammas: Sequence[Tensor],
    iterations: int,
    until: float,
    tolerance: float,
    learn: bool,
) -> list[Fitted]:
    """Coordinate ascent of mixtures of as many components, until their bounds hardly rise.

    They are improved side by side where that is possible.

    Args:
        models: of one make, each changed in place; ``num_data`` is the number of rows that these stand for.
        observations: of all rows.
        gammas: responsibilities, [N, K] each. Components of a Dirichlet process are put in order of size.
        iterations: updates at most, at least 1.
        until: time of ``time.monotonic()``, after which no further update is begun.
        tolerance: nats per row: an update that adds less is the last.
        learn: learn the prior, too, where it is learnt.
    """
    first, rows = models[0], len(gammas[0])
    if len(models) > 1 and (
        not side_by_side(observations) or len(models) * gammas[0].numel() > room(gammas[0].device)
    ):
        return [
            ascended([model], observations, [gamma], iterations, until, tolerance, learn)[0]
            for model, gamma in zip(models, gammas, strict=True)
        ]
    gamma, learnt, found = gammas[0].double(), first.learnt, []
    if len(models) > 1:
        gamma = torch.stack([each.mT for each in gammas]).double().mT
        if learnt is not None:
            learnt = LearntPrior.together([model.learnt for model in models if model.learnt is not None])
    ascent = Ascent(first, observations, gamma, gamma.new_full((), first.num_data / rows), learnt)
    for model, reached in zip(models, ascent.run(iterations, tolerance * rows, until, learn), strict=True):
        with torch.no_grad():
            for name, value in reached.natural.items():
                model.posterior_of(name).natural.copy_(value)
        if model.learnt is not None and len(models) > 1:
            model.learnt.load_state_dict(reached.prior)
        found.append(Fitted(model, reached.gamma, reached.bound, reached.rows))
    return found


def side_by_side(observations: PackedObservations) -> bool:
    """Can mixtures of these rows be improved side by side? Not if numbers are filled in, or not packed."""
    numbers = observations.get(NUMBERS)
    return numbers is None or (isinstance(numbers, PackedNumbers) and numbers.gaps is None)


class Reached(NamedTuple):
    """Where the ascent of a mixture ended."""

    gamma: Tensor
    """Responsibilities, [N, K]."""
    bound: float
    """In nats for all rows."""
    rows: Tensor
    """Part of it that each row has, [N]."""
    natural: dict[str, Tensor]
    """λ of each site."""
    prior: dict[str, Tensor]
    """State of the prior, where it is learnt."""


class Ascent:
    """Coordinate ascent of a mixture, or of S mixtures of as many components, until their bounds hardly rise.

    S in front means that one operation on all of them takes the place of S. Each mixture ends by itself, with
    the numbers that it would reach alone, but for rounding.

    Args:
        model: says what the sites are, and their priors, and where missing numbers are filled in, by what.
        observations: observations of N rows, [N, ...], or of rows of each mixture, [S, N, ...].
        gamma: responsibilities, [N, K], or [S, N, K].
        scale: rows that each row stands for, [] or [S].
        learnt: the prior of the numbers, if it is learnt, of batch shape [] or [S]; changed in place.
        known: 0 for rows that only fill up, else 1, [S, N]; None: all are rows.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: ObservedMixture,
        observations: PackedObservations,
        gamma: Tensor,
        scale: Tensor,
        learnt: LearntPrior | None = None,
        known: Tensor | None = None,
    ) -> None:
        self.model, self.observations = model, observations
        self.scale, self.learnt, self.known = scale, learnt, known
        order = model.prior.weights.order(gamma.sum(-2)).unsqueeze(-2)
        self.gamma = gamma.double().take_along_dim(order, -1)
        self.priors = {  # all components have the same
            name: prior.natural if name == WEIGHTS else prior.natural[:1]
            for name, prior in model.natural_priors().items()
        }
        self.posteriors = {name: model.posterior_of(name) for name in self.priors}
        words = {name: model.sites.categories_of(name) for name in observations}
        self.words = [name for name, size in words.items() if size]  # children that have categories
        codes = [codes for codes in map(observations.get, self.words) if isinstance(codes, Tensor)]
        if not codes or sum(words.values()) * codes[0].numel() > LARGEST:
            self.words = []
        else:  # all of them together
            self.block = CategoryBlock([words[name] for name in self.words], gamma.device)
            self.shown = self.block.indicators(codes).to(self.gamma)
            self.prior_of_words = torch.cat([self.priors.pop(parameter_of(name)) for name in self.words], -1)
        self.members: dict[str, NaturalDistribution] = {}
        self.among: Tensor | None = None
        if not side_by_side(observations):  # the first update fills in by the model's own
            self.members = {name: model.natural(name) for name in self.priors}
        self._learn(False)

    @torch.no_grad()
    def run(self, iterations: int, tolerance: float | Tensor, until: float, learn: bool) -> list[Reached]:
        """Updates until each mixture gains less than the tolerance, [] or [S], in nats, by one."""
        lead = self.gamma.shape[:-2]
        active = list(range(lead.numel()))
        found: dict[int, Reached] = {}
        least = torch.as_tensor(tolerance).expand(lead).flatten().tolist()
        before, last = [-math.inf] * len(active), iterations - 1
        for iteration in range(iterations):
            self._update(learn)
            fills = iteration % ALL and not side_by_side(self.observations)
            self.among = self.gamma > NEGLIGIBLE if fills else None
            rows, self.gamma = _shares(self._table())
            if self.known is not None:
                rows, self.gamma = rows * self.known, self.gamma * self.known.unsqueeze(-1)
            bounds = (self.scale * rows.sum(-1) - self._divergence()).flatten().tolist()
            late = iteration == last or time.monotonic() > until
            for place, number in enumerate(active):
                gain = bounds[place] - before[number]
                if number not in found and (late or gain < least[number]):
                    found[number] = self._reached(place if lead else None, bounds[place], rows)
                before[number] = bounds[place]
            if len(found) == len(before):
                break
            left = [place for place, number in enumerate(active) if number not in found]
            if 2 * len(left) <= len(active):
                self._only(left)
                active = [active[place] for place in left]
        return [found[number] for number in range(len(before))]

    def _update(self, learn: bool) -> None:
        sites, counts = self.model.sites, self.gamma.sum(-2)
        if self.words:
            sums = self.scale[..., None, None] * (self.gamma.mT @ self.shown)
            self.of_words = self.prior_of_words + sums
            self.stats_of_words = self.block.mean_stats(self.of_words)
        for name, prior in self.priors.items():
            child = child_of(name)
            if name == WEIGHTS:
                statistics = self.model.prior.weights.statistics(self.scale.unsqueeze(-1) * counts)
                natural = prior + statistics
            elif child in self.observations:
                scale = self.scale.view(*self.scale.shape, *[1] * self.posteriors[name].natural.dim())
                stats = self.members[name].expected_stats() if name in self.members else prior
                natural = sites.conjugate(child, prior, self.observations[child], self.gamma, stats, scale)
            else:
                natural = self.model.natural(name).natural
            self.members[name] = self.posteriors[name].kind(natural, validate_args=False)
        if learn:
            self._learn(True)

    def _learn(self, update: bool) -> None:
        """The prior of the numbers as it is learnt."""
        if self.learnt is not None:
            name = parameter_of(NUMBERS)
            if update:
                self.learnt.update(self.members[name])
            self.priors[name] = self.learnt.natural(self.gamma.device).unsqueeze(-2)

    def _table(self) -> Tensor:
        """As :meth:`ObservedMixture.table`, [..., N, K]."""
        weights = self.model.prior.weights.log_weights(self.members[WEIGHTS].expected_stats())
        total = weights if self.gamma.dim() == 2 else weights.unsqueeze(-2)
        if self.among is not None:
            total = total.masked_fill(~self.among, -torch.inf)
        if self.words:
            total = total + (self.stats_of_words @ self.shown.mT).mT
        for child, observations in sorted(self.observations.items(), key=lambda item: item[0] == NUMBERS):
            if child in self.words:
                continue
            stats = self.members[parameter_of(child)].expected_stats()
            total = total + self.model.sites.log_likelihoods(child, observations, stats, total)
        return total.expand(self.gamma.shape)

    def _divergence(self) -> Tensor:
        """KL of all parameters from their priors, for each mixture."""
        lead, found = self.gamma.dim() - 2, []
        if self.words:
            apart = self.block.relative_entropy(self.of_words, self.prior_of_words, self.stats_of_words)
            found.append(apart.sum(-1))
        for name, prior in self.priors.items():
            q = self.members[name]
            apart = q.family.relative_entropy(q.natural, prior, q.expected_stats())
            found.append(apart.unsqueeze(-1).flatten(lead).sum(-1))
        return torch.stack(found).sum(0)

    def _reached(self, place: int | None, bound: float, rows: Tensor) -> Reached:
        natural = {name: self.members[name].natural for name in self.priors}
        if self.words:
            parts = self.of_words.split(self.block.sizes, -1)
            natural |= dict(zip(map(parameter_of, self.words), parts, strict=True))
        prior = {} if self.learnt is None else dict(self.learnt.state_dict())
        if place is None:
            return Reached(self.gamma, bound, rows, natural, prior)
        of_one = [{name: value[place].clone() for name, value in part.items()} for part in (natural, prior)]
        return Reached(self.gamma[place].clone(), bound, rows[place].clone(), *of_one)

    def _only(self, left: Sequence[int]) -> None:
        """Go on with some of the mixtures."""
        self.gamma, self.members = self.gamma[left], {}
        if self.scale.dim():
            self.scale = self.scale[left]
        if self.known is not None:
            self.known = self.known[left]
            if self.words:
                self.shown = self.shown[left]
            self.observations = only(self.observations, left)
        if self.learnt is not None:
            self.learnt.only(left)
            self._learn(False)


def only(observations: PackedObservations, chosen: Sequence[int]) -> PackedObservations:
    """Observations of some of the mixtures whose rows lie side by side, by their numbers."""
    return {
        name: part.only(chosen) if isinstance(part, PackedNumbers) else part[list(chosen)]
        for name, part in observations.items()
    }


def _shares(table: Tensor) -> tuple[Tensor, Tensor]:
    """Log of the sum of exponentials of a table [..., N, K], [..., N]; and their shares, [..., N, K]."""
    across = table.mT  # as it is laid out
    most = across.amax(-2, keepdim=True)
    sizes = (across - most).exp_()
    total = sizes.sum(-2, keepdim=True)
    return (most + total.log()).squeeze(-2), sizes.div_(total).mT


def room(device: torch.device) -> int:
    """Numbers that tensors of one step may hold: a GPU takes more at a time, as far as its memory allows."""
    if device.type != "cuda":
        return LARGEST
    return max(LARGEST, torch.cuda.mem_get_info(device)[0] // SHARE)
