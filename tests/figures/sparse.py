"""A decoder of sparse codes whose images are the codes."""

import torch

LARGEST = 20.0


class Codes:
    """Pixel j of the image [1, J] is latent j, shrunk so that all values between ±20 fit.

    ``weights`` [J] multiply the latents before. ``decoded`` records every z that it was given.
    """

    def __init__(self, weights=None, colour=False):
        self.weights, self.colour, self.decoded = weights, colour, []

    def decode(self, z):
        self.decoded.append(z.clone())
        image = (0.5 + (z if self.weights is None else z * self.weights) / (2 * LARGEST))[:, None]
        return image[..., None].expand(-1, -1, -1, 3) if self.colour else image


def latents_of(images):
    """Recover codes [..., J] from images [..., 1, J] of :class:`Codes` without weights."""
    return (images[..., 0, :] - 0.5) * 2 * LARGEST


def codes(count, latents=6, share=0.5):
    """Sparse codes of magnitudes from 1 to 3, the last latent never active: [count, J]."""
    values = (1 + 2 * torch.rand(count, latents)) * torch.randn(count, latents).sign()
    on = torch.rand(count, latents) < share
    on[:, -1] = False
    return values * on
