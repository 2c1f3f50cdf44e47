"""Ways to take one training step, for ``step.py``: bare PyTorch, written out by hand, and the library.

A new one takes a function that returns a step, and a line in ``METHODS``.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from pyro.infer import SVI
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from pyro_fmvae.distributions import DIRICHLET, NORMAL_GAMMA, BernoulliObservation
from pyro_fmvae.infer import TraceConjugate_ELBO
from pyro_fmvae.infer.posteriors import natural_prior
from pyro_fmvae.models import FactorialMixtureVAE
from pyro_fmvae.nn import ConvDecoder28, ConvEncoder28, MLPDecoder, MLPEncoder
from pyro_fmvae.optim import NaturalGradient

NUM_DATA = 50_000
RATE = 0.01  # ρ of the natural gradient
IMAGE = (28, 28)
NETS = ("mlp", "conv")
Step = Callable[[Tensor], object]


@dataclass(frozen=True)
class Setting:
    """Sizes: I factors of D dimensions with K components each, and B points in a batch."""

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


def make_networks(net: str, latent_dim: int) -> tuple[nn.Module, nn.Module]:
    """Encoder and decoder: ``mlp`` is 784-200, ``conv`` the paper's pair for 28×28 images."""
    if net == "mlp":
        return MLPEncoder(IMAGE, latent_dim), MLPDecoder(latent_dim, IMAGE)
    return ConvEncoder28(latent_dim), ConvDecoder28(latent_dim)


def make_model(net: str, setting: Setting, device: torch.device) -> FactorialMixtureVAE:
    """The library's model."""
    networks = make_networks(net, setting.I * setting.D)
    sizes = [setting.K] * setting.I
    return FactorialMixtureVAE(*networks, BernoulliObservation(2), sizes, setting.D, NUM_DATA).to(device)


ADAM = partial(torch.optim.Adam, lr=1e-4, fused=True)


def vae_bare(net: str, setting: Setting, device: torch.device) -> Step:
    """The floor: N(0, I) prior, hand-written loss, one fused Adam."""
    encoder, decoder = (network.to(device) for network in make_networks(net, setting.I * setting.D))
    optimiser = ADAM([*encoder.parameters(), *decoder.parameters()])

    def step(x: Tensor) -> Tensor:
        loc, scale = encoder(x)
        z = torch.addcmul(loc, scale, torch.randn_like(scale))
        reconstruction = binary_cross_entropy_with_logits(decoder(z).squeeze(-3), x, reduction="sum")
        kl = 0.5 * (loc.square() + scale.square() - 1).sum() - scale.log().sum()
        loss = (reconstruction + kl) * (NUM_DATA / len(x))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return loss.detach()

    return step


def fmvae_bare(net: str, setting: Setting, device: torch.device) -> Step:
    """The mixture prior written out by hand: equations 4 to 6 and 13, without Pyro or autograd for λ."""
    dim = setting.D
    model = make_model(net, setting, device)  # for its networks and the start value of λ
    encoder, decoder, (group,) = model.encoder, model.decoder, model.factor_groups()
    optimiser = ADAM([*encoder.parameters(), *decoder.parameters()])
    counts = group.weights.natural_value().clone()  # c [I, 1, K]
    natural = group.loc_precision.natural_value().clone()  # λ [I, K, 2D+2]
    counts_prior = natural_prior(group.priors(device)[0])[1]
    natural_zero = natural_prior(group.priors(device)[1])[1]

    def tables() -> tuple[Tensor, ...]:
        """Of equation 6: constant + E[log π] [I, 1, K], factors [I, 2D, K], centre [I, 1, D]; global KLs."""
        stats = NORMAL_GAMMA.mean_stats(natural)
        log_precision, square, precision, scaled_loc = stats.split([1, 1, dim, dim], -1)
        centre = scaled_loc.sum(-2, keepdim=True) / precision.sum(-2, keepdim=True)
        moved = scaled_loc - centre * precision
        square = square - (scaled_loc + moved) @ centre.mT
        constant = 0.5 * (log_precision - square) - 0.5 * dim * math.log(2 * math.pi)
        factors = torch.cat([-0.5 * precision, moved], -1).mT
        kl = NORMAL_GAMMA.relative_entropy(natural, natural_zero).sum()
        kl = kl + DIRICHLET.relative_entropy(counts, counts_prior).sum()
        return (constant.mT + DIRICHLET.mean_stats(counts)).float(), factors.float(), centre.float(), kl

    def step_lambda(gamma: Tensor, data: Tensor, centre: Tensor, scale: float) -> None:
        """Equations 13 and 14, from statistics around the centre, which is undone in float64."""
        n = scale * gamma.sum(-2).double()
        squares, sums = (scale * (gamma.mT @ data)).double().split([dim, dim], -1)
        shift, n_d = centre.double(), n.unsqueeze(-1)
        squares = squares + (2 * sums + n_d * shift) * shift
        new = torch.cat([0.5 * n_d, -0.5 * n_d, -0.5 * squares, sums + n_d * shift], -1)
        natural.lerp_(natural_zero + new, RATE)
        counts.lerp_(counts_prior + n.unsqueeze(-2), RATE)

    def step(x: Tensor) -> Tensor:
        batch_scale = NUM_DATA / len(x)
        loc, scale = encoder(x)
        z = torch.addcmul(loc, scale, torch.randn_like(scale))
        reconstruction = binary_cross_entropy_with_logits(decoder(z).squeeze(-3), x, reduction="sum")
        with torch.no_grad():
            constant, factors, centre, kl_global = tables()
        mean, std = (t.unflatten(-1, (setting.I, dim)).movedim(-2, 0) for t in (loc, scale))
        centred = mean - centre
        data = torch.cat([centred.square() + std.square(), centred], -1)
        logits = torch.baddbmm(constant, data, factors)
        entropy = scale.log().sum() + 0.5 * loc.numel() * (1 + math.log(2 * math.pi))
        # γ is a constant: the bound is stationary in it. Not logsumexp: exp is slow where it underflows.
        gamma, log_gamma = logits.detach().softmax(-1), logits.detach().log_softmax(-1)
        loss = (reconstruction - (gamma * (logits - log_gamma)).sum() - entropy) * batch_scale
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        with torch.no_grad():
            step_lambda(gamma, data, centre, batch_scale)
            return loss.detach() + kl_global

    return step


def fmvae_svi(net: str, setting: Setting, device: torch.device) -> Step:
    """The library, as its users call it."""
    model = make_model(net, setting, device)
    optim = NaturalGradient(RATE, ADAM, model.parameters())
    return SVI(model.model, model.guide, optim, TraceConjugate_ELBO()).step


@dataclass(frozen=True)
class Method:
    """A way to take a step; ``validate`` switches Pyro's checks on, as they are by default."""

    name: str
    make: Callable[[str, Setting, torch.device], Step]
    validate: bool = False


METHODS = (  # the first one is the floor
    Method("vae (bare PyTorch)", vae_bare),
    Method("fmvae closed form (bare PyTorch)", fmvae_bare),
    Method("fmvae SVI", fmvae_svi),
    Method("fmvae SVI (validated)", fmvae_svi, validate=True),
)
