"""Binary vectors that are independent in groups of a few units: posteriors of binary sparse coding."""

from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Bernoulli, Independent, constraints, register_kl
from torch.nn.functional import logsigmoid, pad
from torch.utils._pytree import register_pytree_node


def binary_states(units: int, like: Tensor) -> Tensor:
    """All states of binary units, [2^units, units]: unit i is on in state k where bit i of k is set.

    Args:
        units: their number, >= 1.
        like: gives dtype and device.
    """
    bits = torch.arange(units, device=like.device)
    return ((torch.arange(2**units, device=like.device).unsqueeze(-1) >> bits) & 1).to(like.dtype)


class GroupedBernoulli(TorchDistribution):
    """h in {0, 1}^H, units within a group of g as dependent as they like, groups independent of each other.

    With g = 1 the units are independent (mean field), with a single group the distribution is any at all.
    Nothing is drawn of it by ``TraceConjugate_ELBO``, which takes :attr:`mean` and
    :meth:`superposed_variance`.

    Args:
        probs: for every group of consecutive units the probabilities of its 2^g states, [..., G, 2^g]; in
            state k unit i of the group is on where bit i of k is set.
        units: H, with g(G - 1) < H <= gG; units of the last group beyond it don't exist, and have to be off
            in every state of positive probability. None: gG.

    Raises:
        ValueError: shapes that don't fit.
    """

    arg_constraints: dict[str, constraints.Constraint] = {  # noqa: RUF012
        "probs": constraints.independent(constraints.simplex, 1)
    }
    support = constraints.independent(constraints.boolean, 1)

    def __init__(self, probs: Tensor, units: int | None = None, validate_args: bool | None = None) -> None:
        states = probs.shape[-1] if probs.dim() >= 2 else 0
        if states < 2 or states & (states - 1):
            raise ValueError(f"probs: expected shape [..., groups, 2^g], got {list(probs.shape)}")
        self.probs, self.group_size = probs, states.bit_length() - 1
        most = probs.shape[-2] * self.group_size
        units = most if units is None else units
        if not most - self.group_size < units <= most:
            raise ValueError(
                f"units: expected {most - self.group_size + 1} to {most}, for {probs.shape[-2]} groups of "
                f"{self.group_size}, got {units}"
            )
        super().__init__(probs.shape[:-2], torch.Size([units]), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """P(h_i = 1), [..., H]."""
        return self._units(self._on_off()[0])

    @property
    def variance(self) -> Tensor:
        """P(h_i = 1) P(h_i = 0), [..., H]."""
        on, off = self._on_off()
        return self._units(on * off)

    def entropy(self) -> Tensor:
        """Nats, [...]."""
        return torch.special.entr(self.probs).sum((-1, -2))

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "GroupedBernoulli":
        """Expand to ``batch_shape``."""
        new = self._get_checked_instance(GroupedBernoulli, _instance)
        shape = torch.Size(batch_shape)
        new.probs, new.group_size = self.probs.expand(*shape, *self.probs.shape[-2:]), self.group_size
        TorchDistribution.__init__(new, shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of binary vectors [..., H]: [...]."""
        if self._validate_args:
            self._validate_sample(value)
        groups = self._grouped(value.to(self.probs.dtype))
        bits = 2.0 ** torch.arange(self.group_size, dtype=groups.dtype, device=groups.device)
        index = (groups @ bits).long().unsqueeze(-1)
        shape = torch.broadcast_shapes(index.shape[:-1], self.probs.shape[:-1])
        probs = self.probs.expand(*shape, -1).gather(-1, index.expand(*shape, 1))
        return probs.squeeze(-1).log().sum(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, [*sample_shape, ..., H]."""
        with torch.no_grad():
            index = torch.distributions.Categorical(self.probs, validate_args=False).sample(
                torch.Size(sample_shape)
            )
            return self._units(self._states()[index])

    def superposed_variance(self, weight: Tensor) -> Tensor:
        """Variance of each element of W h, [..., D].

        Args:
            weight: W, [D, H]; or one for each start R, [R, D, H], where the batch shape is [R, B].
        """
        result = self.variance @ weight.square().mT
        if self.group_size == 1:
            return result
        first, second = self._pairs()
        grouped = self._grouped(weight)
        products = (grouped[..., first] * grouped[..., second]).flatten(-2)
        return result + 2 * self._covariances().flatten(-2) @ products.mT

    def summed_second_moment(self, weights: Tensor | None = None) -> Tensor:
        """Σ_n E[h h'] over the last dimension of the batch shape [..., B]: [..., H, H].

        Args:
            weights: how much each point n counts, differently for each of D elements, [B, D]. The sums are
                then [..., D, H, H].
        """
        mean, variance = self.mean, self.variance
        if weights is None:
            second, variance = mean.mT @ mean, variance.sum(-2)
        else:
            columns = [weights.mT @ (mean * mean[..., i : i + 1]) for i in range(mean.shape[-1])]
            second, variance = torch.stack(columns, -2), weights.mT @ variance
        second.diagonal(dim1=-2, dim2=-1).add_(variance)
        if self.group_size == 1:
            return second
        covariances = self._covariances().flatten(-2)
        covariances = covariances.sum(-2) if weights is None else weights.mT @ covariances
        first, other = self._pairs()
        starts = self.group_size * torch.arange(self.probs.shape[-2], device=mean.device).unsqueeze(-1)
        lower, upper = (starts + first).flatten(), (starts + other).flatten()
        second = pad(second, (0, self._surplus, 0, self._surplus))
        second[..., lower, upper] += covariances
        second[..., upper, lower] += covariances
        return second[..., : mean.shape[-1], : mean.shape[-1]]

    def _covariances(self) -> Tensor:
        """Covariances of units i < j of a group, [..., G, g(g - 1)/2]; free of cancellation."""
        states = self._states()
        first, second = (states[:, units] for units in self._pairs())
        both, neither = self.probs @ (first * second), self.probs @ ((1 - first) * (1 - second))
        one, other = self.probs @ (first * (1 - second)), self.probs @ ((1 - first) * second)
        return both * neither - one * other

    def _on_off(self) -> tuple[Tensor, Tensor]:
        """P(h_i = 1) and P(h_i = 0), each [..., G, g]."""
        if self.group_size == 1:
            return self.probs[..., 1:], self.probs[..., :1]
        states = self._states()
        return self.probs @ states, self.probs @ (1 - states)

    def _pairs(self) -> tuple[Tensor, Tensor]:
        """Units i and j of the pairs i < j within a group, each [g(g - 1)/2]."""
        first, second = torch.triu_indices(self.group_size, self.group_size, 1, device=self.probs.device)
        return first, second

    def _states(self) -> Tensor:
        return binary_states(self.group_size, self.probs)

    @property
    def _surplus(self) -> int:
        return self.probs.shape[-2] * self.group_size - self.event_shape[0]

    def _units(self, grouped: Tensor) -> Tensor:
        """From [..., G, g] to [..., H]."""
        return grouped.flatten(-2)[..., : self.event_shape[0]]

    def _grouped(self, values: Tensor) -> Tensor:
        """From [..., H] to [..., G, g], 0 for units that don't exist."""
        return pad(values, (0, self._surplus)).unflatten(-1, (-1, self.group_size))


@register_kl(GroupedBernoulli, Independent)
def _kl(q: GroupedBernoulli, p: Independent) -> Tensor:
    """KL from independent Bernoulli units, [...]."""
    if not isinstance(p.base_dist, Bernoulli) or p.reinterpreted_batch_ndims != 1:
        raise NotImplementedError
    mean, logits = q.mean, p.base_dist.logits
    return -q.entropy() - (mean * logsigmoid(logits) + (1 - mean) * logsigmoid(-logits)).sum(-1)


# As an argument of a step it holds a tensor of rows.
register_pytree_node(
    GroupedBernoulli,
    lambda q: ([q.probs], q.event_shape[0]),
    lambda values, units: GroupedBernoulli(next(iter(values)), units, validate_args=False),
)
