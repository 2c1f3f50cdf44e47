"""The journal's measures as an event log, for TensorBoard to draw while a run is under way."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

from pyro_fmvae.ranks import world
from pyro_fmvae.recipes.options import TrainConfig
from pyro_fmvae.runs.trainer import Trainer

EVENTS: Final = "tensorboard"
"""Folder in a run's folder."""


def check_log(config: TrainConfig) -> None:
    """Raise ValueError if a training is to write a log whose package is not installed."""
    if config.log and find_spec("tensorboard") is None:
        raise ValueError("log: TensorBoard needs tensorboard: pip install 'pyro_fmvae[tensorboard]'")


@contextmanager
def event_log(trainer: Trainer, resumed: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that adds a line of the journal to the run's event log; it does nothing without ``--log``.

    Measures are called ``phase/measure``: those of two phases are of different programs. Components in use
    and accuracies have the name of their factor or label in the end.

    Args:
        trainer: of the run.
        resumed: hide what an earlier process wrote after the checkpoint: it is going to be written again.
    """
    run = trainer.run
    if run.config.log is None or not world().leads:
        yield lambda line: None
        return
    from torch.utils.tensorboard import SummaryWriter

    begin = trainer.progress.total_steps + 1 if resumed else None
    with SummaryWriter(str(run.folder / EVENTS), purge_step=begin) as writer:

        def write(line: dict[str, Any]) -> None:
            used = dict(zip(run.factor_names, line["used_components"], strict=True))
            measures = {**line, "used_components": used}
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
