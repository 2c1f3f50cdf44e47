"""Common start of the methods of a comparison: the same networks, and the same components."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from pyro_fmvae.distributions import BernoulliObservation
from pyro_fmvae.models import FactorialMixtureVAE
from pyro_fmvae.nn import ConvDecoder, ConvEncoder, MLPDecoder, MLPEncoder

NUM_DATA = 50_000
IMAGE = (28, 28)
NETS = ("mlp", "conv")
Step = Callable[[Tensor], float | Tensor]  # returns the loss for all N points


@dataclass(frozen=True)
class Setting:
    """Sizes: I factors with D dimensions and K components each, and B points in a batch."""

    I: int  # noqa: E741 - the paper's name, and the name of the column
    D: int
    K: int
    B: int

    @classmethod
    def parse(cls, text: str) -> "Setting":
        """From ``I,D,K,B``."""
        try:
            sizes = [int(size) for size in text.split(",")]
        except ValueError:
            sizes = []
        if len(sizes) != 4 or min(sizes) < 1:
            raise argparse.ArgumentTypeError(f"expected four whole numbers >= 1 as I,D,K,B, got '{text}'")
        return cls(*sizes)

    def __str__(self) -> str:
        return f"{self.I},{self.D},{self.K},{self.B}"


@dataclass(frozen=True)
class Rates:
    """Learning rates.

    Args:
        networks: Adam's rate for the networks.
        globals: Adam's rate for the mixture's parameters in programs without natural gradients.
        natural: ρ of the natural gradient, a number or a schedule.
    """

    networks: float = 1e-4
    globals: float = 1e-4
    natural: float | Callable[[int], float] = 0.01


@dataclass(frozen=True)
class Learner:
    """A method that trains a model's networks in place.

    Args:
        step: takes one step on a batch.
        write_back: copies the posterior of the mixture to the model, if it is kept elsewhere.
    """

    step: Step
    write_back: Callable[[], None] = lambda: None


def make_networks(
    net: str, latent_dim: int, shape: Sequence[int] = IMAGE, hidden: Sequence[int] = (200,)
) -> tuple[nn.Module, nn.Module]:
    """Encoder and decoder: ``mlp`` has one hidden layer of 200, ``conv`` is the paper's pair at 28×28."""
    if net == "mlp":
        return MLPEncoder(shape, latent_dim, hidden), MLPDecoder(latent_dim, shape, 1, hidden)
    return ConvEncoder(shape, latent_dim), ConvDecoder(latent_dim, shape)


def make_model(
    net: str, setting: Setting, num_data: int = NUM_DATA, shape: Sequence[int] = IMAGE
) -> FactorialMixtureVAE:
    """The library's model with random components."""
    networks = make_networks(net, setting.I * setting.D, shape)
    return FactorialMixtureVAE(
        *networks, BernoulliObservation(2), [setting.K] * setting.I, setting.D, num_data
    )


def random_images(count: int, seed: int) -> Tensor:
    """Random bits [count, 28, 28]."""
    return torch.rand(count, *IMAGE, generator=torch.Generator().manual_seed(seed)).round()


def seeded_model(net: str, setting: Setting, seed: int, device: torch.device) -> FactorialMixtureVAE:
    """The library's model with components from k-means on encoded random images.

    There are enough images for all components. Those without data would stay at the vague prior, where half
    of all draws of a precision underflow, which gives infinite gradients to programs that draw them.
    """
    torch.manual_seed(seed)
    model = make_model(net, setting).to(device)
    images = random_images(max(2 * setting.K, 1000), seed).to(device)
    with torch.no_grad():
        encoded = [model.encoder(part) for part in images.split(250)]
    loc, scale = (torch.cat(parts) for parts in zip(*encoded, strict=True))
    model.seed(loc, scale, None, torch.Generator().manual_seed(seed))
    return model


def fused_adam(rate: float, capturable: bool = False) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
    """Constructor of a fused Adam over all its parameters. A CUDA graph may hold a capturable one."""
    return partial(torch.optim.Adam, lr=rate, fused=True, capturable=capturable)
