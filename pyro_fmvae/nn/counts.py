"""Perceptrons for rows of counts, whose total and batch are given. Lopez et al. (2018)."""

from collections.abc import Callable, Sequence
from math import log

import torch
from torch import Tensor, nn

from pyro_fmvae.nn.heads import NormalHead
from pyro_fmvae.nn.mlp import MLPDecoder, MLPEncoder
from pyro_fmvae.nn.sizes import check_event


class CountEncoder(MLPEncoder):
    """A perceptron that sees log(1 + x) of D counts and, if there are batches, which batch the row is of.

    Args:
        columns: D.
        batches: how many there are. With any, a row ends in the number of its own, from 0.
        latent_dim, hidden, head: as for :class:`MLPEncoder`.

    Raises:
        ValueError: an argument is not as described.
    """

    def __init__(
        self,
        columns: int,
        batches: int,
        latent_dim: int,
        hidden: Sequence[int] = (200,),
        head: Callable[[int, int], nn.Module] = NormalHead,
    ) -> None:
        super().__init__((columns + batches,), latent_dim, hidden, head)
        self.columns, self.batches = columns, batches

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Encode rows [..., D], with a batch [..., D + 1], as what the head gives, each [..., latent_dim]."""
        check_event("x", x, (self.columns + min(1, self.batches),))
        counts, batch = x[..., : self.columns], x[..., self.columns :]
        return super().forward(torch.cat([counts.log1p(), _indicators(batch, self.batches)], -1))


class CountDecoder(MLPDecoder):
    """A perceptron that shares a row's total out among D columns: E[x] = total · softmax(f(z, batch)).

    Args:
        latent_dim: number of latent dimensions.
        columns: D.
        batches: how many there are.
        typical_total: of a row whose total is not given.
        dispersed: also give the log of a dispersion θ, which is learnt for each column.
        hidden: as for :class:`MLPDecoder`.

    Raises:
        ValueError: an argument is not as described.
    """

    def __init__(
        self,
        latent_dim: int,
        columns: int,
        batches: int,
        typical_total: float,
        dispersed: bool,
        hidden: Sequence[int] = (200,),
    ) -> None:
        super().__init__(latent_dim + batches, (columns,), 1, hidden)
        if not typical_total > 0:
            raise ValueError(f"typical_total: expected a number > 0, got {typical_total}")
        self.batches, self.typical_total = batches, typical_total
        self.log_concentration = nn.Parameter(torch.zeros(columns)) if dispersed else None

    def forward(self, z: Tensor, total: Tensor | None = None, batch: Tensor | None = None) -> Tensor:
        """Decode z to log E[x] and, if dispersed, log θ: [..., 1 or 2, D].

        Args:
            z: [..., latent_dim].
            total: sum of each row's counts, [..., 1]; None: the typical one.
            batch: number of each row's batch [..., 1], or [..., 0] if there are none; None: E[x] is the mean
                over the batches, each of which counts the same.
        """
        if batch is None:
            every = (
                torch.arange(self.batches, device=z.device).unsqueeze(-1)
                if self.batches
                else z.new_zeros(1, 0)
            )
            log_share = self._log_shares(z.unsqueeze(-2), every).logsumexp(-2) - log(len(every))
        else:
            log_share = self._log_shares(z, batch)
        log_mean = log_share + (log(self.typical_total) if total is None else total.log())
        if self.log_concentration is None:
            return log_mean.unsqueeze(-2)
        return torch.stack([log_mean, self.log_concentration.expand_as(log_mean)], -2)

    def _log_shares(self, z: Tensor, batch: Tensor) -> Tensor:
        """Log of each column's share of the total, [..., D]."""
        known = _indicators(batch, self.batches).to(z)
        lead = torch.broadcast_shapes(z.shape[:-1], known.shape[:-1])
        joined = torch.cat([part.expand(*lead, -1) for part in (z, known)], -1)
        return super().forward(joined).squeeze(-2).log_softmax(-1)

    @torch.no_grad()
    def start_at(self, features: Tensor) -> None:
        """Give about these features [outputs, D], whatever z is: a start near the data's mean.

        What is left of the last layer's weights is a twentieth, so that z is not cut off. Without this,
        thousands of steps go into the columns' overall shares.
        """
        self.linear.bias.copy_(features[0])
        self.linear.weight.mul_(0.05)
        if self.log_concentration is not None:
            self.log_concentration.copy_(features[1])


def _indicators(batch: Tensor, batches: int) -> Tensor:
    """One-hot rows [..., batches] of the numbers of batches [..., 1], or [..., 0] of none."""
    return (batch == torch.arange(batches, device=batch.device)).to(batch.dtype)
