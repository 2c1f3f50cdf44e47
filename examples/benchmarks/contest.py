"""Timing of several methods that take turns in short blocks of steps.

Other load on the machine then affects all of them alike, and each round gives a ratio.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

import pyro
import torch
from peak_memory import peak_mb
from start import Step
from torch import Tensor

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
ROUNDS = 50  # at most; more steps make longer blocks
WARM_UP = 3
PATIENCE = 10  # longest block of a method in units of the fastest one's, but at least one step
BUDGET_MS = 20_000.0  # a method too slow for all rounds in this time skips some, but takes part in five


@dataclass
class Contestant:
    """A method in progress, with the time per step of each of its blocks in ms."""

    name: str
    step: Step
    device: torch.device
    validate: bool = False
    clock: Callable[[], float] = time.perf_counter
    blocks: dict[int, float] = field(default_factory=dict)  # by the number of the round
    loss: float = math.nan  # of the last step

    def run(self, batches: Sequence[Tensor]) -> float:
        """Take the steps; return milliseconds per step."""
        with pyro.validation_enabled(self.validate):
            self._synchronize()
            start = self.clock()
            for x in batches:
                loss = self.step(x)
            self._synchronize()
            elapsed = self.clock() - start
        self.loss = float(loss)
        return 1e3 * elapsed / len(batches)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @property
    def ms(self) -> float:
        """Median time per step."""
        return statistics.median(self.blocks.values())

    def peak_mb(self, x: Tensor) -> float:
        """Peak memory of one step above that allocated before it, in 10^6 bytes."""
        return peak_mb(lambda: self.run([x]), self.device)

    def ratio(self, floor: "Contestant") -> tuple[float, float, float]:
        """Quartiles of the ratios to another method, in the rounds of both: lower, median, upper."""
        ratios = [ms / floor.blocks[number] for number, ms in self.blocks.items() if number in floor.blocks]
        if len(ratios) == 1:
            return ratios[0], ratios[0], ratios[0]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return low, middle, high


def take_turns(contestants: Sequence[Contestant], batches: Sequence[Tensor], steps: int) -> None:
    """Let every contestant take about so many steps, slow ones fewer, in at most 50 rounds.

    The first step of a longer block is not timed, because the previous method has filled the caches.
    """
    source = cycle(batches)
    pace = []
    for contestant in contestants:
        contestant.run(list(islice(source, min(WARM_UP, steps))))
        pace.append(contestant.run([next(source)]))
    rounds = min(steps, ROUNDS)
    size = math.ceil(steps / rounds)
    sizes = [max(1, min(size, int(PATIENCE * size * min(pace) / own))) for own in pace]
    seldom = [min(math.ceil(own * rounds / BUDGET_MS), math.ceil(rounds / 5)) for own in pace]
    for number in range(rounds):
        for index in range(len(contestants)):  # a different one begins each round
            place = (number + index) % len(contestants)
            if number % seldom[place]:
                continue
            contestant, block = contestants[place], list(islice(source, sizes[place]))
            if len(block) > 1:
                contestant.run([next(source)])
            contestant.blocks[number] = contestant.run(block)
