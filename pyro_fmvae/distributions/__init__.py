"""Densities and conjugate algebra: exponential families, mixtures, and expectations in closed form."""

from pyro_fmvae.distributions.beta import BETA, BetaFamily, NaturalBeta
from pyro_fmvae.distributions.category import Category
from pyro_fmvae.distributions.column_normal_gamma import (
    COLUMN_NORMAL_GAMMA,
    ColumnComponent,
    ColumnNormalGamma,
    ColumnNormalGammaFamily,
    NaturalColumnNormalGamma,
)
from pyro_fmvae.distributions.columns import Columns
from pyro_fmvae.distributions.dirichlet import DIRICHLET, DirichletFamily, NaturalDirichlet
from pyro_fmvae.distributions.expected_log_prob import (
    component_table,
    expected_log_prob,
    register_expected_log_prob,
)
from pyro_fmvae.distributions.exponential_family import (
    ExponentialFamily,
    NaturalDistribution,
    NaturalParameter,
    ScalarFamily,
    register_family,
)
from pyro_fmvae.distributions.factorial_mixture import FactorialMixture
from pyro_fmvae.distributions.gamma import GAMMA, GammaFamily, NaturalGamma
from pyro_fmvae.distributions.hidden_markov import HiddenMarkov
from pyro_fmvae.distributions.inverse_gamma import INVERSE_GAMMA, InverseGammaFamily, NaturalInverseGamma
from pyro_fmvae.distributions.linear_dynamics import LinearDynamics, LinearGaussianChain, SmoothedStates
from pyro_fmvae.distributions.marginal_component import MarginalComponent
from pyro_fmvae.distributions.matrix_normal_wishart import (
    MATRIX_NORMAL_WISHART,
    MatrixNormalWishart,
    MatrixNormalWishartFamily,
    NaturalMatrixNormalWishart,
)
from pyro_fmvae.distributions.mixture import Assignment, Component, FullComponent, Label, MixtureComponent
from pyro_fmvae.distributions.multivariate_normal import (
    MULTIVARIATE_NORMAL,
    MatrixNormal,
    MultivariateNormalFamily,
    NaturalMultivariateNormal,
)
from pyro_fmvae.distributions.multivariate_normal_gamma import (
    MULTIVARIATE_NORMAL_GAMMA,
    MultivariateNormalGamma,
    MultivariateNormalGammaFamily,
    NaturalMultivariateNormalGamma,
)
from pyro_fmvae.distributions.normal import NORMAL, NaturalNormal, NormalFamily
from pyro_fmvae.distributions.normal_gamma import (
    NORMAL_GAMMA,
    NaturalNormalGamma,
    NormalGamma,
    NormalGammaFamily,
)
from pyro_fmvae.distributions.normal_wishart import (
    NORMAL_WISHART,
    NaturalNormalWishart,
    NormalWishart,
    NormalWishartFamily,
)
from pyro_fmvae.distributions.observation import (
    BernoulliObservation,
    GaussianObservation,
    NegativeBinomialObservation,
    Observation,
    PoissonObservation,
    TableObservation,
)
from pyro_fmvae.distributions.poisson_component import PoissonComponent
from pyro_fmvae.distributions.relaxation import Concrete, ShiftedSigmoid, SpikeDraws, StraightThrough
from pyro_fmvae.distributions.spike_and_slab import SpikeAndSlab, SpikeAndSlabMixture
from pyro_fmvae.distributions.superposition import LinearNormal, MaxNormal, expected_linear_normal
from pyro_fmvae.distributions.wishart import WISHART, NaturalWishart, RateWishart, WishartFamily

__all__ = [
    "BETA",
    "COLUMN_NORMAL_GAMMA",
    "DIRICHLET",
    "GAMMA",
    "INVERSE_GAMMA",
    "MATRIX_NORMAL_WISHART",
    "MULTIVARIATE_NORMAL",
    "MULTIVARIATE_NORMAL_GAMMA",
    "NORMAL",
    "NORMAL_GAMMA",
    "NORMAL_WISHART",
    "WISHART",
    "Assignment",
    "BernoulliObservation",
    "BetaFamily",
    "Category",
    "ColumnComponent",
    "ColumnNormalGamma",
    "ColumnNormalGammaFamily",
    "Columns",
    "Component",
    "Concrete",
    "DirichletFamily",
    "ExponentialFamily",
    "FactorialMixture",
    "FullComponent",
    "GammaFamily",
    "GaussianObservation",
    "HiddenMarkov",
    "InverseGammaFamily",
    "Label",
    "LinearDynamics",
    "LinearGaussianChain",
    "LinearNormal",
    "MarginalComponent",
    "MatrixNormal",
    "MatrixNormalWishart",
    "MatrixNormalWishartFamily",
    "MaxNormal",
    "MixtureComponent",
    "MultivariateNormalFamily",
    "MultivariateNormalGamma",
    "MultivariateNormalGammaFamily",
    "NaturalBeta",
    "NaturalColumnNormalGamma",
    "NaturalDirichlet",
    "NaturalDistribution",
    "NaturalGamma",
    "NaturalInverseGamma",
    "NaturalMatrixNormalWishart",
    "NaturalMultivariateNormal",
    "NaturalMultivariateNormalGamma",
    "NaturalNormal",
    "NaturalNormalGamma",
    "NaturalNormalWishart",
    "NaturalParameter",
    "NaturalWishart",
    "NegativeBinomialObservation",
    "NormalFamily",
    "NormalGamma",
    "NormalGammaFamily",
    "NormalWishart",
    "NormalWishartFamily",
    "Observation",
    "PoissonComponent",
    "PoissonObservation",
    "RateWishart",
    "ScalarFamily",
    "ShiftedSigmoid",
    "SmoothedStates",
    "SpikeAndSlab",
    "SpikeAndSlabMixture",
    "SpikeDraws",
    "StraightThrough",
    "TableObservation",
    "WishartFamily",
    "component_table",
    "expected_linear_normal",
    "expected_log_prob",
    "register_expected_log_prob",
    "register_family",
]
