"""Multilayer perceptrons, for data of any shape."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Final

import torch
from torch import Tensor, nn

from pyro_fmvae.nn.heads import NormalHead
from pyro_fmvae.nn.sizes import check_event, check_size, check_sizes, scaled_normal_

LAYERS: Final = (200,)
"""Sizes of hidden layers, unless there are few data."""
FEW_LAYERS, FEW_ROWS = (50,), 1000
"""The same for tables of fewer rows than this.

Chosen by validation bound on wine, breast cancer and digits of 8x8 pixels: 144, 457, 322 and 1,439 points.
"""


def hidden_sizes(num_rows: int) -> tuple[int, ...]:
    """Sizes of hidden layers by the number of rows of a table."""
    return FEW_LAYERS if num_rows < FEW_ROWS else LAYERS


def _hidden_layers(sizes: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size_in, size_out in pairwise(sizes):
        linear = nn.Linear(size_in, size_out)
        scaled_normal_(linear, gain=2.0)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers)


class MLPEncoder(nn.Module):
    """Hidden layers of rectified units, then means and log variances.

    Args:
        event_shape: shape of one data point, for example ``(28, 28)``.
        latent_dim: number of latent dimensions.
        hidden: size of each hidden layer; none at all makes a linear encoder.
        head: makes the last layer, from its numbers of features and of latent dimensions.

    Raises:
        ValueError: an argument is not as described.
    """

    def __init__(
        self,
        event_shape: Sequence[int],
        latent_dim: int,
        hidden: Sequence[int] = LAYERS,
        head: Callable[[int, int], nn.Module] = NormalHead,
    ) -> None:
        super().__init__()
        self.event_shape = check_sizes("event_shape", event_shape)
        sizes = (prod(self.event_shape), *check_sizes("hidden", hidden, may_be_empty=True))
        self.hidden = _hidden_layers(sizes)
        self.head = head(sizes[-1], latent_dim)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Encode ``x[..., *event_shape]`` as what the head gives, each ``[..., latent_dim]``."""
        check_event("x", x, self.event_shape)
        return self.head(self.hidden(x.flatten(-len(self.event_shape))))


class TableEncoder(MLPEncoder):
    """A perceptron that sees numbers, whether each of them is there, and indicators of categories.

    Args:
        levels: number of categories of each column [D]; 0 for a column of numbers. NaN is missing.
        latent_dim, hidden, head: as for :class:`MLPEncoder`.

    Raises:
        ValueError: an argument is not as described.
    """

    def __init__(
        self,
        levels: Sequence[int],
        latent_dim: int,
        hidden: Sequence[int] = LAYERS,
        head: Callable[[int, int], nn.Module] = NormalHead,
    ) -> None:
        numbers = [column for column, size in enumerate(levels) if not size]
        super().__init__((2 * len(numbers) + sum(levels),), latent_dim, hidden, head)
        self.columns, self.numbers = len(levels), numbers
        places = [(column, code) for column, size in enumerate(levels) for code in range(size)]
        table = torch.tensor(places, dtype=torch.long).reshape(-1, 2)
        self.register_buffer("places", table.T, persistent=False)
        self.places: Tensor

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Encode rows [..., D] as what the head gives, each [..., latent_dim]."""
        check_event("x", x, (self.columns,))
        numbers = x[..., self.numbers]
        column, code = self.places
        indicators = (x[..., column] == code).to(x)
        return super().forward(torch.cat([numbers.nan_to_num(0.0), (~numbers.isnan()).to(x), indicators], -1))


class MLPDecoder(nn.Module):
    """Hidden layers of rectified units, then a linear layer to the observation model's parameters.

    Args:
        latent_dim: number of latent dimensions.
        event_shape: shape of one data point.
        outputs: numbers per element of a data point, for example 1 for a Bernoulli logit.
        hidden: size of each hidden layer, in the order of computation; none at all makes a linear decoder.

    Raises:
        ValueError: an argument is not as described.
    """

    def __init__(
        self, latent_dim: int, event_shape: Sequence[int], outputs: int = 1, hidden: Sequence[int] = LAYERS
    ) -> None:
        super().__init__()
        self.latent_dim = check_size("latent_dim", latent_dim)
        self.output_shape = (check_size("outputs", outputs), *check_sizes("event_shape", event_shape))
        sizes = (latent_dim, *check_sizes("hidden", hidden, may_be_empty=True))
        self.hidden = _hidden_layers(sizes)
        self.linear = nn.Linear(sizes[-1], prod(self.output_shape))
        scaled_normal_(self.linear, gain=1.0)

    @property
    def first(self) -> nn.Linear:
        """The layer that takes z."""
        layer = next(iter(self.hidden), self.linear)
        assert isinstance(layer, nn.Linear)
        return layer

    def forward(self, z: Tensor) -> Tensor:
        """Decode ``z[..., latent_dim]`` to ``[..., outputs, *event_shape]``."""
        check_event("z", z, (self.latent_dim,))
        features = self.linear(self.hidden(z)).to(self.linear.weight.dtype)
        return features.unflatten(-1, self.output_shape)
