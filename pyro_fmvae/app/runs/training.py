"""Training of a run, from its options to its report, and its continuation."""

import shutil
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyro_fmvae.app.recipes.options import AUTO, TrainConfig, completed
from pyro_fmvae.app.recipes.registry import DEFAULT, data_name, recipe_of
from pyro_fmvae.app.recipes.settings import with_columns
from pyro_fmvae.app.runs.launching import check_equal, first_before_others, note_launch
from pyro_fmvae.app.runs.pages.run_page import PAGE
from pyro_fmvae.app.runs.report import report
from pyro_fmvae.app.runs.run import CHECKPOINT, REPORT, Run, check_new, load_data, saved, with_full_paths
from pyro_fmvae.app.runs.session import check_log, follow
from pyro_fmvae.app.runs.trainer import Trainer
from pyro_fmvae.data.own.in_memory import InMemory
from pyro_fmvae.evaluate.randomness import resolve_device
from pyro_fmvae.files.checkpoint import alone
from pyro_fmvae.infer.ranks import world

CHANGEABLE: Final = ("data_root", "device", "eager", "compile")
"""Options that may differ when a run is resumed."""


def train(
    options: TrainConfig,
    data: InMemory | None = None,
    out: str | None = None,
    given: Set[str] | None = None,
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
                    "the folder can be deleted, to train anew"
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
