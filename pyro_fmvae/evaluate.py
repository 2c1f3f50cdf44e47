"""Measures of a trained model: bounds on log p(x), accuracy, agreement of clusters with labels."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix
from torch import Tensor

from pyro_fmvae.infer import Role, TraceConjugate_ELBO


class Evaluable(Protocol):
    """What a model must offer to be evaluated."""

    num_data: int

    def model(self, x: Tensor, labels: Tensor | None = None) -> Any:
        """The generative program."""

    def guide(self, x: Tensor, labels: Tensor | None = None) -> Any:
        """The posterior approximation."""

    def log_weights(self, x: Tensor, num_samples: int) -> Tensor:
        """Values of log p(x | z) + log p(z) - log q(z | x), [num_samples, B]."""


class Coding(Protocol):
    """A model that assigns points to components."""

    def codes(self, x: Tensor) -> Tensor:
        """int64 [B, I]."""


def bound(
    model: Evaluable, batches: Iterable[tuple[Tensor, ...]], seed: int = 0, num_samples: int = 1
) -> dict[str, float]:
    """The predictive bound of equation 11 and its parts, in nats per data point, every constant included.

    Args:
        model: with its program.
        batches: (x, ...) per batch; labels are not used.
        seed: of the draws of z; the generator's state is restored afterwards.
        num_samples: draws of z per point, for the reconstruction; the rest is exact.

    Returns:
        ``n``, ``elbo`` = ``reconstruction`` - ``kl_z`` - ``kl_r``, these three, and (no part of this bound)
        ``kl_global``, the divergence of λ from the hyperprior divided by N: lines 4d and 4e of equation 4.

    Raises:
        ValueError: no data.
    """
    elbo, count = TraceConjugate_ELBO(num_particles=num_samples), 0
    totals = dict.fromkeys((Role.RECONSTRUCTION, Role.KL_Z, Role.KL_R, Role.KL_GLOBAL), 0.0)
    with _seeded(seed), torch.no_grad():
        for x, *_ in batches:
            parts = elbo.loss_per_role(model.model, model.guide, x)
            for role in totals:
                totals[role] += parts[role].item() / model.num_data * len(x)
            count += len(x)
    _check_count(count)
    reconstruction, kl_z, kl_r, kl_global = (total / count for total in totals.values())
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
        seed: of the draws; the generator's state is restored afterwards.

    Returns:
        ``collapsed`` and ``importance_weighted``, nats per data point, and ``num_samples``.

    Raises:
        ValueError: no data, or S < 1.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples: expected a number >= 1, got {num_samples}")
    collapsed = weighted = 0.0
    count = 0
    with _seeded(seed):
        for x, *_ in batches:
            log_weights = model.log_weights(x, num_samples).double()
            collapsed += log_weights.mean(0).sum().item()
            weighted += (log_weights.logsumexp(0) - math.log(num_samples)).sum().item()
            count += len(x)
    _check_count(count)
    return {
        "collapsed": collapsed / count,
        "importance_weighted": weighted / count,
        "num_samples": num_samples,
    }


def label_agreement(
    model: Coding,
    batches: Iterable[tuple[Tensor, ...]],
    label_names: Sequence[str],
    factors: Sequence[int | None],
) -> dict[str, dict[str, Any]]:
    """How well codes agree with known labels; labels are used for comparison alone.

    Args:
        model: gives the codes.
        batches: (x, labels) per batch, labels int64 [B, L], -1 = unknown.
        label_names: of the L columns.
        factors: for each column, the factor that was trained on it, or None.

    Returns:
        ``accuracy``: name → share of points whose code is the label, for columns with a factor;
        ``clustering``: for the others name → the ``factor`` that agrees best, its ``nmi`` (normalised mutual
        information), and the ``accuracy`` of the best one-to-one matching of its components to labels.
        Columns without known labels are left out.
    """
    pairs = [(model.codes(x).cpu(), labels.cpu()) for x, labels in batches]
    codes, labels = torch.cat([c for c, _ in pairs]).numpy(), torch.cat([y for _, y in pairs]).numpy()
    accuracy: dict[str, float] = {}
    clustering: dict[str, dict[str, Any]] = {}
    for column, (name, factor) in enumerate(zip(label_names, factors, strict=True)):
        known = labels[:, column] >= 0
        if not known.any():
            continue
        truth = labels[known, column]
        if factor is not None:
            accuracy[name] = float((codes[known, factor] == truth).mean())
            continue
        nmi = [float(normalized_mutual_info_score(truth, codes[known, i])) for i in range(codes.shape[1])]
        best = int(np.argmax(nmi))
        matched = matching_accuracy(truth, codes[known, best])
        clustering[name] = {"factor": best, "accuracy": matched, "nmi": nmi[best]}
    return {"accuracy": accuracy, "clustering": clustering}


def matching_accuracy(labels: np.ndarray, clusters: np.ndarray) -> float:
    """Share of points whose cluster is matched to their label, under the best one-to-one matching.

    Args:
        labels, clusters: integers [N], N >= 1. The matching is found by the Hungarian method.
    """
    table = contingency_matrix(labels, clusters)
    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / len(labels))


def _check_count(count: int) -> None:
    if count == 0:
        raise ValueError("batches: expected at least one data point, got none")


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Inside, torch's generators start from a seed; afterwards they are what they were."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
