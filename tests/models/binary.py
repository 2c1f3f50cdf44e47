"""Data of bars, for tests of binary sparse coding."""

import torch


def bars(side=4, size=500, noise=0.1, rate=0.25):
    """Weights [side², 2 side] of all bars of a square, and sums of some of them with noise, [size, side²]."""
    lines = torch.eye(side)
    rows = lines.unsqueeze(-1).expand(-1, -1, side).flatten(1)
    columns = lines.unsqueeze(1).expand(-1, side, -1).flatten(1)
    weight = torch.cat([rows, columns]).T
    present = (torch.rand(size, 2 * side) < rate).to(weight.dtype)
    return weight, present @ weight.T + noise * torch.randn(size, side**2)


def fit(em, x, starts=5, steps=70, reseed_every=5):
    """Parameters and the last E-step after full-batch EM, with units reseeded in the first 70 %."""
    parameters = em.start(x, starts)
    found = em.e_step(x, parameters, em.start_latents(parameters, len(x)))
    for step in range(1, steps + 1):
        parameters = em.m_step(found.statistics, parameters, x, found).parameters
        if reseed_every and step % reseed_every == 0 and step < 0.7 * steps:
            parameters = em.reseed(x, parameters, found)
        found = em.e_step(x, parameters, found.latents)
    return parameters, found


def cosines(weight, found):
    """Cosine of each column of `weight` with the most similar column of `found`."""
    unit, other = (w / w.norm(dim=0).clamp_min(1e-12) for w in (weight, found))
    return (unit.T @ other).amax(1)
