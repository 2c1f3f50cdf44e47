"""The posterior of the parameters of a mixture of table rows, as a module."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Self

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution

from pyro_fmvae.distributions import COLUMN_NORMAL_GAMMA, GAMMA, NORMAL_GAMMA, NaturalDistribution
from pyro_fmvae.distributions.category import codes_below, of_category
from pyro_fmvae.distributions.exponential_family import natural_prior, unwrap
from pyro_fmvae.distributions.marginal_component import marginal_log_predictive
from pyro_fmvae.distributions.poisson_component import log_predictive_counts
from pyro_fmvae.infer.posteriors import NaturalPosterior, PosteriorDict, random_posterior
from pyro_fmvae.models.learnt_prior import LearntPrior
from pyro_fmvae.models.packed_numbers import LARGEST, PackedNumbers, PackedObservations
from pyro_fmvae.models.table_sites import (
    COUNTED,
    NUMBERS,
    WEIGHTS,
    TablePrior,
    TableSites,
    child_of,
    column_site,
    label_site,
    parameter_of,
)


class TablePosterior(nn.Module):
    """Posteriors of the weights and of the components' parameters, in natural parameters λ.

    Args:
        sites: of the program.
        learn_prior: choose the prior of the numbers by the bound.

    Attributes:
        components: K.
        posteriors: posterior of each site of parameters, random at first.
        learnt: the prior of the numbers, if it is learnt.
    """

    program_names: Mapping[str, str] = {
        WEIGHTS: WEIGHTS,
        parameter_of(NUMBERS): "means",
        parameter_of(COUNTED): "rates",
    }
    """Names of sites in the plain Pyro program; others have that of their child."""

    def __init__(self, sites: TableSites, learn_prior: bool = False) -> None:
        super().__init__()
        self.sites, self.components = sites, sites.components
        self.learnt: LearntPrior | None = None
        if learn_prior and sites.numbers:
            self.learnt = sites.learnt_prior()
        self._known: dict[str, NaturalDistribution] = {}
        self._made: dict[torch.device, tuple[list[Tensor], dict[str, NaturalDistribution]]] = {}
        self.posteriors = PosteriorDict()
        for name, of_site in sites.priors(self.learnt).items():
            self.posteriors[name] = random_posterior(of_site, count=10.0)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy, which shares what was made of the priors: that is never changed."""
        new = memo[id(self)] = type(self).__new__(type(self))
        shared = {"_known": {}, "_made": dict(self._made)}
        own = {name: value for name, value in vars(self).items() if name not in shared}
        vars(new).update(deepcopy(own, memo), **shared)
        return new

    @property
    def prior(self) -> TablePrior:
        """Hyperparameters."""
        return self.sites.prior

    def natural(self, name: str) -> NaturalDistribution:
        """The posterior of a site's parameters, in natural parameters, detached; kept while λ stays."""
        posterior, known = self.posterior_of(name), self._known.get(name)
        value = posterior.natural_value()
        if known is None or known.natural.device != value.device or not torch.equal(known.natural, value):
            known = self._known[name] = posterior.kind(value.clone(), validate_args=False)
        return known

    def numbers(self) -> NaturalDistribution:
        """The posterior of the components' means and precisions."""
        return self.natural(parameter_of(NUMBERS))

    def posterior_of(self, name: str) -> NaturalPosterior:
        """The posterior of a site's parameters, as a module."""
        posterior = self.posteriors[name]
        assert isinstance(posterior, NaturalPosterior)
        return posterior

    @property
    def device(self) -> torch.device:
        """Device of λ."""
        return self.posterior_of(WEIGHTS).natural.device

    def natural_priors(self) -> dict[str, NaturalDistribution]:
        """The priors in natural parameters, made once per device and state of the one that is learnt."""
        state = [] if self.learnt is None else list(self.learnt.state_dict().values())
        made = self._made.get(self.device)
        if made is not None and all(map(torch.equal, made[0], state)):
            return made[1]
        if made is None or self.learnt is None:
            priors = {name: natural_prior(prior) for name, prior in self.priors_on(self.device).items()}
        else:
            numbers = natural_prior(self.learnt.distribution(self.device).expand([self.sites.components]))
            priors = made[1] | {parameter_of(NUMBERS): numbers}
        self._made[self.device] = [part.clone() for part in state], priors
        return priors

    def priors_on(self, device: torch.device) -> dict[str, Any]:
        """The priors, on a device."""
        with device:
            return self.sites.priors(self.learnt)

    def learn_prior(self) -> None:
        """Move the prior of the numbers, if it is learnt, to the greatest bound at this posterior."""
        if self.learnt is not None:
            self.learnt.update(self.natural(parameter_of(NUMBERS)))

    def prior_cost(self) -> float:
        """Nats by which the bound is too high as the prior was chosen by it: :meth:`LearntPrior.cost`."""
        return 0.0 if self.learnt is None else self.learnt.cost(self.natural(parameter_of(NUMBERS)))

    @torch.no_grad()
    def forget(self) -> None:
        """Move λ to the priors, so that nothing random is left of it."""
        for name, prior in self.natural_priors().items():
            self.posterior_of(name).natural.copy_(prior.natural)

    def packed(self, x: Tensor, labels: Tensor | None = None) -> PackedObservations:
        """Observations of rows [B, D] that are visited often: their numbers' statistics are computed once.

        Unless they would be too many to keep. Labels are as for :meth:`ObservedMixture.observations`.
        """
        observations: dict[str, Tensor | PackedNumbers] = {**self.sites.observations(x, labels)}
        numbers = observations.get(NUMBERS)
        if isinstance(numbers, Tensor) and PackedNumbers.size(numbers, self.sites.full) <= LARGEST:
            observations[NUMBERS] = PackedNumbers(numbers, self.sites.full)
        return observations

    @torch.no_grad()
    def divergence(self) -> Tensor:
        """KL of all parameters from their priors."""
        found = []
        for name, prior in self.natural_priors().items():
            q, same = self.natural(name), prior.natural
            before = same if name in self.sites.apart else same[:1]
            found.append(q.family.relative_entropy(q.natural, before, q.expected_stats()).sum())
        return torch.stack(found).sum()

    def probs(self, name: str) -> Tensor:
        """E[φ] of a child with categories, float64 [K, size]."""
        (concentration,) = self.natural(parameter_of(name)).standard
        return concentration / concentration.sum(-1, keepdim=True)

    def weights(self) -> Tensor:
        """E[π], float64 [K]."""
        return self.prior.weights.weights(self.natural(WEIGHTS))

    def expected_log_weights(self) -> Tensor:
        """E[log π], float64 [K]."""
        return self.prior.weights.log_weights(self.natural(WEIGHTS).expected_stats())

    def rates(self) -> Tensor:
        """E[θ] of the columns of counts, float64 [K, D of counts]."""
        shape, rate = self.natural(parameter_of(COUNTED)).standard
        return shape / rate

    def locations(self) -> Tensor:
        """A typical row of each component: means, rates, and the most probable categories, [K, D]."""
        rows = torch.zeros(self.sites.components, self.sites.width, device=self.device)
        if self.sites.numbers:
            rows[:, self.sites.numbers] = self.numbers().loc.to(rows)  # type: ignore[attr-defined]
        if self.sites.counted:
            rows[:, self.sites.counted] = self.rates().to(rows)
        for column, _ in self.sites.categories:
            rows[:, column] = self.probs(column_site(column)).argmax(-1).to(rows)
        return rows

    def counts(self) -> Tensor:
        """How many rows each component stands for, of two components at least: float64 [K]."""
        statistics = self.natural(WEIGHTS).natural - self.natural_priors()[WEIGHTS].natural
        return self.prior.weights.counts(statistics)

    def predictive(self, component: Tensor | None = None) -> Any:
        """The Student-t of the numbers of all components, or of given ones [n], in float64."""
        q = self.natural(parameter_of(NUMBERS))
        own = q.standard if component is None else tuple(part[component] for part in q.standard)
        return q.family.predictive(own, torch.float64)

    def predictive_counts(self, component: Tensor) -> Any:
        """The negative binomials of the counts of given components [n], in float64."""
        shape, rate = self.natural(parameter_of(COUNTED)).standard
        return GAMMA.predictive_poisson((shape[component], rate[component]), torch.float64)

    @torch.no_grad()
    def draws(self, component: Tensor, *given: Any) -> Tensor:
        """Draw a row from the posterior predictive of each of the given components [n]: [n, D].

        Args:
            component: [n].
            given: what a subclass's columns of numbers depend on.
        """
        rows = torch.zeros(len(component), self.sites.width, device=component.device)
        if self.sites.numbers and len(component):
            rows[:, self.sites.numbers] = self.draw_numbers(component, *given).to(rows)
        if self.sites.counted:
            rows[:, self.sites.counted] = self.predictive_counts(component).sample().to(rows)
        for column, _ in self.sites.categories:
            probs = self.probs(column_site(column))[component]
            rows[:, column] = Categorical(probs=probs, validate_args=False).sample().to(rows)
        return rows

    def draw_numbers(self, component: Tensor, *given: Any) -> Tensor:
        """Draw the columns of numbers: see :meth:`draws`."""
        drawn: Tensor = self.predictive(component).sample()
        return drawn

    def log_predictives(self, child: str, values: Tensor) -> Tensor:
        """Log of the predictive density of what a child observes, under each component: float64 [B, K]."""
        if child == COUNTED:
            return log_predictive_counts(values, self.natural(parameter_of(child)).standard)
        if child != NUMBERS:
            return of_category(self.probs(child).log(), values)
        if self.sites.full:
            return marginal_log_predictive(values, self.natural(parameter_of(child)).standard)
        log_probs = self.predictive().base_dist.log_prob(values.nan_to_num(0.0).unsqueeze(1))
        known: Tensor = log_probs.masked_fill(values.isnan().unsqueeze(1), 0.0)
        return known.sum(-1)

    def given_labels(self, codes: Tensor) -> Tensor:
        """Log-weights of components given the labels of codes [n, L + 1], -1 = unknown: [n, K]."""
        logits = self.weights().log().expand(len(codes), -1)
        for label, size in enumerate(self.sites.label_sizes):
            logits = logits + of_category(
                self.probs(label_site(label)).log(), codes_below(codes[:, label], size)
            )
        return logits

    # ------------------------------------------------------------------ the program

    def program_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [N, D] as a plain Pyro program takes them.

        Returns:
            Columns of numbers, counts, categories and successes in this order, 0 where missing, [N, D]; and
            which of them are there, bool [N, D].

        Raises:
            ValueError: a row misses some numbers, but not all, and covariances are full.
        """
        sites = self.sites
        of_trials = getattr(sites, "trials", ())
        order = [*sites.numbers, *sites.counted, *(column for column, _ in sites.categories), *of_trials]
        known = ~x[:, order].isnan()
        for place, (_, size) in enumerate(sites.categories, len(sites.numbers) + len(sites.counted)):
            known[:, place] &= x[:, order[place]] < size  # a category that training did not have
        if sites.full and (known[:, : len(sites.numbers)] != known[:, :1]).any():
            raise ValueError(
                "X: expected all numbers of a row or none in a Pyro program of full covariances, got a part; "
                "use covariance_type='diag'"
            )
        return torch.where(known, x[:, order], 0.0).double(), known

    def prior_of_numbers(self) -> list[Tensor]:
        """Standard parameters of the prior of a component's numbers, if it has any, float64."""
        if not self.sites.numbers:
            return []
        of_sites = (
            self.sites.numbers_prior() if self.learnt is None else self.learnt.distribution(self.device)
        )
        given: Any = unwrap(of_sites)
        return [part.double() for part in given.standard]

    def emissions(self, numbers: Sequence[Tensor], there: Tensor, *given: Tensor) -> Iterator[Distribution]:
        """Distributions of the columns in each component, with sample statements of their parameters.

        Args:
            numbers: :meth:`prior_of_numbers`.
            there: which columns are there, as of :meth:`program_rows`, bool [..., D].
            given: what a subclass's columns of numbers depend on.
        """
        sites, place = self.sites, len(self.sites.numbers)
        if place:
            yield self.emission_of_numbers(numbers, there[..., :place], *given)
        if sites.counted:
            zeros = torch.zeros(len(sites.counted))
            shape, rate = (torch.as_tensor(part).to(zeros) + zeros for part in sites.prior.rates)
            rates = pyro.sample("rates", dist.Gamma(shape, rate).to_event(1))
            known = there[..., None, place : place + len(zeros)]
            yield dist.Poisson(rates).mask(known).to_event(1)
            place += len(zeros)
        for column, size in sites.categories:
            probs = pyro.sample(column_site(column), dist.Dirichlet(torch.full((size,), sites.prior.d0)))
            yield dist.Categorical(probs).mask(there[..., place, None])
            place += 1

    def emission_of_numbers(self, numbers: Sequence[Tensor], there: Tensor, *given: Tensor) -> Distribution:
        """The distribution of the columns of numbers: see :meth:`emissions`."""
        loc, s, a, rate = numbers
        if self.sites.full:
            df, rates = 2 * a + len(loc) - 1, 2 * rate @ rate.mT
            precision = pyro.sample("precisions", dist.Wishart(df, precision_matrix=rates))
            locs = pyro.sample("means", dist.MultivariateNormal(loc, precision_matrix=s * precision))
            return dist.MultivariateNormal(locs, precision_matrix=precision).mask(there[..., :1])
        precision = pyro.sample("precisions", dist.Gamma(a, rate).to_event(1))
        locs = pyro.sample("means", dist.Normal(loc, (s * precision).rsqrt()).to_event(1))
        return dist.Normal(locs, precision.rsqrt()).mask(there.unsqueeze(-2)).to_event(1)

    def program_state(self) -> dict[str, Tensor]:
        """The posterior as a state of ``AutoConjugate(program, structured=True)``."""
        state = {}
        for name in self.natural_priors():
            natural = self.program_numbers() if name == parameter_of(NUMBERS) else self.natural(name).natural
            state[f"posteriors.{self.program_names.get(name, child_of(name))}.natural"] = natural.clone()
        return state

    def program_numbers(self) -> Tensor:
        """λ of the columns of numbers as the program's posterior has it."""
        natural = self.natural(parameter_of(NUMBERS)).natural
        if self.sites.full:
            return natural
        m, s, a, rate = COLUMN_NORMAL_GAMMA.unpack(natural)
        return NORMAL_GAMMA.natural(m.unsqueeze(-1), s, a, rate.unsqueeze(-1))
