"""A stand-in for an encoder: a search for the best Gaussian of each point."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pyro_fmvae.distributions import Observation
from pyro_fmvae.infer.free_gaussian import FreeGaussian, near_prior
from pyro_fmvae.models.vae import VAE, LocScale, PosteriorFamily


class FreeEncoder(nn.Module):
    """A separate q(z) = N(m, diag(s²)) for each point, found by gradient steps from about N(0, I).

    It turns a decoder alone into a ``VAE``: in place of an encoder's output, the model gets the posterior
    that best fits the present decoder. The result depends only on x and the decoder, because draws have their
    own seed; torch's generators are left alone. The last result is cached, so that more draws of z at the
    same points need no new search. The module cannot be part of a captured step.
    :class:`~pyro_fmvae.learn.vae_phases.FreeEM` learns such a model.

    Args:
        decoder, observation, latent_dim: those of the model, the very same objects. The decoder is not a
            submodule of this module; it belongs to the model only.
        steps, learning_rate: see :class:`~pyro_fmvae.infer.free_gaussian.FreeGaussian`.
        family: posterior family of the model.
        seed: seed of the draws.
        search: class that takes the steps, ``FreeGaussian`` or the much faster
            ``pyro_fmvae.capture.CapturedFreeGaussian``.

    Raises:
        ValueError: a number out of range.
    """

    def __init__(
        self,
        decoder: nn.Module,
        observation: Observation,
        latent_dim: int,
        steps: int = 300,
        learning_rate: float = 0.1,
        family: PosteriorFamily | None = None,
        seed: int = 0,
        search: Callable[..., FreeGaussian] = FreeGaussian,
    ) -> None:
        super().__init__()
        self.latent_dim, self.seed = latent_dim, seed
        program = VAE(nn.Identity(), decoder, observation, latent_dim, 1, family=family)
        self._search = search(program, steps, learning_rate)
        self._asked: list[Tensor] = []
        self._settings: tuple[int, bool] | None = None
        self._found: LocScale | None = None

    def forward(self, x: Tensor) -> LocScale:
        """Find m and s of points ``x[B, *event_shape]``, each [B, latent_dim], without gradients."""
        decoder = self._search.program.decoder
        settings, asked = (self.seed, decoder.training), [x, *decoder.state_dict().values()]
        alike = settings == self._settings and all(map(_same, asked, self._asked))
        if self._found is None or not alike:
            self._found = self._search_from_prior(x)
            self._settings, self._asked = settings, [tensor.clone() for tensor in asked]
        loc, scale = self._found
        return loc.clone(), scale.clone()

    def _search_from_prior(self, x: Tensor) -> LocScale:
        with torch.random.fork_rng([x.device] if x.is_cuda else []):
            torch.default_generator.manual_seed(self.seed)
            if x.is_cuda:
                torch.cuda.default_generators[x.device.index].manual_seed(self.seed)
            loc, scale = near_prior(len(x), self.latent_dim)
            return self._search(x, loc.to(x), scale.to(x))


def _same(one: Tensor, other: Tensor) -> bool:
    alike = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
    return alike and torch.equal(one, other)
