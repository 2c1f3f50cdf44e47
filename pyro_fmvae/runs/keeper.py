"""Watches the validation bound of a training: keeps the best model, and ends phases that no longer gain."""

import logging
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fmvae.data import Dataset, Split
from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.learn.fitting import Record
from pyro_fmvae.learn.phase import Phase
from pyro_fmvae.ranks import world
from pyro_fmvae.runs.best import Best, Kept, Moment, copied, tolerance
from pyro_fmvae.runs.by_batches import in_order, map_rows
from pyro_fmvae.runs.journal import Journal, evaluating, finite_bound
from pyro_fmvae.runs.label_checks import known_rows
from pyro_fmvae.runs.trainer import Trainer

logger = logging.getLogger("pyro_fmvae")


class Ended(NamedTuple):
    """The end of a training."""

    kept: Moment
    """Moment of the model that the run stands for."""
    end: Moment
    """Moment of the model at the end."""
    state: dict[str, Tensor]
    """Its state dictionary."""
    stopped: bool
    """True if the last phase was ended early."""


class Keeper:
    """Keeps the best model of each phase by the records of the journal.

    Labels in use count, and with ``--labels 1`` those of validation points, too. By the bound alone the best
    model may be one that has not learnt its labels yet.

    Records are compared within a phase, from its step 0 on, which is what the phase before handed over. With
    a patience, a phase ends that many steps after its best record, and hands over its best model. Without one
    phases hand over the model of their end. At the end of the last phase the best takes the end's place if
    the end falls short of it by more than :data:`~pyro_fmvae.runs.best.TOLERANCE`. Without validation rows
    nothing is compared.

    All records are of the same rows and the same draws of z, and draw nothing from torch's own generator.
    So they are a function of the model, and training is the same with and without them.

    Args:
        trainer: of the run; what was best so far is a part of its checkpoints.
        dataset: its data.
        journal: measures the validation bound.

    Attributes:
        ended: the end of the training, once it is there; None where the last phase compares no models.
    """

    ended: Ended | None = None

    def __init__(self, trainer: Trainer, dataset: Dataset, journal: Journal) -> None:
        self.trainer, self.journal = trainer, journal
        number, columns = len(journal.validation), len(trainer.run.labelled)
        splits = [trainer.training]
        if dataset.validated and trainer.run.recipe.labels == 1:
            splits.append(dataset.valid)
        known = [known_rows(split, columns) for split in splits]
        self.known = [rows for rows in known if rows is not None]
        self.validated = dataset.validated
        evenly = torch.linspace(0, len(dataset.train) - 1, min(number, len(dataset.train))).long()
        self.training: Split = replace(dataset.train.select(evenly), labels=None)

    def finish(self) -> None:
        """After training: write down which model the run stands for, and how good it is on training points.

        This takes none of the training's time. A run whose last phase compares no models writes nothing.
        """
        if self.ended is None:
            return
        kept, end, state, stopped = self.ended
        model, recipe = self.trainer.model, self.trainer.run.recipe
        training, rows = self._on_training_points(self.training)
        at_end = training
        if kept != end:
            best = copied(model)
            model.load_state_dict(state)
            at_end, common = self._on_training_points(rows)
            model.load_state_dict(best)
            if len(common) < len(rows):  # both of the same points
                training, rows = self._on_training_points(common)
        values = len(rows), training, at_end, stopped, recipe.against_overfitting
        if world().leads:
            Kept(self.journal.measure, kept, end, *values).write(self.trainer.run.folder)

    def follow(self, record: Record) -> dict[str, Any] | None:
        """Measure, if it is time to; keep the model if it is the best; end the phase if it no longer gains.

        Returns:
            What the journal wrote, None if it did not.
        """
        trainer = self.trainer
        phase = trainer.phases[trainer.progress.phase]
        if record.step == 0:
            trainer.best = None
        values = self.journal.record(record)
        if values is None or not (phase.comparable and self.validated):
            return values
        moment = self._moment(record, values, phase)
        best = trainer.best
        if best is None or moment.worth_more_than(best.moment):
            trainer.best = best = Best(moment, copied(trainer.model), record.step)
        elif not phase.settled:
            trainer.best = best = replace(best, since=record.step)
        elif trainer.patience and record.step - best.since >= trainer.patience:
            logger.info("%s ends early: nothing better since step %d", record.phase, best.moment.step)
            trainer.progress.stopped = True
        if record.fraction >= 1 or trainer.progress.stopped:
            self._hand_over(moment, best)
        return values

    def _moment(self, record: Record, values: dict[str, Any], phase: Phase) -> Moment:
        """The moment of a record, with known labels where the phase knows of labels."""
        share: dict[str, Any] = {}
        if self.known and phase.program is self.trainer.model:
            right = torch.cat([self._right(rows) for rows in self.known])
            share = {"right": right.double().mean().item(), "known": len(right)}
        share["left_out"] = self.journal.left_out
        return Moment(record.phase, record.step, record.total_steps, values[self.journal.measure], **share)

    def _right(self, rows: Split) -> Tensor:
        """True for each known label of these rows that is predicted, [number of them]."""
        model, labels = self.trainer.model, rows.labels
        assert labels is not None
        with evaluating(model), seeded(0):
            unlabelled = in_order(replace(rows, labels=None), self.trainer.device)
            codes = map_rows(model.codes, unlabelled, world())
        labels, sizes = labels.cpu(), codes.new_tensor(self.trainer.run.recipe.num_values)
        return ((codes % sizes)[:, : labels.shape[1]] == labels)[labels >= 0]

    def _hand_over(self, end: Moment, best: Best) -> None:
        """Give the model its best state, if that is better than the end's."""
        trainer = self.trainer
        last = all(phase.budget.empty for phase in trainer.phases[trainer.progress.phase + 1 :])
        enough = tolerance(best.moment.value) if last else 0.0
        back = best.moment.worth_more_than(end, enough) and (last or trainer.patience > 0)
        if last:
            kept = best.moment if back else end
            self.ended = Ended(kept, end, copied(trainer.model), trainer.progress.stopped)
        if back:
            trainer.model.load_state_dict(best.model)
            logger.info("%s: back to the model of %s", end, best.moment)

    def _on_training_points(self, rows: Split) -> tuple[float, Split]:
        """The main measure of the model on training points, and those that have it."""
        model = self.trainer.model
        with evaluating(model):
            measures, near = finite_bound(model, rows, self.trainer.device, world())
        return measures[self.journal.measure], rows.select(near)
