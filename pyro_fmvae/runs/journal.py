"""The journal of a training: validation measures in `metrics.jsonl`, one line every so many steps."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyro_fmvae import checkpoint
from pyro_fmvae.data import Dataset, Split
from pyro_fmvae.evaluate import bound, rows_without_bound
from pyro_fmvae.learn.fitting import Record
from pyro_fmvae.ranks import Ranks, world
from pyro_fmvae.runs.by_batches import in_order
from pyro_fmvae.runs.closing_table import BEYOND
from pyro_fmvae.runs.label_checks import accuracies
from pyro_fmvae.runs.run import METRICS
from pyro_fmvae.runs.trainer import Trainer

MONITORED_POINTS = 500

logger = logging.getLogger("pyro_fmvae")


def main_measure(trainer: Trainer) -> str:
    """The measure that tells of progress: the bound, where there is one."""
    return "elbo" if trainer.model.bounded else "reconstruction"


class Journal:
    """Appends a record of validation measures to ``metrics.jsonl`` every so many steps.

    Args:
        trainer: of the run.
        dataset: its data.
        resumed: whether there is a journal already, to continue from where the last checkpoint was.

    Attributes:
        validation: up to 500 validation points, the first ones, without labels.
        measure: name of the main measure.
        left_out: numbers of those points that had no finite bound at the last record.
    """

    def __init__(self, trainer: Trainer, dataset: Dataset, resumed: bool) -> None:
        self.trainer, self.dataset, self.path = trainer, dataset, trainer.run.folder / METRICS
        rows = torch.arange(min(MONITORED_POINTS, len(dataset.valid)))
        self.validation = replace(dataset.valid.select(rows), labels=None)
        self.measure, self.left_out = main_measure(trainer), tuple[int, ...]()
        if resumed and world().leads:
            self._drop_later_records()

    def _drop_later_records(self) -> None:
        """Forget what was recorded after the checkpoint: it is going to be recorded again.

        Lines that are no records are dropped, too.
        """
        progress, phases = self.trainer.progress, self.trainer.phases
        begun = [phase.name for phase in phases[: progress.phase + 1]]  # the next one starts at the same step

        def known(line: str) -> bool:
            try:
                record = json.loads(line)
                return record["step"] <= progress.total_steps and record["phase"] in begun
            except (ValueError, KeyError, TypeError):
                return False

        text = self.path.read_text(errors="replace") if self.path.exists() else ""
        lines = text.splitlines(keepends=True)
        kept = "".join(line for line in lines if line.endswith("\n") and known(line))
        checkpoint.write_atomically(self.path, lambda path: path.write_text(kept))

    def record(self, record: Record) -> dict[str, Any] | None:
        """Measure, append and return, if it is time to; None otherwise."""
        model, phase = self.trainer.model, self.trainer.phases[self.trainer.progress.phase]
        if record.step % phase.record_every and record.fraction < 1:
            return None
        with evaluating(model, phase.program):
            measures, near = finite_bound(phase.program, self.validation, self.trainer.device, world())
        left_out = tuple(sorted(set(range(len(self.validation))) - set(near.tolist())))
        if left_out != self.left_out:
            logger.warning("validation points that are left out: %d, %s", len(left_out), BEYOND)
            self.left_out = left_out
        used = self.trainer.run.recipe.used_components(model)
        if phase.program is not model:  # it has nothing of the prior yet
            used = [0] * len(used)
        names = ("elbo", "reconstruction", "kl_z", "kl_r", "kl_global")
        values = {
            "step": record.total_steps,
            "phase": record.phase,
            **{name: measures[name] for name in names},
            "used_components": used,
            "seconds": round(record.seconds, 3),
            **phase.measures(),
        }
        if self.trainer.run.labelled and phase.program is model:
            with evaluating(model):
                values["accuracy"] = accuracies(self.trainer, self.dataset)
        if world().leads:
            with self.path.open("a") as file:
                file.write(json.dumps(values) + "\n")
        where = f"{record.phase} step {record.step}"
        components = f", used components {used}" if used else ""
        right = _listed(values.get("accuracy", {}))
        logger.info("%s: %s %.2f%s%s", where, self.measure, values[self.measure], components, right)
        return values


def _listed(accuracy: dict[str, dict[str, float]]) -> str:
    """Accuracies by split and label, to follow other measures on a line."""
    return "".join(
        f", {name} accuracy {', '.join(f'{label} {share:.3f}' for label, share in of_labels.items())}"
        for name, of_labels in accuracy.items()
    )


def finite_bound(
    model: Any, rows: Split, device: torch.device, ranks: Ranks | None = None
) -> tuple[dict[str, float], Tensor]:
    """The bound of some rows, and the numbers of those that it is the mean of: all that have a finite one."""
    try:
        return bound(model, in_order(rows, device), ranks=ranks), torch.arange(len(rows))
    except ValueError:
        far = rows_without_bound(model, in_order(rows, device), ranks=ranks)
        if not 0 < len(far) < len(rows):
            raise
    mask = torch.ones(len(rows), dtype=torch.bool)
    mask[far] = False
    near = mask.nonzero().squeeze(-1)
    measures, nearer = finite_bound(model, rows.select(near), device, ranks)
    return measures, near[nearer]


@contextmanager
def evaluating(*modules: torch.nn.Module) -> Iterator[None]:
    """Modules in the mode for evaluation, then in that of before.

    The program of a phase may be another module than the model whose networks it shares: its mode is its own.
    """
    before = [module.training for module in modules]
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for module, mode in zip(modules, before, strict=True):
            module.train(mode)
