"""Hiding labels, choosing label columns, and holding out combinations of labels."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from pyro_fmvae.data.dataset import SPLITS, Dataset, Split
from pyro_fmvae.data.preprocessing import Kind
from pyro_fmvae.data.readable_rows import joined
from pyro_fmvae.data.splitting import fingerprint
from pyro_fmvae.data.storage import sample_binary

ONE_PER_VALUE: Final = "one-per-value"
Amount: TypeAlias = float | Literal["one-per-value"]
"""How many labels are used: see :func:`hide_labels`."""


def hide_labels(labels: Split | Tensor, amount: Amount, seed: int) -> Tensor:
    """Keep the labels of some points, drawn at random, and set the others to -1 (unknown).

    Args:
        labels: int64 [n, L], or a split that has labels.
        amount: up to 1, a share of the points, which keep all their columns: exactly ``round(amount * n)``
            points. Above 1, a number of points for each value of each column: a point may keep one column
            and lose another, and a rarer value keeps all its points. ``"one-per-value"`` is one point for
            each value. Labels that were unknown before stay unknown.
        seed: of the choice, a function of the labels, `amount` and `seed`. A larger share, or a larger
            number, keeps a superset.

    Returns:
        A new tensor, int64 [n, L].

    Raises:
        ValueError: `amount` is neither a share in [0, 1] nor a whole number above 1 nor
            ``"one-per-value"``, or the split has no labels.
    """
    known = labels.labels if isinstance(labels, Split) else labels
    if known is None:
        raise ValueError("labels: the split has no labels to hide")
    check_amount("amount", amount)
    n = len(known)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).to(known.device)
    hidden = torch.full_like(known, -1)
    if not (number := number_per_value(amount)):
        chosen = order[: round(float(amount) * n)]
        hidden[chosen] = known[chosen]
        return hidden
    for column in range(known.shape[1]):
        values = known[order, column]
        for value in values[values >= 0].unique():
            hidden[order[values == value][:number], column] = value
    return hidden


def number_per_value(amount: Amount) -> int:
    """Number of points for each value that an amount asks for; 0 if it is a share of all points."""
    if isinstance(amount, str):
        return 1
    return int(amount) if amount > 1 else 0


def check_amount(name: str, value: Amount) -> None:
    """Raise ValueError unless a value is an amount of labels."""
    if value == ONE_PER_VALUE:
        return
    if isinstance(value, str) or not (0 <= value <= 1 or (value > 1 and float(value).is_integer())):
        raise ValueError(
            f"{name}: expected a share in [0, 1], a whole number of points above 1 for each value, or "
            f"{ONE_PER_VALUE}, got {value}"
        )


def how_to_label(dataset: Dataset) -> str:
    """How a person's own data of this kind come to have labels, for messages."""
    if dataset.preprocessing.kind is Kind.TABLE:
        return "in a .csv file, name a column label:NAME to make it one"
    return "images have some by a labels.csv in their folder, or by two subfolders or more"


def choose_labels(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """Move these label columns to the front, in this order.

    :func:`hold_out` then combines these labels, unless the data set says which labels it combines.

    Raises:
        ValueError: a name is not one of the data set's labels, or is given twice.
    """
    known = dataset.label_names
    if names and not known:
        raise ValueError(
            f"label_names: the data set has no labels, got {', '.join(names)}; {how_to_label(dataset)}"
        )
    if not set(names) <= set(known) or len(set(names)) != len(names):
        raise ValueError(
            f"label_names: expected different ones out of {', '.join(known)}; got {', '.join(names)}"
        )
    combined = dataset.combined or tuple(names)
    order = [known.index(name) for name in (*names, *(name for name in known if name not in names))]
    columns = {
        name: tuple(values[i] for i in order)
        for name in ("label_names", "label_sizes", "value_names")
        if (values := getattr(dataset, name))
    }
    changed: dict[str, Any] = columns
    for name in SPLITS:
        split = getattr(dataset, name)
        if split is not None and split.labels is not None:
            changed[name] = replace(split, labels=split.labels[:, order])
    return replace(dataset, combined=combined, **changed)


def hold_out(dataset: Dataset, share: float, seed: int) -> Dataset:
    """Hold out a share of the combinations of labels, to test on combinations that were never seen.

    Combinations are those of the labels ``dataset.combined``, or of all labels if that is empty. The rows of
    any split that have a combination held out become the split ``unseen``. Every value stays in training: a
    combination is skipped if a value would no longer occur there. Rows with an unknown one of these labels
    have no combination. Pixels of ``unseen`` are drawn once, with a fixed seed, even if those of other splits
    are drawn at each visit.

    Args:
        dataset: with labels in every split.
        share: share of the combinations that occur in training, in (0, 1); at least one is chosen.
        seed: of the choice, a function of the training labels, `share` and `seed`.

    Raises:
        ValueError: there are no labels, the share is out of range, no combination can be held out, or a split
            would become empty.
    """
    if not 0 < share < 1:
        raise ValueError(f"hold_out: expected a share in (0, 1), got {share}")
    columns = [dataset.label_names.index(name) for name in dataset.combined or dataset.label_names]
    if dataset.train.labels is None or not columns:
        raise ValueError(f"hold_out: the data set '{dataset.name}' has no labels to combine")
    chosen = _choose_combinations(dataset.train.labels[:, columns], share, seed)
    if not len(chosen):
        raise ValueError(
            "hold_out: no combination of labels can be held out: each has the last of some value"
        )
    remaining: dict[str, Split] = {}
    unseen: list[Split] = []
    for name in SPLITS:
        split = getattr(dataset, name)
        if split is None or (name == "valid" and not dataset.validated):
            continue
        if split.labels is None:
            raise ValueError(f"hold_out: the {name} split has no labels")
        apart = _occur_in(split.labels[:, columns], chosen)
        remaining[name] = split.select((~apart).nonzero().squeeze(-1))
        unseen.append(_draw(split.select(apart.nonzero().squeeze(-1))))
    for name, split in remaining.items():
        if len(split) == 0:
            raise ValueError(f"hold_out: nothing would be left of the {name} split")
    rows = joined([split.x for split in unseen])
    labels = torch.cat([split.labels for split in unseen if split.labels is not None])
    places = [split.places for split in unseen if split.places is not None]
    return replace(
        dataset,
        train=remaining["train"],
        valid=remaining.get("valid", remaining["train"]),
        test=remaining.get("test"),
        unseen=replace(unseen[0], x=rows, labels=labels, places=torch.cat(places) if places else None),
        fingerprint=_with_labels(dataset, columns),
    )


def _with_labels(dataset: Dataset, columns: Sequence[int]) -> str:
    """Extend a fingerprint by the labels, on which splits now depend too; for fixed splits it stays empty."""
    if not dataset.fingerprint:
        return ""
    splits = (getattr(dataset, name) for name in SPLITS)
    labels = torch.cat([split.labels[:, columns] for split in splits if split is not None])
    return fingerprint(np.array([dataset.fingerprint, fingerprint(labels.numpy())]))


def _choose_combinations(labels: Tensor, share: float, seed: int) -> Tensor:
    """Choose some of the different rows of labels [n, L], int64 [m, L]; every value of a column remains."""
    combinations = labels[(labels >= 0).all(-1)].unique(dim=0)
    order = torch.randperm(len(combinations), generator=torch.Generator().manual_seed(seed))
    left = [Counter(column) for column in combinations.T.tolist()]  # combinations that have each value
    chosen: list[int] = []
    for row, combination in zip(order.tolist(), combinations[order].tolist(), strict=True):
        if len(chosen) >= max(1, round(share * len(combinations))):
            break
        if all(count[value] > 1 for count, value in zip(left, combination, strict=True)):
            for count, value in zip(left, combination, strict=True):
                count[value] -= 1
            chosen.append(row)
    return combinations[chosen]


def _occur_in(labels: Tensor, combinations: Tensor) -> Tensor:
    """Mark the rows of labels [n, L] that are among the rows of combinations [m, L], bool [n]."""
    known = set(map(tuple, combinations.tolist()))
    return torch.tensor([tuple(row) in known for row in labels.tolist()], dtype=torch.bool)


def _draw(split: Split) -> Split:
    """Replace greys, from which binary pixels are drawn at each visit, by one draw of them."""
    if not split.resample:
        return split
    assert isinstance(split.x, Tensor)
    return replace(split, x=sample_binary(split.x, torch.Generator().manual_seed(0)), resample=False)
