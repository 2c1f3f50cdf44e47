"""Labels that a trained network has not learnt, and that others predict in its place."""

import logging
from dataclasses import replace

from torch import nn

from pyro_fmvae.data import Dataset
from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.learn.label_spreading import predictors_of_unlearnt
from pyro_fmvae.runs.by_batches import in_order, map_rows
from pyro_fmvae.runs.journal import evaluating
from pyro_fmvae.runs.trainer import Trainer

logger = logging.getLogger("pyro_fmvae")


def predict_unlearnt(trainer: Trainer, dataset: Dataset) -> None:
    """Give a factorial mixture VAE predictors of the labels that it has not learnt, where labels spread.

    See :func:`~pyro_fmvae.learn.label_spreading.predictors_of_unlearnt`. The log names these labels.

    Args:
        trainer: of a run that is trained to its end, its model as it is kept.
        dataset: its data.
    """
    run, labels, model = trainer.run, trainer.training.labels, trainer.model
    if not run.recipe.spread or labels is None:
        return
    with evaluating(model), seeded(0):
        codes = map_rows(model.codes, in_order(replace(trainer.training, labels=None), trainer.device))
    told = codes[:, : labels.shape[1]] % codes.new_tensor(model.label_sizes)
    found = predictors_of_unlearnt(dataset.train, labels, told)
    model.predictors = nn.ModuleDict({str(column): found[column] for column in found}).to(trainer.device)
    for column in found:
        logger.info("%s: not learnt by the network, and predicted without it", run.label_names[column])
