"""Training of a run, from its options to its report, and its continuation."""

import json
import logging
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from tqdm import auto, std

from pyro_fmvae.app.recipes.registry import DEFAULT, data_name, recipe_of
from pyro_fmvae.app.recipes.settings import with_columns
from pyro_fmvae.app.runs.by_batches import evaluating, finite_bound, in_order, map_rows
from pyro_fmvae.app.runs.closing_table import (
    BEYOND,
    METRICS,
    REPORT,
    Moment,
    SelectedModel,
    duration,
    tolerance,
)
from pyro_fmvae.app.runs.launching import (
    check_equal,
    exit_status,
    first_before_others,
    interruption,
    note_launch,
)
from pyro_fmvae.app.runs.pages.run_page import PAGE
from pyro_fmvae.app.runs.report import CHECKED_POINTS, report
from pyro_fmvae.app.runs.run import CHECKPOINT, Run, check_new, load_data, saved, with_full_paths
from pyro_fmvae.app.runs.trainer import Best, Trainer, copied
from pyro_fmvae.data import Dataset, Split
from pyro_fmvae.data.column_plan import plan_lines, shown_plan
from pyro_fmvae.data.own.in_memory import InMemory
from pyro_fmvae.evaluate.randomness import resolve_device, seeded
from pyro_fmvae.files import checkpoint
from pyro_fmvae.files.checkpoint import alone
from pyro_fmvae.files.memory import most_used
from pyro_fmvae.infer.ranks import world
from pyro_fmvae.learn.fitting import Record
from pyro_fmvae.learn.label_spreading import predictors_of_unlearnt
from pyro_fmvae.learn.mixture import CODES, mixture_of_codes
from pyro_fmvae.learn.options import AUTO, TrainConfig, completed
from pyro_fmvae.learn.phase import Phase
from pyro_fmvae.nn import ConvDecoder

CHANGEABLE: Final = ("data_root", "device", "eager", "compile")
"""Options that may differ when a run is resumed."""
MONITORED_POINTS = 500
Listener: TypeAlias = Callable[[Record], None]
"""Is called with every record of a training: the journal first, whose line the others look at."""
logger = logging.getLogger("pyro_fmvae")
EVERY = 60.0  # seconds
EVENTS: Final = "tensorboard"
"""Folder in a run's folder."""
CHECKPOINT_EVERY = 10.0  # seconds
CHECK_EVERY = 100  # steps between two comparisons of ranks, with --debug
IN_NOTEBOOK = auto.notebook_tqdm is not std.tqdm  # one that can show a progress bar


def train(
    options: TrainConfig, data: InMemory | None = None, out: str | None = None, given: Set[str] | None = None
) -> tuple[Run, int]:
    """Start a run, train it to its end, and report.

    Args:
        options: as given; defaults are chosen by the data.
        data: that Python holds, which the run keeps in its folder; None: those that the options name.
        out: folder of the run, which must not exist; None: a new one in ``runs/``.
        given: names of the options that count as given: see :meth:`Run.new`.

    Returns:
        The run, and the exit status.
    """
    config = options
    ranks = world()
    with ranks.agreeing():
        if out is not None:
            check_new(out)
        device = resolve_device(config.device)
        check_log(config)
        config = replace(config, data=data_name(recipe_of(config).name, config.data))
        config = with_columns(config, {} if data is None else dict(data.kinds))
        if config.label:
            config = replace(config, label_names=config.label_names or config.label)
            config = completed(config, {"labels": 1.0} if hasattr(config, "labels") else {})
        config = with_full_paths(config, Path.cwd())
    root = Path(config.data_root) if config.data_root else None
    dataset = first_before_others(lambda: load_data(config, root, data=data))
    began = time.monotonic()
    with ranks.agreeing():
        run = Run.new(Path(out) if out else Path("runs") / dataset.name, config, dataset, given)
    check_equal(run)
    trainer = Trainer(run, dataset, device)
    trainer.spend(time.monotonic() - began)
    with ranks.agreeing():
        trainer.start()

    def write() -> str:
        folder = run.write(numbered=not out, data=data).folder
        note_launch(folder)
        return str(folder)

    folder = Path(ranks.of_first(write))
    trainer.run = replace(trainer.run, folder=folder)
    if run.recipe.tables:
        print(f"learnt without networks, by --model {run.recipe.name}; for networks give --model {DEFAULT}")
    if getattr(config, "factors", None) == AUTO:
        print(f"factors found: {','.join(map(str, run.recipe.factors))}")
    with alone(folder) if ranks.leads else nullcontext():
        try:
            with _naming(folder):
                return trainer.run, follow(trainer, dataset, resumed=False)
        except BaseException:  # also a second Ctrl-C
            if ranks.leads and not saved(folder):  # there is nothing to continue from
                shutil.rmtree(folder)
            raise


def resume(
    folder: str,
    data_root: str | None = None,
    device: str = "auto",
    eager: bool = False,
    compile: bool | None = None,
) -> int:
    """Continue an interrupted run from its last checkpoint; of a finished one, make up for a lacking report.

    ``eager`` and ``compile`` say how steps are taken from now on, if they are given.
    """
    ranks = world()
    with ranks.agreeing():
        run = Run.open(Path(folder))
        run.check_folder("the state of its training")
        check_log(run.config)
        if eager:
            run = run.with_options(eager=True, compile=compile)
        elif compile is not None:
            run = run.with_options(eager=run.config.eager and not compile, compile=compile)
        place = resolve_device(run.config.device if device == "auto" else device)
    dataset = first_before_others(lambda: run.load_data(data_root))
    trainer = Trainer(run, dataset, place)
    with alone(run.folder) if ranks.leads else nullcontext():
        with ranks.agreeing():
            if not saved(run.folder):
                raise ValueError(
                    f"run: {run.folder} was stopped before anything was saved; "
                    "delete the folder and train again"
                )
            if ranks.leads:
                for leftover in (*run.folder.glob(".*.tmp"), *(run.folder / CHECKPOINT).glob(".*.tmp")):
                    leftover.unlink()  # of a process that was killed
                note_launch(run.folder)
            trainer.restore()
        if trainer.finished:
            print(f"{run.folder} is finished already.")
            unreported = not all((run.folder / name).exists() for name in (REPORT, PAGE))
            if ranks.leads and unreported:
                report(trainer, dataset)
            return 0
        with _naming(run.folder):
            return follow(trainer, dataset, resumed=True)


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Add the run to the notes of an error, for its message, if there is something to continue from."""
    try:
        yield
    except Exception as error:
        if saved(folder):
            notes = getattr(error, "__notes__", ())
            error.__notes__ = [*notes, f"the run is {folder}"]  # as add_note does from Python 3.11 on
        raise


class Journal:
    """Appends a line of validation measures to ``metrics.jsonl`` every so many steps.

    Nothing is drawn from the training's generators.

    Args:
        trainer: of the run.
        dataset: its data.
        resumed: whether there is a journal already, to continue from where the last checkpoint was.

    Attributes:
        line: what was written at this record; None if nothing was.
        validation: up to 500 validation points, the first ones, without labels.
        measure: name of the measure that models are compared by: the bound, where there is one.
        left_out: numbers of those points that had no finite bound at the last line.
        labelled: up to 500 points of ``train``, with the labels in use, and of ``valid``, each of which has a
            known label that is trained on; a kind without such points is left out.
    """

    line: dict[str, Any] | None = None

    def __init__(self, trainer: Trainer, dataset: Dataset, resumed: bool) -> None:
        self.trainer, self.path = trainer, trainer.run.folder / METRICS
        rows = torch.arange(min(MONITORED_POINTS, len(dataset.valid)))
        self.validation = replace(dataset.valid.select(rows), labels=None)
        self.measure = "elbo" if trainer.model.bounded else "reconstruction"
        self.left_out = tuple[int, ...]()
        splits = {"train": trainer.training} | ({"valid": dataset.valid} if dataset.validated else {})
        columns = len(trainer.run.recipe.labelled)
        known = {name: known_rows(split, columns) for name, split in splits.items()}
        self.labelled = {name: rows for name, rows in known.items() if rows is not None}
        if resumed and world().leads:
            self._drop_later_lines()

    def _drop_later_lines(self) -> None:
        """Forget what was written after the checkpoint, which is going to be written again, or in part."""
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
        earlier = "".join(line for line in lines if line.endswith("\n") and known(line))
        checkpoint.write_atomically(self.path, lambda path: path.write_text(earlier))

    def __call__(self, record: Record) -> None:
        """Measure and write a line, if it is time to."""
        phase = self.trainer.phases[self.trainer.progress.phase]
        if record.step % phase.record_every and record.fraction < 1:
            self.line = None
            return
        values, *left_out = world().of_first(lambda: self._measured(record, phase))
        if tuple(left_out) != self.left_out:
            logger.warning("validation points that are left out: %d, %s", len(left_out), BEYOND)
            self.left_out = tuple(left_out)
        if world().leads:
            with self.path.open("a") as file:
                file.write(json.dumps(values) + "\n")
        where = f"{record.phase} step {record.step}"
        used = values["used_components"]
        components = f", used components {used}" if used else ""
        right = _listed(values.get("accuracy", {}))
        logger.info("%s: %s %.2f%s%s", where, self.measure, values[self.measure], components, right)
        self.line = values

    def _measured(self, record: Record, phase: Phase) -> list[Any]:
        """A line of the journal, and behind it the numbers of the points without a finite bound."""
        model = self.trainer.model
        with evaluating(model, phase.program):
            measures, near = finite_bound(phase.program, self.validation, self.trainer.device)
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
        if self.trainer.run.recipe.labelled and phase.program is model:
            values["accuracy"] = {name: self._accuracy(rows) for name, rows in self.labelled.items()}
        return [values, *sorted(set(range(len(self.validation))) - set(near.tolist()))]

    def _accuracy(self, rows: Split) -> dict[str, float]:
        """Share of the known labels of rows that is predicted right, by label."""
        model, run, labels = self.trainer.model, self.trainer.run, rows.labels
        assert labels is not None
        with evaluating(model), seeded(0):
            codes = map_rows(model.predicted_codes, in_order(replace(rows, labels=None), self.trainer.device))
        right = (codes % codes.new_tensor(run.recipe.num_values))[:, : labels.shape[1]] == labels
        counted = zip(run.recipe.label_names, right.T, labels.T >= 0, strict=False)
        return {name: of[known].double().mean().item() for name, of, known in counted if known.any()}


def known_rows(split: Split, columns: int) -> Split | None:
    """Up to 500 rows that have one of the leading labels, with these labels alone; None if there are none."""
    if split.labels is None or not columns:
        return None
    rows = (split.labels[:, :columns] >= 0).any(-1).nonzero().squeeze(-1)[:CHECKED_POINTS]
    return replace(split.select(rows), labels=split.labels[rows, :columns]) if len(rows) else None


def _listed(accuracy: dict[str, dict[str, float]]) -> str:
    """Accuracies by split and label, to follow other measures on a line."""
    return "".join(
        f", {name} accuracy {', '.join(f'{label} {share:.3f}' for label, share in of_labels.items())}"
        for name, of_labels in accuracy.items()
    )


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
    the end falls short of it by more than :data:`~pyro_fmvae.app.runs.closing_table.TOLERANCE`. Without
    validation rows nothing is compared.

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
        self.trainer, self.journal, self.validated = trainer, journal, dataset.validated
        self.counted = ["train", "valid"] if trainer.run.recipe.labels == 1 else ["train"]
        number = min(len(journal.validation), len(dataset.train))
        evenly = torch.linspace(0, len(dataset.train) - 1, number).long()
        self.training: Split = replace(dataset.train.select(evenly), labels=None)

    def finish(self) -> None:
        """After training: write down which model the run stands for, and how good it is on training points.

        This takes none of the training's time. A run whose last phase compares no models writes nothing.
        """
        if self.ended is None or not world().leads:
            return
        selected, end, state, stopped = self.ended
        model, recipe = self.trainer.model, self.trainer.run.recipe
        training, rows = self._on_training_points(self.training)
        at_end = training
        if selected != end:
            best = copied(model)
            model.load_state_dict(state)
            at_end, common = self._on_training_points(rows)
            model.load_state_dict(best)
            if len(common) < len(rows):  # both of the same points
                training, rows = self._on_training_points(common)
        values = len(rows), training, at_end, stopped, recipe.against_overfitting
        SelectedModel(self.journal.measure, selected, end, *values).write(self.trainer.run.folder)

    def __call__(self, record: Record) -> None:
        """Keep the model if it is the best; end the phase if it no longer gains."""
        trainer, line = self.trainer, self.journal.line
        phase = trainer.phases[trainer.progress.phase]
        if record.step == 0:
            trainer.best = None
        if line is None or not (phase.comparable and self.validated):
            return
        measured = record.phase, record.step, record.total_steps, line[self.journal.measure]
        moment = Moment(*measured, *self._labels_right(line), self.journal.left_out)
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

    def _labels_right(self, line: Mapping[str, Any]) -> tuple[float | None, int]:
        """Share of the labels that count which are predicted right, None without any; and their number."""
        right = known = 0
        for split in self.counted:
            for name, share in line.get("accuracy", {}).get(split, {}).items():
                labels = self.journal.labelled[split].labels
                assert labels is not None
                number = int((labels[:, self.trainer.run.recipe.label_names.index(name)] >= 0).sum())
                right, known = right + round(share * number), known + number
        return (right / known if known else None), known

    def _hand_over(self, end: Moment, best: Best) -> None:
        """Give the model its best state, if that is better than the end's."""
        trainer = self.trainer
        last = all(phase.budget.empty for phase in trainer.phases[trainer.progress.phase + 1 :])
        enough = tolerance(best.moment.value) if last else 0.0
        back = best.moment.worth_more_than(end, enough) and (last or trainer.patience > 0)
        if last:
            selected = best.moment if back else end
            self.ended = Ended(selected, end, copied(trainer.model), trainer.progress.stopped)
        if back:
            trainer.model.load_state_dict(best.model)
            logger.info("%s: back to the model of %s", end, best.moment)

    def _on_training_points(self, rows: Split) -> tuple[float, Split]:
        """The main measure of the model on training points, and those that have it."""
        model = self.trainer.model
        with evaluating(model):
            measures, near = finite_bound(model, rows, self.trainer.device)
        return measures[self.journal.measure], rows.select(near)


def _memory(device: torch.device) -> str:
    """The most memory that was used, behind other words; nothing where the system does not tell."""
    used = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else most_used()
    return "" if used is None else f"; {used / 2**30:.1f} GiB of memory so far"


class Outlook:
    """Logs after the first steps how long training will take, and every minute what is left of it.

    Args:
        device: that memory is taken on.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.said = device, float("nan")

    def __call__(self, record: Record) -> None:
        """Look at a record, and say what is to be said."""
        if record.left is None or record.pace is None:
            return
        if math.isnan(self.said):
            steps, memory = record.total_steps + round(record.left / record.pace), _memory(self.device)
            length, pace = duration(record.seconds + record.left), record.pace
            short = f"{pace:.1f} s" if pace >= 1 else f"{1000 * pace:.2g} ms"
            logger.info("about %s: %s steps of %s%s", length, f"{steps:,}", short, memory)
        elif record.seconds - self.said >= EVERY:
            logger.info("%s step %d: about %s left", record.phase, record.step, duration(record.left))
        else:
            return
        self.said = record.seconds


def check_log(config: TrainConfig) -> None:
    """Raise ValueError if a training is to write a log whose package is not installed."""
    if config.log and find_spec("tensorboard") is None:
        raise ValueError("log: TensorBoard needs tensorboard: pip install 'pyro_fmvae[tensorboard]'")


@contextmanager
def event_log(trainer: Trainer, journal: Journal, resumed: bool) -> Iterator[Listener]:
    """A listener that adds a line of the journal to the run's event log; it does nothing without ``--log``.

    Measures are called ``phase/measure``: those of two phases are of different programs. Components in use
    and accuracies have the name of their factor or label in the end.

    Args:
        trainer: of the run.
        journal: writes the lines.
        resumed: hide what an earlier process wrote after the checkpoint: it is going to be written again.
    """
    run = trainer.run
    if run.config.log is None or not world().leads:
        yield lambda record: None
        return
    from torch.utils.tensorboard import SummaryWriter

    begin = trainer.progress.total_steps + 1 if resumed else None
    with SummaryWriter(str(run.folder / EVENTS), purge_step=begin) as writer:

        def write(_: Record) -> None:
            if journal.line is None:
                return
            used = dict(zip(run.recipe.factor_names, journal.line["used_components"], strict=True))
            measures = {**journal.line, "used_components": used}
            phase, step = measures.pop("phase"), measures.pop("step")
            for name, number in _scalars(phase, measures):
                writer.add_scalar(name, number, step)
            writer.flush()

        yield write


def _scalars(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """The numbers in a value of the journal, those of parts with ``/`` and the part's name or number."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for part, inner in value.items():
            yield from _scalars(f"{name}/{part}", inner)
    elif value is not None:
        yield name, value


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
    predicted = codes[:, : labels.shape[1]] % codes.new_tensor(model.label_sizes)
    found = predictors_of_unlearnt(dataset.train, labels, predicted)
    model.predictors = nn.ModuleDict({str(column): found[column] for column in found}).to(trainer.device)
    for column in found:
        logger.info("%s: not learnt by the network, and predicted without it", run.recipe.label_names[column])


def cluster_codes(trainer: Trainer, dataset: Dataset) -> None:
    """Fit a mixture with full covariances to draws from q(z | x), if the only factor has no labels."""
    recipe, model = trainer.run.recipe, trainer.model
    if not (recipe.factorial and recipe.gaussian_codes) or len(recipe.factors) > 1 or recipe.labelled:
        return
    with torch.no_grad(), evaluating(model), seeded(recipe.config.seed):
        some = torch.randperm(len(dataset.train))[:CODES].sort().values
        batches = in_order(replace(dataset.train.select(some), labels=None), trainer.device)
        z = torch.cat([model.posterior(x).sample() for x, *_ in batches])
        model.code_mixture = mixture_of_codes(z, recipe.config.seed).to(z.device)


class Checkpoints:
    """Writes a checkpoint at the start of a phase, every ten seconds, before training stops, and at the end.

    Args:
        trainer: of the run.
        keeper: what it keeps is written down before the last checkpoint.
        heard: numbers of the signals that ask to stop, as they come.

    Attributes:
        stop: number of the signal for which the training has been saved; 0 as long as there is none.
    """

    stop = 0

    def __init__(self, trainer: Trainer, keeper: Keeper, heard: list[int]) -> None:
        self.trainer, self.keeper, self.heard, self.saved = trainer, keeper, heard, time.monotonic()

    def __call__(self, record: Record | None) -> None:
        """Save, if it is time to; None: the training is over."""
        stop = world().largest(self.heard[0] if self.heard else 0)  # on all ranks at the same step
        due = record is not None and (record.step == 0 or time.monotonic() - self.saved > CHECKPOINT_EVERY)
        if record is None or ((due or stop) and self.keeper.ended is None):
            self.trainer.save()
            self.saved, self.stop = time.monotonic(), stop


def follow(trainer: Trainer, dataset: Dataset, resumed: bool) -> int:
    """Train to the end, or until a signal such as Ctrl-C stops it; returns the exit status."""
    folder, ranks = trainer.run.folder, world()
    log = _log_file(folder / "train.log") if ranks.leads else nullcontext()
    with log, interruption(together=not ranks.alone) as heard:
        verb = "resuming" if resumed else "starting"
        points, device = trainer.run.recipe.num_data, trainer.device
        where = f"{ranks.size} ranks, each on {device}" if ranks.size > 1 else str(device)
        logger.info("%s %s on %s, %d points, steps %s", verb, folder, where, points, trainer.stepping)
        if dataset.unseen is not None:
            logger.info("%d points have combinations of labels that are held out", len(dataset.unseen))
        if dataset.note:
            logger.info("%s", dataset.note)
        if plan := dataset.preprocessing.plan:
            print("\n".join(plan_lines(shown_plan(plan, dataset.preprocessing.powers))))
        decoder = getattr(trainer.model, "decoder", None)
        if isinstance(decoder, ConvDecoder) and (change := decoder.canvas.describe()):
            logger.info("%s for the networks", change)
        with _same_kernels():
            number = _loop(trainer, dataset, resumed, heard)
        if number:
            print(f"\nStopped. Continue with: pyro-fmvae train --resume {folder}", file=sys.stderr)
            return exit_status(number)
        progress = trainer.progress
        logger.info("trained %d steps in %.0f s", progress.total_steps, progress.total_seconds)
    if ranks.leads:  # alone
        report(trainer, dataset)
    return 0


def _loop(trainer: Trainer, dataset: Dataset, resumed: bool, heard: list[int]) -> int:
    """Consume the records; returns the number of the signal that was heard, 0 if there was none."""
    journal = Journal(trainer, dataset, resumed)
    keeper = Keeper(trainer, dataset, journal)
    checkpoints = Checkpoints(trainer, keeper, heard)
    with _Bar(trainer, journal) as bar, event_log(trainer, journal, resumed) as log:
        listeners: list[Listener] = [journal, keeper, log, Outlook(trainer.device), checkpoints]
        if world().checked:
            listeners.append(lambda record: None if record.step % CHECK_EVERY else trainer.check_ranks())
        listeners.append(bar)  # last: the terminal may be gone
        for record in trainer.records(resumed):
            for listener in listeners:
                listener(record)
            if checkpoints.stop:
                return checkpoints.stop
    keeper.finish()
    if world().leads:  # it alone saves, and reports
        predict_unlearnt(trainer, dataset)
        cluster_codes(trainer, dataset)
    checkpoints(None)
    return checkpoints.stop


@contextmanager
def _same_kernels() -> Iterator[None]:
    """Have cuDNN use kernels that add in a fixed order, so that equal runs on a GPU end with equal bits."""
    before, torch.backends.cudnn.deterministic = torch.backends.cudnn.deterministic, True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


class _Bar:
    """A progress bar over the phases, in a terminal or a notebook."""

    def __init__(self, trainer: Trainer, journal: Journal) -> None:
        total = sum(not phase.budget.empty for phase in trainer.phases)
        done = sum(not phase.budget.empty for phase in trainer.phases[: trainer.progress.phase])
        layout = "{desc:<9}{percentage:3.0f}%|{bar}| {elapsed}{postfix}"
        hidden = None if world().leads else True
        self.bar = auto.tqdm(total=total, initial=done, disable=hidden, bar_format=layout)
        self.done, self.measured = float(done), ""
        self.trainer, self.journal = trainer, journal

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.close()

    def __call__(self, record: Record) -> None:
        if record.step == 0:
            self.bar.set_description_str(record.phase)
        self.bar.update(self.done + record.fraction - self.bar.n)
        if record.fraction >= 1 or self.trainer.progress.stopped:
            self.done += 1
        measure, line = self.journal.measure, self.journal.line
        if line:
            name = "ELBO" if measure == "elbo" else measure
            self.measured = f"validation {name} {line[measure]:.2f} nats"
        left = "" if record.left is None else f"{auto.tqdm.format_interval(record.left)} left"
        self.bar.set_postfix_str(", ".join(filter(None, (left, self.measured))), refresh=bool(line))


class _LogFile(logging.FileHandler):
    """A log file that raises the errors of writing to it, such as a full disk."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, self.baseFilename) from None
        super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):  # of what could not be written, and was told of
            super().close()


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """Write the package's log to a file, and to standard error unless a progress bar is shown."""
    handlers: list[logging.Handler] = [_LogFile(path)]
    if not (sys.stderr.isatty() or IN_NOTEBOOK):
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
