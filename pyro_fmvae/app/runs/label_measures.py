"""Agreement of a run's codes with labels, beside references that were fitted to the same labelled points."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_fmvae.app.recipes.labelling import labelled_points
from pyro_fmvae.app.recipes.pictures import codes_of
from pyro_fmvae.app.runs.by_batches import in_order
from pyro_fmvae.data import Split
from pyro_fmvae.evaluate import label_agreement, reference_accuracies
from pyro_fmvae.learn.cluster_tree import Clusters

if TYPE_CHECKING:
    from pyro_fmvae.app.runs.run import Run

REFERENCE_POINTS = 5000  # training points with a label, at most, that its references are fitted to


def references(
    run: "Run", model: Any, train: Split, rows: Split, label_names: Sequence[str], device: torch.device
) -> dict[str, dict[str, float | None]]:
    """Accuracies that classifiers of the codes reach, which learn from the labels that the model learnt from.

    Args:
        run: a run that was trained on labels.
        model: as trained.
        train: the run's training rows. Of more than 5,000 with a label, 5,000 are drawn for it.
        rows: points to classify, with labels.
        label_names: of the label columns of `rows`.
        device: the model's.

    Returns:
        Label → the result of :func:`~pyro_fmvae.evaluate.reference_accuracies` on its known points, for the
        labels that the run was trained on and that some of `rows` have.
    """
    assert rows.labels is not None
    used = labelled_points(run.recipe, train).labels
    order = torch.randperm(len(used), generator=torch.Generator().manual_seed(run.config.seed))
    drawn = [order[used[order, factor] >= 0][:REFERENCE_POINTS] for factor in run.recipe.labelled]
    chosen = torch.cat(drawn).unique()
    codes = codes_of(model, in_order(train.select(chosen), device)).double().numpy()
    test_codes = codes_of(model, in_order(rows, device)).double().numpy()
    found: dict[str, dict[str, float | None]] = {}
    for name, factor in zip(label_names, run.recipe.factors_of(label_names), strict=True):
        truth = rows.labels[:, label_names.index(name)].numpy()
        if factor is None or not (truth >= 0).any():
            continue
        fitted, scored = torch.isin(chosen, drawn[factor]).numpy(), truth >= 0
        known = used[chosen, factor].numpy()[fitted]
        found[name] = reference_accuracies(codes[fitted], known, test_codes[scored], truth[scored])
    return found


def agreement(
    run: "Run", model: Any, rows: Split, label_names: Sequence[str], device: torch.device
) -> dict[str, Any]:
    """Agreement of the codes and clusters of rows with their labels, the values of labels by name.

    See :func:`~pyro_fmvae.evaluate.label_agreement`.
    """
    clusters, recipe = Clusters.of_model(model), run.recipe

    def of_rows(x: Tensor) -> Tensor:
        assert clusters is not None
        return clusters.assign_encoded(model, model.encode(x))[0]

    found = label_agreement(
        model,
        in_order(rows, device),
        label_names,
        recipe.factors_of(label_names),
        recipe.num_values,
        of_rows if clusters is not None else None,
    )
    for part in ("classification", "clustering"):
        found[part] = {name: _named(run, name, of_label) for name, of_label in found[part].items()}
    return found


def _named(run: "Run", label: str, measures: Mapping[str, Any]) -> dict[str, Any]:
    texts = {
        key: [_text(run, label, value) for value in measures[key]]
        for key in ("values", "named_after")
        if key in measures
    }
    return {**measures, **texts}


def _text(run: "Run", label: str, value: int) -> str:
    """Name of a value; the number itself of a label that the run's data do not have."""
    known = label in run.recipe.label_names
    return run.recipe.value_text(run.recipe.label_names.index(label), value) if known else str(value)
