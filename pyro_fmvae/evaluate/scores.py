"""Outlier scores: the higher, the less a model expects a data point. `docs/outliers.md` defines them."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyro
import torch
from torch import Tensor

from pyro_fmvae.evaluate.bounds import Evaluable
from pyro_fmvae.evaluate.randomness import Stream, seeded
from pyro_fmvae.infer import Role, TraceConjugate_ELBO
from pyro_fmvae.infer.elbo.per_point import loss_per_point

ROLES = {
    "kl": (Role.KL_Z, Role.KL_R),
    "reconstruction": (Role.RECONSTRUCTION,),
    "elbo": (Role.RECONSTRUCTION, Role.KL_Z, Role.KL_R),
}
"""The parts of equation 11 that a score is the sum of."""
KINDS = (*ROLES, "iwae")
"""All scores there are."""


def kinds_of(model: Evaluable) -> tuple[str, ...]:
    """The scores that a model has: all, unless its ``bounded`` says that the loss is no bound on log p(x)."""
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
        model: with its program, in ``eval()`` mode.
        batches: (x, ...) per batch; labels are not used. They are gone through once.
        num_samples: S >= 1, draws of z per point.
        seed: of the draws; the generator's state is restored afterwards.
        kinds: which scores; None: all that the model has, see :func:`kinds_of`. They are

            * ``kl``: KL[z] + KL[r], how far the posterior of a point is from the prior,
            * ``reconstruction``: -E[log p(x | z)],
            * ``elbo``: the sum of both, minus the bound of equation 11,
            * ``iwae``: minus the importance-weighted bound of S draws (Burda et al., 2016).

    Returns:
        Score → float64 [n], nats, in the order in which the points came. A point so far out that its score is
        no finite number has the score inf.

    Raises:
        ValueError: no data, S < 1, or a score that the model does not have.
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
    found = _collect(scores, batches, seed)
    return {kind: found[kind] for kind in kinds}


def rows_without_bound(model: Evaluable, batches: Iterable[tuple[Tensor, ...]], seed: int = 0) -> np.ndarray:
    """Points so far from what a model was trained on that their loss is no finite number.

    Args:
        model, batches, seed: as for :func:`outlier_scores`.

    Returns:
        Their places in the order in which the points came, int64 [m].
    """
    kind = "elbo" if "elbo" in kinds_of(model) else "reconstruction"
    return np.flatnonzero(np.isinf(outlier_scores(model, batches, 1, seed, [kind])[kind]))


def threshold(scores: np.ndarray, quantile: float) -> float:
    """The least value that a share of scores does not exceed: what is above it stands out.

    Args:
        scores: of points that are no outliers, such as training points, [n].
        quantile: that share, in [0, 1].

    Raises:
        ValueError: no scores, a quantile out of range, or fewer finite scores than that share.
    """
    if not 0 <= quantile <= 1:
        raise ValueError(f"quantile: expected a number in [0, 1], got {quantile}")
    if len(scores) == 0:
        raise ValueError("scores: expected at least one, got none")
    found = float(np.quantile(scores, quantile, method="inverted_cdf"))
    if not math.isfinite(found):
        raise ValueError(f"scores: expected finite ones up to the quantile {quantile}, got {found}")
    return found


def _collect(
    scores: Sequence[Callable[[Tensor], dict[str, Tensor]]],
    batches: Iterable[tuple[Tensor, ...]],
    seed: int,
) -> dict[str, np.ndarray]:
    """Scores of all batches, joined; each function's draws do not depend on which others there are.

    Networks overflow far from what they were trained on. There, Pyro's validation would refuse to go on, for
    all points of the batch.
    """
    parts: dict[str, list[np.ndarray]] = {}
    streams = [Stream(seed) for _ in scores]
    with seeded(seed), torch.no_grad(), pyro.validation_enabled(False):  # a loader may draw, too
        for x, *_ in batches:
            for score, stream in zip(scores, streams, strict=True):
                with stream.open():
                    for name, values in score(x).items():
                        parts.setdefault(name, []).append(values.cpu().double().numpy())
    if not parts:
        raise ValueError("batches: expected at least one data point, got none")
    joined = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    return {name: np.where(np.isfinite(values), values, np.inf) for name, values in joined.items()}


def _parts(model: Evaluable, x: Tensor, num_samples: int) -> dict[str, Tensor]:
    elbo, total = TraceConjugate_ELBO(), dict.fromkeys(ROLES, torch.zeros(()))
    for _ in range(num_samples):  # one after another, so that memory does not grow with their number
        losses = loss_per_point(elbo, model.model, model.guide, x)
        for name, roles in ROLES.items():
            total[name] = sum((losses[role] for role in roles), total[name])
    return {name: values / num_samples for name, values in total.items()}


def _importance_weighted(model: Evaluable, x: Tensor, num_samples: int) -> Tensor:
    log_weights = model.log_weights(x, num_samples).double()
    return math.log(num_samples) - log_weights.logsumexp(0)
