"""Effective draws, against chains whose autocorrelations are known."""

import numpy as np

from pyro_fmvae.sklearn.intervals import effective_draws


def test_effective_draws_of_autoregressions():
    rng, draws, shares = np.random.default_rng(0), [np.zeros(200)], np.repeat([0.0, 0.9], 100)
    for _ in range(3999):
        draws.append(draws[-1] * shares + rng.normal(size=200))
    found = effective_draws(np.array(draws))
    np.testing.assert_allclose([found[:100].mean(), found[100:].mean()], [4000, 4000 * 0.1 / 1.9], rtol=0.05)
    assert effective_draws(np.full((60, 2), 0.1)).tolist() == [60, 60]
    there_and_back = np.tile([-1.0, 1.0], 500)[:, None] + rng.normal(0, [0, 0.01, 0.3], (1000, 3))
    np.testing.assert_allclose(effective_draws(there_and_back), 3000, rtol=1e-9)  # 1000 log10(1000)
