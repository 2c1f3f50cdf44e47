"""The sites of a mixture of table rows: what each child of the assignment observes, and its prior."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_fmvae.distributions import (
    COLUMN_NORMAL_GAMMA,
    Category,
    ColumnComponent,
    ColumnNormalGamma,
    MarginalComponent,
    NormalWishart,
    PoissonComponent,
)
from pyro_fmvae.distributions.category import codes_below, of_category, sums_by_category
from pyro_fmvae.distributions.marginal_component import marginal_table, marginal_update
from pyro_fmvae.distributions.poisson_component import counts_update, expected_log_counts
from pyro_fmvae.models.learnt_prior import LearntPrior
from pyro_fmvae.models.mixing_weights import DIRICHLET_WEIGHTS, MixingWeights
from pyro_fmvae.models.packed_numbers import PackedNumbers
from pyro_fmvae.models.shapes import check_integers
from pyro_fmvae.nn.sizes import check_size

COUNTS: Final = -1
"""Number of categories that says that a column holds counts."""
LEFT_OUT: Final = 1
"""Number of categories that says that a column is left out."""
COUNTED: Final = "counts"
"""Site of the columns of counts."""
WEIGHTS: Final = "weights"
"""Site of the mixing weights."""
NUMBERS: Final = "x"
"""Site of the columns of numbers."""
_SUFFIX = "_parameter"


@dataclass(frozen=True)
class TablePrior:
    """Hyperparameters of an :class:`ObservedMixture` of standardised columns.

    Args:
        c0: concentration of the prior of the mixing weights.
        s0: pseudo-observations behind the prior mean, 0, of the components' means.
        a0, b0: shape and rate of the Gamma over precisions, so that a component's variances are about
            b0 / a0. A full covariance has the same in every dimension: a Wishart of the rate matrix b0 I.
        d0: concentration of the Dirichlet over the categories of a column.
        l0: the same for labels. Far below 1, most components stand for a single value.
        numbers: prior of a component's numbers, batch shape []: a ``NormalWishart`` where covariances are
            full, else a ``ColumnNormalGamma``. It takes the place of s0, a0 and b0, and of the mean 0. Where
            a mixture learns its prior, this one's mean, shape and the eigenvectors of its rate matrix stay.
        learn_s0: such a mixture learns s0 of ``numbers``, too.
        rates: shape and rate of the Gamma over a component's Poisson rates, for every column of counts
            together or for each.
        weights: kind of the prior of the mixing weights.
    """

    c0: float = 1.0
    s0: float = 0.1
    a0: float = 1.0
    b0: float = 0.2
    d0: float = 0.5
    l0: float = 0.1
    numbers: NormalWishart | ColumnNormalGamma | None = None
    learn_s0: bool = False
    rates: tuple[float | Tensor, float | Tensor] = (1.0, 1.0)
    weights: MixingWeights = DIRICHLET_WEIGHTS


class TableSites:
    """The children of the assignment of an :class:`ObservedMixture`, whose arguments these are.

    Attributes:
        apart: sites whose prior is not the same for each component.
    """

    apart: tuple[str, ...] = (WEIGHTS,)

    def __init__(
        self,
        levels: Sequence[int],
        components: int,
        label_sizes: Sequence[int],
        prior: TablePrior,
        full: bool,
    ) -> None:
        if not levels or min(levels) < COUNTS:
            raise ValueError(f"levels: expected a number >= {COUNTS} for each column, got {tuple(levels)}")
        self.components, self.prior, self.full = check_size("components", components), prior, full
        self.width = len(levels)
        self.numbers = [column for column, size in enumerate(levels) if not size]
        self.counted = [column for column, size in enumerate(levels) if size == COUNTS]
        self.categories = [(column, size) for column, size in enumerate(levels) if size > LEFT_OUT]
        self.label_sizes = tuple(check_size("label_sizes", size) for size in label_sizes)
        self._sizes = {site: size for site, size, _ in self._categorical()}

    def priors(self, learnt: LearntPrior | None = None) -> dict[str, Any]:
        """Priors of the weights, batch shape [], and of the parameters of each child, [K].

        Args:
            learnt: the prior of the numbers, if it is learnt.
        """
        prior = self.prior
        found: dict[str, Any] = {WEIGHTS: prior.weights.prior(prior.c0, self.components)}
        if self.numbers:
            device = torch.get_default_device()
            of_numbers = self.numbers_prior() if learnt is None else learnt.distribution(device)
            found[parameter_of(NUMBERS)] = of_numbers.expand([self.components])
        if self.counted:
            zeros = torch.zeros(len(self.counted))
            shape, rate = (torch.as_tensor(part, device=zeros.device) + zeros for part in prior.rates)
            found[parameter_of(COUNTED)] = dist.Gamma(shape, rate).to_event(1).expand([self.components])
        for name, size, concentration in self._categorical():
            found[parameter_of(name)] = _dirichlet(concentration, size).expand([self.components])
        return found

    def numbers_prior(self) -> Any:
        """Prior of a component's numbers, batch shape []."""
        prior, zero = self.prior, torch.zeros(len(self.numbers))
        if prior.numbers is not None:
            given: Any = prior.numbers
            return type(given)(*(part.to(zero.device) for part in given.standard))
        if self.full:
            return NormalWishart(zero, prior.s0, prior.a0, prior.b0**0.5)
        return ColumnNormalGamma(zero, zero + prior.s0, zero + prior.a0, zero + prior.b0)

    def learnt_prior(self) -> LearntPrior:
        """The prior of a component's numbers, to be learnt."""
        given = self.prior.numbers is not None
        return LearntPrior(self.numbers_prior(), given, given and self.prior.learn_s0)

    def _categorical(self) -> Iterator[tuple[str, int, float]]:
        """Name, size and concentration of each child with categories."""
        for column, size in self.categories:
            yield column_site(column), size, self.prior.d0
        for label, size in enumerate(self.label_sizes):
            yield label_site(label), size, self.prior.l0

    def observations(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Values that each child observes, by site: see :meth:`ObservedMixture.observations`."""
        labels = check_integers("labels", labels, (len(x), len(self.label_sizes)))
        found = {NUMBERS: x[:, self.numbers]} if self.numbers else {}
        if self.counted:
            found[COUNTED] = x[:, self.counted]
        for column, size in self.categories:
            found[column_site(column)] = codes_below(x[:, column], size)
        if labels is not None:
            for label, size in enumerate(self.label_sizes):
                found[label_site(label)] = codes_below(labels[:, label], size)
        return found

    def categories_of(self, name: str) -> int:
        """How many categories a child has; 0: it has none."""
        return self._sizes.get(name, 0)

    def log_likelihoods(
        self, child: str, values: Tensor | PackedNumbers, stats: Tensor, others: Tensor
    ) -> Tensor:
        """E[log p(x | θ_k)] of what a child observes, or the bound on it: float64 [..., N, K].

        Args:
            child: site.
            values: what rows observe, by :meth:`observations`, or packed. Unless it is numbers that are not
                packed, or packed ones with gaps, mixtures may have leading dimensions, and their rows too.
            stats: E[t] of the components, [..., K, P].
            others: as for :func:`~pyro_fmvae.distributions.marginal_component.marginal_expectation`.
        """
        if isinstance(values, PackedNumbers):
            return values.log_likelihoods(stats, others)
        if self.categories_of(child):
            return of_category(stats, values)
        values = values.double()
        if child == COUNTED:
            return expected_log_counts(values, stats)
        if self.full:
            return marginal_table(values, stats)
        return COLUMN_NORMAL_GAMMA.expected_log_likelihood(values, torch.zeros_like(values), stats)

    def conjugate(
        self,
        child: str,
        prior: Tensor,
        values: Tensor | PackedNumbers,
        gamma: Tensor,
        stats: Tensor,
        scale: Tensor | float = 1.0,
    ) -> Tensor:
        """λ* of a child's parameters, [..., K, P].

        Args:
            child: site.
            prior: λ of the parameters' prior, [..., K, ..., P].
            values: as for :meth:`log_likelihoods`.
            gamma: responsibilities, [..., N, K].
            stats: E[t] of the present components, by which missing numbers are filled in.
            scale: rows that each row stands for; a tensor of the shape of λ where mixtures have their own.
        """
        if isinstance(values, PackedNumbers):
            return values.update(prior, gamma, stats, scale)
        if size := self.categories_of(child):
            return prior + scale * sums_by_category(gamma.double(), values, size)
        values = values.double()
        if child == COUNTED:
            return counts_update(prior, gamma.double(), values, scale)
        if self.full:
            return marginal_update(prior, gamma, values, stats, float(scale))
        return COLUMN_NORMAL_GAMMA.conjugate_update(
            prior, gamma, values, torch.zeros_like(values), float(scale)
        )

    def child(self, name: str) -> Any:
        """Class of a child of the assignment."""
        if name == COUNTED:
            return PoissonComponent
        if name != NUMBERS:
            return Category
        return MarginalComponent if self.full else ColumnComponent


def parameter_of(site: str) -> str:
    """Site of the parameters of a child."""
    return site + _SUFFIX


def child_of(parameter: str) -> str:
    """Invert :func:`parameter_of`."""
    return parameter.removesuffix(_SUFFIX)


def column_site(number: int) -> str:
    """Site of a column of categories."""
    return f"column_{number}"


def label_site(number: int) -> str:
    """Site of a label."""
    return f"label_{number}"


def _dirichlet(concentration: float, size: int) -> Any:
    return dist.Dirichlet(torch.full((size,), concentration))
