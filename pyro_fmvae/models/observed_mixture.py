"""A Bayesian mixture of the rows of a table: no networks, no latent vector, every update exact."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution

from pyro_fmvae.distributions import (
    Assignment,
    Category,
    ColumnComponent,
    ColumnNormalGamma,
    FullComponent,
    NaturalDistribution,
    NormalWishart,
)
from pyro_fmvae.distributions.category import indicators
from pyro_fmvae.distributions.exponential_family import blend
from pyro_fmvae.infer.parameters import param_statements
from pyro_fmvae.infer.posteriors import NaturalPosterior, PosteriorDict, natural_prior, random_posterior
from pyro_fmvae.models.shapes import check_codes, check_integers
from pyro_fmvae.nn.sizes import check_size

LEFT_OUT = 1
"""Number of categories that says that a column is left out."""
WEIGHTS, NUMBERS = "weights", "x"


@dataclass(frozen=True)
class TablePrior:
    """Hyperparameters of an :class:`ObservedMixture` of standardised columns.

    Args:
        c0: concentration of the Dirichlet over mixing weights.
        s0: pseudo-observations behind the prior mean, 0, of the components' means.
        a0, b0: shape and rate of the Gamma over precisions, so that a component's variances are about
            b0 / a0. A full covariance has the same in every dimension: a Wishart of the rate matrix b0 I.
        d0: concentration of the Dirichlet over the categories of a column.
        l0: the same for labels. Far below 1, most components stand for a single value.
    """

    c0: float = 1.0
    s0: float = 0.1
    a0: float = 1.0
    b0: float = 0.2
    d0: float = 0.5
    l0: float = 0.1


class ObservedMixture(nn.Module):
    """A mixture whose components are seen directly: Gaussian columns, categorical columns, and labels.

        π ~ Dirichlet(c0),  r ~ Categorical(π),
        x | r=k ~ N(μ_k, Σ_k) of numbers,  x_d | r=k ~ Categorical(φ_kd) of categories,
        y_l | r=k ~ Categorical(ψ_kl) of labels

    with conjugate priors of all parameters (Bishop, 2006, Section 10.2). A missing number, NaN, and an
    unknown label, -1, are marginalised. A label is one more column: a component may stand for one of its
    values, several components for the same value, and rows without a label take part (Miller and Uyar,
    1997). So a code of L labels has L + 1 entries, one for each label and the component last.

    :meth:`model` and :meth:`guide` are a Pyro program for ``TraceConjugate_ELBO``. :meth:`ascend` is its
    natural-gradient step in closed form.

    Args:
        levels: for each of the D columns, how many categories it has: 0 for a column of numbers, and 1 for
            one that is left out.
        components: K.
        num_data: N, rows in the training set.
        label_sizes: for each label, how many values it has.
        prior: hyperparameters.
        full: Σ_k is any covariance, so that no number may be missing; else it is diagonal.

    Attributes:
        latent_dim: D. The row itself takes the place of a latent vector.
        num_components: sizes of the entries of a code: those of labels, then K.

    Raises:
        ValueError: sizes out of range.
    """

    bounded = True
    """True: the loss is a bound on log p(x)."""

    def __init__(
        self,
        levels: Sequence[int],
        components: int,
        num_data: int,
        label_sizes: Sequence[int] = (),
        prior: TablePrior | None = None,
        full: bool = False,
    ) -> None:
        super().__init__()
        if not levels or min(levels) < 0:
            raise ValueError(f"levels: expected a number >= 0 for each column, got {tuple(levels)}")
        self.levels, self.num_data = tuple(levels), check_size("num_data", num_data)
        self.components, self.prior = check_size("components", components), prior or TablePrior()
        self.label_sizes = tuple(check_size("label_sizes", size) for size in label_sizes)
        self.num_components = (*self.label_sizes, self.components)
        self.latent_dim = self.dim = len(self.levels)
        self.full = full
        self.numbers = [column for column, size in enumerate(self.levels) if not size]
        self._made: dict[torch.device, dict[str, NaturalDistribution]] = {}
        self.categories = [(column, size) for column, size in enumerate(self.levels) if size > 1]
        self.posteriors = PosteriorDict()
        for name, prior_of_site in self.priors().items():
            self.posteriors[name] = random_posterior(prior_of_site, count=10.0)

    # ------------------------------------------------------------------ the program

    def priors(self) -> dict[str, Any]:
        """Priors of the weights, batch shape [], and of the parameters of each child, [K]."""
        prior = self.prior
        found: dict[str, Any] = {WEIGHTS: self._dirichlet(prior.c0, self.components)}
        if self.numbers:
            zero = torch.zeros(len(self.numbers))
            if self.full:
                of_numbers: Any = NormalWishart(zero, prior.s0, prior.a0, prior.b0**0.5)
            else:
                of_numbers = ColumnNormalGamma(zero, zero + prior.s0, zero + prior.a0, zero + prior.b0)
            found[_parameter(NUMBERS)] = of_numbers.expand([self.components])
        for name, size, concentration in self._categorical():
            found[_parameter(name)] = self._dirichlet(concentration, size).expand([self.components])
        return found

    def _dirichlet(self, concentration: float, size: int) -> Any:
        return dist.Dirichlet(torch.full((size,), concentration))

    def _categorical(self) -> Iterator[tuple[str, int, float]]:
        """Name, size and concentration of each child with categories."""
        for column, size in self.categories:
            yield _column(column), size, self.prior.d0
        for label, size in enumerate(self.label_sizes):
            yield _label(label), size, self.prior.l0

    def observations(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """What each child of the assignment observes: numbers, NaN where missing, or indicators.

        Args:
            x: rows [B, D]; categories are numbered from 0. NaN is missing.
            labels: integers [B, L], -1 = unknown; None leaves the labels out.

        Raises:
            ValueError: labels of another shape or type.
        """
        labels = check_integers("labels", labels, (len(x), len(self.label_sizes)))
        found = {NUMBERS: x[:, self.numbers]} if self.numbers else {}
        for column, size in self.categories:
            found[_column(column)] = indicators(x[:, column], size)
        if labels is not None:
            for label, size in enumerate(self.label_sizes):
                found[_label(label)] = indicators(labels[:, label], size)
        return found

    def model(self, x: Tensor, labels: Tensor | None = None) -> None:
        """The generative model; arguments as for :meth:`observations`."""
        globals_ = self._sample(self._on(x.device))
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1):
            r = pyro.sample("assignment", Assignment(globals_[WEIGHTS]), infer={"enumerate": "parallel"})
            for name, seen in self.observations(x, labels).items():
                pyro.sample(name, self._child(name)(globals_[_parameter(name)], r), obs=seen)

    def guide(self, x: Tensor, labels: Tensor | None = None) -> None:
        """The posterior of all parameters; assignments are summed out. Arguments as for :meth:`model`."""
        param_statements("mixture", self.posteriors)
        self._sample({name: posterior() for name, posterior in self.posteriors.items()})

    def _child(self, name: str) -> Any:
        """Class of a child of the assignment."""
        if name != NUMBERS:
            return Category
        return FullComponent if self.full else ColumnComponent

    def _sample(self, globals_: dict[str, Any]) -> dict[str, Tensor]:
        """Sites of all parameters, those of components in their plate."""
        values: dict[str, Tensor] = {WEIGHTS: pyro.sample(WEIGHTS, globals_[WEIGHTS])}
        with pyro.plate("components", self.components, dim=-1):
            for name, fn in globals_.items():
                if name != WEIGHTS:
                    values[name] = pyro.sample(name, fn)
        return values

    # ------------------------------------------------------------------ learning

    @torch.no_grad()
    def table(self, observations: Mapping[str, Tensor]) -> Tensor:
        """E[log π_k] + Σ E[log p(x | θ_k)], the exponent of the responsibilities: float64 [B, K]."""
        total = self.natural(WEIGHTS).expected_stats()
        for name, seen in observations.items():
            q = self.natural(_parameter(name))
            seen = seen.double()
            total = total + q.family.expected_log_likelihood(seen, torch.zeros_like(seen), q.expected_stats())
        return total.expand(len(seen), -1)

    @torch.no_grad()
    def ascend(self, observations: Mapping[str, Tensor], gamma: Tensor, rate: float = 1.0) -> None:
        """Move λ towards the conjugate posterior λ* given responsibilities, by the rate ρ.

        With ρ = 1 and all rows this is coordinate ascent, and the bound rises.

        Args:
            observations: of B rows that stand for all N.
            gamma: responsibilities of these rows, [B, K].
            rate: ρ in (0, 1].
        """
        scale = self.num_data / len(gamma)
        for name, prior in self._natural_priors().items():
            if name == WEIGHTS:
                target = prior.natural + scale * gamma.double().sum(0)
            elif name.removesuffix(_SUFFIX) in observations:
                seen = observations[name.removesuffix(_SUFFIX)].double()
                nothing = torch.zeros_like(seen)
                target = prior.family.conjugate_update(prior.natural, gamma, seen, nothing, scale)
            else:  # no label is known
                target = prior.natural
            natural = self._posterior(name).natural
            natural.copy_(blend(natural, target, rate))

    @torch.no_grad()
    def bound(self, table: Tensor) -> float:
        """The variational bound, in nats for all N rows.

        Args:
            table: of :meth:`table`, of B rows that stand for all.
        """
        scale = self.num_data / len(table)
        return (scale * table.logsumexp(-1).sum() - self.divergence()).item()

    @torch.no_grad()
    def divergence(self, other: "ObservedMixture | None" = None) -> Tensor:
        """KL of all parameters from their priors, or from those of another model with the same sites."""
        priors = (other or self)._natural_priors()
        pairs = ((self.natural(name), prior) for name, prior in priors.items())
        return torch.stack([q.family.kl(q.natural, p.natural).sum() for q, p in pairs]).sum()

    def natural(self, name: str) -> NaturalDistribution:
        """The posterior of a site's parameters, in natural parameters, detached."""
        posterior = self._posterior(name)
        return posterior.kind(posterior.natural_value(), validate_args=False)

    def _posterior(self, name: str) -> NaturalPosterior:
        posterior = self.posteriors[name]
        assert isinstance(posterior, NaturalPosterior)
        return posterior

    @property
    def device(self) -> torch.device:
        """Where λ is kept."""
        return self._posterior(WEIGHTS).natural.device

    def _natural_priors(self) -> dict[str, NaturalDistribution]:
        """The priors in natural parameters. They never change, so they are made once per device."""
        if self.device not in self._made:
            on_device = self._on(self.device).items()
            self._made[self.device] = {name: natural_prior(prior) for name, prior in on_device}
        return self._made[self.device]

    def _on(self, device: torch.device) -> dict[str, Any]:
        with device:
            return self.priors()

    # ------------------------------------------------------------------ codes

    @torch.no_grad()
    def responsibilities(self, x: Tensor) -> list[Tensor]:
        """Probabilities of the entries of a code, labels not given: of each label's values [B, K_l], then γ.

        The last tensor is γ, [B, K]. A label's is Σ_k γ_k E[ψ_k].
        """
        gamma = self.table(self.observations(x)).softmax(-1)
        values = [gamma @ self._probs(_label(label)) for label in range(len(self.label_sizes))]
        return [part.to(x) for part in (*values, gamma)]

    def codes(self, x: Tensor) -> Tensor:
        """The most probable value of each label, then the most probable component: int64 [B, L + 1]."""
        return torch.stack([probs.argmax(-1) for probs in self.responsibilities(x)], -1)

    def _probs(self, name: str) -> Tensor:
        """E[φ] of a child with categories, float64 [K, size]."""
        (concentration,) = self.natural(_parameter(name)).standard
        return concentration / concentration.sum(-1, keepdim=True)

    def weights(self) -> Tensor:
        """E[π], float64 [K]."""
        (concentration,) = self.natural(WEIGHTS).standard
        return concentration / concentration.sum(-1)

    def locations(self) -> Tensor:
        """A typical row of each component: means, and the most probable categories, [K, D]."""
        rows = torch.zeros(self.components, self.dim, device=self.device)
        if self.numbers:
            rows[:, self.numbers] = self.natural(_parameter(NUMBERS)).loc.to(rows)  # type: ignore[attr-defined]
        for column, _ in self.categories:
            rows[:, column] = self._probs(_column(column)).argmax(-1).to(rows)
        return rows

    def counts(self) -> Tensor:
        """How many rows each component stands for: float64 [K]."""
        (concentration,) = self.natural(WEIGHTS).standard
        return concentration - self.prior.c0

    def used_components(self) -> list[int]:
        """Values of each label, then components, with more than a twentieth of an equal share of the rows."""
        weights = self.weights()
        shares = [weights @ self._probs(_label(label)) for label in range(len(self.label_sizes))]
        used = [int((share > 1 / (20 * len(share))).sum()) for share in shares]
        return [*used, int((self.counts() > self.num_data / (20 * self.components)).sum())]

    @torch.no_grad()
    def filled(self, x: Tensor) -> Tensor:
        """Rows [B, D] with their missing entries at E[x | what is there]; categories at the most probable."""
        gamma = self.table(self.observations(x)).softmax(-1)
        means = (gamma @ self.locations().double()).to(x)
        for column, _ in self.categories:
            means[:, column] = (gamma @ self._probs(_column(column))).argmax(-1).to(x)
        return torch.where(x.isnan(), means, x)

    def posterior(self, x: Tensor) -> Distribution:
        """The row itself, with missing entries filled in, as a point mass: event shape [D]."""
        point: Distribution = dist.Delta(self.filled(x)).to_event(1)
        return point

    # ------------------------------------------------------------------ the predictive distribution

    @torch.no_grad()
    def log_predictive(self, x: Tensor) -> Tensor:
        """Log of the posterior predictive density of rows [B, D], of what is not missing: float64 [B]."""
        total = self.weights().log()
        for name, seen in self.observations(x.double()).items():
            if name == NUMBERS and self.full:
                total = total + self._predictive().log_prob(seen.unsqueeze(1))
            elif name == NUMBERS:
                log_probs = self._predictive().base_dist.log_prob(seen.nan_to_num(0.0).unsqueeze(1))
                total = total + log_probs.masked_fill(seen.isnan().unsqueeze(1), 0.0).sum(-1)
            else:
                total = total + seen.double() @ self._probs(name).log().mT
        return total.expand(len(x), -1).logsumexp(-1)

    def _predictive(self, component: Tensor | None = None) -> Any:
        """The Student-t of the numbers of all components, or of given ones [n], in float64."""
        q = self.natural(_parameter(NUMBERS))
        own = q.standard if component is None else tuple(part[component] for part in q.standard)
        return q.family.predictive(own, torch.float64)

    def _spread(self) -> Tensor:
        """A square root of each component's covariance, up to a factor: lower triangular [K, F, F]."""
        predictive = self._predictive()
        return predictive.scale_tril if self.full else torch.diag_embed(predictive.base_dist.scale)

    def log_weights(self, x: Tensor, num_samples: int) -> Tensor:
        """The log-density itself, as no z is drawn: [num_samples, B]."""
        return self.log_predictive(x).expand(num_samples, -1)

    @torch.no_grad()
    def sample_codes(self, num_samples: int, codes: Tensor | None = None) -> Tensor:
        """Draw the values of labels and the component: int64 [num_samples, L + 1].

        Args:
            num_samples: number of draws.
            codes: int64 [num_samples, L + 1], fixed entries, or -1 to draw one; None draws all.

        Raises:
            ValueError: ``codes`` of another shape, or with values out of range.
        """
        given = check_codes("codes", codes, num_samples, self.num_components)
        weights = self.weights()
        if given is None:
            given = torch.full((num_samples, len(self.num_components)), -1)
        given = given.to(weights.device)
        logits = self._given_labels(given)
        drawn = Categorical(logits=logits, validate_args=False).sample()
        component = torch.where(given[:, -1] >= 0, given[:, -1], drawn)
        entries = []
        for label in range(len(self.label_sizes)):
            value = Categorical(probs=self._probs(_label(label))[component], validate_args=False).sample()
            entries.append(torch.where(given[:, label] >= 0, given[:, label], value))
        return torch.stack([*entries, component], -1)

    def _given_labels(self, codes: Tensor) -> Tensor:
        """Log-weights of components given the labels of codes [n, L + 1], -1 = unknown: [n, K]."""
        logits = self.weights().log().expand(len(codes), -1)
        for label, size in enumerate(self.label_sizes):
            logits = logits + indicators(codes[:, label], size).double() @ self._probs(_label(label)).log().mT
        return logits

    @torch.no_grad()
    def sample_latent(self, num_samples: int, codes: Tensor | None = None) -> Tensor:
        """Draw rows from the posterior predictive, [num_samples, D]; see :meth:`sample_codes`."""
        component = self.sample_codes(num_samples, codes)[:, -1]
        rows = torch.zeros(num_samples, self.dim, device=component.device)
        if self.numbers and num_samples:
            rows[:, self.numbers] = self._predictive(component).sample().to(rows)
        for column, _ in self.categories:
            probs = self._probs(_column(column))[component]
            rows[:, column] = Categorical(probs=probs, validate_args=False).sample().to(rows)
        return rows

    @torch.no_grad()
    def edit(self, x: Tensor, changes: Mapping[int, int]) -> Tensor:
        """Move rows [B, D] to other components: those that the changed entries of their codes make likely.

        Numbers keep how they differ from the mean of their component, in its standard deviations (or by its
        Cholesky factor). Categories become the most probable ones of the new component.

        Args:
            x: rows.
            changes: entry of the code → its new value.

        Raises:
            ValueError: an entry or a value out of range.
        """
        rows, codes = self.filled(x), torch.full((len(x), len(self.num_components)), -1, device=x.device)
        for entry, value in changes.items():
            if not 0 <= entry < len(self.num_components) or not 0 <= value < self.num_components[entry]:
                raise ValueError(f"changes: expected entries of {self.num_components}, got {entry}: {value}")
            codes[:, entry] = value
        old = self.codes(x)[:, -1]
        new = torch.where(codes[:, -1] >= 0, codes[:, -1], self._given_labels(codes).argmax(-1))
        locations = self.locations()
        changed = locations[new]
        if self.numbers:
            spread = self._spread()
            gap = (rows - locations[old])[:, self.numbers].double().unsqueeze(-1)
            white = torch.linalg.solve_triangular(spread[old], gap, upper=False)
            changed[:, self.numbers] += (spread[new] @ white).squeeze(-1).to(rows)
        return torch.where((old == new).unsqueeze(-1), rows, changed)

    # ------------------------------------------------------------------ hooks of a run

    def start_at(self, x: Tensor) -> None:
        """Initialise from data: nothing to do, its phase seeds the components."""

    def match(self, state_dict: Mapping[str, Any]) -> None:
        """Prepare for loading a state dictionary: nothing to do, parameters have only one form."""


_SUFFIX = "_parameter"


def _parameter(name: str) -> str:
    return name + _SUFFIX


def _column(number: int) -> str:
    return f"column_{number}"


def _label(number: int) -> str:
    return f"label_{number}"
