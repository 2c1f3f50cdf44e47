"""Start a run, or continue one."""

import shutil
from dataclasses import replace
from pathlib import Path

from pyro_fmvae.checkpoint import alone
from pyro_fmvae.config import TrainConfig
from pyro_fmvae.data.registry import LOADERS
from pyro_fmvae.defaults import named
from pyro_fmvae.runs.gallery import TRAINING
from pyro_fmvae.runs.run import CHECKPOINT, FIGURES, Run, load_data, resolve_device, saved
from pyro_fmvae.runs.session import follow, report
from pyro_fmvae.runs.training import Training


def train(config: TrainConfig, out: str | None) -> int:
    """Start a run, train it to its end, and show what came of it."""
    device = resolve_device(config.device)
    config = replace(config, data=named(config.data, config.model))
    if config.data not in LOADERS and Path(config.data).exists():
        config = replace(config, data=str(Path(config.data).resolve()))
    root = Path(config.data_root).resolve() if config.data_root else None
    config = replace(config, data_root=str(root) if root else None)
    if config.pretrained is not None:
        config = replace(config, pretrained=str(Path(config.pretrained).resolve()))
    dataset = load_data(config, root)
    run = Run.new(Path(out) if out else Path("runs") / dataset.name, config, dataset)
    training = Training(run, dataset, device)
    if config.pretrained is not None:
        training.start_from(Path(config.pretrained))
    training.run = run.write(numbered=not out)
    folder = training.run.folder
    with alone(folder):
        try:
            return follow(training, dataset, resumed=False)
        except BaseException:  # also a second Ctrl-C
            if not saved(folder):  # there is nothing to continue from
                shutil.rmtree(folder)
            raise


def resume(folder: str, data_root: str | None, device: str, eager: bool, compile: bool | None) -> int:
    """Continue an interrupted run from its last checkpoint; of a finished one, make up for a lacking report.

    ``eager`` and ``compile`` say how steps are taken from now on, if they are given.
    """
    run = Run.open(Path(folder))
    if eager:
        run = replace(run, config=replace(run.config, eager=True, compile=compile))
    elif compile is not None:
        eager = run.config.eager and not compile
        run = replace(run, config=replace(run.config, eager=eager, compile=compile))
    dataset = run.load_data(data_root)
    training = Training(run, dataset, resolve_device(run.config.device if device == "auto" else device))
    with alone(run.folder):
        if not saved(run.folder):
            raise ValueError(
                f"run: {run.folder} was stopped before anything was saved; "
                "the folder can be deleted, to train anew"
            )
        for leftover in (*run.folder.glob(".*.tmp"), *(run.folder / CHECKPOINT).glob(".*.tmp")):
            leftover.unlink()  # of a process that was killed
        training.restore()
        if training.finished:
            print(f"{run.folder} is finished already.")
            if not (run.folder / FIGURES / f"{TRAINING}.png").exists():  # its report was interrupted
                report(training, dataset)
            return 0
        return follow(training, dataset, resumed=True)
