"""Bounds on log p(x), in nats per data point."""

import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.infer import Role, TraceConjugate_ELBO


class Evaluable(Protocol):
    """A model that can be evaluated."""

    num_data: int

    def model(self, x: Tensor, labels: Tensor | None = None) -> Any:
        """The generative program."""

    def guide(self, x: Tensor, labels: Tensor | None = None) -> Any:
        """The posterior approximation."""

    def log_weights(self, x: Tensor, num_samples: int) -> Tensor:
        """Values of log p(x | z) + log p(z) - log q(z | x), [num_samples, B]."""


def bound(
    model: Evaluable,
    batches: Iterable[tuple[Tensor, ...]],
    seed: int = 0,
    num_samples: int = 1,
    views: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, float]:
    """The predictive bound of equation 11 and its parts, in nats per data point, every constant included.

    Args:
        model: the model to evaluate.
        batches: (x, ...) per batch; labels are not used.
        seed: seed of the draws of z; the generator's state is restored afterwards.
        num_samples: draws of z per point for the reconstruction; the other terms are exact.
        views: makes the views [B, V, ...] of a batch [B, ...]. The bound is then that of the program of so
            many views, on all views of a point together. It is comparable with itself alone.

    Returns:
        ``n``, ``elbo`` = ``reconstruction`` - ``kl_z`` - ``kl_r``, these three terms, and ``kl_global``: the
        divergence of λ from the hyperprior divided by N (lines 4d and 4e), which is not part of ``elbo``.

    Raises:
        ValueError: no data, ``num_samples`` < 1, or a bound that is not finite.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples: expected a number >= 1, got {num_samples}")
    elbo, count = TraceConjugate_ELBO(), 0
    totals = dict.fromkeys((Role.RECONSTRUCTION, Role.KL_Z, Role.KL_R, Role.KL_GLOBAL), 0.0)
    with seeded(seed), torch.no_grad():
        for x, *_ in batches:
            share = len(x) / (model.num_data * num_samples)
            for _ in range(num_samples):  # one at a time: memory stays constant
                parts = elbo.loss_per_role(model.model, model.guide, x if views is None else views(x))
                for role in totals:
                    totals[role] += share * parts[role].item()
            count += len(x)
    _check_count(count)
    reconstruction, kl_z, kl_r, kl_global = (total / count for total in totals.values())
    _check_finite(reconstruction + (kl_z + kl_r if getattr(model, "bounded", True) else 0.0))
    return {
        "n": count,
        "elbo": -reconstruction - kl_z - kl_r,
        "reconstruction": -reconstruction,
        "kl_z": kl_z,
        "kl_r": kl_r,
        "kl_global": kl_global,
    }


def tighter_bounds(
    model: Evaluable, batches: Iterable[tuple[Tensor, ...]], num_samples: int, seed: int = 0
) -> dict[str, float]:
    """The collapsed bound, and its importance-weighted form (Burda et al., 2016).

    Args:
        model: with :meth:`Evaluable.log_weights`.
        batches: (x, ...) per batch.
        num_samples: S >= 1, draws of z per point.
        seed: seed of the draws; the generator's state is restored afterwards.

    Returns:
        ``collapsed`` and ``importance_weighted`` in nats per data point, and ``num_samples``.

    Raises:
        ValueError: no data, S < 1, or a bound that is not finite.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples: expected a number >= 1, got {num_samples}")
    collapsed = weighted = 0.0
    count = 0
    with seeded(seed):
        for x, *_ in batches:
            log_weights = model.log_weights(x, num_samples).double()
            collapsed += log_weights.mean(0).sum().item()
            weighted += (log_weights.logsumexp(0) - math.log(num_samples)).sum().item()
            count += len(x)
    _check_count(count)
    _check_finite(collapsed + weighted)
    return {
        "collapsed": collapsed / count,
        "importance_weighted": weighted / count,
        "num_samples": num_samples,
    }


def _check_finite(total: float) -> None:
    if not math.isfinite(total):
        raise ValueError(f"batches: expected points that have a finite bound, got {total}")


def _check_count(count: int) -> None:
    if count == 0:
        raise ValueError("batches: expected at least one data point, got none")
