"""How models are learnt: phases with budgets, and the loop that runs them."""

from pyro_fmvae.learn.fitting import Progress, Record, fit

__all__ = ["Progress", "Record", "fit"]
