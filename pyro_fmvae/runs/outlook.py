"""How long a training will take, for its log."""

import logging
import math

import torch

from pyro_fmvae.learn.fitting import Record
from pyro_fmvae.memory import most_used

EVERY = 60.0  # seconds

logger = logging.getLogger("pyro_fmvae")


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
        cuda = self.device.type == "cuda"
        memory = torch.cuda.max_memory_allocated(self.device) if cuda else most_used()
        held = "" if memory is None else f"; {memory / 2**30:.1f} GiB of memory so far"
        length = duration(record.seconds + left)
        logger.info("about %s: %s steps of %s%s", length, f"{steps:,}", _short(pace), held)


def duration(seconds: float) -> str:
    """A length of time in words: seconds up to two minutes, then minutes, then hours.

    >>> duration(100), duration(200), duration(40_000)
    ('100 seconds', '3 minutes', '11.1 hours')
    """
    if seconds < 120:
        number = max(round(seconds), 1)
        return f"{number} second{'s' if number > 1 else ''}"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def _short(seconds: float) -> str:
    """Time of a step."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.2g} ms"
