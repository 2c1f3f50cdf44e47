"""A model whose images show z itself."""

import torch

from pyro_fmvae import FactorialMixtureVAE, GaussianObservation

SIZES = (3, 2, 2)  # components of each factor
LABELLED = (1, 0)  # property 0 is factor 1, property 1 is factor 0; property 2 is factor 2, unlabelled
PROPERTIES = (1, 0, 2)
VARIANCE = 0.01
STRIPES = (slice(0, 8), slice(8, 12), slice(12, 16))  # rows of the image, one stripe per factor


class Encoder(torch.nn.Module):
    """Encodes the mean of each stripe as the z of its factor."""

    def forward(self, x):
        loc = torch.stack([x[:, rows].mean((1, 2)) for rows in STRIPES], -1)
        return loc, torch.full_like(loc, 0.01)


class Decoder(torch.nn.Module):
    def forward(self, z):
        image = torch.cat(
            [z[..., [i], None].expand(*z.shape[:-1], r.stop - r.start, 16) for i, r in enumerate(STRIPES)], -2
        )
        return torch.stack([image, torch.zeros_like(image)], -3)


def exact_model(labelled=LABELLED, sizes=SIZES, offset=0.0):
    """Component k of every factor lies at k + offset with variance 0.01 (k + 1)."""
    model = FactorialMixtureVAE(
        Encoder(), Decoder(), GaussianObservation(2, 0.01, 0.1), sizes, 1, 100, labelled
    )
    for group in model.factor_groups():
        count, size = len(group.factors), group.num_components
        m = (torch.arange(size) + offset).to(torch.get_default_dtype()).expand(count, size).unsqueeze(-1)
        s, a = torch.full((count, size, 1), 1e4), torch.full((count, size, 1), 1e4)
        b = a * VARIANCE * (torch.arange(size).unsqueeze(-1) + 1)
        natural = torch.cat([a - 0.5, -s / 2, -(b + s * m**2 / 2), s * m], -1)
        group.set_natural(torch.full((count, 1, size), 10.0), natural)
    return model


def images(codes, spread=0.1):
    """Images of z near the components of the given codes [n, 3], and z."""
    z = codes + spread * (2 * torch.rand(codes.shape) - 1)
    return Decoder()(z)[:, 0], z


def random_codes(n):
    return torch.stack([torch.randint(size, (n,)) for size in SIZES], -1)
