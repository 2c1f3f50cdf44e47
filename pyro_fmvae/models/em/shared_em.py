"""EM whose E-steps are shared out among ranks."""

from typing import Generic

from torch import Tensor

from pyro_fmvae.infer.ranks import FlatSums, Ranks, gathered, own_rows
from pyro_fmvae.models.em.expectation_maximization import Expectation, ExpectationMaximization, Maximum, P
from pyro_fmvae.models.em.statistics import Statistics


class SharedEM(ExpectationMaximization[P], Generic[P]):
    """An EM of which each rank takes its share of the points of an E-step.

    Statistics are sums over points, so those of all ranks are added; latents and draws are put together in
    the order of the points. All else is done by every rank, on the same numbers.

    Args:
        em: the EM of one process.
        ranks: all make the same calls.
    """

    def __init__(self, em: ExpectationMaximization[P], ranks: Ranks) -> None:
        self.em, self.ranks = em, ranks

    def start(self, x: Tensor, starts: int) -> P:
        """As ``em`` does."""
        return self.em.start(x, starts)

    def start_latents(self, parameters: P, num_data: int) -> Tensor:
        """As ``em`` does."""
        return self.em.start_latents(parameters, num_data)

    def e_step(self, x: Tensor, parameters: P, latents: Tensor, temperature: float = 1.0) -> Expectation:
        """Posteriors of the batch, computed by all ranks together."""
        share = self.ranks.share(len(x))
        rows = slice(share.start, share.stop)
        with own_rows(self.ranks, share, dim=1):  # [R, B, ...]
            own = self.em.e_step(x[rows], parameters, latents[:, rows], temperature)
        counted = float(share.weight > 0)
        values = [counted * value for value in own.statistics.values.values()]
        sums = FlatSums([*values, share.weight * own.objective.double()], 1.0)
        self.ranks.add(sums.flats)
        *totals, objective = sums.parts(sums.flats)
        named = dict(zip(own.statistics.values, totals, strict=True))
        samples = None if own.samples is None else gathered(own.samples, 2, share, self.ranks)
        return Expectation(
            gathered(own.latents, 1, share, self.ranks),
            Statistics(named, float(len(x))),
            objective.to(own.objective),
            samples,
        )

    def m_step(
        self, statistics: Statistics, parameters: P, x: Tensor | None = None, found: Expectation | None = None
    ) -> Maximum[P]:
        """As ``em`` does."""
        return self.em.m_step(statistics, parameters, x, found)

    def quality(self, parameters: P, objective: Tensor) -> Tensor:
        """As ``em`` does."""
        return self.em.quality(parameters, objective)

    def noise(self, parameters: P) -> Tensor:
        """As ``em`` does."""
        return self.em.noise(parameters)

    def reseed(self, x: Tensor, parameters: P, found: Expectation) -> P:
        """As ``em`` does."""
        return self.em.reseed(x, parameters, found)
