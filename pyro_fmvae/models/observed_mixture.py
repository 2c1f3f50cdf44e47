"""A Bayesian mixture of the rows of a table: no networks, no latent vector, every update exact."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution

from pyro_fmvae.distributions import Columns
from pyro_fmvae.distributions.category import indicators
from pyro_fmvae.distributions.marginal_component import expected_numbers
from pyro_fmvae.infer.posteriors import param_statements
from pyro_fmvae.models.label_predictor import LabelPredictor, predictors_of
from pyro_fmvae.models.mixing_weights import DIRICHLET_WEIGHTS
from pyro_fmvae.models.packed_numbers import PackedObservations
from pyro_fmvae.models.shapes import check_codes, of_components
from pyro_fmvae.models.table_posterior import TablePosterior
from pyro_fmvae.models.table_sites import (
    COUNTED,
    NUMBERS,
    WEIGHTS,
    TablePrior,
    TableSites,
    column_site,
    label_site,
    parameter_of,
)
from pyro_fmvae.nn.sizes import check_size


class ObservedMixture(TablePosterior):
    """A mixture of observed rows: columns of numbers, counts and categories, and labels.

        π ~ Dirichlet(c0),  r ~ Categorical(π),
        x | r=k ~ N(μ_k, Σ_k) of numbers,  x_d | r=k ~ Poisson(θ_kd) of counts,
        x_d | r=k ~ Categorical(φ_kd) of categories,  y_l | r=k ~ Categorical(ψ_kl) of labels

    with conjugate priors of all parameters (Bishop, 2006, Section 10.2). A missing entry, NaN, and an
    unknown label, -1, are marginalised. A label is one more column: a component may stand for one of its
    values, several components for the same value, and rows without a label take part (Miller and Uyar,
    1997). So a code of L labels has L + 1 entries, one for each label and the component last.

    :meth:`model` and :meth:`guide` are a Pyro program for ``TraceConjugate_ELBO``. Its natural-gradient step
    in closed form is :func:`~pyro_fmvae.learn.coordinate_ascent.ascend`.

    Args:
        levels: for each of the D columns, how many categories it has: 0 for a column of numbers, -1 for one
            of counts, and 1 for one that is left out.
        components: K.
        num_data: N, rows in the training set.
        label_sizes: for each label, how many values it has.
        prior: hyperparameters.
        full: Σ_k is any covariance, else it is diagonal.
        learn_prior: a0 and b0 of ``prior`` are where the prior of the numbers starts, which a step
            of learning chooses by the bound.
        others: columns whose last category stands for all rare words, so that no gap is filled with it.

    Attributes:
        predictors: of labels, by their sites; none at first. The mixture alone predicts a label without one.
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
        learn_prior: bool = False,
        others: Sequence[int] = (),
    ) -> None:
        sites = TableSites(levels, components, label_sizes, prior or TablePrior(), full)
        super().__init__(sites, learn_prior)
        self.levels, self.num_data = tuple(levels), check_size("num_data", num_data)
        self.label_sizes, self.others = self.sites.label_sizes, tuple(others)
        self.num_components = (*self.label_sizes, self.components)
        self.latent_dim = self.dim = len(self.levels)
        self.predictors = nn.ModuleDict()

    # ------------------------------------------------------------------ the program

    def observations(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Values that each child of the assignment observes, by site.

        Numbers and counts are [B, D of these], NaN where missing, and codes of categories int64 [B], -1 where
        missing: indicators of columns of many words would be large.

        Args:
            x: rows [B, D]; categories are numbered from 0. NaN is missing.
            labels: integers [B, L], -1 = unknown; None leaves the labels out.

        Raises:
            ValueError: labels of another shape or type.
        """
        return self.sites.observations(x, labels)

    def model(self, x: Tensor, labels: Tensor | None = None) -> None:
        """The generative model; arguments as for :meth:`observations`."""
        globals_ = self._sample(self.priors_on(x.device))
        of_row = self.prior.weights.assignment(globals_[WEIGHTS])
        with pyro.plate("data", self.num_data, subsample=torch.arange(len(x), device=x.device), dim=-1):
            r = pyro.sample("assignment", of_row, infer={"enumerate": "parallel"})
            for name, values in self.observations(x, labels).items():
                observed = self._indicated(name, values)
                pyro.sample(name, self.sites.child(name)(globals_[parameter_of(name)], r), obs=observed)

    def _indicated(self, name: str, values: Tensor) -> Tensor:
        """Observations of a child, [B, ...]: its values, or the indicators of categories."""
        size = self.sites.categories_of(name)
        return indicators(values, size) if size else values

    def guide(self, x: Tensor, labels: Tensor | None = None) -> None:
        """The posterior of all parameters; assignments are summed out. Arguments as for :meth:`model`."""
        param_statements("mixture", self.posteriors)
        found = {name: posterior() for name, posterior in self.posteriors.items()}
        for name, dims in ((WEIGHTS, 0), (parameter_of(COUNTED), 1)):
            if name in found:  # numbers that are independent under the posterior are one event
                found[name] = found[name].to_event(len(found[name].batch_shape) - dims)
        self._sample(found)

    def _sample(self, globals_: dict[str, Any]) -> dict[str, Tensor]:
        """Sites of all parameters, those of components in their plate."""
        values: dict[str, Tensor] = {WEIGHTS: pyro.sample(WEIGHTS, globals_[WEIGHTS])}
        with pyro.plate("components", self.components, dim=-1):
            for name, fn in globals_.items():
                if name != WEIGHTS:
                    values[name] = pyro.sample(name, fn)
        return values

    # ------------------------------------------------------------------ codes

    @torch.no_grad()
    def table(self, observations: PackedObservations, among: Tensor | None = None) -> Tensor:
        """E[log π_k] + Σ E[log p(x | θ_k)], the exponent of the responsibilities: float64 [B, K].

        Where covariances are full and numbers of :meth:`packed` rows are missing, an upper bound may stand in
        place of what makes no difference to the responsibilities but rounding.

        Args:
            observations: of B rows.
            among: components that take part, bool [K] or [B, K]; the others have minus infinity. None: all.
        """
        total = self.expected_log_weights()
        if among is not None:
            total = total.masked_fill(~among, -torch.inf)
        for name, values in sorted(observations.items(), key=lambda item: item[0] == NUMBERS):
            stats = self.natural(parameter_of(name)).expected_stats()
            total = total + self.sites.log_likelihoods(name, values, stats, total)
        return total.expand(len(values), -1)

    @torch.no_grad()
    def responsibilities(self, x: Tensor) -> list[Tensor]:
        """Probabilities of the entries of a code, labels not given: of each label's values [B, K_l], then γ.

        A label's are those of its predictor, q(y | x), or without one the mixture's own. The last tensor is
        γ, [B, K]: Σ_y q(y | x) p(r | x, y), label by label (Jeffrey's rule). With the mixture's own
        predictions that is p(r | x).
        """
        gamma = self.table(self.observations(x)).softmax(-1)
        values = self.own_predictions(gamma)
        for label, own in enumerate(values):
            if (predictor := self.predictor_of(label)) is not None:
                values[label], probs = predictor(self.features(x), own), self.probs(label_site(label))
                gamma = gamma * ((values[label] / (gamma @ probs)) @ probs.mT)
        return [part.to(x) for part in (*values, gamma)]

    def predictor_of(self, label: int) -> LabelPredictor | None:
        """The predictor of a label, by its number; None: the mixture alone predicts it."""
        return dict(self.predictors.items()).get(label_site(label))  # type: ignore[return-value]

    def own_predictions(self, gamma: Tensor) -> list[Tensor]:
        """The mixture's p(y | x) = Σ_k γ_k E[ψ_k] of each label, float64 [B, K_l], of γ = p(r | x) [B, K]."""
        return [gamma @ self.probs(label_site(label)) for label in range(len(self.label_sizes))]

    def features(self, x: Tensor) -> Tensor:
        """Rows as predictors of labels see them, float64 [B, F]: numbers, 0 where missing, and indicators."""
        columns = (self._indicated(name, values) for name, values in self.observations(x).items())
        return torch.cat([part.nan_to_num(0.0).double() for part in columns], -1)

    def codes(self, x: Tensor) -> Tensor:
        """The most probable value of each label, then the most probable component: int64 [B, L + 1]."""
        return torch.stack([probs.argmax(-1) for probs in self.responsibilities(x)], -1)

    def predicted_codes(self, x: Tensor) -> Tensor:
        """:meth:`codes`, which are of predicted labels already: int64 [B, L + 1]."""
        return self.codes(x)

    def used_components(self) -> list[int]:
        """Values of each label, then components, with more than a twentieth of an equal share of the rows."""
        weights = self.weights()
        shares = [weights @ self.probs(label_site(label)) for label in range(len(self.label_sizes))]
        used = [int((share > 1 / (20 * len(share))).sum()) for share in shares]
        if self.components == 1:
            return [*used, 1]
        return [*used, int((self.counts() > self.num_data / (20 * self.components)).sum())]

    @torch.no_grad()
    def filled(self, x: Tensor) -> Tensor:
        """Rows [B, D] with their missing entries at E[x | what is there]; categories at the most probable."""
        gamma = self.table(self.observations(x)).softmax(-1)
        means = (gamma @ self.locations().double()).to(x)
        if self.sites.full and self.sites.numbers:
            standard = self.natural(parameter_of(NUMBERS)).standard
            means[:, self.sites.numbers] = expected_numbers(x[:, self.sites.numbers], gamma, standard).to(x)
        if self.sites.counted:
            means[:, self.sites.counted] = (gamma @ self.rates()).to(x)
        for column, _ in self.sites.categories:
            gone = x[:, column].isnan()
            probs = gamma[gone] @ self.probs(column_site(column))
            means[gone, column] = probs[:, : -1 if column in self.others else None].argmax(-1).to(x)
        return torch.where(x.isnan(), means, x)

    def code(self, x: Tensor) -> Tensor:
        """The row itself, with what is missing filled in."""
        return self.filled(x)

    def reconstruct(self, x: Tensor) -> Tensor:
        """The row, with what is missing filled in."""
        return self.filled(x)

    def decode(self, z: Tensor) -> Tensor:
        """The row itself."""
        return z

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        """``codes`` [B, L + 1]; ``mean`` [B, D], the rows filled in; per entry i ``responsibilities_i``."""
        return of_components(self.responsibilities(x), {"mean": self.filled(x)})

    def posterior(self, x: Tensor) -> Distribution:
        """The row itself, with missing entries filled in, as a point mass: event shape [D]."""
        point: Distribution = dist.Delta(self.filled(x)).to_event(1)
        return point

    # ------------------------------------------------------------------ the predictive distribution

    @torch.no_grad()
    def log_predictive(self, x: Tensor) -> Tensor:
        """Log of the posterior predictive density of rows [B, D], of what is not missing: float64 [B]."""
        return self._log_joint(x).logsumexp(-1)

    def _log_joint(self, x: Tensor) -> Tensor:
        """Log of the predictive density of a component and of rows: float64 [B, K]."""
        total = self.weights().log()
        for name, values in self.observations(x.double()).items():
            total = total + self.log_predictives(name, values)
        return total.expand(len(x), -1)

    @torch.no_grad()
    def surprise(self, x: Tensor, new: Tensor) -> Tensor:
        """Minus the log of the predictive probability of words that training did not have: float64 [B].

        Any such word is one category more, of the same concentration d0 in the Dirichlet of its column: a
        component with n_k words out of C has d0 / (n_k + (C + 1) d0) of it, and components are weighted by
        what else the row has.

        Args:
            x: rows [B, D], NaN where they have such a word.
            new: where that is, bool [B, D].
        """
        logits = self._log_joint(x).log_softmax(-1)
        for column, _ in self.sites.categories:
            (concentration,) = self.natural(parameter_of(column_site(column))).standard
            share = self.prior.d0 / (concentration.sum(-1) + self.prior.d0)
            logits = logits + new[:, column, None] * share.log()
        return -logits.logsumexp(-1)

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
        drawn = Categorical(logits=self.given_labels(given), validate_args=False).sample()
        component = torch.where(given[:, -1] >= 0, given[:, -1], drawn)
        entries = []
        for label in range(len(self.label_sizes)):
            value = Categorical(probs=self.probs(label_site(label))[component], validate_args=False).sample()
            entries.append(torch.where(given[:, label] >= 0, given[:, label], value))
        return torch.stack([*entries, component], -1)

    @torch.no_grad()
    def sample_latent(self, num_samples: int, codes: Tensor | None = None) -> Tensor:
        """Draw rows from the posterior predictive, [num_samples, D]; see :meth:`sample_codes`."""
        return self.draws(self.sample_codes(num_samples, codes)[:, -1])

    # ------------------------------------------------------------------ hooks of a run

    def program_arguments(self, x: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments of :meth:`program`, of rows [N, D].

        Returns:
            Rows [N, D], which entries are there [N, D] (:meth:`program_rows`), and weights [N].

        Raises:
            ValueError: a row misses some numbers, but not all, and covariances are full.
        """
        rows, known = self.program_rows(x)
        given = torch.ones(len(rows), dtype=rows.dtype) if weights is None else weights.to(rows)
        return rows, known, given.clamp(min=torch.finfo(rows.dtype).tiny)  # which Pyro refuses to be 0

    def program(self) -> Callable[..., None]:
        """The model without labels, in Pyro's own distributions, of :meth:`program_arguments`.

        Raises:
            ValueError: stick-breaking weights.
        """
        if self.prior.weights is not DIRICHLET_WEIGHTS:
            raise ValueError(
                "weights: expected a Dirichlet prior for a Pyro program, got stick-breaking ones"
            )
        numbers, concentration = self.prior_of_numbers(), torch.full((self.components,), self.prior.c0)

        def model(x: Tensor, there: Tensor, weights: Tensor) -> None:
            shares = pyro.sample(WEIGHTS, dist.Dirichlet(concentration))
            with pyro.plate("components", self.components):
                columns = Columns(*self.emissions(numbers, there))
            with pyro.plate("rows", len(x)), poutine.scale(scale=weights):
                pyro.sample("x", dist.MixtureSameFamily(dist.Categorical(shares), columns), obs=x)

        return model

    def start_at(self, x: Tensor) -> None:
        """Initialise from data: nothing to do, its phase seeds the components."""

    def match(self, state_dict: Mapping[str, Any]) -> None:
        """Prepare for loading a state dictionary: take over the shapes of its predictors of labels."""
        self.predictors = nn.ModuleDict(predictors_of(state_dict, "predictors.")).to(self.device)
