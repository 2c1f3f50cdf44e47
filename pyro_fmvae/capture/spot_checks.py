"""Spot checks: at a few steps, a captured loss is compared with that of an eager run on the same numbers.

The numbers of these steps grow geometrically, so that the checks cost next to nothing. Both runs have the
same batch, parameters and random numbers. The eager one is undone, but for its side effects in Python. Where
the two differ, something has changed that the watch over the program could not see.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyro
import torch
from torch import Tensor

from pyro_fmvae.capture.recording import Recording, unchanged
from pyro_fmvae.infer.elbo.operations import uncompiled
from pyro_fmvae.infer.elbo.terms import Term

_FIRST, _GROWTH = 64, 16

Loss = dict[str, float]
"""A loss in nats by site."""


class SpotCheck:
    """The spot checks of one captured program.

    Args:
        recording: the whole program.
        sites: names of the sites whose terms it returns.
        changed: tensors from outside that a run of the program changes, besides parameters.
        compiled: whether it is compiled. A compiler may drop draws that nothing uses, as torch 2.6 does, and
            all draws behind it are others then: such a program is not compared.

    Attributes:
        steps: how many steps the program has taken, and those before it that were captured for the same
            arguments.
    """

    def __init__(
        self, recording: Recording, sites: Sequence[str], changed: Sequence[Tensor], compiled: bool
    ) -> None:
        self._sites, self._changed, self._tensors = list(sites), list(changed), recording.state
        self._eps = recording.eps
        self._first = _FIRST * _GROWTH if compiled else _FIRST
        self._comparable = not (compiled and recording.draws_in_vain)
        self.steps = 0

    @property
    def due(self) -> bool:
        """True if the next step is one to check: number 64 (unless compiled), 1,024, 16,384 and so on.

        An eager run takes as long as one or two steps of a small program, twice as many if it is compiled:
        this keeps the checks below 0.2 % of 1,000 steps.
        """
        step = self.steps + 1
        while step > self._first and step % _GROWTH == 0:
            step //= _GROWTH
        return step == self._first

    def eager(self, terms: Callable[[], list[Term]], data: Sequence[Tensor]) -> Loss:
        """Evaluate a loss, and undo what that changes in tensors and in generators of random numbers.

        Args:
            terms: runs the program eagerly.
            data: the batch.
        """
        with (
            unchanged(self._changed, [*data, *self._tensors]),
            _pythons_generators_unchanged(),
            uncompiled(),
            pyro.validation_enabled(False),
            torch.enable_grad(),  # as in the recording: other kernels may run without
        ):
            return _summed((term.name, term.value.item()) for term in terms())

    def differences(self, eager: Loss, values: Sequence[Tensor]) -> list[str]:
        """Compare an eager loss with the captured one.

        The terms of a site agree if they share half of their digits (√ε of the larger one), or differ by no
        more than a rounding error of the whole loss (ε times the sum of all absolute values). ε is that of
        the coarsest type that the program computes in. Fused operations round otherwise than single ones, and
        a term may be a small difference of large numbers.

        Args:
            eager: from :meth:`eager`.
            values: of the captured program's terms.

        Returns:
            A line for each site whose terms differ.
        """
        if not self._comparable:
            return []
        captured = _summed(zip(self._sites, (value.item() for value in values), strict=True))
        rounding = self._eps * sum(map(abs, eager.values()))
        pairs = {name: (eager.get(name, 0.0), captured.get(name, 0.0)) for name in eager | captured}
        return [
            f"'{name}' ({one:.6g} eagerly, {other:.6g} captured)"
            for name, (one, other) in pairs.items()
            if not math.isclose(one, other, rel_tol=math.sqrt(self._eps), abs_tol=rounding)
            and not (math.isnan(one) and math.isnan(other))
        ]


def _summed(pairs: Iterable[tuple[str, float]]) -> Loss:
    sums: Loss = {}
    for name, value in pairs:
        sums[name] = sums.get(name, 0.0) + value
    return sums


@contextmanager
def _pythons_generators_unchanged() -> Iterator[None]:
    python, numpys = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpys)
