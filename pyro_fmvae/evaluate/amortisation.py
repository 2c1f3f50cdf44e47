"""The amortisation gap: the bound at the encoder's posteriors against that at each point's best Gaussian."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pyro_fmvae.capture import CapturedFreeGaussian
from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.infer import Role, TraceConjugate_ELBO
from pyro_fmvae.infer.elbo import loss_per_point

LARGEST_SEED = 2**63 - 1


def amortisation_gap(
    model: Any,
    batches: Iterable[tuple[Tensor, ...]],
    steps: int = 300,
    learning_rate: float = 0.05,
    num_samples: int = 16,
    seed: int = 0,
) -> dict[str, float]:
    """The bound of equation 11 before and after free steps on q(z) of each point (Cremer et al., 2018).

    Both bounds use the same standard normal draws. The free steps start at the encoder's posterior and reach
    a local optimum at best, so the result is a lower bound on the true gap.

    Args:
        model: a ``VAE`` or a ``FactorialMixtureVAE``, in ``eval()`` mode; its parameters do not change.
        batches: (x, ...) per batch; labels are not used.
        steps, learning_rate: see :class:`~pyro_fmvae.infer.free_gaussian.FreeGaussian`.
        num_samples: draws of z per point, for the bounds.
        seed: seed of all draws; the generator's state is restored afterwards.

    Returns:
        ``n``, ``elbo_amortised``, ``elbo_free``, their difference ``amortisation_gap``, and its
        ``standard_error`` over data points, all in nats per data point.

    Raises:
        ValueError: fewer than two data points, a number out of range, or a model without a bound.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples: expected a number >= 1, got {num_samples}")
    if not model.bounded:
        raise ValueError("model: expected one whose loss is a bound, got a point posterior")
    free = CapturedFreeGaussian(model, steps, learning_rate)
    generator = torch.Generator().manual_seed(seed)
    bounds: list[Tensor] = []
    for x, *_ in batches:
        search, draws = torch.randint(LARGEST_SEED, (2,), generator=generator).tolist()
        with seeded(search), torch.no_grad():
            q = model.posterior(x)
            start = q.mean, q.stddev
            found = free(x, *start)
        options = num_samples, draws
        bounds.append(torch.stack([_bounds(x, model, q, *options) for q in (start, found)]))
    values = torch.cat(bounds, -1) if bounds else torch.zeros(2, 0)
    n = values.shape[-1]
    if n < 2:
        raise ValueError(f"batches: expected at least two data points, got {n}")
    amortised, best = values.mean(-1).tolist()
    return {
        "n": n,
        "elbo_amortised": amortised,
        "elbo_free": best,
        "amortisation_gap": best - amortised,
        "standard_error": ((values[1] - values[0]).std() / n**0.5).item(),
    }


def _bounds(x: Tensor, model: Any, posterior: tuple[Tensor, Tensor], num_samples: int, seed: int) -> Tensor:
    """The bound of every point at a given posterior, float64 [B]."""
    elbo, total = TraceConjugate_ELBO(), torch.zeros(len(x), dtype=torch.float64, device=x.device)
    with seeded(seed):
        for _ in range(num_samples):
            losses = loss_per_point(elbo, model.model, model.guide, x, posterior=posterior)
            for role in (Role.RECONSTRUCTION, Role.KL_Z, Role.KL_R):
                total -= losses[role] / num_samples
    return total.cpu()
