"""Networks: amortised encoders and decoders, in torch alone.

An encoder maps data ``x[..., *event_shape]`` to the location and scale of a diagonal normal, each
``[..., latent_dim]``. With a :class:`SpikeHead` as its ``head`` it also returns the logits of spikes. A
decoder maps ``z[..., latent_dim]`` to ``[..., outputs, *event_shape]``: as many numbers per element
of the data as its observation model needs (one logit, or a mean and a raw scale). ``...`` stands for any
number of batch dimensions, or none. Outputs have the dtype of the network's parameters, under
``torch.autocast`` too, since densities need full precision.
"""

from pyro_fmvae.nn.canvas import is_image
from pyro_fmvae.nn.conv import ConvDecoder, ConvEncoder
from pyro_fmvae.nn.counts import CountDecoder, CountEncoder
from pyro_fmvae.nn.distortion import RandomThickness, RandomWarp
from pyro_fmvae.nn.heads import ExponentialLink, NormalHead, SideBySide, SpikeHead
from pyro_fmvae.nn.mlp import MLPDecoder, MLPEncoder, TableEncoder

__all__ = [
    "ConvDecoder",
    "ConvEncoder",
    "CountDecoder",
    "CountEncoder",
    "ExponentialLink",
    "MLPDecoder",
    "MLPEncoder",
    "NormalHead",
    "RandomThickness",
    "RandomWarp",
    "SideBySide",
    "SpikeHead",
    "TableEncoder",
    "is_image",
]
