"""Deep generative models with structured priors, as Pyro programs with closed-form inference."""

from importlib.metadata import PackageNotFoundError, version

from pyro_fmvae.distributions import (
    Assignment,
    BernoulliObservation,
    Component,
    FactorialMixture,
    GaussianObservation,
    Label,
    NaturalDirichlet,
    NaturalNormalGamma,
    NaturalParameter,
    NormalGamma,
    expected_log_prob,
    register_expected_log_prob,
)
from pyro_fmvae.infer import (
    AutoConjugate,
    CapturedSVI,
    CaptureError,
    ConjugateSVI,
    Role,
    TraceConjugate_ELBO,
    with_assignments,
)
from pyro_fmvae.models import VAE, FactorialMixtureVAE, Hyperprior
from pyro_fmvae.optim import NaturalGradient, RobbinsMonro
from pyro_fmvae.train import Progress, Record, fit

try:
    __version__ = version("pyro_fmvae")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0+unknown"

__all__ = [
    "VAE",
    "Assignment",
    "AutoConjugate",
    "BernoulliObservation",
    "CaptureError",
    "CapturedSVI",
    "Component",
    "ConjugateSVI",
    "FactorialMixture",
    "FactorialMixtureVAE",
    "GaussianObservation",
    "Hyperprior",
    "Label",
    "NaturalDirichlet",
    "NaturalGradient",
    "NaturalNormalGamma",
    "NaturalParameter",
    "NormalGamma",
    "Progress",
    "Record",
    "RobbinsMonro",
    "Role",
    "TraceConjugate_ELBO",
    "__version__",
    "expected_log_prob",
    "fit",
    "register_expected_log_prob",
    "with_assignments",
]
