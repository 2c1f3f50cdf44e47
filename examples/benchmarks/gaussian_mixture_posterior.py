"""Priors and posteriors of a Bayesian Gaussian mixture, in this library's and in scikit-learn's terms.

scikit-learn keeps ν degrees of freedom and a covariance C for each component. Its scatter ν C is W^-1, the
inverse scale matrix of a Wishart, or for ``covariance_type="diag"`` the diagonal of such a matrix. In this
library's terms

    full: a Normal-Wishart with a = (ν - D + 1)/2 and B = ν C / 2
    diag: a Normal-Gamma with a = ν/2 and b_d = ν C_d / 2

and so for the prior, whose ν is ``degrees_of_freedom_prior`` and whose ν C is ``covariance_prior``. The other
parameters are the same in both: c is ``weight_concentration_prior``, m is ``mean_prior`` and s is
``mean_precision_prior`` (``reg_covar``, which would add to C, is 0).

For full covariances the two are one model, one posterior and one bound, but that ``lower_bound_`` leaves out
what does not depend on the posterior: the normalisers of the priors, and D/2 log 2π for each point. For
diagonal ones scikit-learn's E-step does not match its M-step. It takes E[log |Λ|] of a full Wishart, Σ_d
ψ((ν - d)/2) with d = 0 ... D-1, while D independent Gammas have D ψ(ν/2), which penalises components with
little data; :func:`e_step_gap` is the difference. Its ``lower_bound_`` has log Γ of the same arguments.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.mixture import BayesianGaussianMixture
from torch import Tensor

from pyro_fmvae.distributions import (
    DIRICHLET,
    NORMAL_GAMMA,
    NORMAL_WISHART,
    Component,
    ExponentialFamily,
    FullComponent,
    MixtureComponent,
)

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
CHUNK = 10_000  # points that are scored at once


@dataclass(frozen=True)
class Covariances:
    """A ``covariance_type`` of scikit-learn in this library's terms.

    Attributes:
        family: of the posterior of a component's mean and precision.
        component: class of the points' distribution.
        standard: the family's standard parameters from (m, s, ν, scatter).
    """

    family: ExponentialFamily
    component: type[MixtureComponent]
    standard: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]


COVARIANCES = {
    "diag": Covariances(NORMAL_GAMMA, Component, lambda m, s, nu, scatter: (m, s, 0.5 * nu, 0.5 * scatter)),
    "full": Covariances(
        NORMAL_WISHART,
        FullComponent,
        lambda m, s, nu, scatter: (m, s, 0.5 * (nu - m.shape[-1] + 1), torch.linalg.cholesky(0.5 * scatter)),
    ),
}


@dataclass(frozen=True)
class Priors:
    """π ~ Dirichlet(c), μ_k ~ N(m, 1/(s Λ_k)), and Λ_k has ν degrees of freedom and a scatter."""

    c: float
    m: np.ndarray  # [D]
    s: float
    nu: float
    scatter: np.ndarray  # [D] if diagonal, else [D, D]

    @classmethod
    def of_data(cls, x: np.ndarray, components: int, covariances: str) -> "Priors":
        """scikit-learn's defaults for data [N, D]."""
        scatter = x.var(0, ddof=1) if covariances == "diag" else np.atleast_2d(np.cov(x.T))
        return cls(1 / components, x.mean(0), 1.0, x.shape[1], scatter)

    @property
    def covariance_type(self) -> str:
        return "diag" if self.scatter.ndim == 1 else "full"

    @property
    def covariances(self) -> Covariances:
        return COVARIANCES[self.covariance_type]

    def for_sklearn(self, dtype: Any) -> dict[str, Any]:
        """The prior as arguments of ``BayesianGaussianMixture``, which computes in their widest type."""
        return {
            "covariance_type": self.covariance_type,
            "weight_concentration_prior_type": "dirichlet_distribution",
            "weight_concentration_prior": self.c,
            "mean_prior": self.m.astype(dtype),
            "mean_precision_prior": self.s,
            "degrees_of_freedom_prior": self.nu,
            "covariance_prior": self.scatter.astype(dtype),
            "reg_covar": 0.0,
        }

    def component(self) -> Any:
        """The prior of one component, a Pyro distribution in float64."""
        parameters = (torch.as_tensor(np.asarray(t, float)) for t in (self.m, self.s, self.nu, self.scatter))
        return self.covariances.family.member(*self.covariances.standard(*parameters))

    def naturals(self, components: int) -> tuple[Tensor, Tensor]:
        """Natural parameters: c of the weights [K] and λ of the components [K, P]."""
        counts = torch.full((components,), self.c, dtype=torch.float64)
        return counts, self.covariances.family.pack(self.component()).expand(components, -1)


@dataclass(frozen=True)
class Posterior:
    """Natural parameters of a fitted mixture, by which both libraries are scored."""

    priors: Priors
    counts: Tensor  # c [K]
    components: Tensor  # λ [K, P]

    @classmethod
    def of_sklearn(cls, priors: Priors, mixture: BayesianGaussianMixture) -> "Posterior":
        """The posterior of scikit-learn's fitted attributes."""
        c, m, s, nu, covariance = (
            torch.as_tensor(np.asarray(array, dtype=np.float64))
            for array in (
                mixture.weight_concentration_,
                mixture.means_,
                mixture.mean_precision_,
                mixture.degrees_of_freedom_,
                mixture.covariances_,
            )
        )
        scatter = nu.view(-1, *[1] * (covariance.dim() - 1)) * covariance
        kind = priors.covariances
        return cls(priors, c, kind.family.natural(*kind.standard(m, s, nu, scatter)))

    @classmethod
    def after(cls, priors: Priors, x: Tensor, gamma: Tensor) -> "Posterior":
        """The exact posterior given points [N, D] and their responsibilities [N, K]."""
        counts, components = priors.naturals(gamma.shape[-1])
        family = priors.covariances.family
        update = family.conjugate_update(components, gamma, x, torch.zeros_like(x))
        return cls(priors, counts + gamma.double().sum(0), update)

    def expected_log_joint(self, x: Tensor) -> Tensor:
        """E[log π_k + log N(x | μ_k, 1/Λ_k)] of points [N, D], in float64: [N, K]."""
        x, family = x.double(), self.priors.covariances.family
        table = family.expected_log_likelihood(x, torch.zeros_like(x), family.mean_stats(self.components))
        return table + DIRICHLET.mean_stats(self.counts)

    def divergence(self) -> float:
        """KL from the prior, of weights and components."""
        counts, components = self.priors.naturals(len(self.counts))
        own = self.priors.covariances.family.relative_entropy(self.components, components).sum()
        return (DIRICHLET.relative_entropy(self.counts, counts) + own).item()

    def bound(self, x: Tensor, points: int | None = None) -> float:
        """The bound on log p(x) per point, with the assignments at their optimum. Bishop, equation 10.70.

        Args:
            x: points [M, D].
            points: N, where x is a sample of N points; None: M. The bound of a sample is an estimate.
        """
        fit = sum(self.expected_log_joint(part).logsumexp(-1).sum().item() for part in x.split(CHUNK))
        return fit / len(x) - self.divergence() / (points or len(x))

    def log_predictive(self, x: Tensor) -> float:
        """Mean over points of the log posterior predictive density, a mixture of Student-t's."""
        family, log_weights = self.priors.covariances.family, (self.counts / self.counts.sum()).log()
        students = family.predictive(family.unpack(self.components), torch.float64)
        tables = (students.log_prob(part.double().unsqueeze(-2)) for part in x.split(CHUNK))
        return torch.cat([(table + log_weights).logsumexp(-1) for table in tables]).mean().item()

    def active(self, points: int) -> int:
        """Number of components with more than a twentieth of an equal share of the points."""
        return int((self.counts - self.priors.c > points / (20 * len(self.counts))).sum())


def e_step_gap(degrees_of_freedom: np.ndarray, dim: int) -> np.ndarray:
    """Error of scikit-learn's E[log N] of diagonal covariances, [K]; positive if it is too low."""
    nu = torch.as_tensor(degrees_of_freedom).unsqueeze(-1)
    return 0.5 * (torch.digamma(nu / 2) - torch.digamma((nu - torch.arange(dim)) / 2)).sum(-1).numpy()


@dataclass
class Trace:
    """Posteriors after some of the steps, and the seconds until each, preparation included.

    Attributes:
        setup: seconds of preparation.
    """

    clock: Callable[[], float]
    max_seconds: float
    points: list[tuple[float, int, Posterior]] = field(default_factory=list)
    converged: bool = False
    begun: float = 0.0
    setup: float = 0.0

    def begin(self) -> None:
        """Start the clock."""
        self.begun = self.clock()

    def end_setup(self) -> None:
        """Note that preparation ends."""
        self.setup = self.clock() - self.begun

    def record(self, steps: int, posterior: Posterior) -> None:
        """Add a point."""
        self.points.append((self.clock() - self.begun, steps, posterior))

    @property
    def time_left(self) -> bool:
        """Was the last point in time?"""
        return self.points[-1][0] < self.max_seconds
