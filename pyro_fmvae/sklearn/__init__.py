"""Estimators for scikit-learn's users: arrays in, arrays out, pipelines and searches as with its own."""

from pyro_fmvae.sklearn.bayesian_mixture import BayesianMixture
from pyro_fmvae.sklearn.bayesian_regression import BayesianRegression
from pyro_fmvae.sklearn.factorial_clusterer import FactorialClusterer
from pyro_fmvae.sklearn.hidden_markov_model import HiddenMarkovModel
from pyro_fmvae.sklearn.linear_dynamical_system import LinearDynamicalSystem
from pyro_fmvae.sklearn.linear_factors import PCA, FactorAnalysis
from pyro_fmvae.sklearn.outlier_detector import OutlierDetector
from pyro_fmvae.sklearn.topic_model import TopicModel

__all__ = [
    "PCA",
    "BayesianMixture",
    "BayesianRegression",
    "FactorAnalysis",
    "FactorialClusterer",
    "HiddenMarkovModel",
    "LinearDynamicalSystem",
    "OutlierDetector",
    "TopicModel",
]
