"""Priors and posteriors of a Bayesian Gaussian mixture, in this library's and in scikit-learn's terms.

scikit-learn's ``covariance_type="diag"`` keeps a degree of freedom ν and a covariance C_d = W_d^-1 / ν for
each component. Its M-step is that of D independent Gammas over the precisions, with shape a = ν/2 and rate
b_d = ν C_d / 2, so

    c0 = weight_concentration_prior    m0 = mean_prior    a0 = degrees_of_freedom_prior / 2
    s0 = mean_precision_prior                             b0 = covariance_prior / 2

and the same for the posterior (``reg_covar``, which would add to b, is 0). Its E-step differs: it takes
E[log |Λ|] of a full D x D Wishart, Σ_d ψ((ν - d)/2) with d = 0 ... D-1, while D independent Gammas have
D ψ(ν/2). This penalises components with little data; :func:`e_step_gap` is the difference.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.mixture import BayesianGaussianMixture
from torch import Tensor

from pyro_fmvae import FactorialMixture, NaturalDirichlet, NaturalNormalGamma, NormalGamma
from pyro_fmvae.distributions import DIRICHLET, NORMAL_GAMMA

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Priors:
    """π ~ Dirichlet(c), α_kd ~ Gamma(a, rate b_d), μ_kd ~ N(m_d, 1/(s α_kd))."""

    c: float
    m: np.ndarray  # [D]
    s: float
    a: float
    b: np.ndarray  # [D]

    @classmethod
    def of_data(cls, x: np.ndarray, components: int) -> "Priors":
        """scikit-learn's defaults for data [N, D]."""
        return cls(1 / components, x.mean(0), 1.0, x.shape[1] / 2, x.var(0, ddof=1) / 2)

    def for_sklearn(self, dtype: Any) -> dict[str, Any]:
        """The prior as arguments of ``BayesianGaussianMixture``, which computes in their widest type."""
        return {
            "weight_concentration_prior_type": "dirichlet_distribution",
            "weight_concentration_prior": self.c,
            "mean_prior": self.m.astype(dtype),
            "mean_precision_prior": self.s,
            "degrees_of_freedom_prior": 2 * self.a,
            "covariance_prior": (2 * self.b).astype(dtype),
        }

    def normal_gamma(self) -> NormalGamma:
        """The prior of one component, in float64."""
        return NormalGamma(torch.as_tensor(self.m), self.s, self.a, torch.as_tensor(self.b))


@dataclass(frozen=True)
class Posterior:
    """Natural parameters of a fitted mixture, by which both libraries are scored."""

    counts: Tensor  # c [K]
    components: Tensor  # λ [K, 2D+2]

    @classmethod
    def of_sklearn(cls, mixture: BayesianGaussianMixture) -> "Posterior":
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
        return cls(c, NORMAL_GAMMA.natural(m, s, nu / 2, nu.unsqueeze(-1) * covariance / 2))

    @classmethod
    def after(cls, priors: Priors, x: Tensor, gamma: Tensor) -> "Posterior":
        """The exact posterior given points [N, D] and their responsibilities [N, K]."""
        prior = NORMAL_GAMMA.pack(priors.normal_gamma()).expand(gamma.shape[-1], -1)
        components = NORMAL_GAMMA.conjugate_update(prior, gamma, x, torch.zeros_like(x))
        return cls(priors.c + gamma.double().sum(0), components)

    def expected_log_joint(self, x: Tensor) -> Tensor:
        """E[log π_k + log N(x | μ_k, 1/α_k)] of points [N, D], in float64: [N, K]."""
        x = x.double()
        table = NORMAL_GAMMA.expected_log_likelihood(x, torch.zeros_like(x), self.expected_stats())
        return table + DIRICHLET.mean_stats(self.counts)

    def expected_stats(self) -> Tensor:
        """E[t] of every component, [K, 2D+2]."""
        return NORMAL_GAMMA.mean_stats(self.components)

    def bound(self, x: Tensor) -> float:
        """Mean over points of the mean-field bound on log p(x) with its assignment at the optimum."""
        return self.expected_log_joint(x).logsumexp(-1).mean().item()

    def log_predictive(self, x: Tensor) -> float:
        """Mean over points of the log posterior predictive density, a mixture of Student-t's."""
        weights = NaturalDirichlet(self.counts.unsqueeze(0), torch.float64)
        components = NaturalNormalGamma(self.components.unsqueeze(0), torch.float64)
        mixture = FactorialMixture.predictive(weights, components, torch.float64)
        parts = [mixture.log_prob(part.double().unsqueeze(-2)) for part in x.split(1000)]
        return torch.cat(parts).mean().item()

    def active(self, priors: Priors, points: int) -> int:
        """Number of components with more than a twentieth of an equal share of the points."""
        return int((self.counts - priors.c > points / (20 * len(self.counts))).sum())


def e_step_gap(degrees_of_freedom: np.ndarray, dim: int) -> np.ndarray:
    """Error of scikit-learn's E[log N] for each component, [K]; positive if it is too low."""
    nu = torch.as_tensor(degrees_of_freedom).unsqueeze(-1)
    return 0.5 * (torch.digamma(nu / 2) - torch.digamma((nu - torch.arange(dim)) / 2)).sum(-1).numpy()


@dataclass
class Trace:
    """Posteriors after some of the steps, and the seconds of training before each."""

    clock: Callable[[], float]
    max_seconds: float
    points: list[tuple[float, int, Posterior]] = field(default_factory=list)
    converged: bool = False
    begun: float = 0.0
    setup: float = 0.0

    def begin(self, setup: float = 0.0) -> None:
        """Start the clock, after so many seconds of preparation."""
        self.setup, self.begun = setup, self.clock()

    def record(self, steps: int, posterior: Posterior) -> bool:
        """Add a point; return True if there is time left."""
        self.points.append((self.clock() - self.begun, steps, posterior))
        return self.points[-1][0] < self.max_seconds
