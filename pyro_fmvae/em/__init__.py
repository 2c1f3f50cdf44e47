"""Expectation maximisation: E-steps, M-steps and additive statistics, and free Gaussian posteriors."""
