"""Estimators for scikit-learn's users: arrays in, arrays out, pipelines and searches as with its own."""

from pyro_fmvae.sklearn.bayesian_mixture import BayesianMixture

__all__ = ["BayesianMixture"]
