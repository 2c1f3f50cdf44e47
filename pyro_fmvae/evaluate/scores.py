"""Outlier scores: the higher, the less a model expects a data point (`docs/concepts/outliers.md`)."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyro
import torch
from torch import Tensor

from pyro_fmvae.evaluate.bounds import Evaluable
from pyro_fmvae.evaluate.randomness import Stream
from pyro_fmvae.infer import Role, TraceConjugate_ELBO
from pyro_fmvae.infer.elbo import loss_per_point

ROLES = {
    "kl": (Role.KL_Z, Role.KL_R),
    "reconstruction": (Role.RECONSTRUCTION,),
    "elbo": (Role.RECONSTRUCTION, Role.KL_Z, Role.KL_R),
}
"""The terms of equation 11 that each score sums."""
KINDS = (*ROLES, "iwae")
"""All scores."""


def kinds_of(model: Evaluable) -> tuple[str, ...]:
    """The scores of a model: all, or only ``reconstruction`` if its ``bounded`` is False."""
    return KINDS if getattr(model, "bounded", True) else ("reconstruction",)


def outlier_scores(
    model: Evaluable,
    batches: Iterable[tuple[Tensor, ...]],
    num_samples: int = 16,
    seed: int = 0,
    kinds: Sequence[str] | None = None,
) -> dict[str, np.ndarray]:
    """Scores of every data point, higher = more outlying.

    Args:
        model: a model in ``eval()`` mode.
        batches: (x, ...) per batch; labels are not used. The iterable is consumed once.
        num_samples: S >= 1, draws of z per point.
        seed: seed of the draws; the generator's state is restored afterwards.
        kinds: the scores to compute, None for all of the model's (:func:`kinds_of`), out of

            * ``kl``: KL[z] + KL[r], how far the posterior of a point is from the prior,
            * ``reconstruction``: -E[log p(x | z)],
            * ``elbo``: the sum of both, minus the bound of equation 11,
            * ``iwae``: minus the importance-weighted bound of S draws (Burda et al., 2016).

    Returns:
        Score → float64 [n] in nats, in the order of the points. A score that is not finite is given as inf.

    Raises:
        ValueError: no data, S < 1, or a score that the model does not have.
    """
    parts = list(score_parts(model, batches, num_samples, seed, kinds))
    return {kind: np.concatenate([part[kind] for part in parts]) for kind in parts[0]}


def score_parts(
    model: Evaluable,
    batches: Iterable[tuple[Tensor, ...]],
    num_samples: int = 16,
    seed: int = 0,
    kinds: Sequence[str] | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Scores of batch after batch, so that not all have to be held: see :func:`outlier_scores`.

    Yields:
        Score → float64 [B].
    """
    if num_samples < 1:
        raise ValueError(f"num_samples: expected a number >= 1, got {num_samples}")
    known = kinds_of(model)
    kinds = known if kinds is None else kinds
    if not kinds or not set(kinds) <= set(known):
        raise ValueError(f"kinds: expected some of {', '.join(known)}, got {', '.join(kinds) or 'none'}")
    scores: list[Callable[[Tensor], dict[str, Tensor]]] = []
    if set(kinds) & set(ROLES):
        scores.append(lambda x: _parts(model, x, num_samples))
    if "iwae" in kinds:
        scores.append(lambda x: {"iwae": _importance_weighted(model, x, num_samples)})
    return _scored(scores, kinds, batches, seed)


def rows_without_bound(model: Evaluable, batches: Iterable[tuple[Tensor, ...]], seed: int = 0) -> np.ndarray:
    """Find points so far from the training data that their loss is not finite.

    Args:
        model, batches, seed: as for :func:`outlier_scores`.

    Returns:
        The indices of these points in the order of the batches, int64 [m].
    """
    kind = "elbo" if "elbo" in kinds_of(model) else "reconstruction"
    return np.flatnonzero(np.isinf(outlier_scores(model, batches, 1, seed, [kind])[kind]))


def dominating(losses: np.ndarray) -> np.ndarray:
    """Find the few points that decide a mean: at most one in a hundred, with half of the sum of all.

    Args:
        losses: of the points, [n], such as minus their bounds.

    Returns:
        Indices of those of them that each have a hundredth of the sum of absolute values, the greatest first,
        int64 [m]; none if others count as much, or if there are fewer than 100 points.
    """
    sizes = np.abs(losses)
    few = np.argsort(-sizes, kind="stable")[: len(sizes) // 100]
    if sizes[few].sum() < sizes.sum() / 2:
        return few[:0]
    return few[sizes[few] >= sizes.sum() / 100]


def threshold(scores: np.ndarray, quantile: float) -> float:
    """The quantile of inliers' scores, above which a point counts as an outlier.

    Args:
        scores: scores of inliers, such as training points, [n].
        quantile: share of ``scores`` that are at most the threshold, in [0, 1].

    Raises:
        ValueError: no scores, a quantile out of range, or a threshold that is not finite.
    """
    if not 0 <= quantile <= 1:
        raise ValueError(f"quantile: expected a number in [0, 1], got {quantile}")
    if len(scores) == 0:
        raise ValueError("scores: expected at least one, got none")
    found = float(np.quantile(scores, quantile, method="inverted_cdf"))
    if not math.isfinite(found):
        raise ValueError(f"scores: expected finite ones up to the quantile {quantile}, got {found}")
    return found


def _scored(
    scores: Sequence[Callable[[Tensor], dict[str, Tensor]]],
    kinds: Sequence[str],
    batches: Iterable[tuple[Tensor, ...]],
    seed: int,
) -> Iterator[dict[str, np.ndarray]]:
    """Scores of each batch; a function's draws do not depend on which other functions run.

    Networks overflow far from their training data, where Pyro's validation would reject the whole batch.
    """
    loading, *streams = (Stream(seed) for _ in range(1 + len(scores)))  # loaders may draw, too
    with loading.open():
        left = iter(batches)
        batch = next(left, None)
    if batch is None:
        raise ValueError("batches: expected at least one data point, got none")
    while batch is not None:
        found: dict[str, np.ndarray] = {}
        with torch.no_grad(), pyro.validation_enabled(False):
            for score, stream in zip(scores, streams, strict=True):
                with stream.open():
                    for name, values in score(batch[0]).items():
                        found[name] = values.cpu().double().numpy()
        yield {kind: np.where(np.isfinite(found[kind]), found[kind], np.inf) for kind in kinds}
        with loading.open():
            batch = next(left, None)


def _parts(model: Evaluable, x: Tensor, num_samples: int) -> dict[str, Tensor]:
    elbo, total = TraceConjugate_ELBO(), dict.fromkeys(ROLES, torch.zeros(()))
    for _ in range(num_samples):  # one at a time: memory stays constant
        losses = loss_per_point(elbo, model.model, model.guide, x)
        for name, roles in ROLES.items():
            total[name] = sum((losses[role] for role in roles), total[name])
    return {name: values / num_samples for name, values in total.items()}


def _importance_weighted(model: Evaluable, x: Tensor, num_samples: int) -> Tensor:
    log_weights = model.log_weights(x, num_samples).double()
    return math.log(num_samples) - log_weights.logsumexp(0)
