"""How long a training will take, and how much memory, for its log."""

import logging
import math
import time
from copy import copy, deepcopy
from dataclasses import replace

import torch

from pyro_fmvae.learn.fitting import Record
from pyro_fmvae.memory import most_used
from pyro_fmvae.ranks import now
from pyro_fmvae.runs.duration import duration
from pyro_fmvae.runs.trainer import Trainer

EVERY = 60.0  # seconds
REHEARSED = 2  # steps; the first one is slow

logger = logging.getLogger("pyro_fmvae")


def announce(trainer: Trainer) -> None:
    """Log how long a training that has not begun will take at most, and how much memory.

    Both are measured, by steps on a copy of the model. The time of these counts as training.
    """
    config = trainer.run.config
    minutes = config.max_minutes or config.time_limit
    limit = 60 * minutes if minutes else math.inf
    began = now()
    pace = rehearse(trainer)
    trainer.spend(now() - began)
    steps = sum(phase.budget.iterations or 0 for phase in trainer.phases)
    if pace is not None and config.max_minutes is None:
        short = f", cut short after {duration(limit)}" if minutes else ""
        length = duration(min(steps * pace, limit))
        text = f"about {length} or less: {steps:,} steps of up to {_short(pace)}{short}"
    elif minutes:
        text = f"at most {duration(limit)}" + (f": steps of up to {_short(pace)}" if pace else "")
    else:
        return
    memory = _memory(trainer.device, "about {}" if pace else "{} so far")
    logger.info("%s, and then the report%s", text, memory)


def rehearse(trainer: Trainer) -> float | None:
    """Take two eager steps of the first phase on a copy of the model, and time the second one.

    Nothing of the training changes: neither its model and batches nor any generator.

    Returns:
        Its seconds, which are those of a captured step at most. None of a training in closed form, or if
        a step fails: training then says why.
    """
    run, device = trainer.run, trainer.device
    if run.recipe.closed_form:
        return None
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        learning = replace(trainer.learning, eager=True, compile=False)
        phases = run.recipe.phases(deepcopy(trainer.model), learning)
        phase = next(phase for phase in phases if not phase.budget.empty)
        batch = next(iter(copy(trainer.batches)))
        phase.enter()
        try:
            phase.prepare([batch])
            phase.before_step(0.0)
            for _ in range(REHEARSED):
                began = time.perf_counter()
                phase.step(*batch)
        except ValueError:
            return None
        return time.perf_counter() - began


def _memory(device: torch.device, words: str) -> str:
    """The most memory that was used, in these words behind others; nothing where the system does not tell."""
    used = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else most_used()
    return "" if used is None else "; " + words.format(f"{used / 2**30:.1f} GiB of memory")


class Outlook:
    """Logs how long training will take, as soon as that can be told, and every minute what is left of it.

    Args:
        device: that memory is taken on.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.said = device, float("nan")

    def update(self, record: Record) -> None:
        """Look at a record, and say what is to be said."""
        if record.left is None or record.pace is None:
            return
        if math.isnan(self.said):
            self._estimate(record, record.left, record.pace)
        elif record.seconds - self.said >= EVERY:
            logger.info("%s step %d: about %s left", record.phase, record.step, duration(record.left))
        else:
            return
        self.said = record.seconds

    def _estimate(self, record: Record, left: float, pace: float) -> None:
        steps = record.total_steps + round(left / pace)
        length, memory = duration(record.seconds + left), _memory(self.device, "{} so far")
        logger.info("about %s: %s steps of %s%s", length, f"{steps:,}", _short(pace), memory)


def _short(seconds: float) -> str:
    """Time of a step."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.2g} ms"
